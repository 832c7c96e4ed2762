"""What memory cannot hold is on the disks of stores, and comes back: by the flags of `mooncake_master`."""

import os

import pytest
from conftest import MIB
from mooncake.store import MooncakeDistributedStore
from processes import Cluster, until

COUNT = 32


def value(n):
    return n.to_bytes(4, "little") * (MIB // 4)


def filled(store):
    """The keys of twice as many values as memory has room for, when all of them are there."""
    keys = [f"offload/{n}" for n in range(COUNT)]

    def all_are_there():
        # A put that finds no room says so: victims are on their way. A disk that stands still for seconds, on
        # a machine that is very busy, lets values go; they are put again.
        codes = [store.put(key, value(n)) for n, key in enumerate(keys)]
        assert set(codes) <= {0, -200}
        return store.batch_is_exist(keys) == [1] * COUNT

    until("all are stored", all_are_there)
    return keys


def read(store, keys, n):
    """Reads a value until it comes: a disk may be busy, and then there is nothing, never something else."""

    def comes():
        got = store.get(keys[n])
        assert got in (b"", value(n))
        return got

    until(f"{keys[n]} is read", comes)


def media(store, key):
    """Of each replica, whether it is in memory; and it is one of the two."""
    found = store.get_replica_desc(key)
    for one in found:
        assert one.is_memory_replica() != one.is_local_disk_replica()
        assert not one.is_disk_replica()
    return [one.is_memory_replica() for one in found]


@pytest.fixture
def set_up(make_store, tmp_path, monkeypatch):
    """A store with 16 MiB of memory and a disk, named by its arguments or by the environment."""

    def make(cluster, by):
        folder = tmp_path / f"disk-{by}"
        folder.mkdir(mode=0o700)
        monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(256 * MIB))
        # The published package offloads and promotes in its heartbeats, and in large buckets.
        monkeypatch.setenv("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "1")
        monkeypatch.setenv("MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES", str(8 * MIB))
        if by == "environment":
            monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(folder))
            return make_store(16 * MIB, 64 * MIB, master=cluster), folder
        more = {"enable_ssd_offload": True, "ssd_offload_path": str(folder)}
        return make_store(16 * MIB, 64 * MIB, master=cluster, **more), folder

    return make


@pytest.mark.parametrize(
    "flags, by",
    [
        (["--enable_offload=true", "--offload_on_evict=true"], "arguments"),
        (["--enable_offload=true"], "environment"),
        (["--root_fs_dir=/srv/shared"], "arguments"),
    ],
)
def test_what_memory_cannot_hold_is_on_disk_and_comes_back(tmp_path, set_up, flags, by):
    promotion = ["--promotion_on_hit=true", "--promotion_admission_threshold=2"]
    with Cluster(tmp_path, "--default_kv_lease_ttl=100", *flags, *promotion) as cluster:
        store, folder = set_up(cluster, by)
        keys = filled(store)
        assert os.listdir(folder)
        on_disk = until("some are on the disk", lambda: [
            key for key in keys if False in media(store, key)
        ])
        for n in range(COUNT):
            read(store, keys, n)
        # What is read again and again is in memory again, and what was there says that it is not.
        key = until("one is on the disk only", lambda: next(
            (key for key in on_disk if media(store, key) == [False]), None
        ))
        n = keys.index(key)

        def is_back():
            read(store, keys, n)
            return media(store, key)[:1] == [True]

        until("it is in memory again", is_back)
        store.close()


def test_stores_may_share_a_directory(tmp_path, make_store):
    """Engines give all of their processes the same one; a directory belongs to one of them."""
    folder = tmp_path / "disk"
    with Cluster(tmp_path, "--enable_offload=true") as cluster:
        more = {"enable_ssd_offload": True, "ssd_offload_path": str(folder)}
        stores = [make_store(16 * MIB, master=cluster, **more) for _ in range(3)]
        assert {"store-2", "store-3"} <= set(os.listdir(folder))
        stores[1].close()
        again = make_store(16 * MIB, master=cluster, **more)
        assert not (folder / "store-4").exists()
        assert again.put("shared", b"value") == 0 and stores[0].get("shared") == b"value"
        for store in (*stores, again):
            store.close()


def test_a_disk_without_a_size_is_as_large_as_its_file_system_allows(tmp_path, make_store, monkeypatch):
    # 2 TB is what the published package takes for a limit, on whatever disk.
    from mooncake._disk import disk

    monkeypatch.delenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", raising=False)
    folder = tmp_path / "not" / "there" / "yet"
    there = os.statvfs(tmp_path)
    size = int(disk(True, str(folder), {}).rpartition("=")[2])
    assert 0 < size <= min(there.f_frsize * there.f_blocks, 2 * 10**12)
    assert make_store(16 * MIB, enable_ssd_offload=True, ssd_offload_path=str(folder))
    assert disk(True, str(folder), {"MOONCAKE_BUCKET_MAX_TOTAL_SIZE": "4096"}).endswith("=4096")


def test_the_environment_can_say_no(tmp_path, make_store, monkeypatch):
    folder = tmp_path / "disk"
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(folder))
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "false")
    make_store(16 * MIB)
    assert not folder.exists()
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "true")
    make_store(16 * MIB)
    assert folder.exists()


@pytest.mark.parametrize(
    "flags, ours",
    [
        ([], []),
        (["--enable_offload=true"], ["--offload", "eager"]),
        (["--enable_offload=true", "--offload_on_evict=true"], ["--offload", "evict"]),
        (["--enable_offload=false"], ["--offload", "off"]),
        (["--root_fs_dir=/x"], ["--offload", "eager"]),
        (["--enable_offload=false", "--root_fs_dir=/x"], ["--offload", "eager"]),
        (["--promotion_on_hit=true"], ["--promote-reads", "2"]),
        (["--promotion_on_hit", "--promotion_admission_threshold=7"], ["--promote-reads", "7"]),
        (["--promotion_on_hit", "--promotion_admission_threshold=0"], ["--promote-reads", "1"]),
        (["--promotion_on_hit=false"], ["--no-promote"]),
    ],
)
def test_what_the_flags_of_the_master_become(flags, ours):
    from mooncake._master import parser, translate

    values = parser().parse(flags)
    command, _ = translate(values)
    known = ("--offload", "--promote-reads", "--no-promote")
    there = [one for one in command if one in known]
    assert there == [one for one in ours if one.startswith("--")]
    for flag, setting in zip(ours, ours[1:], strict=False):
        assert setting.startswith("--") or command[command.index(flag) + 1] == setting
    assert not values.warnings
    roots = [command[at + 1] for at, one in enumerate(command) if one == "--mooncake-root"]
    assert roots == ["/x/mooncake_cluster"] * any("root_fs_dir" in flag for flag in flags)


@pytest.mark.parametrize(
    "flag, needs",
    [
        ("--offload_on_evict=true", "--enable_offload"),
        ("--promotion_admission_threshold=3", "--promotion_on_hit"),
    ],
)
def test_a_flag_that_says_nothing_alone_says_so(flag, needs):
    from mooncake._master import parser, translate

    values = parser().parse([flag])
    translate(values)
    (warning,) = values.warnings
    assert warning.startswith(flag.partition("=")[0]) and needs in warning


def test_a_store_without_memory_has_no_disk(tmp_path, master):
    folder = tmp_path / "disk"
    store = MooncakeDistributedStore()
    rest = ("P2PHANDSHAKE", 0, MIB, "tcp", "", master.address)
    assert store.setup("localhost", *rest, None, True, str(folder)) == 0
    assert not folder.exists()
    store.close()
