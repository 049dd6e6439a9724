// SPDX-License-Identifier: Apache-2.0
#include "signature.hpp"

#include <Python.h>
#include <structmember.h>

#include <array>
#include <cstddef>

#include "in_python.hpp"

namespace gpushm_python {
namespace {

namespace nb = nanobind;

using vectorcall_function = PyObject* (*)(PyObject*, PyObject* const*, std::size_t, PyObject*);

/// Instances of gpushm._core.function. Immutable.
struct function_object {
  PyObject_HEAD
      // Read by the interpreter (__vectorcalloffset__).
      vectorcall_function vectorcall;
  PyObject* wrapped;
};

/// types.MethodType: what the interpreter makes of a method that is not called at once.
/// PyMethod_New is not in the stable ABI. Never released: one for each process.
PyObject* method_type = nullptr;

function_object* as_function(PyObject* self) {
  return reinterpret_cast<function_object*>(self);
}

/// Calls without a copy of the arguments, so that a call costs a few nanoseconds more than the
/// function.
PyObject* call_function(PyObject* self,
                        PyObject* const* arguments,
                        std::size_t count,
                        PyObject* names) {
  return nb::detail::vectorcall(as_function(self)->wrapped, arguments, count, names);
}

PyObject* call_by_tuple(PyObject* self, PyObject* arguments, PyObject* options) {
  return PyObject_Call(as_function(self)->wrapped, arguments, options);
}

PyObject* bind(PyObject* self, PyObject* object, PyObject* /*type*/) {
  if (object == nullptr || object == Py_None) {
    return Py_NewRef(self);
  }
  return PyObject_CallFunctionObjArgs(method_type, self, object, nullptr);
}

PyObject* attribute_of_wrapped(PyObject* self, void* name) {
  return PyObject_GetAttrString(as_function(self)->wrapped, static_cast<const char*>(name));
}

PyObject* signature(PyObject* self, void* /*closure*/) {
  try {
    const nb::object signatures = nb::borrow(as_function(self)->wrapped).attr("__nb_signature__");
    return in_python("gpushm._signature", "signature", signatures).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
}

PyObject* represent(PyObject* self) {
  PyObject* name = PyObject_GetAttrString(as_function(self)->wrapped, "__qualname__");
  if (name == nullptr) {
    return nullptr;
  }
  PyObject* text = PyUnicode_FromFormat("<function gpushm._core.%U>", name);
  Py_DECREF(name);
  return text;
}

/// Pickled by name, as functions of Python are.
PyObject* reduce(PyObject* self, PyObject* /*none*/) {
  return PyObject_GetAttrString(as_function(self)->wrapped, "__qualname__");
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_function(self)->wrapped);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(as_function(self)->wrapped);
  return 0;
}

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

template <typename Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

/// The name of an attribute, as what a getter is called with.
void* closure(const char* name) {
  return const_cast<char*>(name);
}

PyObject* make_type() {
  // In the stable ABI by this name since 3.12, in the interpreter since 3.8.
  constexpr unsigned long have_vectorcall = 1UL << 11U;
  static std::array<PyMemberDef, 3> members{
      {{"__vectorcalloffset__",
        T_PYSSIZET,
        offsetof(function_object, vectorcall),
        READONLY,
        nullptr},
       {"__wrapped__", T_OBJECT_EX, offsetof(function_object, wrapped), READONLY, nullptr},
       {nullptr, 0, 0, 0, nullptr}}};
  static std::array<PyGetSetDef, 5> attributes{
      {{"__doc__", attribute_of_wrapped, nullptr, nullptr, closure("__doc__")},
       {"__name__", attribute_of_wrapped, nullptr, nullptr, closure("__name__")},
       {"__qualname__", attribute_of_wrapped, nullptr, nullptr, closure("__qualname__")},
       {"__signature__", signature, nullptr, nullptr, nullptr},
       {nullptr, nullptr, nullptr, nullptr, nullptr}}};
  static std::array<PyMethodDef, 2> methods{
      {{"__reduce__", reduce, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}}};
  std::array<PyType_Slot, 10> slots{{{Py_tp_members, members.data()},
                                     {Py_tp_getset, attributes.data()},
                                     {Py_tp_methods, methods.data()},
                                     {Py_tp_call, slot(call_by_tuple)},
                                     {Py_tp_descr_get, slot(bind)},
                                     {Py_tp_repr, slot(represent)},
                                     {Py_tp_traverse, slot(traverse)},
                                     {Py_tp_clear, slot(clear)},
                                     {Py_tp_dealloc, slot(deallocate)},
                                     {0, nullptr}}};
  PyType_Spec spec{
      "gpushm._core.function",
      sizeof(function_object),
      0,
      static_cast<unsigned int>(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_IMMUTABLETYPE |
                                Py_TPFLAGS_DISALLOW_INSTANTIATION | have_vectorcall),
      slots.data()};
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) {
    nb::raise_python_error();
  }
  return type;
}

nb::object wrap(nb::handle type, nb::handle wrapped) {
  auto* made = PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type.ptr()), 0);
  if (made == nullptr) {
    nb::raise_python_error();
  }
  as_function(made)->vectorcall = call_function;
  as_function(made)->wrapped = Py_NewRef(wrapped.ptr());
  return nb::steal(made);
}

bool is_function(nb::handle value) {
  return PyType_Check(value.ptr()) == 0 && nb::hasattr(value, "__nb_signature__");
}

/// A copy of the names and values of a module or class, which changes.
nb::list attributes_of(nb::handle owner) {
  return nb::list(owner.attr("__dict__").attr("items")());
}

void wrap_methods(nb::handle type, nb::handle kind) {
  for (const nb::handle item : attributes_of(kind)) {
    const nb::object name = item[0];
    const nb::object value = item[1];
    if (!is_function(value)) {
      continue;
    }
    nb::object made = wrap(type, value);
    if (!nb::hasattr(value, "__get__")) {
      made = nb::module_::import_("builtins").attr("staticmethod")(made);
    }
    nb::setattr(kind, name, made);
  }
}

}  // namespace

void add_signatures(nb::module_& module) {
  method_type = nb::object(nb::module_::import_("types").attr("MethodType")).release().ptr();
  const nb::object type = nb::steal(make_type());
  for (const nb::handle item : attributes_of(module)) {
    const nb::object name = item[0];
    const nb::object value = item[1];
    if (is_function(value)) {
      nb::setattr(module, name, wrap(type, value));
    } else if (PyType_Check(value.ptr()) != 0 &&
               nb::cast<nb::str>(value.attr("__module__")).equal(module.attr("__name__"))) {
      wrap_methods(type, value);
    }
  }
}

}  // namespace gpushm_python
