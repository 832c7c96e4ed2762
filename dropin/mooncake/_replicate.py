"""`ReplicateConfig`: the wishes of a put, and what becomes of them in the store.

A config is read when a call is made and may be changed and used again by its caller, so nothing here
keeps a reference to one.
"""

from collections.abc import Callable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from ._codes import DFS_SERVICE_UNAVAILABLE, INVALID_PARAMS
from ._enums import ObjectDataType, SoftPinAction

SOFT_PIN_MS_DEFAULT = 30 * 60 * 1000
SOFT_PIN_MS_MAX = 24 * 60 * 60 * 1000
# The store keeps at most this many copies; more are a wish that cannot be met.
REPLICAS_MAX = 8


def _count(name: str, value: Any) -> int:
    number = index(value)
    if isinstance(value, bool) or number < 0:
        raise TypeError(f"{name} is a number of copies, at least 0, not {value!r}")
    return number


def _time_ms(name: str, value: Any) -> int | None:
    if value is None:
        return None
    number = index(value)
    if isinstance(value, bool) or not 0 <= number < 2**64:
        raise TypeError(f"{name} is None or milliseconds below 2**64, not {value!r}")
    return number


def _truth(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text, not {value!r}")
    return value


def _texts(name: str, value: object) -> list[str]:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} is a list of texts, not {value!r}")
    return [_text(name, one) for one in value]  # type: ignore[attr-defined]


def _texts_or_none(name: str, value: object) -> list[str] | None:
    return None if value is None else _texts(name, value)


def _of(kind: type) -> Callable[[str, object], Any]:
    def check(name: str, value: object) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{name} is a {kind.__name__}, not {value!r}")
        return value

    return check


_FIELDS: dict[str, tuple[Any, Callable[[str, object], Any]]] = {
    "replica_num": (1, _count),
    "nof_replica_num": (0, _count),
    "dfs_replica_num": (0, _count),
    "soft_pin_action": (SoftPinAction.PRESERVE, _of(SoftPinAction)),
    "soft_pin_ttl_ms": (None, _time_ms),
    "with_soft_pin": (False, _truth),
    "with_hard_pin": (False, _truth),
    "preferred_segments": ([], _texts),
    "preferred_segment": ("", _text),
    "preferred_nof_segments": ([], _texts),
    "prefer_alloc_in_same_node": (False, _truth),
    "data_type": (ObjectDataType.UNKNOWN, _of(ObjectDataType)),
    "group_ids": (None, _texts_or_none),
}


class _Field:
    """An attribute whose value is judged when it is set."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.check = _FIELDS[name][1]

    def __get__(self, config: "ReplicateConfig | None", _: type | None = None) -> Any:
        # On the class: callers ask `hasattr(ReplicateConfig, "group_ids")`.
        return self if config is None else config._values[self.name]

    def __set__(self, config: "ReplicateConfig", value: object) -> None:
        config._values[self.name] = self.check(self.name, value)


class ReplicateConfig:
    """What a put wishes: copies, pins, places, a group."""

    if TYPE_CHECKING:
        replica_num: int
        nof_replica_num: int
        dfs_replica_num: int
        soft_pin_action: SoftPinAction
        soft_pin_ttl_ms: int | None
        with_soft_pin: bool
        with_hard_pin: bool
        preferred_segments: list[str]
        preferred_segment: str
        preferred_nof_segments: list[str]
        prefer_alloc_in_same_node: bool
        data_type: ObjectDataType
        group_ids: list[str] | None
    else:
        # Nothing else can be set: a wish with a typing error would be ignored.
        __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, Any] = {
            name: list(default) if isinstance(default, list) else default
            for name, (default, _) in _FIELDS.items()
        }

    def __str__(self) -> str:
        fields = ", ".join(f"{name}: {self._shown(name)}" for name in _FIELDS)
        return f"ReplicateConfig: {{ {fields} }}"

    def _shown(self, name: str) -> str:
        value = self._values[name]
        return value.name if isinstance(value, (SoftPinAction, ObjectDataType)) else str(value)

    __repr__ = __str__


for _name in _FIELDS:
    setattr(ReplicateConfig, _name, _Field(_name))


# Of calls that name none. Nobody changes it.
DEFAULT = ReplicateConfig()


def checked(config: object) -> ReplicateConfig:
    """The config of a call; anything else is the caller's mistake."""
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"config is a ReplicateConfig, not {config!r}; leave it out for defaults")
    return config


def refusal(config: ReplicateConfig, keys: int, *, same_node: bool = False) -> int:
    """The code of a config that cannot be met, or 0."""
    values = config._values
    if values["nof_replica_num"]:
        return INVALID_PARAMS
    if values["dfs_replica_num"]:
        return DFS_SERVICE_UNAVAILABLE
    if values["replica_num"] == 0:
        return INVALID_PARAMS
    if values["prefer_alloc_in_same_node"] and not same_node:
        return INVALID_PARAMS
    time_ms = values["soft_pin_ttl_ms"]
    if time_ms is not None and (time_ms > SOFT_PIN_MS_MAX or not pins_softly(config)):
        return INVALID_PARAMS
    groups = values["group_ids"]
    return INVALID_PARAMS if groups is not None and len(groups) != keys else 0


def pins_softly(config: ReplicateConfig) -> bool:
    """Whether a put with it pins its object softly."""
    values = config._values
    return values["soft_pin_action"] is SoftPinAction.ENABLE or bool(values["with_soft_pin"])


def wishes(
    config: ReplicateConfig, preferred: Callable[[Sequence[str]], list[int]], *, upsert: bool
) -> dict[str, Any]:
    """What the store is asked for; `preferred` knows segments by their names."""
    values = config._values
    wish: dict[str, Any] = {
        "replicas": min(values["replica_num"], REPLICAS_MAX),
        "hard_pin": values["with_hard_pin"],
        "upsert": upsert,
    }
    if pins_softly(config):
        time_ms = values["soft_pin_ttl_ms"]
        wish["soft_pin_ms"] = SOFT_PIN_MS_DEFAULT if time_ms is None else time_ms
    names = [*values["preferred_segments"], values["preferred_segment"]]
    names = [name for name in names if name]
    if names:
        wish["preferred"] = preferred(names)
    return wish
