"""Our store beside the rest of Mooncake: `mooncake.store` is replaced, by a call or by a variable, and nothing else.

With a package of another owner everywhere; with the published one where it is installed:

    MOONCRATE_BINARY=target/debug/mooncrate venv/bin/python -m pytest tests/mooncake/test_beside.py
"""

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import zipfile
from importlib import metadata

import pytest
from conftest import PATIENCE

ROOT = pathlib.Path(__file__).parents[2]
BESIDE = ROOT / "dropin" / "beside"
OURS = (BESIDE, ROOT / "crates" / "python" / "python")
PUBLISHED = [
    name
    for name in ("", "-cuda13", "-non-cuda", "-npu", "-efa")
    if any(metadata.distributions(name=f"mooncake-transfer-engine{name}"))
]
needs_published = pytest.mark.skipif(
    not PUBLISHED, reason="the published package mooncake-transfer-engine is not installed here"
)


@pytest.fixture
def other(tmp_path):
    """A package `mooncake` of another owner, as the published one is built."""
    folder = tmp_path / "site" / "mooncake"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from pkgutil import extend_path\n"
        "from mooncake.buffer_pool import BufferPool\n"
        "__path__ = extend_path(__path__, __name__)\n"
    )
    (folder / "buffer_pool.py").write_text("from mooncake.store import BufferPool\n")
    (folder / "store.py").write_text("OWNER = 'other'\nBufferPool = MooncakeDistributedStore = object\n")
    (folder / "engine.py").write_text("OWNER = 'other'\n")
    return folder.parent


def run(code, *arguments, before=(), **variables):
    """Runs a program in another Python; its exit code, what it printed, and its errors."""
    kept = {name: value for name, value in os.environ.items() if name != "MOONCRATE_REPLACE_STORE"}
    path = os.pathsep.join(map(str, (*before, *OURS)))
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**kept, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


def said(code, *arguments, **how):
    status, out, errors = run(code, *arguments, **how)
    assert status == 0, errors
    return out


OWNERS = """
    import mooncake.store, mooncake.engine, mooncake
    from mooncake import store
    assert store is mooncake.store and store.__name__ == "mooncake.store"
    assert mooncake.BufferPool is store.BufferPool
    import inspect
    print(getattr(store, "OWNER", inspect.getmodule(store.BufferPool).__name__), mooncake.engine.OWNER)
"""


def test_nothing_is_replaced_unasked(other):
    assert said(OWNERS, before=[other]) == "other other"
    assert said("import mooncrate_beside\n" + textwrap.dedent(OWNERS), before=[other]) == "other other"


def test_a_call_replaces_the_store_alone(other):
    code = "import mooncrate_beside\nmooncrate_beside.replace_store()\n" * 2
    assert said(code + textwrap.dedent(OWNERS), before=[other]) == "mooncrate_mooncake._pool other"


def test_the_whole_store_is_there(other):
    code = """
        import mooncrate_beside
        assert not mooncrate_beside.is_replaced()
        mooncrate_beside.replace_store()
        assert mooncrate_beside.is_replaced()
        import mooncake.store, mooncrate_mooncake.store as ours
        assert mooncrate_beside.is_replaced()
        assert mooncake.store is not ours and mooncake.store.__all__ == ours.__all__
        for name in dir(ours):
            if not name.startswith("__"):
                assert getattr(mooncake.store, name) is getattr(ours, name), name
        print(mooncake.store.__file__ == ours.__file__, mooncake.store.__spec__.name)
    """
    assert said(code, before=[other]) == "True mooncake.store"


def test_who_comes_too_late_is_told(other):
    code = """
        import mooncake.store, mooncrate_beside
        try:
            mooncrate_beside.replace_store()
        except RuntimeError as error:
            print(error)
        print(mooncake.store.OWNER, mooncrate_beside.is_replaced())
    """
    *words, last = said(code, before=[other]).splitlines()
    assert last == "other False"
    for word in ("imported already", "MOONCRATE_REPLACE_STORE=1", str(other)):
        assert word in " ".join(words)


OURS_POOL = "mooncrate_mooncake._pool"


@pytest.mark.parametrize("value, owner", [("1", OURS_POOL), ("True", OURS_POOL), ("0", "other"), ("", "other")])
def test_a_variable_replaces_it_in_a_process_and_its_children(other, value, owner):
    # What Python does with the file when it starts, where the distribution is installed.
    start = f"import site; site.addsitedir({str(BESIDE)!r})\n"
    code = start + textwrap.dedent(OWNERS)
    assert said(code, before=[other], MOONCRATE_REPLACE_STORE=value) == f"{owner} other"
    lines = (BESIDE / "mooncrate_beside.pth").read_text().splitlines()
    assert len(lines) == 1 and lines[0].startswith("import os;")


@pytest.mark.skipif(bool(PUBLISHED), reason="the drop-in refuses to live beside the published package")
def test_the_drop_in_itself_needs_no_replacing():
    code = """
        import mooncrate_beside
        mooncrate_beside.replace_store()
        import mooncake.store
        mooncrate_beside.replace_store()
        print(mooncake.store.MooncakeDistributedStore.__module__, mooncrate_beside.is_replaced())
    """
    assert said(code, before=[ROOT / "dropin"]) == "mooncake.store True"


def test_importing_it_loads_no_store(other):
    code = """
        import sys, mooncrate_beside
        mooncrate_beside.replace_store()
        print([name for name in sys.modules if name.startswith(("mooncake", "mooncrate"))])
    """
    assert said(code, before=[other]) == "['mooncrate_beside']"


def test_the_distribution_owns_nothing_of_the_others(other, tmp_path):
    """Installed as pip does it, from a wheel: the variable is enough, and no file of `mooncake` is ours."""
    setuptools = pytest.importorskip("setuptools", reason="setuptools is not installed")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip(f"setuptools {setuptools.__version__} is too old to build the package")
    # A copy: a build leaves files in its folder.
    source, site = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(BESIDE, source, ignore=shutil.ignore_patterns("__pycache__", "build"))
    build = "from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {build}", str(tmp_path)],
        cwd=source, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        names = wheel.namelist()
        wheel.extractall(site)
    assert {"mooncrate_beside.py", "mooncrate_beside.pth", "mooncrate_mooncake/store.py"} <= {*names}
    assert not [name for name in names if name.startswith("mooncake/")]
    start = f"import site, sys; site.addsitedir({str(site)!r})\n"
    apart = {"PYTHONPATH": os.pathsep.join(map(str, (other, OURS[1]))), "MOONCRATE_REPLACE_STORE": "1"}
    assert said(start + textwrap.dedent(OWNERS), **apart) == "mooncrate_mooncake._pool other"


# ---- with the published package --------------------------------------------------------------------------

SETUP = """
    import ctypes, sys
    import mooncrate_beside
    mooncrate_beside.replace_store()
    import mooncake, mooncake.engine
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig
    store = MooncakeDistributedStore()
    arguments = ("localhost", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1])
    assert store.setup(*arguments) == 0
"""


@needs_published
def test_the_engine_of_the_published_package_works_in_the_same_process(master):
    code = """
        assert mooncake.engine.__file__.endswith(".so") and "site-packages" in mooncake.engine.__file__
        from mooncake.engine import TransferEngine
        engines = [TransferEngine(), TransferEngine()]
        for engine in engines:
            assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        value = bytes(range(256)) * 4096
        rooms = [ctypes.create_string_buffer(value, len(value)), ctypes.create_string_buffer(len(value))]
        for engine, room in zip(engines, rooms):
            assert engine.register_memory(ctypes.addressof(room), len(value)) == 0
        # From the store into memory that the engine moves, and what it moved back into the store.
        assert store.put("value", value) == 0
        rooms[0].raw = bytes(len(value))
        assert store.get_into("value", ctypes.addressof(rooms[0]), len(value)) == len(value)
        target = f"127.0.0.1:{engines[1].get_rpc_port()}"
        addresses = map(ctypes.addressof, rooms)
        assert engines[0].transfer_sync_write(target, *addresses, len(value)) == 0
        assert rooms[1].raw == value
        assert store.put_from("moved", ctypes.addressof(rooms[1]), len(value)) == 0
        assert store.get("moved") == value
        with mooncake.BufferPool(store).acquire(100) as lease:
            assert lease.size == 100
        assert store.close() == 0
        print("ok")
    """
    assert said(textwrap.dedent(SETUP) + textwrap.dedent(code), master.address) == "ok"


@needs_published
def test_other_modules_of_the_published_package_run_on_it(master):
    code = """
        import asyncio, json
        from mooncake.async_store import MooncakeDistributedStoreAsync
        import mooncake.mooncake_config
        assert "site-packages" in mooncake.async_store.__file__
        async def use():
            both = MooncakeDistributedStoreAsync()
            assert both.setup(*arguments) == 0
            assert await both.async_put("async", b"value") == 0
            assert await both.async_get("async") == b"value"
            both.close()
        asyncio.run(use())
        try:
            import numpy
            from mooncake.structured_object_store import MooncakeBundleTransfer
        except ImportError as error:
            print("ok without structured objects:", error)
        else:
            transfer = MooncakeBundleTransfer(store, key_prefix="beside")
            ref = transfer.put({"tokens": numpy.arange(24).reshape(6, 4), "names": [*"abcdef"]}, type="dict")
            read = transfer.get(ref, type="dict", rows=[5, 0])
            assert read["tokens"].tolist() == [[20, 21, 22, 23], [0, 1, 2, 3]] and read["names"] == ["f", "a"]
            print("ok")
        store.close()
    """
    assert said(textwrap.dedent(SETUP) + textwrap.dedent(code), master.address).startswith("ok")
