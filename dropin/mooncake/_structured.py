"""Structured objects: named members in one bundle, read whole, in part, or into memory of the
caller.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from mooncrate.tensors import SIZE

from ._bundle import (
    BundleRef,
    Bundles,
    BundleTransferPolicy,
    Range,
    RemoteBundleRef,
    address_of,
    as_ref,
    as_segment,
)
from ._members import (
    ARRAY,
    BYTES,
    NESTED,
    ROWS,
    TENSOR,
    VALUE,
    Encoded,
    RawDestination,
    TensorBuffer,
    array_over,
    decode,
    decode_rows,
    encode,
    encode_rows,
    head_of_spec,
    is_nested,
    is_tensor,
    pack,
    row_size,
    tensor_over,
    unpack,
)

# What the members are, in the metadata of what was read.
STRUCTURED_FIELD_SPECS_KEY = "__mooncake_structured_fields__"
ENCODINGS = {ARRAY: "ndarray", TENSOR: "torch_tensor", BYTES: "bytes", VALUE: "value"}


@dataclass(frozen=True)
class StructuredMemberSlice:
    """A part of a member along one dimension."""

    axis: int = 0
    start: int | None = None
    end: int | None = None
    step: int = 1

    @property
    def plain(self) -> slice:
        if self.step < 1:
            raise ValueError(f"step={self.step}: at least 1 is needed")
        return slice(self.start, self.end, self.step)


@dataclass(frozen=True, init=False)
class StructuredObjectPayload:
    """What is stored: members by name, and what to know of all of them."""

    metadata: Mapping[str, Any]
    buffers: Mapping[str, Any]

    def __init__(
        self, metadata: Mapping[str, Any] | None = None, buffers: Mapping[str, Any] | None = None
    ) -> None:
        if buffers is None:
            raise TypeError("buffers are needed: the members by name")
        object.__setattr__(self, "metadata", metadata or {})
        object.__setattr__(self, "buffers", buffers)


@dataclass
class StructuredObjectResult:
    """What was read."""

    metadata: dict[str, Any]
    objects: dict[str, Any]


Selection = slice | StructuredMemberSlice | Sequence[int]


@dataclass(frozen=True)
class StructuredObjectReadSpec:
    """What to read of an object: all of it, until it is narrowed."""

    ref: BundleRef
    member_names: tuple[str, ...] | None = None
    member_slices: tuple[tuple[str, StructuredMemberSlice], ...] = ()

    def select_members(self, names: Iterable[str] | None) -> "StructuredObjectReadSpec":
        """The same, of these members only; of all, for None."""
        return replace(self, member_names=None if names is None else tuple(names))

    def slice_member(
        self,
        name: str,
        axis: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> "StructuredObjectReadSpec":
        """The same, of this member only a part along one dimension."""
        parts = {**dict(self.member_slices), name: StructuredMemberSlice(axis, start, end, step)}
        return replace(self, member_slices=tuple(parts.items()))

    def member_slice(self, name: str) -> StructuredMemberSlice | None:
        """The part of this member that is read; None: all of it."""
        return dict(self.member_slices).get(name)


class Structured:
    """Stores and reads structured objects as bundles."""

    def __init__(self, bundles: Bundles) -> None:
        self.bundles = bundles

    def put(
        self,
        metadata: Mapping[str, Any],
        members: Mapping[str, Any],
        rows: Mapping[str, Sequence[Any]],
        partition: str,
        chunk_bytes: int | None,
        policy: BundleTransferPolicy | None,
        config: Any,
        group: str | None = None,
        earlier: str | None = None,
    ) -> RemoteBundleRef:
        """Stores members, and members whose rows can be read one by one, after those of `earlier`."""
        if policy is not None and policy.copy_mode == "zero_copy":
            for name, value in members.items():
                if is_tensor(value) and not isinstance(value, TensorBuffer):
                    raise ValueError(
                        f"{name}: zero_copy takes tensors as tensor_object_buffer only"
                    )
        stored: list[Encoded] = [Encoded({}, memoryview(pack("metadata", dict(metadata))))]
        specs: dict[str, dict[str, Any]] = {}
        for name, value in members.items():
            if is_nested(value):
                rows = {**rows, as_segment("member", name): value}
                continue
            form = encode(as_segment("member", name), value)
            specs[name] = {**form.spec, "place": len(stored)}
            stored.append(form)
        for name, value in rows.items():
            forms = encode_rows(name, value)
            specs[name] = {**forms[0].spec, "place": len(stored)}
            stored.extend(forms)
        payloads = [form.payload for form in stored]
        about: dict[str, Any] = {"members": specs}
        if earlier is not None:
            about["earlier"] = earlier
        return self.bundles.put(payloads, about, partition, chunk_bytes, policy, config, group)

    def members(self, ref: RemoteBundleRef) -> dict[str, tuple[RemoteBundleRef, dict[str, Any]]]:
        """The members of an object: in which bundle each is, and what it is."""
        found: dict[str, tuple[RemoteBundleRef, dict[str, Any]]] = {}
        for bundle in self.bundles.lineage(ref):
            for name, spec in self.bundles.manifest(bundle)["members"].items():
                found.setdefault(name, (bundle, spec))
        return found

    def metadata(self, ref: RemoteBundleRef) -> dict[str, Any]:
        """What to know of an object as a whole."""
        found: dict[str, Any] = unpack(self.bundles.read(ref, 0))
        return found

    def materialize(
        self, spec: StructuredObjectReadSpec, destinations: Mapping[str, Any]
    ) -> StructuredObjectResult:
        """What a spec says, some members in memory of the caller."""
        if spec.member_names is not None and not spec.member_names:
            raise ValueError("the spec names no members")
        ref = as_ref(spec.ref)
        members = self.members(ref)
        objects = {
            name: self.read(members, name, spec.member_slice(name), destinations.get(name))
            for name in (members if spec.member_names is None else spec.member_names)
        }
        metadata = self.metadata(ref)
        if members:
            told = {name: told_of(one) for name, (_, one) in members.items()}
            metadata[STRUCTURED_FIELD_SPECS_KEY] = told
        return StructuredObjectResult(metadata, objects)

    def read(
        self,
        members: Mapping[str, tuple[RemoteBundleRef, Mapping[str, Any]]],
        name: str,
        part: Selection | None,
        into: Any,
    ) -> Any:
        """A member, or a part of it, in memory of its own or in what the caller brings."""
        if name not in members:
            raise KeyError(f"{name}: the object has {', '.join(members) or 'no members'}")
        ref, spec = members[name]
        if spec["kind"] == ROWS:
            return self._read_rows(ref, spec, part)
        if spec["kind"] in (BYTES, VALUE):
            if part is not None or into is not None:
                raise ValueError(
                    f"{name}: only arrays and tensors are read in part, or into memory"
                )
            return decode(spec, self.bundles.read(ref, spec["place"]))
        return self._read_array(ref, name, spec, part, into)

    def _read_array(
        self, ref: RemoteBundleRef, name: str, spec: Mapping[str, Any], part: Any, into: Any
    ) -> Any:
        if isinstance(part, StructuredMemberSlice) and part.axis != 0:
            return self._read_across(ref, name, spec, part, into)
        shape, runs = list(spec["shape"]), None
        if part is not None:
            if not shape:
                raise ValueError(f"{name}: it has no rows to choose from")
            runs = runs_of(part, shape[0])
            shape[0] = sum(count for _, count in runs)
        wanted = {**spec, "shape": shape}
        size = row_size({**wanted, "shape": [1, *shape]})
        own = bytearray(size) if into is None else None
        address = room_for(name, wanted, size, into) if own is None else 0
        if size:
            address = address if own is None else address_of(own)
            if runs is None:
                self.bundles.read_into(ref, spec["place"], address, size)
            else:
                step = row_size(spec)
                ranges = ranges_of(runs, step)
                self.bundles.read_ranges(ref, spec["place"], ranges, address, size)
        if own is not None:
            return decode(wanted, own)
        if not isinstance(into, (TensorBuffer, RawDestination)):
            return into
        if spec["kind"] == ARRAY:
            return array_over(into, wanted)
        return tensor_over(into, head_of_spec(wanted))

    def _read_across(
        self,
        ref: RemoteBundleRef,
        name: str,
        spec: Mapping[str, Any],
        part: StructuredMemberSlice,
        into: Any,
    ) -> Any:
        """A part along a later dimension lies in many places: it is cut from the whole."""
        whole = self._read_array(ref, name, spec, None, None)
        if not 0 <= part.axis < len(spec["shape"]):
            raise ValueError(f"{name}: dimension {part.axis} of {len(spec['shape'])}")
        some = whole[(slice(None),) * part.axis + (part.plain,)]
        if into is None:
            return some
        shape = tuple(some.shape)
        # Without the first question an array of float64 would equal what has no dtype.
        fits = hasattr(into, "dtype") and into.dtype == some.dtype and tuple(into.shape) == shape
        if not fits:
            raise ValueError(f"{name}: the destination must be of {some.dtype} and {shape}")
        into[...] = some
        return into

    def _read_rows(
        self, ref: RemoteBundleRef, spec: Mapping[str, Any], part: Selection | None
    ) -> Any:
        place, count = spec["place"], spec["rows"]
        ends = [*memoryview(self.bundles.read(ref, place)).cast("q")]
        runs = [(0, count)] if part is None else runs_of(part, count)
        starts = [0, *ends]
        chosen = [row for first, length in runs for row in range(first, first + length)]
        sizes = [starts[row + 1] - starts[row] for row in chosen]
        room, total = bytearray(sum(sizes)), 0
        ranges = []
        for first, length in runs:
            size = starts[first + length] - starts[first]
            ranges.append(Range(starts[first], total, size))
            total += size
        if total and part is None:
            self.bundles.read_into(ref, place + 1, address_of(room), total)
        elif total:
            self.bundles.read_ranges(ref, place + 1, ranges, address_of(room), total)
        values, at = [], 0
        view = memoryview(room)
        for size in sizes:
            values.append(unpack(view[at : at + size]))
            at += size
        return decode_rows(spec["container"], values, spec.get("shape", ()))


def runs_of(part: Selection, length: int) -> list[tuple[int, int]]:
    """What is chosen of a length, as first places and counts of neighbours."""
    if isinstance(part, StructuredMemberSlice):
        if part.axis != 0:
            raise ValueError("rows are chosen along dimension 0")
        part = part.plain
    if isinstance(part, slice):
        first, last, step = part.indices(length)
        if step == 1:
            return [(first, last - first)] if last > first else []
        part = range(first, last, step)
    # An iterator is at its end after the first look, and a set has no order.
    text = isinstance(part, (str, bytes, bytearray))
    if text or not (isinstance(part, Sequence) or hasattr(part, "dtype")):
        raise TypeError(f"rows are a slice, or numbers in a sequence or an array, not {part!r}")
    if is_mask(part):
        # As numbers they would be the rows 0 and 1.
        raise TypeError("rows are a slice or numbers, not truth values")
    runs: list[tuple[int, int]] = []
    for row in map(index, part):
        if not -length <= row < length:
            raise IndexError(f"row {row} of {length}")
        row %= length
        if runs and sum(runs[-1]) == row:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((row, 1))
    return runs


def is_mask(part: Any) -> bool:
    kind = getattr(part, "dtype", None)
    if kind is None:
        return any(isinstance(row, bool) for row in part)
    return f"{kind}".removeprefix("torch.") == "bool"


def told_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a member is, in the words of Mooncake."""
    if spec["kind"] == ROWS and spec["container"] == NESTED:
        return {"encoding": "torch_tensor", "dtype": spec["dtype"], "nested": True}
    if spec["kind"] == ROWS:
        return {"encoding": "structured_non_tensor", "rows": spec["rows"]}
    told = {"encoding": ENCODINGS[spec["kind"]]}
    return {**told, **{name: spec[name] for name in ("dtype", "shape") if name in spec}}


def checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What to know of an object, with its layout; ValueError where a name is taken."""
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata is a dict, not {metadata!r}")
    if STRUCTURED_FIELD_SPECS_KEY in metadata:
        raise ValueError(f"metadata: {STRUCTURED_FIELD_SPECS_KEY} is reserved")
    found = {"layout": "structured", **metadata}
    if not isinstance(found["layout"], str):
        raise ValueError(f"metadata: the layout is a text, not {found['layout']!r}")
    return found


def ranges_of(runs: Sequence[tuple[int, int]], step: int) -> list[Range]:
    ranges, target = [], 0
    for first, count in runs:
        ranges.append(Range(first * step, target, count * step))
        target += count * step
    return ranges


def room_for(name: str, spec: Mapping[str, Any], size: int, into: Any) -> int:
    """Where the data goes in what the caller brings; ValueError if it does not fit."""
    if isinstance(into, RawDestination) and spec["kind"] == ARRAY:
        if into.size < size:
            raise ValueError(f"{name}: {size} bytes do not fit {into.size}")
        return into.ptr
    if isinstance(into, (TensorBuffer, RawDestination)):
        if spec["kind"] != TENSOR or into.size < SIZE + size:
            raise ValueError(f"{name}: a tensor of {SIZE + size} bytes, head and data, must fit")
        return into.ptr + SIZE
    if not hasattr(into, "dtype") or not hasattr(into, "shape"):
        raise TypeError(f"{name}: a {type(into).__name__} is no memory to read to")
    if spec["kind"] == ARRAY:
        fits = getattr(into.dtype, "str", None) == spec["dtype"]
        if not fits or [*into.shape] != spec["shape"] or not into.flags.c_contiguous:
            raise ValueError(f"{name}: needs an array {spec['dtype']} {spec['shape']} in C order")
        if not into.flags.writeable:
            raise ValueError(f"{name}: the destination is read-only")
        return int(into.ctypes.data)
    fits = str(getattr(into, "dtype", "")).removeprefix("torch.") == spec["dtype"]
    if not fits or [*into.shape] != spec["shape"] or not into.is_contiguous():
        raise ValueError(f"{name}: needs a tensor {spec['dtype']} {spec['shape']} in C order")
    if into.device.type != "cpu":
        raise ValueError(f"{name}: the destination must be on the CPU")
    return int(into.data_ptr())
