"""What the tests of identity management need: systems in memory, rules, and runs on a schedule's worker."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from activities.models import Activity
from identity.connectors import connector
from identity.documents import SYSTEM, checked
from identity.models import (
    Account,
    ConnectedSystem,
    Flow,
    Identity,
    IdentityAttribute,
    IdentityType,
    ObjectType,
    PendingExport,
    RunProfile,
    SyncRule,
)
from identity.shape import AttributeShape
from identity.values import Kind
from tests.base import NOW, SOMEBODY, enqueue, run_until_idle

from .memory import MemoryConnector, Store, stores

_numbers = itertools.count(1)
FULL_IMPORT, DELTA_IMPORT = RunProfile.RunType.FULL_IMPORT, RunProfile.RunType.DELTA_IMPORT
FULL_SYNC, DELTA_SYNC = RunProfile.RunType.FULL_SYNC, RunProfile.RunType.DELTA_SYNC
EXPORT = RunProfile.RunType.EXPORT
PERSON = ("id", "first", "last", "department", "mail", "phones*", "manager>", "ends@")


def shape(text: str) -> AttributeShape:
    """`name` is text, `name*` has several values, `name>` is a reference, `name#` a number, `name@` a day."""
    kinds = {">": Kind.REFERENCE, "#": Kind.INTEGER, "@": Kind.DATE, "?": Kind.BOOLEAN}
    is_multi = "*" in text
    name = text.rstrip("*>#@?")
    kind = next((kinds[mark] for mark in text[len(name) :] if mark in kinds), Kind.TEXT)
    return AttributeShape(name, kind, is_multi)


class System:
    """A connected system in memory with one type of objects."""

    def __init__(self, name: str, attributes: Sequence[str] = PERSON, *, confirms: bool = False) -> None:
        connector.connectors.setdefault("memory", MemoryConnector)
        key = f"{name} {next(_numbers)}"
        self.store = stores[key] = Store()
        config = {"store": key, "confirms": confirms}
        shapes = [shape(each) for each in attributes]
        self.key = shapes[0].name
        listed = [{"name": each.name, "kind": each.kind.value, "multi": each.is_multi} for each in shapes]
        person = {"name": "person", "external_id": self.key, "attributes": listed}
        document = {"name": name, "connector": "memory", "config": config, "types": [person]}
        self.row = ConnectedSystem.objects.define(checked(document, SYSTEM), initiator=SOMEBODY, now=NOW)
        self.type: ObjectType = self.row.types.get()

    def put(self, external_id: str, **attrs: Any) -> None:
        """Replace the attributes of one object."""
        known = {name: value for name, value in attrs.items() if value is not None}
        self.store.objects["person", external_id] = {self.key: external_id, **known}

    def change(self, external_id: str, **attrs: Any) -> None:
        self.put(external_id, **{**self.objects[external_id], **attrs} | {self.key: None})

    def drop(self, *external_ids: str) -> None:
        for external_id in external_ids:
            del self.store.objects["person", external_id]

    @property
    def objects(self) -> dict[str, dict[str, Any]]:
        return {external_id: attrs for (_, external_id), attrs in self.store.objects.items()}

    def run(self, run_type: str, *, now: datetime = NOW, **fields: Any) -> Activity:
        """Run the profile of this type on a worker, and return the attempt's activity."""
        profile, _ = RunProfile.objects.update_or_create(
            system=self.row, name=str(RunProfile.RunType(run_type).label), run_type=run_type, defaults=fields
        )
        enqueue(self.step(profile), now=now)
        run_until_idle(now=now)
        return Activity.objects.filter(target_type="run_profile").latest("pk")

    def step(self, profile: RunProfile, **fields: Any) -> dict[str, Any]:
        config = {"system": self.row.name, "profile": profile.name}
        return {
            "name": str(profile),
            "step_type": "run_profile",
            "config": config,
            "max_retries": 0,
        } | fields

    def accounts(self) -> dict[str | None, Account]:
        return {each.external_id: each for each in Account.objects.filter(system=self.row)}

    def account(self, external_id: str) -> Account:
        return Account.objects.get(system=self.row, external_id=external_id)

    def pending(self) -> dict[str | None, tuple[str, dict[str, Any]]]:
        exports = PendingExport.objects.filter(system=self.row).select_related("account")
        return {each.account.external_id: (each.operation, each.changes) for each in exports}


def identity_type(
    attributes: Sequence[str] = ("id", "first", "last", "department", "mail", "phones*", "manager>", "ends@"),
    *,
    sources: Sequence[System] = (),
    **fields: Any,
) -> IdentityType:
    made = IdentityType.objects.create(name=fields.pop("name", "person"), display="id", **fields)
    made.sources.set([each.row for each in sources])
    for each in map(shape, attributes):
        IdentityAttribute.objects.create(type=made, name=each.name, kind=each.kind, is_multi=each.is_multi)
    return made


def rule(
    direction: str,
    system: System,
    identities: IdentityType,
    flows: Mapping[str, str | Mapping[str, Any]],
    *,
    join: str = "",
    **fields: Any,
) -> SyncRule:
    """Make a rule. `flows` maps targets to sources, or to fields of flows; `join` is "account=identity"."""
    if join:
        own, _, theirs = join.partition("=")
        fields["joins"] = [[{"account": own, "identity": theirs or own}]]
    made = SyncRule.objects.create(
        name=fields.pop("name", f"{system.row} {direction} {next(_numbers)}"),
        direction=direction,
        object_type=system.type,
        identity_type=identities,
        **fields,
    )
    for target, source in flows.items():
        values = {"source": source} if isinstance(source, str) else dict(source)
        Flow.objects.create(rule=made, target=target, **{"priority": 100} | values)
    return made


def perform(step_type: str, *, now: datetime = NOW, **config: Any) -> Activity:
    """Run one step of this type on a worker, and return the attempt's activity."""
    enqueue({"name": step_type, "step_type": step_type, "config": config, "max_retries": 0}, now=now)
    run_until_idle(now=now)
    return Activity.objects.filter(operation=Activity.RUN, target_type=step_type).latest("pk")


def identities() -> dict[str, Identity]:
    """Return all identities by what they are shown as."""
    return {each.display: each for each in Identity.objects.order_by("pk")}


def counts(activity: Activity) -> dict[str, int]:
    return dict(activity.result or {})


def items(activity: Activity) -> list[tuple[str, str, str]]:
    """Return name, change and error type of the items, in order."""
    return list(activity.items.order_by("pk").values_list("name", "change", "error_type"))
