"""Writes files that hold keys: readable only by their owner, and written completely or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def create_once(path: Path, content: str) -> None:
    """Create the file unless it exists.

    If several processes create the file at the same time, one of them succeeds, and its content stays.
    """
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        _write(draft, content)
        os.link(draft, path)
        _sync_folder(path.parent)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)


def replace(path: Path, content: str) -> None:
    """Replace the content of the file, or create the file.

    The content is first written to a draft, another file in the same folder. Only one process may do this at
    a time. A draft that a killed process left behind is overwritten.
    """
    path = path.resolve()
    draft = path.with_name(f"{path.name}.draft")
    try:
        _write(draft, content)
        draft.replace(path)
        _sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _write(path: Path, content: str) -> None:
    with open(path, "w", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
