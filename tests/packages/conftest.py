"""Where the packages are. Each test installs what `./dev package` built, and is skipped, with the reason, where that is absent."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
PACKAGES = TARGET / "packages"
MACHINE = os.uname().machine


def package(pattern):
    """The one package of this name, for this machine."""
    found = sorted(PACKAGES.glob(pattern))
    if not found:
        pytest.skip(f"there is no {pattern} in {PACKAGES}; `./dev package` builds it")
    (file,) = found
    return file


@pytest.fixture(scope="session")
def work():
    """A folder for what is large and may stay: file systems, downloads."""
    folder = TARGET / "package-work" / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
