"""A connected system in memory: an example of a third connector, and the system of the tests of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from execution.steps.fields import Field
from identity.connectors.connector import (
    Capability,
    Connector,
    Export,
    NeedsFullImport,
    Page,
    Problem,
    Reading,
    ReadObject,
    Result,
)
from identity.shape import FoundType, TypeShape
from identity.values import Attributes

Objects = dict[tuple[str, str], Attributes]


class Store:
    """The objects of one system, by type and external id, and how it behaves."""

    def __init__(self) -> None:
        self.objects: Objects = {}
        self.problems: list[Problem] = []
        self.log: list[tuple[str, str]] = []
        # What the system answers to the export of an object, by external id.
        self.answers: dict[str, Result] = {}
        # Called before each page, and for each exported change.
        self.before_page: Any = lambda: None
        self.before_change: Any = lambda change: None
        self.takes: Any = lambda attributes: attributes


stores: dict[str, Store] = {}


class MemoryConnector(Connector):
    name = "memory"
    title = "Memory"
    fields = (Field("store", "Store", required=True), Field("confirms", "Confirms itself", kind="bool"))

    @property
    def store(self) -> Store:
        return stores.setdefault(self.config["store"], Store())

    @property
    def can(self) -> frozenset[Capability]:
        can: set[Capability] = {"delta", "export"}
        return frozenset(can | {"auto_confirm"} if self.config["confirms"] else can)

    def test(self) -> list[str]:
        return [f"{len(self.store.objects)} objects"]

    def schema(self) -> list[FoundType]:
        return []

    @contextmanager
    def open(
        self,
        types: Mapping[str, TypeShape],
        *,
        page_size: int,
        since: Mapping[str, Any] | None = None,
    ) -> Iterator[Reading]:
        yield MemoryReading(self.store, types, page_size, since)

    def export(self, export: Export) -> tuple[Iterable[Result], dict[str, Any]]:
        return [self._change(change) for change in export.changes], {"log": len(self.store.log)}

    def _change(self, change: Any) -> Result:
        self.store.before_change(change)
        if change.external_id in self.store.answers:
            answer = self.store.answers[change.external_id]
            return Result(change.key, answer.error_type, answer.message, answer.is_transient)
        name = (change.type, change.external_id)
        self.store.log.append((change.operation, change.external_id))
        if change.operation == "delete":
            self.store.objects.pop(name, None)
        else:
            after = {**self.store.objects.get(name, {}), **change.attributes}
            taken = {key: value for key, value in after.items() if value is not None}
            self.store.objects[name] = self.store.takes(taken)
        return Result(change.key)


class MemoryReading(Reading):
    def __init__(
        self, store: Store, types: Mapping[str, TypeShape], size: int, since: Mapping[str, Any] | None
    ) -> None:
        self.store, self.types, self.size, self.since = store, types, size, since
        if since is not None and "objects" not in since:
            raise NeedsFullImport("The watermark is lost. Run a full import.")

    def pages(self) -> Iterator[Page]:
        found = [
            ReadObject(kind, external_id, self._selected(kind, attrs), f"object {place}")
            for place, ((kind, external_id), attrs) in enumerate(self.store.objects.items(), start=1)
        ]
        if self.since is not None:
            before = self.since["objects"]
            found = [each for each in found if before.get(each.external_id) != each.attributes]
            gone = before.keys() - {external_id for _, external_id in self.store.objects}
            kind = next(iter(self.types))
            found += [ReadObject(kind, external_id, {}, is_deleted=True) for external_id in sorted(gone)]
        for start in range(0, len(found), self.size):
            self.store.before_page()
            problems = self.store.problems if not start else []
            yield Page(found[start : start + self.size], problems, (start + self.size) / len(found))
        if not found and self.store.problems:
            yield Page([], self.store.problems)

    def _selected(self, kind: str, attrs: Attributes) -> Attributes:
        return {name: value for name, value in attrs.items() if name in self.types[kind].attributes}

    def watermark(self) -> dict[str, Any]:
        return {"objects": {external_id: attrs for (_, external_id), attrs in self.store.objects.items()}}
