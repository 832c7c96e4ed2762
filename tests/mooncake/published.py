"""Fetches the package that the drop-in stands in for, so that tests can be held against it: `published.py FOLDER`.

Into a folder of its own, with the libraries that it loads and a bare machine does not have; nothing of the system
changes. `./dev test python` does this, and runs there what both packages must show.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benches" / "peers"))

from install import Gather  # noqa: E402


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    gather = Gather(folder, ".".join(map(str, sys.version_info[:2])))
    gather.peer("Mooncake")
    return 1 if gather.missing else 0


if __name__ == "__main__":
    sys.exit(main())
