"""Confirm exports: compare what was sent with what an import found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from identity.models import PendingExport
from identity.values import Match, same

MOST_UNCONFIRMED = 5
Operation, Status = PendingExport.Operation, PendingExport.Status


class Confirmation(NamedTuple):
    """What an import says about an export, and the changes that remain to be sent."""

    export: PendingExport
    is_confirmed: bool
    changes: dict[str, Any]
    operation: str

    @property
    def is_done(self) -> bool:
        return self.is_confirmed and not self.changes

    @property
    def has_failed(self) -> bool:
        return not self.is_confirmed and self.export.attempts + 1 >= MOST_UNCONFIRMED

    @property
    def status(self) -> str:
        if self.has_failed:
            return Status.REFUSED.value
        return Status.PENDING.value if self.is_confirmed else Status.UNCONFIRMED.value

    @property
    def error_type(self) -> str:
        if self.is_confirmed:
            return ""
        return "confirmation_failed" if self.has_failed else "not_confirmed"

    @property
    def error(self) -> str:
        if self.is_confirmed:
            return ""
        if self.operation == Operation.DELETE:
            return "the account should have been deleted, but the import still found it"
        if self.operation == Operation.CREATE:
            return "the account should have been created, but the import did not find it"
        return f"the import did not find the values that were sent: {', '.join(sorted(self.changes))}"

    @property
    def values(self) -> tuple[Any, ...]:
        """Return what to store: operation, changes, sent, status, error, error_type, attempts."""
        attempts = 0 if self.is_confirmed else self.export.attempts + 1
        return (self.operation, self.changes, {}, self.status, self.error, self.error_type, attempts)


def confirm(
    export: PendingExport, attributes: Mapping[str, Any] | None, matches: Mapping[str, Match]
) -> Confirmation:
    """Compare an export with the attributes that an import found; None if it did not find the object."""
    if export.operation == Operation.DELETE:
        return Confirmation(export, attributes is None, {}, export.operation)
    if attributes is None:
        return Confirmation(export, False, export.sent | export.changes, Operation.CREATE)
    missing = {
        name: value
        for name, value in export.sent.items()
        if not same(attributes.get(name), value, matches.get(name, Match.EXACT))
    }
    return Confirmation(export, not missing, missing | export.changes, Operation.UPDATE)
