"""What a caller knows of the fields of a batch: where each belongs, and which form its values have."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._infer import is_bytes, is_image
from ._members import is_tensor, numpy_module

BATCH, NON_TENSOR, META = "batch", "non_tensor_batch", "meta_info"
SECTIONS = (BATCH, NON_TENSOR, META)


@dataclass(frozen=True)
class FieldSchema:
    """Says where a field belongs, by `metadata["section"]`, and what its values are, by a codec of Mooncake's.

    How values are stored is not decided by it: what does not fit is refused, and numbers get their dtype.
    """

    codec: str = "auto"
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)


def section_of(name: str, schema: FieldSchema) -> str | None:
    """The section that a schema names."""
    section = schema.metadata.get("section")
    if section is not None and section not in SECTIONS:
        raise ValueError(f"{name}: section {section!r}: one of {', '.join(SECTIONS)} is needed")
    return section


def shaped(name: str, values: Any, schema: FieldSchema) -> Any:
    """Values by row, as their schema says."""
    is_array = hasattr(values, "dtype")
    if not is_array and (not isinstance(values, Sequence) or isinstance(values, (str, bytes))):
        raise TypeError(f"{name}: a field with a schema is an array or a sequence")
    if schema.codec not in _SHAPES:
        raise ValueError(f"{name}: codec {schema.codec!r}: one of {', '.join(_SHAPES)} is needed")
    if not schema.nullable and any(value is None for value in values):
        raise ValueError(f"{name}: its schema says that every row has a value")
    shape = _SHAPES[schema.codec]
    if shape is None:
        return values
    kind = _dtype(name, schema)
    found = [None if value is None else shape(name, value, kind) for value in values]
    if not is_array:
        return found
    rows = numpy_module().empty(len(found), dtype=object)
    for place, value in enumerate(found):
        rows[place] = value
    return rows


def _dtype(name: str, schema: FieldSchema) -> Any:
    told = schema.metadata.get("dtype")
    if told is None or schema.codec not in ("ndarray", "typed_ragged"):
        return None
    try:
        found = numpy_module().dtype(told)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: {told!r} is no dtype") from None
    if found.kind not in "biufc":
        raise ValueError(f"{name}: {told!r} is no dtype of numbers")
    return found


def _array(name: str, value: Any, kind: Any) -> Any:
    try:
        return numpy_module().asarray(value, dtype=kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name}: a row is no {kind or 'number'}: {error}") from error


def _number(name: str, value: Any, kind: Any) -> Any:
    return value if kind is None else _array(name, value, kind).item()


def _numbers(name: str, value: Any, kind: Any) -> Any:
    array = _array(name, value, kind)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{name}: a row is no array of numbers")
    return array if hasattr(value, "dtype") else array.tolist()


def _json(name: str, value: Any, _: Any) -> Any:
    return json.loads(json.dumps(value))


def _only(what: str, fits: Callable[[Any], bool]) -> Callable[[str, Any, Any], Any]:
    def shape(name: str, value: Any, _: Any) -> Any:
        if not fits(value):
            raise TypeError(f"{name}: a row is no {what}, but a {type(value).__name__}")
        return value

    return shape


# What the codecs want of a row; None: anything.
_SHAPES: dict[str, Callable[[str, Any, Any], Any] | None] = {
    "auto": None,
    "ndarray": _number,
    "typed_ragged": _numbers,
    "ragged_tensor": _only("tensor", is_tensor),
    "ragged_tensor_dict": _only(
        "dict of tensors",
        lambda value: isinstance(value, Mapping) and all(map(is_tensor, value.values())),
    ),
    "utf8_ragged": _only("text", lambda value: isinstance(value, str)),
    "bytes_ragged": _only("bytes", is_bytes),
    "media_bytes": _only("media", lambda value: is_bytes(value) or is_image(value)),
    "media_list_ragged": _only(
        "list of media",
        lambda value: (
            isinstance(value, (list, tuple))
            and all(is_bytes(one) or is_image(one) for one in value)
        ),
    ),
    "msgpack_ragged": None,
    "json_ragged": _json,
}
