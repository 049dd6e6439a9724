// SPDX-License-Identifier: Apache-2.0
// Memory that exists, and structures of arrays: share, put and get.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <utility>

#include "client.hpp"
#include "exchange.hpp"
#include "in_python.hpp"
#include "known_memory.hpp"
#include "segment.hpp"

namespace gpushm_python {
namespace {

using std::string;

nb::object share(client_object& self,
                 const string& name,
                 nb::handle tensor,
                 const string& lifetime,
                 bool publish,
                 const nb::bytes& metadata,
                 nb::handle stream) {
  const array array = import_object(tensor, stream);
  if (array.elements() == 0) {
    throw nb::value_error("a tensor without elements has no memory to share");
  }
  auto options = with_size<gpushm_share_options>();
  options.lifetime = to_lifetime(lifetime);
  options.unpublished = !publish;
  options.metadata = metadata.data();
  options.metadata_size = metadata.size();
  gpushm_segment* shared = nullptr;
  const auto client = self.handle.get("share");
  call(client, [&](gpushm_client* handle) {
    return gpushm_client_share(
        handle, text(name), array.data, array.extent_bytes(), &options, &shared);
  });
  auto segment = own_segment(shared, array.owner);
  note_published(shared, publish);
  return make_object<segment_object>(std::move(segment), client);
}

}  // namespace

void register_share_methods(nb::class_<client_object>& type) {
  type.def(
          "share",
          [](nb::handle self, const string& name, nb::handle tree) {
            if (!nb::isinstance<nb::dict>(tree) && !nb::isinstance<nb::list>(tree) &&
                !nb::isinstance<nb::tuple>(tree)) {
              throw nb::next_overload();
            }
            return in_python("gpushm._tree", "share", self, name, tree);
          },
          nb::arg("name"),
          nb::arg("tree"),
          nb::sig("def share(self, name: str, tree: dict[Any, Any] | list[Any] | tuple[Any, ...]) "
                  "-> SharedTree"),
          "Share the memory of all arrays of a structure (a state dict) as it is, without a "
          "copy.\n\n"
          "Structures and arrays as in :meth:`put`, of memory that can be shared; a reader calls\n"
          ":meth:`get`. Each storage becomes a segment ``name/~0``, ``name/~1``, …, unless it is "
          "in\n"
          "a segment already (``MemPool``). The arrays stay alive until the result is closed.\n"
          "Finish the writes that readers rely on first. Blocks for round trips to the broker.\n\n"
          "Raises gpushm.NotExportableError, which names the allocator and the remedy, TypeError,\n"
          "and as :meth:`create`; nothing is shared then.")
      .def("share",
           share,
           nb::arg("name"),
           nb::arg("tensor"),
           nb::kw_only(),
           nb::arg("lifetime") = "leased",
           nb::arg("publish") = true,
           nb::arg("metadata") = nb::bytes("", 0),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def share(self, name: str, tensor: object, *, lifetime: str = 'leased', "
                   "publish: bool = True, "
                   "metadata: bytes = b'', stream: int | None = None) -> Segment"),
           "Turn the memory of a tensor (an object with ``__dlpack__``) into a segment, without a "
           "copy.\n\n"
           "The segment is the bytes from the first to the last element. The tensor stays alive as "
           "long as\n"
           "the segment is open here. Finish the writes that readers rely on first.\n"
           "Raises gpushm.NotExportableError, which names the allocator and the remedy, and as\n"
           ":meth:`create`.")
      .def(
          "put",
          [](nb::handle self,
             const string& name,
             nb::handle tree,
             nb::handle device,
             const string& lifetime,
             bool replace) {
            return in_python("gpushm._tree", "put", self, name, tree, device, lifetime, replace);
          },
          nb::arg("name"),
          nb::arg("tree"),
          nb::kw_only(),
          nb::arg("device") = "auto",
          nb::arg("lifetime") = "persistent",
          nb::arg("replace") = false,
          nb::sig(
              "def put(self, name: str, tree: object, *, device: Device = 'auto', lifetime: str = "
              "'persistent', replace: bool = False) -> Segment"),
          "Copy a structure of arrays (a state dict) into one new segment, and publish it.\n\n"
          "``tree``: dicts (mappings) with str or int keys, lists, tuples, namedtuples, "
          "dataclasses "
          "and other\n"
          "nodes of JAX's pytrees, nested, of arrays in\n"
          "memory of the host or of any GPU (objects with ``__dlpack__``, NumPy arrays of "
          "ml_dtypes,\n"
          "tensors of all types of PyTorch) and of str, int, float, bool and None. NumPy's scalars "
          "become\n"
          "Python's. An array under several names is copied once, and keeps its strides if it has "
          "no\n"
          "gaps. ``device``, ``lifetime``: as :meth:`create`. ``replace``: a segment that has the "
          "name "
          "keeps it\n"
          "until this one is complete, which then has it at once; readers of the former one keep "
          "it. Blocks\n"
          "until all is copied.\n\n"
          "Raises TypeError, with the place in the tree, for what cannot be put, such as "
          "big-endian\n"
          "elements; and as :meth:`create`.")
      .def(
          "get",
          [](nb::handle self,
             const string& name,
             const std::optional<string>& framework,
             const string& access,
             std::optional<double> timeout,
             nb::handle device) {
            return in_python("gpushm._tree", "get", self, name, framework, access, timeout, device);
          },
          nb::arg("name"),
          nb::arg("framework").none() = nb::none(),
          nb::kw_only(),
          nb::arg("access") = "read",
          nb::arg("timeout").none() = 0.0,
          nb::arg("device").none() = nb::none(),
          nb::sig("def get(self, name: str, framework: str | None = None, *, access: str = 'read', "
                  "timeout: float | None = 0.0, device: Device | None = None) -> Any"),
          "The structure that :meth:`put` has published, without a copy: its arrays are views of "
          "the\n"
          "segment, which stays open as long as one of them.\n\n"
          "``framework``: ``\"numpy\"``, ``\"jax\"``, ``\"torch\"`` or ``\"cupy\"``; None:\n"
          ":class:`gpushm.Array`. Otherwise as :meth:`open`.\n"
          "A segment that :meth:`load_tensors` has loaded is a dict. Raises "
          "gpushm.InvalidArgumentError for\n"
          "a segment without tensors, and ProtocolError for a damaged or hostile one.");
}

}  // namespace gpushm_python
