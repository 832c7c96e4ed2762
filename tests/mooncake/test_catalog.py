"""The catalog of batches: rows by name, batches that are removed when nobody needs them, errors on the way.

All of it holds for the published package, too, but for one test.
"""

import json
import os

import pytest

numpy = pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("msgpack", reason="msgpack is not installed")

from mooncake.dataproto_catalog import DataProtoCatalog, DataProtoCatalogTransfer
from mooncake.structured_object_store import MooncakeBundleTransfer, export_dataproto_ref


class Batch:
    """What programs put: rows of tensors, rows of values, and what holds for all of them."""

    def __init__(self, batch, non_tensor_batch=None, meta_info=None):
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensor_batch or {}, meta_info or {}

    def __len__(self):
        return len(next(iter(self.batch.values())))


def numbers(*values, **meta):
    return Batch({"x": numpy.array(values)}, meta_info=meta)


@pytest.fixture
def transfer(store):
    return MooncakeBundleTransfer(store, key_prefix="/test/catalog/")


class Far:
    """A catalog as it is called from elsewhere. Of a method, the next calls may be lost, or their answers."""

    def __init__(self):
        self.catalog, self.calls, self.lost = DataProtoCatalog(), [], {}

    def __call__(self, method, *given, **more):
        self.calls.append(method)
        kind = self.lost.get(method, []) and self.lost[method].pop(0)
        if kind == "call":
            raise ConnectionError(method)
        answer = getattr(self.catalog, method)(*given, **more)
        if kind == "answer":
            raise ConnectionError(method)
        return answer


@pytest.fixture
def far():
    return Far()


@pytest.fixture
def rows(transfer, far):
    return DataProtoCatalogTransfer(transfer, far)


def read(transfer, plan):
    """What a plan leads to: fields by row, in the order that was asked for."""
    found = {}
    for group in plan["field_groups"]:
        for name in group["fields"]:
            found[name] = [
                transfer.get(plan["handles"][fragment], fields=[name], rows=[row])["batch"][name][0].item()
                for fragment, row in group["locations"]
            ]
    return found


def there(transfer, handle):
    """Whether a batch is still in the store."""
    try:
        transfer.get(handle)
    except (RuntimeError, ValueError):
        return False
    return True


def handle_of(plan):
    [(fragment, handle)] = plan["handles"].items()
    return fragment, handle


# ---- rows ------------------------------------------------------------------------------------------------


def test_rows_of_several_batches_are_read_in_any_order(transfer, rows):
    first = rows.put(numbers(10, 11, 12, step=1), partition="p", keys=["a", "b", "c"], tags=[{"n": 1}, {}, {}])
    assert first == {"keys": ["a", "b", "c"], "tags": [{"n": 1}, {}, {}], "fields": ["x"], "retired_handles": []}
    rows.put(numbers(20, 21, step=1), partition="p", keys=["d", "e"])
    plan = rows.resolve("p", ["e", "a", "c"])
    assert read(transfer, plan) == {"x": [21, 10, 12]}
    assert (plan["keys"], plan["fields"], plan["meta_info"]) == (["e", "a", "c"], ["x"], {"step": 1})
    assert plan["tags"] == [{}, {"n": 1}, {}] and plan["read_token"] == 1
    [group] = plan["field_groups"]
    assert [row for _, row in group["locations"]] == [1, 0, 2] and len(plan["handles"]) == 2
    rows.release_read(plan["read_token"])


def test_tags_are_added_to_those_that_are_there(rows):
    rows.put(None, partition="p", keys=["a", "b"], tags=[{"x": 1}, {"x": 2}])
    told = rows.put(None, partition="p", keys=["b", "c"], tags=[{"y": 3}, {}])
    assert told["tags"] == [{"x": 2, "y": 3}, {}] and told["fields"] == []
    assert rows.list("p") == {"p": {"a": {"x": 1}, "b": {"x": 2, "y": 3}, "c": {}}}
    rows.put(None, partition="q", keys=["a"], tags=[{}])
    assert [*rows.list()] == ["p", "q"] and rows.list("nowhere") == {}
    with pytest.raises(ValueError):
        rows.resolve("p", ["a"])
    rows.remove("p", ["a", "b", "c", "nobody"])
    assert [*rows.list()] == ["q"]


def test_answers_are_copies(transfer, far, rows):
    tags = [{"list": [1]}]
    told = rows.put(numbers(1, deep=[1]), partition="p", keys=["a"], tags=tags)
    plan = far.catalog.resolve("p", ["a"])
    for one in (tags[0], told["tags"][0], plan["tags"][0], far.catalog.list()["p"]["a"]):
        one["list"].append(2)
    plan["meta_info"]["deep"].append(2)
    handle_of(plan)[1]["field_index"].clear()
    again = far.catalog.resolve("p", ["a"])
    assert again["tags"] == [{"list": [1]}] and again["meta_info"] == {"deep": [1]}
    assert read(transfer, again) == {"x": [1]}


def test_fields_of_a_row_may_lie_in_several_batches(transfer, rows):
    rows.put(Batch({"x": numpy.array([1, 2]), "y": numpy.array([3, 4])}), partition="p", keys=["a", "b"])
    told = rows.put(Batch({"z": numpy.array([5, 6])}), partition="p", keys=["b", "a"])
    assert told["fields"] == ["x", "y", "z"]
    plan = rows.resolve("p", ["a", "b"], ["z", "y", "x"])
    assert read(transfer, plan) == {"x": [1, 2], "y": [3, 4], "z": [6, 5]}
    assert [group["fields"] for group in plan["field_groups"]] == [["z"], ["y", "x"]]


def test_what_is_not_there_is_refused(far, rows):
    rows.put(numbers(1, meta=1), partition="p", keys=["a"])
    rows.put(numbers(2, meta=2), partition="p", keys=["b"])
    rows.put(None, partition="p", keys=["bare"], tags=[{}])
    for partition, keys, fields in (
        ("p", ["nobody"], None),
        ("nowhere", ["a"], None),
        ("p", ["a"], ["y"]),
        ("p", ["a", "bare"], None),
        # They contradict each other.
        ("p", ["a", "b"], None),
        ("p", ["a", "a"], None),
        ("p", [], None),
        ("p", "a", None),
        ("", ["a"], None),
        ("p", ["a"], []),
        ("p", ["a"], "x"),
        ("p", [1], None),
    ):
        with pytest.raises(ValueError):
            far.catalog.resolve(partition, keys, fields)
    assert rows.resolve("p", ["a"])["read_token"] == 1


@pytest.mark.parametrize(
    "more, error",
    [
        ({"keys": ["a", "a"]}, ValueError),
        ({"keys": []}, ValueError),
        ({"keys": "ab"}, ValueError),
        ({"keys": ["a", ""]}, ValueError),
        ({"keys": ["a"]}, ValueError),
        ({"partition": ""}, ValueError),
        ({"partition": None}, ValueError),
        ({"tags": [{}]}, ValueError),
        ({"tags": [{}, 1]}, TypeError),
        ({"data": None}, ValueError),
    ],
    ids=str,
)
def test_a_put_that_makes_no_sense_stores_nothing(transfer, far, rows, more, error, monkeypatch):
    stored = []
    monkeypatch.setattr(transfer, "put", lambda *given, **how: stored.append(given))
    given = {"data": numbers(1, 2), "partition": "p", "keys": ["a", "b"]} | more
    with pytest.raises(error):
        rows.put(given.pop("data"), **given)
    assert stored == [] and far.catalog.list() == {} and "publish" not in far.calls


def test_a_catalog_alone_refuses_what_it_does_not_know(transfer, far):
    catalog = far.catalog
    handle = export_dataproto_ref(transfer.put(numbers(1, 2)))
    other = export_dataproto_ref(transfer.append_dataproto_fields(handle, Batch({"y": numpy.array([1, 2])}), stage="s"))
    for more in ({}, {"handle": {"type": "other"}}, {"handle": other}, {"handle": {**handle, "batch_size": 3}}):
        with pytest.raises(ValueError):
            catalog.update("p", ["a", "b"], **more)
    assert catalog.list() == {}
    for operation in ("", None, 7):
        with pytest.raises(ValueError):
            catalog.publish(operation, "p", ["a", "b"], handle=handle)
    catalog.update("p", ["a", "b"], handle=handle)
    # The same batch under other keys, and not as another one, or with another owner.
    assert catalog.update("q", ["c", "d"], handle=handle)["fields"] == ["x"]
    for refused in ({**handle, "meta_info": {"other": 1}}, {**handle, "namespace": "other"}):
        with pytest.raises(ValueError):
            catalog.update("p", ["a", "b"], handle=refused)
    with pytest.raises(ValueError):
        catalog.publish("o", "p", ["a", "b"], handle=handle)


# ---- the end of batches ----------------------------------------------------------------------------------


def test_a_batch_is_removed_with_its_last_row(transfer, far, rows):
    rows.put(numbers(1, 2), partition="p", keys=["a", "b"])
    _, handle = handle_of(far.catalog.resolve("p", ["a"]))
    rows.remove("p", ["a"])
    assert there(transfer, handle)
    rows.remove("p", ["b"])
    assert not there(transfer, handle) and far.catalog.remove("p", ["b"]) == {"retired_handles": []}


def test_a_batch_is_removed_when_all_its_fields_were_written_anew(transfer, far, rows):
    rows.put(numbers(1, 2), partition="p", keys=["a", "b"])
    _, handle = handle_of(far.catalog.resolve("p", ["a"]))
    rows.put(numbers(3), partition="p", keys=["a"])
    assert there(transfer, handle)
    rows.put(numbers(4), partition="p", keys=["b"])
    assert not there(transfer, handle)
    assert read(transfer, rows.resolve("p", ["a", "b"])) == {"x": [3, 4]}


def test_a_reader_keeps_what_it_reads(transfer, far, rows):
    rows.put(numbers(1), partition="p", keys=["a"])
    plan, second = rows.resolve("p", ["a"]), rows.resolve("p", ["a"])
    rows.remove("p", ["a"])
    assert rows.list() == {} and read(transfer, plan) == {"x": [1]}
    rows.release_read(plan["read_token"])
    rows.release_read(plan["read_token"])
    assert read(transfer, second) == {"x": [1]}
    rows.release_read(second["read_token"])
    assert not there(transfer, handle_of(plan)[1])
    rows.release_read(12345)


def test_a_batch_that_was_not_published_is_left_alone(transfer, far, rows):
    handle = export_dataproto_ref(transfer.put(numbers(1)))
    far.catalog.update("p", ["a"], handle=handle)
    rows.remove("p", ["a"])
    assert there(transfer, handle)


def test_a_drain_removes_all_and_ends_the_catalog(transfer, far, rows):
    rows.put(numbers(1), partition="p", keys=["a"])
    own = export_dataproto_ref(transfer.put(numbers(2)))
    far.catalog.update("q", ["b"], handle=own)
    plan = rows.resolve("p", ["a"])
    with pytest.raises(RuntimeError):
        rows.drain()
    rows.release_read(plan["read_token"])
    rows.drain()
    rows.drain()
    assert not there(transfer, handle_of(plan)[1]) and there(transfer, own) and rows.list() == {}
    with pytest.raises(RuntimeError):
        rows.put(None, partition="p", keys=["a"], tags=[{}])


def test_what_was_retired_is_named_until_it_is_acknowledged(transfer, far):
    catalog = far.catalog
    handle = export_dataproto_ref(transfer.put(numbers(1)))
    catalog.publish("o", "p", ["a"], handle=handle)
    retired = catalog.remove("p", ["a"])["retired_handles"]
    assert retired == [handle] and catalog.release_read(0)["retired_handles"] == [handle]
    with pytest.raises(ValueError):
        catalog.publish("o2", "p", ["a"], handle=handle)
    with pytest.raises(ValueError):
        catalog.ack_retired([{**handle, "meta_info": {"other": 1}}])
    assert catalog.ack_retired(retired) == {"retired_handles": []}
    assert catalog.ack_retired(retired) == {"retired_handles": []}
    json.dumps(retired)


# ---- appends ---------------------------------------------------------------------------------------------


def more_fields(*values):
    return Batch({"y": numpy.array(values)})


def test_fields_are_appended_to_a_published_batch(transfer, far, rows):
    rows.put(numbers(1, 2), partition="p", keys=["a", "b"], tags=[{"t": 1}, {}])
    fragment, before = handle_of(far.catalog.resolve("p", ["a"]))
    told = rows.append(fragment, before, more_fields(3, 4), partition="p", keys=["a", "b"], stage="more")
    assert told == {"keys": ["a", "b"], "tags": [{"t": 1}, {}], "fields": ["x", "y"], "retired_handles": []}
    plan = far.catalog.resolve("p", ["b", "a"])
    assert read(transfer, plan) == {"x": [2, 1], "y": [4, 3]} and [*plan["handles"]] == [fragment]
    rows.remove("p", ["a", "b"])
    assert not there(transfer, before) and not there(transfer, handle_of(plan)[1])


def test_an_append_that_comes_too_late_is_refused_and_leaves_nothing(transfer, far, rows):
    rows.put(numbers(1), partition="p", keys=["a"])
    fragment, before = handle_of(far.catalog.resolve("p", ["a"]))
    stored = []
    plain = transfer.append_dataproto_fields

    def overtaken(*given, **more):
        """Another one appends meanwhile."""
        transfer.append_dataproto_fields = plain
        rows.append(fragment, before, more_fields(7), partition="p", keys=["a"], stage="first")
        stored.append(plain(*given, **more))
        return stored[0]

    transfer.append_dataproto_fields = overtaken
    with pytest.raises(ValueError):
        rows.append(fragment, before, Batch({"z": numpy.array([8])}), partition="p", keys=["a"], stage="second")
    assert not there(transfer, stored[0])
    assert read(transfer, far.catalog.resolve("p", ["a"])) == {"x": [1], "y": [7]}
    with pytest.raises(ValueError):
        rows.append(fragment, before, more_fields(9), partition="p", keys=["a"], stage="third")


@pytest.mark.parametrize(
    "more",
    [
        {"overwrite": True},
        {"keys": ["a", "b"]},
        {"keys": ["b"]},
        {"partition": "q"},
        {"fragment_id": "nobody"},
        {"fragment_id": ""},
        {"handle": {"type": "other"}},
    ],
    ids=str,
)
def test_an_append_that_does_not_fit_is_refused(transfer, far, rows, more):
    rows.put(numbers(1), partition="p", keys=["a"])
    rows.put(numbers(1), partition="p", keys=["b"])
    fragment, handle = handle_of(far.catalog.resolve("p", ["a"]))
    given = {"fragment_id": fragment, "handle": handle, "partition": "p", "keys": ["a"], "stage": "s"} | more
    with pytest.raises(ValueError):
        rows.append(data=more_fields(2), **given)
    assert far.catalog.resolve("p", ["a"])["fields"] == ["x"] and "publish_append" not in far.calls


def test_a_catalog_says_why_it_rejects_an_append(transfer, far):
    catalog = far.catalog
    handle = export_dataproto_ref(transfer.put(numbers(1), partition="p"))
    longer = export_dataproto_ref(transfer.append_dataproto_fields(handle, more_fields(2), stage="s"))
    name = next(iter(handle["stage_refs"].values()))["manifest_key"]

    def append(operation, fragment=name, partition="p", keys=("a",), old=handle, new=longer):
        return catalog.publish_append(operation, fragment, partition, keys, previous_handle=old, handle=new)

    assert [*append("unknown")] == ["append_rejected"]
    catalog.publish("o", "p", ["a"], handle=handle)
    # Remembered, until its caller knows.
    assert [*append("unknown")] == ["append_rejected"]
    for number, wrong in enumerate((
        {"fragment": "other"},
        {"keys": ["b"]},
        {"keys": ["a", "b"]},
        {"partition": "q"},
        {"old": {**handle, "meta_info": {"other": 1}}},
        {"new": {**longer, "batch_size": 2}},
        {"new": {**longer, "partition": "q"}},
        {"new": {**longer, "field_index": {"y": longer["field_index"]["y"]}}},
    )):
        assert [*append(f"wrong {number}", **wrong)] == ["append_rejected"]
    catalog.ack_publication("unknown")
    assert append("unknown")["fields"] == ["x", "y"]
    assert append("unknown")["fields"] == ["x", "y"] and [*append("again")] == ["append_rejected"]
    assert catalog.drain()["retired_handles"] == [longer] and [*append("late")] == ["append_rejected"]


@pytest.mark.skipif(bool(os.environ.get("MOONCAKE_MASTER")), reason="the published catalog raises a KeyError")
def test_a_batch_that_only_a_reader_needs_can_be_appended_to(transfer, far, rows):
    rows.put(numbers(1), partition="p", keys=["a"])
    plan = rows.resolve("p", ["a"])
    fragment, before = handle_of(plan)
    rows.put(numbers(2), partition="p", keys=["a"])
    longer = export_dataproto_ref(transfer.append_dataproto_fields(before, more_fields(3), stage="s"))
    far.catalog.publish_append("o", fragment, "p", ["a"], previous_handle=before, handle=longer)
    rows.release_read(plan["read_token"])
    assert read(transfer, rows.resolve("p", ["a"])) == {"x": [2], "y": [3]}


# ---- errors on the way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["call", "answer"])
def test_a_publication_that_is_lost_once_is_repeated(transfer, far, rows, lost):
    far.lost["publish"] = [lost]
    assert rows.put(numbers(1), partition="p", keys=["a"])["fields"] == ["x"]
    assert far.calls == ["publish", "publish", "ack_publication"]
    assert read(transfer, rows.resolve("p", ["a"])) == {"x": [1]}


@pytest.mark.parametrize("lost", ["call", "answer"])
def test_a_publication_that_is_lost_is_made_by_the_next_call(transfer, far, rows, lost):
    far.lost["publish"] = [lost] * 3
    for value in (1, 2):
        with pytest.raises((ConnectionError, RuntimeError)):
            rows.put(numbers(value), partition="p", keys=["a"])
    rows.close()
    assert read(transfer, rows.resolve("p", ["a"])) == {"x": [1]}
    rows.put(numbers(3), partition="p", keys=["a"])
    assert read(transfer, rows.resolve("p", ["a"])) == {"x": [3]}


def test_an_acknowledgement_that_is_lost_is_repeated(far, rows):
    far.lost["ack_publication"] = ["call", "call"]
    rows.put(numbers(1), partition="p", keys=["a"])
    with pytest.raises(RuntimeError):
        rows.close()
    rows.close()
    assert far.calls == ["publish", *["ack_publication"] * 3]


def test_what_could_not_be_removed_is_removed_later(transfer, far, rows, monkeypatch):
    rows.put(numbers(1), partition="p", keys=["a"])
    _, handle = handle_of(far.catalog.resolve("p", ["a"]))
    with monkeypatch.context() as broken:
        broken.setattr(transfer, "cleanup_dataproto", lambda ref: 1 / 0)
        rows.remove("p", ["a"])
        with pytest.raises(RuntimeError):
            rows.drain()
    assert there(transfer, handle)
    # Removed, and not acknowledged: it is removed again, which does no harm.
    far.lost["ack_retired"] = ["call"]
    rows.drain()
    assert not there(transfer, handle) and far.catalog.drain() == {"retired_handles": []}


def test_results_are_given_back_until_it_works(transfer, rows, monkeypatch):
    class Output:
        pass

    given, output = [], Output()

    def give(result):
        given.append(result)
        if len(given) < 4:
            raise OSError("not now")

    monkeypatch.setattr(transfer, "release_result", give)
    rows.attach_results(output, ["one"])
    rows.release_result(output)
    rows.release_result(output)
    assert given == ["one"] * 4
    rows.release_result(output)
    rows.release_result(Output())
    rows.discard_results(["two"], strict=True)
    rows.close()
    assert given == ["one"] * 4 + ["two"]
