"""Replicas: where they are, how they are cleared, and tasks that copy or move them.

A task is worked off by the process that created it, with the store's own copies from owner to owner, and
known in that process only; a store of another process answers "unknown".
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import mooncrate

from ._base import Key, StoreBase, key_list
from ._codes import (
    INVALID_PARAMS,
    NAMES,
    OBJECT_NOT_FOUND,
    OK,
    TASK_NOT_FOUND,
    code_of,
    log,
    say,
)
from ._connection import Connection, raw_key
from ._enums import (
    Descriptor,
    MemoryDescriptor,
    QueryTaskResponse,
    ReplicaDescriptor,
    ReplicaStatus,
    TaskStatus,
    TaskType,
)
from ._fork import Lock, watch

TASKS_MAX = 10_000
TASK_THREADS = 4
TASK_SECONDS = 300.0

TaskId = tuple[int, int]


class Tasks:
    """The tasks of this process, finished ones included, up to a bound."""

    def __init__(self) -> None:
        self._lock = Lock()
        watch(self)
        self._known: OrderedDict[TaskId, QueryTaskResponse] = OrderedDict()
        self._busy: set[bytes] = set()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def _after_fork(self) -> None:
        # The threads stayed in the parent, and so did what they work on.
        self._queue, self._threads = SimpleQueue(), []
        self._known.clear()
        self._busy.clear()

    def begin(self, kind: TaskType, key: Key, client: str, work: Any) -> TaskId:
        """Starts a task; its id."""
        now = _now_ms()
        name = (_random_63() | 1, _random_63() | 1)
        task = QueryTaskResponse(name, kind, TaskStatus.PENDING, now, now, client, "")
        with self._lock:
            self._known[name] = task
            while len(self._known) > TASKS_MAX:
                self._known.popitem(last=False)
            taken = raw_key(key) in self._busy
            self._busy.add(raw_key(key))
            if not taken and len(self._threads) < TASK_THREADS:
                # Daemons: a task that hangs must not keep the interpreter from ending.
                worker = threading.Thread(target=self._work, name="mooncake-task", daemon=True)
                self._threads.append(worker)
                worker.start()
        if taken:
            self._end(task, TaskStatus.FAILED, "OBJECT_HAS_REPLICATION_TASK: one is under way")
        else:
            self._queue.put((task, raw_key(key), work))
        return name

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self._run(*job)

    def stop(self, seconds: float) -> None:
        """Lets the threads end, at the end of the interpreter: none may be at work after it."""
        for _ in self._threads:
            self._queue.put(None)
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self, task: QueryTaskResponse, key: bytes, work: Any) -> None:
        with self._lock:
            task.status, task.last_updated_at_ms_epoch = TaskStatus.PROCESSING, _now_ms()
        try:
            work()
        except mooncrate.Error as error:
            code = code_of(error)
            self._end(task, TaskStatus.FAILED, f"{NAMES.get(code, code)}: {error}")
        except Exception as error:  # whatever it is, whoever asks shall hear of it
            log.exception("a task failed")
            self._end(task, TaskStatus.FAILED, f"INTERNAL_ERROR: {error}")
        else:
            self._end(task, TaskStatus.SUCCESS, "")
        finally:
            with self._lock:
                self._busy.discard(key)

    def _end(self, task: QueryTaskResponse, status: TaskStatus, message: str) -> None:
        with self._lock:
            task.message, task.last_updated_at_ms_epoch = message, _now_ms()
            task.status = status

    def find(self, name: TaskId) -> QueryTaskResponse | None:
        """The task as it is now."""
        with self._lock:
            task = self._known.get(name)
            return None if task is None else QueryTaskResponse(**vars(task))


def _random_63() -> int:
    """For an id. Not from `secrets`, which loads the hashes of OpenSSL for it."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


tasks = Tasks()


class ReplicaCalls(StoreBase):
    """Descriptors, clearing and tasks."""

    def get_replica_desc(self, key: Key) -> list[ReplicaDescriptor]:
        """The replicas of a value; none if there is no value."""
        (key,) = key_list([key])
        return self.batch_get_replica_desc([key]).get(_text(key), [])

    def batch_get_replica_desc(self, keys: Sequence[Key]) -> dict[str, list[ReplicaDescriptor]]:
        """The same for many keys; those without a value are left out."""
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return {}
        try:
            found = live.raw.places(keys, hold=True)
            names = live.segment_names() if any(isinstance(f, list) for f in found) else {}
        except mooncrate.Error as error:
            say("get_replica_desc", error)
            return {}
        return {
            _text(key): _descriptors(places, names)
            for key, places in zip(keys, found, strict=True)
            if isinstance(places, list)
        }

    def batch_replica_clear(self, keys: Sequence[Key], segment_name: str = "") -> list[str]:
        """Removes values that this store wrote and nobody looked at lately; which of them went."""
        keys = key_list(keys)
        live = self._connected()
        if live is None:
            return []
        with live.lock:
            own = [key for key in keys if raw_key(key) in live.written]
        try:
            if segment_name:
                segments = live.segment_ids([segment_name])
                cleared = [key for key in own if self._clear_at(live, key, segments)]
            else:
                removed = live.store.remove_batch(own)
                pairs = zip(own, removed, strict=True)
                cleared = [key for key, one in pairs if one is True]
        except mooncrate.Error as error:
            say("batch_replica_clear", error)
            return []
        return [_text(key) for key in cleared]

    @staticmethod
    def _clear_at(live: Connection, key: Key, segments: list[int]) -> bool:
        for segment in segments:
            try:
                live.raw.drop_copy(key, segment)
                return True
            except mooncrate.Error as error:
                if error.kind in ("unreachable", "deadline"):
                    raise
        return False

    # ---- tasks ---------------------------------------------------------------------------------

    def create_copy_task(self, key: Key, targets: Sequence[str]) -> tuple[TaskId, int]:
        """Starts to give a value copies in the named segments."""
        (key,) = key_list([key])
        return self._task(TaskType.REPLICA_COPY, key, list(targets), None)

    def create_move_task(self, key: Key, source: str, target: str) -> tuple[TaskId, int]:
        """Starts to move the copy of a value from one named segment to another."""
        (key,) = key_list([key])
        if source == target:
            return (0, 0), INVALID_PARAMS
        return self._task(TaskType.REPLICA_MOVE, key, [target], source)

    def _task(
        self, kind: TaskType, key: Key, targets: list[str], source: str | None
    ) -> tuple[TaskId, int]:
        live = self._connected()
        if live is None or not targets:
            return (0, 0), INVALID_PARAMS
        try:
            (looked,) = live.raw.look([key], hold=False)
            if isinstance(looked, mooncrate.Error):
                raise looked
            if looked is None or looked is False:
                return (0, 0), OBJECT_NOT_FOUND
            names = targets if source is None else [*targets, source]
            found = [live.segment_ids([name]) for name in names]
        except mooncrate.Error as error:
            return (0, 0), say("task", error)
        if not all(found):
            return (0, 0), INVALID_PARAMS
        ends = [ids[0] for ids in found]
        from_ = None if source is None else ends.pop()

        def work() -> None:
            for to in ends:
                _copy(live, key, to, from_)

        return tasks.begin(kind, key, live.hostname, work), OK

    def query_task(self, task_id: TaskId) -> tuple[QueryTaskResponse | None, int]:
        """A task of this process, as it is now."""
        first, second = task_id
        task = tasks.find((first, second)) if self._connected() is not None else None
        return (None, TASK_NOT_FOUND) if task is None else (task, OK)


def _copy(live: Connection, key: Key, to: int, from_: int | None) -> None:
    """Copies until it is done; the store says when it is worth another try."""
    end = time.monotonic() + TASK_SECONDS
    while True:
        try:
            return live.raw.copy(key, to, from_=from_)
        except mooncrate.Error as error:
            if error.kind != "busy" or time.monotonic() >= end:
                raise
            time.sleep(error.retry_after or 0.05)


def _text(key: Key) -> str:
    return key if isinstance(key, str) else key.decode(errors="replace")


def _descriptors(
    places: list[tuple[int, int, int, int, str]], names: dict[int, str]
) -> list[ReplicaDescriptor]:
    """One descriptor per copy, those in memory first: callers take the first for where the value is. Of a
    value in stripes the first stripe of each copy stands for all."""
    size = sum({stripe: count for _, _, count, stripe, _ in places}.values())
    memory, disks = [], []
    for segment, offset, _, stripe, medium in places:
        if stripe > 0:
            continue
        if medium == "ssd":
            disks.append(ReplicaDescriptor(ReplicaStatus.COMPLETE, _local_disk=True))
        else:
            at = MemoryDescriptor(Descriptor(size, offset, names.get(segment, "")))
            memory.append(ReplicaDescriptor(ReplicaStatus.COMPLETE, at))
    return memory + disks
