"""`DataProtoCatalog`: which rows there are, and in which stored batch each of their fields lies.

    row     a key of a partition: a tag, and for each field a place
    place   a fragment and a row of it
    fragment   one stored batch, known by its handle and named by the key of its first manifest

Nothing is stored here, and nothing is removed: whoever calls does that, for handles that an answer names as
retired, and acknowledges it. What must stay true: a fragment that was published is retired once, when no row and
no reader needs it any more, and named until it was acknowledged; a call that is refused has changed nothing. The
one who owns a catalog makes its calls one after the other.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._dataproto import MooncakeDataProtoRef
from ._handles import export_ref, import_ref

Handle = dict[str, Any]
Answer = dict[str, Any]
Place = tuple[str, int]
NOTHING: tuple[str, ...] = ()


def one_name(value: Any, what: str) -> str:
    """A text that is not empty; ValueError otherwise."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what}: a text that is not empty is needed, not {value!r}")
    return value


def names_of(values: Any, what: str) -> tuple[str, ...]:
    """Texts, some and each once; ValueError otherwise."""
    if isinstance(values, str):
        raise ValueError(f"{what}: several texts are needed, not the one text {values!r}")
    found = tuple(one_name(value, what) for value in values)
    if not found:
        raise ValueError(f"{what}: at least one is needed")
    if len({*found}) < len(found):
        raise ValueError(f"{what}: each at most once, not {found}")
    return found


def tags_of(tags: Sequence[Mapping[str, Any]] | None, count: int) -> list[dict[str, Any]] | None:
    """A tag for each key, as copies; None: nothing is said about tags."""
    if tags is None:
        return None
    if len(tags) != count:
        raise ValueError(f"{len(tags)} tags do not fit {count} keys")
    for tag in tags:
        if not isinstance(tag, Mapping):
            raise TypeError(f"a tag is a dict, not {tag!r}")
    return [copy.deepcopy(dict(tag)) for tag in tags]


def as_stored(handle: Mapping[str, Any]) -> tuple[MooncakeDataProtoRef, Handle]:
    """The ref in a handle, and the handle in the one form in which two of them can be compared."""
    ref = import_ref(handle)
    return ref, export_ref(ref)


class Row:
    """A key of a partition."""

    __slots__ = ("places", "tag")

    def __init__(self) -> None:
        self.tag: dict[str, Any] = {}
        self.places: dict[str, Place] = {}


class Fragment:
    """A stored batch, as far as rows lie in it."""

    __slots__ = ("handle", "managed", "places", "readers")

    def __init__(self, handle: Handle, managed: bool) -> None:
        self.handle = handle
        # Whether it is retired when nobody needs it; others belong to whoever has stored them.
        self.managed = managed
        # Places of rows in it, and reads under way; it is needed while there is one.
        self.places = 0
        self.readers = 0


# The catalog has a method `list`, and could not name these.
Names = list[str]
Rows = list[Row]


class DataProtoCatalog:
    """Rows and fields by name, in batches that were stored and do not change."""

    def __init__(self) -> None:
        self._partitions: dict[str, dict[str, Row]] = {}
        self._fragments: dict[str, Fragment] = {}
        # Named in every answer until they are acknowledged.
        self._retired: dict[str, Handle] = {}
        # What was answered to a publication, until its caller has said that it knows.
        self._answered: dict[str, Answer] = {}
        self._reads: dict[int, Names] = {}
        self._last_read = 0
        self._drained = False

    # ---- writers

    def update(
        self,
        partition: str,
        keys: Sequence[str],
        *,
        tags: Sequence[Mapping[str, Any]] | None = None,
        handle: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Adds tags, or the fields of a batch, or both; the batch stays its owner's."""
        return self._update(partition, keys, tags, handle, managed=False)

    def publish(
        self,
        operation_id: str,
        partition: str,
        keys: Sequence[str],
        *,
        tags: Sequence[Mapping[str, Any]] | None = None,
        handle: Mapping[str, Any] | None = None,
    ) -> Answer:
        """The same for a batch that is retired when nobody needs it. Repeated, it gives the same answer."""
        if (known := self._known(operation_id)) is not None:
            return known
        answer = self._update(partition, keys, tags, handle, managed=handle is not None)
        return self._remember(operation_id, answer)

    def publish_append(
        self,
        operation_id: str,
        fragment_id: str,
        partition: str,
        keys: Sequence[str],
        *,
        previous_handle: Mapping[str, Any],
        handle: Mapping[str, Any],
    ) -> Answer:
        """Fields that were appended to a batch: its new handle takes the place of the one before.

        Where that is not the one that is known here, the answer says so, `append_rejected`, and nothing
        changes.
        """
        if (known := self._known(operation_id)) is not None:
            return known
        if self._drained:
            return self._remember(operation_id, {"append_rejected": "the catalog was drained"})
        fragment_id = one_name(fragment_id, "fragment_id")
        partition, keys = one_name(partition, "partition"), names_of(keys, "keys")
        before, after = as_stored(previous_handle), as_stored(handle)
        why = self._flaw(fragment_id, partition, keys, before, after)
        if why:
            return self._remember(operation_id, {"append_rejected": why})
        new = [name for name in after[0].field_index if name not in before[0].field_index]
        self._fragments[fragment_id].handle = after[1]
        rows = self._partitions[partition]
        for number, key in enumerate(keys):
            for name in new:
                self._place(rows[key], name, (fragment_id, number))
        return self._remember(operation_id, self._told(partition, keys))

    def ack_publication(self, operation_id: str) -> None:
        """Its caller has the answer: it will not be repeated."""
        self._answered.pop(one_name(operation_id, "operation_id"), None)

    def _known(self, operation_id: str) -> Answer | None:
        return copy.deepcopy(self._answered.get(one_name(operation_id, "operation_id")))

    def _remember(self, operation_id: str, answer: Answer) -> Answer:
        self._answered[operation_id] = copy.deepcopy(answer)
        return answer

    def _update(
        self,
        partition: str,
        keys: Sequence[str],
        tags: Sequence[Mapping[str, Any]] | None,
        handle: Mapping[str, Any] | None,
        managed: bool,
    ) -> Answer:
        if self._drained:
            raise RuntimeError("the catalog was drained, and takes nothing more")
        partition, keys = one_name(partition, "partition"), names_of(keys, "keys")
        new_tags = tags_of(tags, len(keys))
        if new_tags is None and handle is None:
            raise ValueError("tags or the handle of a batch are needed")
        fragment_id, fields = "", NOTHING
        if handle is not None:
            fragment_id, fields = self._take_in(handle, len(keys), managed)
        rows = self._partitions.setdefault(partition, {})
        for number, key in enumerate(keys):
            row = rows.setdefault(key, Row())
            if new_tags is not None:
                row.tag.update(new_tags[number])
            for name in fields:
                self._place(row, name, (fragment_id, number))
        return self._told(partition, keys)

    def _take_in(
        self, handle: Mapping[str, Any], count: int, managed: bool
    ) -> tuple[str, tuple[str, ...]]:
        """Knows the batch of a handle from now on; its name here, and its fields."""
        ref, stored = as_stored(handle)
        if len(ref.stage_refs) != 1:
            raise ValueError(f"a batch of one stage is needed, not of {len(ref.stage_refs)}")
        [stage] = ref.stage_refs.values()
        name = one_name(stage.manifest_key, "manifest_key")
        if ref.batch_size != count:
            raise ValueError(f"a batch of {ref.batch_size} rows does not fit {count} keys")
        fields = names_of(ref.field_index, "field names")
        known = self._fragments.get(name)
        if known is not None and known.handle != stored:
            raise ValueError(f"{name!r} is known here as another batch")
        if known is not None and known.managed != managed:
            raise ValueError(f"{name!r}: either published or not, and known as the other")
        if name in self._retired:
            raise ValueError(f"{name!r} was retired, and is about to be removed")
        if known is None:
            self._fragments[name] = Fragment(stored, managed)
        return name, fields

    def _flaw(
        self,
        fragment_id: str,
        partition: str,
        keys: tuple[str, ...],
        before: tuple[MooncakeDataProtoRef, Handle],
        after: tuple[MooncakeDataProtoRef, Handle],
    ) -> str:
        """Why an append cannot be published; empty if it can."""
        known, (old, stored), new = self._fragments.get(fragment_id), before, after[0]
        if known is None or not known.managed or known.handle != stored:
            return f"{fragment_id!r} has changed since it was looked up"
        same = ("batch_size", "partition", "_storage_group_id")
        if any(getattr(old, name) != getattr(new, name) for name in same):
            return f"{fragment_id!r}: rows, partition and storage group of a batch stay as they are"
        if new.partition != partition or new.batch_size != len(keys):
            return f"{fragment_id!r} is not a batch of these keys of {partition!r}"
        if any(new.field_index.get(name) != where for name, where in old.field_index.items()):
            return f"{fragment_id!r}: fields that were there stay as they are"
        rows = self._partitions.get(partition, {})
        if missing := [key for key in keys if key not in rows]:
            return f"keys that {partition!r} does not have: {missing}"
        return ""

    # ---- readers

    def resolve(
        self,
        partition: str,
        keys: Sequence[str],
        fields: Sequence[str] | None = None,
        *,
        pin: bool = False,
    ) -> Answer:
        """Where fields of rows lie, in the order that is asked for; `pin`: until `release_read`."""
        partition, keys = one_name(partition, "partition"), names_of(keys, "keys")
        rows = self._rows(partition, keys)
        wanted = self._fields(rows) if fields is None else [*names_of(fields, "field names")]
        if not wanted:
            raise ValueError("the keys have no fields")
        for key, row in zip(keys, rows, strict=True):
            if missing := [name for name in wanted if name not in row.places]:
                raise ValueError(f"{key!r} does not have these fields yet: {missing}")
        # Fields whose rows lie in the same places are read together.
        together: dict[tuple[Place, ...], Names] = {}
        for name in wanted:
            together.setdefault(tuple(row.places[name] for row in rows), []).append(name)
        needed = [*dict.fromkeys(place[0] for places in together for place in places)]
        answer: Answer = {
            "keys": [*keys],
            "tags": [copy.deepcopy(row.tag) for row in rows],
            "fields": wanted,
            "field_groups": [
                {"fields": names, "locations": [*places]} for places, names in together.items()
            ],
            "handles": {name: copy.deepcopy(self._fragments[name].handle) for name in needed},
            "meta_info": self._meta(needed),
        }
        if pin:
            answer["read_token"] = self._pin(needed)
        return answer

    def release_read(self, token: int) -> Answer:
        """A read is done; repeated, it changes nothing."""
        for name in self._reads.pop(token, ()):
            self._fragments[name].readers -= 1
            self._retire_unneeded(name)
        return self._with_retired({})

    def list(self, partition: str | None = None) -> dict[str, dict[str, Any]]:
        """The tags of all keys, by partition and key."""
        if partition is not None:
            known = one_name(partition, "partition") in self._partitions
            return self._tags([partition] if known else [])
        return self._tags(self._partitions)

    def _tags(self, partitions: Iterable[str]) -> dict[str, dict[str, Any]]:
        return {
            one: {key: copy.deepcopy(row.tag) for key, row in self._partitions[one].items()}
            for one in partitions
        }

    def _rows(self, partition: str, keys: tuple[str, ...]) -> Rows:
        rows = self._partitions.get(partition, {})
        if missing := [key for key in keys if key not in rows]:
            raise ValueError(f"{partition!r} does not have these keys: {missing}")
        return [rows[key] for key in keys]

    @staticmethod
    def _fields(rows: Iterable[Row]) -> Names:
        return [*dict.fromkeys(name for row in rows for name in row.places)]

    def _meta(self, names: Iterable[str]) -> dict[str, Any]:
        """What the batches say of themselves, as one; ValueError where they contradict each other."""
        found: dict[str, Any] = {}
        for name in names:
            for what, value in self._fragments[name].handle["meta_info"].items():
                if found.setdefault(what, value) != value:
                    raise ValueError(f"meta_info {what!r} has two values in the batches of these rows")
        return copy.deepcopy(found)

    def _pin(self, names: Names) -> int:
        self._last_read += 1
        self._reads[self._last_read] = names
        for name in names:
            self._fragments[name].readers += 1
        return self._last_read

    # ---- the end of rows and of batches

    def remove(self, partition: str, keys: Sequence[str]) -> Answer:
        """Forgets rows; those that are not there are fine, too."""
        partition, keys = one_name(partition, "partition"), names_of(keys, "keys")
        rows = self._partitions.get(partition, {})
        for key in keys:
            row = rows.pop(key, None)
            for fragment_id, _ in row.places.values() if row is not None else ():
                self._leave(fragment_id)
        if not rows:
            self._partitions.pop(partition, None)
        return self._with_retired({})

    def drain(self) -> Answer:
        """Forgets all rows, when writers and readers are done, and takes no more."""
        if self._reads:
            raise RuntimeError(f"{len(self._reads)} reads are under way, and hold what they read")
        for name, fragment in self._fragments.items():
            if fragment.managed:
                self._retired[name] = fragment.handle
        self._partitions.clear()
        self._fragments.clear()
        self._answered.clear()
        self._drained = True
        return self._with_retired({})

    def ack_retired(self, handles: Sequence[Mapping[str, Any]]) -> Answer:
        """The batches of these handles were removed from the store."""
        for handle in handles:
            ref, stored = as_stored(handle)
            found = [name for name, one in self._retired.items() if one == stored]
            if found:
                del self._retired[found[0]]
            elif len(ref.stage_refs) == 1:
                [stage] = ref.stage_refs.values()
                if stage.manifest_key in self._retired:
                    raise ValueError(f"{stage.manifest_key!r} was retired with another handle")
        return self._with_retired({})

    def _place(self, row: Row, name: str, place: Place) -> None:
        """A field of a row lies here from now on."""
        before = row.places.get(name)
        row.places[name] = place
        # In this order: a batch that a row moves inside of is needed all the time.
        self._fragments[place[0]].places += 1
        if before is not None:
            self._leave(before[0])

    def _leave(self, name: str) -> None:
        self._fragments[name].places -= 1
        self._retire_unneeded(name)

    def _retire_unneeded(self, name: str) -> None:
        fragment = self._fragments[name]
        if fragment.places or fragment.readers:
            return
        del self._fragments[name]
        if fragment.managed:
            self._retired[name] = fragment.handle

    def _told(self, partition: str, keys: tuple[str, ...]) -> Answer:
        rows = self._rows(partition, keys)
        tags = [copy.deepcopy(row.tag) for row in rows]
        return self._with_retired({"keys": [*keys], "tags": tags, "fields": self._fields(rows)})

    def _with_retired(self, answer: Answer) -> Answer:
        return {**answer, "retired_handles": copy.deepcopy([*self._retired.values()])}
