"""`mooncake_master --root_fs_dir=DIR`: clients that name no directory learn it from their master. Runs on both packages."""

import os

import pytest
from conftest import MIB
from processes import THEIRS, Cluster, environment, until

COUNT = 160
SEGMENT = 64 * MIB


def value(n):
    return n.to_bytes(4, "little") * (MIB // 4)


def put_once(store, keys):
    """Each value is stored once: one that was lost is not stored again."""
    for n, key in enumerate(keys):
        until(f"{key} finds room", lambda key=key, n=n: store.put(key, value(n)) == 0)


def missing(store, keys):
    """Those that a batch does not bring; what it brings is right."""
    lost = []
    for start in range(0, len(keys), 16):
        found = store.get_batch(keys[start : start + 16])
        for n, got in enumerate(found, start):
            assert got in (b"", value(n))
            lost += [] if got else [keys[n]]
    return lost


@pytest.fixture
def plain(monkeypatch):
    """Stores without any setting, of whoever runs the tests either."""
    for name in set(os.environ) - set(environment(".")):
        monkeypatch.delenv(name)
    # The published package offloads and promotes in its heartbeats, and in large buckets.
    monkeypatch.setenv("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "1")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES", str(8 * MIB))


def test_no_value_is_lost_where_memory_is_too_small(tmp_path, make_store, plain):
    """544 of 1,000 were: the directory was told to nobody."""
    folder = tmp_path / "root"
    folder.mkdir(mode=0o700)
    with Cluster(tmp_path, "--default_kv_lease_ttl=100", f"--root_fs_dir={folder}") as cluster:
        store = make_store(SEGMENT, 64 * MIB, master=cluster)
        keys = [f"root/{n}" for n in range(COUNT)]
        put_once(store, keys)
        # A disk that is busy is asked again; what is gone stays gone.
        until("none is missing", lambda: not missing(store, keys))
        assert os.listdir(folder)
        store.close()


@pytest.mark.skipif(bool(THEIRS), reason="about the folders of the drop-in")
def test_everybody_has_a_folder_of_its_own(tmp_path, make_store, plain):
    folder = tmp_path / "root"
    folder.mkdir(mode=0o700)
    flags = ("--default_kv_lease_ttl=100", f"--root_fs_dir={folder}", "--cluster_id=c")
    with Cluster(tmp_path, *flags) as cluster:
        first, second = (make_store(16 * MIB, 16 * MIB, master=cluster) for _ in range(2))
        client = cluster.lend()
        names = sorted(os.listdir(folder / "c"))
        ends = [f"client-{client.port}", "store-1", "store-2"]
        assert [name.partition(f"{os.uname().nodename}-")[2] for name in names] == ends
        # One that names its own directory has that, and no other.
        own = tmp_path / "own"
        third = make_store(16 * MIB, 16 * MIB, master=cluster, enable_ssd_offload=True, ssd_offload_path=str(own))
        assert os.listdir(own) and len(os.listdir(folder / "c")) == 3
        # Whoever comes next takes the place of one that left.
        second.close()
        again = make_store(16 * MIB, 16 * MIB, master=cluster)
        assert len(os.listdir(folder / "c")) == 3
        for store in (first, third, again):
            store.close()


@pytest.mark.skipif(bool(THEIRS), reason="about the folders of the drop-in")
def test_a_directory_that_cannot_be_had_is_no_reason_to_lend_nothing(tmp_path, make_store, plain, caplog):
    """The master's machine has it, this one does not."""
    taken = tmp_path / "file"
    taken.write_bytes(b"")
    with Cluster(tmp_path, f"--root_fs_dir={taken}") as cluster:
        store = make_store(16 * MIB, 16 * MIB, master=cluster)
        assert store.put("key", b"value") == 0 and store.get("key") == b"value"
        said = "without the disk that the master names"
        assert said in caplog.text and said in cluster.lend().log
        store.close()


def test_the_environment_can_say_no(tmp_path, make_store, plain, monkeypatch):
    if THEIRS:
        pytest.skip("about the folders of the drop-in")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "false")
    folder = tmp_path / "root"
    with Cluster(tmp_path, f"--root_fs_dir={folder}") as cluster:
        make_store(16 * MIB, 16 * MIB, master=cluster).close()
        assert not folder.exists()


def media(store, key):
    """Of each replica, whether it is in memory."""
    return [one.is_memory_replica() for one in store.get_replica_desc(key)]


def test_what_is_read_again_and_again_comes_into_memory(tmp_path, make_store, plain, monkeypatch):
    """It stayed on the disk: a crowd that was looked at once took all the memory, one after the other."""
    folder = tmp_path / "root"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(folder))
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(256 * MIB))
    flags = (
        "--enable_offload=true",
        "--offload_on_evict=true",
        "--promotion_on_hit=true",
        "--promotion_admission_threshold=1",
        f"--root_fs_dir={folder}",
        "--default_kv_lease_ttl=100",
    )
    with Cluster(tmp_path, *flags) as cluster:
        more = {"enable_ssd_offload": True, "ssd_offload_path": str(folder)}
        store = make_store(32 * MIB, 64 * MIB, master=cluster, **more)
        keys = [f"again/{n}" for n in range(96)]
        put_once(store, keys)
        # Everything is looked at once, which counts.
        (key, *_) = until("some are on the disk only", lambda: [
            key for key in keys if not any(media(store, key))
        ])
        wanted = value(keys.index(key))

        def read():
            # A disk that is busy is asked again.
            return until(f"{key} is read", lambda: store.get(key)) == wanted

        assert all(read() for _ in range(8))
        until("it is in memory", lambda: True in media(store, key))
        assert store.get(key) == wanted
        store.close()
