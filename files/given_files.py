"""Reads text from files and standard input, and refuses unusable input with a reason for the user."""

from __future__ import annotations

import codecs
import os
import stat
import sys
from pathlib import Path

STANDARD_INPUT = "-"


class Unfit(Exception):
    """Raised if a file cannot be used. The message says why and what to do, but not the file's name."""

    def __init__(self, words: str, *, line: int = 0) -> None:
        self.words = words
        self.line = line
        super().__init__(words)


def name_of(file: str | Path) -> str:
    return "standard input" if file == STANDARD_INPUT else str(file)


def read(file: str | Path, *, most: int) -> str:
    return text_of(content_of(file, most=most), most=most)


def content_of(file: str | Path, *, most: int) -> bytes:
    """Return the content of a file or of standard input, but at most one byte more than `most`.

    The extra byte tells `text_of` that the content is too large.
    """
    try:
        if file == STANDARD_INPUT:
            return _from_standard_input(most)
        with open(file, "rb", opener=_without_waiting) as opened:
            _check(os.fstat(opened.fileno()), most)
            return opened.read(most + 1)
    except OSError as error:
        raise Unfit(f"cannot be read: {error.strerror}") from None


def text_of(content: bytes, *, most: int) -> str:
    """Decode UTF-8 text, and remove the byte order mark that Windows editors add.

    Raise Unfit if the content is too large or not UTF-8 text.
    """
    if len(content) > most:
        raise _too_large(most)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Unfit("is UTF-16 text: save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise Unfit(f"is not UTF-8 text (byte {error.start + 1:,}): save it as UTF-8", line=line) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise Unfit("is not text, as it contains NUL: save it as UTF-8 text", line=line)
    return text


def _from_standard_input(most: int) -> bytes:
    if sys.stdin is None:
        raise Unfit("is closed: redirect a file or a pipe to it")
    return sys.stdin.buffer.read(most + 1)


def _without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking. Otherwise, opening a named pipe would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check(found: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Unfit("is a pipe or a device: copy its content into a file")
    if found.st_size > most:
        raise _too_large(most)


def _too_large(most: int) -> Unfit:
    size = f"{most // 1024**2} MB" if most >= 1024**2 else f"{most // 1024} kB"
    return Unfit(f"is larger than {size}: make it smaller or split it")
