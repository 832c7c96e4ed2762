"""`DataProtoCatalogTransfer`: batches into the store and their rows into a catalog, in this order.

The catalog may be far away: it is called by a function, and a call that fails may have been carried out. What
must stay true: a batch that was stored is told to the catalog, or kept in mind until it is; what the catalog
retires is removed from the store before that is acknowledged. So nothing is lost by an error, at worst it is done
again, by the next call, by `drain` or by `close`.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ._catalog import Answer, as_stored, names_of, one_name, tags_of
from ._handles import export_ref

log = logging.getLogger("mooncake.dataproto_catalog")

# How often something is tried before the caller hears of it.
TRIES = 2
# Where a result of the caller's keeps the reads that it was made of.
RESULTS = "_mooncake_catalog_results"


class Unfinished:
    """What could not be done and is to be done again."""

    def __init__(self, what: str, work: Callable[[Any], Any]) -> None:
        self.what, self.work = what, work
        self._lock = threading.Lock()
        self._left: list[Any] = []

    def add(self, one: Any) -> None:
        """Keeps it in mind, once."""
        with self._lock:
            if one not in self._left:
                self._left.append(one)

    def again(self, more: Iterable[Any] = (), *, tries: int = 1, strict: bool = False) -> None:
        """Does all that is left, and more; what fails stays, and `strict` is an error then."""
        with self._lock:
            todo, self._left = [*self._left, *more], []
        for _ in range(tries):
            todo = [one for one in todo if not self._done(one)]
        with self._lock:
            self._left += todo
            count = len(self._left)
        if strict and count:
            raise RuntimeError(f"could not {self.what}: {count} are left")

    def _done(self, one: Any) -> bool:
        try:
            self.work(one)
        except Exception:
            log.exception("could not %s", self.what)
            return False
        return True


class Publication:
    """A call of the catalog that has the same effect however often it is made."""

    def __init__(self, method: str, *given: Any, **more: Any) -> None:
        self.id = uuid.uuid4().hex
        self.method, self.given, self.more = method, given, more


class DataProtoCatalogTransfer:
    """Puts batches, appends to them, and removes those that nobody needs.

    transfer: a `MooncakeBundleTransfer`. catalog_call: calls a method of a `DataProtoCatalog`, by its name and
    with its arguments, wherever that is.
    """

    def __init__(self, transfer: Any, catalog_call: Callable[..., Any]) -> None:
        self.transfer = transfer
        self._catalog_call = catalog_call
        self._publications = Unfinished("publish a batch that was stored", self._publish)
        self._known = Unfinished("acknowledge a publication", self._acknowledge)
        self._results = Unfinished(
            "give back memory of a read", lambda result: self.transfer.release_result(result)
        )

    # ---- writers

    def put(
        self,
        data: Any,
        *,
        partition: str,
        keys: Sequence[str],
        tags: Sequence[Mapping[str, Any]] | None = None,
        **put_kwargs: Any,
    ) -> Answer:
        """Stores a batch with a row for each key, and publishes it; None: only the tags."""
        self._finish()
        partition, keys = one_name(partition, "partition"), names_of(keys, "keys")
        tags = tags_of(tags, len(keys))
        handle = None
        if data is not None:
            _check_rows(data, keys)
            ref = self.transfer.put(data, type="dataproto", partition=partition, **put_kwargs)
            handle = export_ref(ref)
        elif tags is None:
            raise ValueError("tags or a batch are needed")
        return self._told(Publication("publish", partition, keys, tags=tags, handle=handle))

    def append(
        self,
        fragment_id: str,
        handle: Mapping[str, Any],
        data: Any,
        *,
        partition: str,
        keys: Sequence[str],
        stage: str,
        **append_kwargs: Any,
    ) -> Answer:
        """Stores further fields of a batch, and publishes them. ValueError where it has changed meanwhile;
        what was stored is removed then."""
        self._finish()
        fragment_id = one_name(fragment_id, "fragment_id")
        partition, keys = one_name(partition, "partition"), names_of(keys, "keys")
        if append_kwargs.get("overwrite"):
            raise ValueError("overwrite: fields that are published stay as they are")
        _check_rows(data, keys)
        ref, before = as_stored(handle)
        if ref.partition != partition:
            raise ValueError(f"a batch of {ref.partition!r}, not of {partition!r}")
        # Before anything is stored: most appends that come too late end here.
        plan = self._catalog_call("resolve", partition, keys, [*ref.field_index])
        if plan["handles"].get(fragment_id) != before:
            raise ValueError(f"{fragment_id!r} has changed since it was looked up")
        found = self.transfer.append_dataproto_fields(before, data, stage=stage, **append_kwargs)
        more = {"previous_handle": before, "handle": export_ref(found)}
        answer = self._told(Publication("publish_append", fragment_id, partition, keys, **more))
        if (why := answer.get("append_rejected")) is not None:
            raise ValueError(why)
        return answer

    def _told(self, publication: Publication) -> Answer:
        """Publishes; what cannot be published now is published later."""
        for _ in range(TRIES - 1):
            try:
                return self._publish(publication)
            except Exception:
                log.exception("a batch that was stored is published again")
        try:
            return self._publish(publication)
        except Exception:
            self._publications.add(publication)
            raise

    def _publish(self, one: Publication) -> Answer:
        answer: Answer = self._catalog_call(one.method, one.id, *one.given, **one.more)
        if answer.get("append_rejected"):
            self.transfer.cleanup_dataproto_append(one.more["previous_handle"], one.more["handle"])
        self._remove_retired(answer)
        try:
            self._acknowledge(one.id)
        except Exception:
            log.exception("could not %s", self._known.what)
            self._known.add(one.id)
        return answer

    def _acknowledge(self, operation_id: str) -> None:
        self._catalog_call("ack_publication", operation_id)

    def _finish(self) -> None:
        """What is left of earlier calls comes first: their rows may be the ones that are written now."""
        self._known.again()
        self._publications.again(strict=True)

    # ---- readers

    def resolve(
        self, partition: str, keys: Sequence[str], fields: Sequence[str] | None = None
    ) -> Answer:
        """Where fields of rows lie, and stay until `release_read`."""
        plan: Answer = self._catalog_call("resolve", partition, keys, fields, pin=True)
        return plan

    def release_read(self, token: int) -> None:
        """A read is done."""
        self._remove_retired(self._catalog_call("release_read", token))

    def attach_results(self, output: Any, results: Sequence[Any]) -> None:
        """Has a result of the caller's keep what the store gave for it, for `release_result`."""
        setattr(output, RESULTS, [*results])

    def release_result(self, output: Any) -> None:
        """Gives back what it keeps."""
        results = getattr(output, RESULTS, None) or ()
        setattr(output, RESULTS, [])
        self.discard_results(results)

    def discard_results(self, results: Sequence[Any], *, strict: bool = False) -> None:
        """Gives results back, and those that could not be before."""
        self._results.again(results, tries=TRIES, strict=strict)

    def list(self, partition: str | None = None) -> dict[str, dict[str, Any]]:
        """The tags of all keys."""
        found: dict[str, dict[str, Any]] = self._catalog_call("list", partition)
        return found

    # ---- the end of rows and of batches

    def remove(self, partition: str, keys: Sequence[str]) -> None:
        """Forgets rows, and removes the batches that nobody needs any more."""
        self._remove_retired(self._catalog_call("remove", partition, keys))

    def drain(self) -> None:
        """Empties the catalog and removes what it had published."""
        for left in reversed(range(TRIES)):
            try:
                self._publications.again(strict=True)
                self._remove_retired(self._catalog_call("drain"), strict=True)
            except Exception:
                if not left:
                    raise
                log.exception("the catalog is drained again")
            else:
                return

    def close(self) -> None:
        """Does what is left; an error says that not all could be done."""
        self.discard_results((), strict=True)
        self._publications.again(strict=True)
        self._known.again(strict=True)

    def _remove_retired(self, answer: Mapping[str, Any], *, strict: bool = False) -> None:
        """Removes what the catalog has retired, and tells it. What fails is named again by its next answer."""
        handles = [*answer.get("retired_handles", ())]
        removed = [handle for handle in handles if self._removed(handle)]
        try:
            if removed:
                self._catalog_call("ack_retired", removed)
        except Exception:
            log.exception("could not acknowledge what was removed")
            if strict:
                raise
        if strict and len(removed) < len(handles):
            raise RuntimeError(f"{len(handles) - len(removed)} batches could not be removed")

    def _removed(self, handle: Mapping[str, Any]) -> bool:
        try:
            self.transfer.cleanup_dataproto(handle)
        except Exception:
            log.exception("could not remove a batch that was retired")
            return False
        return True


def _check_rows(data: Any, keys: Sequence[str]) -> None:
    if len(data) != len(keys):
        raise ValueError(f"a batch of {len(data)} rows does not fit {len(keys)} keys")
