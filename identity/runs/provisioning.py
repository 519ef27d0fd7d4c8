"""Give identities the accounts that the outbound rules want, and stage what must be exported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from database.statements import among, fetch
from identity.models import Account, Attribute, ConnectedSystem, SyncRule
from identity.models.state import AccountState, IdentityState, is_deletion
from identity.rulebook import CompiledRule, FlowError, Rulebook, TypeRules
from identity.values import Attributes, as_list, folded, in_order

from .joining import Key
from .staging import governing, staged, staged_deletion, wanted_values

Status, Join, Deprovision = Account.Status, Account.Join, SyncRule.Deprovision


class ProvisioningPage(Protocol):
    """What provisioning needs of the page of a synchronisation."""

    book: Rulebook

    def account(self, pk: int) -> AccountState | None: ...

    def load_accounts(self, ids: Sequence[int]) -> None: ...

    def add_account(self, account: AccountState) -> None: ...

    def fail(self, identity: IdentityState, error: FlowError) -> None: ...

    def has_failed(self, identity: IdentityState) -> bool: ...

    def note(self, change: str, subject: AccountState | IdentityState) -> None: ...

    def external_ids(self, uuids: set[str]) -> dict[tuple[str, int], str]: ...

    def reserve(self, flow: Any, identity: IdentityState, attributes: Mapping[str, Any]) -> Any: ...


class Need(NamedTuple):
    """An account that an identity should have and does not have yet."""

    identity: IdentityState
    kind: TypeRules
    rules: list[CompiledRule]
    external_id: str | None


class Provisioner:
    def __init__(self, page: ProvisioningPage) -> None:
        self.page = page
        self.book = page.book
        # The types and external ids of accounts that this page creates.
        self.created: set[tuple[int, str | None]] = set()

    def provision(self, identities: Sequence[IdentityState], *, is_leaving: bool = False) -> None:
        """Settle which accounts the identities have, and stage what must be exported for each."""
        governed: list[tuple[IdentityState, AccountState, list[CompiledRule]]] = []
        needs: list[Need] = []
        for identity in identities:
            try:
                self._sort(identity, governed, needs, is_leaving=is_leaving)
            except FlowError as error:
                self.page.fail(identity, error)
        governed += self._meet(needs)
        references = self._references([identity for identity, _, _ in governed])
        for identity, account, rules in governed:
            if not self.page.has_failed(identity):
                self._govern(identity, account, rules, references)

    def _sort(
        self,
        identity: IdentityState,
        governed: list[tuple[IdentityState, AccountState, list[CompiledRule]]],
        needs: list[Need],
        *,
        is_leaving: bool,
    ) -> None:
        outbound = self.book.identity_types[identity.type_id].outbound
        for type_id, rules in outbound.items():
            kind, account = self.book.types[type_id], identity.accounts.get(type_id)
            active = governing(identity, rules, is_leaving=is_leaving)
            if account is not None and active:
                governed.append((identity, account, active))
            elif account is not None:
                self._deprovision(identity, account, rules[0])
            elif active and self._may_join(kind) and not _waits(identity, type_id):
                self._add_need(identity, kind, active, needs)
        for account in list(identity.accounts.values()):
            if account.wanted is not None and account.type_id not in outbound:
                self._release(account)

    def _may_join(self, kind: TypeRules) -> bool:
        return self.book.systems[kind.system_id].status != ConnectedSystem.Status.DELETING

    def _may_create(self, need: Need) -> bool:
        """Return whether an account may be created: in a system that is rebuilt, it may only be unknown."""
        is_active = self.book.systems[need.kind.system_id].status == ConnectedSystem.Status.ACTIVE
        return is_active and any(rule.creates for rule in need.rules)

    def _add_need(
        self, identity: IdentityState, kind: TypeRules, rules: list[CompiledRule], needs: list[Need]
    ) -> None:
        try:
            needs.append(Need(identity, kind, rules, self._external_id(identity, kind, rules)))
        except FlowError as error:
            self.page.fail(identity, error)

    def _external_id(
        self, identity: IdentityState, kind: TypeRules, rules: Sequence[CompiledRule]
    ) -> str | None:
        flows = [flow for rule in rules for flow in rule.flows if flow.target.name == kind.external_id]
        if flows and flows[0].unique is not None:
            value = self.page.reserve(flows[0], identity, identity.attrs)
        else:
            value = flows[0].read(identity.attrs) if flows else None
        if value is None and kind.writable.get(kind.external_id) != Attribute.Writable.NO:
            raise FlowError(
                "missing_external_id",
                f"the rules give no value to “{kind.external_id}”, which identifies objects of {kind.name}",
            )
        return None if value is None else str(value)[:255]

    # Accounts that are needed

    def _meet(self, needs: Sequence[Need]) -> list[tuple[IdentityState, AccountState, list[CompiledRule]]]:
        """Join existing accounts to the identities that need them, and create the others."""
        if not needs:
            return []
        matches = self._matches(needs)
        taken = self._with_external_ids(needs)
        self.page.load_accounts([pk for ids in matches.values() for pk in ids] + list(taken.values()))
        met = []
        for need in needs:
            if self.page.has_failed(need.identity):
                continue
            try:
                account = self._account_for(need, matches, taken)
            except FlowError as error:
                self.page.fail(need.identity, error)
                continue
            if account is not None:
                met.append((need.identity, account, need.rules))
        return met

    def _matches(self, needs: Sequence[Need]) -> dict[Key, list[int]]:
        by_attribute: dict[int, set[str]] = defaultdict(set)
        for need in needs:
            for rule in need.rules:
                for join in rule.joins:
                    for value in as_list(need.identity.attrs.get(join[0].identity)):
                        by_attribute[join[0].account_attribute].add(folded(value)[:255])
        found: dict[Key, list[int]] = defaultdict(list)
        for attribute, values in by_attribute.items():
            theirs, params = among("value", list(values), "text")
            rows = fetch(
                f"SELECT value, account_id FROM identity_accountkey WHERE attribute_id = %s AND {theirs}",
                [attribute, *params],
            )
            for value, pk in rows:
                found[attribute, value].append(pk)
        return found

    def _with_external_ids(self, needs: Sequence[Need]) -> dict[tuple[int, str], int]:
        by_kind: dict[TypeRules, list[str]] = defaultdict(list)
        for need in needs:
            if need.external_id is not None:
                by_kind[need.kind].append(need.external_id)
        found: dict[tuple[int, str], int] = {}
        for kind, ids in by_kind.items():
            theirs, params = among("external_id", ids, "text")
            rows = fetch(
                f"SELECT external_id, id FROM identity_account WHERE type_id = %s AND {theirs}",
                [kind.id, *params],
            )
            found |= {(kind.id, external_id): pk for external_id, pk in rows}
        return found

    def _account_for(
        self,
        need: Need,
        matches: Mapping[Key, list[int]],
        taken: Mapping[tuple[int, str], int],
    ) -> AccountState | None:
        account = self._free_match(need, matches) or self._with_id(need, taken)
        is_gone = account is None or account.status == Status.OBSOLETE
        if is_gone and not self._may_create(need):
            return None
        if account is not None:
            need.identity.connect(account, Join.PROVISIONED.value)
            if account.status == Status.OBSOLETE:
                account.revive()
            self.page.note("joined", account)
            return account
        made = AccountState(
            0,
            need.kind.system_id,
            need.kind.id,
            need.external_id,
            {},
            None,
            Status.PROVISIONING.value,
            Join.PROVISIONED.value,
        )
        need.identity.connect(made, Join.PROVISIONED.value)
        self.created.add((made.type_id, made.external_id))
        self.page.add_account(made)
        self.page.note("provisioned", made)
        return made

    def _free_match(self, need: Need, matches: Mapping[Key, list[int]]) -> AccountState | None:
        for rule in need.rules:
            for join in rule.joins:
                ids = {
                    pk
                    for value in as_list(need.identity.attrs.get(join[0].identity))
                    for pk in matches.get((join[0].account_attribute, folded(value)[:255]), ())
                }
                accounts = [self.page.account(pk) for pk in sorted(ids)]
                free = [
                    each
                    for each in accounts
                    if each is not None and _is_free(each) and _matches(need.identity, each, join)
                ]
                if len(free) > 1:
                    raise FlowError(
                        "ambiguous_match",
                        f"{len(free)} accounts match in {need.kind.name}; correct the values",
                    )
                if free:
                    return free[0]
        return None

    def _with_id(self, need: Need, taken: Mapping[tuple[int, str], int]) -> AccountState | None:
        if need.external_id is None:
            return None
        name = (need.kind.id, need.external_id)
        account = self.page.account(taken[name]) if name in taken else None
        if account is not None and account.is_removed:
            account = None
        if account is not None and account.identity is not None:
            raise FlowError(
                "already_joined",
                f"{need.kind.name} “{need.external_id}” already belongs to {account.identity.name}",
            )
        if account is None and name in self.created:
            raise FlowError(
                "duplicate_object",
                f"another identity creates {need.kind.name} “{need.external_id}” at the same time",
            )
        return account

    # Accounts that identities have

    def _govern(
        self,
        identity: IdentityState,
        account: AccountState,
        rules: list[CompiledRule],
        references: Mapping[tuple[str, int], str],
    ) -> None:
        kind = self.book.types[account.type_id]
        try:
            resolved = self._resolved(identity, rules, kind, references)
            wanted, only_on_create = wanted_values(rules, account, identity.attrs, resolved, kind)
            self._add_unique(identity, account, rules, kind, wanted)
        except FlowError as error:
            self.page.fail(identity, error)
            return
        enforces = any(rule.enforces for rule in rules)
        account.export = staged(account, wanted, kind.matches, enforces=enforces)
        account.wanted = {name: value for name, value in wanted.items() if name not in only_on_create}

    def _add_unique(
        self,
        identity: IdentityState,
        account: AccountState,
        rules: Sequence[CompiledRule],
        kind: TypeRules,
        wanted: dict[str, Any],
    ) -> None:
        for rule in rules:
            for flow in rule.unique_flows:
                if flow.target.name in wanted:
                    wanted[flow.target.name] = self.page.reserve(flow, identity, identity.attrs)

    def _deprovision(self, identity: IdentityState, account: AccountState, rule: CompiledRule) -> None:
        """Take the account away from an identity that no outbound rule gives an account any longer."""
        if not account.is_governed:
            if account.wanted is not None:
                self._release(account)
            return
        may_exist = account.status == Status.PRESENT or (account.export and account.export.was_tried)
        if rule.deprovision == Deprovision.DISABLE and may_exist:
            self._disable(account, rule)
            return
        if rule.deprovision == Deprovision.DELETE:
            account.export, account.wanted = staged_deletion(account), {}
            if account.export is not None:
                return
        self._part(identity, account)

    def _disable(self, account: AccountState, rule: CompiledRule) -> None:
        """Stage the values that disable the account, after what else its creation still has to send."""
        values, export = rule.disable_values, account.export
        if account.status == Status.PROVISIONING and export is not None:
            if is_deletion(export):
                return
            values = {**export.changes, **values}
        kind = self.book.types[account.type_id]
        account.export = staged(account, values, kind.matches, enforces=rule.enforces)
        account.wanted = dict(rule.disable_values)

    def _part(self, identity: IdentityState, account: AccountState) -> None:
        """Disconnect the account; forget it if it was never created."""
        account.leave()
        identity.disconnect(account)
        self._release(account)
        self.page.note("deprovisioned", account)

    def _release(self, account: AccountState) -> None:
        account.wanted, account.export = None, None

    # References

    def _references(self, identities: Iterable[IdentityState]) -> dict[tuple[str, int], str]:
        """Return the external ids of the accounts of all identities that outbound references mean."""
        if not self.book.has_outbound_references:
            return {}
        uuids: set[str] = set()
        for identity in identities:
            for name in self.book.identity_types[identity.type_id].exported_references:
                uuids.update(as_list(identity.attrs.get(name)))
        return self.page.external_ids(uuids)

    def _resolved(
        self,
        identity: IdentityState,
        rules: Sequence[CompiledRule],
        kind: TypeRules,
        references: Mapping[tuple[str, int], str],
    ) -> Attributes:
        resolved: Attributes = {}
        for flow in (flow for rule in rules for flow in rule.reference_flows):
            value = identity.attrs.get(flow.reference)
            found = [references.get((uuid, kind.system_id)) for uuid in as_list(value)]
            ids = in_order(each for each in found if each is not None)
            if ids:
                resolved[flow.reference] = ids if isinstance(value, list) else ids[0]
        return resolved


def _waits(identity: IdentityState, type_id: int) -> bool:
    """Return whether the identity has an account that is gone, which its system's synchronisation removes."""
    return any(each.type_id == type_id for each in identity.kept)


def _is_free(account: AccountState) -> bool:
    return account.identity is None and account.status == Status.PRESENT and not account.is_removed


def _matches(identity: IdentityState, account: AccountState, join: Sequence[Any]) -> bool:
    return all(
        {folded(value) for value in as_list(account.attrs.get(each.account))}
        & {folded(value) for value in as_list(identity.attrs.get(each.identity))}
        for each in join
    )
