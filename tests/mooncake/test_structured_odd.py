"""Structured objects of odd values: each comes back as it was, or is refused when it is stored."""

import collections
import ctypes
import json

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("msgpack", reason="msgpack is not installed")

from mooncake.structured_object_store import (
    BundleTransferPolicy,
    MooncakeBundleTransfer,
    RemoteBundleRef,
    StructuredMemberSlice,
    StructuredObjectPayload,
    export_ref,
    import_ref,
    raw_destination,
)

GRID = numpy.arange(12).reshape(3, 4)
RECORDS = numpy.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])


@pytest.fixture
def transfer(store):
    return MooncakeBundleTransfer(store, key_prefix="odd", default_chunk_bytes=50)


@pytest.fixture
def none_left(store):
    """Whoever refuses a value has stored nothing of it."""
    yield
    assert store.remove_by_regex("^odd/", force=True) == 0


def torch_or_skip():
    return pytest.importorskip("torch", reason="torch is not installed; ./dev test --torch installs it")


def same(left, right):
    if isinstance(left, numpy.ndarray):
        assert (type(right), right.dtype, right.shape) == (numpy.ndarray, left.dtype, left.shape)
        return left.tolist() == right.tolist()
    return type(left) is type(right) and left == right


VALUES = {
    "an empty text of numpy": numpy.str_(""),
    "a text of numpy that ends with zeros": numpy.str_("a\0\0"),
    "bytes of numpy that end with zeros": [numpy.bytes_(b"a\0"), numpy.bytes_(b"")],
    "big-endian": numpy.arange(4, dtype=">i4").reshape(2, 2).T,
    "backwards": numpy.arange(6)[::-2],
    "repeated": numpy.broadcast_to(numpy.arange(3), (2, 3)),
    "texts": numpy.array(["", "a\0b", "\u20ac"]),
    "no rows": numpy.zeros((0, 3), "f2"),
    "no columns": numpy.zeros((3, 0), bool),
    "no dimension": numpy.array("2020-01-01", "M8[D]"),
    "objects": numpy.array([[1, "a"], [None, (2, b"")]], dtype=object),
    "keys of all kinds": {"k": {1: 2, "1": 3, b"1": 4, None: 5, (1, "."): 6, "a.b/c": 7}},
    "empty": {},
    "nested": {"a": {"b": [{"c": (1, [2], ())}]}},
    "a long list": [[*range(3000)], 1 << 63, -(1 << 63), True, None, "x\0"],
}


@pytest.mark.parametrize("name", VALUES)
def test_odd_values_come_back_as_they_were(transfer, name):
    value = VALUES[name]
    assert same(value, transfer.get_object(transfer.put_object(value)))
    assert same(value, transfer.get_object(transfer.put_object({"m": value}))["m"])
    metadata = StructuredObjectPayload({"m": value}, {"other": b""})
    spec = transfer.read_spec(transfer.put_structured_object(metadata))
    assert same(value, transfer.materialize(spec).metadata["m"])
    rows = [None, value]
    ref = transfer.put({"non_tensor_batch": {"m": rows}})
    assert same(value, transfer.get(ref, rows=[1])["non_tensor_batch"]["m"][0])
    told = json.loads(json.dumps(export_ref(transfer.put({"meta_info": {"m": value}}))))
    assert same(value, transfer.get(told)["meta_info"]["m"])


# A mask, and the names of fields, are part of the value and would be lost.
REFUSED = {
    "a mask": numpy.ma.masked_array([1, 2, 3], [0, 1, 0]),
    "records": RECORDS,
    "a record": RECORDS[0],
    "plain memory": numpy.array([b"abc"], "V3"),
    "a set": {1, 2},
    "a wide number": 1 << 64,
    "half a character": "\ud800",
    "gaps": [memoryview(bytes(6))[::2]],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_is_refused_by_name(transfer, none_left, name):
    value = REFUSED[name]
    for stored in (value, [value]):
        with pytest.raises(TypeError, match="^m: "):
            transfer.put_object({"m": stored})
        with pytest.raises(TypeError, match="^m: "):
            transfer.put({"non_tensor_batch": {"m": [stored]}})


FLAT = ["text", b"bytes", bytearray(b"x"), {"a": 1}, {1, 2}, 7, None, numpy.array(7), iter("ab")]


@pytest.mark.parametrize("value", FLAT, ids=lambda value: type(value).__name__)
def test_a_column_is_no_text_and_no_dict(transfer, none_left, value):
    with pytest.raises(TypeError, match="m: "):
        transfer.put({"non_tensor_batch": {"m": value}})


COLUMNS = [GRID, GRID[:, 1] > 4, numpy.array(["a", "b", ""]), numpy.array(GRID, dtype=object)]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: f"{column.dtype}-{column.ndim}")
def test_arrays_among_the_values_by_row_stay_arrays(transfer, column):
    ref = import_ref(export_ref(transfer.put({"non_tensor_batch": {"m": column}})))
    assert same(column, transfer.get(ref)["non_tensor_batch"]["m"])
    for rows in (slice(1, None), [2, 0, 0], []):
        assert same(column[rows], transfer.get(ref, rows=rows)["non_tensor_batch"]["m"])


def test_columns_of_other_sequences_are_counted(transfer):
    column = collections.deque(["a", "b", "c"])
    ref = transfer.put({"batch": {"x": GRID}, "non_tensor_batch": {"m": column}})
    assert transfer.get(ref)["non_tensor_batch"]["m"] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="different numbers of rows"):
        transfer.put({"batch": {"x": GRID}, "non_tensor_batch": {"m": range(4)}})


def test_a_mask_chooses_no_rows(transfer):
    ref = transfer.put({"batch": {"x": GRID}, "non_tensor_batch": {"m": [1, 2, 3]}})
    for mask in ([True, False, True], numpy.array([True, False, True])):
        with pytest.raises(TypeError, match="truth values"):
            transfer.get(ref, rows=mask)


def test_a_destination_of_another_dtype_is_refused(transfer):
    spec = transfer.read_spec(transfer.put_object({"m": GRID + 0.5})).slice_member("m", axis=1, end=2)
    room = numpy.zeros((3, 2))
    assert transfer.materialize_into(spec, {"m": room}).objects["m"] is room
    assert same(room, (GRID + 0.5)[:, :2])
    for bad in (numpy.zeros((3, 2), int), numpy.zeros((3, 1)), raw_destination(room.ctypes.data, 48)):
        with pytest.raises(ValueError, match="m: "):
            transfer.materialize_into(spec, {"m": bad})
    assert same(room, (GRID + 0.5)[:, :2])


def test_rows_are_no_columns(transfer):
    ref = transfer.put({"x": GRID})
    with pytest.raises(ValueError, match="dimension 0"):
        transfer.get(ref, rows=StructuredMemberSlice(1, 0, 2))


def test_what_is_no_memory_is_no_destination(transfer):
    spec = transfer.read_spec(transfer.put_object({"m": GRID}))
    for bad in ([1], b"bytes", bytearray(96)):
        with pytest.raises(TypeError, match="^m: "):
            transfer.materialize_into(spec, {"m": bad})


def test_bytes_of_any_layout(transfer):
    buffers = {
        "gaps": memoryview(bytes(range(6)))[::2],
        "big": numpy.arange(3, dtype=">u2"),
        "turned": numpy.arange(4, dtype="u1").reshape(2, 2).T,
        "none": numpy.zeros((0, 4)),
    }
    ref = transfer.put_bundle(memoryview(b"meta")[::-1], buffers)
    meta, read = transfer.get_bundle(RemoteBundleRef(ref.manifest_key))
    assert meta == b"atem"
    assert read == {name: memoryview(value).tobytes() for name, value in buffers.items()}
    with pytest.raises(TypeError, match="^bad: "):
        transfer.put_bundle(b"", {"bad": "text"})


def test_a_field_may_be_called_like_a_section(transfer):
    assert same(GRID, transfer.get(transfer.put({"batch": GRID}))["batch"]["batch"])

    class Proto:
        batch = GRID

    with pytest.raises(TypeError, match="batch: fields by name"):
        transfer.put(Proto())


def test_a_flat_dict_hides_no_field_behind_another(transfer):
    ref = transfer.put({"batch": {"x": GRID}, "meta_info": {"x": "about x"}})
    assert transfer.get(ref)["meta_info"] == {"x": "about x"}
    with pytest.raises(ValueError, match="two sections: x"):
        transfer.get(ref, type="dict")


def test_a_class_that_fails_says_so(transfer):
    """A failure inside `from_dict` was taken for another signature, and the class was called instead."""

    class Proto:
        def __init__(self, **fields):
            self.fields = fields

        @classmethod
        def from_dict(cls, batch, non_tensor_batch, meta_info=None):
            return len(None)

    ref = transfer.put({"batch": {"x": GRID}})
    with pytest.raises(TypeError, match="Proto.*NoneType"):
        transfer.get(ref, data_cls=Proto)


def test_handles_of_long_numbers_and_without_names(transfer):
    told = export_ref(transfer.put({"meta_info": {"long": numpy.longdouble(1.5)}}))
    assert transfer.get(json.loads(json.dumps(told)))["meta_info"] == {"long": numpy.longdouble(1.5)}
    del told["namespace"], told["partition"]
    ref = import_ref(told)
    assert (ref.namespace, ref.partition) == ("default", "default")


def test_a_bundle_that_goes_on_from_itself(transfer, store):
    ref = transfer.put_object({"m": 1})
    words = json.dumps({**ref.manifest, "earlier": ref.manifest_key}).encode()
    assert store.upsert(ref.manifest_key, words) == 0
    with pytest.raises(RuntimeError, match="from itself"):
        transfer.get_object(RemoteBundleRef(ref.manifest_key))
    transfer.remove_object(RemoteBundleRef(ref.manifest_key))
    assert store.remove_by_regex("^odd/", force=True) == 0


def test_a_chunk_that_is_too_short_is_an_error_by_handles_too():
    """Five bytes from the second on were told as read where there were five in all."""
    from mooncake._bundle import Bundles, Range

    four, room = Four(), bytearray(10)
    four.put("short", b"12345")
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    wanted = {"short": [Range(1, 0, 5), Range(0, 5, 2)], "gone": [Range(0, 7, 3)]}
    got = Bundles(four, "odd", 5)._copy_ranges(wanted, address, 10)
    assert got == [[-600, 2], [-704]]
    assert room == bytes(5) + b"12" + bytes(3)


def test_tensors_without_a_form_are_refused(transfer, none_left):
    torch = torch_or_skip()
    loose = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.strided)
    for bad in (torch.ones(2, dtype=torch.complex64), torch.ones(2).to_sparse(), torch.ones(1, device="meta")):
        for value in (bad, [bad]):
            with pytest.raises(TypeError, match="m: "):
                transfer.put_object({"m": value})
    with pytest.raises(TypeError, match="m: "):
        transfer.put_object({"m": [loose]})


def test_tensors_among_the_values_by_row_stay_tensors(transfer):
    torch = torch_or_skip()
    column = torch.arange(12).reshape(3, 4)
    ref = transfer.put({"non_tensor_batch": {"m": column}})
    assert torch.equal(transfer.get(ref)["non_tensor_batch"]["m"], column)
    assert torch.equal(transfer.get(ref, rows=[2, 0])["non_tensor_batch"]["m"], column[[2, 0]])
    with pytest.raises(TypeError, match="truth values"):
        transfer.get(ref, rows=torch.tensor([True, False, True]))


def test_a_tensor_goes_to_plain_memory_with_its_head(transfer):
    torch = torch_or_skip()
    from mooncake.store import _deserialize_tensor

    tensor = torch.arange(6.0).reshape(3, 2)
    spec = transfer.read_spec(transfer.put_object({"m": tensor}))
    room = ctypes.create_string_buffer(304 + 24 + 8)
    place = raw_destination(ctypes.addressof(room), len(room), room)
    assert torch.equal(transfer.materialize_into(spec, {"m": place}).objects["m"], tensor)
    assert torch.equal(_deserialize_tensor(room.raw[:-8]), tensor)


class Four:
    """A store with the four calls that `BundleStore` names, such as programs bring to their own tests."""

    def __init__(self):
        self.values = {}

    def put(self, key, value, config=None):
        self.values[key] = value
        return 0

    def get(self, key):
        return self.values.get(key, b"")

    def remove(self, key, force=False):
        return 0 if self.values.pop(key, None) is not None else -704

    def is_exist(self, key):
        return int(key in self.values)


@pytest.mark.parametrize("mode", ["batch", "parallel"])
def test_four_calls_are_enough_of_a_store(mode):
    four = Four()
    transfer = MooncakeBundleTransfer(four, default_chunk_bytes=20)
    policy = BundleTransferPolicy(max_inflight_put=3, put_mode=mode)
    grid = GRID.copy()
    data = {"batch": {"x": grid}, "non_tensor_batch": {"m": ["a", b"", None]}}
    ref = import_ref(export_ref(transfer.put(data, policy=policy)))
    # What is stored is not the memory of the caller.
    grid[:] = 0
    read = transfer.get(ref, rows=[2, 0])
    assert same(GRID[[2, 0]], read["batch"]["x"]) and read["non_tensor_batch"]["m"] == [None, "a"]
    assert same(GRID, transfer.get(ref)["batch"]["x"])
    assert all(isinstance(value, bytes) for value in four.values.values())
    lost = next(key for key in four.values if key.endswith("/1/1"))
    kept = four.values.pop(lost)
    with pytest.raises(RuntimeError, match="-704"):
        transfer.get(ref, fields=["x"])
    four.values[lost] = kept[1:]
    with pytest.raises(RuntimeError, match="-600"):
        transfer.get(ref, fields=["x"])
    transfer.cleanup_dataproto(ref)
    assert not four.values
