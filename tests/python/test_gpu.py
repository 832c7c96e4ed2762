"""The programs for a real GPU, `gpu_*.py`: each is a test here, skipped by its own words where there is none.

`./dev gpu` runs the same programs where neither pytest nor Rust is.
"""

import pathlib
import subprocess
import sys

import pytest

PROGRAMS = sorted(pathlib.Path(__file__).parent.glob("gpu_*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_on_a_gpu(program):
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=900, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 77:
        pytest.skip(said.splitlines()[-1])
    assert done.returncode == 0, said
