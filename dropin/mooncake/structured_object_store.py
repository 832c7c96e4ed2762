"""Structured objects over the store: one logical object with named members, of which parts can be
read.

    transfer = MooncakeBundleTransfer(store, key_prefix="rollout")
    ref = transfer.put({"tokens": tokens, "prompts": prompts}, type="dict")
    rows = transfer.get(ref, type="dict", rows=slice(0, 8))

Arrays and tensors move without a copy on the way in and with one on the way out; values by row,
and what holds for the whole, are msgpack. Nothing is pickled. Needs msgpack, and numpy or torch
for what is theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ._absent import getter
from ._bundle import (
    AUTO_PARALLEL_MIN_BYTES,
    AUTO_PARALLEL_MIN_CHUNKS,
    DEFAULT_CHUNK_BYTES,
    BundleRef,
    Bundles,
    BundleTransferPolicy,
    RemoteBundleRef,
    as_ref,
    as_segment,
    policy_of,
)
from ._codes import OBJECT_NOT_FOUND
from ._dataproto import (
    DataProtos,
    MooncakeDataProtoRef,
    Parts,
    StructuredFieldLocation,
    parts_of,
    parts_of_dict,
)
from ._handles import (
    DATAPROTO_REF_HANDLE_TYPE,
    DATAPROTO_REF_HANDLE_VERSION,
    STORAGE_GROUP_ID,
    DataProtoRefLike,
    as_batch,
    export_ref,
    import_ref,
    is_dataproto_ref_handle,
)
# The names that some programs ask for stand as they are there.
from ._infer import DEPTH_MAX as _INFER_MAX_DEPTH  # noqa: F401
from ._infer import KEYS_MAX as _INFER_MAX_STRUCT_KEYS  # noqa: F401
from ._infer import MISSING, _Missing, infer_structure  # noqa: F401
from ._infer import PLACES_MAX as _INFER_MAX_LIST_LEN  # noqa: F401
from ._infer import Decision as _CodecDecision  # noqa: F401
from ._infer import Leaf as _InferredLeaf  # noqa: F401
from ._infer import Node as _InferredNode  # noqa: F401
from ._infer import escape_key as _escape_key  # noqa: F401
from ._infer import form_of as _choose_leaf_codec  # noqa: F401
from ._infer import is_bytes as _is_bytes_like  # noqa: F401
from ._infer import is_image as _is_pil_image  # noqa: F401
from ._infer import there as _non_null  # noqa: F401
from ._members import RawDestination, TensorBuffer, is_object_array, plain_bytes
from ._schemas import FieldSchema
from ._structured import (
    STRUCTURED_FIELD_SPECS_KEY,
    Selection,
    Structured,
    StructuredMemberSlice,
    StructuredObjectPayload,
    StructuredObjectReadSpec,
    StructuredObjectResult,
    checked_metadata,
)

__all__ = [
    "AUTO_PARALLEL_MIN_BYTES",
    "AUTO_PARALLEL_MIN_CHUNKS",
    "DATAPROTO_REF_HANDLE_TYPE",
    "DATAPROTO_REF_HANDLE_VERSION",
    "DEFAULT_BUNDLE_CHUNK_BYTES",
    "MISSING",
    "MISSING_OBJECT_ERROR",
    "STORAGE_GROUP_ID",
    "STRUCTURED_FIELD_SPECS_KEY",
    "BundleStore",
    "BundleTransferPolicy",
    "DataProtoRefLike",
    "FieldSchema",
    "MooncakeBundleTransfer",
    "MooncakeDataProtoRef",
    "RemoteBundleRef",
    "StructuredFieldLocation",
    "StructuredMemberSlice",
    "StructuredObjectPayload",
    "StructuredObjectReadSpec",
    "StructuredObjectResult",
    "export_dataproto_ref",
    "export_ref",
    "import_dataproto_ref",
    "import_ref",
    "infer_structure",
    "is_dataproto_ref_handle",
    "raw_destination",
    "tensor_object_buffer",
]

__getattr__ = getter(__name__)

DEFAULT_BUNDLE_CHUNK_BYTES = DEFAULT_CHUNK_BYTES
# What `remove` answers for what is not there.
MISSING_OBJECT_ERROR = OBJECT_NOT_FOUND
export_dataproto_ref, import_dataproto_ref = export_ref, import_ref
# The name of the one member of an object that is no dict, and the mark of such an object.
SINGLE, WRAPPED = "value", "__mooncake_wrapped_object__"


class BundleStore(Protocol):
    """What a store must have at least. With `batch_get_into` and its like values move without a copy."""

    def put(self, key: str, value: Any, config: Any = None) -> int: ...

    def get(self, key: str) -> bytes: ...

    def remove(self, key: str, force: bool = False) -> int: ...

    def is_exist(self, key: str) -> int: ...


def tensor_object_buffer(
    ptr: int, size: int, owner: Any = None, batch_size: int | None = None
) -> TensorBuffer:
    """A tensor in memory of the caller, head and data: a member to store, or a place to read to."""
    return TensorBuffer(int(ptr), int(size), owner, batch_size)


def raw_destination(
    ptr: int, size: int, owner: Any = None, *, pre_registered: bool = False
) -> RawDestination:
    """Memory of the caller to read to: the data of an array, or a tensor, head and data."""
    return RawDestination(int(ptr), int(size), owner, pre_registered)


class MooncakeBundleTransfer:
    """Moves structured objects through a store.

    Errors are exceptions: RuntimeError where the store fails or an object is gone, KeyError and
    ValueError where what is asked for does not fit, TypeError where a value has no form.

    buffer_pool: taken as Mooncake takes it, and not needed: what is read owns its memory.
    """

    def __init__(
        self,
        store: Any,
        key_prefix: str = "bundle",
        default_chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        buffer_pool: Any = None,
    ) -> None:
        self.store = store
        self.default_chunk_bytes = default_chunk_bytes
        self.buffer_pool = buffer_pool
        self._bundles = Bundles(store, key_prefix, default_chunk_bytes)
        self.key_prefix = self._bundles.prefix
        self._structured = Structured(self._bundles)
        self._protos = DataProtos(self._structured)

    # ---- plain bundles: bytes by name

    def put_bundle(
        self,
        meta: Any,
        buffers: Mapping[str, Any],
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Stores bytes by name, and bytes that say what they are."""
        about = {"names": [as_segment("buffer", name) for name in buffers]}
        payloads = [plain_bytes(name, value) for name, value in buffers.items()]
        payloads.insert(0, plain_bytes("meta", meta))
        how = policy_of(policy, max_inflight_put)
        return self._bundles.put(payloads, about, partition, chunk_bytes, how, config)

    def get_bundle(self, ref: BundleRef) -> tuple[bytes, dict[str, bytes]]:
        """What `put_bundle` stored."""
        ref = as_ref(ref)
        names = self._bundles.manifest(ref)["names"]
        parts = [bytes(self._bundles.read(ref, place)) for place in range(len(names) + 1)]
        return parts[0], dict(zip(names, parts[1:], strict=True))

    def remove_bundle(self, ref: BundleRef) -> None:
        """Removes a bundle, or a structured object, and all that belongs to it; none is fine, too."""
        self._bundles.remove(as_ref(ref))

    # ---- structured objects: members by name

    def put_structured_object(
        self,
        payload: StructuredObjectPayload,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Stores members by name."""
        metadata = checked_metadata(payload.metadata)
        how = policy_of(policy, max_inflight_put)
        return self._structured.put(
            metadata, payload.buffers, {}, partition, chunk_bytes, how, config
        )

    def read_spec(self, ref: BundleRef) -> StructuredObjectReadSpec:
        """All of an object; its methods narrow that."""
        return StructuredObjectReadSpec(ref)

    def materialize(self, spec: StructuredObjectReadSpec) -> StructuredObjectResult:
        """Reads what a spec says, into memory of its own."""
        return self.materialize_into(spec, None)

    def materialize_into(
        self, spec: StructuredObjectReadSpec, destinations: Mapping[str, Any] | None
    ) -> StructuredObjectResult:
        """Reads what a spec says, some members into memory of the caller."""
        return self._structured.materialize(spec, destinations or {})

    def put_object(
        self,
        obj: Any,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Stores a dict by its members, or one value."""
        if isinstance(obj, Mapping):
            payload = StructuredObjectPayload({}, obj)
        else:
            payload = StructuredObjectPayload({WRAPPED: True}, {SINGLE: obj})
        return self.put_structured_object(
            payload, partition, chunk_bytes, policy, max_inflight_put, config
        )

    def get_object(self, ref: BundleRef) -> Any:
        """What `put_object` stored."""
        result = self.materialize(self.read_spec(ref))
        return result.objects[SINGLE] if result.metadata.get(WRAPPED) else result.objects

    remove_structured_object = remove_object = remove_bundle

    # ---- batches: fields by row

    def put(
        self,
        data: Any,
        *,
        type: str = "dataproto",
        namespace: str = "default",
        partition: str = "default",
        stage: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        config: Any = None,
        field_schemas: Mapping[str, FieldSchema] | None = None,
    ) -> MooncakeDataProtoRef:
        """Stores a batch, or with type="dict" a flat dict."""
        return self._protos.put(
            None,
            taken_apart(data, type, field_schemas),
            field_schemas,
            namespace=namespace,
            partition=partition,
            stage=stage,
            chunk_bytes=chunk_bytes,
            policy=policy,
            config=config,
        )

    def get(
        self,
        ref: DataProtoRefLike,
        *,
        type: str = "dataproto",
        fields: Sequence[str] | None = None,
        batch_fields: Sequence[str] | None = None,
        non_tensor_fields: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        data_cls: Any = None,
        destinations: Mapping[str, Any] | None = None,
        rows: Selection | None = None,
    ) -> Any:
        """Reads a batch, all of it or the fields and rows that are named."""
        parts = self._protos.get(
            as_batch(ref),
            fields=fields,
            batch_fields=batch_fields,
            non_tensor_fields=non_tensor_fields,
            meta_info_keys=meta_info_keys,
            destinations=destinations,
            rows=rows,
        )
        return put_together(parts, type, data_cls)

    def append_dataproto_fields(
        self,
        ref: DataProtoRefLike,
        data: Any,
        *,
        stage: str,
        overwrite: bool = False,
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        field_schemas: Mapping[str, FieldSchema] | None = None,
        config: Any = None,
    ) -> MooncakeDataProtoRef:
        """Stores further fields of a batch; what is there already stays as it is."""
        known = as_batch(ref)
        return self._protos.put(
            known,
            parts_of(data),
            field_schemas,
            namespace=known.namespace,
            partition=known.partition,
            stage=stage,
            overwrite=overwrite,
            chunk_bytes=chunk_bytes,
            policy=policy,
            config=config,
        )

    def put_dataproto(
        self,
        data: Any,
        *,
        namespace: str = "default",
        partition: str = "default",
        stage: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        field_schemas: Mapping[str, FieldSchema] | None = None,
        config: Any = None,
    ) -> MooncakeDataProtoRef:
        """`put` of a batch."""
        return self.put(
            data,
            namespace=namespace,
            partition=partition,
            stage=stage,
            chunk_bytes=chunk_bytes,
            policy=policy,
            config=config,
            field_schemas=field_schemas,
        )

    def get_dataproto(
        self,
        ref: DataProtoRefLike,
        *,
        fields: Sequence[str] | None = None,
        batch_fields: Sequence[str] | None = None,
        non_tensor_fields: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        data_cls: Any = None,
        destinations: Mapping[str, Any] | None = None,
        rows: Selection | None = None,
    ) -> Any:
        """`get` of a batch."""
        return self.get(
            ref,
            fields=fields,
            batch_fields=batch_fields,
            non_tensor_fields=non_tensor_fields,
            meta_info_keys=meta_info_keys,
            data_cls=data_cls,
            destinations=destinations,
            rows=rows,
        )

    def put_dict(self, data: Mapping[str, Any], **how: Any) -> MooncakeDataProtoRef:
        """`put` of a flat dict."""
        return self.put(data, type="dict", **how)

    def get_dict(self, ref: DataProtoRefLike, **how: Any) -> dict[str, Any]:
        """`get` of a flat dict."""
        found: dict[str, Any] = self.get(ref, type="dict", **how)
        return found

    def dataproto_manifest_view(self, ref: DataProtoRefLike) -> dict[str, Any]:
        """What the fields of a batch are, and where."""
        return self._protos.view(as_batch(ref))

    def cleanup_dataproto(self, ref: DataProtoRefLike) -> None:
        """Removes all that a batch stored."""
        self._protos.remove(as_batch(ref))

    def cleanup_dataproto_append(
        self, previous: DataProtoRefLike, appended: DataProtoRefLike
    ) -> None:
        """Removes what an append stored that nobody will use; what was there before stays."""
        self._protos.take_back(as_batch(previous), as_batch(appended))

    put_legacy_dict, get_legacy_dict, remove_legacy_dict = put_dict, get_dict, cleanup_dataproto

    @staticmethod
    def release_result(result: Any) -> None:
        """Results own their memory: there is nothing to give back."""


def taken_apart(data: Any, type: str, schemas: Mapping[str, FieldSchema] | None) -> Parts:
    if type == "dataproto":
        return parts_of(data)
    if type != "dict":
        raise ValueError(f'type={type!r}: "dataproto" or "dict" is needed')
    if not isinstance(data, Mapping):
        raise TypeError(f'{data.__class__.__name__}: type="dict" takes a dict')
    return parts_of_dict(data, schemas)


def put_together(parts: Parts, type: str, data_cls: Any) -> Any:
    if type == "dict":
        parts.refuse_twice()
        rows = {
            name: [*value] if is_object_array(value) else value
            for name, value in parts.non_tensor.items()
        }
        return {**parts.meta, **parts.batch, **rows}
    if type != "dataproto":
        raise ValueError(f'type={type!r}: "dataproto" or "dict" is needed')
    batch, non_tensor, meta = dict(parts.batch), dict(parts.non_tensor), dict(parts.meta)
    if data_cls is None:
        return {"batch": batch, "non_tensor_batch": non_tensor, "meta_info": meta}
    make = getattr(data_cls, "from_dict", None)
    try:
        if callable(make):
            return make(batch, non_tensor, meta_info=meta)
        return data_cls(batch=batch, non_tensor_batch=non_tensor, meta_info=meta)
    except TypeError as error:
        raise TypeError(f"{data_cls!r} was not made of a batch: {error}") from error
