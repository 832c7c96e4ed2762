"""Everything that callers import or call by name is there."""

import inspect
import subprocess
import sys

import mooncake
import pytest
from conftest import PATIENCE, python
from mooncake import store as module
from mooncake.store import MooncakeDistributedStore

# The methods of the published package: T1 is what inference engines call, T2 the rest of the store, T3 tensors
# and structured objects.
T1 = """
setup setup_dummy close get_hostname put put_parts get batch_get_buffer is_exist batch_is_exist remove_all
register_buffer unregister_buffer put_from batch_put_from batch_get_into batch_put_from_multi_buffers
batch_get_into_multi_buffers batch_get_replica_desc
"""
T2 = """
health_check init_all alloc_from_mem_pool put_batch get_batch get_buffer get_size get_into remove
batch_remove remove_by_regex put_from_with_metadata upsert upsert_parts upsert_batch upsert_from
batch_upsert_from get_into_ranges batch_get_session_start batch_get_into_multi_buffer_ranges
batch_get_session_end batch_put_session_start batch_put_from_multi_buffer_ranges batch_put_session_end
batch_put_session_revoke get_replica_desc batch_replica_clear create_copy_task create_move_task query_task
mount_segment allocate_and_mount_segment unmount_segment unmount_and_free_segment
unmount_local_disk_segment get_offload_rpc_read_count
"""
T3 = """
put_tensor get_tensor batch_put_tensor batch_get_tensor upsert_tensor batch_upsert_tensor pub_tensor
batch_pub_tensor upsert_pub_tensor batch_upsert_pub_tensor put_tensor_from batch_put_tensor_from
upsert_tensor_from batch_upsert_tensor_from get_tensor_into batch_get_tensor_into get_tensor_into_cuda
batch_get_tensor_into_cuda put_tensor_with_tp batch_put_tensor_with_tp pub_tensor_with_tp
batch_pub_tensor_with_tp get_tensor_with_tp batch_get_tensor_with_tp put_tensor_with_tp_from
batch_put_tensor_with_tp_from get_tensor_with_tp_into batch_get_tensor_with_tp_into
put_tensor_with_parallelism upsert_tensor_with_parallelism put_tensor_with_parallelism_from
upsert_tensor_with_parallelism_from batch_put_tensor_with_parallelism
batch_upsert_tensor_with_parallelism batch_put_tensor_with_parallelism_from
batch_upsert_tensor_with_parallelism_from get_tensor_with_parallelism
batch_get_tensor_with_parallelism get_tensor_with_parallelism_into
batch_get_tensor_with_parallelism_into save_tensor_to_safetensor load_tensor_from_safetensor
"""


def test_all_methods_exist():
    names = (T1 + T2 + T3).split()
    assert len(names) == len(set(names))
    missing = [name for name in names if not callable(getattr(MooncakeDistributedStore, name, None))]
    assert not missing
    # Upstream binds one more, `_get_pyclient_capsule`, which hands out parts of its C++; we leave it out. `setup` stands for both of its forms.
    assert len(names) == 97


def test_no_method_pretends():
    store = MooncakeDistributedStore()
    for name in ("put_everything", "async_put", "_get_pyclient_capsule"):
        with pytest.raises(AttributeError):
            getattr(store, name)


def test_module_has_its_names():
    for name in """BufferHandle BufferLease BufferLeaseView BufferPool Descriptor DiskDescriptor
        MemoryDescriptor MooncakeHostMemAllocator ObjectDataType QueryTaskResponse RegisteredBufferLease
        RegisteredBufferLeaseView RegisteredBufferPool ReplicaDescriptor ReplicaStatus ReplicateConfig
        SoftPinAction TaskStatus TaskType bind_to_numa_node get_alloc_func_addr
        get_free_func_addr ParallelAxis TensorParallelism ReadTarget""".split():
        assert hasattr(module, name), name
    assert list(mooncake.__path__)


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("put", ["key", "value", "config"]),
        ("get", ["key"]),
        ("get_batch", ["keys"]),
        ("is_exist", ["key"]),
        ("alloc_from_mem_pool", ["size"]),
        ("put_from", ["key", "buffer_ptr", "size", "config"]),
        ("batch_put_from", ["keys", "buffer_ptrs", "sizes", "config"]),
        ("batch_get_into", ["keys", "buffer_ptrs", "sizes"]),
        ("batch_put_from_multi_buffers", ["keys", "all_buffer_ptrs", "all_sizes", "config"]),
        ("remove", ["key", "force"]),
        ("remove_by_regex", ["regex_pattern", "force"]),
        ("batch_replica_clear", ["keys", "segment_name"]),
        ("create_move_task", ["key", "source", "target"]),
        ("mount_segment", ["path", "size", "offset", "protocol", "location"]),
        ("register_buffer", ["buffer_ptr", "size"]),
        ("setup_dummy", ["mem_pool_size", "local_buffer_size", "server_address"]),
    ],
)
def test_arguments_have_their_names(method, names):
    signature = inspect.signature(getattr(MooncakeDistributedStore, method))
    assert list(signature.parameters)[1:] == names


def test_upstream_is_not_shadowed(tmp_path):
    upstream = tmp_path / "mooncake_transfer_engine-0.3.13.dist-info"
    upstream.mkdir()
    (upstream / "METADATA").write_text("Name: mooncake-transfer-engine\nVersion: 0.3.13\n")
    (upstream / "RECORD").write_text("mooncake/store.so,,\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import mooncake.store"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode != 0
    for word in ("ImportError", "mooncrate-mooncake", "mooncake-transfer-engine", "pip uninstall"):
        assert word in done.stderr


def test_importing_needs_nothing_else():
    # Neither torch nor numpy, which stores of bytes have no use for.
    said = python(
        """
        import sys
        for name in ("torch", "numpy", "msgpack"):
            sys.modules[name] = None
        import mooncake.store, mooncake.async_store, mooncake.mooncake_config, mooncake.buffer_pool
        print(sorted(mooncake.__all__))
        """
    )
    assert said.strip() == "['BufferPool', 'RegisteredBufferPool']"


def test_the_service_starts_under_the_name_of_mooncakes_script():
    from mooncake import mooncake_store_service

    with pytest.raises(SystemExit) as ended:
        mooncake_store_service.sync_main(["--help"])
    assert ended.value.code == 0
