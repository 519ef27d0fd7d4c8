"""What a task counts for while it runs. Which keys it has is up to a policy that the settings name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from django.conf import settings
from django.utils.module_loading import import_string

SEPARATOR = "\n"
LONGEST_KEY = 100
LONGEST = 500


class ConcurrencyPolicy(Protocol):
    def keys(self, line: Mapping[str, Any]) -> Sequence[str]:
        """The limit keys of a line of a plan, or of a single job; frozen when it is queued."""
        ...


class AllKeys:
    """Everything, its pool, its step type, and each resource that it names."""

    def keys(self, line: Mapping[str, Any]) -> Sequence[str]:
        resources = [f"resource:{name}" for name in line["resources"]]
        return ["global", f"pool:{line['pool']}", f"type:{line['step_type']}", *resources]


def limit_keys(line: Mapping[str, Any]) -> str:
    """As they are stored: in order, one per line."""
    keys = sorted(set(policy().keys(line)))
    if wrong := [key for key in keys if key_complaint(key)]:
        raise ValueError(f"the limit key {wrong[0][:LONGEST_KEY]!r} {key_complaint(wrong[0])}")
    if len(text := SEPARATOR.join(keys)) > LONGEST:
        raise ValueError(f"the limit keys have {len(text)} characters together; at most {LONGEST} are kept")
    return text


def key_complaint(key: str) -> str:
    """What is wrong with a limit's key; empty if nothing is."""
    if not 0 < len(key) <= LONGEST_KEY:
        return f"has {len(key)} characters; 1 to {LONGEST_KEY} are allowed"
    return (
        ""
        if key.isprintable() and key == key.strip()
        else "begins, ends or is broken by a character that cannot be seen"
    )


@dataclass
class Room:
    """How many more may run: by limit, and in pools whose next seat is reserved for a direct request."""

    limits: dict[str, int]
    pools: dict[str, int]

    @classmethod
    def left(
        cls, sizes: Mapping[str, int], seats: Mapping[str, int], holders: Iterable[tuple[str, str, int]]
    ) -> Room:
        """Of the sizes of limits and the seats of pools; holders are (limit keys, pool, how many)."""
        room = cls(dict(sizes), dict(seats))
        for limit_keys, pool, count in holders:
            room.take(limit_keys, pool, count)
        return room

    def fits(self, limit_keys: str, pool: str) -> bool:
        """What nobody limits has room for one more."""
        keys = limit_keys.split(SEPARATOR)
        return self.pools.get(pool, 1) > 0 and all(self.limits.get(key, 1) > 0 for key in keys)

    def take(self, limit_keys: str, pool: str, count: int = 1) -> None:
        for key in self.limits.keys() & set(limit_keys.split(SEPARATOR)):
            self.limits[key] -= count
        if pool in self.pools:
            self.pools[pool] -= count


def policy() -> ConcurrencyPolicy:
    return _policy(settings.JIM_CONCURRENCY_POLICY)


@lru_cache(maxsize=8)
def _policy(path: str) -> ConcurrencyPolicy:
    made: ConcurrencyPolicy = import_string(path)()
    return made
