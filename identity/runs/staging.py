"""Decide what to export for one account: what is wanted, less what the system has or was sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from identity.models.state import AccountState, Export, ExportState, IdentityState, Operation, Status
from identity.rulebook import CompiledRule, TypeRules
from identity.values import Attributes, Match, same


def wanted_values(
    rules: list[CompiledRule],
    account: AccountState,
    view: Attributes,
    references: Attributes,
    kind: TypeRules,
) -> tuple[dict[str, Any], set[str]]:
    """Return the values that the outbound rules want; None where an attribute should have no value.

    The first rule with a flow to an attribute decides. `references` has the external ids that references
    mean. Also return the names of those attributes that are only written when the account is created.
    """
    is_new = account.status == Status.PROVISIONING
    writable = kind.writable_at_creation if is_new else kind.writable_always
    wanted: dict[str, Any] = {}
    only_on_create: set[str] = set()
    for rule in rules:
        for flow in rule.flows:
            name = flow.target.name
            if name in wanted or name not in writable or (flow.only_on_create and not is_new):
                continue
            wanted[name] = flow.read(references if flow.reference else view)
            if flow.only_on_create or name not in kind.writable_always:
                only_on_create.add(name)
    return wanted, only_on_create


def staged(
    account: AccountState, wanted: Mapping[str, Any], matches: Mapping[str, Match], *, enforces: bool
) -> ExportState | None:
    """Return the pending export that leads to the wanted values; None if there is nothing to do."""
    before = account.export
    if before is not None and before.operation == Operation.DELETE:
        if before.status in (Export.IN_FLIGHT, Export.EXPORTED):
            return before  # the account is about to vanish, and is created again afterwards
        before = before._replace(changes={}, status=Export.PENDING.value)
    is_new = account.status == Status.PROVISIONING
    sent = before.sent if before else {}
    held = {**({} if is_new else account.attrs), **sent}
    changes = {
        name: value
        for name, value in wanted.items()
        # Most values are equal: comparing them here takes a third of the time of a call.
        if (held.get(name) != value or matches.get(name) is Match.IGNORE)
        and _differs(account, name, held.get(name), value, matches.get(name, Match.EXACT))
        and (enforces or is_new or _is_news(account, name, value))
    }
    is_created = is_new and not sent
    if not changes and not is_created:
        return before._replace(changes={}) if before is not None and before.is_sent else None
    operation = Operation.CREATE if is_created else Operation.UPDATE
    return _revised(before, operation.value, changes, sent)


def _differs(account: AccountState, name: str, held: Any, value: Any, match: Match) -> bool:
    """Return whether the account lacks the value. What is not compared is sent when it is new."""
    if match is Match.IGNORE:
        return value is not None and _is_news(account, name, value)
    return not same(held, value, match)


def _is_news(account: AccountState, name: str, value: Any) -> bool:
    """Return whether the wanted value is new, or has not reached the system yet."""
    if account.wanted is None or name not in account.wanted or account.wanted[name] != value:
        return True
    return account.export is not None and name in account.export.changes


def _revised(
    before: ExportState | None, operation: str, changes: Mapping[str, Any], sent: Mapping[str, Any]
) -> ExportState:
    if before is None:
        return ExportState(0, operation, changes, sent, Export.PENDING.value, 1)
    if before.changes == changes and before.operation == operation:
        return before
    status = before.status if before.status == Export.IN_FLIGHT else Export.PENDING.value
    return before._replace(
        operation=operation, changes=changes, sent=sent, status=status, revision=before.revision + 1
    )


def staged_deletion(account: AccountState) -> ExportState | None:
    """Return the pending export that deletes the account; None if nothing of it was ever sent.

    What is being sent at the moment is not the deletion, so its result says nothing about the deletion.
    """
    before = account.export
    if account.status == Status.PROVISIONING and (before is None or not before.was_tried):
        return None
    if before is None:
        return ExportState(0, Operation.DELETE.value, {}, {}, Export.PENDING.value, 1)
    if before.operation == Operation.DELETE:
        return before
    return before._replace(
        operation=Operation.DELETE.value,
        changes={},
        sent={},
        status=Export.PENDING.value,
        revision=before.revision + 1,
    )


def governing(identity: IdentityState, rules: list[CompiledRule], *, is_leaving: bool) -> list[CompiledRule]:
    """Return the rules by which the identity should have an account."""
    if is_leaving:
        return []
    return [rule for rule in rules if rule.holds(identity.attrs)]
