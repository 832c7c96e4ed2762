"""Batches as structured objects: tensors by row, values by row, and what holds for the whole
batch.

A ref says which stage holds which field; what a field is, its stage's manifest says. What must
stay true: a field name means one thing in a ref, and an appended stage never changes the fields of
another.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ._bundle import BundleTransferPolicy, RemoteBundleRef, group_of
from ._members import TensorBuffer, is_nested, is_object_array, is_tensor, jagged
from ._schemas import BATCH, META, NON_TENSOR, SECTIONS, FieldSchema, section_of, shaped
from ._structured import Selection, Structured, StructuredMemberSlice, told_of


@dataclass(frozen=True)
class StructuredFieldLocation:
    """Where a field of a batch is."""

    stage: str
    member: str
    section: str


@dataclass
class MooncakeDataProtoRef:
    """A batch: how many rows it has, its stages, and where its fields are in them."""

    batch_size: int
    stage_refs: dict[str, RemoteBundleRef]
    field_index: dict[str, StructuredFieldLocation]
    meta_info: dict[str, Any]
    namespace: str = "default"
    partition: str = "default"
    global_indexes: list[int] | None = None
    # Fields that Mooncake stores in a form of their own; a manifest of ours says that.
    encoded_non_tensor: dict[str, Any] = field(default_factory=dict)
    _storage_group_id: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Parts:
    """A batch, taken apart."""

    batch: Mapping[str, Any]
    non_tensor: Mapping[str, Sequence[Any]]
    meta: Mapping[str, Any]

    @property
    def size(self) -> int:
        """How many rows all fields have; ValueError if they do not agree."""
        counts = {
            name: rows(value) for name, value in (*self.batch.items(), *self.non_tensor.items())
        }
        known = {count for count in counts.values() if count is not None}
        if len(known) > 1:
            raise ValueError(f"fields have different numbers of rows: {counts}")
        return known.pop() if known else 0

    def refuse_twice(self) -> None:
        """ValueError where a name means two things, of which a flat dict could hold one."""
        names = Counter([*self.batch, *self.non_tensor, *self.meta])
        if twice := [str(name) for name, count in names.items() if count > 1]:
            raise ValueError(f"fields of two sections: {', '.join(sorted(twice))}")


class DataProtos:
    """Stores and reads batches as structured objects, one for each stage."""

    def __init__(self, structured: Structured) -> None:
        self.structured = structured

    def put(
        self,
        ref: MooncakeDataProtoRef | None,
        parts: Parts,
        schemas: Mapping[str, FieldSchema] | None,
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
        parts = with_schemas(parts, schemas)
        size = parts.size
        if twice := {*parts.batch} & {*parts.non_tensor}:
            raise ValueError(f"fields of two sections: {', '.join(sorted(twice))}")
        old = ref
        if old is None:
            old = MooncakeDataProtoRef(size, {}, {}, {}, namespace, partition)
            old._storage_group_id = group_of(config)
        fields = {
            **dict.fromkeys(parts.batch, BATCH),
            **dict.fromkeys(parts.non_tensor, NON_TENSOR),
        }
        meta = {**old.meta_info, **parts.meta}
        if not fields:
            return replace(old, meta_info=meta)
        if size != old.batch_size:
            raise ValueError(f"{size} rows do not fit a batch of {old.batch_size}")
        there = old.stage_refs.get(stage)
        check_names(old, fields, stage, overwrite)
        about = {"version": 1, "namespace": namespace, "partition": partition, "stage": stage}
        bundle = self.structured.put(
            {"layout": "dataproto_stage", "dataproto": {**about, "batch_size": size}},
            parts.batch,
            parts.non_tensor,
            partition,
            chunk_bytes,
            policy,
            config,
            old._storage_group_id,
            None if there is None or overwrite else there.manifest_key,
        )
        if there is not None and overwrite:
            self.structured.bundles.remove(there)
        index = {
            name: StructuredFieldLocation(stage, name, section) for name, section in fields.items()
        }
        return replace(
            old,
            stage_refs={**old.stage_refs, stage: bundle},
            field_index={**old.field_index, **index},
            meta_info=meta,
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
        if isinstance(rows, StructuredMemberSlice) and rows.axis != 0:
            raise ValueError(f"rows are chosen along dimension 0, not {rows.axis}")
        found: dict[str, dict[str, Any]] = {BATCH: {}, NON_TENSOR: {}}
        stages: dict[str, Any] = {}
        for name in chosen(ref, fields, batch_fields, non_tensor_fields):
            where = ref.field_index[name]
            if where.stage not in stages:
                stages[where.stage] = self.structured.members(ref.stage_refs[where.stage])
            into = (destinations or {}).get(name)
            value = self.structured.read(stages[where.stage], where.member, rows, into)
            found[where.section][name] = value
        meta = dict(ref.meta_info)
        if meta_info_keys is not None:
            meta = {key: meta[key] for key in meta_info_keys if key in meta}
        return Parts(found[BATCH], found[NON_TENSOR], meta)

    def view(self, ref: MooncakeDataProtoRef) -> dict[str, Any]:
        """What the fields are, as the manifests say."""
        sections: dict[str, dict[str, Any]] = {BATCH: {}, NON_TENSOR: {}}
        stages = {stage: self.structured.members(one) for stage, one in ref.stage_refs.items()}
        for name, where in ref.field_index.items():
            _, spec = stages[where.stage][where.member]
            sections[where.section][name] = {
                "section": where.section,
                "stage": where.stage,
                "member": where.member,
                "spec": told_of(spec),
            }
        return {
            "namespace": ref.namespace,
            "partition": ref.partition,
            "batch_size": ref.batch_size,
            "batch_fields": sections[BATCH],
            "non_tensor_fields": sections[NON_TENSOR],
            "meta_info_keys": [*ref.meta_info],
            "stages": {
                stage: {
                    "manifest_key": one.manifest_key,
                    "dataproto": self.structured.metadata(one).get("dataproto", {}),
                }
                for stage, one in ref.stage_refs.items()
            },
        }

    def remove(self, ref: MooncakeDataProtoRef) -> None:
        """Removes all stages."""
        for bundle in ref.stage_refs.values():
            self.structured.bundles.remove(bundle)

    def take_back(self, previous: MooncakeDataProtoRef, appended: MooncakeDataProtoRef) -> None:
        """Removes what an append stored, and nothing that was there before it."""
        for stage, bundle in appended.stage_refs.items():
            before = previous.stage_refs.get(stage)
            until = None if before is None else before.manifest_key
            self.structured.bundles.remove(bundle, until)


def check_names(
    ref: MooncakeDataProtoRef, fields: Mapping[str, str], stage: str, overwrite: bool
) -> None:
    """ValueError where a stage would hide fields, or lose some."""
    if not overwrite:
        if twice := {*fields} & {*ref.field_index}:
            names = ", ".join(sorted(twice))
            raise ValueError(
                f"fields that are there already: {names}; overwrite=True replaces them"
            )
        return
    kept = {name for name, where in ref.field_index.items() if where.stage == stage}
    if lost := kept - {*fields}:
        raise ValueError(f"the stage {stage!r} would lose fields: {', '.join(sorted(lost))}")


def with_schemas(parts: Parts, schemas: Mapping[str, FieldSchema] | None) -> Parts:
    """The same batch, its values by row as their schemas say."""
    sections = {BATCH: parts.batch, NON_TENSOR: parts.non_tensor, META: parts.meta}
    values = dict(parts.non_tensor)
    for name, schema in (schemas or {}).items():
        told = section_of(name, schema)
        actual = [section for section, fields in sections.items() if name in fields]
        if told is not None and actual and told not in actual:
            raise ValueError(f"{name}: its schema says {told}, and it is in {' and '.join(actual)}")
        if name in values and told in (None, NON_TENSOR):
            values[name] = shaped(name, values[name], schema)
    return replace(parts, non_tensor=values)


def chosen(
    ref: MooncakeDataProtoRef,
    fields: Sequence[str] | None,
    batch_fields: Sequence[str] | None,
    non_tensor_fields: Sequence[str] | None,
) -> list[str]:
    if fields is not None and (batch_fields is not None or non_tensor_fields is not None):
        raise ValueError("either fields, or batch_fields and non_tensor_fields")
    if fields is None and batch_fields is None and non_tensor_fields is None:
        return [*ref.field_index]
    names = [*(fields or ()), *(batch_fields or ()), *(non_tensor_fields or ())]
    if unknown := [name for name in names if name not in ref.field_index]:
        raise KeyError(f"{', '.join(unknown)}: the batch has {', '.join(ref.field_index)}")
    return [*dict.fromkeys(names)]


def rows(value: Any) -> int | None:
    """How many rows a field has; None if it has none."""
    if is_nested(value):
        return int(jagged("a field", value).size(0))
    size = getattr(value, "batch_size", None)
    if isinstance(size, int):
        return size
    shape = getattr(value, "shape", None)
    if shape is not None:
        return shape[0] if len(shape) else None
    return len(value) if is_sequence(value) else None


def parts_of(data: Any) -> Parts:
    """A batch with the three sections, as attributes or keys; other dicts are all tensors."""
    if isinstance(data, Mapping):
        if not {*data} <= {*SECTIONS} or not all(map(has_fields, data.values())):
            return Parts(dict(data), {}, {})
        sections = {section: data.get(section) for section in SECTIONS}
    else:
        if not any(hasattr(data, section) for section in SECTIONS):
            raise TypeError(f"{type(data).__name__} has none of {', '.join(SECTIONS)}")
        sections = {section: getattr(data, section, None) for section in SECTIONS}
    for section, one in sections.items():
        if not has_fields(one):
            raise TypeError(f"{section}: fields by name are needed, not a {type(one).__name__}")
    return Parts(*({} if one is None else dict(one.items()) for one in sections.values()))


def has_fields(section: Any) -> bool:
    """Whether this can be a section of a batch: values by name, or nothing."""
    return section is None or callable(getattr(section, "items", None))


def parts_of_dict(data: Mapping[str, Any], schemas: Mapping[str, FieldSchema] | None) -> Parts:
    """A flat dict: arrays and tensors by row, sequences with a value for each row, and the rest."""
    told = {
        name: section_of(name, schema) for name, schema in (schemas or {}).items() if name in data
    }
    by_schema = {name for name, section in told.items() if section in (BATCH, NON_TENSOR)}
    count = agreed("fields with a schema", {name: length(name, data[name]) for name in by_schema})
    if not count:
        free = {name: value for name, value in data.items() if told.get(name) != META}
        dense = {name: rows(value) for name, value in free.items() if is_dense(value)}
        listed = {name: len(value) for name, value in free.items() if is_sequence(value)}
        # Arrays that are certain say how many rows there are; without such, the sequences do.
        objects = {name: rows(value) for name, value in free.items() if is_object_array(value)}
        count = agreed("arrays", dense) or agreed("sequences", {**listed, **objects})
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, value in data.items():
        section = told.get(name)
        if section is None:
            if count and is_dense(value) and rows(value) == count:
                section = BATCH
            elif not by_schema and is_sequence(value) and len(value) == count:
                section = NON_TENSOR
            else:
                section = META
        if section == NON_TENSOR and length(name, value) != count:
            raise ValueError(f"{name}: {len(value)} rows, and the batch has {count}")
        if section == NON_TENSOR and is_sequence(value):
            value = [*value]
        sections[section][name] = value
    return Parts(sections[BATCH], sections[NON_TENSOR], sections[META])


def agreed(what: str, counts: Mapping[str, int | None]) -> int:
    """The number of rows that fields have in common; 0 if none of them has rows."""
    known = {count for count in counts.values() if count is not None}
    if len(known) > 1:
        raise ValueError(
            f"{what} have different numbers of rows: {dict(counts)}; a FieldSchema with the section "
            f"{META!r} says which of them are no rows"
        )
    return known.pop() if known else 0


def length(name: str, value: Any) -> int:
    if isinstance(value, TensorBuffer) and value.batch_size is not None:
        return value.batch_size
    try:
        return len(value)
    except TypeError:
        raise ValueError(f"{name}: a field by row has a length") from None


def is_dense(value: Any) -> bool:
    """Whether this is an array or a tensor with rows."""
    if is_object_array(value) or isinstance(value, (list, tuple)):
        return False
    if is_tensor(value):
        return rows(value) is not None
    return hasattr(value, "dtype") and rows(value) is not None


def is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(
        value, (str, bytes, bytearray, memoryview)
    )
