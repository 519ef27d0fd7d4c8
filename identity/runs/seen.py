from __future__ import annotations


class SeenIds:
    """A set of row ids that needs one bit for each id, so that a run can remember millions of rows."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, pk: int) -> bool:
        """Add the id; return False if it was already in the set."""
        place, bit = pk >> 3, 1 << (pk & 7)
        if place >= len(self._bits):
            self._bits.extend(bytes(max(place + 1 - len(self._bits), len(self._bits) // 2)))
        if self._bits[place] & bit:
            return False
        self._bits[place] |= bit
        return True

    def __contains__(self, pk: int) -> bool:
        place = pk >> 3
        return place < len(self._bits) and bool(self._bits[place] & 1 << (pk & 7))
