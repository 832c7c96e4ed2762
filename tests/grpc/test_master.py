"""The gRPC door as a client in another language sees it: every call, every state, the errors, and real
bytes that go to and come from a node over documented frames."""

import json
import time
import uuid

import grpc
import pytest
import preview_pb2 as preview
from conftest import PATIENCE
from frames import Node, Refused, crc32c, crc64, seal
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from google.protobuf import descriptor_pool, message_factory
from mooncrate.v1 import master_pb2 as pb
from mooncrate.v1 import master_pb2_grpc

SERVICE = "mooncrate.v1.MasterService"
BUFFER, REPLICA = pb.BufHandle, pb.ReplicaInfo
STALE, CORRUPT = 0x50, 0x54


class Master:
    """The stub, with a deadline on every call and a note of what was answered."""

    def __init__(self, channel, token=None, tls=None):
        self.stub = master_pb2_grpc.MasterServiceStub(channel)
        self.answered = set()
        # What nodes are shown.
        self.access = {"token": token, "tls": tls}
        self.metadata = [("authorization", f"Bearer {token}")] if token else []

    def __getattr__(self, name):
        def call(request):
            answer = getattr(self.stub, name)(
                request, timeout=PATIENCE, metadata=self.metadata
            )
            self.answered.add(name)
            assert answer.HasField("status_code")
            assert answer.HasField("detail") == (answer.status_code != pb.OK), answer
            return answer

        return call

    def put_start(self, key, length, replicas=1, **more):
        config = pb.ReplicateConfig(replica_num=replicas, **more.pop("config", {}))
        return self.PutStart(
            pb.PutStartRequest(key=key, value_length=length, config=config, **more)
        )

    def put_end(self, key, **more):
        return self.PutEnd(pb.PutEndRequest(key=key, **more))

    def find(self, key, **more):
        return self.GetReplicaList(pb.GetReplicaListRequest(key=key, **more))

    def remove(self, key, **more):
        return self.Remove(pb.RemoveRequest(key=key, **more))

    def mount(self, name, size, buffer=0):
        return self.MountSegment(
            pb.MountSegmentRequest(buffer=buffer, size=size, segment_name=name)
        )

    def unmount(self, name):
        return self.UnmountSegment(pb.UnmountSegmentRequest(segment_name=name))

    def store(self, key, value):
        plan = self.put_start(key, len(value))
        assert plan.status_code == pb.OK, plan
        send(plan, value, **self.access)
        ended = self.put_end(key, seals=[seal(value)])
        assert ended.status_code == pb.OK, ended
        return plan


def send(plan, value, **access):
    """Writes and publishes a value of one stripe at every replica of its plan."""
    for replica in plan.replica_list:
        (handle,) = replica.handles
        with Node(handle.data_address, **access) as node:
            node.write(plan, handle, value)
            node.signal(plan, handle, seal(value))


def fetch(found, **access):
    (handle,) = found.replica_list[0].handles
    with Node(handle.data_address, **access) as node:
        return node.read(handle)


@pytest.fixture(scope="session")
def master(channel):
    return Master(channel)


def eventually(what, so):
    until = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def test_checksums_are_the_documented_ones():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc64(b"123456789") == 0xAE8B14860A799888


@pytest.mark.parametrize("length", [0, 1, 5000, (1 << 20) + 321])
def test_bytes_go_in_and_come_out(server, master, key, length):
    value = bytes(n * 31 % 251 for n in range(length))
    plan = master.put_start(key, length, slice_lengths=[length // 2, length - length // 2])
    assert plan.status_code == pb.OK, plan
    (replica,) = plan.replica_list
    (handle,) = replica.handles
    assert replica.status == REPLICA.INITIALIZED and handle.status == BUFFER.INIT
    assert handle.value_bytes == length and handle.size >= length
    assert handle.node == server.started["node_name"]
    assert handle.data_address == server.started["data"]

    found = master.find(key)
    assert found.status_code == pb.NOT_FOUND and found.detail.advice == pb.TREAT_AS_MISS
    assert [r.status for r in found.replica_list] == [REPLICA.PROCESSING]

    send(plan, value)
    assert master.find(key).status_code == pb.NOT_FOUND, "not before PutEnd"
    ended = master.put_end(key, put_token=plan.put_token, seals=[seal(value)])
    assert ended.status_code == pb.OK, ended
    assert [r.status for r in ended.replica_list] == [REPLICA.COMPLETE]

    found = master.find(key)
    assert found.status_code == pb.OK and found.value_length == length
    assert [r.status for r in found.replica_list] == [REPLICA.COMPLETE]
    assert found.replica_list[0].handles[0].status == BUFFER.COMPLETE
    assert fetch(found) == value
    # A reader that shares no code with this one sees the same bytes.
    assert server.cli("get", key) == value

    removed = master.remove(key)
    assert removed.status_code == pb.OK, removed
    assert [r.status for r in removed.replica_list] == [REPLICA.REMOVED]
    assert removed.replica_list[0].handles[0].status == BUFFER.UNREGISTERED
    assert master.find(key).status_code == pb.NOT_FOUND
    assert not master.find(key).replica_list
    with pytest.raises(Refused) as refused:
        fetch(found)
    assert refused.value.code == STALE


def test_a_value_of_another_client_is_found_and_read(server, master, key):
    value = bytes(range(256)) * 40
    server.cli("put", key, data=value)
    assert fetch(master.find(key)) == value


def test_keys_need_not_be_text(master):
    odd = b"\xff\x00" + uuid.uuid4().bytes
    config = pb.ReplicateConfig(replica_num=1)
    ask = pb.PutStartRequest(key="", key_bytes=odd, value_length=3, config=config)
    plan = master.PutStart(ask)
    send(plan, b"odd")
    assert master.put_end("", key_bytes=odd, seals=[seal(b"odd")]).status_code == pb.OK
    assert fetch(master.find("", key_bytes=odd)) == b"odd"
    both = master.find("text", key_bytes=odd)
    assert both.status_code == pb.INVALID_ARGUMENT and "not both" in both.detail.message


def test_a_published_value_never_changes(master, key):
    master.store(key, b"first")
    again = master.put_start(key, 6)
    assert again.status_code == pb.EXISTS and again.detail.advice == pb.TREAT_AS_DONE
    plan = master.put_start(key, 6, config={"upsert": True})
    assert plan.status_code == pb.OK, plan
    assert fetch(master.find(key)) == b"first", "until the new one is complete"
    send(plan, b"second")
    assert master.put_end(key, seals=[seal(b"second")]).status_code == pb.OK
    assert fetch(master.find(key)) == b"second"


def test_a_put_is_ended_once_by_its_own_token(master, key):
    plan = master.put_start(key, 4)
    double = master.put_start(key, 4)
    assert double.status_code == pb.IN_PROGRESS
    assert double.detail.advice == pb.RETRY and double.detail.after_ms > 0
    stranger = master.put_end(key, put_token=plan.put_token ^ 1, seals=[seal(b"good")])
    assert stranger.status_code == pb.NO_SUCH_PUT
    send(plan, b"good")
    for seals in ([], [1, 2], [0] * 40):
        refused = master.put_end(key, seals=seals)
        assert refused.status_code == pb.BAD_SEALS, refused
    assert "`seals`" in master.put_end(key).detail.message
    assert master.put_end(key, seals=[seal(b"good")]).status_code == pb.OK
    assert master.put_end(key, seals=[seal(b"good")]).status_code == pb.NO_SUCH_PUT
    assert fetch(master.find(key)) == b"good"


def test_bytes_that_do_not_match_their_seal_are_not_published(master, key):
    plan = master.put_start(key, 4)
    handle = plan.replica_list[0].handles[0]
    with Node(handle.data_address) as node:
        node.write(plan, handle, b"evil")
        with pytest.raises(Refused) as refused:
            node.signal(plan, handle, seal(b"good"))
    assert refused.value.code == CORRUPT
    # Even a client that goes on regardless makes nothing readable.
    master.put_end(key, seals=[seal(b"good")])
    found = master.find(key)
    if found.status_code == pb.OK:
        with pytest.raises(Refused):
            fetch(found)
    assert master.remove(key).status_code in (pb.OK, pb.NOT_FOUND)


def test_a_put_that_is_given_up_frees_its_key(master, key):
    plan = master.put_start(key, 4)
    revoked = master.put_end(key, revoke=True)
    assert revoked.status_code == pb.OK
    assert [r.status for r in revoked.replica_list] == [REPLICA.FAILED]
    assert revoked.replica_list[0].handles[0].status == BUFFER.FAILED
    with pytest.raises(Refused):
        send(plan, b"late")
    master.store(key, b"next")
    assert fetch(master.find(key)) == b"next"


def test_requests_that_make_no_sense_say_why(master, key):
    for answer, code, says in [
        (master.put_start(key, 10, slice_lengths=[4, 5]), pb.INVALID_ARGUMENT, "add up to 9"),
        (master.put_start(key, -1), pb.INVALID_ARGUMENT, "negative"),
        (master.put_start("", 1), pb.INVALID_KEY, "empty"),
        (master.put_start("k" * 8193, 1), pb.INVALID_KEY, "8193"),
        (master.put_start(key, 1 << 40), pb.TOO_LARGE, "limit"),
        (master.put_start(key, 100 << 20), pb.TOO_LARGE, "segment"),
        (master.put_start(key, 1, replicas=0), pb.BAD_REPLICAS, "0 replicas"),
        (master.put_start(key, 1, replicas=9), pb.BAD_REPLICAS, "9 replicas"),
        (master.put_start(key, 1, replicas=1 << 40), pb.BAD_REPLICAS, "between 1 and 8"),
        (master.put_start(key, 1, replicas=2), pb.TOO_FEW_NODES, "1 node"),
        (master.put_end(key, seals=[1]), pb.NO_SUCH_PUT, "put_token"),
        (master.find(""), pb.INVALID_KEY, "empty"),
        (master.find(key), pb.NOT_FOUND, "no such key"),
        (master.remove(key), pb.NOT_FOUND, "no such key"),
    ]:
        assert answer.status_code == code, answer
        assert says in answer.detail.message, answer.detail.message
    # Nothing of all that has left a put open.
    plan = master.put_start(key, 1, replicas=2, config={"best_effort": True})
    assert plan.status_code == pb.OK and len(plan.replica_list) == 1
    assert master.put_end(key, revoke=True).status_code == pb.OK


def test_a_lease_holds_a_removal_up(master, key):
    master.store(key, b"leased")
    found = master.find(key, lease_ms=10_000)
    assert found.lease_ms > 0
    kept = master.remove(key)
    assert kept.status_code == pb.LEASED and kept.detail.after_ms > 0
    assert not kept.replica_list
    assert master.remove(key, force=True).status_code == pb.OK
    assert master.find(key).status_code == pb.NOT_FOUND


def test_a_client_of_the_preview_understands_every_answer(channel, master, key):
    def call(name, request, answer):
        method = channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            # Raises where a field that the preview requires is missing.
            response_deserializer=answer.FromString,
        )
        return method(request, timeout=PATIENCE)

    config = preview.ReplicateConfig(replica_num=1, media_replica_num={1: 1})
    start = preview.PutStartRequest(key=key, value_length=3, config=config, slice_lengths=[1, 2])
    plan = call("PutStart", start, preview.Replicas)
    assert plan.status_code == 0
    assert plan.replica_list[0].status == preview.ReplicaInfo.INITIALIZED
    assert plan.replica_list[0].handles[0].size >= 3
    # It knows nothing of seals, so it cannot publish what nobody could verify.
    ended = call("PutEnd", preview.Key(key=key), preview.Outcome)
    assert ended.status_code == pb.BAD_SEALS
    found = call("GetReplicaList", preview.Key(key=key), preview.Replicas)
    assert found.status_code == pb.NOT_FOUND
    assert found.replica_list[0].status == preview.ReplicaInfo.PROCESSING
    assert master.put_end(key, revoke=True).status_code == pb.OK
    master.store(key, b"abc")
    found = call("GetReplicaList", preview.Key(key=key), preview.Replicas)
    assert found.status_code == 0
    assert found.replica_list[0].status == preview.ReplicaInfo.COMPLETE
    assert call("Remove", preview.Key(key=key), preview.Outcome).status_code == 0
    assert call("Remove", preview.Key(key=key), preview.Outcome).status_code == pb.NOT_FOUND


def test_segments_are_mounted_and_unmounted_by_name(server, master, key):
    name, size = server.started["node_name"], server.started["segment_bytes"]
    for answer, code, says in [
        (master.mount(f"{name}/0", size), pb.EXISTS, "already"),
        (master.mount(name, size), pb.EXISTS, "already"),
        (master.mount(f"{name}/0", size + 4096), pb.BAD_SEGMENT, "overlap"),
        (master.mount(f"{name}/1", size + 1), pb.INVALID_ARGUMENT, "pages"),
        (master.mount("nobody/0", size), pb.UNKNOWN_NODE, "nobody"),
        (master.mount(f"{name}/zero", size), pb.INVALID_ARGUMENT, "<node>/<index>"),
        (master.mount(f"{name}/0", size, buffer=0x7F00_0000_0000), pb.INVALID_ARGUMENT, "buffer"),
        (master.unmount("nobody/0"), pb.UNKNOWN_NODE, "nobody"),
        (master.unmount(f"{name}/1"), pb.UNKNOWN_SEGMENT, "segment 1"),
        (master.unmount(""), pb.INVALID_ARGUMENT, "<node>/<index>"),
    ]:
        assert answer.status_code == code, answer
        assert says in answer.detail.message, answer.detail.message

    def capacity():
        return json.loads(server.cli("stat", "--json"))["capacity_bytes"]

    assert capacity() == size
    assert master.mount(f"{name}/1", size).status_code == pb.OK
    assert capacity() == 2 * size, "the node has really more memory"
    assert master.mount(f"{name}/1", size).detail.advice == pb.TREAT_AS_DONE
    master.store(key, b"there")
    for index in (0, 1):
        assert master.unmount(f"{name}/{index}").status_code == pb.OK
    assert capacity() == 0
    assert master.find(key).status_code == pb.NOT_FOUND
    # The node runs on without memory, and gets some again.
    eventually("mounted again", lambda: master.mount(name, size).status_code == pb.OK)
    assert master.find(key).status_code == pb.NOT_FOUND
    master.store(key, b"again")
    assert fetch(master.find(key)) == b"again"


def test_health_is_told(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as error:
        stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=PATIENCE)
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_client_without_the_proto_file_finds_and_calls_the_service(channel, key):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    pool = descriptor_pool.DescriptorPool(database)
    service = pool.FindServiceByName(SERVICE)
    method = service.methods_by_name["GetReplicaList"]
    ask = message_factory.GetMessageClass(method.input_type)
    told = message_factory.GetMessageClass(method.output_type)
    call = channel.unary_unary(
        f"/{SERVICE}/GetReplicaList",
        request_serializer=ask.SerializeToString,
        response_deserializer=told.FromString,
    )
    assert call(ask(key=key), timeout=PATIENCE).status_code == pb.NOT_FOUND


def test_limits_are_kept(channel, master):
    with pytest.raises(grpc.RpcError) as error:
        master.find("k" * (9 << 20))
    assert error.value.code() == grpc.StatusCode.OUT_OF_RANGE
    with pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(f"/{SERVICE}/Frobnicate")(b"", timeout=PATIENCE)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_every_call_of_the_service_was_answered(master):
    """Last in the file: what the tests above have called is everything there is."""
    known = {method.name for method in pb.DESCRIPTOR.services_by_name["MasterService"].methods}
    assert master.answered == known and len(known) == 6
