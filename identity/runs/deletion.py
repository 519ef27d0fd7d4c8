"""Decide when an identity is marked for deletion, and when a mark is cancelled."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from identity.models import Identity, IdentityType
from identity.models.state import IdentityState
from identity.rulebook import IdentityRules

Deletion, Sources = IdentityType.Deletion, IdentityType.Sources


def trigger(identity: IdentityState, rules: IdentityRules) -> int | None:
    """Return the id of the system whose lost account marks the identity for deletion, or None."""
    kind = rules.type
    lost = identity.lost - _systems(identity)
    if identity.origin != Identity.Origin.PROJECTED or not lost:
        return None
    if kind.deletion == Deletion.LAST_CONNECTOR:
        return None if identity.accounts or identity.kept else min(lost)
    if kind.deletion != Deletion.AUTHORITATIVE or not lost & rules.source_ids:
        return None
    if kind.sources_mode == Sources.ALL and _systems(identity) & rules.source_ids:
        return None
    return min(lost & rules.source_ids)


def is_cancelled(identity: IdentityState) -> bool:
    """Return whether an account that was joined undoes what marked the identity for deletion."""
    gained, mark = identity.gained & _systems(identity), identity.deletion or {}
    if mark.get("deletion") == Deletion.LAST_CONNECTOR:
        return bool(gained)
    if mark.get("mode") == Sources.ANY:
        return mark.get("trigger") in gained
    return bool(gained & set(mark.get("sources", ())))


def mark(identity: IdentityState, rules: IdentityRules, *, initiator: dict[str, Any], now: datetime) -> str:
    """Mark the identity or cancel its mark, as its accounts say; return “marked”, “unmarked” or nothing."""
    if identity.delete_after is not None:
        if not is_cancelled(identity):
            return ""
        identity.delete_after = identity.deletion = None
        return "unmarked"
    system = trigger(identity, rules)
    if system is None:
        return ""
    kind = rules.type
    identity.delete_after = now + timedelta(days=kind.grace_days)
    identity.deletion = {
        "trigger": system,
        "deletion": kind.deletion,
        "mode": kind.sources_mode,
        "sources": sorted(rules.source_ids),
        "at": now.isoformat(),
        "by": initiator,
    }
    return "marked"


def _systems(identity: IdentityState) -> set[int]:
    return {each.system_id for each in [*identity.accounts.values(), *identity.kept]}
