"""Proof of death: a locked file per worker, free only when the worker and all its children are gone."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings


class Lifeline:
    """Held by a worker for as long as it, or a child that inherited `fd`, lives."""

    def __init__(self, worker_id: uuid.UUID) -> None:
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / str(worker_id)
        unlocked = folder / f".{worker_id}"
        self.fd = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        # Named only once it is locked, so that nobody can find it free before its worker holds it.
        unlocked.rename(self.path)

    def release(self) -> None:
        """Leaves the proof that this worker is dead, in case that it is known to anybody."""
        os.close(self.fd)

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self.fd)


def proven_dead() -> Iterator[tuple[uuid.UUID, Path]]:
    """Workers of this data folder whose lifeline nobody holds. Unlink the path once they are buried."""
    for path in sorted(_folder().glob("[0-9a-f]*-*")):
        try:
            worker_id = uuid.UUID(path.name)
        except ValueError:
            continue
        if _is_free(path):
            yield worker_id, path


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
