# SPDX-License-Identifier: Apache-2.0
"""DLPack's structures for ctypes: a consumer that a test controls."""

from __future__ import annotations

import ctypes


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# A CFUNCTYPE call releases the GIL, as a consumer's thread would not have it.
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("version", Version),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


FromObject = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(ManagedVersioned))
)
ToObject = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ManagedVersioned), ctypes.POINTER(ctypes.py_object)
)
Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
Allocate = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(Tensor),
    ctypes.POINTER(ctypes.POINTER(ManagedVersioned)),
    ctypes.c_void_p,
    SetError,
)
CurrentStream = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class ExchangeTable(ctypes.Structure):
    _fields_ = [
        ("version", Version),
        ("previous", ctypes.c_void_p),
        ("allocate", Allocate),
        ("from_object", FromObject),
        ("to_object", ToObject),
        ("describe", Describe),
        ("current_stream", CurrentStream),
    ]


_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_void_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]

# Capsules do not copy their names.
_USED_VERSIONED = ctypes.create_string_buffer(b"used_dltensor_versioned")


def name_of(capsule: object) -> bytes:
    return bytes(_api.PyCapsule_GetName(capsule))


def peek(capsule: object) -> ManagedVersioned:
    """The tensor of a versioned capsule, which keeps it."""
    return ManagedVersioned.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))


def peek_unversioned(capsule: object) -> Managed:
    return Managed.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor"))


def take(capsule: object) -> int:
    """Takes over the tensor of a versioned capsule: its address."""
    address = _api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
    _api.PyCapsule_SetName(capsule, ctypes.addressof(_USED_VERSIONED))
    return int(address)


def delete(address: int) -> None:
    """Calls the deleter of a versioned tensor, without the GIL."""
    ManagedVersioned.from_address(address).deleter(address)


_TABLE_NAME = ctypes.create_string_buffer(b"dlpack_exchange_api")


def table_capsule(table: ExchangeTable) -> object:
    """For a table that outlives it."""
    return _api.PyCapsule_New(ctypes.addressof(table), _TABLE_NAME, None)


def exchange_table(kind: type) -> ExchangeTable:
    capsule = kind.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    return ExchangeTable.from_address(_api.PyCapsule_GetPointer(capsule, _TABLE_NAME.value))
