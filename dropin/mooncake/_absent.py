"""Names of the published package that nothing of ours stands behind. Programs import them, mostly beside what they
use; so they can be imported, and whoever uses one is told in words that it is not there.

What must stay true: a module that another distribution adds to the package wins over ours; a name that the
published package does not have is no name here, either.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

#: What modules are for, by the beginnings of their names.
PURPOSES = {
    "mooncake.ep": "expert parallelism over RDMA",
    "mooncake.mooncake_ep": "expert parallelism over RDMA",
    "mooncake.mooncake_elastic": "expert parallelism over RDMA",
    "mooncake.pg": "its process groups",
    "mooncake.reshard": "weights that change their layout",
    "mooncake.shared_segment": "segments that ranks share",
    "mooncake.fabric_allocator": "allocators of GPU fabrics",
    "mooncake.mooncake_connector": "a connector of vLLM over the transfer engine",
    "mooncake.vllm_v1_proxy": "a proxy for its connector of vLLM",
    "mooncake.transfer_engine": "the transfer engine",
    "mooncake.cli_bench": "the transfer engine",
    "mooncake.mooncake_ssd": "disks over NVMe-oF",
    "mooncake.spdk": "disks over NVMe-oF",
}


class Absent:
    """Stands for a class, a function or a value that is not there: every use raises NotImplementedError."""

    def __init__(self, module: str, name: str) -> None:
        self.__module__, self.__qualname__ = module, name

    def __repr__(self) -> str:
        return f"<{self.__module__}.{self.__qualname__}, which Mooncrate does not have>"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        full = f"{self.__module__}.{self.__qualname__}"
        found = [what for start, what in PURPOSES.items() if full.startswith(start)]
        if found:
            words = f"is part of Mooncake's code for {found[0]}, which Mooncrate does not have; "
            words += "where it is needed, mooncrate-beside keeps Mooncake's package beside our store"
        else:
            words = f"is an inner part of Mooncake's {self.__module__}; Mooncrate's is built otherwise, "
            words += "and has what callers are meant to use"
        raise NotImplementedError(f"{full} {words} (docs/mooncake.md)")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Whoever only looks at it is told that it has no such thing.
            raise AttributeError(name)
        self._refuse()

    def __instancecheck__(self, _: object) -> bool:
        return False

    def __subclasscheck__(self, _: object) -> bool:
        return False

    __call__ = __mro_entries__ = __iter__ = __len__ = __getitem__ = __contains__ = _refuse
    __bool__ = __int__ = __index__ = __float__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __or__ = __ror__ = _refuse


@functools.cache
def names() -> dict[str, dict[str, str]]:
    """Of each module the names that ours lacks, each with `module:name` where it is from, `module:` for a whole
    module, or nothing if it is made there."""
    from ._published import NAMES

    found: dict[str, dict[str, str]] = {}
    for line in NAMES.strip("\n").replace("\n    ", " ").splitlines():
        if not line.startswith(" "):
            found[line] = {}
            continue
        where, *given = line.split()
        for one in given:
            name, _, alias = one.partition(">")
            source = {"own": "", "import": f"{name}:"}.get(where, f"{where}:{name}")
            # The last module that was named is the one.
            found[[*found][-1]][alias or name] = source
    return found


def find(module: str, name: str) -> Any:
    """What a module has under a name of the published one; AttributeError if that is none."""
    known = names().get(module, {})
    if name == "__all__" and known:
        return [one for one in known if not one.startswith("_")]
    if name not in known:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    where, _, inner = known[name].partition(":")
    if not where:
        made: Any = Absent(module, name)
        if name.endswith("Error"):
            # It may stand in an `except`.
            made = type(name, (RuntimeError,), {"__module__": module})
    elif inner:
        made = getattr(importlib.import_module(where), inner)
    else:
        made = importlib.import_module(where)
    setattr(sys.modules[module], name, made)
    return made


def getter(module: str) -> Callable[[str], Any]:
    """`__getattr__` of a module of ours that has a twin in the published package."""
    return functools.partial(find, module)


class Finder:
    """Finds the modules of the published package that nobody has here."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("mooncake.") or name not in names():
            return None
        package = any(other.startswith(f"{name}.") for other in names())
        return ModuleSpec(name, Finder, is_package=package)  # type: ignore[arg-type]

    @staticmethod
    def create_module(_: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        module.__getattr__ = getter(module.__name__)  # type: ignore[method-assign]


def offer() -> None:
    """From now on the modules can be imported; real ones come first."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)  # type: ignore[arg-type]
