"""The stubs say what the module has, and the package keeps to its own types."""

import pathlib
import subprocess
import sys

import mooncrate
from conftest import PATIENCE

PACKAGE = pathlib.Path(mooncrate.__file__).parent


def run(*command, folder):
    # Both keep their caches in the folder they run in.
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False,
        timeout=5 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stubs_fit_the_module(tmp_path):
    # Before Python 3.12 classes have buffers without a method of that name.
    (tmp_path / "allowed").write_text(r"mooncrate\._native\.\w+\.__buffer__")
    allowed = ["--allowlist", "allowed", "--ignore-unused-allowlist"]
    run("mypy.stubtest", *allowed, "mooncrate._native", folder=tmp_path)


def test_the_package_is_typed(tmp_path):
    run("mypy", "--strict", str(PACKAGE), folder=tmp_path)


def test_the_stubs_tell_users_what_they_get(tmp_path):
    (tmp_path / "use.py").write_text(
        "import asyncio\n"
        "from typing import assert_type\n"
        "import mooncrate\n"
        "store = mooncrate.Store(segment_size='1GiB')\n"
        "assert_type(store.get('key'), bytes | None)\n"
        "assert_type(store.get_batch(['key']), list[bytes | None | mooncrate.Error])\n"
        "for key in store.list():\n"
        "    assert_type(key, bytes)\n"
        "view = store.view('key')\n"
        "assert view is not None\n"
        "memoryview(view)\n"
        "store.put('key', view)\n"
        "store.put('key', 'text')  # type: ignore[arg-type]\n"
        "store.get(7)  # type: ignore[arg-type]\n"
        "from mooncrate.paged import Admitted, Geometry, PagedCache, PagedView\n"
        "cache = PagedCache(Geometry(layers=1, kv_heads=1, head_dim=8), 4, layout='hnd')\n"
        "assert_type(cache.allocate('a', [1, 2]), Admitted)\n"
        "assert_type(cache.view('a', 0, 'k'), PagedView)\n"
        "assert_type(cache.stats()['free_blocks'], int)\n"
        "cache.allocate('a', 7)  # type: ignore[arg-type]\n"
        "from mooncrate.nano import NanoKVCache, NotReady, ObjMeta, WritePlan\n"
        "nano = NanoKVCache(1 << 30, backend='host')\n"
        "assert_type(nano.open_for_write('key', 10), WritePlan)\n"
        "assert_type(nano.get_location('key'), ObjMeta | NotReady | None)\n"
        "assert_type(nano.stats()['plans'], int)\n"
        "nano.remove(7)  # type: ignore[arg-type]\n"
        "from mooncrate.ep import Communicator, Received\n"
        "ep = Communicator(hidden=64, experts=8, backend='host')\n"
        "assert_type(ep.dispatch(0, 0, 0, layer=0), Received)\n"
        "assert_type(ep.local_experts, int)\n"
        "ep.dispatch(0, 0, 0)  # type: ignore[call-arg]\n"
        "async def use(store: mooncrate.AsyncStore) -> None:\n"
        "    assert_type(await store.get('key'), bytes | None)\n"
        "    both = await asyncio.gather(store.get('key'), store.size('key'))\n"
        "    assert_type(both, tuple[bytes | None, int | None])\n"
        "    task = asyncio.create_task(store.exists('key'))\n"
        "    assert_type(await asyncio.wait_for(task, 1), bool)\n"
        "    await store.get(7)  # type: ignore[arg-type]\n"
    )
    run("mypy", "--strict", "use.py", folder=tmp_path)
