"""The rules of a spec, each as a small form of its kind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from django import forms

from files import strict_json
from schedules.spec import SpecError
from schedules.spec.structured import KEYS
from schedules.spec_text import from_text, to_text
from text.numbers import whole_number

from . import weekdays
from .draft import Part, Texts, given, numbered
from .fields import choice, hidden, line, lines, tick

EVERY_FIELD = {
    "second": "Second",
    "minute": "Minute",
    "hour": "Hour",
    "day_of_month": "Day of month",
    "month": "Month",
    "day_of_week": "Day of week",
    "year": "Year",
}
CHIPS = (
    ("*/15 * * * *", "every 15 minutes"),
    ("0 * * * *", "every hour"),
    ("0 2 * * *", "daily at 02:00"),
    ("0 9 * * mon-fri", "weekdays at 09:00"),
    ("0 3 * * sun", "Sundays at 03:00"),
    ("0 6 1 * *", "the 1st of each month"),
    ("0 18 L * *", "the last day of each month"),
)


class Piece(forms.Form):
    """One line of a list; `texts` are what its fields hold."""

    use_required_attribute = False
    do_not_call_in_templates = True  # pages list the kinds that there are
    kind: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    start: ClassVar[Texts] = {}
    keys: ClassVar[Sequence[str]] = ()
    chips: ClassVar[Sequence[tuple[str, str]]] = ()

    def __init__(self, part: Part, prefix: str, **kwargs: Any) -> None:
        self.key, self.texts = part.key, part.texts
        data = {f"{prefix}-{part.key}-{name}": text for name, text in part.texts.items()}
        super().__init__(data, prefix=f"{prefix}-{part.key}", **kwargs)

    @property
    def days(self) -> list[Any]:
        """Boxes for the days of the week, if it has them."""
        return []

    @property
    def lines(self) -> list[Any]:
        """What is typed."""
        return [bound for bound in self.visible_fields() if not isinstance(bound.field, forms.BooleanField)]

    def begin(self) -> None:
        """It has just been added: whoever added it goes on in its first line."""
        if self.texts.get("new") and self.lines:
            self.lines[0].field.widget.attrs["autofocus"] = True

    def items(self) -> list[object]:
        """What it adds to its list of the spec; SpecError says what is wrong with it."""
        raise NotImplementedError


class Rule(Piece):
    list_name: ClassVar[str]

    @classmethod
    def shown(cls, rule: Any) -> Texts | None:
        """The texts that stand for this JSON; None if this kind cannot say it."""
        raise NotImplementedError


class Days(Rule):
    """Those with days of the week."""

    mon, tue, wed, thu, fri, sat, sun = (tick(day.capitalize()) for day in weekdays.DAYS)
    on = line("Days of the week", help="Such as mon-fri, or fri#2 for the second Friday of a month.")
    was = hidden()

    def __init__(self, part: Part, prefix: str, **kwargs: Any) -> None:
        super().__init__(part, prefix, **kwargs)
        if not part.texts.get("on"):
            del self.fields["on"]

    @property
    def days(self) -> list[Any]:
        return [] if "on" in self.fields else [self[day] for day in weekdays.DAYS]

    def _on(self) -> Texts:
        text = weekdays.text_of(self.texts)
        return {} if text == weekdays.EVERY_DAY else {"weekdays": text}


class Week(Days):
    kind, title, list_name = "week", "Days and times", "patterns"
    about = "At these times, on these days of the week."
    start: ClassVar = {"times": "09:00", "mon": "on", "tue": "on", "wed": "on", "thu": "on", "fri": "on"}
    times = line("Times", help="With commas between them, such as 09:00, 12:30.", example="09:00, 12:30")
    field_order = ("times", *weekdays.DAYS)

    @classmethod
    def shown(cls, rule: Any) -> Texts | None:
        match rule:
            case {"times": [*times], **rest} if rest.keys() <= {"weekdays"} and _are_texts(times):
                return {"times": ", ".join(times)} | weekdays.ticked(str(rest.get("weekdays", "*")))
        return None

    def items(self) -> list[object]:
        times = self.texts.get("times", "").replace(",", " ").split()
        return [{"times": times, **self._on()}]


class Window(Days):
    kind, title, list_name = "window", "Interval in a window", "patterns"
    about = "Every so often between two times of the day."
    start: ClassVar = {"every": "30m", "first": "09:00", "last": "17:00"}
    every = line("Every", help="Such as 90s, 25m, 1h30m.", example="25m")
    first = line("From", help="The first time of the day.", example="00:00")
    last = line("Until", help="The last time there can be.", example="23:59:59")

    @classmethod
    def shown(cls, rule: Any) -> Texts | None:
        match rule:
            case {"every": str(), **rest} if rest.keys() <= {"from", "until", "weekdays"}:
                names = {"every": "every", "first": "from", "last": "until"}
                times = {name: str(rule[key]) for name, key in names.items() if key in rule}
                return times | weekdays.ticked(str(rest.get("weekdays", "*")))
        return None

    def items(self) -> list[object]:
        texts = given(self.texts, "first", "last")
        window = {key: texts[name] for key, name in (("from", "first"), ("until", "last")) if name in texts}
        return [{"every": _number(self.texts.get("every", "").strip()), **window, **self._on()}]


class Interval(Rule):
    kind, title, list_name = "interval", "Interval", "every"
    about = "Every so often, around the clock, whatever the clocks do."
    start: ClassVar = {"every": "1h"}
    every = line("Every", help="Such as 90s, 15m, 1h30m, 2d.", example="15m")
    offset = line("Offset", help="1h with offset 5m: five minutes past every hour.", example="0s")

    @classmethod
    def shown(cls, rule: Any) -> Texts | None:
        match rule:
            case str():
                return {"every": rule}
            case {"every": str(every), "offset": str(offset), **rest} if not rest:
                return {"every": every, "offset": offset}
        return None

    def items(self) -> list[object]:
        every, offset = self.texts.get("every", "").strip(), self.texts.get("offset", "").strip()
        return [{"every": _number(every), "offset": _number(offset)} if offset else _number(every)]


class Cron(Rule):
    kind, title, list_name = "cron", "Cron", "cron"
    about = "A cron expression."
    start: ClassVar = {"expression": "0 2 * * *"}
    expression = line(
        "Expression",
        help="Minute, hour, day of month, month, day of week; a sixth field is the year, of seven the first "
        "is the second.",
        example="0 3 * * mon-fri",
    )
    chips = CHIPS

    @classmethod
    def shown(cls, rule: Any) -> Texts | None:
        return {"expression": rule} if isinstance(rule, str) else None

    def items(self) -> list[object]:
        return [self.texts.get("expression", "")]


class Structured(Rule):
    kind, title, list_name = "calendar", "Calendar", "calendars"
    about = "Each field by its name; all of them have to match."
    start: ClassVar = {"hour": "9", "day_of_month": "1-7", "day_of_week": "mon"}
    second, minute, hour, day_of_month, month, day_of_week, year = (
        line(EVERY_FIELD[key], example="0" if key in KEYS[:3] else "*") for key in KEYS
    )
    comment = line("Comment", code=False)
    keys = KEYS

    @classmethod
    def shown(cls, rule: Any) -> Texts | None:
        return _structured(rule)

    def items(self) -> list[object]:
        return [given(self.texts, *KEYS, "comment")]


class Once(Rule):
    kind, title, list_name = "once", "Once", "at"
    about = "At single moments."
    times = lines(
        "Moments",
        help="One per line, on the clock of the time zone, such as 2026-12-01 09:00, or with an offset of "
        "its own, such as 2026-12-01T09:00:00Z.",
        example="2026-12-01 09:00",
    )

    @classmethod
    def shown(cls, rule: Any) -> Texts | None:
        return {"times": rule} if isinstance(rule, str) else None

    def items(self) -> list[object]:
        times = list(from_text({"at": self.texts.get("times", "")})["at"])
        if not times:
            raise SpecError("at", "write at least one moment, such as 2026-12-01 09:00")
        return times


class Unknown(Rule):
    """What is stored and no form can show: as it is."""

    kind, title, list_name = "json", "As it is stored", ""
    about = "This rule cannot be shown in fields."
    of = choice("Kind", [(name, name) for name in ("patterns", "cron", "calendars", "every", "at")])
    text = lines("JSON")

    @classmethod
    def shown(cls, rule: Any) -> Texts | None:
        return {"text": json.dumps(rule, ensure_ascii=False)}

    def items(self) -> list[object]:
        return [read_json(self.texts.get("text", ""))]


KINDS: dict[str, type[Rule]] = {
    form.kind: form for form in (Week, Window, Cron, Structured, Interval, Once, Unknown)
}
OFFERED = tuple(form for form in KINDS.values() if form is not Unknown)


def rule_form(part: Part) -> Rule:
    form = KINDS.get(part.texts.get("kind", ""), Unknown)(part, "rule")
    form.begin()
    return form


def list_of(form: Rule) -> str:
    """The list of the spec that a rule belongs to."""
    return form.list_name or _known_list(form.texts.get("of", ""))


def rules_of(spec: object, calendars: Mapping[str, object]) -> list[Part]:
    """The rules of a stored spec, also of one that is broken."""
    known = spec if isinstance(spec, Mapping) else {}
    texts = [
        _texts(name, rule)
        for name in ("patterns", "cron", "calendars", "every")
        for rule in _list(known, name)
    ]
    if known.get("at"):
        texts.append({"kind": "once", "times": to_text(known, calendars)["at"]})
    return numbered(texts)


def read_json(text: str) -> object:
    try:
        return strict_json.loads(text)
    except ValueError as error:
        raise SpecError("", str(error)) from None


def _texts(name: str, rule: object) -> Texts:
    for kind, form in KINDS.items():
        if form.list_name == name and (texts := form.shown(rule)) is not None:
            return {"kind": kind, **texts}
    return {"kind": "json", "of": name, "text": json.dumps(rule, ensure_ascii=False)}


def _structured(rule: Any) -> Texts | None:
    known = {*KEYS, "comment"}
    if isinstance(rule, dict) and rule.keys() <= known and _are_texts(list(rule.values())):
        return dict(rule)
    return None


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _known_list(name: str) -> str:
    return name if name in ("patterns", "cron", "calendars", "every", "at") else "patterns"


def _list(spec: Mapping[str, Any], name: str) -> Iterator[object]:
    rules = spec.get(name, [])
    yield from rules if isinstance(rules, list) else [rules]


def _number(text: str) -> str | int:
    """A bare number of seconds."""
    seconds = whole_number(text, digits=17)
    return text if seconds is None else seconds
