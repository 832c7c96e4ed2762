"""What shape rows of plain values have: dicts and short lists are taken apart into columns, and each column
gets the form in which Mooncake would store it.

The store of ours needs none of it, because rows are stored as they are; programs ask for it by name. What must
stay true: a key that a row does not have is `MISSING`, and never None.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._members import numpy_module

# Wider or longer containers stay whole, and deeper ones are refused.
KEYS_MAX = 64
PLACES_MAX = 8
DEPTH_MAX = 32


class _Missing:
    """What a row has under a key that it does not have."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<MISSING>"


MISSING = _Missing()


@dataclass
class Decision:
    """The form of a column: whether there is one, which, and why."""

    accepted: bool
    codec: str
    reason: str
    normalized_type: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class Leaf:
    """A column that is not taken apart further."""

    path: str
    values: list[Any]
    decision: Decision


@dataclass
class Node:
    """A container that was taken apart: its keys or places, and which rows have one."""

    path: str
    node_type: str
    children: list[Any]
    lengths: list[int] | None = None
    row_mask: list[bool] | None = None


def infer_structure(
    path: str, values: list[Any], leaves: list[Leaf], nodes: list[Node], *, _depth: int = 0
) -> None:
    """Takes rows apart; adds to `leaves` and `nodes` what it finds."""
    if _depth > DEPTH_MAX:
        raise ValueError(f"{path!r}: more than the depth of {DEPTH_MAX} containers")
    for apart in (_by_key, _by_place):
        found = apart(path, values)
        if found is not None:
            node, columns = found
            nodes.append(node)
            for inner, column in columns.items():
                infer_structure(inner, column, leaves, nodes, _depth=_depth + 1)
            return
    leaves.append(Leaf(path, values, form_of(values)))


Apart = tuple[Node, dict[str, list[Any]]] | None


def there(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None and value is not MISSING]


def escape_key(key: str) -> str:
    """A key as a part of a path: what would begin another part has a backslash before it."""
    return "".join("\\" + letter if letter in "\\.[" else letter for letter in key)


def _by_key(path: str, values: list[Any]) -> Apart:
    known = there(values)
    if not known or not all(isinstance(value, dict) for value in known):
        return None
    keys = {key for value in known for key in value}
    if len(keys) > KEYS_MAX or not all(isinstance(key, str) for key in keys):
        return None
    mask = [isinstance(value, dict) for value in values]
    node = Node(path, "dict", sorted(keys), row_mask=mask)
    columns = {}
    for key in node.children:
        columns[f"{path}.{escape_key(key)}"] = [
            value.get(key, MISSING) if has else None
            for value, has in zip(values, mask, strict=True)
        ]
    return node, columns


def _by_place(path: str, values: list[Any]) -> Apart:
    known = there(values)
    if not known or not all(isinstance(value, (list, tuple)) for value in known):
        return None
    places = max(map(len, known))
    inner = (None.__class__, dict, list, tuple)
    if places > PLACES_MAX or not all(isinstance(one, inner) for value in known for one in value):
        return None
    mask = [isinstance(value, (list, tuple)) for value in values]
    lengths = [len(value) if has else 0 for value, has in zip(values, mask, strict=True)]
    columns = {
        f"{path}[{place}]": [
            (value[place] if place < len(value) else MISSING) if has else None
            for value, has in zip(values, mask, strict=True)
        ]
        for place in range(places)
    }
    return Node(path, "list", [*range(places)], lengths, mask), columns


# ---- the form of a column ------------------------------------------------------------------------


def form_of(values: Sequence[Any]) -> Decision:
    """The form that all rows of a column have in common; rows without a value fit every one."""
    known = there(values)
    if not known:
        return Decision(False, "msgpack_ragged", "no row has a value", "msgpack")
    for look in (_tensors, _media_lists, _arrays, _numbers_by_row, _numbers):
        found = look(known)
        if found is not None:
            return found
    for fits, codec, name in _PLAIN:
        if all(map(fits, known)):
            return Decision(True, codec, f"every value is {name}", name)
    return Decision(False, "msgpack_ragged", "the values have no form in common", "python object")


def is_bytes(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview))


def is_image(value: Any) -> bool:
    # Known by where its class is from: nobody needs the library for that.
    return (type(value).__module__ or "").startswith("PIL.") and hasattr(value, "save")


_PLAIN: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (is_bytes, "bytes_ragged", "bytes-like"),
    (is_image, "media_bytes", "media"),
    (lambda value: isinstance(value, str), "utf8_ragged", "str"),
    (lambda value: isinstance(value, (dict, list, tuple)), "msgpack_ragged", "msgpack"),
)


def _tensors(known: list[Any]) -> Decision | None:
    torch = sys.modules.get("torch")
    if torch is None or not all(isinstance(value, torch.Tensor) for value in known):
        return None
    kinds = sorted({str(value.dtype) for value in known})
    if len(kinds) > 1:
        reason = f"tensors of {' and '.join(kinds)}"
        return Decision(False, "ragged_tensor", reason, "torch.Tensor")
    more = {"dtype": kinds[0]}
    return Decision(True, "ragged_tensor", "every value is a tensor", "torch.Tensor", more)


def _media_lists(known: list[Any]) -> Decision | None:
    if not all(
        isinstance(value, (list, tuple)) and all(is_bytes(one) or is_image(one) for one in value)
        for value in known
    ):
        return None
    return Decision(True, "media_list_ragged", "every value is a list of media", "media list")


def _arrays(known: list[Any]) -> Decision | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not all(isinstance(value, numpy.ndarray) for value in known):
        return None
    if not all(numpy.issubdtype(value.dtype, numpy.number) for value in known):
        reason = "arrays of something else than numbers"
        return Decision(False, "msgpack_ragged", reason, "python object")
    more = {"recursive_source": "ndarray"}
    return Decision(True, "typed_ragged", "every value is an array", "numeric sequence", more)


def _numbers_by_row(known: list[Any]) -> Decision | None:
    if not all(isinstance(value, (list, tuple)) for value in known):
        return None
    numpy = numpy_module()
    try:
        kind = numpy.result_type(*(numpy.asarray(value).dtype for value in known))
    except (TypeError, ValueError, OverflowError):
        return None
    if not numpy.issubdtype(kind, numpy.number):
        return None
    more = {"dtype": str(kind)}
    reason = "every value is a list of numbers"
    return Decision(True, "typed_ragged", reason, "numeric sequence", more)


def _numbers(known: list[Any]) -> Decision | None:
    numpy = numpy_module()
    if not all(isinstance(value, (int, float, numpy.number)) for value in known):
        return None
    try:
        more = {"dtype": str(numpy.result_type(*known))}
    except OverflowError:
        return None
    return Decision(True, "ndarray", "every value is a number", "numeric scalar", more)
