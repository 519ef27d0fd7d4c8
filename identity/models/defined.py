"""What connected systems, identity types and sync rules have in common: each is defined by a document."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Self, TypeVar

from django.core.exceptions import ValidationError
from django.db import models, transaction

from activities.models import Activity
from operations.initiator import Initiator
from schedules.models import Conflict

M = TypeVar("M", bound=models.Model)
D = TypeVar("D", bound="Defined")


class DefinedQuerySet(models.QuerySet[D]):
    def lock(self) -> Self:
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def named(self, name: str) -> D | None:
        return self.filter(name__iexact=name.strip()).first()

    def define(self, document: object, *, initiator: Initiator, now: datetime) -> D:
        """Create what the document says; raise ValidationError with errors by path."""
        made = self.model()
        with transaction.atomic():
            made.begin(now)
            made.store(made.checked(document))
            details = made.definition()
            Activity.objects.record("create", made, initiator=initiator, now=now, details=details)
        return made


class Defined(models.Model):
    """A row that is defined by a document. `revision` grows with each edit."""

    # What users call such a row.
    noun: ClassVar[str]

    name = models.CharField(max_length=100)
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def definition(self) -> dict[str, Any]:
        """Return the document that defines this row."""

    @abstractmethod
    def store(self, document: Mapping[str, Any]) -> None:
        """Save what a checked document says; raise ValidationError if it cannot be."""

    def begin(self, now: datetime) -> None:
        """Prepare a new row."""

    def checked(self, document: object) -> dict[str, Any]:
        """Return the document with defaults; raise ValidationError with errors by path."""
        from identity.documents import PARTS, checked

        return checked(document, PARTS[type(self)])

    def edit(self, document: object, *, revision: int, initiator: Initiator, now: datetime) -> bool:
        """Change the row to what the document says; return False if nothing differs.

        Raise Conflict if the row was changed since `revision`, and ValidationError with errors by path.
        """
        with transaction.atomic():
            stored = self._locked()
            if stored.revision != revision:
                raise Conflict(stored.revision, what=self.noun)
            before = stored.definition()
            stored.store(self.checked(document))
            after = self._locked().definition()
            if after == before:
                return False
            stored.revision = revision + 1
            stored.save(update_fields=["revision"])
            details = {"before": before, "after": after}
            Activity.objects.record("edit", stored, initiator=initiator, now=now, details=details)
        self.refresh_from_db()
        return True

    def remove(self, *, initiator: Initiator, now: datetime) -> None:
        with transaction.atomic():
            stored = self._locked()
            details = stored.definition()
            Activity.objects.record("delete", stored, initiator=initiator, now=now, details=details)
            stored.delete()

    def _locked(self) -> Self:
        """Return the stored row, without anything that was read of it earlier."""
        rows: DefinedQuerySet[Self] = type(self)._default_manager.all()  # type: ignore[assignment]
        return rows.lock().get(pk=self.pk)

    def refuse_taken_name(self) -> None:
        """Raise ValidationError if another row has the same name, apart from upper and lower case."""
        others = type(self)._default_manager.filter(name__iexact=self.name).exclude(pk=self.pk)
        if others.exists():
            message = f"There is already a {self.noun} with this name. Choose another name."
            raise ValidationError({"name": message})


def sentence(text: str) -> str:
    """Return an error message as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def store_children(
    existing: models.QuerySet[M],
    wanted: Sequence[Mapping[str, Any]],
    *,
    key: str,
    owner: Mapping[str, Any],
    refuse_removal: Callable[[M], str] = lambda row: "",
) -> list[M]:
    """Make the rows of one owner what is wanted: change, add and delete rows; return them in order.

    Rows are found by the value of the field `key`, apart from upper and lower case. Each row is a dict of its
    fields. `refuse_removal` returns why a row cannot be deleted, if it cannot.
    """
    before = {getattr(row, key).casefold(): row for row in existing}
    after: list[M] = []
    for fields in wanted:
        row = before.pop(fields[key].casefold(), None) or existing.model(**owner)
        for name, value in fields.items():
            setattr(row, name, value)
        row.full_clean(exclude=[*owner])
        row.save()
        after.append(row)
    for row in before.values():
        if why := refuse_removal(row):
            raise ValidationError(why)
        row.delete()
    return after
