"""Counters and times in a file that all processes map into memory. A mark takes about a microsecond.

Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

NUMBER = struct.Struct("<q")
COUNTER = struct.Struct("<qqq")
PLACES = 16
COUNTERS = 65_536
# The file contains the number of counters in use, then the times of the places, then the counters.
COUNTERS_AT = NUMBER.size * (1 + PLACES)
SIZE = COUNTERS_AT + COUNTER.size * COUNTERS


class Total(NamedTuple):
    calls: int
    first: int
    last: int


class Marks:
    """Counters and times in a mapped file. Each thread has its own counter, so threads need not wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("ab") as file:
            file.truncate(SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._mine = threading.local()

    def count(self) -> None:
        mine = self._mine
        if not hasattr(mine, "offset"):
            mine.offset, mine.count, mine.first = self._new_counter(), 0, time.monotonic_ns()
        mine.count += 1
        COUNTER.pack_into(self._map, mine.offset, mine.count, mine.first, time.monotonic_ns())

    def mark(self, place: int) -> None:
        NUMBER.pack_into(self._map, self._offset(place), time.monotonic_ns())

    def clear(self, place: int) -> None:
        NUMBER.pack_into(self._map, self._offset(place), 0)

    def at(self, place: int) -> int:
        """Return the time at which this place was marked, or 0 if it is not marked."""
        return self._number(self._offset(place))

    def total(self) -> Total:
        """Return how many calls all threads have counted, and the times of the first and the last call."""
        end = COUNTERS_AT + COUNTER.size * self._number(0)
        used = [counter for counter in COUNTER.iter_unpack(self._map[COUNTERS_AT:end]) if counter[0]]
        if not used:
            return Total(0, 0, 0)
        counts, firsts, lasts = zip(*used, strict=True)
        return Total(sum(counts), min(firsts), max(lasts))

    def _new_counter(self) -> int:
        # Open the file again: threads that share an open file would share its lock.
        with closing(Lock(self.path)):
            given = self._number(0)
            if given == COUNTERS:
                raise RuntimeError(f"more than {COUNTERS} threads have counted")
            NUMBER.pack_into(self._map, 0, given + 1)
        return COUNTERS_AT + COUNTER.size * given

    def _offset(self, place: int) -> int:
        return NUMBER.size * (1 + place)

    def _number(self, offset: int) -> int:
        return int(NUMBER.unpack_from(self._map, offset)[0])


class Lock:
    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR)
        fcntl.flock(self.fd, fcntl.LOCK_EX)

    def close(self) -> None:
        os.close(self.fd)
