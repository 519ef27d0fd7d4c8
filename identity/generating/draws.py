"""Random numbers that are always the same for the same seed, purpose and index."""

from __future__ import annotations

from fractions import Fraction
from hashlib import blake2b
from struct import Struct

from identity.values import canonical

_BITS = 64
_PLACE = Struct("<QQ")


class Draws:
    """The numbers for one purpose. They are hashes, so that each can be had without those before."""

    def __init__(self, seed: int, *purpose: str) -> None:
        self._start = blake2b(canonical([seed, *purpose]).encode(), digest_size=_BITS // 8)

    def number(self, index: int, turn: int = 0) -> int:
        """Return a number of 64 bits; an index has as many as there are turns."""
        drawn = self._start.copy()
        drawn.update(_PLACE.pack(index, turn))
        return int.from_bytes(drawn.digest(), "little")

    def below(self, limit: int, index: int, turn: int = 0) -> int:
        return self.number(index, turn) * limit >> _BITS


class Chance:
    """Yes for a share of all indexes, such as 1/4."""

    def __init__(self, share: Fraction, draws: Draws) -> None:
        self._limit = int(share * 2**_BITS)
        self._draws = draws

    def falls(self, index: int) -> bool:
        return self._draws.number(index) < self._limit
