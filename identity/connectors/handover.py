"""Files that JIM and another system hand over to each other: taken when complete, and replaced as a whole.

A file is reached through the descriptors of its folders, so no symbolic link can lead elsewhere, not even
one that is made in the meantime. Beside a file that JIM writes, there are two hidden files: the draft, which
replaces the file as a whole, and the lock, which also notes what JIM wrote last.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import BinaryIO, NamedTuple

from django.conf import settings

from .connector import ConnectorError

SETTING = "JIM_IDENTITY_FOLDERS"
# A new file is never readable by everyone; its group can be decided by the folder.
NEW_MODE = 0o660
SIDECAR_BYTES = 64
NOTE_BYTES = 200
DIGEST_BYTES = 16
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TEMPORARY = {errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EINTR, errno.EIO, errno.ENOSPC, errno.ESTALE}


class NotThere(ConnectorError):
    """The file does not exist, and may be delivered later."""

    def __init__(self, message: str) -> None:
        super().__init__(message, is_transient=True)


class FileState(NamedTuple):
    """What changes if a file is replaced or written to."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def path_complaint(path: str) -> str:
    """Return why the path is not allowed, or an empty string if it is."""
    try:
        _split(path)
    except ConnectorError as error:
        return str(error)
    return ""


def name_complaint(name: str) -> str:
    """Return why this cannot be the name of a file beside another one, or an empty string if it can."""
    is_name = "/" not in name and name not in (".", "..")
    return "" if is_name else "must be a name without a folder, because the file is beside the main one"


@contextmanager
def reached(path: str) -> Iterator[HandedFile]:
    """Open the folders on the way to a file, which need not exist."""
    root, parts = _split(path)
    with ExitStack() as stack:
        folder = _open_folder(path, root, None)
        stack.callback(os.close, folder)
        for part in parts[:-1]:
            folder = _open_folder(path, part, folder)
            stack.callback(os.close, folder)
        yield HandedFile(path, parts[-1], folder)


def _split(path: str) -> tuple[Path, tuple[str, ...]]:
    """Return the allowed folder that contains the path, and the parts of the path below this folder."""
    wanted, folders = PurePath(path), [Path(folder) for folder in settings.JIM_IDENTITY_FOLDERS]
    allowed = ", ".join(map(str, folders))
    if not allowed:
        raise ConnectorError(
            f"{path} cannot be used, because {SETTING} names no folder; add the folder there"
        )
    if ".." in wanted.parts:
        raise ConnectorError(f"{path} must not contain “..”; write the path below a folder of {SETTING}")
    roots = {folder: folder for folder in folders} | {folder.resolve(): folder for folder in folders}
    if not wanted.is_absolute():
        roots, wanted = {folders[0]: folders[0]}, folders[0] / wanted
    for root, folder in roots.items():
        if wanted.is_relative_to(root) and wanted != root:
            return folder, wanted.relative_to(root).parts
    raise ConnectorError(
        f"{path} is outside the folders that are allowed by {SETTING}: {allowed}; "
        "move the file there, or add its folder to this setting"
    )


def _open_folder(path: str, name: str | Path, parent: int | None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if parent is not None:
        flags |= os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        raise NotThere(f"{path} cannot be reached, because the folder {name} does not exist") from None
    except OSError as error:
        raise _unreachable(path, error, link=parent is not None and _is_link(name, parent)) from None


def _is_link(name: str | Path, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _unreachable(path: str, error: OSError, *, link: bool) -> ConnectorError:
    if link:
        return ConnectorError(
            f"{path} leads over a symbolic link, which is not followed below a folder of {SETTING}; "
            "put the file itself there"
        )
    return ConnectorError(
        f"{path} cannot be opened: {error.strerror}", is_transient=error.errno in _TEMPORARY
    )


@dataclass(frozen=True)
class HandedFile:
    """A file in an allowed folder, whether it exists or not. `shown` is its path as the settings have it."""

    shown: str
    name: str
    folder: int

    def beside(self, name: str) -> HandedFile:
        return HandedFile(str(PurePath(self.shown).with_name(name)), name, self.folder)

    def stat(self) -> os.stat_result | None:
        """Look at the file itself, even if it is a symbolic link; return None if it does not exist."""
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreachable(self.shown, error, link=False) from None

    def state(self) -> FileState | None:
        found = self.stat()
        return None if found is None else FileState.of(found)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file for reading, without waiting if it is a pipe."""
        try:
            descriptor = os.open(self.name, os.O_RDONLY | _SAFELY, dir_fd=self.folder)
        except FileNotFoundError:
            raise NotThere(f"{self.shown} does not exist; check the path, or wait for its delivery") from None
        except OSError as error:
            raise _unreachable(self.shown, error, link=_is_link(self.name, self.folder)) from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ConnectorError(f"{self.shown} is a folder, a pipe or a device; JIM reads only files")
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            yield file

    def check_complete(self, *, marker: str, stable_seconds: float) -> None:
        """Raise ConnectorError if the other system may still be writing the file."""
        found = self.stat()
        if found is None:
            raise NotThere(f"{self.shown} does not exist; check the path, or wait for its delivery")
        if marker:
            self._check_marker(marker)
        elif FileState.of(found) != self._noted():
            self._check_age(time.time() - found.st_mtime, stable_seconds)

    def check_unchanged(self, before: FileState) -> None:
        """Raise ConnectorError if the file is not what it was when it was opened."""
        now = self.state()
        if now != before:
            raise ConnectorError(
                f"{self.shown} was changed while it was read: {_what_changed(before, now)}. Let the other "
                "system write to a different name and rename the file when it is complete, or set a marker",
                is_transient=True,
            )

    def sidecar(self, name: str) -> str:
        """Return the text of a short file beside this one."""
        beside = self.beside(name)
        with beside.opened() as file:
            return file.read(SIDECAR_BYTES).decode("ascii", errors="replace").strip()

    @contextmanager
    def locked(self, run_key: str) -> Iterator[Handover]:
        """Keep other exports away from the file, and remove the drafts that killed exports left behind."""
        try:
            lock = os.open(self._lock_name, os.O_RDWR | os.O_CREAT | _SAFELY, 0o600, dir_fd=self.folder)
        except OSError as error:
            raise self.unwritable(error) from None
        try:
            self._lock(lock)
            self._remove_drafts()
            yield Handover(self, run_key, lock)
        finally:
            os.close(lock)

    def unwritable(self, error: OSError) -> ConnectorError:
        return ConnectorError(
            f"{self.shown} cannot be written: {error.strerror}", is_transient=error.errno in _TEMPORARY
        )

    def _noted(self) -> FileState | None:
        try:
            with self.beside(self._lock_name).opened() as lock:
                return FileState(*json.loads(lock.read(NOTE_BYTES)))
        except (ConnectorError, OSError, ValueError, TypeError):
            return None

    def _check_marker(self, marker: str) -> None:
        found = self.beside(marker).stat()
        if found is None or not stat.S_ISREG(found.st_mode):
            raise ConnectorError(
                f"{self.shown} is not complete yet: the marker {marker} does not exist beside it; "
                "JIM waits for this file",
                is_transient=True,
            )

    def _check_age(self, age: float, stable_seconds: float) -> None:
        if age < stable_seconds:
            when = f"{age:.0f} s ago" if age >= 0 else "at a time that is in the future"
            raise ConnectorError(
                f"{self.shown} was changed {when}; "
                f"JIM waits until it has not changed for {stable_seconds:g} s",
                is_transient=True,
            )

    @property
    def _lock_name(self) -> str:
        return f".{self.name}.lock"

    def _lock(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConnectorError(
                f"{self.shown} is being written by another export; JIM tries again later", is_transient=True
            ) from None

    def _remove_drafts(self) -> None:
        draft = re.compile(rf"\.{re.escape(self.name)}\.[0-9a-f]{{16}}\.draft")
        try:
            with os.scandir(self.folder) as entries:
                left = [entry.name for entry in entries if draft.fullmatch(entry.name)]
            for name in left:
                os.unlink(name, dir_fd=self.folder)
        except OSError as error:
            raise self.unwritable(error) from None


@dataclass(frozen=True)
class Handover:
    """The right to write a file and the files that belong to it, which one export at a time has."""

    file: HandedFile
    run_key: str
    lock: int

    @contextmanager
    def draft(self, target: HandedFile) -> Iterator[Draft]:
        """Begin the new content of a file. Unless it replaces the file, it is removed at the end."""
        # The same run has the same names, so nothing piles up however often it is killed.
        unique = blake2b(f"{self.run_key}/{target.name}".encode(), digest_size=8).hexdigest()
        draft = Draft(target, f".{self.file.name}.{unique}.draft")
        try:
            yield draft
        finally:
            draft.close()

    def write_beside(self, name: str, content: bytes) -> None:
        target = self.file.beside(name)
        with self.draft(target) as draft:
            draft.write(content)
            draft.replace(target.state())

    def note(self) -> None:
        """Note the state of the file, so that JIM need not wait before it reads what it wrote itself."""
        with suppress(OSError):
            os.ftruncate(self.lock, 0)
            os.pwrite(self.lock, json.dumps(self.file.state()).encode(), 0)


class Draft:
    """The new content of a file, written to another file in the same folder."""

    def __init__(self, target: HandedFile, name: str) -> None:
        self.size = 0
        self._target, self._name = target, name
        self._digest = blake2b(digest_size=DIGEST_BYTES)
        old = target.stat()
        mode = NEW_MODE if old is None else stat.S_IMODE(old.st_mode)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY
        try:
            self._file = os.fdopen(os.open(name, flags, mode, dir_fd=target.folder), "wb")
            if old is not None:
                os.fchmod(self._file.fileno(), mode)
        except OSError as error:
            raise target.unwritable(error) from None

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._target.unwritable(error) from None
        self._digest.update(data)
        self.size += len(data)

    def replace(self, state: FileState | None) -> None:
        """Put the draft in the place of the file, which must still have this state."""
        folder = self._target.folder
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            if self._target.state() != state:
                raise ConnectorError(
                    f"{self._target.shown} was changed during the export; run an import first"
                )
            os.replace(self._name, self._target.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except OSError as error:
            raise self._target.unwritable(error) from None

    def close(self) -> None:
        """Close the draft, and remove it unless it has replaced the file."""
        # Whatever could not be written has been reported; what has replaced the file is written.
        with suppress(OSError):
            self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._target.folder)


def _what_changed(before: FileState, now: FileState | None) -> str:
    if now is None:
        return "it was removed"
    if (now.device, now.inode) != (before.device, before.inode):
        return "another file took its place"
    if now.size != before.size:
        return f"it had {before.size:,} bytes and now has {now.size:,}"
    return "it was written to"
