"""Segments that come and go while the store lives."""

import os
import stat
import time
from collections.abc import Sequence
from typing import Any

import mooncrate

from ._base import StoreBase
from ._codes import INTERNAL_ERROR, INVALID_PARAMS, OK, log
from ._connection import Connection
from ._settings import PAGE

# What is allocated is a multiple of this.
GRAIN = 16 << 20


class SegmentCalls(StoreBase):
    """Mounts and unmounts."""

    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Lends as much memory as a range of a file has. The memory is not the file's own: a file can
        be cut short by anybody, and whoever then looks at what is gone dies of it."""
        live = self._connected()
        if live is None:
            return {"ret": INTERNAL_ERROR, "segment_ids": []}
        try:
            found = os.stat(path)
        except (OSError, ValueError) as error:
            log.error("mount_segment: %s", error)
            return {"ret": INTERNAL_ERROR, "segment_ids": []}
        inside = 0 <= offset <= offset + size <= found.st_size and stat.S_ISREG(found.st_mode)
        if not inside or offset % PAGE or 0 < size < PAGE:
            log.error("mount_segment: the range is not in the file, or does not begin at a page")
            return {"ret": INTERNAL_ERROR, "segment_ids": []}
        if size == 0:
            # Nothing of a file is nothing to lend, and no mistake.
            return {"ret": OK, "segment_ids": []}
        log.info("mount_segment: %d bytes are lent; %s itself is not used", size, path)
        return self._mount(live, size)

    def allocate_and_mount_segment(
        self, size: int, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Lends more memory."""
        live = self._connected()
        if live is None or size <= 0:
            return {"ret": INTERNAL_ERROR, "segment_ids": [], "allocated_size": 0}
        whole = -(-size // GRAIN) * GRAIN
        done = self._mount(live, whole)
        return {**done, "allocated_size": whole if done["ret"] == OK else 0}

    @staticmethod
    def _mount(live: Connection, size: int) -> dict[str, Any]:
        try:
            name = live.mount(size)
        except (mooncrate.Error, OSError, ValueError) as error:
            log.error("mount: %s", error)
            # More than the machine has: asking again with the same size is of no use.
            bad = isinstance(error, mooncrate.TooLarge)
            return {"ret": INVALID_PARAMS if bad else INTERNAL_ERROR, "segment_ids": []}
        return {"ret": OK, "segment_ids": [name]}

    def unmount_segment(
        self, segment_ids: Sequence[str], grace_period_seconds: int = 0
    ) -> int:
        """Takes memory back, with what it holds, after a time of grace."""
        live = self._connected()
        if live is None:
            return INTERNAL_ERROR
        ids = [segment_ids] if isinstance(segment_ids, str) else list(segment_ids)
        if grace_period_seconds > 0:
            time.sleep(grace_period_seconds)
        code = OK
        for name in ids:
            try:
                known = live.unmount(name)
            except mooncrate.Error as error:
                log.error("unmount of %s: %s", name, error)
                known = False
            if not known:
                code = INTERNAL_ERROR
        return code

    def _mounted(self, segment_ids: Sequence[str]) -> list[str]:
        """Those of these segments that were not unmounted yet."""
        live = self._connected()
        return [] if live is None else [name for name in segment_ids if name in live.segments]

    def unmount_and_free_segment(
        self, segment_ids: Sequence[str], grace_period_seconds: int = 0
    ) -> int:
        """The same: memory that is not mounted is given back to the system."""
        return self.unmount_segment(segment_ids, grace_period_seconds)

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """The disk of a store goes with the store, and its values are others' until then: nothing is done."""
        return OK if self._connected() is not None else INTERNAL_ERROR

    def get_offload_rpc_read_count(self) -> int:
        """Reads served from the disk of another process: they are not counted here."""
        return 0
