"""One owner of the name `mooncake`.

Two distributions that both install `mooncake/store` overwrite each other's files, and what is imported is
then a mixture. Nobody should find that out by wrong behaviour, so the import says it.
"""

from importlib import metadata

OURS = "mooncrate-mooncake"
UPSTREAM = (
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-non-cuda",
    "mooncake-transfer-engine-npu",
    "mooncake-transfer-engine-efa",
)


def other_owners() -> list[str]:
    """Installed distributions, other than ours, that own `mooncake/store`."""
    found = []
    for name in UPSTREAM:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found.append(name)
    for name in metadata.packages_distributions().get("mooncake", []):
        if name in found or name == OURS:
            continue
        files = metadata.distribution(name).files or []
        if any(str(file).startswith("mooncake/store") for file in files):
            found.append(name)
    return found


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
