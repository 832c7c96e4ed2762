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
from typing import Any

from ._bundle import (
    DEFAULT_CHUNK_BYTES,
    Bundles,
    BundleTransferPolicy,
    RemoteBundleRef,
)
from ._dataproto import (
    DataProtos,
    FieldSchema,
    MooncakeDataProtoRef,
    Parts,
    export_ref,
    import_ref,
    parts_of,
    parts_of_dict,
)
from ._members import RawDestination, TensorBuffer
from ._structured import (
    Selection,
    Structured,
    StructuredMemberSlice,
    StructuredObjectPayload,
    StructuredObjectReadSpec,
    StructuredObjectResult,
)

__all__ = [
    "BundleTransferPolicy",
    "FieldSchema",
    "MooncakeBundleTransfer",
    "MooncakeDataProtoRef",
    "RemoteBundleRef",
    "StructuredMemberSlice",
    "StructuredObjectPayload",
    "StructuredObjectReadSpec",
    "StructuredObjectResult",
    "export_dataproto_ref",
    "export_ref",
    "import_dataproto_ref",
    "import_ref",
    "raw_destination",
    "tensor_object_buffer",
]

DEFAULT_BUNDLE_CHUNK_BYTES = DEFAULT_CHUNK_BYTES
export_dataproto_ref, import_dataproto_ref = export_ref, import_ref
DataProtoRef = MooncakeDataProtoRef | Mapping[str, Any]
# The name of the one member of an object that is no dict.
SINGLE = "value"


def tensor_object_buffer(
    ptr: int, size: int, owner: Any = None, *, batch_size: int | None = None
) -> TensorBuffer:
    """A tensor in memory of the caller, head and data: a member to store, or a place to read to."""
    return TensorBuffer(ptr, size, owner, batch_size)


def raw_destination(
    ptr: int, size: int, owner: Any = None, *, pre_registered: bool = False
) -> RawDestination:
    """Memory of the caller for the plain data of a member."""
    return RawDestination(ptr, size, owner, pre_registered)


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
        self.key_prefix = key_prefix
        self.buffer_pool = buffer_pool
        self._bundles = Bundles(store, key_prefix, default_chunk_bytes)
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
        config: Any = None,
    ) -> RemoteBundleRef:
        """Stores bytes by name, and bytes that say what they are."""
        payloads = [memoryview(value).cast("B") for value in (meta, *buffers.values())]
        about = {"names": [*buffers]}
        return self._bundles.put(payloads, about, partition, chunk_bytes, policy, config)

    def get_bundle(self, ref: RemoteBundleRef) -> tuple[bytes, dict[str, bytes]]:
        """What `put_bundle` stored."""
        names = self._bundles.manifest(ref)["names"]
        parts = [bytes(self._bundles.read(ref, place)) for place in range(len(names) + 1)]
        return parts[0], dict(zip(names, parts[1:], strict=True))

    def remove_bundle(self, ref: RemoteBundleRef) -> None:
        """Removes a bundle, or a structured object, and all that belongs to it."""
        self._bundles.remove(ref)

    # ---- structured objects: members by name

    def put_structured_object(
        self,
        payload: StructuredObjectPayload,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Stores members by name."""
        return self._structured.put(
            payload.metadata, payload.buffers, {}, partition, chunk_bytes, policy, config
        )

    def read_spec(self, ref: RemoteBundleRef) -> StructuredObjectReadSpec:
        """All of an object; its methods narrow that."""
        return StructuredObjectReadSpec(ref)

    def materialize(self, spec: StructuredObjectReadSpec) -> StructuredObjectResult:
        """Reads what a spec says, into memory of its own."""
        return self.materialize_into(spec, None)

    def materialize_into(
        self, spec: StructuredObjectReadSpec, destinations: Mapping[str, Any] | None
    ) -> StructuredObjectResult:
        """Reads what a spec says, some members into memory of the caller."""
        names = self._structured.specs(spec.ref) if spec.members is None else spec.members
        given = destinations or {}
        objects = {
            name: self._structured.read(spec.ref, name, spec.slices.get(name), given.get(name))
            for name in names
        }
        return StructuredObjectResult(objects, self._structured.metadata(spec.ref))

    def remove_structured_object(self, ref: RemoteBundleRef) -> None:
        """Removes an object and all that belongs to it."""
        self._bundles.remove(ref)

    def put_object(self, value: Any, **how: Any) -> RemoteBundleRef:
        """Stores a dict by its members, or one value."""
        single = not isinstance(value, Mapping)
        members = {SINGLE: value} if single else value
        payload = StructuredObjectPayload({"single": single}, members)
        return self.put_structured_object(payload, **how)

    def get_object(self, ref: RemoteBundleRef) -> Any:
        """What `put_object` stored."""
        result = self.materialize(self.read_spec(ref))
        return result.objects[SINGLE] if result.metadata["single"] else result.objects

    def remove_object(self, ref: RemoteBundleRef) -> None:
        """Removes an object and all that belongs to it."""
        self._bundles.remove(ref)

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
            namespace=namespace,
            partition=partition,
            stage=stage,
            chunk_bytes=chunk_bytes,
            policy=policy,
            config=config,
        )

    def get(
        self,
        ref: DataProtoRef,
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
            import_ref(ref),
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
        ref: DataProtoRef,
        data: Any,
        *,
        stage: str,
        overwrite: bool = False,
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        config: Any = None,
    ) -> MooncakeDataProtoRef:
        """Stores further fields of a batch; what is there already stays as it is."""
        known = import_ref(ref)
        return self._protos.put(
            known,
            parts_of(data),
            namespace=known.namespace,
            partition=known.partition,
            stage=stage,
            overwrite=overwrite,
            chunk_bytes=chunk_bytes,
            policy=policy,
            config=config,
        )

    def put_dataproto(self, data: Any, **how: Any) -> MooncakeDataProtoRef:
        """`put` of a batch."""
        return self.put(data, type="dataproto", **how)

    def get_dataproto(self, ref: DataProtoRef, **how: Any) -> Any:
        """`get` of a batch."""
        return self.get(ref, type="dataproto", **how)

    def put_dict(self, data: Mapping[str, Any], **how: Any) -> MooncakeDataProtoRef:
        """`put` of a flat dict."""
        return self.put(data, type="dict", **how)

    def get_dict(self, ref: DataProtoRef, **how: Any) -> dict[str, Any]:
        """`get` of a flat dict."""
        found: dict[str, Any] = self.get(ref, type="dict", **how)
        return found

    def dataproto_manifest_view(self, ref: DataProtoRef) -> dict[str, Any]:
        """What the fields of a batch are, and where."""
        return self._protos.view(import_ref(ref))

    def cleanup_dataproto(self, ref: DataProtoRef) -> None:
        """Removes all that a batch stored."""
        self._protos.remove(import_ref(ref))

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
        return {**parts.batch, **parts.non_tensor, **parts.meta}
    if type != "dataproto":
        raise ValueError(f'type={type!r}: "dataproto" or "dict" is needed')
    batch, non_tensor, meta = dict(parts.batch), dict(parts.non_tensor), dict(parts.meta)
    if data_cls is None:
        return {"batch": batch, "non_tensor_batch": non_tensor, "meta_info": meta}
    if (make := getattr(data_cls, "from_dict", None)) is not None:
        try:
            return make(batch, non_tensor, meta_info=meta)
        except TypeError:
            # Another signature; the fields by name are what all such classes take.
            pass
    return data_cls(batch=batch, non_tensor_batch=non_tensor, meta_info=meta)
