"""Find out which accounts a synchronisation would take from their identities, before it changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from database.statements import read
from identity.models import Account
from identity.rulebook import CompiledRule, FlowError, Rulebook
from identity.values import Attributes

AT_ONCE = 5_000
Status, Join = Account.Status, Account.Join
FIELDS = ("id", "type", "attrs", "status", "join")


def leaves(rules: Sequence[CompiledRule], attrs: Attributes, status: str, join: str) -> bool:
    """Return whether an account with these inbound rules is disconnected from its identity."""
    is_governed = join == Join.PROVISIONED
    if status == Status.OBSOLETE:
        return is_governed or not any(rule.keeps for rule in rules)
    if status == Status.PROVISIONING or is_governed or not rules:
        return False
    return not any(rule.holds(attrs) or rule.keeps for rule in rules)


def losing(book: Rulebook, system_id: int, *, is_full: bool) -> list[int]:
    """Return the ids of the joined accounts of a system that would be disconnected, in order.

    Accounts that have not changed can only leave the scope of a rule if there is a rule with a scope.
    """
    kinds = [each for each in book.types.values() if each.system_id == system_id]
    has_scope = any(rule.scope.reads for kind in kinds for rule in kind.inbound)
    condition = "" if is_full and has_scope else "AND is_dirty"
    lost = []
    for pk, type_id, attrs, status, join in _joined(system_id, condition):
        # An object whose scope cannot be said is left as it is.
        with suppress(FlowError):
            if leaves(book.types[type_id].inbound, attrs, status, join):
                lost.append(pk)
    return lost


def _joined(system_id: int, condition: str) -> Iterator[tuple[Any, ...]]:
    last = 0
    where = f"system_id = %s AND id > %s AND identity_id IS NOT NULL {condition}"
    ending = f"WHERE {where} ORDER BY id LIMIT {AT_ONCE}"
    while rows := read(Account, FIELDS, ending, [system_id, last]):
        last = rows[-1][0]
        yield from rows
