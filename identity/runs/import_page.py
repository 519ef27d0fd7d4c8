"""One page of an import: compare what was read with the accounts, and write what changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from django.db import connection

from database.statements import among, fetch, insert_each, read, update_each, write
from identity.connectors.connector import Page, Problem, ReadObject
from identity.models import Account, AccountKey, AccountLink, Identity, PendingExport
from identity.shape import TypeShape
from identity.values import Match, as_list, canonical, difference, folded

from .confirming import Confirmation, confirm
from .run import Item

Status = Account.Status
Operation, Export = PendingExport.Operation, PendingExport.Status
FOR_UPDATE = "FOR NO KEY UPDATE"


class Known(NamedTuple):
    """What is known of an account before its page is imported."""

    id: int
    hash: str
    status: str


@dataclass(frozen=True)
class ImportedType:
    """A type of objects that an import reads, and what its rules make of its attributes."""

    id: int
    shape: TypeShape
    matches: Mapping[str, Match]
    has_inbound_rules: bool
    # The ids of attributes by which accounts are joined, and of references, by name.
    keys: Mapping[str, int]
    references: Mapping[str, int]

    def hash(self, each: ReadObject) -> str:
        text = canonical(each.attributes).encode()
        return blake2b(text, digest_size=16, key=self.shape.fingerprint).hexdigest()


class ImportPage:
    """Write one page in the current transaction. What happened is in `counts`, `items` and `seen`."""

    def __init__(
        self,
        *,
        system_id: int,
        types: Mapping[str, ImportedType],
        source: Mapping[str, Any],
        is_full: bool,
        confirms: bool,
        is_seen: Callable[[int], bool],
    ) -> None:
        self.system_id, self.types, self.source = system_id, types, source
        self.is_full, self.confirms, self.is_seen = is_full, confirms, is_seen
        self.counts: Counter[str] = Counter()
        self.items: list[Item] = []
        self.seen: list[int] = []
        self.problems: list[Problem] = []
        self.unchanged: list[int] = []
        self.changed: list[tuple[Known, ReadObject, str]] = []
        self.added: list[tuple[ReadObject, str]] = []
        self.gone: list[int] = []
        self.confirmations: list[Confirmation] = []

    def write(self, page: Page) -> None:
        self._compare(page)
        self.counts["unchanged"] += len(self.unchanged)
        pending = self._exported()
        self._update(pending)
        self._add()
        self._confirm_unchanged(pending)
        self.store_confirmations()
        self.mark_absent(self.gone)
        self.items += [_problem(each) for each in self.problems]

    def _compare(self, page: Page) -> None:
        known = self._known(page)
        self.problems = list(page.problems)
        for each in self._without_repeats(page.objects):
            kind = self.types[each.type]
            was = known.get((kind.id, each.external_id))
            if each.is_deleted:
                self.gone += [was.id] if was else []
            elif was is not None and self.is_full and self.is_seen(was.id):
                self.problems.append(_repeated(each))
            else:
                self._sort(was, each, kind.hash(each))
        # What cannot be read still exists.
        for problem in self.problems:
            of_type = self.types.get(problem.type)
            was = known.get((of_type.id, problem.external_id)) if of_type else None
            self.seen += [was.id] if was else []

    def _sort(self, was: Known | None, each: ReadObject, digest: str) -> None:
        if was is None:
            self.added.append((each, digest))
            return
        self.seen.append(was.id)
        if was.hash == digest and was.status == Status.PRESENT:
            self.unchanged.append(was.id)
        else:
            self.changed.append((was, each, digest))

    def _without_repeats(self, objects: Sequence[ReadObject]) -> list[ReadObject]:
        """Return each object once: of repeats in a delta the last one, in a full import none of them."""
        by_id: dict[tuple[str, str], ReadObject] = {}
        repeats: list[ReadObject] = []
        for each in objects:
            earlier = by_id.pop((each.type, each.external_id), None)
            repeats += [] if earlier is None else [earlier]
            by_id[each.type, each.external_id] = each
        if repeats and self.is_full:
            repeats += [by_id.pop(name) for name in {(each.type, each.external_id) for each in repeats}]
            self.problems += [_repeated(each) for each in repeats]
        return list(by_id.values())

    def _known(self, page: Page) -> dict[tuple[int, str], Known]:
        ids = {each.external_id for each in page.objects}
        ids |= {each.external_id for each in page.problems if each.external_id}
        if not ids:
            return {}
        known: dict[tuple[int, str], Known] = {}
        theirs, params = among("external_id", list(ids), "text")
        for type_id in [each.id for each in self.types.values()]:
            rows = fetch(
                f"SELECT id, hash, status, external_id FROM identity_account WHERE type_id = %s AND {theirs}",
                [type_id, *params],
            )
            known |= {(type_id, row[3]): Known(*row[:3]) for row in rows}
        return known

    # Changed and new accounts

    def _update(self, pending: Mapping[int, PendingExport]) -> None:
        if not self.changed:
            return
        before = self._locked([known.id for known, _, _ in self.changed])
        stored: list[tuple[int, ReadObject, str, bool]] = []
        differing: list[tuple[int, ReadObject]] = []
        for known, each, digest in self.changed:
            was, status = before[known.id]
            diff = difference(was, each.attributes)
            differing += [(known.id, each)] if diff else []
            is_news = self._note(known.id, each, diff, status, pending.get(known.id))
            stored.append((known.id, each, digest, is_news))
        self._give_way([pk for pk, (_, status) in before.items() if status == Status.OBSOLETE])
        self._store(stored)
        self._store_keys(differing)
        self._store_links(differing)
        self._resolve_open_links([(known.id, each) for known, each, _ in self.changed])

    def _note(
        self, pk: int, each: ReadObject, diff: Mapping[str, Any], status: str, export: PendingExport | None
    ) -> bool:
        """Count the change of one account; return whether the account must be synchronised."""
        if not diff and status == Status.PRESENT:
            self.counts["unchanged"] += 1
            return False
        if export is not None:
            found = self._confirm(export, each.attributes)
            if found.is_confirmed and diff.keys() <= export.sent.keys():
                return self.types[each.type].has_inbound_rules
        change = "updated" if status == Status.PRESENT else "added"
        self.counts[change] += 1
        self.items.append(_item(each, change, pk, diff))
        return True

    def _locked(self, ids: Sequence[int]) -> dict[int, tuple[dict[str, Any], str]]:
        theirs, params = among("id", ids)
        lock = FOR_UPDATE if connection.vendor == "postgresql" else ""
        rows = read(Account, ("id", "attrs", "status"), f"WHERE {theirs} ORDER BY id {lock}", params)
        return {pk: (attrs, status) for pk, attrs, status in rows}

    def _give_way(self, returned: Sequence[int]) -> None:
        """Disconnect accounts that return after another one has taken their place at the identity."""
        if not returned:
            return
        joined = Account.objects.filter(pk__in=returned, identity__isnull=False).order_by("pk")
        places = {pk: (identity, kind) for pk, identity, kind in joined.values_list("pk", "identity", "type")}
        others = Account.objects.filter(identity__in={identity for identity, _ in places.values()})
        taken = set(others.exclude(status=Status.OBSOLETE).values_list("identity", "type"))
        late = []
        for pk, place in places.items():
            late += [pk] if place in taken else []
            taken.add(place)
        Identity.objects.filter(accounts__in=late).update(is_dirty=True)
        Account.objects.filter(pk__in=late).update(identity=None, join="")

    def _store(self, accounts: Sequence[tuple[int, ReadObject, str, bool]]) -> None:
        """Write what was read. An account that is already dirty stays so."""
        fields = ("attrs", "hash", "secondary_id", "status", "source")
        rows = [
            (pk, each.attributes, digest, each.secondary_id, Status.PRESENT.value, self._source(each))
            for pk, each, digest, _ in accounts
        ]
        update_each(Account, fields, rows)
        _make_dirty([pk for pk, _, _, is_news in accounts if is_news])

    def _source(self, each: ReadObject) -> dict[str, Any]:
        return {**self.source, "place": each.place}

    def _add(self) -> None:
        if not self.added:
            return
        fields = ("type", "external_id", "secondary_id", "attrs", "hash", "source")
        rows = [
            (
                self.types[each.type].id,
                each.external_id,
                each.secondary_id,
                each.attributes,
                digest,
                self._source(each),
            )
            for each, digest in self.added
        ]
        same = {"system": self.system_id, "status": Status.PRESENT.value, "join": "", "is_dirty": True}
        ids = [pk for (pk,) in insert_each(Account, fields, rows, same=same, returning="id")]
        new = [(pk, each) for pk, (each, _) in zip(ids, self.added, strict=True)]
        for pk, each in new:
            diff = {name: [None, value] for name, value in each.attributes.items()}
            self.items.append(_item(each, "added", pk, diff))
        self.counts["added"] += len(new)
        self.seen += ids
        self._store_keys(new, are_new=True)
        self._store_links(new, are_new=True)
        self._resolve_open_links(new)

    def _store_keys(self, accounts: Sequence[tuple[int, ReadObject]], *, are_new: bool = False) -> None:
        if not accounts or not any(each.keys for each in self.types.values()):
            return
        if not are_new:
            AccountKey.objects.filter(account__in=[pk for pk, _ in accounts]).delete()
        rows = [
            (pk, attribute, folded(value)[:255])
            for pk, each in accounts
            for name, attribute in self.types[each.type].keys.items()
            for value in as_list(each.attributes.get(name))
        ]
        if rows:
            insert_each(AccountKey, ("account", "attribute", "value"), rows)

    # References

    def _store_links(self, accounts: Sequence[tuple[int, ReadObject]], *, are_new: bool = False) -> None:
        if not accounts or not any(each.references for each in self.types.values()):
            return
        if not are_new:
            AccountLink.objects.filter(owner__in=[pk for pk, _ in accounts]).delete()
        rows = [
            (pk, attribute, raw[:1000])
            for pk, each in accounts
            for name, attribute in self.types[each.type].references.items()
            for raw in as_list(each.attributes.get(name))
        ]
        if rows:
            targets = self._targets({raw for _, _, raw in rows})
            fields = ("owner", "attribute", "raw", "target")
            insert_each(AccountLink, fields, [(*row, targets.get(row[2])) for row in rows])

    def _targets(self, raws: Collection[str]) -> dict[str, int]:
        """Return the ids of the accounts that references mean, by external or secondary id."""
        found: dict[str, int] = {}
        for column in ("secondary_id", "external_id"):
            theirs, params = among(column, list(raws), "text")
            is_given = "AND secondary_id <> ''" if column == "secondary_id" else ""
            for each in self.types.values():
                if column == "secondary_id" and not each.shape.secondary_id:
                    continue
                rows = fetch(
                    f"SELECT {column}, id FROM identity_account WHERE type_id = %s "
                    f"AND {theirs} {is_given} AND status <> 'obsolete'",
                    [each.id, *params],
                )
                found |= dict(rows)
        return found

    def _resolve_open_links(self, accounts: Sequence[tuple[int, ReadObject]]) -> None:
        """Point references that waited for these accounts to them; their owners must be synchronised."""
        attributes = [pk for each in self.types.values() for pk in each.references.values()]
        ids = {each.external_id: pk for pk, each in accounts}
        ids |= {each.secondary_id: pk for pk, each in accounts if each.secondary_id}
        theirs, params = among("raw", list(ids), "text")
        owners: list[int] = []
        for attribute in attributes:
            rows = fetch(
                "SELECT id, owner_id, raw FROM identity_accountlink "
                f"WHERE attribute_id = %s AND target_id IS NULL AND {theirs}",
                [attribute, *params],
            )
            update_each(AccountLink, ("target",), [(pk, ids[raw]) for pk, _, raw in rows])
            owners += [owner for _, owner, _ in rows]
        _make_dirty(owners)

    # Confirmations

    def _exported(self) -> dict[int, PendingExport]:
        """Lock and return the exports that this page may confirm, by account."""
        if not self.confirms:
            return {}
        ids = [*self.unchanged, *(known.id for known, _, _ in self.changed)]
        exported = PendingExport.objects.filter(account__in=ids).awaiting_confirmation()
        locked = exported.select_for_update(of=("self",), no_key=True).order_by("account_id")
        return {each.account_id: each for each in locked.select_related("account__type")}

    def _confirm_unchanged(self, pending: Mapping[int, PendingExport]) -> None:
        for pk in self.unchanged:
            if (export := pending.get(pk)) is not None:
                self._confirm(export, export.account.attrs)

    def _confirm(self, export: PendingExport, attributes: Mapping[str, Any] | None) -> Confirmation:
        account = export.account
        found = confirm(export, attributes, self.types[account.type.name].matches)
        self.confirmations.append(found)
        self.counts["confirmed" if found.is_confirmed else "unconfirmed"] += 1
        if not found.is_confirmed:
            self.items.append(_of_account(account, "unconfirmed", found.error, found.error_type))
        return found

    def take_back(self, exports: Iterable[PendingExport]) -> None:
        """Note that accounts were not found that exports should have created."""
        for export in exports:
            self._confirm(export, None)

    def store_confirmations(self) -> None:
        done = [found for found in self.confirmations if found.is_done]
        PendingExport.objects.filter(pk__in=[found.export.pk for found in done]).delete()
        _remove([found.export.account_id for found in done if found.operation == Operation.DELETE])
        fields = ("operation", "changes", "sent", "status", "error", "error_type", "attempts")
        rows = [(found.export.pk, *found.values) for found in self.confirmations if not found.is_done]
        if rows:
            update_each(PendingExport, fields, rows)

    # Accounts that are gone

    def mark_absent(self, ids: Sequence[int]) -> None:
        """Mark the accounts as gone; remove those whose deletion was exported."""
        if not ids:
            return
        accounts = Account.objects.filter(pk__in=ids, status=Status.PRESENT).select_related("pending")
        deleted: list[int] = []
        gone: list[int] = []
        for account in accounts.select_for_update(of=("self",), no_key=True).order_by("pk"):
            export = getattr(account, "pending", None)
            if export is not None and (export.operation, export.status) == (
                Operation.DELETE,
                Export.EXPORTED,
            ):
                deleted.append(account.pk)
            else:
                gone.append(account.pk)
                self.items.append(_of_account(account, "absent"))
        self.counts.update(confirmed=len(deleted), absent=len(gone))
        Account.objects.mark_absent(gone)
        _remove(deleted)


def _remove(ids: Sequence[int]) -> None:
    """Forget accounts whose deletion is confirmed; their identities may need such accounts again."""
    if ids:
        theirs = Account.objects.filter(pk__in=ids, identity__isnull=False).values("identity")
        Identity.objects.filter(pk__in=theirs).update(is_dirty=True)
        Account.objects.filter(pk__in=ids).delete()


def _make_dirty(ids: Sequence[int]) -> None:
    if ids:
        theirs, params = among("id", list(ids))
        write(f"UPDATE identity_account SET is_dirty = %s WHERE {theirs} AND NOT is_dirty", [True, *params])


def _item(each: ReadObject, change: str, pk: int, diff: Mapping[str, Any]) -> Item:
    return Item(each.external_id, change, f"account:{pk}", each.external_id, dict(diff), each.place)


def _of_account(account: Account, change: str, message: str = "", error_type: str = "") -> Item:
    return Item(
        str(account),
        change,
        f"account:{account.pk}",
        account.external_id or "",
        message=message,
        error_type=error_type,
        is_warning=error_type == "not_confirmed",
    )


def _problem(each: Problem) -> Item:
    return Item(
        each.external_id or each.place,
        external_id=each.external_id,
        message=f"{each.place}: {each.message}",
        error_type=each.error_type,
    )


def _repeated(each: ReadObject) -> Problem:
    return Problem(
        each.type,
        each.place,
        "duplicate_object",
        f"the external id “{each.external_id}” occurs more than once; none of these objects is imported",
        each.external_id,
    )
