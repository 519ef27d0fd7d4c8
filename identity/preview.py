"""Show what a synchronisation would do, with the same code and without writing anything."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from database.statements import among

from .models import Account, Flow, SyncRule
from .models.state import IdentityState
from .rulebook import Rulebook
from .runs.joining import Key
from .runs.run import Item
from .runs.sync_page import SyncPage
from .runs.sync_report import report

PAGE = 500
MOST_EXAMPLES = 50


@dataclass
class Preview:
    """What would happen to the first `done` of `total` accounts: counts by change, and some examples."""

    total: int
    done: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[Item] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.done >= self.total

    def add(self, page: SyncPage) -> None:
        found = report(page)
        self.done += len(page.considered)
        self.counts += found.counts + Counter(failed=found.failed)
        self.examples += found.items[: MOST_EXAMPLES - len(self.examples)]


def edited_book(rule: SyncRule, flows: Sequence[Flow]) -> Rulebook:
    """Return the rulebook as it would be with this rule, which need not be stored."""
    book = Rulebook.load(without=rule.pk)
    if rule.is_enabled:
        book.add(rule, flows)
    book.sort_flows()
    return book


def preview_accounts(book: Rulebook, ids: Sequence[int], *, now: datetime) -> Preview:
    """Show what synchronising these accounts would do."""
    preview = Preview(total=len(ids))
    theirs, params = among("id", ids)
    preview.add(_settled(book, f"WHERE {theirs} ORDER BY id", params, now, {}))
    return preview


def preview_system(book: Rulebook, system_id: int, *, seconds: float, now: datetime) -> Preview:
    """Show what a full synchronisation of a system would do, for as many accounts as there is time for."""
    enough, last = time.monotonic() + seconds, 0
    preview = Preview(total=Account.objects.filter(system=system_id).count())
    # Accounts of later pages may be joined to identities that earlier pages would project.
    projected: dict[Key, list[IdentityState]] = {}
    ending = "WHERE system_id = %s AND id > %s ORDER BY id LIMIT %s"
    while time.monotonic() < enough or not last:
        page = _settled(book, ending, [system_id, last, PAGE], now, projected)
        if not page.considered:
            break
        preview.add(page)
        last = page.considered[-1].id
    return preview


def _settled(
    book: Rulebook,
    ending: str,
    params: Iterable[object],
    now: datetime,
    projected: dict[Key, list[IdentityState]],
) -> SyncPage:
    page = SyncPage(book, activity_id=0, initiator={}, now=now, is_preview=True)
    page.projected = projected
    page.settle(page.read_accounts(ending, list(params)))
    return page
