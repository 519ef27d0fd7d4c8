"""The forms of single rules and exclusions: each kind has its own fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError

from files import strict_json
from schedules.spec.structured import KEYS
from schedules.spec_text import from_text
from text.numbers import whole_number
from text.words import sentence

from . import weekdays

Initial = dict[str, Any]
RULES, EXCLUDE = "rules", "exclude"
RULE_LISTS = ("patterns", "cron", "calendars", "every", "at")
COMMENT = "Shown when JIM explains why the schedule did not run."
LABELS = {key: key.replace("_", " ").capitalize() for key in KEYS}
CRON_EXAMPLES = (
    ("*/15 * * * *", "every 15 minutes"),
    ("0 * * * *", "every hour"),
    ("0 2 * * *", "daily at 02:00"),
    ("0 9 * * mon-fri", "weekdays at 09:00"),
    ("0 3 * * sun", "Sundays at 03:00"),
    ("0 6 1 * *", "the 1st of each month"),
    ("0 18 L * *", "the last day of each month"),
)


def line(
    label: str,
    *,
    help: str = "",
    example: str = "",
    code: bool = True,
    max_length: int | None = None,
    **attrs: Any,
) -> forms.CharField:
    more = {"class": "vTextField code" if code else "vTextField", "autocomplete": "off", **attrs}
    more |= {"placeholder": example} if example else {}
    widget = forms.TextInput(attrs={"spellcheck": "false", **more})
    return forms.CharField(label=label, required=False, help_text=help, max_length=max_length, widget=widget)


def lines(label: str, *, help: str = "", example: str = "") -> forms.CharField:
    more = {"placeholder": example} if example else {}
    attrs = {"autocomplete": "off", "spellcheck": "false", "class": "code", "rows": 3, **more}
    return forms.CharField(label=label, required=False, help_text=help, widget=forms.Textarea(attrs=attrs))


def hidden() -> forms.CharField:
    return forms.CharField(required=False, widget=forms.HiddenInput)


class SpecItemForm(forms.Form):
    """A form for one rule or exclusion. Its fields are not checked one by one: `Spec.parse` checks all."""

    use_required_attribute = False
    do_not_call_in_templates = True  # pages list the kinds of forms
    slug: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    start: ClassVar[Initial] = {}
    examples: ClassVar[Sequence[tuple[str, str]]] = ()
    is_wide: ClassVar[bool] = False
    # The name of the list in the spec to which the items belong.
    spec_list = ""
    kind = hidden()

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        """Return the initial field values for an item of the spec, or None if this form cannot show it."""
        raise NotImplementedError

    def items(self) -> list[object]:
        """Return the items that the form adds to its list in the spec."""
        raise NotImplementedError

    @property
    def number(self) -> str:
        return str(self.prefix).rpartition("-")[2]

    @property
    def lines(self) -> list[forms.BoundField]:
        """Return the visible fields, except the weekday checkboxes and the one that deletes the item."""
        return [bound for bound in self.visible_fields() if bound.name not in ("days", "DELETE")]

    def add_spec_error(self, message: str) -> None:
        """Show an error beside the only field of the form, or above the form if it has several fields."""
        name = self.lines[0].name if len(self.lines) == 1 else None
        self.add_error(name, sentence(message))

    def given(self, *names: str) -> dict[str, str]:
        """Return a dict from field name to entered value for these fields, without empty values."""
        return {name: self.cleaned_data[name] for name in names if self.cleaned_data.get(name)}


class JSONItemForm(SpecItemForm):
    """The form for a stored item that no other form can show."""

    slug, title = "json", "As stored"
    about = "This item cannot be shown in separate fields. Edit it as JSON."
    text = lines("JSON")

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        return {"text": json.dumps(item, ensure_ascii=False)}

    def clean_text(self) -> object:
        try:
            return strict_json.loads(self.cleaned_data["text"])
        except ValueError as error:
            raise ValidationError(sentence(str(error))) from None

    def items(self) -> list[object]:
        return [self.cleaned_data["text"]]


class RuleForm(SpecItemForm):
    """A form for a rule that says when the schedule runs."""


class DaysForm(RuleForm):
    """A form for a rule that can be limited to some days of the week."""

    days = forms.MultipleChoiceField(
        required=False,
        choices=[(day, day.capitalize()) for day in weekdays.DAYS],
        widget=forms.CheckboxSelectMultiple,
    )
    on = line("Days of the week", help="Such as mon-fri, or fri#2 for the second Friday of each month.")
    was = hidden()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.fields["days" if self["on"].value() else "on"]

    def weekdays(self) -> dict[str, str]:
        cleaned = self.cleaned_data
        text = cleaned.get("on") or weekdays.text_of(cleaned.get("days", ()), cleaned.get("was", ""))
        return {} if text == weekdays.EVERY_DAY else {"weekdays": text}


class WeekForm(DaysForm):
    slug, title, spec_list = "week", "Days and times", "patterns"
    about = "Runs at the given times on the given days of the week."
    start: ClassVar = {"times": "09:00", "days": weekdays.DAYS[:5]}
    times = line(
        "Times", help="Times of day, separated by commas, such as 09:00, 12:30.", example="09:00, 12:30"
    )
    field_order = ("times",)

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        match item:
            case {"times": [*times], **rest} if rest.keys() <= {"weekdays"} and _are_texts(times):
                return {"times": ", ".join(times)} | weekdays.initial_of(str(rest.get("weekdays", "*")))
        return None

    def items(self) -> list[object]:
        return [{"times": self.cleaned_data["times"].replace(",", " ").split(), **self.weekdays()}]


class WindowForm(DaysForm):
    slug, title, spec_list = "window", "Interval in a window", "patterns"
    about = "Runs at an interval between two times of day."
    start: ClassVar = {"every": "30m", "first": "09:00", "last": "17:00"}
    every = line("Every", help="Such as 90s, 25m, 1h30m.", example="25m")
    first = line("From", help="The time of the first run of the day.", example="00:00")
    last = line("Until", help="The last run of the day is at or before this time.", example="23:59:59")

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        match item:
            case {"every": str(), **rest} if rest.keys() <= {"from", "until", "weekdays"}:
                names = {"every": "every", "first": "from", "last": "until"}
                times = {name: str(item[key]) for name, key in names.items() if key in item}
                return times | weekdays.initial_of(str(rest.get("weekdays", "*")))
        return None

    def items(self) -> list[object]:
        given = self.given("first", "last")
        window = {key: given[name] for key, name in (("from", "first"), ("until", "last")) if name in given}
        return [{"every": _number(self.cleaned_data["every"]), **window, **self.weekdays()}]


class CronForm(RuleForm):
    slug, title, spec_list = "cron", "Cron", "cron"
    about = "Runs at the times of a cron expression."
    start: ClassVar = {"expression": "0 2 * * *"}
    examples = CRON_EXAMPLES
    expression = line(
        "Expression",
        help="Minute, hour, day of month, month, day of week. A sixth field is the year. If there are seven "
        "fields, the first one is for seconds.",
        example="0 3 * * mon-fri",
    )

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        return {"expression": item} if isinstance(item, str) else None

    def items(self) -> list[object]:
        return [self.cleaned_data["expression"]]


class CalendarForm(RuleForm):
    slug, title, spec_list = "calendar", "Calendar", "calendars"
    about = "Runs at the times that match all fields, such as 09:00 on the first Monday of each month."
    start: ClassVar = {"hour": "9", "day_of_month": "1-7", "day_of_week": "mon"}
    is_wide = True
    second, minute, hour, day_of_month, month, day_of_week, year = (
        line(LABELS[key], example="0" if key in KEYS[:3] else "*") for key in KEYS
    )
    comment = line("Comment", code=False)

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        return {} if item == {} else _only_texts(item, (*KEYS, "comment"))

    def items(self) -> list[object]:
        return [self.given(*KEYS, "comment")]


class IntervalForm(RuleForm):
    slug, title, spec_list = "interval", "Interval", "every"
    about = "Runs at a fixed interval, unaffected by daylight saving time."
    start: ClassVar = {"every": "1h"}
    every = line("Every", help="Such as 90s, 15m, 1h30m, 2d.", example="15m")
    offset = line(
        "Offset",
        help="If the interval is 1h, the offset 5m means five minutes past every hour.",
        example="0s",
    )

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        match item:
            case str():
                return {"every": item}
            case {"every": str(every), "offset": str(offset), **rest} if not rest:
                return {"every": every, "offset": offset}
        return None

    def items(self) -> list[object]:
        every, offset = _number(self.cleaned_data["every"]), self.cleaned_data["offset"]
        return [{"every": every, "offset": _number(offset)} if offset else every]


class OnceForm(RuleForm):
    slug, title, spec_list = "once", "Once", "at"
    about = "Runs once at each of the given dates and times."
    times = lines(
        "Dates and times",
        help="One per line, in the schedule's time zone, such as 2026-12-01 09:00, or with a UTC offset, "
        "such as 2026-12-01T09:00:00Z.",
        example="2026-12-01 09:00",
    )

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        return {"times": item} if isinstance(item, str) else None

    def clean_times(self) -> list[object]:
        times = list(from_text({"at": self.cleaned_data["times"]})["at"])
        if not times:
            raise ValidationError("Enter at least one date and time, such as 2026-12-01 09:00.")
        return times

    def items(self) -> list[object]:
        times: list[object] = self.cleaned_data["times"]
        return times


class JSONRuleForm(JSONItemForm, RuleForm):
    of = forms.CharField(
        label="Kind", required=False, widget=forms.Select(choices=[(name, name) for name in RULE_LISTS])
    )
    field_order = ("of",)

    def clean(self) -> None:
        chosen = self.cleaned_data.get("of")
        self.spec_list = chosen if chosen in RULE_LISTS else RULE_LISTS[0]


class ExclusionForm(SpecItemForm):
    """A form for times at which the schedule does not run."""

    spec_list = EXCLUDE
    # The key in the exclusion for each form field.
    keys: ClassVar[Mapping[str, str]] = {}
    needed: ClassVar[Sequence[str]] = ()

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        texts = _only_texts(item, cls.keys.values())
        if texts is None or not all(cls.keys[name] in texts for name in cls.needed):
            return None
        return {name: texts[key] for name, key in cls.keys.items() if key in texts}

    def items(self) -> list[object]:
        given = dict.fromkeys(self.needed, "") | self.given(*self.keys)
        return [{self.keys[name]: text for name, text in given.items()}]


class SharedCalendarForm(ExclusionForm):
    slug, title = "shared", "A shared calendar"
    about = "Excludes the dates and times of a shared calendar, including those that are added later."
    keys: ClassVar = {"calendar": "calendar"}
    needed = ("calendar",)
    calendar = forms.CharField(label="Calendar", required=False, widget=forms.Select)

    def offer(self, names: Sequence[str]) -> None:
        """Offer the calendars with these names, and the chosen calendar even if it no longer exists."""
        current = str(self["calendar"].value() or "")
        missing = [] if not current or current in names else [(current, f"{current} (not found)")]
        widget = self.fields["calendar"].widget
        assert isinstance(widget, forms.Select)
        widget.choices = [("", "choose…"), *((name, name) for name in names), *missing]


class HolidaysForm(ExclusionForm):
    slug, title = "holidays", "Public holidays"
    about = "Excludes the public holidays of a country, or of a subdivision such as a state."
    start: ClassVar = {"holidays": "GB"}
    keys: ClassVar = {name: name for name in ("holidays", "subdivision", "comment")}
    needed = ("holidays",)
    holidays = line("Country", help="The two-letter code of the country, such as GB.", example="GB")
    subdivision = line(
        "Subdivision",
        help="The code of the subdivision, such as ENG for England. If empty, only nationwide holidays "
        "are excluded.",
        example="ENG",
    )
    comment = line("Comment", help=COMMENT, code=False)


class DatesForm(ExclusionForm):
    slug, title = "dates", "Dates"
    about = "Excludes one day, or all days from one date to another."
    first = line("From", example="2026-12-24")
    last = line("To", help="Leave this empty to exclude one day only.", example="2027-01-02")
    comment = line("Comment", help=COMMENT, code=False)

    @classmethod
    def initial_of(cls, item: Any) -> Initial | None:
        texts = _only_texts(item, ("dates", "comment"))
        if texts is None or "dates" not in texts:
            return None
        first, _, last = texts.pop("dates").partition("/")
        return {"first": first, "last": last, **texts}

    def items(self) -> list[object]:
        return [{"dates": "/".join(self.given("first", "last").values()), **self.given("comment")}]


class SpanForm(ExclusionForm):
    slug, title = "between", "A span of time"
    about = "Excludes a span from one date and time to another, in the schedule's time zone."
    keys: ClassVar = {"first": "from", "last": "until", "comment": "comment"}
    needed = ("first", "last")
    first = line("From", example="2026-12-01 22:00")
    last = line("Until", example="2026-12-02 04:00")
    comment = line("Comment", help=COMMENT, code=False)


class MatchingForm(ExclusionForm):
    slug, title = "matching", "Matching times"
    about = "Excludes the times that match all fields, such as each Saturday and Sunday."
    start: ClassVar = {"day_of_week": "sat,sun"}
    is_wide = True
    keys: ClassVar = {name: name for name in (*KEYS, "comment")}
    second, minute, hour, day_of_month, month, day_of_week, year = (
        line(LABELS[key], example="*") for key in KEYS
    )
    comment = line("Comment", help=COMMENT, code=False)


class JSONExclusionForm(JSONItemForm, ExclusionForm):
    pass


Kinds = dict[str, type[SpecItemForm]]
RULE_FORMS: Kinds = {
    form.slug: form
    for form in (WeekForm, WindowForm, CronForm, CalendarForm, IntervalForm, OnceForm, JSONRuleForm)
}
# The order matters: an exclusion is shown by the first of these forms that can show it.
EXCLUSION_FORMS: Kinds = {
    form.slug: form
    for form in (SharedCalendarForm, HolidaysForm, DatesForm, SpanForm, MatchingForm, JSONExclusionForm)
}


def _only_texts(item: Any, names: Iterable[str]) -> dict[str, str] | None:
    """Return a copy of the item if it is a non-empty dict of strings with only these keys, otherwise None."""
    is_known = isinstance(item, dict) and bool(item) and item.keys() <= set(names)
    return dict(item) if is_known and _are_texts(item.values()) else None


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _number(text: str) -> str | int:
    """Return a number without a unit, which means seconds, as an integer; return other text unchanged."""
    seconds = whole_number(text, digits=17)
    return text if seconds is None else seconds
