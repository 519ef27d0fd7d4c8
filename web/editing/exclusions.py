"""What a spec leaves out, each as a small form of its kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django import forms

from schedules.spec.structured import KEYS

from .draft import Part, Texts, given, numbered
from .fields import choice, line, lines
from .rules import EVERY_FIELD, Piece, read_json

COMMENT = "Said where people ask why nothing ran."


class Exclusion(Piece):
    @classmethod
    def shown(cls, item: Any) -> Texts | None:
        """The texts that stand for this JSON; None if this kind cannot say it."""
        return _only(item, cls.base_fields, needed=(next(iter(cls.base_fields)),))

    def items(self) -> list[object]:
        return [given(self.texts, *self.base_fields)]


class Shared(Exclusion):
    kind, title = "shared", "A shared calendar"
    about = "All that a calendar names, also what is added to it later."
    calendar = choice("Calendar", [])

    def items(self) -> list[object]:
        return [{"calendar": self.texts.get("calendar", "")}]

    def offer(self, names: Sequence[str]) -> None:
        """The one that is chosen is shown also when it is gone."""
        current = self.texts.get("calendar", "")
        missing = [] if not current or current in names else [(current, f"{current} (there is none)")]
        widget = self.fields["calendar"].widget
        assert isinstance(widget, forms.Select)
        widget.choices = [("", "choose…"), *((name, name) for name in names), *missing]


class Dates(Exclusion):
    kind, title = "dates", "Dates"
    about = "One day, or all days from one to another."
    first = line("From", example="2026-12-24")
    last = line("To", help="Empty: this one day.", example="2027-01-02")
    comment = line("Comment", help=COMMENT, code=False)

    @classmethod
    def shown(cls, item: Any) -> Texts | None:
        texts = _only(item, ("dates", "comment"), needed=("dates",))
        if texts is None:
            return None
        first, _, last = texts.pop("dates").partition("/")
        return {"first": first, "last": last} | texts

    def items(self) -> list[object]:
        texts = given(self.texts, "first", "last", "comment")
        dates = "/".join(filter(None, (texts.pop("first", ""), texts.pop("last", ""))))
        return [{"dates": dates} | texts]


class Between(Exclusion):
    kind, title = "between", "A span of time"
    about = "From one moment to another, on the clock of the time zone."
    start_of = line("From", example="2026-12-01 22:00")
    end_of = line("Until", example="2026-12-02 04:00")
    comment = line("Comment", help=COMMENT, code=False)

    @classmethod
    def shown(cls, item: Any) -> Texts | None:
        texts = _only(item, ("from", "until", "comment"), needed=("from", "until"))
        if texts is None:
            return None
        return {"start_of": texts.pop("from"), "end_of": texts.pop("until")} | texts

    def items(self) -> list[object]:
        texts = given(self.texts, "start_of", "end_of", "comment")
        return [{"from": texts.pop("start_of", ""), "until": texts.pop("end_of", "")} | texts]


class Holidays(Exclusion):
    kind, title = "holidays", "Public holidays"
    about = "Those of a country, or of a part of it."
    start: ClassVar = {"holidays": "GB"}
    holidays = line("Country", help="Two letters, such as GB.", example="GB")
    subdivision = line("Part of it", help="Such as ENG; empty: those of the whole country.", example="ENG")
    comment = line("Comment", help=COMMENT, code=False)

    def items(self) -> list[object]:
        return [{"holidays": "", **given(self.texts, *self.base_fields)}]


class Matching(Exclusion):
    kind, title = "matching", "Matching times"
    about = "All times that match, such as each Saturday and Sunday."
    start: ClassVar = {"day_of_week": "sat,sun"}
    second, minute, hour, day_of_month, month, day_of_week, year = (
        line(EVERY_FIELD[key], example="*") for key in KEYS
    )
    comment = line("Comment", help=COMMENT, code=False)
    keys = KEYS

    @classmethod
    def shown(cls, item: Any) -> Texts | None:
        return _only(item, (*KEYS, "comment"))


class Unknown(Exclusion):
    """What is stored and no form can show: as it is."""

    kind, title = "json", "As it is stored"
    about = "This cannot be shown in fields."
    text = lines("JSON")

    @classmethod
    def shown(cls, item: Any) -> Texts | None:
        return {"text": json.dumps(item, ensure_ascii=False)}

    def items(self) -> list[object]:
        return [read_json(self.texts.get("text", ""))]


# The first that can say an item shows it.
KINDS: dict[str, type[Exclusion]] = {
    form.kind: form for form in (Shared, Holidays, Dates, Between, Matching, Unknown)
}
OFFERED = tuple(form for form in KINDS.values() if form is not Unknown)


def exclusion_form(part: Part, calendars: Sequence[str] = ()) -> Exclusion:
    form = KINDS.get(part.texts.get("kind", ""), Unknown)(part, "exclusion")
    if isinstance(form, Shared):
        form.offer(calendars)
    form.begin()
    return form


def exclusions_of(spec: object) -> list[Part]:
    """Those of a stored spec, also of one that is broken."""
    items = spec.get("exclude", []) if isinstance(spec, Mapping) else []
    return numbered(map(_texts, items if isinstance(items, list) else [items]))


def _texts(item: object) -> Texts:
    shown = ((kind, form.shown(item)) for kind, form in KINDS.items())
    return next({"kind": kind, **texts} for kind, texts in shown if texts is not None)


def _only(item: Any, names: Any, *, needed: Sequence[str] = ()) -> Texts | None:
    """The item, if it holds texts of these names and nothing else."""
    if not isinstance(item, dict) or not item or not item.keys() <= set(names):
        return None
    has_all = all(name in item for name in needed)
    return dict(item) if has_all and all(isinstance(text, str) for text in item.values()) else None
