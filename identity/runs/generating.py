"""Generate example data, as identities or as the objects of a connected system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from database.statements import insert_each
from execution.steps.context import Context
from execution.steps.outcome import StepFailed
from identity.connectors.connector import Again, ConnectorError, Export, ReadObject
from identity.generating import Template
from identity.models import ConnectedSystem, Identity, IdentityKey, IdentityLink, IdentityType
from identity.rulebook import FlowError, fitted
from identity.shape import TypeShape
from identity.values import Attributes, Kind, as_list, canonical, folded

from .run import Item, PageCounts, Run, SystemRun, load_rules
from .synchroniser import lock_metaverse

AT_ONCE = 5_000
# The name, in the watermark of a system, of what the last generation has left there.
GENERATED = "generated"
Row = tuple[UUID, Attributes, dict[str, Any], str]


@dataclass(frozen=True, eq=False)
class ReferringTemplate(Template):
    """A template whose references are the UUIDs of identities."""

    namespace: UUID = NAMESPACE_OID

    def uuid(self, index: int) -> UUID:
        return uuid5(self.namespace, str(index))

    def id_of(self, index: int, attribute: str) -> str:
        return str(self.uuid(index))


class GenerateIdentitiesRun(Run):
    """Create identities from a template. What an earlier attempt has created is found by its UUID."""

    def __init__(self, kind: IdentityType, template: Template, ctx: Context) -> None:
        super().__init__(ctx)
        self.kind, self.template = kind, template
        self.rules = load_rules().identity_types[kind.pk]
        self.references = {name for name, shape in self.rules.shapes.items() if shape.kind is Kind.REFERENCE}
        namespace = uuid5(NAMESPACE_OID, canonical([kind.pk, template.seed]))
        self.referring = ReferringTemplate(
            template.seed, template.count, template.rules, template.uses, namespace=namespace
        )

    def perform(self) -> None:
        self._each_slice(self._write, "identities generated")
        if self.references & self.template.rules.keys():
            self._each_slice(self._write_links, "identities linked")

    def _each_slice(self, write: Callable[[range], PageCounts], what: str) -> None:
        total = self.template.count
        for start in range(0, total, AT_ONCE):
            indexes = range(start, min(start + AT_ONCE, total))
            self.take(self.page(partial(write, indexes)))
            self.progress(indexes.stop, total, f"{indexes.stop:,} {what}")

    def _write(self, indexes: range) -> PageCounts:
        lock_metaverse()
        uuids = {self.referring.uuid(index): index for index in indexes}
        known = set(Identity.objects.filter(uuid__in=uuids).values_list("uuid", flat=True))
        rows, failed = self._rows([index for uuid, index in uuids.items() if uuid not in known])
        made = self._insert(rows)
        self._write_keys([(pk, row[1]) for pk, row in made])
        self.write_items([*(_item(pk, row) for pk, row in made), *failed])
        counts = Counter(generated=len(made), unchanged=len(known))
        return PageCounts(len(indexes), failed=len(failed), counts=counts)

    def _rows(self, indexes: Sequence[int]) -> tuple[list[Row], list[Item]]:
        """Return new identities, and why others cannot be created."""
        rows, failed = [], []
        for index in indexes:
            try:
                rows.append(self._row(index))
            except FlowError as error:
                failed.append(Item(f"object {index + 1}", message=str(error), error_type=error.error_type))
        return rows, failed

    def _row(self, index: int) -> Row:
        values = self.template.object(index) | self._referred(index)
        shapes = self.rules.shapes
        attrs = {name: fitted(shapes[name], value) for name, value in values.items() if name in shapes}
        lineage = {name: {"run": self.activity_id} for name in attrs}
        display = str(attrs.get(self.kind.display) or index + 1)[:255]
        return self.referring.uuid(index), attrs, lineage, display

    def _insert(self, rows: Sequence[Row]) -> list[tuple[int, Row]]:
        if not rows:
            return []
        same = {
            "type": self.kind.pk,
            "origin": Identity.Origin.GENERATED.value,
            "is_dirty": True,
            "version": 1,
        }
        fields = ("uuid", "attrs", "lineage", "display")
        ids = insert_each(Identity, fields, rows, same=same, returning="id")
        return [(pk, row) for (pk,), row in zip(ids, rows, strict=True)]

    def _referred(self, index: int) -> Attributes:
        if not self.references & self.template.rules.keys():
            return {}
        made = self.referring.object(index)
        return {name: value for name, value in made.items() if name in self.references}

    def _write_keys(self, identities: Sequence[tuple[int, Attributes]]) -> None:
        rows = [
            (pk, attribute, folded(value)[:255])
            for pk, attrs in identities
            for name, attribute in self.rules.keys.items()
            for value in as_list(attrs.get(name))
        ]
        if rows:
            insert_each(IdentityKey, ("identity", "attribute", "value"), rows)

    def _write_links(self, indexes: range) -> PageCounts:
        lock_metaverse()
        referred = {
            self.referring.uuid(index): {
                UUID(uuid) for value in self._referred(index).values() for uuid in as_list(value)
            }
            for index in indexes
        }
        wanted = set(referred) | {uuid for targets in referred.values() for uuid in targets}
        ids = dict(Identity.objects.filter(uuid__in=wanted).values_list("uuid", "pk"))
        rows = [
            (ids[owner], ids[target])
            for owner, targets in referred.items()
            for target in sorted(targets & ids.keys())
            if owner in ids
        ]
        if rows:
            insert_each(IdentityLink, ("owner", "target"), rows, unless_known=True)
        return PageCounts(0)


class GenerateObjectsRun(SystemRun):
    """Write generated objects to a connected system, such as a file, in place of what it has."""

    def __init__(
        self, system: ConnectedSystem, objects: Callable[[], Iterator[Attributes]], ctx: Context
    ) -> None:
        super().__init__(system, ctx)
        self.objects = objects
        self.has_begun = False

    def perform(self) -> None:
        types, watermark = self.system.shapes(), self.system.watermark or {}
        objects = Again(partial(self._made, *types.values()))
        known = watermark.get(GENERATED, watermark)
        try:
            _, left = self.system.connect().export(Export(types, (), objects, str(self.ctx.work.key), known))
        except ConnectorError as error:
            raise StepFailed(str(error), can_retry=error.is_transient) from None
        if not self.has_begun:
            raise StepFailed(
                f"“{self.system}” takes changes only, so it cannot be filled with objects. Name a system "
                "whose objects are written as a whole, such as a CSV file.",
                can_retry=False,
            )
        self.page(partial(self._store, left))
        self.ctx.count(self.counts["generated"])

    def _made(self, kind: TypeShape) -> Iterator[ReadObject]:
        self.has_begun = True
        for done, attrs in enumerate(self.objects(), start=1):
            if done % AT_ONCE == 0:
                self.ctx.check()
                self.progress(done, None, f"{done:,} objects generated")
            values = {name: value for name, value in attrs.items() if name in kind.attributes}
            self.counts["generated"] = done
            yield ReadObject(kind.name, str(attrs[kind.external_id]), values)

    def _store(self, left: Mapping[str, Any]) -> None:
        """Remember what is there now, so that the next generation may replace it."""
        system = ConnectedSystem.objects.lock().get(pk=self.system.pk)
        system.watermark = {**(system.watermark or {}), GENERATED: dict(left)}
        system.save(update_fields=["watermark"])


def _item(pk: int, row: Row) -> Item:
    data = {name: [None, value] for name, value in row[1].items()}
    return Item(row[3], "generated", f"identity:{pk}", data=data)
