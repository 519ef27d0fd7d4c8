"""Write what a page of a synchronisation has computed, in as few statements as possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from database.statements import among, fetch, insert_each, update_each, write
from identity.models import (
    Account,
    Identity,
    IdentityKey,
    IdentityLink,
    PendingExport,
    UniqueValue,
)
from identity.models.state import AccountState, IdentityState, is_deletion
from identity.rulebook import Rulebook
from identity.values import as_list, folded

from .sync_page import SyncPage
from .sync_report import Subject, account_differs, identity_differs, was


class SyncWriter:
    def __init__(self, page: SyncPage) -> None:
        self.page = page
        self.book: Rulebook = page.book

    def write(self) -> None:
        page = self.page
        failed = {id(each.subject) for each in page.failures}
        settled = [each for each in page.considered if id(each) not in failed]
        accounts = [each for each in page.accounts.values() if each.stored is not None]
        moved = [each for each in accounts if each.stored and each.stored.identity is not each.identity]
        referrers = self._referrers(moved)
        self._add_identities(page.new_identities)
        self._remove([each for each in accounts if each.is_removed])
        kept = [each for each in accounts if not each.is_removed]
        self._add_accounts(page.new_accounts)
        self._update_accounts(kept, settled)
        self._write_exports([*kept, *page.new_accounts])
        changed = [each for each in page.identities.values() if identity_differs(each)]
        self._update_identities(changed)
        self._write_keys([*page.new_identities, *changed])
        self._write_links([*page.new_identities, *changed])
        self._write_unique_values()
        leaving = [each for each in accounts if _changes_deletion(each)]
        others = self._referrers_of_identities([*moved, *leaving, *page.new_accounts])
        make_dirty((referrers | others) - {identity.id for identity, _ in page.touched.values()})
        self._clear_dirty(settled)
        make_dirty(each.id for each in page.postponed if not page.has_failed(each))

    # Identities

    def _add_identities(self, identities: Sequence[IdentityState]) -> None:
        if not identities:
            return
        fields = ("uuid", "type", "attrs", "lineage", "display", "delete_after", "deletion")
        rows = [
            (
                each.uuid,
                each.type_id,
                each.attrs,
                each.lineage,
                self.page.display(each),
                each.delete_after,
                each.deletion,
            )
            for each in identities
        ]
        same = {"origin": Identity.Origin.PROJECTED.value, "is_dirty": False, "version": 1}
        ids = insert_each(Identity, fields, rows, same=same, returning="id")
        for each, (pk,) in zip(identities, ids, strict=True):
            each.id = pk
            self.page.identity_ids[each.uuid] = pk

    def _update_identities(self, identities: Sequence[IdentityState]) -> None:
        fields = ("attrs", "lineage", "display", "delete_after", "deletion", "version")
        rows = [
            (
                each.id,
                each.attrs,
                each.lineage,
                self.page.display(each),
                each.delete_after,
                each.deletion,
                each.version + 1,
            )
            for each in identities
        ]
        if rows:
            update_each(Identity, fields, rows)

    def _write_keys(self, identities: Sequence[IdentityState]) -> None:
        changed = [each for each in identities if self._keys(each, each.attrs) != self._keys(each, was(each))]
        old = [each.id for each in changed if each.stored is not None]
        if old:
            IdentityKey.objects.filter(identity__in=old).delete()
        rows = [(each.id, *key) for each in changed for key in sorted(self._keys(each, each.attrs))]
        if rows:
            insert_each(IdentityKey, ("identity", "attribute", "value"), rows)

    def _keys(self, identity: IdentityState, attrs: dict[str, Any]) -> set[tuple[int, str]]:
        keys = self.book.identity_types[identity.type_id].keys
        return {
            (attribute, folded(value)[:255])
            for name, attribute in keys.items()
            for value in as_list(attrs.get(name))
        }

    def _write_links(self, identities: Sequence[IdentityState]) -> None:
        if not self.book.has_inbound_references:
            return
        changed = [
            each
            for each in identities
            if self.page.referenced(each, each.attrs) != self.page.referenced(each, was(each))
        ]
        old = [each.id for each in changed if each.stored is not None]
        if old:
            IdentityLink.objects.filter(owner__in=old).delete()
        wanted = {uuid for each in changed for uuid in self.page.referenced(each, each.attrs)}
        ids = self._ids_of(wanted)
        rows = [
            (each.id, ids[uuid])
            for each in changed
            for uuid in sorted(self.page.referenced(each, each.attrs))
            if uuid in ids
        ]
        if rows:
            insert_each(IdentityLink, ("owner", "target"), rows)

    def _ids_of(self, uuids: set[str]) -> dict[str, int]:
        known = self.page.identity_ids
        missing = uuids - known.keys()
        if missing:
            rows = Identity.objects.filter(uuid__in=missing).values_list("uuid", "pk")
            known |= {str(uuid): pk for uuid, pk in rows}
        return known

    def _write_unique_values(self) -> None:
        rows = [
            (scope, folded(value)[:255], value, identity.id)
            for scope, value, identity in self.page.new_values
            if not self.page.has_failed(identity)
        ]
        if rows:
            insert_each(UniqueValue, ("scope", "value", "text", "identity"), rows)

    # Accounts

    def _remove(self, accounts: Sequence[AccountState]) -> None:
        if accounts:
            Account.objects.filter(pk__in=[each.id for each in accounts]).delete()

    def _add_accounts(self, accounts: Sequence[AccountState]) -> None:
        if not accounts:
            return
        fields = ("system", "type", "external_id", "wanted", "status", "identity", "join")
        rows = [
            (
                each.system_id,
                each.type_id,
                each.external_id,
                each.wanted,
                each.status,
                each.identity.id if each.identity else None,
                each.join,
            )
            for each in accounts
        ]
        same: dict[str, Any] = {"secondary_id": "", "attrs": {}, "hash": "", "is_dirty": False}
        for each, (pk,) in zip(
            accounts, insert_each(Account, fields, rows, same=same, returning="id"), strict=True
        ):
            each.id = pk

    def _update_accounts(self, accounts: Sequence[AccountState], settled: Sequence[Subject]) -> None:
        """Write the accounts that changed; first those that leave an identity, whose place others take."""
        clean = {id(each) for each in settled}
        changed = [each for each in accounts if account_differs(each)]
        leaving = [each for each in changed if each.identity is None]
        others = [each for each in changed if each.identity is not None]
        for some in (leaving, others):
            rows = [
                (
                    each.id,
                    each.identity.id if each.identity else None,
                    each.join,
                    each.status,
                    each.wanted,
                    each.is_dirty and id(each) not in clean,
                )
                for each in some
            ]
            if rows:
                update_each(Account, ("identity", "join", "status", "wanted", "is_dirty"), rows)

    def _write_exports(self, accounts: Sequence[AccountState]) -> None:
        old = {each.id: each.stored.export if each.stored else None for each in accounts}
        gone = [before.id for each in accounts if (before := old[each.id]) and each.export is None]
        if gone:
            PendingExport.objects.filter(pk__in=gone).delete()
        changed = [each for each in accounts if each.export is not None and each.export != old[each.id]]
        new = [each for each in changed if old[each.id] is None]
        self._add_exports(new)
        fields = (
            "operation",
            "changes",
            "sent",
            "status",
            "revision",
            "attempts",
            "error",
            "error_type",
            "next_at",
        )
        rows = [
            (each.export.id, *each.export.values, 0, "", "", None)
            for each in changed
            if each.export is not None and old[each.id] is not None
        ]
        if rows:
            update_each(PendingExport, fields, rows)

    def _add_exports(self, accounts: Sequence[AccountState]) -> None:
        fields = ("account", "system", "operation", "changes", "sent", "status", "revision")
        rows = [
            (each.id, each.system_id, *each.export.values) for each in accounts if each.export is not None
        ]
        same = {"attempts": 0, "error": "", "error_type": ""}
        if rows:
            insert_each(PendingExport, fields, rows, same=same)

    # Who else is concerned

    def _referrers(self, moved: Sequence[AccountState]) -> set[int]:
        """Return the identities whose accounts refer to accounts that now belong to another identity."""
        if not self.book.has_inbound_references or not moved:
            return set()
        theirs, params = among("l.target_id", [each.id for each in moved])
        found = fetch(
            "SELECT DISTINCT o.identity_id FROM identity_accountlink l "
            f"JOIN identity_account o ON o.id = l.owner_id WHERE {theirs}",
            params,
        )
        # As a condition, it could make PostgreSQL read all accounts that have an identity.
        return {pk for (pk,) in found if pk is not None}

    def _referrers_of_identities(self, moved: Sequence[AccountState]) -> set[int]:
        """Return the identities that refer to identities whose accounts have changed."""
        if not self.book.has_outbound_references:
            return set()
        concerned = {
            identity.id
            for each in moved
            for identity in (each.identity, each.stored.identity if each.stored else None)
            if identity is not None
        }
        if not concerned:
            return set()
        theirs, params = among("target_id", list(concerned))
        found = fetch(f"SELECT DISTINCT owner_id FROM identity_identitylink WHERE {theirs}", params)
        return {pk for (pk,) in found}

    def _clear_dirty(self, settled: Sequence[Subject]) -> None:
        """Note that these are settled; accounts that changed have been written with it."""
        accounts = [
            each.id
            for each in settled
            if isinstance(each, AccountState) and each.is_dirty and not account_differs(each)
        ]
        identities = [each.id for each in settled if isinstance(each, IdentityState)]
        for table, ids in (("account", accounts), ("identity", identities)):
            if ids:
                theirs, params = among("id", ids)
                write(
                    f"UPDATE identity_{table} SET is_dirty = %s WHERE {theirs} AND is_dirty",
                    [False, *params],
                )


def make_dirty(ids: Iterable[int]) -> None:
    if listed := sorted(ids):
        theirs, params = among("id", listed)
        write(f"UPDATE identity_identity SET is_dirty = %s WHERE {theirs} AND NOT is_dirty", [True, *params])


def _changes_deletion(account: AccountState) -> bool:
    """Return whether the deletion of the account has been staged, or taken back."""
    stored = account.stored
    return stored is not None and is_deletion(stored.export) != is_deletion(account.export)
