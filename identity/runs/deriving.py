"""Derive an identity from its joined accounts and the inbound rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from identity.models import ConnectedSystem
from identity.models.state import AccountState, IdentityState
from identity.rulebook import CompiledFlow, CompiledRule, Rulebook
from identity.values import as_list, in_order

# Gets a flow and the identity; returns a value that no other identity has.
Reserve = Callable[[CompiledFlow, IdentityState, Mapping[str, Any]], Any]


class Won(NamedTuple):
    """The value of an attribute, and the flows and accounts that it comes from, the first one first."""

    value: Any
    sources: Sequence[tuple[CompiledFlow, AccountState]]


def derive(
    book: Rulebook,
    identity: IdentityState,
    *,
    activity_id: int,
    reserve: Reserve,
    only: Mapping[str, list[CompiledFlow]] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes and their lineage that the accounts and rules give to the identity.

    `only` restricts this to some attributes. Raise FlowError if a value does not fit.
    """
    rules = book.identity_types[identity.type_id]
    scopes: dict[tuple[int, int], bool] = {}
    attrs: dict[str, Any] = {}
    lineage: dict[str, Any] = {}
    for target, flows in (rules.flows if only is None else only).items():
        won = _winner(identity, flows, scopes, reserve)
        if won is not None and won.value is not None:
            attrs[target] = won.value
            lineage[target] = _line(identity, target, won, activity_id)
        elif won is None and is_kept(book, identity, target, scopes):
            attrs[target], lineage[target] = identity.attrs[target], identity.lineage[target]
    for target in identity.lineage.keys() - rules.flows.keys() if only is None else ():
        if is_kept(book, identity, target, scopes) and target in identity.attrs:
            attrs[target], lineage[target] = identity.attrs[target], identity.lineage[target]
    return attrs, lineage


def _winner(
    identity: IdentityState,
    flows: Sequence[CompiledFlow],
    scopes: dict[tuple[int, int], bool],
    reserve: Reserve,
) -> Won | None:
    """Return the first value in the order of priority; None if no flow has one or clears the attribute."""
    merged: list[tuple[CompiledFlow, AccountState]] = []
    values: list[Any] = []
    for flow in flows:
        account = identity.accounts.get(flow.rule.type_id)
        if account is None or not contributes(flow.rule, account, scopes):
            continue
        value = _value(flow, account, identity, reserve)
        if value is None and not flow.null_is_value:
            continue
        if not flow.merges or value is None:
            if merged:
                break
            return Won(value, [(flow, account)])
        merged.append((flow, account))
        values += as_list(value)
    return Won(in_order(values), merged) if merged else None


def contributes(rule: CompiledRule, account: AccountState, scopes: dict[tuple[int, int], bool]) -> bool:
    key = (rule.id, account.id)
    holds = scopes.get(key)
    if holds is None:
        holds = scopes[key] = account.status == "present" and rule.holds(account.attrs)
    return holds


def _value(flow: CompiledFlow, account: AccountState, identity: IdentityState, reserve: Reserve) -> Any:
    if flow.only_on_create:
        target = flow.target.name
        line = identity.lineage.get(target)
        if line is not None and line.get("flow") == flow.id:
            return identity.attrs.get(target)
        if not identity.is_new:
            return None
    if flow.unique is not None:
        return reserve(flow, identity, account.attrs)
    return flow.read(account.references if flow.reference else account.attrs)


def _line(identity: IdentityState, target: str, won: Won, activity_id: int) -> dict[str, Any]:
    """Return where the value comes from. The run changes only if the value or its source changes."""
    flow, account = won.sources[0]
    merged = [[each.id, source.id] for each, source in won.sources] if len(won.sources) > 1 else None
    before: dict[str, Any] | None = identity.lineage.get(target)
    if before is not None and identity.attrs.get(target) == won.value:
        # A flow belongs to one rule, and an account to one system.
        was = (before.get("flow"), before.get("account"), before.get("merged"))
        if was == (flow.id, account.id, merged):
            return before
    made = {"flow": flow.id, "rule": flow.rule.id, "account": account.id, "system": account.system_id}
    made |= {"revision": flow.rule.revision, "run": activity_id}
    return made | {"merged": merged} if merged else made


def is_kept(
    book: Rulebook, identity: IdentityState, target: str, scopes: dict[tuple[int, int], bool]
) -> bool:
    """Return whether the attribute keeps a value to which no account contributes any longer."""
    line = identity.lineage.get(target)
    if line is None:
        return False
    if "rule" not in line:
        return True  # set by a person or a generator, not by a rule
    rule = book.rules.get(line["rule"])
    if rule is None:
        # What the deletion of a system has left is what its rules did not recall.
        return line["system"] not in book.systems
    joined = [*identity.accounts.values(), *identity.kept]
    account = next((each for each in joined if each.id == line["account"]), None)
    if account is not None:
        return rule.keeps and not contributes(rule, account, scopes)
    if not rule.recalls or identity.delete_after is not None:
        return True
    system = book.systems.get(line["system"])
    return system is not None and system.status == ConnectedSystem.Status.REBUILDING
