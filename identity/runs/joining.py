"""Connect the accounts of a page to identities: by scope, join rules and projection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import uuid4

from database.statements import among, fetch
from identity.models import Account
from identity.models.state import AccountState, IdentityState
from identity.rulebook import CompiledRule, Condition, FlowError, Rulebook
from identity.values import as_list, folded

from .losses import leaves

Status, Join = Account.Status, Account.Join
Key = tuple[int, str]


class JoiningPage(Protocol):
    """What joining needs of the page of a synchronisation."""

    book: Rulebook

    def identity(self, pk: int) -> IdentityState | None: ...

    def note(
        self, change: str, subject: AccountState | IdentityState, *, cause: AccountState | None = None
    ) -> None: ...

    def touch(self, identity: IdentityState, cause: AccountState) -> None: ...

    def add_identity(self, identity: IdentityState, cause: AccountState) -> None: ...


def keys_of(account: AccountState, rules: Iterable[CompiledRule]) -> set[Key]:
    """Return the keys of identities by which this account may be joined."""
    return {
        (condition.identity_attribute, folded(value)[:255])
        for rule in rules
        for join in rule.joins
        for condition in join[:1]
        for value in as_list(account.attrs.get(condition.account))
    }


def owner_keys(account: AccountState, book: Rulebook) -> set[Key]:
    """Return the keys of identities to which an outbound rule may join this account."""
    id_name, found = book.types[account.type_id].external_id, set[Key]()
    for identities in book.identity_types.values():
        rules = identities.outbound.get(account.type_id, [])
        found |= keys_of(account, rules)
        for flow in (flow for rule in rules for flow in rule.flows if flow.target.name == id_name):
            if flow.text in identities.keys and account.external_id is not None:
                found.add((identities.keys[flow.text], folded(account.external_id)[:255]))
    return found


def identities_with(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Return the ids of the identities that have these keys."""
    by_attribute: dict[int, list[str]] = {}
    for attribute, value in keys:
        by_attribute.setdefault(attribute, []).append(value)
    found: dict[Key, list[int]] = {}
    for attribute, values in by_attribute.items():
        theirs, params = among("value", values, "text")
        rows = fetch(
            f"SELECT value, identity_id FROM identity_identitykey WHERE attribute_id = %s AND {theirs}",
            [attribute, *params],
        )
        for value, pk in rows:
            found.setdefault((attribute, value), []).append(pk)
    return found


class Joiner:
    """Settle which identity each account of a page belongs to."""

    def __init__(
        self, page: JoiningPage, stored: dict[Key, list[int]], projected: dict[Key, list[IdentityState]]
    ) -> None:
        self.page = page
        self.stored = stored
        self.projected = projected

    def settle(self, account: AccountState) -> None:
        """Connect or disconnect one account; raise FlowError if it cannot be decided."""
        if account.status == Status.PROVISIONING:
            self._touch(account)
            return
        rules = self.page.book.types[account.type_id].inbound
        if account.identity is not None and leaves(rules, account.attrs, account.status, account.join):
            self._disconnect(account.identity, account)
        if account.status == Status.OBSOLETE:
            account.is_removed = account.identity is None
        elif account.identity is None:
            in_scope = [rule for rule in rules if rule.holds(account.attrs)]
            if in_scope:
                self._join_or_project(account, in_scope)
        self._touch(account)

    def _touch(self, account: AccountState) -> None:
        if account.identity is not None:
            self.page.touch(account.identity, account)

    def _disconnect(self, identity: IdentityState, account: AccountState) -> None:
        identity.disconnect(account)
        account.wanted, account.export = None, None
        self.page.touch(identity, account)
        self.page.note("disconnected", account)

    def _join_or_project(self, account: AccountState, rules: Sequence[CompiledRule]) -> None:
        identity = self._match(account, rules)
        if identity is not None:
            taken = identity.accounts.get(account.type_id)
            if taken is not None:
                raise FlowError(
                    "already_joined",
                    f"the matching identity {identity.name} is already joined to “{taken.display}”",
                )
            identity.connect(account, Join.JOINED.value)
            self.page.touch(identity, account)
            self.page.note("joined", account)
            return
        for rule in rules:
            if rule.creates:
                self._project(account, rule)
                return

    def _project(self, account: AccountState, rule: CompiledRule) -> None:
        identity = IdentityState(0, str(uuid4()), rule.identity_type_id)
        identity.connect(account, Join.PROJECTED.value)
        try:
            self.page.add_identity(identity, account)
        except FlowError:
            identity.disconnect(account)
            raise
        for key in self.keys_of_identity(identity):
            self.projected.setdefault(key, []).append(identity)

    def keys_of_identity(self, identity: IdentityState) -> list[Key]:
        keys = self.page.book.identity_types[identity.type_id].keys
        return [
            (attribute, folded(value)[:255])
            for name, attribute in keys.items()
            for value in as_list(identity.attrs.get(name))
        ]

    def _match(self, account: AccountState, rules: Sequence[CompiledRule]) -> IdentityState | None:
        for rule in rules:
            for join in rule.joins:
                found = self._candidates(account, rule, join)
                if len(found) > 1:
                    raise FlowError(
                        "ambiguous_match",
                        f"{len(found)} identities match by {_said(join)}; correct the values",
                    )
                if found:
                    return found[0]
        return None

    def _candidates(
        self, account: AccountState, rule: CompiledRule, join: Sequence[Condition]
    ) -> list[IdentityState]:
        first = join[0]
        found: dict[str, IdentityState] = {}
        for value in as_list(account.attrs.get(first.account)):
            key = (first.identity_attribute, folded(value)[:255])
            stored = [self.page.identity(pk) for pk in self.stored.get(key, ())]
            for identity in [*stored, *self.projected.get(key, ())]:
                if identity is not None and identity.type_id == rule.identity_type_id:
                    found[identity.uuid] = identity
        return [each for each in found.values() if all(_holds(account, each, part) for part in join)]


def _holds(account: AccountState, identity: IdentityState, condition: Condition) -> bool:
    own = {folded(value) for value in as_list(account.attrs.get(condition.account))}
    theirs = {folded(value) for value in as_list(identity.attrs.get(condition.identity))}
    return bool(own & theirs)


def _said(join: Sequence[Condition]) -> str:
    return " and ".join(f"{each.account} = {each.identity}" for each in join)
