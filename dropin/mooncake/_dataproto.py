"""Batches as structured objects: tensors by row, values by row, and what holds for the whole
batch.

A ref says which stage holds which field; what a field is, its stage's manifest says. What must
stay true: a field name means one thing in a ref, and an appended stage never changes the fields of
another.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ._bundle import BundleTransferPolicy, RemoteBundleRef
from ._members import is_array, is_object_array, is_tensor, pack, unpack
from ._structured import Selection, Structured

BATCH, NON_TENSOR, META = "batch", "non_tensor_batch", "meta_info"
SECTIONS = (BATCH, NON_TENSOR, META)
HANDLE = "mooncrate_dataproto_ref"


@dataclass(frozen=True)
class FieldSchema:
    """Says where a field of a dict belongs, by `metadata["section"]`.

    Values come back as they were given, whatever their codec; the codecs of Mooncake are accepted.
    """

    codec: str = "auto"
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        section = self.metadata.get("section")
        if section is not None and section not in SECTIONS:
            raise ValueError(f"section {section!r}: one of {', '.join(SECTIONS)} is needed")


@dataclass(frozen=True)
class MooncakeDataProtoRef:
    """Where the fields of a batch are: stage, member and section of each."""

    stage_refs: Mapping[str, RemoteBundleRef]
    field_index: Mapping[str, tuple[str, str, str]]
    batch_size: int | None = None
    namespace: str = "default"
    partition: str = "default"
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    global_indexes: Sequence[int] | None = None


@dataclass(frozen=True)
class Parts:
    """A batch, taken apart; where it is not `aligned`, fields may differ in their rows."""

    batch: Mapping[str, Any]
    non_tensor: Mapping[str, Sequence[Any]]
    meta: Mapping[str, Any]
    aligned: bool = True

    @property
    def size(self) -> int | None:
        """How many rows all fields have, if they agree; ValueError if they should and do not."""
        counts = {
            name: rows(value) for name, value in (*self.batch.items(), *self.non_tensor.items())
        }
        known = {count for count in counts.values() if count is not None}
        if len(known) > 1 and self.aligned:
            raise ValueError(f"fields have different numbers of rows: {counts}")
        return known.pop() if len(known) == 1 else None


class DataProtos:
    """Stores and reads batches as structured objects, one for each stage."""

    def __init__(self, structured: Structured) -> None:
        self.structured = structured

    def put(
        self,
        ref: MooncakeDataProtoRef | None,
        parts: Parts,
        *,
        namespace: str,
        partition: str,
        stage: str,
        overwrite: bool = False,
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        config: Any = None,
    ) -> MooncakeDataProtoRef:
        """Stores a stage; a ref that has its fields beside those it had."""
        old = MooncakeDataProtoRef({}, {}, None, namespace, partition) if ref is None else ref
        kept = {name: where for name, where in old.field_index.items() if where[0] != stage}
        if stage in old.stage_refs and not overwrite:
            raise ValueError(f"the stage {stage!r} is stored already; overwrite=True replaces it")
        fields = {
            **dict.fromkeys(parts.batch, BATCH),
            **dict.fromkeys(parts.non_tensor, NON_TENSOR),
        }
        twice = {*parts.batch} & {*parts.non_tensor} or {*fields} & {*kept}
        if twice:
            raise ValueError(f"fields that are there already: {', '.join(sorted(twice))}")
        size = parts.size
        if size is not None and kept and old.batch_size not in (None, size):
            raise ValueError(f"{size} rows do not fit a batch of {old.batch_size}")
        where = f"{namespace}/{partition}/{stage}"
        bundle = self.structured.put(
            parts.meta, parts.batch, parts.non_tensor, where, chunk_bytes, policy, config
        )
        index = {name: (stage, name, section) for name, section in fields.items()}
        if stage in old.stage_refs:
            self.structured.bundles.remove(old.stage_refs[stage])
        return replace(
            old,
            stage_refs={**old.stage_refs, stage: bundle},
            field_index={**kept, **index},
            batch_size=old.batch_size if size is None else size,
            meta_info={**old.meta_info, **parts.meta},
        )

    def get(
        self,
        ref: MooncakeDataProtoRef,
        *,
        fields: Sequence[str] | None = None,
        batch_fields: Sequence[str] | None = None,
        non_tensor_fields: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        destinations: Mapping[str, Any] | None = None,
        rows: Selection | None = None,
    ) -> Parts:
        """The fields that are asked for: all, unless some are named."""
        found: dict[str, dict[str, Any]] = {BATCH: {}, NON_TENSOR: {}}
        for name in chosen(ref, fields, batch_fields, non_tensor_fields):
            stage, member, section = ref.field_index[name]
            into = (destinations or {}).get(name)
            found[section][name] = self.structured.read(ref.stage_refs[stage], member, rows, into)
        meta = dict(ref.meta_info)
        if meta_info_keys is not None:
            meta = {key: meta[key] for key in meta_info_keys if key in meta}
        return Parts(found[BATCH], found[NON_TENSOR], meta)

    def view(self, ref: MooncakeDataProtoRef) -> dict[str, Any]:
        """What the fields are, as the manifests say."""
        fields = {}
        for name, (stage, member, section) in ref.field_index.items():
            spec = self.structured.specs(ref.stage_refs[stage])[member]
            fields[name] = {"stage": stage, "section": section, **spec}
        return {"batch_size": ref.batch_size, "stages": [*ref.stage_refs], "fields": fields}

    def remove(self, ref: MooncakeDataProtoRef) -> None:
        """Removes all stages."""
        for bundle in ref.stage_refs.values():
            self.structured.bundles.remove(bundle)


def chosen(
    ref: MooncakeDataProtoRef,
    fields: Sequence[str] | None,
    batch_fields: Sequence[str] | None,
    non_tensor_fields: Sequence[str] | None,
) -> list[str]:
    if fields is None and batch_fields is None and non_tensor_fields is None:
        return [*ref.field_index]
    for names, section in ((batch_fields, BATCH), (non_tensor_fields, NON_TENSOR)):
        for name in names or ():
            if name in ref.field_index and ref.field_index[name][2] != section:
                raise KeyError(f"{name} is no field of {section}")
    names = [*(fields or ()), *(batch_fields or ()), *(non_tensor_fields or ())]
    if unknown := [name for name in names if name not in ref.field_index]:
        raise KeyError(f"{', '.join(unknown)}: the batch has {', '.join(ref.field_index)}")
    return [*dict.fromkeys(names)]


def rows(value: Any) -> int | None:
    """How many rows a field has; None if it has none."""
    size = getattr(value, "batch_size", None)
    if isinstance(size, int):
        return size
    shape = getattr(value, "shape", None)
    if shape is not None:
        return shape[0] if len(shape) else None
    return len(value) if isinstance(value, (list, tuple)) else None


def parts_of(data: Any) -> Parts:
    """A batch with the three sections, as attributes or keys; other dicts are all tensors."""
    if isinstance(data, Mapping):
        if not {*data} <= {*SECTIONS}:
            return Parts(dict(data), {}, {})
        sections = [data.get(section) for section in SECTIONS]
    else:
        if not any(hasattr(data, section) for section in SECTIONS):
            raise TypeError(f"{type(data).__name__} has none of {', '.join(SECTIONS)}")
        sections = [getattr(data, section, None) for section in SECTIONS]
    batch, non_tensor, meta = ({} if one is None else dict(one.items()) for one in sections)
    return Parts(batch, non_tensor, meta)


def parts_of_dict(data: Mapping[str, Any], schemas: Mapping[str, FieldSchema] | None) -> Parts:
    """A flat dict: tensors and bytes, sequences with a value for each row, and the rest."""
    told = {name: schema.metadata.get("section") for name, schema in (schemas or {}).items()}
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    sequences = []
    for name, value in data.items():
        section = told.get(name)
        if section is not None:
            sections[section][name] = value
        elif (
            is_tensor(value) or is_array(value) or isinstance(value, (bytes, bytearray, memoryview))
        ):
            sections[BATCH][name] = value
        elif isinstance(value, (list, tuple)) or is_object_array(value):
            sequences.append(name)
        else:
            sections[META][name] = value
    # The fields that are certain say how many rows there are; without such, the first sequence.
    certain = [rows(value) for section in SECTIONS[:2] for value in sections[section].values()]
    counts = {count for count in certain if count is not None} or {
        len(data[name]) for name in sequences[:1]
    }
    for name in sequences:
        section = NON_TENSOR if counts == {len(data[name])} else META
        sections[section][name] = data[name]
    return Parts(sections[BATCH], sections[NON_TENSOR], sections[META], aligned=False)


def export_ref(ref: MooncakeDataProtoRef) -> dict[str, Any]:
    """A ref as plain JSON, for other processes."""
    return {
        HANDLE: 1,
        "stages": {stage: bundle.manifest_key for stage, bundle in ref.stage_refs.items()},
        "fields": {name: [*where] for name, where in ref.field_index.items()},
        "batch_size": ref.batch_size,
        "namespace": ref.namespace,
        "partition": ref.partition,
        "meta_info": base64.b64encode(pack("meta_info", dict(ref.meta_info))).decode(),
        "global_indexes": None if ref.global_indexes is None else [*map(int, ref.global_indexes)],
    }


def import_ref(handle: Any) -> MooncakeDataProtoRef:
    """The ref in a handle of `export_ref`; a ref stays what it is."""
    if isinstance(handle, MooncakeDataProtoRef):
        return handle
    if not isinstance(handle, Mapping) or handle.get(HANDLE) != 1:
        raise TypeError(f"{type(handle).__name__}: neither a ref nor an exported one")
    return MooncakeDataProtoRef(
        {stage: RemoteBundleRef(key) for stage, key in handle["stages"].items()},
        {name: tuple(where) for name, where in handle["fields"].items()},
        handle["batch_size"],
        handle["namespace"],
        handle["partition"],
        unpack(base64.b64decode(handle["meta_info"])),
        handle["global_indexes"],
    )
