"""A short crash hunt, and that it sees what it looks for."""

import ctypes
import pathlib
import subprocess
import sys
import threading

import pytest

from conftest import PATIENCE
from crash_hunt import Target

HUNT = pathlib.Path(__file__).parent / "crash_hunt.py"


def hunted(*arguments):
    done = subprocess.run(
        [sys.executable, HUNT, *arguments],
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("target", ["crash_calls:TARGET", "crash_mooncake:TARGET"])
def test_random_calls_crash_and_hang_nothing(target):
    code, said = hunted("--calls", "3000", "--seed", "4", "--target", target)
    assert code == 0 and "0 crashes, 0 hangs, 0 wrong" in said, said


def broken(act):
    """A target with one call, which goes wrong."""
    return Target(
        name="broken",
        begin=lambda world: [object()],
        calls={object: {"act": (lambda thing: act(), lambda chance, world: ((), {}))}},
        keep=lambda found: False,
        is_wrong=lambda name, arguments, found: "of another key" if found == "wrong" else None,
    )


CRASHES = broken(lambda: ctypes.string_at(0))
HANGS = broken(lambda: threading.Event().wait())
LIES = broken(lambda: "wrong")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CRASHES", "1 crashes, 0 hangs, 0 wrong"),
        ("HANGS", "0 crashes, 1 hangs, 0 wrong"),
        ("LIES", "0 crashes, 0 hangs, 10 wrong"),
    ],
)
def test_it_sees_what_it_looks_for(name, words):
    code, said = hunted(
        "--calls", "10", "--seed", "1", "--patience", "5", "--target", f"test_crash_hunt:{name}"
    )
    assert code == 1 and words in said and "repeat it with:" in said, said
