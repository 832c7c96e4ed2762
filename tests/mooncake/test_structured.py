"""Structured objects over the store: members, parts of them, batches, and failures."""

import ctypes
import json

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("msgpack", reason="msgpack is not installed")

from mooncake.store import ReplicateConfig
from mooncake.structured_object_store import (
    BundleTransferPolicy,
    FieldSchema,
    MooncakeBundleTransfer,
    RemoteBundleRef,
    StructuredMemberSlice,
    StructuredObjectPayload,
    export_ref,
    import_ref,
    raw_destination,
    tensor_object_buffer,
)

TOKENS = numpy.arange(24, dtype=numpy.int32).reshape(6, 4)


@pytest.fixture
def transfer(store):
    # Small chunks, so that members lie in several objects.
    return MooncakeBundleTransfer(store, key_prefix="test/structured", default_chunk_bytes=20)


def torch_or_skip():
    return pytest.importorskip(
        "torch", reason="torch is not installed; ./dev test --torch installs it"
    )


def payload():
    return StructuredObjectPayload(
        metadata={"step": 7, "mixed": ("a", b"b", None)},
        buffers={
            "tokens": TOKENS,
            "mask": TOKENS[:, ::2] % 2 == 0,
            "ids": b"sample-ids",
            "empty": numpy.zeros((0, 3)),
            "scalar": numpy.array(2.5),
            "value": {"nested": [1, (2, 3), numpy.float32(0.5), TOKENS[0]]},
        },
    )


def test_an_object_comes_back_as_it_was(transfer):
    ref = transfer.put_structured_object(payload())
    # Another process has only the key.
    result = transfer.materialize(transfer.read_spec(RemoteBundleRef(ref.manifest_key)))
    assert (result.metadata["step"], result.metadata["mixed"]) == (7, ("a", b"b", None))
    for name in ("tokens", "mask", "empty", "scalar"):
        put, read = payload().buffers[name], result.objects[name]
        assert (put.dtype, put.shape) == (read.dtype, read.shape)
        assert numpy.array_equal(put, read)
    assert result.objects["ids"] == b"sample-ids"
    nested = result.objects["value"]["nested"]
    assert nested[:3] == [1, (2, 3), numpy.float32(0.5)]
    assert numpy.array_equal(nested[3], TOKENS[0])


def test_parts_of_members(transfer):
    spec = transfer.read_spec(transfer.put_structured_object(payload())).select_members(["tokens"])
    for start, end in ((2, 5), (0, 6), (None, 2), (4, None), (3, 3), (-2, None), (0, 99)):
        result = transfer.materialize(spec.slice_member("tokens", start=start, end=end))
        assert list(result.objects) == ["tokens"]
        assert numpy.array_equal(result.objects["tokens"], TOKENS[start:end])
    result = transfer.materialize(spec.slice_member("tokens", axis=1, start=1, end=3))
    assert numpy.array_equal(result.objects["tokens"], TOKENS[:, 1:3])


def test_members_go_into_memory_of_the_caller(transfer):
    ref = transfer.put_structured_object(payload())
    spec = transfer.read_spec(ref).select_members(["tokens"])
    some = spec.slice_member("tokens", start=2, end=5)
    room = numpy.empty((3, 4), numpy.int32)
    assert transfer.materialize_into(some, {"tokens": room}).objects["tokens"] is room
    assert numpy.array_equal(room, TOKENS[2:5])
    # The array lies in the memory of the caller, which may be larger.
    bare = ctypes.create_string_buffer(100)
    place = raw_destination(ctypes.addressof(bare), 100, bare)
    read = transfer.materialize_into(spec, {"tokens": place}).objects["tokens"]
    assert numpy.array_equal(read, TOKENS) and read.ctypes.data == place.ptr
    assert bare.raw == TOKENS.tobytes() + bytes(4)
    short = raw_destination(place.ptr, 95, bare)
    with pytest.raises(ValueError, match="tokens"):
        transfer.materialize_into(spec, {"tokens": short})
    for bad in (numpy.empty((3, 4), numpy.int64), numpy.empty((2, 4), numpy.int32), room[:, ::2]):
        with pytest.raises(ValueError, match="tokens"):
            transfer.materialize_into(some, {"tokens": bad})


def test_what_is_not_there_is_an_error_that_names_it(transfer):
    ref = transfer.put_structured_object(payload())
    with pytest.raises(KeyError, match="nope"):
        transfer.materialize(transfer.read_spec(ref).select_members(["nope"]))
    with pytest.raises(ValueError, match="ids"):
        transfer.materialize(transfer.read_spec(ref).slice_member("ids", start=1))
    with pytest.raises(RuntimeError, match="gone"):
        transfer.materialize(transfer.read_spec(RemoteBundleRef("missing")))
    with pytest.raises(TypeError, match="bad"):
        transfer.put_object({"bad": object()})


def test_removing_leaves_nothing(transfer, store):
    ref = transfer.put_structured_object(payload())
    transfer.materialize(transfer.read_spec(ref))
    transfer.remove_bundle(ref)
    transfer.remove_bundle(ref)
    assert store.remove_by_regex("^test/structured/", force=True) == 0
    with pytest.raises(RuntimeError):
        transfer.materialize(transfer.read_spec(ref))


def test_nothing_is_called_removed_by_a_store_that_cannot_ask(make_store):
    """Then `is_exist` says that nothing is there, because engines want it so; it was believed."""
    store = make_store()
    transfer = MooncakeBundleTransfer(store)
    one = transfer.put_object({"a": TOKENS})
    first = transfer.put({"batch": {"a": TOKENS}})
    grown = export_ref(transfer.append_dataproto_fields(first, {"b": TOKENS}, stage="default"))
    # The same as a master that is away, without the wait for it.
    store.close()
    for remove, what in (
        (transfer.remove_bundle, [RemoteBundleRef(one.manifest_key)]),
        (transfer.cleanup_dataproto, [grown]),
        (transfer.cleanup_dataproto_append, [first, grown]),
    ):
        with pytest.raises(RuntimeError, match="cannot be known"):
            remove(*what)


def test_a_lost_chunk_is_an_error_and_never_other_bytes(transfer, store):
    ref = transfer.put_structured_object(payload())
    place = ref.manifest["members"]["tokens"]["place"]
    assert store.remove(f"{ref.manifest['base']}/{place}/1", force=True) == 0
    spec = transfer.read_spec(RemoteBundleRef(ref.manifest_key)).select_members(["tokens"])
    with pytest.raises(RuntimeError, match="-704"):
        transfer.materialize(spec)
    with pytest.raises(RuntimeError, match="-704"):
        transfer.materialize(spec.slice_member("tokens", start=2, end=5))
    # Rows of other chunks are there still.
    rows = transfer.materialize(spec.slice_member("tokens", start=5)).objects["tokens"]
    assert numpy.array_equal(rows, TOKENS[5:])


def test_a_put_that_fails_leaves_nothing(transfer, store):
    config = ReplicateConfig()
    config.replica_num = 0
    with pytest.raises(RuntimeError, match="-600"):
        transfer.put_structured_object(payload(), config=config)
    assert store.remove_by_regex("^test/structured/", force=True) == 0


@pytest.mark.parametrize("mode", ["batch", "parallel"])
def test_bundles_of_bytes(transfer, mode):
    policy = BundleTransferPolicy(max_inflight_put=4, put_mode=mode)
    buffers = {"a": bytes(range(100)), "b": b"", "c": bytearray(b"three")}
    ref = transfer.put_bundle(b"meta", buffers, policy=policy)
    assert transfer.get_bundle(RemoteBundleRef(ref.manifest_key)) == (
        b"meta",
        {"a": bytes(range(100)), "b": b"", "c": b"three"},
    )
    transfer.remove_bundle(ref)


def test_objects_that_are_no_dict(transfer):
    for value in (TOKENS, b"bytes", "text", [1, 2], None):
        read = transfer.get_object(transfer.put_object(value))
        assert numpy.array_equal(read, value) if value is TOKENS else read == value


def test_tensors_are_members(transfer):
    torch = torch_or_skip()
    tensors = {
        "half": torch.arange(12, dtype=torch.bfloat16).reshape(6, 2),
        "scalar": torch.tensor(1.5),
        "turned": torch.arange(6).reshape(2, 3).t(),
        "empty": torch.empty(0, 2),
    }
    ref = transfer.put_object(tensors)
    for name, read in transfer.get_object(ref).items():
        assert read.shape == tensors[name].shape
        assert torch.equal(read, tensors[name])
    spec = transfer.read_spec(ref).select_members(["half"]).slice_member("half", start=1, end=4)
    assert torch.equal(transfer.materialize(spec).objects["half"], tensors["half"][1:4])


def test_tensors_in_memory_of_the_caller(transfer, store):
    torch = torch_or_skip()
    from mooncake.store import _serialize_tensor

    tensor = torch.arange(10, dtype=torch.float32).reshape(5, 2)
    head, address, size, _ = _serialize_tensor(tensor)
    value = head + ctypes.string_at(address, size)
    memory = ctypes.create_string_buffer(value, len(value))
    policy = BundleTransferPolicy(copy_mode="zero_copy")
    buffer = tensor_object_buffer(ctypes.addressof(memory), len(value), memory, batch_size=5)
    ref = transfer.put({"hidden": buffer}, type="dict", policy=policy)
    assert ref.batch_size == 5
    room = ctypes.create_string_buffer(len(value))
    place = tensor_object_buffer(ctypes.addressof(room), len(value), room)
    read = transfer.get(ref, type="dict", destinations={"hidden": place})["hidden"]
    assert torch.equal(read, tensor)
    assert room.raw == value
    with pytest.raises(ValueError, match="hidden"):
        transfer.put({"hidden": tensor}, type="dict", policy=policy)


def batch():
    texts = numpy.empty(6, dtype=object)
    texts[:] = ["a", None, {"x": TOKENS[0]}, b"raw", (1, 2), "f"]
    return {
        "batch": {"input_ids": TOKENS, "rewards": numpy.arange(6.0)},
        "non_tensor_batch": {"text": texts},
        "meta_info": {"step": 3, "names": ["p", "q"]},
    }


def handle(ref):
    return json.loads(json.dumps(export_ref(ref)))


def test_batches_come_back_as_they_were(transfer):
    ref = transfer.put(batch(), type="dataproto")
    assert ref.batch_size == 6
    for known in (ref, handle(ref)):
        read = transfer.get(known, type="dataproto")
        assert numpy.array_equal(read["batch"]["input_ids"], TOKENS)
        assert read["meta_info"] == {"step": 3, "names": ["p", "q"]}
        text = read["non_tensor_batch"]["text"]
        assert text.dtype == object
        assert [*text[[0, 1, 3, 4, 5]]] == ["a", None, b"raw", (1, 2), "f"]
        assert numpy.array_equal(text[2]["x"], TOKENS[0])


@pytest.mark.parametrize(
    "rows",
    [slice(1, 4), slice(None, None, 2), [5, 0, 0, 3], [-1], [], StructuredMemberSlice(0, 2, 5)],
    ids=str,
)
def test_rows_of_all_fields(transfer, rows):
    ref = handle(transfer.put_dataproto(batch()))
    read = transfer.get_dataproto(ref, fields=["input_ids", "text"], rows=rows)
    if isinstance(rows, StructuredMemberSlice):
        rows = slice(rows.start, rows.end)
    chosen = numpy.arange(6)[rows]
    assert numpy.array_equal(read["batch"]["input_ids"], TOKENS[chosen])
    text = batch()["non_tensor_batch"]["text"]
    assert str([*read["non_tensor_batch"]["text"]]) == str([text[row] for row in chosen])
    with pytest.raises(IndexError):
        transfer.get_dataproto(ref, rows=[6])


def test_fields_and_keys_are_chosen(transfer):
    ref = transfer.put_dataproto(batch())
    read = transfer.get(ref, batch_fields=["rewards"], meta_info_keys=["step"])
    assert [*read["batch"]] == ["rewards"]
    assert read["non_tensor_batch"] == {}
    assert read["meta_info"] == {"step": 3}
    room = numpy.empty((6, 4), numpy.int32)
    read = transfer.get(ref, fields=["input_ids"], destinations={"input_ids": room})
    assert read["batch"]["input_ids"] is room
    assert numpy.array_equal(room, TOKENS)
    with pytest.raises(KeyError, match="nope"):
        transfer.get(ref, fields=["nope"])


class Proto:
    def __init__(self, batch=None, non_tensor_batch=None, meta_info=None):
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensor_batch, meta_info


class Made(Proto):
    @classmethod
    def from_dict(cls, tensors, non_tensors, meta_info=None):
        return cls(tensors, non_tensors, {**meta_info, "made": True})


@pytest.mark.parametrize("kind", [Proto, Made])
def test_classes_of_batches(transfer, kind):
    ref = transfer.put_dataproto(Proto(**batch()))
    read = transfer.get_dataproto(ref, data_cls=kind)
    assert isinstance(read, kind)
    assert numpy.array_equal(read.batch["input_ids"], TOKENS)
    assert read.meta_info.get("made") is (True if kind is Made else None)


def test_later_stages_add_fields(transfer, store):
    first = transfer.put_dataproto(batch())
    more = {"batch": {"probs": numpy.ones(6)}, "meta_info": {"step": 4}}
    ref = transfer.append_dataproto_fields(handle(first), more, stage="probs")
    read = transfer.get_dataproto(ref, fields=["probs", "rewards"])
    assert [*read["batch"]] == ["probs", "rewards"]
    assert read["meta_info"]["step"] == 4
    with pytest.raises(ValueError, match="rewards"):
        transfer.append_dataproto_fields(ref, {"rewards": numpy.ones(6)}, stage="again")
    with pytest.raises(ValueError, match="overwrite"):
        transfer.append_dataproto_fields(ref, {"probs": numpy.ones(6)}, stage="probs")
    with pytest.raises(ValueError, match="lose fields: probs"):
        transfer.append_dataproto_fields(ref, {"p": numpy.ones(6)}, stage="probs", overwrite=True)
    with pytest.raises(ValueError, match="5 rows"):
        transfer.append_dataproto_fields(ref, {"other": numpy.ones(5)}, stage="other")
    zeros = {"probs": numpy.zeros(6)}
    ref = transfer.append_dataproto_fields(ref, zeros, stage="probs", overwrite=True)
    assert not transfer.get_dataproto(ref, fields=["probs"])["batch"]["probs"].any()
    view = transfer.dataproto_manifest_view(handle(ref))
    assert view["batch_fields"]["input_ids"]["spec"]["shape"] == [6, 4]
    assert view["batch_fields"]["probs"]["stage"] == "probs"
    transfer.cleanup_dataproto(handle(ref))
    assert store.remove_by_regex("^test/structured/", force=True) == 0


def test_flat_dicts(transfer):
    data = {
        "tokens": TOKENS,
        "names": [str(row) for row in range(6)],
        "sizes": [1, 2],
        "raw": b"bytes",
        "step": 9,
        "scale": numpy.array(2.5),
    }
    for put, get in (
        (transfer.put_dict, transfer.get_dict),
        (transfer.put_legacy_dict, transfer.get_legacy_dict),
    ):
        read = get(handle(put(data)))
        assert {*read} == {*data}
        for name, value in data.items():
            assert type(read[name]) is type(value)
            assert numpy.array_equal(read[name], value)
    ref = transfer.put(data, type="dict")
    read = transfer.get(ref, type="dict", fields=["tokens", "names"], rows=[4, 1])
    assert read["names"] == ["4", "1"]
    assert numpy.array_equal(read["tokens"], TOKENS[[4, 1]])
    assert read["step"] == 9
    assert MooncakeBundleTransfer.release_result(read) is None


def test_schemas_say_where_a_field_belongs(transfer):
    data = {"tokens": TOKENS, "names": [*"abcdef"]}
    schema = FieldSchema(codec="auto", nullable=False, metadata={"section": "meta_info"})
    ref = transfer.put(data, type="dict", field_schemas={"names": schema})
    assert [*ref.field_index] == ["tokens"]
    assert transfer.get(ref, type="dict", rows=[0])["names"] == [*"abcdef"]
    nowhere = {"names": FieldSchema(metadata={"section": "nowhere"})}
    with pytest.raises(ValueError, match="section"):
        transfer.put(data, type="dict", field_schemas=nowhere)


def test_handles_give_back_what_json_cannot_say(transfer):
    meta = {"raw": b"\xff", "pair": (1, 2), 7: "seven", "ids": TOKENS[0], "plain": {"a": [1]}}
    told = handle(transfer.put({"batch": {"a": TOKENS}, "meta_info": meta}))
    assert told["meta_info"] == {"pair": [1, 2], "7": "seven", "ids": [0, 1, 2, 3], "plain": {"a": [1]}}
    read = transfer.get(told)["meta_info"]
    assert numpy.array_equal(read.pop("ids"), meta.pop("ids")) and read == meta


def test_many_appends_to_one_stage(transfer, store):
    ref = first = transfer.put({"batch": {"a0": TOKENS}})
    for number in range(1, 6):
        ref = transfer.append_dataproto_fields(handle(ref), {f"a{number}": TOKENS + number}, stage="default")
    read = transfer.get(handle(ref), rows=[5, 0])["batch"]
    assert all(numpy.array_equal(read[f"a{number}"], TOKENS[[5, 0]] + number) for number in range(6))
    assert {*transfer.materialize(transfer.read_spec(ref.stage_refs["default"])).objects} == {*read}
    # The first one is a batch still, until all of it goes.
    assert [*transfer.get(first)["batch"]] == ["a0"]
    transfer.cleanup_dataproto(handle(ref))
    assert store.remove_by_regex("^test/structured/", force=True) == 0


def test_a_handle_that_is_none_is_refused():
    for bad in ({}, "text", None, {"stages": {}}):
        with pytest.raises(ValueError):
            import_ref(bad)
