"""A locked file for each worker, which is free only when the worker and all its children are gone."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from django.conf import settings

# In /proc/<pid>/fdinfo/<fd>: the process that took the lock which this open file holds.
HELD = re.compile(r"^lock:\t\d+: FLOCK +ADVISORY +WRITE +(\d+) ", re.MULTILINE)
GRACE_SECONDS = 5.0
_orphaned_since: dict[Path, float] = {}


class Lifeline:
    """A file that stays locked as long as the worker, or a child that inherited `fd`, is alive."""

    def __init__(self, worker_id: uuid.UUID) -> None:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / str(worker_id)
        unlocked = folder / f".{worker_id}"
        self.fd = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        os.write(self.fd, str(os.getpid()).encode())
        # Renamed once it is locked, so that no process finds it free before its worker holds it.
        unlocked.rename(self.path)

    def release(self) -> None:
        """Release the lock but keep the file, as proof for others that this worker is dead."""
        os.close(self.fd)

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self.fd)


def proven_dead() -> Iterator[tuple[uuid.UUID, Path]]:
    """Yield the id and file of each worker of this data folder whose lock is free.

    The caller must unlink the file once the worker is marked as dead.
    """
    for worker_id, path in _lifelines():
        if _is_free(path):
            yield worker_id, path


def end_orphans() -> list[int]:
    """Kill processes that still hold the lifeline of a worker whose own process is gone; return their ids.

    Normally, the nursery ends the children when its worker is gone, and does so more thoroughly, so it gets
    GRACE_SECONDS to do that. This function is for a nursery that was itself killed or stopped.
    """
    orphans = {path: pids for _, path in _lifelines() if (pids := _orphans(path))}
    for path in _orphaned_since.keys() - orphans.keys():
        del _orphaned_since[path]
    now = time.monotonic()
    late = [path for path in orphans if now - _orphaned_since.setdefault(path, now) >= GRACE_SECONDS]
    return [pid for path in late for pid in orphans[path] if _kill_holder(pid, path)]


def _lifelines() -> Iterator[tuple[uuid.UUID, Path]]:
    for path in sorted(_folder().glob("[0-9a-f]*-*")):
        with suppress(ValueError):
            yield uuid.UUID(path.name), path


def _orphans(path: Path) -> list[int]:
    """Return the ids of the processes that hold a lifeline, or an empty list if its worker is one of them."""
    try:
        owner = int(path.read_text() or 0)
    except (OSError, ValueError):
        return []
    if _locker(owner, path) == owner:
        return []
    # The file contains the process id in the worker's container; the kernel tells the id in this container.
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    lockers = {pid: locker for pid in pids if (locker := _locker(pid, path)) is not None}
    return [] if lockers.keys() & lockers.values() else list(lockers)


def _locker(pid: int, path: Path) -> int | None:
    """Return the id of the process that locked the file, or None if the process `pid` does not hold the lock.

    A child can hold a lock that its worker took. A process can also have the file open without holding the
    lock.
    """
    with suppress(OSError):
        wanted = path.stat()
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                is_it = os.path.samestat(file.stat(), wanted)
                if is_it and (held := HELD.search(Path(f"/proc/{pid}/fdinfo/{file.name}").read_text())):
                    return int(held[1])
    return None


def _kill_holder(pid: int, path: Path) -> bool:
    """Kill the process if it still holds the lifeline, and return whether it was killed.

    A handle makes sure that no other process is killed, because ids of processes are reused.
    """
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if _locker(pid, path) is None:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _is_free(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _folder() -> Path:
    return Path(settings.JIM_DATA_DIR) / "workers"
