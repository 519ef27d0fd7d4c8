"""Limits on concurrent tasks. A policy, named in the settings, decides which limits a task counts towards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from django.conf import settings
from django.utils.module_loading import import_string

from database.statements import AWAY
from execution.steps.step_type import Isolation
from schedules.models import Refused
from schedules.registry import step_types

from .order import Turn

SEPARATOR = "\n"
LONGEST_KEY = 100
LONGEST = 1_200


class ConcurrencyPolicy(Protocol):
    def keys(self, line: Mapping[str, Any]) -> Sequence[str]:
        """Return the limit keys of a plan line or single job. The keys are fixed when the task is queued."""
        ...


class AllKeys:
    """A policy that returns `global`, and a key for the pool, the step type and each resource of a task.

    The resources are those that the author of the step has listed, and those that the step type names.
    """

    def keys(self, line: Mapping[str, Any]) -> Sequence[str]:
        resources = [f"resource:{name}" for name in (*line["resources"], *_held(line))]
        return ["global", f"pool:{line['pool']}", f"type:{line['step_type']}", *resources]


def _held(line: Mapping[str, Any]) -> list[str]:
    """Return the resources that the step type names for this line; none if the step type is unknown."""
    kind = step_types.get(line["step_type"])
    try:
        return [] if kind is None else list(kind.resources(line["config"]))
    except (Refused, *AWAY):
        raise
    except Exception as error:
        told = f"The step type “{line['step_type']}” did not return the resources that the step holds:"
        raise Refused(f"{told} {error!r:.150}") from error


def limit_keys(line: Mapping[str, Any]) -> str:
    """Return a line's limit keys as they are stored: sorted, and separated by line breaks."""
    keys = _keys(line)
    if wrong := [key for key in keys if key_complaint(key)]:
        raise Refused(f"{_blamed()} the key {wrong[0]!r:.110} {key_complaint(wrong[0])}.")
    text = SEPARATOR.join(sorted(set(keys)))
    # In bytes, because the keys are part of an index, whose entries are limited in size.
    if (size := len(text.encode())) > LONGEST:
        raise Refused(f"{_blamed()} all keys together take up {size} bytes; at most {LONGEST} are allowed.")
    return text


def _keys(line: Mapping[str, Any]) -> list[str]:
    """Return the limit keys that the policy gives to this line.

    The policy can be custom code: any exception that it raises becomes Refused, unless the database is away.
    """
    try:
        return list(policy().keys(line))
    except (Refused, *AWAY):
        raise
    except Exception as error:
        raise Refused(f"{_blamed()} {error!r:.150}") from error


def _blamed() -> str:
    named = settings.JIM_CONCURRENCY_POLICY
    return f"The policy in JIM_CONCURRENCY_POLICY ({named}) did not return valid limit keys:"


def key_complaint(key: object) -> str:
    """Return what is wrong with a limit key, such as “is not text”; empty if nothing is wrong."""
    if not isinstance(key, str):
        return "is not text"
    if not 0 < len(key) <= LONGEST_KEY:
        return f"is {len(key)} characters long; 1 to {LONGEST_KEY} are allowed"
    return (
        ""
        if key.isprintable() and key == key.strip()
        else "begins or ends with a space, or contains an invisible character"
    )


@dataclass
class Room:
    """How many more tasks can run: by limit, and by pool whose next seat is reserved for a direct request."""

    limits: dict[str, int]
    pools: dict[str, int]

    @classmethod
    def left(
        cls, sizes: Mapping[str, int], seats: Mapping[str, int], holders: Iterable[tuple[str, str, int]]
    ) -> Room:
        """Return how much room the holders leave in limits of these sizes and pools with these seats.

        A holder is (limit keys, pool, number of tasks), and takes up room for this number of tasks.
        """
        room = cls(dict(sizes), dict(seats))
        for limit_keys, pool, count in holders:
            room.take(limit_keys, pool, count)
        return room

    def fits(self, limit_keys: str, pool: str) -> bool:
        """Return whether there is room for one more task. Keys without a limit always have room."""
        keys = limit_keys.split(SEPARATOR)
        return self.pools.get(pool, 1) > 0 and all(self.limits.get(key, 1) > 0 for key in keys)

    def take(self, limit_keys: str, pool: str, count: int = 1) -> None:
        for key in self.limits.keys() & set(limit_keys.split(SEPARATOR)):
            self.limits[key] -= count
        if pool in self.pools:
            self.pools[pool] -= count


class Candidate(NamedTuple):
    """A ready task that could be claimed. `is_limited` is also true if only a reservation limits it."""

    turn: Turn
    isolation: Isolation
    limit_keys: str
    pool: str
    is_limited: bool

    @property
    def id(self) -> int:
        return self.turn[-1]


class Choice(NamedTuple):
    """The ids of the limited tasks to claim, and how many other tasks to claim, by isolation."""

    chosen: list[int]
    others: Counter[Isolation]


def choose(
    candidates: Iterable[Candidate],
    room: Room,
    *,
    free: Mapping[Isolation, int],
    ahead: Mapping[Isolation, int],
) -> Choice:
    """Choose the next tasks that have room, in the order of the queue.

    No task overtakes an earlier one of the same isolation that waits only for a seat. `ahead` is how many
    tasks without a limit may be chosen beyond the free seats, by isolation.
    """
    chosen: list[int] = []
    taken: Counter[Isolation] = Counter()
    others: Counter[Isolation] = Counter()
    closed: set[Isolation] = set()
    for task in sorted(candidates):
        seats, most = free[task.isolation], free[task.isolation] + ahead.get(task.isolation, 0)
        if task.isolation in closed or not room.fits(task.limit_keys, task.pool):
            continue
        if taken[task.isolation] >= (seats if task.is_limited else most):
            closed.add(task.isolation)
            continue
        taken[task.isolation] += 1
        if task.is_limited:
            room.take(task.limit_keys, task.pool)
            chosen.append(task.id)
        else:
            others[task.isolation] += 1
    return Choice(chosen, others)


def policy() -> ConcurrencyPolicy:
    return _policy(settings.JIM_CONCURRENCY_POLICY)


@lru_cache(maxsize=8)
def _policy(path: str) -> ConcurrencyPolicy:
    try:
        made: ConcurrencyPolicy = import_string(path)()
    except Exception as error:
        raise Refused(
            f"The setting JIM_CONCURRENCY_POLICY ({path}) does not name a usable class: {error}"
        ) from error
    return made
