"""A delay that is drawn once for all: the same for the same schedule and time, evenly spread over many."""

from __future__ import annotations

from hashlib import blake2b


def delay(seed: str, nominal: int, window: int) -> int:
    """Return whole seconds, at least 0 and less than `window`."""
    digest = blake2b(f"{seed}\n{nominal}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) * window >> 64
