"""Files that hold keys: readable by their owner only, and written to the disk completely or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def create_once(path: Path, content: str) -> None:
    """Create the file unless it exists. Processes that do so at the same time all get the same content."""
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
    """Replace the content. Only one process may do so at a time. The draft of a killed one is overwritten."""
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
