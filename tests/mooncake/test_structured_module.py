"""The module of structured objects as programs written for Mooncake know it: names, forms, rules, refusals.

All of it holds for the published package, too.
"""

import dataclasses
import inspect
import json

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("msgpack", reason="msgpack is not installed")

from mooncake import structured_object_store as module
from mooncake.store import ReplicateConfig
from mooncake.structured_object_store import (
    MISSING,
    BundleTransferPolicy,
    FieldSchema,
    MooncakeBundleTransfer,
    MooncakeDataProtoRef,
    RemoteBundleRef,
    StructuredFieldLocation,
    StructuredMemberSlice,
    StructuredObjectPayload,
    StructuredObjectReadSpec,
    StructuredObjectResult,
    export_ref,
    import_ref,
    infer_structure,
    is_dataproto_ref_handle,
)

SIX = numpy.arange(6)


@pytest.fixture
def transfer(store):
    return MooncakeBundleTransfer(store, key_prefix="/test/module/")


def column(values):
    """An array of objects, one for each row."""
    rows = numpy.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        rows[place] = value
    return rows


def same(left, right):
    return numpy.array_equal(numpy.asarray(left), numpy.asarray(right))


# ---- names and forms ---------------------------------------------------------------------------------


def test_constants_and_names():
    assert module.DEFAULT_BUNDLE_CHUNK_BYTES == module.AUTO_PARALLEL_MIN_BYTES == 64 << 20
    assert module.AUTO_PARALLEL_MIN_CHUNKS == 8 and module.MISSING_OBJECT_ERROR == -704
    assert module.STRUCTURED_FIELD_SPECS_KEY == "__mooncake_structured_fields__"
    assert module.DATAPROTO_REF_HANDLE_TYPE == "mooncake_dataproto_ref"
    assert module.DATAPROTO_REF_HANDLE_VERSION == 1 and module.STORAGE_GROUP_ID == "storage_group_id"
    assert module.export_dataproto_ref is export_ref and module.import_dataproto_ref is import_ref
    assert repr(MISSING) == "<MISSING>" and MISSING is module.MISSING
    assert {"put", "get", "remove", "is_exist"} <= {*dir(module.BundleStore)}
    assert module.DataProtoRefLike


FORMS = {
    FieldSchema: ["codec", "nullable", "metadata"],
    RemoteBundleRef: ["manifest_key", "manifest"],
    StructuredObjectPayload: ["metadata", "buffers"],
    StructuredObjectResult: ["metadata", "objects"],
    StructuredFieldLocation: ["stage", "member", "section"],
    StructuredMemberSlice: ["axis", "start", "end", "step"],
    StructuredObjectReadSpec: ["ref", "member_names", "member_slices"],
    BundleTransferPolicy: ["max_inflight_put", "put_mode", "copy_mode"],
    MooncakeDataProtoRef: """batch_size stage_refs field_index meta_info namespace partition
        global_indexes encoded_non_tensor _storage_group_id""".split(),
}


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
def test_the_fields_of_classes_and_their_order(kind):
    assert [field.name for field in dataclasses.fields(kind)] == FORMS[kind]


HOW = ["partition", "chunk_bytes", "policy", "max_inflight_put", "config"]
STAGE = ["chunk_bytes", "policy", "field_schemas", "config"]
FIELDS = """fields batch_fields non_tensor_fields meta_info_keys data_cls destinations rows""".split()
CALLS = {
    "put_bundle": ["meta", "buffers", *HOW],
    "put_structured_object": ["payload", *HOW],
    "put_object": ["obj", *HOW],
    "get_object": ["ref"],
    "remove_bundle": ["ref"],
    "read_spec": ["ref"],
    "materialize": ["spec"],
    "materialize_into": ["spec", "destinations"],
    "put": "data type namespace partition stage chunk_bytes policy config field_schemas".split(),
    "get": ["ref", "type", *FIELDS],
    "put_dataproto": ["data", "namespace", "partition", "stage", *STAGE],
    "get_dataproto": ["ref", *FIELDS],
    "append_dataproto_fields": ["ref", "data", "stage", "overwrite", *STAGE],
    "dataproto_manifest_view": ["ref"],
    "cleanup_dataproto": ["ref"],
    "cleanup_dataproto_append": ["previous", "appended"],
    "release_result": ["result"],
}


@pytest.mark.parametrize("name", CALLS)
def test_what_the_calls_take(name):
    taken = [one for one in inspect.signature(getattr(MooncakeBundleTransfer, name)).parameters]
    assert [one for one in taken if one != "self"] == CALLS[name]


# ---- what structures are inferred ----------------------------------------------------------------------


def inferred(values):
    leaves, nodes = [], []
    assert infer_structure("x", values, leaves, nodes) is None
    return leaves, nodes


@pytest.mark.parametrize(
    "values, codec, accepted",
    [
        ([1, None, 3], "ndarray", True),
        ([True, 2.5], "ndarray", True),
        ([numpy.float32(1), 2], "ndarray", True),
        (["a", None], "utf8_ragged", True),
        ([b"a", bytearray(b"b"), memoryview(b"c")], "bytes_ragged", True),
        ([[1, 2], [3.5], []], "typed_ragged", True),
        ([(1, 2), [3]], "typed_ragged", True),
        ([numpy.arange(3), numpy.arange(2.0)], "typed_ragged", True),
        ([[b"a", b"b"], []], "media_list_ragged", True),
        ([["a"], ["b", "c"]], "msgpack_ragged", True),
        ([{1: "a"}], "msgpack_ragged", True),
        ([None, MISSING], "msgpack_ragged", False),
        ([], "msgpack_ragged", False),
        (["a", 1], "msgpack_ragged", False),
        ([object()], "msgpack_ragged", False),
        ([numpy.array([None])], "msgpack_ragged", False),
    ],
)
def test_which_form_a_leaf_gets(values, codec, accepted):
    [leaf], nodes = inferred(values)
    assert nodes == [] and leaf.path == "x" and leaf.values is values
    assert (leaf.decision.codec, leaf.decision.accepted) == (codec, accepted)
    assert leaf.decision.reason and leaf.decision.normalized_type
    if codec == "ndarray":
        assert numpy.dtype(leaf.decision.metadata["dtype"]).kind in "bif"


def test_which_form_tensors_get():
    torch = pytest.importorskip("torch", reason="torch is not installed; ./dev test --torch installs it")
    [leaf], _ = inferred([torch.zeros(2), None, torch.zeros(1, 3)])
    assert (leaf.decision.codec, leaf.decision.accepted) == ("ragged_tensor", True)
    assert leaf.decision.metadata == {"dtype": "torch.float32"}
    [leaf], _ = inferred([torch.zeros(2), torch.zeros(2, dtype=torch.int8)])
    assert (leaf.decision.codec, leaf.decision.accepted) == ("ragged_tensor", False)


def test_dicts_become_a_column_for_each_key():
    leaves, nodes = inferred([{"b": 1, "a.c": None}, None, {"b": 2, "[d\\": "e"}])
    [node] = nodes
    assert (node.path, node.node_type, node.lengths) == ("x", "dict", None)
    assert node.children == ["[d\\", "a.c", "b"] and node.row_mask == [True, False, True]
    columns = {leaf.path: leaf.values for leaf in leaves}
    assert columns == {
        "x.\\[d\\\\": [MISSING, None, "e"],
        "x.a\\.c": [None, None, MISSING],
        "x.b": [1, None, 2],
    }


def test_short_lists_of_containers_become_a_column_for_each_place():
    leaves, nodes = inferred([[{"a": 1}, None], ({"a": 2},), None])
    assert [(node.path, node.node_type, node.children) for node in nodes] == [
        ("x", "list", [0, 1]),
        ("x[0]", "dict", ["a"]),
    ]
    assert nodes[0].lengths == [2, 1, 0] and nodes[0].row_mask == [True, True, False]
    columns = {leaf.path: leaf.values for leaf in leaves}
    assert columns == {"x[0].a": [1, 2, None], "x[1]": [None, MISSING, None]}


def test_what_is_too_wide_or_too_deep():
    [leaf], nodes = inferred([{str(key): 1 for key in range(65)}])
    assert nodes == [] and leaf.decision.codec == "msgpack_ragged"
    [leaf], nodes = inferred([[[1]] * 9])
    assert nodes == []
    deep = None
    for _ in range(34):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="depth"):
        inferred([deep])


# ---- objects -------------------------------------------------------------------------------------------


def test_an_object_its_metadata_and_its_members(transfer):
    assert transfer.key_prefix == "test/module"
    payload = StructuredObjectPayload({"step": 1}, {"a": SIX, "b": b"bytes"})
    ref = transfer.put_structured_object(payload, "part", None, None, 2)
    assert ref.manifest_key.startswith("test/module/part/")
    for known in (ref, RemoteBundleRef(ref.manifest_key, {}), {"manifest_key": ref.manifest_key}):
        result = transfer.materialize(transfer.read_spec(known))
        assert result.metadata["step"] == 1 and result.metadata["layout"] == "structured"
        specs = result.metadata[module.STRUCTURED_FIELD_SPECS_KEY]
        assert specs == {
            "a": {"encoding": "ndarray", "dtype": SIX.dtype.str, "shape": [6]},
            "b": {"encoding": "bytes"},
        }
        assert same(result.objects["a"], SIX) and bytes(result.objects["b"]) == b"bytes"
    transfer.remove_bundle({"manifest_key": ref.manifest_key})
    for known in (ref, RemoteBundleRef(ref.manifest_key, {}), {"manifest_key": "never"}):
        assert transfer.remove_bundle(known) is None
    with pytest.raises(ValueError):
        transfer.remove_bundle({})


def test_specs_are_narrowed(transfer):
    spec = transfer.read_spec(transfer.put_object({"a": SIX, "b": b"bytes"}))
    assert spec.member_names is None and spec.member_slices == ()
    some = spec.slice_member("a", 0, 1, 6, 2).select_members(["a"])
    assert some.member_names == ("a",) and some.member_slice("b") is None
    assert some.member_slices == (("a", StructuredMemberSlice(0, 1, 6, 2)),)
    assert some.member_slice("a").step == 2
    assert same(transfer.materialize(some).objects["a"], [1, 3, 5])
    assert {*transfer.materialize(some.select_members(None)).objects} == {"a", "b"}
    # A slice of what is not read says nothing.
    assert len(transfer.materialize(spec.slice_member("q", 0, 1, 2)).objects) == 2
    assert [*transfer.materialize(spec.select_members(["a", "a"])).objects] == ["a"]
    for bad in (spec.select_members([]), some.slice_member("a", 0, 0, 6, 0)):
        with pytest.raises(ValueError):
            transfer.materialize(bad)
    for bad in (spec.slice_member("b", 0, 1, 2), spec.slice_member("a", 1, 0, 1)):
        with pytest.raises(ValueError):
            transfer.materialize(bad)
    with pytest.raises(KeyError, match="nope"):
        transfer.materialize(spec.select_members(["nope"]))


def test_texts_and_dates_are_arrays_like_others(transfer):
    words = numpy.array(["one", "two", "three"])
    days = numpy.array(["2026-01-01", "2026-01-02", "NaT"], dtype="M8[D]")
    read = transfer.get(transfer.put({"words": words}, type="dict"), type="dict", rows=[2, 0])
    assert same(read["words"], words[[2, 0]]) and read["words"].dtype == words.dtype
    spec = transfer.read_spec(transfer.put_object({"words": words}))
    specs = transfer.materialize(spec).metadata[module.STRUCTURED_FIELD_SPECS_KEY]
    assert specs["words"] == {"encoding": "ndarray", "dtype": words.dtype.str, "shape": [3]}
    assert same(transfer.get_object(transfer.put_object(days))[:2], days[:2])


def test_what_is_refused_before_anything_is_stored(transfer, store):
    with pytest.raises(TypeError):
        StructuredObjectPayload({})
    for prefix in ("", "/", "a\nb"):
        with pytest.raises(ValueError):
            MooncakeBundleTransfer(store, prefix)
    with pytest.raises(ValueError):
        MooncakeBundleTransfer(store, "x", 0)
    reserved = {module.STRUCTURED_FIELD_SPECS_KEY: 1}
    for metadata in (reserved, {"layout": 1}):
        with pytest.raises(ValueError):
            transfer.put_structured_object(StructuredObjectPayload(metadata, {"a": SIX}))
    for how in (
        {"chunk_bytes": 0},
        {"partition": ""},
        {"partition": "a/b"},
        {"max_inflight_put": 0},
        {"policy": BundleTransferPolicy(0)},
        {"policy": BundleTransferPolicy(put_mode="x")},
        {"policy": BundleTransferPolicy(copy_mode="x")},
    ):
        with pytest.raises(ValueError):
            transfer.put_object(SIX, **how)
    for name in ("", "a/b"):
        with pytest.raises(ValueError):
            transfer.put_object({name: SIX})
    assert store.remove_by_regex("^test/module/", force=True) == 0


# ---- batches -------------------------------------------------------------------------------------------

VALUES = [
    [1, None, 3],
    [True, False],
    ["a", "", None],
    [b"a", None, bytearray(b"c")],
    [[1, 2], None, [3]],
    [[1.5], [2, 3]],
    [["a", "b"], []],
    [[b"a", b"b"], []],
    [{"a": 1, "b": "x"}, {"a": 2}, None],
    [{"a": {"c": [1, 2]}, "b": None}, {"a": {"c": [3]}}],
    [{"image": b"x", "n": 1}, {"image": b"y"}, None],
    [[{"a": 1}, {"a": 2}], [{"a": 3}]],
]


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_values_by_row(transfer, values):
    data = {"non_tensor_batch": {"x": column(values)}}
    ref = import_ref(json.loads(json.dumps(export_ref(transfer.put(data)))))
    assert ref.field_index["x"].section == "non_tensor_batch" and ref.batch_size == len(values)
    read = transfer.get(ref)["non_tensor_batch"]["x"]
    assert read.dtype == object and [*read] == values
    order = [*range(len(values))][::-1]
    assert [*transfer.get(ref, rows=order)["non_tensor_batch"]["x"]] == values[::-1]
    some = transfer.get(ref, rows=slice(0, 1))["non_tensor_batch"]["x"]
    assert [*some] == values[:1]
    assert transfer.get(ref, type="dict")["x"] == values


def test_arrays_by_row(transfer):
    rows = [numpy.arange(3), numpy.arange(2), None, numpy.arange(4, dtype=numpy.float32)]
    inside = [{"i": row} for row in rows[:2]]
    data = {"non_tensor_batch": {"x": column(rows[:3]), "y": column([*inside, None])}}
    read = transfer.get(transfer.put(data))["non_tensor_batch"]
    for put, got in zip(rows[:3], read["x"], strict=True):
        assert got is None if put is None else same(put, got) and put.dtype == got.dtype
    assert same(read["y"][1]["i"], rows[1]) and read["y"][2] is None


@pytest.mark.parametrize(
    "data, sections, size",
    [
        ({"t": SIX, "n": [*"abcdef"], "m": [1, 2], "r": b"six!!!", "s": 9}, "b n m m m", 6),
        ({"a": [1, 2], "b": "xx"}, "n m", 2),
        ({"t": SIX, "z": numpy.array(3), "u": (1, 2, 3, 4, 5, 6)}, "b m n", 6),
        ({"o": column("ab")}, "m", 0),
        ({"w": numpy.array(["a", "b"])}, "b", 2),
        ({"s": 1}, "m", 0),
        ({}, "", 0),
    ],
    ids=str,
)
def test_where_the_fields_of_a_dict_go(transfer, data, sections, size):
    ref = transfer.put(data, type="dict")
    told = {"b": "batch", "n": "non_tensor_batch"}
    wanted = {name: told.get(word) for name, word in zip(data, sections.split(), strict=True)}
    found = {name: where.section for name, where in ref.field_index.items()}
    assert found == {name: section for name, section in wanted.items() if section}
    assert ref.batch_size == size
    read = transfer.get(ref, type="dict")
    assert {*read} == {*data}
    assert all(same(read[name], value) for name, value in data.items())
    if size:
        for name, value in transfer.get(ref, type="dict", rows=[1, 0]).items():
            assert same(value, [data[name][1], data[name][0]] if wanted[name] else data[name])


def test_dicts_that_do_not_say_how_many_rows_they_have(transfer):
    for data in ({"t": SIX, "o": numpy.arange(3)}, {"a": [1, 2], "b": [1]}):
        with pytest.raises(ValueError):
            transfer.put(data, type="dict")
    schema = FieldSchema("auto", metadata={"section": "meta_info"})
    ref = transfer.put({"a": [1, 2], "b": [1]}, type="dict", field_schemas={"b": schema})
    assert [*ref.field_index] == ["a"] and transfer.get(ref, type="dict")["b"] == [1]
    with pytest.raises(TypeError):
        transfer.put([1], type="dict")
    for call in (lambda: transfer.put({}, type="x"), lambda: transfer.get(ref, type="x")):
        with pytest.raises(ValueError):
            call()


def with_schema(transfer, values, codec, **more):
    data = {"non_tensor_batch": {"x": column(values)}}
    ref = transfer.put_dataproto(data, field_schemas={"x": FieldSchema(codec, **more)})
    return [*transfer.get(ref)["non_tensor_batch"]["x"]]


def test_schemas_shape_values(transfer):
    floats = with_schema(transfer, [1, None], "ndarray", metadata={"dtype": "float32"})
    assert floats == [1.0, None] and type(floats[0]) is float
    ints = with_schema(transfer, [[1, 2], [3]], "typed_ragged", metadata={"dtype": "int16"})
    assert ints == [[1, 2], [3]]
    assert with_schema(transfer, ["a", None], "utf8_ragged") == ["a", None]
    assert with_schema(transfer, [{"a": (1, 2)}], "json_ragged") == [{"a": [1, 2]}]
    assert with_schema(transfer, [b"a", None], "bytes_ragged") == [b"a", None]


def test_schemas_that_do_not_fit(transfer):
    for values, codec, more in (
        (["a", None], "utf8_ragged", {"nullable": False}),
        (["a", None], "auto", {"nullable": False}),
        (["a"], "zip", {}),
        ([1], "utf8_ragged", {}),
        (["a"], "bytes_ragged", {}),
        (["a"], "ndarray", {"metadata": {"dtype": "int64"}}),
        ([1], "ndarray", {"metadata": {"dtype": "object"}}),
        (["a"], "auto", {"metadata": {"section": "batch"}}),
        (["a"], "auto", {"metadata": {"section": "nowhere"}}),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError), match="x|section|codec|dtype"):
            with_schema(transfer, values, codec, **more)


def test_nested_tensors(transfer):
    torch = pytest.importorskip("torch", reason="torch is not installed; ./dev test --torch installs it")
    parts = [torch.arange(3.0), torch.arange(2.0), torch.arange(4.0)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)

    def rows(value):
        assert value.is_nested and value.layout is torch.jagged and value.dtype is torch.float32
        return [row.tolist() for row in value.unbind()]

    whole = [part.tolist() for part in parts]
    assert rows(transfer.get_object(transfer.put_object(nested))) == whole
    ref = transfer.put({"batch": {"x": nested, "n": torch.arange(3)}})
    assert ref.batch_size == 3 and ref.field_index["x"].section == "batch"
    assert rows(transfer.get(ref)["batch"]["x"]) == whole
    assert rows(transfer.get(ref, rows=[2, 0])["batch"]["x"]) == [whole[2], whole[0]]
    assert rows(transfer.get(ref, rows=slice(1, 3))["batch"]["x"]) == whole[1:]
    spec = transfer.dataproto_manifest_view(ref)["batch_fields"]["x"]["spec"]
    assert (spec["encoding"], spec["nested"], spec["dtype"]) == ("torch_tensor", True, "torch.float32")
    assert transfer.put({"x": nested}, type="dict").field_index["x"].section == "batch"
    deep = torch.nested.nested_tensor([torch.ones(2, 3), torch.zeros(1, 3)], layout=torch.jagged)
    read = transfer.get_object(transfer.put_object(deep))
    assert [tuple(row.shape) for row in read.unbind()] == [(2, 3), (1, 3)]
    with pytest.raises(ValueError, match="jagged"):
        transfer.put_object(torch.nested.nested_tensor(parts, layout=torch.strided))


def test_what_a_get_refuses(transfer):
    ref = transfer.put({"batch": {"a": SIX}})
    for how in (
        {"fields": ["a"], "batch_fields": ["a"]},
        {"rows": StructuredMemberSlice(1, 0, 1)},
        {"rows": StructuredMemberSlice(0, 0, 1, 0)},
    ):
        with pytest.raises(ValueError):
            transfer.get(ref, **how)
    # An iterator was read to its end by the first look at it, and gave no rows.
    once = (iter([1]), map(int, "13"), (row for row in (1, 3)))
    for rows in (["1"], "abc", 1, [1.5], {1, 3}, {1: 3}, {1: 3}.keys(), *once):
        with pytest.raises(TypeError):
            transfer.get(ref, rows=rows)
    for rows in ([6], [-7]):
        with pytest.raises(IndexError):
            transfer.get(ref, rows=rows)
    with pytest.raises(KeyError):
        transfer.get(ref, fields=["nope"])
    # Where a field lies is known; how it is called matters less.
    assert same(transfer.get(ref, non_tensor_fields=["a"])["batch"]["a"], SIX)
    rows = StructuredMemberSlice(0, 0, 5, 2)
    assert same(transfer.get(ref, rows=rows)["batch"]["a"], [0, 2, 4])


def test_stages_grow_and_are_replaced(transfer, store):
    first = transfer.put({"batch": {"a": SIX}, "meta_info": {"k": 1}})
    grown = transfer.append_dataproto_fields(first, {"b": SIX + 1}, stage="default")
    for ref in (grown, import_ref(json.loads(json.dumps(export_ref(grown))))):
        read = transfer.get(ref)
        assert same(read["batch"]["a"], SIX) and same(read["batch"]["b"], SIX + 1)
        assert read["meta_info"] == {"k": 1}
    other = transfer.append_dataproto_fields(grown, {"c": SIX + 2}, stage="more")
    for data, stage in (({"a": SIX}, "x"), ({"b": SIX}, "default"), ({"d": SIX[:5]}, "x")):
        with pytest.raises(ValueError):
            transfer.append_dataproto_fields(other, data, stage=stage)
    with pytest.raises(ValueError):
        transfer.append_dataproto_fields(other, {"d": SIX}, stage="more", overwrite=True)
    last = {"a": SIX + 3, "c": SIX + 4}
    ref = transfer.append_dataproto_fields(other, last, stage="more", overwrite=True)
    assert {name: where.stage for name, where in ref.field_index.items()} == {
        "a": "more",
        "b": "default",
        "c": "more",
    }
    read = transfer.get(ref)["batch"]
    assert all(same(read[name], SIX + add) for name, add in (("a", 3), ("b", 1), ("c", 4)))
    transfer.cleanup_dataproto(ref)
    transfer.cleanup_dataproto(export_ref(ref))
    assert store.remove_by_regex("^test/module/", force=True) == 0


@pytest.mark.parametrize("stage", ["default", "more"])
def test_an_append_is_taken_back(transfer, store, stage):
    first = transfer.put({"batch": {"a": SIX}})
    grown = transfer.append_dataproto_fields(export_ref(first), {"b": SIX}, stage=stage)
    for _ in range(2):
        transfer.cleanup_dataproto_append(first, export_ref(grown))
        assert same(transfer.get(first)["batch"]["a"], SIX)
        with pytest.raises(Exception):
            transfer.get(import_ref(export_ref(grown)))
    transfer.cleanup_dataproto_append(first, first)
    transfer.cleanup_dataproto(first)
    assert store.remove_by_regex("^test/module/", force=True) == 0


def test_the_view_of_a_batch(transfer):
    ref = transfer.put(
        {"batch": {"a": SIX}, "non_tensor_batch": {"n": column("abcdef")}, "meta_info": {"k": 1}},
        namespace="space",
        partition="part",
    )
    view = transfer.dataproto_manifest_view(export_ref(ref))
    assert (view["namespace"], view["partition"], view["batch_size"]) == ("space", "part", 6)
    assert view["meta_info_keys"] == ["k"] and [*view["non_tensor_fields"]] == ["n"]
    told = view["batch_fields"]["a"]
    assert (told["section"], told["stage"]) == ("batch", "default")
    assert told["member"] == ref.field_index["a"].member
    assert told["spec"] == {"encoding": "ndarray", "dtype": SIX.dtype.str, "shape": [6]}
    assert view["non_tensor_fields"]["n"]["spec"]["encoding"] == "structured_non_tensor"
    stage = view["stages"]["default"]
    assert stage["manifest_key"] == ref.stage_refs["default"].manifest_key
    assert stage["dataproto"] == {
        "version": 1,
        "namespace": "space",
        "partition": "part",
        "stage": "default",
        "batch_size": 6,
    }


def test_handles_are_json_that_says_what_it_is(transfer):
    meta = {"k": [1, "x"], "z": numpy.float32(1)}
    handle = export_ref(transfer.put({"batch": {"a": SIX}, "meta_info": meta}))
    assert handle == json.loads(json.dumps(handle)) and is_dataproto_ref_handle(handle)
    told = ("type", "version", "kind", "batch_size", "namespace", "partition", "global_indexes")
    assert [handle[name] for name in told] == [
        "mooncake_dataproto_ref", 1, "bundle_stages", 6, "default", "default", None,
    ]
    assert handle["meta_info"] == {"k": [1, "x"], "z": 1.0}
    assert handle["field_index"]["a"]["section"] == "batch"
    assert [*handle["stage_refs"]["default"]] == ["manifest_key"]
    ref = import_ref({**handle, "global_indexes": [3, 1]})
    assert ref.global_indexes == [3, 1] and isinstance(ref, MooncakeDataProtoRef)
    unknown = {"a": {"stage": "n", "member": "m", "section": "batch"}}
    nowhere = {"a": {"stage": "default", "member": "m", "section": "x"}}
    for bad in (
        {},
        "text",
        None,
        ref,
        {"type": "mooncake_dataproto_ref"},
        {**handle, "version": 9},
        {**handle, "kind": "other"},
        {**handle, "stage_refs": 1},
        {**handle, "stage_refs": {"default": {"manifest_key": ""}}},
        {**handle, "field_index": unknown},
        {**handle, "field_index": nowhere},
        {**handle, "global_indexes": [True]},
        {**handle, "meta_info": []},
    ):
        with pytest.raises(ValueError):
            import_ref(bad)
    for bad in ({}, "text", None):
        assert not is_dataproto_ref_handle(bad)
        with pytest.raises(TypeError):
            transfer.get(bad)
    with pytest.raises(TypeError):
        export_ref({})


def test_what_is_stored_for_a_batch_is_one_group(transfer):
    config = ReplicateConfig()
    for ids, group in ((["mine"], "mine"), ([""], None), ([], "structured-")):
        config.group_ids = ids
        ref = transfer.put({"batch": {"a": SIX, "b": SIX}}, config=config)
        handle = export_ref(ref)
        assert handle.get("storage_group_id", "").startswith(group or "")
        assert ("storage_group_id" in handle) is (group is not None)
        assert import_ref(handle)._storage_group_id == handle.get("storage_group_id")
        more = transfer.append_dataproto_fields(handle, {"c": SIX}, stage="more")
        assert more._storage_group_id == ref._storage_group_id
        assert same(transfer.get(more)["batch"]["c"], SIX)
    assert config.group_ids == []
    config.group_ids = ["one", "two"]
    with pytest.raises(ValueError):
        transfer.put({"batch": {"a": SIX}}, config=config)


def test_batches_that_are_none(transfer):
    ref = transfer.put({"batch": None, "meta_info": {"k": 1}})
    assert ref.batch_size == 0 and ref.stage_refs == {} and transfer.get(ref)["meta_info"] == {"k": 1}
    for data in (
        {"batch": {"a": SIX, "b": SIX[:2]}},
        {"batch": {"a": SIX}, "non_tensor_batch": {"a": column("abcdef")}},
    ):
        with pytest.raises(ValueError):
            transfer.put(data)
    with pytest.raises(TypeError):
        transfer.get(transfer.put({"batch": {"a": SIX}}), data_cls=int)
