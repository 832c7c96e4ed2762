"""Mooncrate's store beside Mooncake itself: `mooncake.store` is ours, everything else of `mooncake` stays theirs.

    import mooncrate_beside
    mooncrate_beside.replace_store()            # before anything imports mooncake.store

or, for programs that nobody wants to change, and for all their children: MOONCRATE_REPLACE_STORE=1.

What must stay true: nothing is replaced unless it was asked for, and a program never has two stores under one
name: where `mooncake.store` is imported already, the call says so and changes nothing. Importing this costs
next to nothing; the store is loaded when somebody imports it.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["is_replaced", "replace_store"]

NAME = "mooncake.store"
# A module that only our own package `mooncake` has: its store is ours already.
DROP_IN = "mooncake._guard"


class _Loader(Loader):
    """Fills the module with what our store has. The module keeps a name and a spec of its own."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from mooncrate_mooncake import store

        for name, value in vars(store).items():
            if not name.startswith("__") or name in ("__all__", "__doc__", "__file__"):
                setattr(module, name, value)


class _Finder(MetaPathFinder):
    """Knows one module, and is asked before all others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME or DROP_IN in sys.modules:
            return None
        return ModuleSpec(fullname, _Loader(), origin="mooncrate_mooncake.store")


def is_replaced() -> bool:
    """Whether `mooncake.store` is ours, or will be when it is imported."""
    known = sys.modules.get(NAME)
    if known is None:
        return any(isinstance(one, _Finder) for one in sys.meta_path)
    return DROP_IN in sys.modules or isinstance(getattr(known.__spec__, "loader", None), _Loader)


def replace_store() -> None:
    """From now on `import mooncake.store` is our store. More than once is fine.

    Raises RuntimeError where the other one is imported already: who has it would go on with it.
    """
    if is_replaced():
        return
    known = sys.modules.get(NAME)
    if known is not None:
        where = getattr(known, "__file__", "an unknown place")
        raise RuntimeError(
            f"{NAME} is imported already, from {where}: call replace_store() before that, or set "
            "MOONCRATE_REPLACE_STORE=1 for the process"
        )
    sys.meta_path.insert(0, _Finder())
