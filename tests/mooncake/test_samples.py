"""The sample programs, as a user runs them: real processes, a real master, every byte verified."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "examples" / "python"
# Generous: the machine may be busy with other things. No test passes or fails by a time.
PATIENCE = 120
# Not the modules that programs import.
PROGRAMS = sorted(
    str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*.py") if "__main__" in path.read_text()
)
ROLES = {
    "prefill_decode.py": ["--segment-size", "32MiB"],
    "mooncake/stress_cluster_benchmark.py": ["--global-segment-size", "32", "--num-workers", "3"],
}


def start(program, *arguments, **environment):
    """Starts a sample; it finds the packages as this process does."""
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    known.pop("ROLE", None) if "ROLE" not in environment else None
    return subprocess.Popen(
        [sys.executable, SAMPLES / program, *arguments],
        env=known,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """What became of a sample: its status, and what it said."""
    try:
        said, complained = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    return process.returncode, said, complained


def run(program, *arguments, **environment):
    return ended(start(program, *arguments, **environment))


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_sample_explains_itself(program):
    code, said, complained = run(program, "--help")
    assert (code, complained) == (0, "")
    assert "--" in said


@pytest.mark.parametrize(
    "program", ["provider.py", "mooncake/distributed_object_store_provider.py"]
)
def test_the_provider_passes_with_a_master(master, program):
    code, said, complained = run(program, MASTER_SERVER=master.address)
    assert code == 0, said + complained
    assert said.endswith("all steps passed\n")


def test_the_provider_passes_without_a_server():
    environment = {"MASTER_SERVER": ""}
    code, said, complained = run("provider.py", **environment)
    assert code == 0, said + complained


@pytest.mark.parametrize("program", ROLES)
def test_decode_reads_what_prefill_stored(master, program):
    size = ["--value-length", "100000", "--max-requests", "50", *ROLES[program]]
    prefill = start(program, *size, ROLE="prefill", MASTER_SERVER=master.address)
    decode = start(program, *size, ROLE="decode", MASTER_SERVER=master.address)
    for process, words in ((decode, ", 0 wrong"), (prefill, "MB/s")):
        code, said, complained = ended(process)
        assert (code, complained) == (0, ""), said + complained
        assert words in said


@pytest.mark.parametrize("program", ROLES)
def test_a_decode_that_waits_in_vain_says_so(master, program):
    size = ["--patience", "0.5", "--max-requests", "1", "--value-length", "7", *ROLES[program]]
    code, _, complained = run(program, *size, ROLE="decode", MASTER_SERVER=master.address)
    assert code == 1
    assert "did not come within 0.5 s" in complained


@pytest.mark.parametrize("program", ROLES)
def test_a_role_is_needed(program):
    code, _, complained = run(program)
    assert code == 2
    assert "ROLE=prefill" in complained


def test_the_program_of_the_page_on_tensors(master):
    pytest.importorskip("torch", reason="torch is not installed; ./dev test --torch installs it")
    page = (SAMPLES.parents[1] / "docs" / "tensors.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    assert "127.0.0.1:50051" in program
    names = {}
    exec(program.replace("127.0.0.1:50051", master.address), names)
    try:
        store, target = names["store"], names["ReadTarget"]
        assert store.get_tensor_with_parallelism("k", target("full", names["four"])).shape == (4, 8)
        assert store.get_tensor_with_parallelism("k", target("shard", names["four"])).shape == (
            4,
            2,
        )
    finally:
        names["store"].remove_all(force=True)
        names["store"].close()
