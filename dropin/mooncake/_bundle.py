"""Bundles: named runs of bytes under keys of their own, and a manifest that lists them.

The manifest is stored last and removed last: as long as anything of a bundle is there, a handle
finds it. What must stay true: a put that fails leaves nothing behind, a read of a bundle is whole
and exact, or an error, and a removal that failed can be repeated until nothing is left.

A bundle may go on from an earlier one: it then has the members of both, and is removed after it.
"""

import ctypes
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from ._codes import INVALID_PARAMS, OBJECT_NOT_FOUND
from ._replicate import ReplicateConfig, checked
from ._tensor_store import grouped

DEFAULT_CHUNK_BYTES = 64 << 20
# From here on "auto" stores with several threads, if the policy has them.
AUTO_PARALLEL_MIN_BYTES = DEFAULT_CHUNK_BYTES
AUTO_PARALLEL_MIN_CHUNKS = 8
# 2: members of earlier bundles, and other names in the metadata of structured objects.
VERSION = 2
MODES = {"put_mode": ("auto", "batch", "parallel"), "copy_mode": ("auto", "zero_copy", "copy")}


@dataclass(frozen=True)
class BundleTransferPolicy:
    """How the objects of a bundle are stored: in one batch, or by so many threads at once."""

    max_inflight_put: int = 1
    put_mode: Literal["auto", "batch", "parallel"] = "auto"
    copy_mode: Literal["auto", "zero_copy", "copy"] = "auto"


def policy_of(
    policy: BundleTransferPolicy | None, max_inflight_put: int | None = None
) -> BundleTransferPolicy:
    """The policy of a put; ValueError where it makes no sense."""
    found = policy or BundleTransferPolicy()
    if max_inflight_put is not None:
        found = replace(found, max_inflight_put=max_inflight_put)
    if found.max_inflight_put < 1:
        raise ValueError(f"max_inflight_put={found.max_inflight_put}: at least 1 is needed")
    for name, known in MODES.items():
        if getattr(found, name) not in known:
            raise ValueError(f"{name}={getattr(found, name)!r}: one of {', '.join(known)}")
    return found


@dataclass
class RemoteBundleRef:
    """Where a bundle is; the manifest of one from elsewhere is read when it is needed."""

    manifest_key: str
    manifest: dict[str, Any] | None = None


BundleRef = RemoteBundleRef | Mapping[str, Any]


def as_ref(ref: BundleRef) -> RemoteBundleRef:
    """A ref, or a dict with the fields of one."""
    if isinstance(ref, RemoteBundleRef):
        return ref
    key = ref.get("manifest_key") if isinstance(ref, Mapping) else None
    if not isinstance(key, str) or not key:
        raise ValueError(f"a ref of a bundle has a manifest_key: {ref!r}")
    return RemoteBundleRef(key, ref.get("manifest"))


def as_segment(name: str, value: Any) -> str:
    """A part of a key between two slashes."""
    if not isinstance(value, str) or not value or "/" in value or min(value) < " ":
        raise ValueError(f"{name} {value!r}: a text without slashes and control characters")
    return value


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a member, and where they go."""

    source: int
    target: int
    size: int


class Plain:
    """A store that can do what `BundleStore` says, and no more: key by key."""

    def __init__(self, store: Any) -> None:
        self.put, self.get, self.is_exist = store.put, store.get, store.is_exist
        self._remove = store.remove

    def _is_dummy(self) -> bool:
        # Its values come as they are, as those of a dummy store do.
        return True

    def put_batch(self, keys: Sequence[str], values: Sequence[Any], **wish: Any) -> int:
        # Copied: such a store may keep what it is given.
        codes = (self.put(key, bytes(one), **wish) for key, one in zip(keys, values, strict=True))
        return next((code for code in codes if code != 0), 0)

    def batch_get_buffer(self, keys: Sequence[str]) -> list["Value | None"]:
        return [Value(found) if (found := self.get(key)) else None for key in keys]

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        return [self._remove(key, force) for key in keys]


class Value:
    """Bytes, with the face of a `BufferHandle`."""

    def __init__(self, value: bytes) -> None:
        self.value = bytes(value)

    def size(self) -> int:
        return len(self.value)

    def ptr(self) -> int:
        return ctypes.cast(ctypes.c_char_p(self.value), ctypes.c_void_p).value or 0


class Bundles:
    """Stores, reads and removes bundles."""

    def __init__(self, store: Any, prefix: str, chunk_bytes: int) -> None:
        self.store: Any = store if hasattr(store, "batch_get_into") else Plain(store)
        self.prefix = prefix.strip("/")
        if not self.prefix or min(self.prefix) < " ":
            raise ValueError(f"key_prefix {prefix!r}: a text without control characters is needed")
        self.chunk_bytes = chunk_bytes
        if chunk_bytes < 1:
            raise ValueError(f"default_chunk_bytes={chunk_bytes}: at least one byte is needed")

    @property
    def by_handles(self) -> bool:
        """Whether values come in memory of the store's own, and are copied once more."""
        return bool(getattr(self.store, "_is_dummy", bool)())

    def put(
        self,
        payloads: Sequence[memoryview],
        about: Mapping[str, Any],
        partition: str,
        chunk_bytes: int | None,
        policy: BundleTransferPolicy | None,
        config: Any,
        group: str | None = None,
    ) -> RemoteBundleRef:
        """Stores runs of bytes, and a manifest that says more about them; as one group, if named."""
        chunk = self.chunk_bytes if chunk_bytes is None else chunk_bytes
        if chunk < 1:
            raise ValueError(f"chunk_bytes={chunk}: at least one byte is needed")
        how = policy_of(policy)
        if group is None and getattr(config, "group_ids", None):
            group = group_of(config)
        base = f"{self.prefix}/{as_segment('partition', partition)}/{uuid.uuid4().hex}"
        sizes = [len(payload) for payload in payloads]
        manifest = {"version": VERSION, "base": base, "chunk": chunk, "sizes": sizes, **about}
        keys, values = [], []
        for place, payload in enumerate(payloads):
            for number, start in enumerate(range(0, len(payload), chunk)):
                keys.append(chunk_key(base, place, number))
                values.append(payload[start : start + chunk])
        ref = RemoteBundleRef(f"{base}/manifest", manifest)
        words = json.dumps(manifest, separators=(",", ":")).encode()
        try:
            self._put_all(keys, values, how, config, group)
            code = self.store.put(ref.manifest_key, words, **wish_of(config, group, 1))
            if code != 0:
                raise RuntimeError(f"the manifest of a bundle was not stored: {code}")
        except BaseException:
            self.store.batch_remove([ref.manifest_key, *keys], force=True)
            raise
        return ref

    def _put_all(
        self,
        keys: list[str],
        values: list[memoryview],
        policy: BundleTransferPolicy,
        config: Any,
        group: str | None,
    ) -> None:
        much = len(keys) >= AUTO_PARALLEL_MIN_CHUNKS and (
            sum(map(len, values)) >= AUTO_PARALLEL_MIN_BYTES
        )
        at_once = policy.put_mode == "parallel" or (policy.put_mode == "auto" and much)
        if not at_once or policy.max_inflight_put <= 1:
            wish = wish_of(config, group, len(keys))
            code = self.store.put_batch(keys, values, **wish) if keys else 0
        else:
            wish = wish_of(config, group, 1)
            with ThreadPoolExecutor(policy.max_inflight_put) as threads:
                codes = threads.map(
                    lambda key, value: self.store.put_batch([key], [value], **wish), keys, values
                )
                code = next((code for code in codes if code != 0), 0)
        if code != 0:
            raise RuntimeError(f"a bundle of {sum(map(len, values))} bytes was not stored: {code}")

    def manifest(self, ref: RemoteBundleRef) -> dict[str, Any]:
        """The manifest of a bundle, read once."""
        if not ref.manifest:
            words = self.store.get(ref.manifest_key)
            if not words:
                raise RuntimeError(f"the bundle {ref.manifest_key} is gone")
            manifest = json.loads(words)
            if manifest.get("version") != VERSION:
                raise RuntimeError(
                    f"{ref.manifest_key}: version {manifest.get('version')} is unknown"
                )
            ref.manifest = manifest
        return ref.manifest

    def read(self, ref: RemoteBundleRef, place: int) -> bytearray:
        """All bytes of a member."""
        size = self.manifest(ref)["sizes"][place]
        room = bytearray(size)
        if size:
            self.read_into(ref, place, address_of(room), size)
        return room

    def read_into(self, ref: RemoteBundleRef, place: int, address: int, size: int) -> None:
        """All bytes of a member, to memory of exactly that size."""
        manifest = self.manifest(ref)
        if manifest["sizes"][place] != size:
            raise ValueError(f"the member has {manifest['sizes'][place]} bytes, the memory {size}")
        chunk = manifest["chunk"]
        starts = range(0, size, chunk)
        keys = [chunk_key(manifest["base"], place, number) for number in range(len(starts))]
        sizes = [min(chunk, size - start) for start in starts]
        if self.by_handles:
            got = self._copy_whole(keys, starts, sizes, address)
        else:
            got = self.store.batch_get_into(keys, [address + start for start in starts], sizes)
        if got != sizes:
            raise RuntimeError(f"{ref.manifest_key}: {failed(keys, sizes, got)}")

    def read_ranges(
        self, ref: RemoteBundleRef, place: int, ranges: Sequence[Range], address: int, size: int
    ) -> None:
        """Parts of a member, to memory of this size."""
        manifest = self.manifest(ref)
        wanted: dict[str, list[Range]] = {}
        for key, part in cut(manifest, place, ranges):
            wanted.setdefault(key, []).append(part)
        if not wanted:
            return
        read = self._copy_ranges if self.by_handles else self._read_ranges
        got = read(wanted, address, size)
        sizes = [[part.size for part in parts] for parts in wanted.values()]
        if got != sizes:
            raise RuntimeError(f"{ref.manifest_key}: {failed([*wanted], sizes, got)}")

    def _read_ranges(
        self, wanted: Mapping[str, Sequence[Range]], address: int, size: int
    ) -> list[list[int]]:
        # Memory that is registered already is refused, and needs nothing more.
        known = self.store.register_buffer(address, size) != 0
        try:
            got: list[list[list[int]]] = self.store.get_into_ranges(
                [address],
                [[*wanted]],
                [[[part.target for part in parts] for parts in wanted.values()]],
                [[[part.source for part in parts] for parts in wanted.values()]],
                [[[part.size for part in parts] for parts in wanted.values()]],
            )
            return got[0]
        finally:
            if not known:
                self.store.unregister_buffer(address)

    # ---- for dummy stores, which take no memory of the caller's

    def _copy_whole(
        self, keys: Sequence[str], starts: Sequence[int], sizes: Sequence[int], address: int
    ) -> list[int]:
        wholes = {
            key: [Range(0, start, size)]
            for key, start, size in zip(keys, starts, sizes, strict=True)
        }
        return [got[0] for got in self._copy_ranges(wholes, address, sum(sizes))]

    def _copy_ranges(
        self, wanted: Mapping[str, Sequence[Range]], address: int, size: int
    ) -> list[list[int]]:
        results = []
        handles = self.store.batch_get_buffer([*wanted])
        for handle, parts in zip(handles, wanted.values(), strict=True):
            length, got = -1 if handle is None else handle.size(), []
            for part in parts:
                assert part.target + part.size <= size
                if part.source + part.size > length:
                    got.append(OBJECT_NOT_FOUND if handle is None else INVALID_PARAMS)
                    continue
                ctypes.memmove(address + part.target, handle.ptr() + part.source, part.size)
                got.append(part.size)
            results.append(got)
        return results

    def lineage(self, ref: RemoteBundleRef) -> Iterator[RemoteBundleRef]:
        """A bundle, and those that it goes on from."""
        known: set[str] = set()
        while ref.manifest_key:
            if ref.manifest_key in known:
                raise RuntimeError(f"{ref.manifest_key}: the bundle goes on from itself")
            known.add(ref.manifest_key)
            yield ref
            ref = RemoteBundleRef(self.manifest(ref).get("earlier") or "")

    def remove(self, ref: RemoteBundleRef, until: str | None = None) -> None:
        """Removes a bundle and those it goes on from, as far as one whose key is `until`.

        RuntimeError if anything is left, or may be; the same call again then goes on.
        """
        found: dict[str, dict[str, Any]] = {}
        while ref.manifest_key not in (until, "", *found):
            manifest = ref.manifest or self._manifest_if_any(ref)
            if not manifest:
                break
            found[ref.manifest_key] = manifest
            ref = RemoteBundleRef(manifest.get("earlier") or "")
        self._remove_keys([key for manifest in found.values() for key in chunk_keys(manifest)])
        # The oldest goes first, and each for itself: a manifest that is gone hides those before it.
        for key in reversed(found):
            self._remove_keys([key])

    def _manifest_if_any(self, ref: RemoteBundleRef) -> dict[str, Any] | None:
        """The manifest of a bundle; None: there is certainly none."""
        if not self._is_there(ref.manifest_key):
            return None
        try:
            return self.manifest(ref)
        except RuntimeError:
            # Somebody else may have removed it a moment ago.
            if not self._is_there(ref.manifest_key):
                return None
            raise

    def _is_there(self, key: str) -> bool:
        # `is_exist` of our store says "no" where nobody knows.
        codes = getattr(self.store, "_existence_codes", None)
        code: int = self.store.is_exist(key) if codes is None else codes([key])[0]
        if code not in (0, 1):
            raise RuntimeError(f"whether {key} is there cannot be known now: {code}")
        return code == 1

    def _remove_keys(self, keys: Sequence[str]) -> None:
        codes = self.store.batch_remove(keys, force=True) if keys else ()
        bad = [
            (key, code)
            for key, code in zip(keys, codes, strict=True)
            if code not in (0, OBJECT_NOT_FOUND)
        ]
        if bad:
            raise RuntimeError(
                f"{len(bad)} of {len(keys)} objects were not removed, the first is {bad[0][0]}: "
                f"{bad[0][1]}; call again"
            )


def wish_of(config: Any, group: str | None, count: int) -> dict[str, Any]:
    """What a put of so many keys is asked for, all of them in one group if that has a name."""
    if group is not None:
        config = grouped(ReplicateConfig() if config is None else checked(config), [group] * count)
    elif config is not None and checked(config).group_ids is not None:
        config = grouped(config, [""] * count)
    return {} if config is None else {"config": config}


def group_of(config: Any) -> str | None:
    """The one group that a config names for all keys of an object; None if it wants none."""
    named = getattr(config, "group_ids", None)
    if not named:
        return f"structured-{uuid.uuid4().hex}"
    if len(named) > 1:
        raise ValueError(f"group_ids of an object are one name for all its keys, not {named!r}")
    return named[0] or None


def chunk_key(base: str, place: int, number: int) -> str:
    return f"{base}/{place}/{number}"


def chunk_keys(manifest: Mapping[str, Any]) -> list[str]:
    """The keys of all that a bundle stores, besides its manifest."""
    return [
        chunk_key(manifest["base"], place, number)
        for place, size in enumerate(manifest["sizes"])
        for number in range(-(-size // manifest["chunk"]))
    ]


def cut(
    manifest: Mapping[str, Any], place: int, ranges: Sequence[Range]
) -> Iterator[tuple[str, Range]]:
    """Ranges of a member as ranges of its chunks."""
    chunk, end = manifest["chunk"], manifest["sizes"][place]
    for wanted in ranges:
        if wanted.source < 0 or wanted.size < 0 or wanted.source + wanted.size > end:
            raise ValueError(f"bytes {wanted.source} to {wanted.source + wanted.size} of {end}")
        done = 0
        while done < wanted.size:
            number, start = divmod(wanted.source + done, chunk)
            size = min(chunk - start, wanted.size - done)
            yield (
                chunk_key(manifest["base"], place, number),
                Range(start, wanted.target + done, size),
            )
            done += size


def failed(keys: Sequence[str], sizes: Sequence[Any], got: Sequence[Any]) -> str:
    """Which object did not come, in words."""
    for key, size, have in zip(keys, sizes, got, strict=False):
        if have != size:
            return f"{key} gave {have}, not {size}"
    return f"{len(got)} results for {len(keys)} keys"


def address_of(room: bytearray) -> int:
    """Where a bytearray lies, as long as it is not resized."""
    return ctypes.addressof(ctypes.c_char.from_buffer(room))
