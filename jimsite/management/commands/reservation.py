from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from execution.models import Reservation
from jimsite.terminal import on_clock, state
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import Refused


def held_in(pool: str) -> Reservation:
    """Find the current reservation of a pool; a pool has at most one."""
    found = Reservation.objects.live().filter(pool=pool.strip()).first()
    if found is None:
        raise Refused(
            f"No direct request holds or waits for a seat of pool “{pool}”. Use “reservation list” to list "
            "the reservations."
        )
    return found


class Command(VerbsCommand):
    help = "List and release reservations: seats of pools that direct requests use or wait for."

    def verbs(self) -> Iterator[Verb]:
        yield Verb("list", "List the seats that direct requests wait for or hold.", self.list_all)
        yield from self.operations_of(Reservation, Target("POOL", "pool whose seat is held", held_in))

    def list_all(self, options: dict[str, Any]) -> None:
        rows = list(Reservation.objects.live().order_by("pool"))
        self.tell({"reservations": [_facts(row) for row in rows]}, lambda: self._show(rows))

    def _show(self, rows: Sequence[Reservation]) -> None:
        if not rows:
            self.say("No direct request holds or waits for a seat.")
            return
        self.columns(
            {
                "State": [state(row.state) for row in rows],
                "Pool": [row.pool for row in rows],
                "Holder": [row.holder for row in rows],
                "Since (UTC)": [on_clock(row.created_at) for row in rows],
                "Activity": [str(row.activity_id or "") for row in rows],
            }
        )


def _facts(row: Reservation) -> dict[str, Any]:
    return {
        "pool": row.pool,
        "holder": row.holder,
        "state": row.state,
        "created_at": row.created_at,
        "taken_at": row.taken_at,
        "activity": row.activity_id,
    }
