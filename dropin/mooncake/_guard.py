"""One owner of the name `mooncake`.

Two distributions that both install `mooncake/store` overwrite each other's files, and what is imported is
then a mixture. Nobody should find that out by wrong behaviour, so the import says it.
"""

import os
import sys

OURS = "mooncrate-mooncake"


def other_owners() -> list[str]:
    """Installed distributions, other than ours, that own `mooncake/store`.

    By the names of their folders, of which one must have `mooncake` in it: to open the list of files of every
    distribution takes seconds where an engine and all it needs are installed.
    """
    found = set()
    for path in sys.path:
        try:
            entries = os.listdir(path or ".")
        except OSError:
            continue
        for entry in entries:
            name, is_info, _ = entry.partition(".dist-info")
            if is_info and "mooncake" in name and _owns_store(os.path.join(path, entry)):
                found.add(name.rpartition("-")[0].replace("_", "-"))
    return sorted(found - {OURS})


def _owns_store(info: str) -> bool:
    try:
        with open(os.path.join(info, "RECORD"), encoding="utf-8") as files:
            return any(line.startswith("mooncake/store") for line in files)
    except (OSError, UnicodeDecodeError):
        # No list: it is named like one that has it.
        return True


def refuse_to_shadow() -> None:
    """Raises ImportError where another distribution owns the package, too."""
    others = other_owners()
    if others:
        names = ", ".join(others)
        raise ImportError(
            f"{OURS} and {names} both install the package `mooncake`, and only one of them can be "
            f"there; keep Mooncrate with `pip uninstall {' '.join(others)}` and then "
            f"`pip install --force-reinstall {OURS}`, or keep the other with `pip uninstall {OURS}`; "
            "the package `mooncrate-beside` has Mooncrate's store for an environment with the other"
        )
