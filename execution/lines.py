"""Bytes of a running program become lines of text."""

from __future__ import annotations

import codecs

LONGEST = 8_192
_decoder = codecs.getincrementaldecoder("utf-8")


class Lines:
    """Undecodable bytes are replaced, overlong lines split, a last line without its end kept."""

    def __init__(self) -> None:
        self._decoder = _decoder(errors="replace")
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        lines = [piece for line in whole for piece in _pieces(line.removesuffix("\r"))]
        *early, self._rest = _pieces(self._rest)
        return lines + early

    def finish(self) -> list[str]:
        rest = self._rest + self._decoder.decode(b"", final=True)
        self._rest = ""
        self._decoder.reset()
        return _pieces(rest) if rest else []


def _pieces(line: str) -> list[str]:
    if len(line) <= LONGEST:
        return [line]
    return [line[start : start + LONGEST] for start in range(0, len(line), LONGEST)]
