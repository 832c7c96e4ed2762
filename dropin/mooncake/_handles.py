"""Handles: refs of batches as plain JSON, for other processes.

What JSON cannot say of `meta_info` (bytes, tuples, arrays) goes along in msgpack, so that it comes back as it was.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ._bundle import RemoteBundleRef
from ._dataproto import MooncakeDataProtoRef, StructuredFieldLocation
from ._members import pack, unpack
from ._schemas import BATCH, NON_TENSOR

DATAPROTO_REF_HANDLE_TYPE = "mooncake_dataproto_ref"
DATAPROTO_REF_HANDLE_VERSION = 1
# Mooncake reads this version, too, and has written it once.
VERSIONS = (DATAPROTO_REF_HANDLE_VERSION, 2)
KIND = "bundle_stages"
STORAGE_GROUP_ID = "storage_group_id"
PACKED = "meta_info_packed"

DataProtoRefLike = MooncakeDataProtoRef | Mapping[str, Any]


def is_dataproto_ref_handle(value: Any) -> bool:
    """Whether this says that it is a handle."""
    return isinstance(value, Mapping) and value.get("type") == DATAPROTO_REF_HANDLE_TYPE


def export_ref(ref: MooncakeDataProtoRef) -> dict[str, Any]:
    """A ref as plain JSON, for other processes."""
    if not isinstance(ref, MooncakeDataProtoRef):
        raise TypeError(f"{type(ref).__name__}: no ref of a batch")
    meta, exact = plain_dict(ref.meta_info)
    handle: dict[str, Any] = {
        "type": DATAPROTO_REF_HANDLE_TYPE,
        "version": DATAPROTO_REF_HANDLE_VERSION,
        "kind": KIND,
        "batch_size": ref.batch_size,
        "namespace": ref.namespace,
        "partition": ref.partition,
        "global_indexes": None if ref.global_indexes is None else [*map(int, ref.global_indexes)],
        "stage_refs": {
            stage: {"manifest_key": bundle.manifest_key} for stage, bundle in ref.stage_refs.items()
        },
        "field_index": {
            name: {"stage": where.stage, "member": where.member, "section": where.section}
            for name, where in ref.field_index.items()
        },
        "meta_info": meta,
        "encoded_non_tensor": {},
    }
    if not exact:
        handle[PACKED] = base64.b64encode(pack("meta_info", dict(ref.meta_info))).decode()
    if ref._storage_group_id is not None:
        handle[STORAGE_GROUP_ID] = ref._storage_group_id
    return handle


def plain_dict(values: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """What JSON can say of values, and whether that is all there is to say."""
    found, exact = {}, True
    for name, value in values.items():
        try:
            word = json.dumps(value, default=plain)
        except (TypeError, ValueError):
            exact = False
            continue
        found[str(name)] = json.loads(word)
        exact = exact and isinstance(name, str) and is_plain(value)
    return found, exact


def plain(value: Any) -> Any:
    """Arrays and numbers of numpy as what JSON has for them."""
    # A long double lists itself.
    if hasattr(value, "tolist") and type(listed := value.tolist()) is not type(value):
        return listed
    raise TypeError(type(value).__name__)


def is_plain(value: Any) -> bool:
    """Whether JSON gives back exactly this."""
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(one) for key, one in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


def import_ref(handle: Mapping[str, Any]) -> MooncakeDataProtoRef:
    """The ref in a handle of `export_ref`; ValueError where there is none."""
    if not is_dataproto_ref_handle(handle):
        raise ValueError(f"{type(handle).__name__}: no handle of a batch")
    if handle.get("version") not in VERSIONS or handle.get("kind") != KIND:
        told = f"version {handle.get('version')!r}, kind {handle.get('kind')!r}"
        raise ValueError(f"a handle of a batch that is not known here: {told}")
    stages = {
        text("stage", stage): RemoteBundleRef(text(f"stage {stage!r}", inner(one, "manifest_key")))
        for stage, one in a_dict(handle, "stage_refs").items()
    }
    index = {}
    for name, one in a_dict(handle, "field_index").items():
        parts = (text(name, inner(one, part)) for part in ("stage", "member", "section"))
        where = StructuredFieldLocation(*parts)
        if where.stage not in stages or where.section not in (BATCH, NON_TENSOR):
            raise ValueError(f"{name}: nowhere in this handle: {where}")
        index[text("field", name)] = where
    group = handle.get(STORAGE_GROUP_ID)
    if group is not None or handle["version"] == 2:
        group = text(STORAGE_GROUP_ID, group)
    meta = a_dict(handle, "meta_info")
    if PACKED in handle:
        meta = unpack(base64.b64decode(handle[PACKED]))
    ref = MooncakeDataProtoRef(int(handle["batch_size"]), stages, index, dict(meta))
    ref.namespace = handle.get("namespace", ref.namespace)
    ref.partition = handle.get("partition", ref.partition)
    ref.global_indexes = numbers(handle.get("global_indexes"))
    ref._storage_group_id = group
    return ref


def as_batch(ref: DataProtoRefLike) -> MooncakeDataProtoRef:
    """A ref, or the one in a handle."""
    if isinstance(ref, MooncakeDataProtoRef):
        return ref
    if not is_dataproto_ref_handle(ref):
        raise TypeError(f"{type(ref).__name__}: neither a ref of a batch nor a handle of one")
    return import_ref(ref)


def a_dict(handle: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = handle.get(name, {} if name == "meta_info" else None)
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} of a handle is a dict, not {found!r}")
    return found


def inner(value: Any, name: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"a dict with {name} is needed in a handle, not {value!r}")
    return value.get(name)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: a text is needed in a handle, not {value!r}")
    return value


def numbers(value: Any) -> list[int] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"global_indexes of a handle are a list, not {value!r}")
    if not all(type(one) is int for one in value):
        raise ValueError(f"global_indexes of a handle are numbers, not {value!r}")
    return [*value]
