"""The measured numbers of all rounds."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .machine import Noise

JIM = ""


class Reading(NamedTuple):
    """One number of one measurement."""

    metric: str
    value: float
    unit: str


class Key(NamedTuple):
    metric: str
    database: str
    peer: str = JIM


@dataclass
class Result:
    unit: str = ""
    values: list[float] = field(default_factory=list)
    noise: list[Noise] = field(default_factory=list)
    """How busy and fast the machine was just before each run."""
    failure: str = ""

    @property
    def value(self) -> float | None:
        """Return the median of all runs; None if any run has failed."""
        return statistics.median(self.values) if self.values and not self.failure else None


class Results(dict[Key, Result]):
    def add(self, key: Key, value: float, unit: str, *, noise: Noise) -> None:
        result = self.setdefault(key, Result())
        result.unit = unit
        result.values.append(value)
        result.noise.append(noise)

    def fail(self, key: Key, why: str) -> None:
        self.setdefault(key, Result()).failure = why

    def value(self, key: Key) -> float | None:
        return self[key].value if key in self else None

    @property
    def failures(self) -> dict[Key, str]:
        return {key: result.failure for key, result in self.items() if result.failure}

    def as_json(self) -> list[dict[str, Any]]:
        """Return the results as a list for JSON; the value of a failed metric is None."""
        return [
            {"metric": key.metric, "database": key.database, "value": result.value, "unit": result.unit}
            | ({"peer": key.peer} if key.peer else {})
            for key, result in self.items()
        ]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n")
