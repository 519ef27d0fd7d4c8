"""One page of a synchronisation: settle the accounts, derive their identities, stage exports.

The page is computed in memory, and written in the same transaction. A preview computes it and writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from database.statements import among, fetch, read
from identity.models import Account, ConnectedSystem, FormerAccount, Identity, PendingExport, UniqueValue
from identity.models.state import AccountState, ExportState, IdentityState, is_deletion
from identity.rulebook import CompiledFlow, FlowError, Rulebook
from identity.values import as_list, folded, in_order

from .deletion import mark
from .deriving import derive
from .joining import Joiner, Key, identities_with, keys_of, owner_keys
from .provisioning import Provisioner

ACCOUNT_FIELDS = (
    "id", "system", "type", "external_id", "attrs", "wanted", "status", "join", "is_dirty", "identity",
)  # fmt: skip
IDENTITY_FIELDS = (
    "id", "uuid", "type", "attrs", "lineage", "origin", "delete_after", "deletion", "version",
)  # fmt: skip
MOST_CANDIDATES = 1_000


class Event(NamedTuple):
    """Something that happened to an account or an identity."""

    change: str
    subject: AccountState | IdentityState


class Failure(NamedTuple):
    subject: AccountState | IdentityState
    error: FlowError


class SyncPage:
    def __init__(
        self,
        book: Rulebook,
        *,
        activity_id: int,
        initiator: Mapping[str, Any],
        now: datetime,
        is_preview: bool = False,
    ) -> None:
        self.book, self.activity_id, self.now = book, activity_id, now
        self.initiator = dict(initiator)
        self.is_preview = is_preview
        is_locking = connection.vendor == "postgresql" and not is_preview
        self.lock = "FOR NO KEY UPDATE" if is_locking else ""
        self.accounts: dict[int, AccountState] = {}
        self._identity_of: dict[int, int | None] = {}
        self.new_accounts: list[AccountState] = []
        self.identities: dict[int, IdentityState] = {}
        self.new_identities: list[IdentityState] = []
        # The identities to derive, with the accounts of the page that are the reason.
        self.touched: dict[str, tuple[IdentityState, list[AccountState]]] = {}
        self.considered: list[AccountState | IdentityState] = []
        self.events: list[Event] = []
        self.failures: list[Failure] = []
        self.failed: set[str] = set()
        self.identity_ids: dict[str, int] = {}
        self.reserved: dict[tuple[str, str], str] = {}
        # The identities that were projected, by the keys by which further accounts may be joined to them.
        self.projected: dict[Key, list[IdentityState]] = {}
        self.new_values: list[tuple[str, str, IdentityState]] = []
        # Identities that lost an account. They are derived after the last page, so that until then an account
        # that takes the place finds them by their keys.
        self.postponed: set[IdentityState] = set()
        self._postpones = False

    # Reading

    def read_accounts(self, ending: str, params: Sequence[Any]) -> list[AccountState]:
        """Lock and read accounts, and connect them to the identities that are already loaded."""
        made = []
        for row in read(Account, ACCOUNT_FIELDS, f"{ending} {self.lock}", params):
            if row[0] in self.accounts:
                continue
            account = AccountState(*row[:-1])
            self.accounts[account.id] = account
            self._identity_of[account.id] = row[-1]
            made.append(account)
        self._read_exports([each.id for each in made])
        return made

    def _read_exports(self, ids: Sequence[int]) -> None:
        if not ids:
            return
        theirs, params = among("account_id", ids)
        fields = ("account", "id", "operation", "changes", "sent", "status", "revision", "activity_id")
        ending = f"WHERE {theirs} ORDER BY account_id {self.lock}"
        for row in read(PendingExport, fields, ending, params):
            self.accounts[row[0]].export = ExportState(*row[1:])

    def read_identities(self, ids: Collection[int]) -> None:
        """Lock and read identities with all accounts that are joined to them."""
        missing = sorted(set(ids) - self.identities.keys())
        if missing:
            theirs, params = among("id", missing)
            ending = f"WHERE {theirs} ORDER BY id {self.lock}"
            for row in read(Identity, IDENTITY_FIELDS, ending, params):
                identity = IdentityState(row[0], str(row[1]), *row[2:])
                self.identities[identity.id] = identity
                self.identity_ids[identity.uuid] = identity.id
            self._read_joined(missing)
        self._connect()

    def _read_joined(self, identities: Sequence[int]) -> None:
        """Read the accounts of these identities that are not loaded yet; parsing documents takes long."""
        theirs, params = among("identity_id", identities)
        joined = {pk for (pk,) in fetch(f"SELECT id FROM identity_account WHERE {theirs}", params)}
        missing = sorted(joined - self.accounts.keys())
        if missing:
            theirs, params = among("id", missing)
            self.read_accounts(f"WHERE {theirs} ORDER BY id", params)

    def _connect(self) -> None:
        """Connect all accounts to their identities, and remember what is stored."""
        for account in self.accounts.values():
            if account.stored is not None:
                continue
            pk = self._identity_of[account.id]
            identity = self.identities.get(pk) if pk is not None else None
            account.identity = identity
            if identity is not None and account.status == Account.Status.OBSOLETE:
                identity.kept.append(account)
            elif identity is not None:
                identity.accounts[account.type_id] = account
            if pk is None or identity is not None:
                account.remember()
        for identity in self.identities.values():
            if identity.stored is None:
                identity.remember()

    # What the parts of the page use

    def identity(self, pk: int) -> IdentityState | None:
        return self.identities.get(pk)

    def account(self, pk: int) -> AccountState | None:
        return self.accounts.get(pk)

    def load_accounts(self, ids: Sequence[int]) -> None:
        missing = sorted(set(ids) - self.accounts.keys())
        if missing:
            theirs, params = among("id", missing)
            self.read_accounts(f"WHERE {theirs} ORDER BY id", params)
            self.read_identities([pk for each in missing if (pk := self._identity_of.get(each)) is not None])

    def add_account(self, account: AccountState) -> None:
        account.remember()
        self.new_accounts.append(account)

    def add_identity(self, identity: IdentityState, cause: AccountState) -> None:
        """Add a projected identity; derive the attributes by which other accounts may be joined to it."""
        keys = self.book.identity_types[identity.type_id].key_flows
        identity.attrs, identity.lineage = derive(
            self.book, identity, activity_id=self.activity_id, reserve=self.reserve, only=keys
        )
        self.new_identities.append(identity)
        self.touch(identity, cause)
        self.note("projected", identity)

    def touch(self, identity: IdentityState, cause: AccountState | None) -> None:
        _, causes = self.touched.setdefault(identity.uuid, (identity, []))
        if cause is not None and cause not in causes:
            causes.append(cause)

    def note(
        self, change: str, subject: AccountState | IdentityState, *, cause: AccountState | None = None
    ) -> None:
        self.events.append(Event(change, subject))

    def has_failed(self, identity: IdentityState) -> bool:
        return identity.uuid in self.failed

    def fail(self, identity: IdentityState, error: FlowError) -> None:
        """Leave the identity and its accounts as they are stored."""
        if identity.uuid in self.failed:
            return
        self.failed.add(identity.uuid)
        _, causes = self.touched.get(identity.uuid, (identity, []))
        subjects: list[AccountState | IdentityState] = [*causes] or [identity]
        self.failures += [Failure(subject, error) for subject in subjects]
        others = [each for each in self.accounts.values() if each.stored and each.stored.identity is identity]
        mine = {*causes, *identity.accounts.values(), *others}
        for account in mine:
            account.restore()
        if identity.is_new:
            self.new_identities.remove(identity)
        else:
            identity.restore()
        self.new_accounts = [each for each in self.new_accounts if each not in mine]
        self.events = [each for each in self.events if each.subject not in mine | {identity}]

    def reserve(self, flow: CompiledFlow, identity: IdentityState, attributes: Mapping[str, Any]) -> Any:
        """Return the value that the identity has reserved, or reserve the first free one."""
        scope = flow.unique_scope
        own = self._own_value(scope, identity)
        if own is not None or flow.unique is None:
            return own
        for value in islice(flow.unique.candidates(attributes), MOST_CANDIDATES):
            name = (scope, folded(value)[:255])
            taken = name in self.reserved or UniqueValue.objects.filter(scope=scope, value=name[1]).exists()
            if not taken:
                self.reserved[name] = identity.uuid
                self.new_values.append((scope, value, identity))
                return value
        return None

    def _own_value(self, scope: str, identity: IdentityState) -> str | None:
        for known, value, owner in self.new_values:
            if known == scope and owner is identity:
                return value
        if identity.is_new:
            return None
        stored = UniqueValue.objects.filter(scope=scope, identity=identity.id)
        return stored.values_list("text", flat=True).first()

    def external_ids(self, uuids: set[str]) -> dict[tuple[str, int], str]:
        """Return the external ids of the accounts of these identities, by identity and system."""
        found: dict[tuple[str, int], str] = {}
        if not uuids:
            return found
        keys = [UUID(each) for each in uuids]
        rows = Account.objects.filter(identity__uuid__in=keys, external_id__isnull=False)
        rows = rows.exclude(status=Account.Status.OBSOLETE)
        rows = rows.exclude(pending__operation=PendingExport.Operation.DELETE)
        for uuid, system, external_id in rows.values_list("identity__uuid", "system", "external_id"):
            found[str(uuid), system] = str(external_id)
        for account in [*self.accounts.values(), *self.new_accounts]:
            if account.stored is not None and account.stored.identity is not None:
                found.pop((account.stored.identity.uuid, account.system_id), None)
        for account in [*self.accounts.values(), *self.new_accounts]:
            is_leaving = account.is_removed or is_deletion(account.export)
            if account.identity is not None and account.external_id is not None and not is_leaving:
                found[account.identity.uuid, account.system_id] = account.external_id
        return found

    # Computing

    def settle(self, accounts: Sequence[AccountState]) -> None:
        """Settle which identities the accounts belong to, and compute all identities that this concerns."""
        rules = {each: self.book.types[each.type_id].inbound for each in accounts}
        free = [each for each in accounts if self._identity_of[each.id] is None]
        keys = {key for each in free for key in keys_of(each, rules[each])}
        owners = {each: owner_keys(each, self.book) for each in free}
        stored = identities_with(keys.union(*owners.values()))
        joined = [pk for each in accounts if (pk := self._identity_of[each.id]) is not None]
        self.read_identities([*joined, *(pk for ids in stored.values() for pk in ids)])
        joiner = Joiner(self, stored, self.projected)
        for account in accounts:
            self.considered.append(account)
            try:
                joiner.settle(account)
            except FlowError as error:
                self.failures.append(Failure(account, error))
                owners.pop(account, None)
        self._govern_again(free)
        self._offer(owners, stored)
        self._postpones = not self.is_preview
        self.compute()

    def _govern_again(self, accounts: Sequence[AccountState]) -> None:
        """Let JIM govern the accounts that have returned and that it governed before it forgot them."""
        returned = {
            (each.identity.id, each.type_id): each
            for each in accounts
            if each.identity is not None
            and self.book.systems[each.system_id].status == ConnectedSystem.Status.REBUILDING
        }
        if returned:
            former = FormerAccount.objects.filter(identity__in={pk for pk, _ in returned})
            former = former.filter(join=Account.Join.PROVISIONED)
            for name in former.values_list("identity", "type"):
                if name in returned:
                    returned[name].join = Account.Join.PROVISIONED.value

    def _offer(self, accounts: Mapping[AccountState, set[Key]], stored: Mapping[Key, list[int]]) -> None:
        """Compute the identities that have no such account and may get one of these by an outbound rule."""
        free = [each for each in accounts if each.identity is None and each.status == Account.Status.PRESENT]
        for account in free:
            for pk in [pk for key in accounts[account] for pk in stored.get(key, ())]:
                identity = self.identities.get(pk)
                if identity is not None and account.type_id not in identity.accounts:
                    self.touch(identity, account)

    def dismiss(self, accounts: Sequence[AccountState]) -> None:
        """Disconnect and remove accounts whose system is deleted, and compute their identities."""
        self.read_identities([pk for each in accounts if (pk := self._identity_of[each.id]) is not None])
        for account in accounts:
            self.considered.append(account)
            if (identity := account.identity) is not None:
                identity.disconnect(account)
                self.touch(identity, account)
                self.note("disconnected", account)
            account.is_removed = True
        self.compute()

    def recompute(self, ids: Sequence[int], *, lost: Collection[int] = ()) -> None:
        """Compute identities again because of a change of another object."""
        self.read_identities(ids)
        for pk in ids:
            if (identity := self.identities.get(pk)) is not None:
                self.considered.append(identity)
                identity.lost |= set(lost)
                self.touch(identity, None)
        self.compute()

    def compute(self) -> None:
        self._compute([identity for identity, _ in self.touched.values()])
        told: set[str] = set()
        while new := self.failed - told:
            told |= new
            self._compute_referrers(new)

    def _compute(self, identities: Sequence[IdentityState]) -> None:
        self.resolve_references()
        for identity in identities:
            try:
                self._derive(identity)
            except FlowError as error:
                self.fail(identity, error)
        self._forget_deleted_targets()
        Provisioner(self).provision([each for each in identities if not self.has_failed(each)])

    def _compute_referrers(self, failed: set[str]) -> None:
        """Compute those again that refer to identities that have failed, as these are not made or joined."""
        touched = [each for each, _ in self.touched.values() if not self.has_failed(each)]
        again = [each for each in touched if self.referenced(each, each.attrs) & failed]
        for account in [account for identity in again for account in identity.accounts.values()]:
            if account.stored is not None:
                account.wanted, account.export = account.stored.wanted, account.stored.export
        if again:
            self._compute(again)

    def _derive(self, identity: IdentityState) -> None:
        rules = self.book.identity_types[identity.type_id]
        if change := mark(identity, rules, initiator=self.initiator, now=self.now):
            self.note(change, identity)
        if self._postpones and _has_lost_values(identity):
            self.postponed.add(identity)
            return
        identity.attrs, identity.lineage = derive(
            self.book, identity, activity_id=self.activity_id, reserve=self.reserve
        )

    def _forget_deleted_targets(self) -> None:
        """Remove references to deleted identities from values that are kept although no account has them."""
        kept: dict[IdentityState, set[str]] = {}
        for identity, _ in self.touched.values():
            unknown = self._kept_references(identity) - self.identity_ids.keys()
            if unknown and not self.has_failed(identity):
                kept[identity] = unknown
        if not kept:
            return
        uuids = {UUID(uuid) for unknown in kept.values() for uuid in unknown}
        existing = {str(uuid) for uuid in _existing(uuids)} | {each.uuid for each in self.new_identities}
        for identity, unknown in kept.items():
            self._remove_references(identity, unknown - existing)

    def _kept_references(self, identity: IdentityState) -> set[str]:
        kept = self.referenced(identity, identity.attrs)
        for account in identity.accounts.values() if kept else ():
            kept -= {uuid for value in account.references.values() for uuid in as_list(value)}
        return kept

    def _remove_references(self, identity: IdentityState, gone: set[str]) -> None:
        for name in self.book.identity_types[identity.type_id].references:
            value = identity.attrs.get(name)
            left = [uuid for uuid in as_list(value) if uuid not in gone]
            if left:
                identity.attrs[name] = left if isinstance(value, list) else value
            elif value is not None:
                del identity.attrs[name]
                identity.lineage.pop(name, None)

    def resolve_references(self) -> None:
        """Look up which identities the references of all accounts concerned mean."""
        if not self.book.has_inbound_references:
            return
        owners = [each for identity, _ in self.touched.values() for each in identity.accounts.values()]
        for each in owners:
            each.references = {}
        ids = [each.id for each in owners if each.id and self.book.types[each.type_id].refers]
        if not ids:
            return
        theirs, params = among("l.owner_id", ids)
        rows = fetch(
            "SELECT l.owner_id, a.name, t.id, i.id, i.uuid FROM identity_accountlink l "
            "JOIN identity_attribute a ON a.id = l.attribute_id "
            "JOIN identity_account t ON t.id = l.target_id "
            f"LEFT JOIN identity_identity i ON i.id = t.identity_id WHERE {theirs}",
            params,
        )
        found: dict[tuple[int, str], set[str]] = {}
        for owner, name, target, pk, uuid in rows:
            meant = self._meant(target, pk, uuid)
            if meant is not None:
                found.setdefault((owner, name), set()).add(meant)
        for (owner, name), uuids in found.items():
            account = self.accounts[owner]
            is_multi = self.book.types[account.type_id].shapes[name].is_multi
            account.references[name] = in_order(uuids) if is_multi else min(uuids)

    def _meant(self, target: int, pk: int | None, uuid: Any) -> str | None:
        """Return the UUID of the identity of an account, which this page may have just connected."""
        account = self.accounts.get(target)
        if account is not None:
            return account.identity.uuid if account.identity else None
        if pk is None:
            return None
        text = str(uuid if isinstance(uuid, UUID) else UUID(uuid))  # SQLite stores 32 characters
        self.identity_ids[text] = pk
        return text

    # What the page has done

    def display(self, identity: IdentityState) -> str:
        """Return what the identity is shown as."""
        accounts = [each.display for each in identity.accounts.values()]
        name = self.book.identity_types[identity.type_id].type.display
        value = identity.attrs.get(name) or (accounts[0] if accounts else identity.uuid)
        return str(value)[:255]

    def referenced(self, identity: IdentityState, attrs: Mapping[str, Any]) -> set[str]:
        """Return the UUIDs of the identities to which the attributes refer."""
        names = self.book.identity_types[identity.type_id].references
        return {uuid for name in names for uuid in as_list(attrs.get(name))}

    def release(self) -> None:
        """Forget what refers to each other, so that memory is free at once and not when Python looks for it.

        The page cannot be used afterwards.
        """
        for account in [*self.accounts.values(), *self.new_accounts]:
            account.identity = account.stored = None


def _existing(uuids: Collection[UUID]) -> list[UUID]:
    return list(Identity.objects.filter(uuid__in=uuids).values_list("uuid", flat=True))


def _has_lost_values(identity: IdentityState) -> bool:
    """Return whether a system has lost its account from which values of the identity come."""
    if identity.delete_after is not None:
        return False  # keeps its values
    systems = {each.system_id for each in [*identity.accounts.values(), *identity.kept]}
    lost = identity.lost - systems
    return bool(lost) and any(line.get("system") in lost for line in identity.lineage.values())
