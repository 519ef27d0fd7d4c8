from __future__ import annotations

from typing import NamedTuple

STEPS = 9


class Large(NamedTuple):
    schedules: int = 5_000
    executions: int = 100_000
    deliveries: int = 50_000
    lines: int = 200_000
    jobs: int = 2_000
    running: int = 30

    @property
    def activities(self) -> int:
        return self.executions * (STEPS + 1)
