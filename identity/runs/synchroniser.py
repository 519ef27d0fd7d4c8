"""Compute and write pages of accounts and identities, on behalf of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial

from django.db.models import QuerySet

from database.statements import fetch, pipelined
from identity.models import Account, FormerAccount, Identity, IdentityType
from identity.models.state import AccountState
from identity.rulebook import Rulebook

from .deleting import deleted_items, deprovision, due, remove
from .run import Item, PageCounts, Run
from .sync_page import SyncPage
from .sync_report import Report, has_changed, report
from .sync_writing import SyncWriter


def lock_metaverse() -> None:
    """Wait for other transactions that derive identities: two of them could join the same identity."""
    types = IdentityType.objects.select_for_update(of=("self",), no_key=True).order_by("pk")
    list(types.values_list("pk"))


class Synchroniser:
    def __init__(self, run: Run, book: Rulebook, *, page_size: int) -> None:
        self.run, self.book, self.page_size = run, book, page_size
        self.done = self.total = 0

    def settle_accounts(
        self,
        system_id: int,
        *,
        only_dirty: bool = False,
        settle: Callable[[SyncPage, list[AccountState]], None] = SyncPage.settle,
    ) -> None:
        """Settle all accounts of a system, or only those that have changed, page by page."""
        condition = "AND is_dirty" if only_dirty else ""
        accounts = Account.objects.filter(system=system_id)
        self.total = (accounts.filter(is_dirty=True) if only_dirty else accounts).count()
        ending = f"WHERE system_id = %s AND id > %s {condition} ORDER BY id LIMIT %s"

        def compute(last: int, page: SyncPage) -> None:
            settle(page, page.read_accounts(ending, [system_id, last, self.page_size]))

        last: int | None = 0
        while last is not None:
            page = self._write(partial(compute, last))
            last = page.considered[-1].id if page.considered else None
            page.release()

    def settle_identities(self) -> None:
        """Compute the identities that must change because of other objects, until there are none.

        An identity that fails stays dirty, so this ends when a pass changes nothing.
        """
        while self._pass_over_dirty():
            pass

    def _pass_over_dirty(self) -> bool:
        last, has_changed = 0, False
        while rows := fetch(
            "SELECT id FROM identity_identity WHERE is_dirty AND id > %s ORDER BY id LIMIT %s",
            [last, self.page_size],
        ):
            has_changed |= self.recompute([pk for (pk,) in rows])
            last = rows[-1][0]
        return has_changed

    def settle_former(self, system_id: int) -> None:
        """Compute the identities that had an account in this system when it was cleared."""
        former = FormerAccount.objects.filter(type__system=system_id)
        identities = Identity.objects.filter(pk__in=former.values("identity"))
        self._settle_each(identities, lost=[system_id])

    def settle_lacking(self, system_id: int) -> None:
        """Compute the identities that have no account in this system, and may get one by an outbound rule."""
        for identities in self.book.identity_types.values():
            for type_id in identities.outbound:
                if self.book.types[type_id].system_id == system_id:
                    joined = Account.objects.filter(type=type_id, identity__isnull=False)
                    of_type = Identity.objects.filter(type=identities.id)
                    self._settle_each(of_type.exclude(pk__in=joined.values("identity")))

    def _settle_each(self, identities: QuerySet[Identity], *, lost: Collection[int] = ()) -> None:
        last, ids = 0, identities.order_by("pk").values_list("pk", flat=True)
        while some := list(ids.filter(pk__gt=last)[: self.page_size]):
            last = some[-1]
            self.recompute(some, lost=lost)

    def recompute(self, ids: Sequence[int], *, lost: Collection[int] = ()) -> bool:
        """Compute identities again; `lost` are systems in which they no longer have an account."""
        page = self._write(lambda page: page.recompute(ids, lost=lost))
        is_news = any(map(has_changed, page.considered))
        page.release()
        return is_news

    def delete_due(self) -> None:
        """Delete the identities whose time has come, and compute those that refer to them."""
        while ids := due(self.run.now, self.page_size):
            self.run.take(self.run.page(partial(self._delete, ids)))
            self.settle_identities()

    def _delete(self, ids: Sequence[int]) -> PageCounts:
        page = self.new_page()
        deleted = deprovision(page, ids, now=self.run.now)
        found = self._store(page, deleted_items(page, deleted))
        remove(deleted)
        return PageCounts(len(deleted), counts=found.counts + Counter(deleted=len(deleted)))

    # One page

    def new_page(self) -> SyncPage:
        lock_metaverse()
        by = self.run.initiator
        initiator = {"type": by.type, "id": by.id, "name": by.name, "activity": self.run.activity_id}
        return SyncPage(self.book, activity_id=self.run.activity_id, initiator=initiator, now=self.run.now)

    def _write(self, compute: Callable[[SyncPage], None]) -> SyncPage:
        """Compute and write one page, and count what it did."""

        def work() -> tuple[SyncPage, PageCounts]:
            page = self.new_page()
            compute(page)
            found = self._store(page, [])
            return page, PageCounts(found.total, failed=found.failed, counts=found.counts)

        page, counts = self.run.page(work)
        self.run.take(counts)
        self.done += counts.total
        self.total = max(self.total, self.done)
        self.run.progress(self.done, self.total, f"{self.done:,} objects synchronised")
        return page

    def _store(self, page: SyncPage, items: Sequence[Item]) -> Report:
        # While PostgreSQL writes, the next statement is prepared, which takes as long.
        with pipelined():
            SyncWriter(page).write()
            found = report(page)
            self.run.write_items([*found.items, *items])
        return found
