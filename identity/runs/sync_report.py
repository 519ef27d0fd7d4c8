"""Say what a page of a synchronisation does: items for the objects that change, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from identity.models.state import AccountState, ExportState, IdentityState, Operation
from identity.values import difference

from .run import Item
from .sync_page import SyncPage

Subject = AccountState | IdentityState


@dataclass
class Report:
    items: list[Item]
    counts: Counter[str]
    total: int
    failed: int


def report(page: SyncPage) -> Report:
    """Report what the page does. If it was written, new objects have their ids."""
    items = [item for item in _items(page) if item.change or item.error_type]
    counts = Counter(item.change for item in items if item.change)
    accounts = page.accounts.values()
    counts["removed"] = sum(each.is_removed for each in accounts)
    failed = {id(each.subject) for each in page.failures}
    unchanged = [each for each in page.considered if id(each) not in failed and not has_changed(each)]
    counts["unchanged"] = sum(isinstance(each, AccountState) for each in unchanged)
    # Identities that were looked at because of other objects, and stay as they are, are not counted.
    total = len(page.considered) - len(unchanged) + counts["unchanged"]
    return Report(items, +counts, total, len(failed))


def _items(page: SyncPage) -> Iterator[Item]:
    for event in page.events:
        is_new = event.change == "projected"
        diff = difference({}, event.subject.attrs) if is_new else None
        yield _item(page, event.subject, event.change, diff)
    for identity in page.identities.values():
        if diff := difference(was(identity), identity.attrs):
            yield _item(page, identity, "flowed", diff)
    for account in [*page.accounts.values(), *page.new_accounts]:
        if (export := account.export) is not None and (change := _staged(account, export)):
            held = account.held
            diff = {name: [held.get(name), value] for name, value in export.changes.items()}
            yield _item(page, account, change, diff, message=export.operation)
    for failure in page.failures:
        item = _item(page, failure.subject, "", message=str(failure.error))
        yield item._replace(error_type=failure.error.error_type)


def _staged(account: AccountState, export: ExportState) -> str:
    """Return what kind of change is staged: “staged”, “drift”, or nothing if nothing new is."""
    stored = account.stored
    if stored is not None and stored.export == export:
        return ""
    if not export.changes and export.operation == Operation.UPDATE:
        return ""
    is_drift = stored is not None and stored.wanted is not None and stored.wanted == account.wanted
    return "drift" if is_drift and export.operation == Operation.UPDATE else "staged"


def _item(
    page: SyncPage, subject: Subject, change: str, diff: dict[str, Any] | None = None, message: str = ""
) -> Item:
    if isinstance(subject, AccountState):
        return Item(subject.display, change, subject.name, subject.external_id or "", diff, message)
    return Item(page.display(subject), change, subject.name, "", diff, message)


def has_changed(subject: Subject) -> bool:
    """Return whether the account, or the identity that it belongs to, has changed in this page."""
    identity = subject if isinstance(subject, IdentityState) else subject.identity
    accounts = [] if identity is None else list(identity.accounts.values())
    accounts += [subject] if isinstance(subject, AccountState) else []
    if identity is not None and identity_differs(identity):
        return True
    return any(
        each.is_removed
        or account_differs(each)
        or (each.stored is not None and each.stored.export != each.export)
        for each in accounts
    )


def was(identity: IdentityState) -> dict[str, Any]:
    return identity.stored.attrs if identity.stored is not None else {}


def identity_differs(identity: IdentityState) -> bool:
    stored = identity.stored
    return stored is None or (
        stored.attrs != identity.attrs
        or stored.lineage != identity.lineage
        or stored.delete_after != identity.delete_after
    )


def account_differs(account: AccountState) -> bool:
    stored = account.stored
    assert stored is not None
    return (
        stored.identity is not account.identity
        or stored.join != account.join
        or stored.status != account.status
        or stored.wanted != account.wanted
    )
