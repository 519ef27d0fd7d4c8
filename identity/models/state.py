"""The identities and accounts of one page of a synchronisation, in memory.

Each state knows what is stored, so that only what differs is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from .account import Account
from .identity import Identity
from .pending_export import PendingExport

Operation, Export = PendingExport.Operation, PendingExport.Status
Status, Join = Account.Status, Account.Join


class ExportState(NamedTuple):
    """A pending export: what to send, and what was sent and is not yet confirmed. A new one has the id 0."""

    id: int
    operation: str
    changes: Mapping[str, Any]
    sent: Mapping[str, Any]
    status: str
    revision: int
    # The run that last sent it.
    activity_id: int | None = None

    @property
    def is_sent(self) -> bool:
        return self.status in (Export.IN_FLIGHT, Export.EXPORTED) or bool(self.sent)

    @property
    def was_tried(self) -> bool:
        """Return whether the system may have taken it, which is not known if the export was killed."""
        return self.is_sent or self.activity_id is not None

    @property
    def values(self) -> tuple[Any, ...]:
        """Return what a synchronisation writes: operation, changes, sent, status, revision."""
        return self[1:6]


def is_deletion(export: ExportState | None) -> bool:
    return export is not None and export.operation == Operation.DELETE


class StoredAccount(NamedTuple):
    identity: IdentityState | None
    join: str
    status: str
    wanted: dict[str, Any] | None
    export: ExportState | None


@dataclass(eq=False, slots=True)
class AccountState:
    id: int
    system_id: int
    type_id: int
    external_id: str | None
    attrs: dict[str, Any]
    wanted: dict[str, Any] | None
    status: str
    join: str
    is_dirty: bool = False
    identity: IdentityState | None = None
    export: ExportState | None = None
    # The identities that the references of this account mean, by attribute.
    references: dict[str, Any] = field(default_factory=dict)
    stored: StoredAccount | None = None
    is_removed: bool = False

    @property
    def name(self) -> str:
        return f"account:{self.id}"

    @property
    def display(self) -> str:
        return self.external_id or self.name

    @property
    def is_governed(self) -> bool:
        """Return whether JIM created the account, or joined it because of an outbound rule."""
        return self.join == Join.PROVISIONED

    @property
    def held(self) -> dict[str, Any]:
        """Return what the system has, as far as JIM knows, including what was sent."""
        return {**self.attrs, **self.export.sent} if self.export else self.attrs

    def remember(self) -> None:
        self.stored = StoredAccount(self.identity, self.join, self.status, self.wanted, self.export)

    def revive(self) -> None:
        """Let an account that is gone from its system be created again."""
        self.status, self.attrs = Status.PROVISIONING.value, {}

    def leave(self) -> None:
        """Leave the system's object as it is; forget an account that was never created."""
        if self.status == Status.PROVISIONING:
            self.is_removed = self.export is None or not self.export.was_tried
            self.status = Status.PRESENT.value

    def restore(self) -> None:
        assert self.stored is not None
        self.identity, self.join, self.status, self.wanted, self.export = self.stored
        self.is_removed = False


class StoredIdentity(NamedTuple):
    attrs: dict[str, Any]
    lineage: dict[str, Any]
    delete_after: datetime | None
    deletion: dict[str, Any] | None
    accounts: dict[int, AccountState]
    kept: list[AccountState]


@dataclass(eq=False, slots=True)
class IdentityState:
    id: int
    uuid: str
    type_id: int
    attrs: dict[str, Any] = field(default_factory=dict)
    lineage: dict[str, Any] = field(default_factory=dict)
    origin: str = Identity.Origin.PROJECTED
    delete_after: datetime | None = None
    deletion: dict[str, Any] | None = None
    version: int = 0
    # The joined accounts by type, and those that are gone but stay joined.
    accounts: dict[int, AccountState] = field(default_factory=dict)
    kept: list[AccountState] = field(default_factory=list)
    # The systems whose accounts were disconnected and joined in this page.
    lost: set[int] = field(default_factory=set)
    gained: set[int] = field(default_factory=set)
    stored: StoredIdentity | None = None
    is_deleted: bool = False

    @property
    def is_new(self) -> bool:
        return not self.id

    @property
    def name(self) -> str:
        return f"identity:{self.id}"

    def remember(self) -> None:
        self.stored = StoredIdentity(
            self.attrs,
            self.lineage,
            self.delete_after,
            self.deletion,
            dict(self.accounts),
            list(self.kept),
        )

    def restore(self) -> None:
        assert self.stored is not None
        self.attrs, self.lineage, self.delete_after, self.deletion, accounts, kept = self.stored
        self.accounts, self.kept = dict(accounts), list(kept)
        self.lost, self.gained = set(), set()

    def connect(self, account: AccountState, join: str) -> None:
        self.accounts[account.type_id] = account
        self.gained.add(account.system_id)
        account.identity, account.join = self, join

    def disconnect(self, account: AccountState) -> None:
        if self.accounts.get(account.type_id) is account:
            del self.accounts[account.type_id]
        elif account in self.kept:
            self.kept.remove(account)
        self.lost.add(account.system_id)
        account.identity, account.join = None, Join.NONE.value
