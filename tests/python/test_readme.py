"""Every Python program of the README runs exactly as it stands there, and so does that of the package's page.

A program begins with a comment that names it. `cargo xtask tidy` refuses a program whose name is not in `readme.py`.
The Rust program of the README runs as a doctest of the crate `mooncrate`.
"""

import os
import re
import subprocess
import sys

import pytest

from conftest import PATIENCE, python
from readme import PRINTS, ROOT, commands, missing, programs

# The argument that the first line of a program names for machines with a GPU. The expert exchange also wants its arrays
# there: tests/python/test_ep_cuda.py.
GPU = {"paged.py": ('memory="host"', 'memory="cuda"'), "nano.py": ('backend="host"', 'backend="cuda"')}


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


def test_the_readme_has_commands_with_what_they_print():
    first, *rest = commands()
    assert first[0].startswith("./dev up")
    assert first[1][0] == "Mooncrate is ready."
    assert any(command.startswith("./dev test") for command, _ in rest)
    assert any("hello, moon" in shown for _, shown in rest)
    assert missing(["a  b", "c"], "x\na b, and more\n") == ["c"]


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
