"""Decode the bytes of a running program into lines of text."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from execution.steps.masking import Mask

LONGEST = 8_192
_decoder = codecs.getincrementaldecoder("utf-8")


class Lines:
    """A decoder of bytes into lines, which replaces invalid bytes and splits overlong lines.

    An unfinished last line is kept until the rest arrives. With a mask, no line is split inside a secret,
    because the two parts could not be recognised afterwards.
    """

    def __init__(self) -> None:
        self._decoder = _decoder(errors="replace")
        self._rest = ""

    def feed(self, data: bytes, mask: Mask | None = None) -> list[str]:
        *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        lines = [piece for line in whole for piece in _pieces(line.removesuffix("\r"), mask)]
        *early, self._rest = _pieces(self._rest, mask, ahead=0 if mask is None else mask.longest)
        return lines + early

    def finish(self, mask: Mask | None = None) -> list[str]:
        rest = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        self._decoder.reset()
        return _pieces(rest, mask) if rest else []


def _pieces(line: str, mask: Mask | None, ahead: int = 0) -> list[str]:
    """Split a line into pieces. A piece is split off only if at least `ahead` characters follow."""
    pieces = []
    while len(line) > LONGEST + ahead:
        end = LONGEST if mask is None else mask.gap(line, LONGEST)
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]
