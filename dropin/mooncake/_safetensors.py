"""Tensors in files of the safetensors format: eight bytes of length, a head of JSON, then the
data.

The format is read and written here, in terms of torch's dtypes, so that no further package is
needed. What must stay true: nothing in a file is believed before it fits the file; a file that is
being written has another name until it is whole.
"""

import contextlib
import json
import os
import struct
from math import prod
from typing import IO, Any

from mooncrate.tensors import BY_NAME, Head

from ._codes import INVALID_PARAMS, log
from ._tensor_plain import PlainCalls
from ._torch import Key, Stored, empty, memory, stored

FILE_NOT_FOUND = -1100
LENGTH = struct.Struct("<Q")
HEAD_MAX = 100_000_000
ALIGN = 8

NAMES = {
    "F32": "float32",
    "F64": "float64",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "U16": "uint16",
    "I32": "int32",
    "U32": "uint32",
    "I64": "int64",
    "U64": "uint64",
    "BOOL": "bool",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
CODES = {name: code for code, name in NAMES.items()}


class FileCalls(PlainCalls):
    """Tensors to files, and from files."""

    def save_tensor_to_safetensor(self, key: Key, file_name: Any = None) -> int:
        """Writes the tensor of a key to a file, named as the key unless told otherwise."""
        form = stored(self.get_tensor(key))
        if form is None:
            return FILE_NOT_FOUND
        try:
            save(os.fsdecode(key if file_name is None else file_name), text(key), form)
        except OSError as error:
            log.warning("the tensor of %r was not written: %s", key, error)
            return INVALID_PARAMS
        return 0

    def load_tensor_from_safetensor(
        self, key: Key | None = None, file_name: Any = None
    ) -> Any | None:
        """Reads a tensor from a file and stores it, under the key or else the name of the file."""
        path = key if file_name is None else file_name
        if path is None:
            raise TypeError("load_tensor_from_safetensor() needs file_name")
        target = os.fsdecode(path) if key is None else key
        try:
            tensor = load(os.fsdecode(path), text(target))
        except (OSError, ValueError) as error:
            log.warning("no tensor was read from %r: %s", path, error)
            return None
        return tensor if self.put_tensor(target, tensor) == 0 else None


def text(key: Key) -> str:
    """The name of a key in a file, where names are text."""
    return key.decode(errors="backslashreplace") if isinstance(key, bytes) else key


def save(path: str, name: str, form: Stored) -> None:
    """Writes a file with one tensor."""
    head = form.head
    entry = {
        "dtype": CODES[head.dtype.name],
        "shape": list(head.shape),
        "data_offsets": [0, head.nbytes],
    }
    words = json.dumps({name: entry}, separators=(",", ":")).encode()
    words = words.ljust(-(-len(words) // ALIGN) * ALIGN)
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:
            file.write(LENGTH.pack(len(words)))
            file.write(words)
            if head.nbytes:
                file.write(memory(form.address, head.nbytes))
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise


def load(path: str, name: str) -> Any:
    """The tensor of this name, or the first of the file; ValueError says why there is none."""
    with open(path, "rb") as file:
        entries, start, end = read_head(file)
        first = next(iter(entries.values()), None)
        if (entry := entries.get(name, first)) is None:
            raise ValueError("the file has no tensors")
        head, offset = head_of_entry(entry, end - start)
        if (tensor := empty(head)) is None:
            raise ValueError(f"this torch has no dtype {head.dtype.name}")
        file.seek(start + offset)
        if head.nbytes and file.readinto(memory(tensor.data_ptr(), head.nbytes)) != head.nbytes:
            raise ValueError("the file ends within its data")
    return tensor


def read_head(file: IO[bytes]) -> tuple[dict[str, Any], int, int]:
    """The entries of a file, and where its data begins and ends."""
    end = os.fstat(file.fileno()).st_size
    front = file.read(LENGTH.size)
    if len(front) != LENGTH.size:
        raise ValueError("the file is too short")
    (length,) = LENGTH.unpack(front)
    if length > min(HEAD_MAX, end - LENGTH.size):
        raise ValueError(f"a head of {length} bytes in a file of {end}")
    try:
        entries = json.loads(file.read(length))
    except RecursionError as error:
        raise ValueError("the head of the file is nested too deeply") from error
    if not isinstance(entries, dict):
        raise ValueError("the head of the file is no JSON object")
    entries.pop("__metadata__", None)
    return entries, LENGTH.size + length, end


def head_of_entry(entry: Any, room: int) -> tuple[Head, int]:
    """The tensor that an entry describes, and where its data begins in so many bytes."""
    try:
        dtype, shape = BY_NAME[NAMES[entry["dtype"]]], tuple(entry["shape"])
        first, last = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"an entry that is not understood: {entry!r:.200}") from error
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, first, last)):
        raise ValueError("a shape or an offset is no number")
    if last > room or last - first != prod(shape) * dtype.size:
        raise ValueError(f"data from {first} to {last} of {room} bytes for the shape {shape}")
    return Head(dtype, shape, shape), first
