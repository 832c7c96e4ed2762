"""The wheels in a bare environment, installed without a network, running every Python program of the README."""

import email
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

from conftest import MACHINE, ROOT, package

sys.path.append(str(ROOT / "tests/python"))
import readme  # noqa: E402

PATIENCE = 120
SIZE_MAX = 15_000_000
# The README's programs import it; nothing else may be needed.
NUMPY = re.search(r"^numpy==.*", (ROOT / "tests/python/requirements.txt").read_text(), re.MULTILINE)[0]


def wheel():
    return package(f"mooncrate-*-manylinux*_{MACHINE}.whl")


@pytest.fixture(scope="module")
def bin(tmp_path_factory, work):
    """The programs of an environment that has the wheels and numpy, and never asked a package index for ours."""
    ours = [wheel(), package("mooncrate_mooncake-*-none-any.whl")]
    run(sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "-d", work / "numpy", NUMPY)
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, with_pip=True)
    run(folder / "bin/pip", "install", "-q", "--no-index", "--find-links", work / "numpy", *ours, "numpy")
    return folder / "bin"


def run(*command, **options):
    """Runs a command without the variables of whoever runs the tests; what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MOONCRATE_", "LD_"))}
    environment = {**kept, **options.pop("environment", {})}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", readme.PRINTS)
def test_a_program_of_the_readme_runs_with_the_wheel(name, bin, tmp_path):
    (tmp_path / name).write_text(readme.programs()[name])
    printed = run(bin / "python", "-W", "error", name, cwd=tmp_path, environment={"TMPDIR": str(tmp_path)})
    assert printed.splitlines() == readme.PRINTS[name]


def test_pip_brings_the_command_with_its_server(bin, tmp_path):
    assert run(bin / "mooncrate", "--version").startswith("mooncrate ")
    at = ["--master", f"unix:{tmp_path}/master"]
    command = [bin / "mooncrate", "serve", *at, "--admin", "off", "--data", "off", "--unix", tmp_path / "node"]
    server = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert server.stdout.readline() == "Mooncrate is ready.\n"
        run(bin / "mooncrate", "put", "greeting", "--value", "hello, moon", *at)
        assert run(bin / "mooncrate", "get", "greeting", *at) == "hello, moon"
        server.terminate()
        assert server.wait(PATIENCE) == 0
    finally:
        server.kill()
        server.wait()


def test_the_drop_in_stores_under_the_names_of_mooncake(bin, tmp_path):
    program = "from mooncake.store import MooncakeDistributedStore; print(MooncakeDistributedStore.__name__)"
    assert run(bin / "python", "-c", program, cwd=tmp_path) == "MooncakeDistributedStore\n"
    assert "usage" in run(bin / "mooncake_master", "--help").lower()


def test_wheels_hold_what_they_should_and_are_small():
    names = {
        "mooncrate": wheel(),
        "mooncrate_mooncake": package("mooncrate_mooncake-*-none-any.whl"),
        "mooncrate_beside": package("mooncrate_beside-*-none-any.whl"),
    }
    modules = {
        "mooncrate": {"mooncrate"},
        "mooncrate_mooncake": {"mooncake", "mooncake_vllm_adaptor.py", "distributed_object_store.py"},
        "mooncrate_beside": {"mooncrate_mooncake", "mooncrate_beside.py", "mooncrate_beside.pth"},
    }
    for name, file in names.items():
        assert file.stat().st_size < SIZE_MAX, file
        with zipfile.ZipFile(file) as archive:
            paths = archive.namelist()
            (metadata,) = [path for path in paths if path.endswith(".dist-info/METADATA")]
            about = email.message_from_bytes(archive.read(metadata))
        top = {path.split("/")[0] for path in paths}
        assert top == modules[name] | {metadata.split("/")[0]}, f"{file}: {top}"
        assert any(path.endswith("/licenses/LICENSE") for path in paths), f"{file}: no license"
        assert about["License-Expression"] == "Apache-2.0"
        assert not [path for path in paths if "__pycache__" in path or path.endswith((".pyc", ".map"))]


@pytest.mark.parametrize("name", ["mooncrate", "mooncrate_mooncake", "mooncrate_beside"])
def test_a_source_archive_is_complete(name, tmp_path):
    file = package(f"{name}-[0-9]*.tar.gz")
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    assert (root / "LICENSE").exists() or list(root.rglob("LICENSE"))
    if name != "mooncrate":
        return  # Its wheel was built from it.
    # Everything that the build scripts read, and a lock file that fits the manifests.
    assert (root / "crates/grpc/proto/mooncrate/v1/master.proto").exists()
    run("cargo", "metadata", "--format-version=1", "--locked", "--offline", "--manifest-path", root / "crates/python/Cargo.toml")
