"""Export runs: make the pending changes in a connected system.

What is about to be sent is committed as “in flight” first. If the run is killed, the next run sends it again:
all changes are absolute, so that making them twice is the same as making them once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

from django.db.models import Q, QuerySet

from database.statements import update_each
from execution.steps.outcome import StepFailed
from identity.connectors.connector import Again, Change, ConnectorError, Export, ReadObject, Result
from identity.models import Account, ConnectedSystem, Identity, PendingExport

from .limits import Finding, is_exceeded, limit_of
from .run import Item, PageCounts, ProfileRun

Operation, Status = PendingExport.Operation, PendingExport.Status
DONE = {Operation.CREATE: "created", Operation.UPDATE: "updated", Operation.DELETE: "deleted"}
MOST_ATTEMPTS = 5
LONGEST_DELAY = timedelta(hours=1)
STORED = ("changes", "sent", "status", "attempts", "next_at", "error_type", "error", "activity_id")


class ExportRun(ProfileRun):
    def perform(self) -> None:
        connector = self.system.connect()
        if "export" not in connector.can:
            raise StepFailed(f"“{self.system}” cannot be exported to: check its settings.", can_retry=False)
        self.confirms_itself = "auto_confirm" in connector.can
        self.page(self._take_back)
        self._check_deletions()
        while self.page(self._send_some):
            pass
        total = self._in_flight().count()
        if not total:
            return
        export = Export(
            self.system.shapes(),
            Again(self._changes),
            Again(self._objects),
            str(self.ctx.work.key),
            self.system.watermark or {},
        )
        try:
            results, watermark = connector.export(export)
        except ConnectorError as error:
            self.page(self._take_back)
            raise StepFailed(str(error), can_retry=error.is_transient) from None
        self._record(results, total)
        self.page(partial(self._store_watermark, watermark))

    def _pending(self) -> QuerySet[PendingExport]:
        return PendingExport.objects.filter(system=self.system)

    def _in_flight(self) -> QuerySet[PendingExport]:
        return self._pending().filter(status=Status.IN_FLIGHT)

    def _take_back(self) -> None:
        """Make everything pending again that was in flight when an earlier run ended."""
        while exports := list(self._locked(self._in_flight())):
            rows: list[tuple[Any, ...]] = [
                (each.pk, each.sent | each.changes, {}, Status.PENDING.value) for each in exports
            ]
            update_each(PendingExport, ("changes", "sent", "status"), rows)

    def _locked(self, exports: QuerySet[PendingExport]) -> QuerySet[PendingExport]:
        locked = exports.select_for_update(of=("self",), no_key=True).order_by("account_id")
        return locked[: self.profile.page_size]

    def _check_deletions(self) -> None:
        """Send nothing at all if more accounts would be deleted than the limit allows."""
        due = self._due().filter(operation=Operation.DELETE)
        limit = limit_of(self.profile.limits, "deletes")
        names = list(due.order_by("account_id").values_list("account_id", flat=True))
        if not is_exceeded(limit, len(names), 0):
            return
        present = Account.objects.filter(system=self.system, status=Account.Status.PRESENT)
        self.check(Finding.of("deletes", names, number=len(names), total=present.count()))

    def _due(self) -> QuerySet[PendingExport]:
        is_due = Q(next_at=None) | Q(next_at__lte=self.now)
        return self._pending().filter(is_due, status__in=PendingExport.SENDABLE)

    def _send_some(self) -> int:
        """Commit to sending some of the due changes; return how many."""
        exports = list(self._locked(self._due()))
        rows: list[tuple[Any, ...]] = [
            (each.pk, {}, each.sent | each.changes, Status.IN_FLIGHT.value, self.activity_id)
            for each in exports
        ]
        if rows:
            update_each(PendingExport, ("changes", "sent", "status", "activity_id"), rows)
        return len(rows)

    # What the connector reads

    def _changes(self) -> Iterator[Change]:
        last = 0
        while some := self._next(self._in_flight().filter(account__gt=last)):
            last = some[-1].account_id
            for each in some:
                account = each.account
                yield Change(
                    account.pk,
                    each.operation,  # type: ignore[arg-type]
                    account.type.name,
                    account.external_id or "",
                    each.sent,
                    account.attrs,
                )

    def _next(self, exports: QuerySet[PendingExport]) -> list[PendingExport]:
        ordered = exports.select_related("account__type").order_by("account_id")
        return list(ordered[: self.profile.page_size])

    def _objects(self) -> Iterator[ReadObject]:
        """Yield all objects of the system as they are after the changes."""
        last = 0
        accounts = Account.objects.filter(system=self.system, type__is_selected=True)
        accounts = accounts.exclude(status=Account.Status.OBSOLETE).select_related("type", "pending")
        while some := list(accounts.filter(pk__gt=last).order_by("pk")[: self.profile.page_size]):
            last = some[-1].pk
            for account in some:
                pending = getattr(account, "pending", None)
                if (made := _after(account, pending)) is not None:
                    yield made

    # Results

    def _record(self, results: Iterable[Result], total: int) -> None:
        found, done = iter(results), 0
        while some := list(islice(found, self.profile.page_size)):
            self.take(self.page(partial(self._write_results, some)))
            done += len(some)
            self.progress(done, total, f"{done:,} of {total:,} changes exported")

    def _write_results(self, results: Sequence[Result]) -> PageCounts:
        by_account = {each.key: each for each in results}
        exports = self._in_flight().filter(account__in=by_account)
        locked = exports.select_for_update(of=("self",), no_key=True).order_by("account_id")
        counts: Counter[str] = Counter()
        items, stored, done = [], [], []
        for each in locked.select_related("account"):
            result = by_account[each.account_id]
            items.append(_item(each, result))
            if not result.is_ok:
                counts["failed"] += 1
                stored.append(self._refused(each, result))
                continue
            counts[DONE[Operation(each.operation)]] += 1
            is_complete = not each.changes
            if self.confirms_itself and is_complete:
                done.append(each)
            else:
                status = Status.EXPORTED if is_complete else Status.PENDING
                # Imports count how often they do not find what was sent; failed calls do not add to this.
                attempts = each.attempts if each.error_type == "not_confirmed" else 0
                values = (each.changes, each.sent, status.value, attempts, None, "", "", self.activity_id)
                stored.append((each.pk, *values))
        if stored:
            update_each(PendingExport, STORED, stored)
        self._confirm(done)
        self.write_items(items)
        failed = counts.pop("failed", 0)
        return PageCounts(len(results), failed=failed, counts=counts)

    def _refused(self, export: PendingExport, result: Result) -> tuple[Any, ...]:
        """Return what to store for a change that the system did not take."""
        attempts = export.attempts + 1
        is_over = not result.is_transient or attempts >= MOST_ATTEMPTS
        status = Status.REFUSED if is_over else Status.PENDING
        delay = min(timedelta(minutes=2**attempts), LONGEST_DELAY)
        return (
            export.pk,
            export.sent | export.changes,
            {},
            status.value,
            attempts,
            None if is_over else self.now + delay,
            result.error_type,
            result.message,
            self.activity_id,
        )

    def _confirm(self, exports: Sequence[PendingExport]) -> None:
        """Take what was sent for what the system has, because it cannot be imported."""
        deleted = [each.account_id for each in exports if each.operation == Operation.DELETE]
        theirs = Account.objects.filter(pk__in=deleted, identity__isnull=False).values("identity")
        Identity.objects.filter(pk__in=theirs).update(is_dirty=True)
        Account.objects.filter(pk__in=deleted).delete()
        kept = [each for each in exports if each.operation != Operation.DELETE]
        rows = [
            (each.account_id, _merged(each.account.attrs, each.sent), Account.Status.PRESENT.value)
            for each in kept
        ]
        if rows:
            update_each(Account, ("attrs", "status"), rows)
            PendingExport.objects.filter(pk__in=[each.pk for each in kept]).delete()

    def _store_watermark(self, watermark: Mapping[str, Any]) -> None:
        system = ConnectedSystem.objects.lock().get(pk=self.system.pk)
        system.watermark = {**(system.watermark or {}), **watermark}
        system.save(update_fields=["watermark"])


def _after(account: Account, pending: PendingExport | None) -> ReadObject | None:
    """Return what the system has of an account after the export; None if it has nothing."""
    is_new = account.status == Account.Status.PROVISIONING
    is_sent = pending is not None and (
        bool(pending.sent) or pending.status in (Status.IN_FLIGHT, Status.EXPORTED)
    )
    is_deleted = pending is not None and pending.operation == Operation.DELETE and is_sent
    if is_deleted or (is_new and not is_sent):
        return None
    attrs = _merged(account.attrs, pending.sent if pending else {})
    return ReadObject(account.type.name, account.external_id or "", attrs, secondary_id=account.secondary_id)


def _merged(attrs: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**attrs, **sent}.items() if value is not None}


def _item(export: PendingExport, result: Result) -> Item:
    account = export.account
    diff = {name: [account.attrs.get(name), value] for name, value in export.sent.items()}
    change = DONE[Operation(export.operation)] if result.is_ok else ""
    return Item(
        str(account),
        change,
        f"account:{account.pk}",
        account.external_id or "",
        diff,
        result.message,
        result.error_type,
    )
