"""Every Python program of the README runs exactly as it stands there, and so does that of the package's page.

A program begins with a comment that names it. `cargo xtask tidy` refuses a program whose name is not a key of PRINTS.
The Rust program of the README runs as a doctest of the crate `mooncrate`.
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import PATIENCE, python

ROOT = pathlib.Path(__file__).parent.parent.parent

# What each program prints. Of two ranks one prints.
PRINTS = {
    "store.py": ["[0. 1. 2. 3.] None"],
    "disk.py": ["True True", "True"],
    "paged.py": ["Admitted(blocks=3, cached_tokens=0)", "Admitted(blocks=3, cached_tokens=32) [0, 1, 3]"],
    "nano.py": ["0 b'kv pages'"],
    "ep.py": ["[3 3] True"],
}
# The argument that the first line of a program names for machines with a GPU. The expert exchange also wants its arrays
# there: tests/python/test_ep_cuda.py.
GPU = {"paged.py": ('memory="host"', 'memory="cuda"'), "nano.py": ('backend="host"', 'backend="cuda"')}


def programs():
    """The Python programs of the README by their names."""
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return {program.removeprefix("# ").split(":")[0]: program for program in found}


def prints(folder, name, program, **environment):
    """Runs a program from a file, as a reader does; what it printed, line by line."""
    file = folder / name
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", file], capture_output=True, timeout=PATIENCE, check=False, text=True,
        cwd=folder, env={**os.environ, "TMPDIR": str(folder), **environment},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_the_readme_has_a_program_for_each_system():
    assert list(programs()) == list(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_the_program_of_the_readme_runs(name, tmp_path):
    assert prints(tmp_path, name, programs()[name]) == PRINTS[name]


@pytest.mark.parametrize("name", PRINTS)
def test_the_program_says_what_it_prints(name):
    program = programs()[name]
    assert [line for line in PRINTS[name] if line not in program] == []


@pytest.mark.parametrize("name", GPU)
def test_the_program_runs_on_a_gpu_with_the_argument_that_it_names(name, tmp_path, emulator):
    before, after = GPU[name]
    program = programs()[name]
    head, body = program.split("\n", 1)
    assert after in head
    assert body.count(before) == 1
    assert prints(tmp_path, name, body.replace(before, after), LD_LIBRARY_PATH=emulator) == PRINTS[name]


def test_the_program_of_the_package_runs():
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "crates/python/README.md").read_text(), re.DOTALL)
    said = python(program)
    assert said.startswith("[[ 0.  1.  2.  3.]\n [ 4.  5.  6.  7.]\n [ 8.  9. 10. 11.]]\n")
