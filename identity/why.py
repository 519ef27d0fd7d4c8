"""Explain the values of an identity: which flow won, which others had a value, and where it was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from activities.models import Activity

from .models import Account, Identity
from .models.state import AccountState, IdentityState
from .rulebook import CompiledFlow, FlowError, Rulebook
from .runs.sync_page import SyncPage


@dataclass(frozen=True)
class Candidate:
    """What one flow says about an attribute, or why it says nothing."""

    rule: str
    rule_id: int
    priority: int
    source: str
    account: str = ""
    account_id: int = 0
    value: Any = None
    reason: str = ""
    is_winner: bool = False


@dataclass(frozen=True)
class Explanation:
    """Where the value of one attribute comes from.

    `candidates` are the flows in the order in which they are asked. `run` is the activity that set the value,
    and `place` says where in its input the account was read.
    """

    attribute: str
    value: Any
    candidates: list[Candidate] = field(default_factory=list)
    revision: int | None = None
    run: int | None = None
    set_at: datetime | None = None
    place: str = ""
    note: str = ""


def explain(identity: Identity, book: Rulebook, *, now: datetime) -> list[Explanation]:
    """Explain all attributes of the identity's type, in their order."""
    page = SyncPage(book, activity_id=0, initiator={}, now=now, is_preview=True)
    page.read_identities([identity.pk])
    state = page.identities[identity.pk]
    page.touch(state, None)
    page.resolve_references()
    rules = book.identity_types[state.type_id]
    runs = {line["run"] for line in state.lineage.values() if line.get("run")}
    times = dict(Activity.objects.filter(pk__in=runs).values_list("pk", "executed_at"))
    places = _places(state)
    flows = rules.flows
    return [_explained(state, name, flows.get(name, []), times, places) for name in rules.shapes]


def _explained(
    identity: IdentityState,
    name: str,
    flows: list[CompiledFlow],
    times: Mapping[int, datetime | None],
    places: Mapping[int, str],
) -> Explanation:
    line = identity.lineage.get(name, {})
    run = line.get("run")
    return Explanation(
        name,
        identity.attrs.get(name),
        list(_candidates(identity, flows, line.get("flow"))),
        line.get("revision"),
        run,
        times.get(run) if run else None,
        places.get(line.get("account", 0), ""),
        _note(identity, name, line, flows),
    )


def _candidates(
    identity: IdentityState, flows: list[CompiledFlow], winner: int | None
) -> Iterator[Candidate]:
    for flow in flows:
        account = identity.accounts.get(flow.rule.type_id)
        value, reason = _said(flow, account)
        yield Candidate(
            flow.rule.name,
            flow.rule.id,
            flow.priority,
            flow.text,
            account.display if account else "",
            account.id if account else 0,
            value,
            reason,
            flow.id == winner,
        )


def _said(flow: CompiledFlow, account: AccountState | None) -> tuple[Any, str]:
    """Return the value that a flow has, and why it has none."""
    if account is None:
        return None, "no account is joined"
    try:
        if account.status != "present" or not flow.rule.holds(account.attrs):
            return None, "the account is out of the rule's scope"
        if flow.unique is not None:
            return None, "a unique value is chosen once and kept"
        value = flow.read(account.references if flow.reference else account.attrs)
    except FlowError as error:
        return None, str(error)
    if value is None:
        return None, "clears the attribute" if flow.null_is_value else "has no value"
    return value, "only when the identity is created" if flow.only_on_create else ""


def _note(identity: IdentityState, name: str, line: Mapping[str, Any], flows: list[CompiledFlow]) -> str:
    if name not in identity.attrs:
        return ""
    if "rule" not in line:
        return "The value was not set by a rule."
    joined = [*identity.accounts.values(), *identity.kept]
    if line.get("account") not in {each.id for each in joined}:
        return "The account that this value comes from is no longer joined; the value was kept."
    if line.get("flow") not in {flow.id for flow in flows}:
        return "The flow that set this value no longer exists; a full synchronisation updates the value."
    return ""


def _places(identity: IdentityState) -> dict[int, str]:
    """Return where each joined account was last read with a change."""
    ids = [each.id for each in identity.accounts.values()]
    found = Account.objects.filter(pk__in=ids).values_list("pk", "source")
    return {pk: str((source or {}).get("place", "")) for pk, source in found}
