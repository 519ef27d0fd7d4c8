"""The forms for the times of a schedule: one formset for the rules of a spec, one for its exclusions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.conf import settings
from django.db.models.functions import Lower
from django.utils.functional import cached_property

from schedules.models import SharedCalendar
from schedules.spec import Spec, SpecError
from schedules.spec_text import to_text
from text.words import sentence

from .sent import Sent, data_of
from .spec_items import (
    EXCLUDE,
    EXCLUSION_FORMS,
    RULE_FORMS,
    RULE_LISTS,
    RULES,
    ExclusionForm,
    Initial,
    JSONItemForm,
    JSONRuleForm,
    Kinds,
    OnceForm,
    RuleForm,
    SharedCalendarForm,
    SpecItemForm,
)

CLOCK = ("time_zone", "dst")
BOUNDS = ("start_at", "end_at", "jitter")
MOST_OFFERED = 500
# One more form than a list in a spec may have items, so that `Spec.parse` can report that there are too many.
MOST_FORMS = 1001

if TYPE_CHECKING:
    SpecItemFormSet = forms.BaseFormSet[SpecItemForm]
else:
    SpecItemFormSet = forms.BaseFormSet


class SpecFormSet(SpecItemFormSet):
    """The forms for the rules or the exclusions of a spec; the hidden field `kind` selects a form's class."""

    kinds: ClassVar[Kinds]

    def _construct_form(self, i: int, **kwargs: Any) -> SpecItemForm:
        kind = self.data.get(f"{self.add_prefix(i)}-kind", "")
        self.form = self.kinds.get(kind, self.kinds[JSONItemForm.slug])
        form: SpecItemForm = super()._construct_form(i, **kwargs)  # type: ignore[misc]
        if self.data.get(f"{form.prefix}-new") and form.lines:
            form.lines[0].field.widget.attrs["autofocus"] = True
        return form

    @property
    def item_forms(self) -> list[SpecItemForm]:
        """Return the forms that the user has not removed."""
        self.is_valid()
        return [form for form in self.forms if not form.cleaned_data.get("DELETE")]

    @property
    def offered(self) -> list[type[SpecItemForm]]:
        """Return the kinds of items that can be added."""
        return [form for slug, form in self.kinds.items() if slug != JSONItemForm.slug]


class BaseRuleFormSet(SpecFormSet):
    kinds = RULE_FORMS


class BaseExclusionFormSet(SpecFormSet):
    kinds = EXCLUSION_FORMS

    def add_fields(self, form: SpecItemForm, index: int | None) -> None:
        super().add_fields(form, index)
        if isinstance(form, SharedCalendarForm):
            form.offer(self.calendar_names)

    @cached_property
    def calendar_names(self) -> Sequence[str]:
        names = SharedCalendar.objects.order_by(Lower("name")).values_list("name", flat=True)
        return list(names[:MOST_OFFERED])


_OPTIONS: dict[str, Any] = {"can_delete": True, "max_num": MOST_FORMS, "absolute_max": MOST_FORMS}
RuleFormSet: Any = forms.formset_factory(RuleForm, formset=BaseRuleFormSet, **_OPTIONS)
ExclusionFormSet: Any = forms.formset_factory(ExclusionForm, formset=BaseExclusionFormSet, **_OPTIONS)


class TimesForms:
    """The forms for the rules and exclusions of a schedule, with the main form for the rest of the spec.

    `spec` is the complete spec, or None if anything is wrong. `readable` is the spec made of only the valid
    parts, or None if these parts do not fit together.
    """

    def __init__(self, data: Any, form: forms.BaseForm, *, stored: object, now: datetime) -> None:
        options: dict[str, Any] = {"data": data, "form_kwargs": {"empty_permitted": False}}
        self.form = form
        self.rules: SpecFormSet = RuleFormSet(prefix=RULES, **options)
        self.exclusions: SpecFormSet = ExclusionFormSet(prefix=EXCLUDE, **options)
        self.readable = self._read()
        self.spec = self.readable if self._is_right(stored, now) else None

    def _read(self) -> Spec | None:
        """Return the spec made of the valid parts, and show an error beside each invalid part."""
        clock = self._given(CLOCK)
        if not self._parsed(clock, {}, self._add_form_error("time_zone")):
            clock = {}
        spec: dict[str, Any] = clock | {
            name: text
            for name, text in self._given(BOUNDS).items()
            if self._parsed({**clock, name: text}, {}, self._add_form_error(name))
        }
        read = [(form, form.items()) for form in self._item_forms if not form.errors]
        excluded = [item for form, items in read if form.spec_list == EXCLUDE for item in items]
        calendars = SharedCalendar.objects.named_in({EXCLUDE: excluded})
        for form, items in read:
            name = form.spec_list
            if self._parsed({**clock, name: items}, calendars, form.add_spec_error):
                spec[name] = [*spec.get(name, []), *items]
        return self._parsed(spec, calendars)

    def _parsed(self, data: Mapping[str, Any], calendars: Mapping[str, Any], tell: Any = None) -> Spec | None:
        try:
            return Spec.parse(data, calendars)
        except SpecError as error:
            if tell:
                tell(error.message)
            else:
                self._place(error)
            return None

    def _is_right(self, stored: object, now: datetime) -> bool:
        spec = self.readable
        is_read = self.rules.is_valid() and self.exclusions.is_valid()
        if spec is None or not is_read or not {*CLOCK, *BOUNDS}.isdisjoint(self.form.errors):
            return False
        try:
            if spec.as_json() != stored:
                spec.check(now, minimum_seconds=settings.JIM_MINIMUM_INTERVAL_SECONDS)
        except SpecError as error:
            self._place(error)
            return False
        return True

    def _place(self, error: SpecError) -> None:
        """Show an error of the whole spec beside its field, or above the list of rules or exclusions.

        If the list that the error names has only one rule, show the error beside this rule.
        """
        alone = [form for form in self.rules.item_forms if form.spec_list == error.field]
        if error.field in (*CLOCK, *BOUNDS):
            self._add_form_error(error.field)(error.message)
        elif error.field == EXCLUDE:
            self.exclusions.non_form_errors().append(sentence(error.message))
        elif len(alone) == 1:
            alone[0].add_spec_error(error.message)
        else:
            self.rules.non_form_errors().append(sentence(error.message))

    def _add_form_error(self, name: str) -> Any:
        return lambda message: self.form.add_error(name, sentence(message))

    @property
    def _item_forms(self) -> list[SpecItemForm]:
        return [*self.rules.item_forms, *self.exclusions.item_forms]

    def _given(self, names: Iterable[str]) -> dict[str, str]:
        cleaned = self.form.cleaned_data
        return {name: cleaned[name] for name in names if cleaned.get(name)}


def rules_data(spec: object, calendars: Mapping[str, object]) -> Sent:
    """Return the form data that a browser would send for the rules of a stored spec, even a broken one."""
    known = spec if isinstance(spec, Mapping) else {}
    shown = [_rule_initial(name, rule) for name in RULE_LISTS[:-1] for rule in _list(known, name)]
    if known.get("at"):
        shown.append((OnceForm, {"times": to_text(known, calendars)["at"]}))
    return _formset_data(RULES, shown)


def exclusions_data(spec: object) -> Sent:
    known = spec if isinstance(spec, Mapping) else {}
    return _formset_data(EXCLUDE, [_initial(EXCLUSION_FORMS, item) for item in _list(known, EXCLUDE)])


def item_data(form: type[SpecItemForm], prefix: str, initial: Mapping[str, Any]) -> Sent:
    """Return the form data that a browser would send for one item of a formset."""
    return data_of(form(prefix=prefix, initial={"kind": form.slug, **initial}))


def _formset_data(prefix: str, shown: Sequence[tuple[type[SpecItemForm], Initial]]) -> Sent:
    data = {f"{prefix}-TOTAL_FORMS": [str(len(shown))], f"{prefix}-INITIAL_FORMS": ["0"]}
    for number, (form, initial) in enumerate(shown):
        data |= item_data(form, f"{prefix}-{number}", initial)
    return data


def _rule_initial(name: str, rule: object) -> tuple[type[SpecItemForm], Initial]:
    forms = {slug: form for slug, form in RULE_FORMS.items() if form.spec_list in (name, "")}
    form, initial = _initial(forms, rule)
    return form, initial | ({"of": name} if form is JSONRuleForm else {})


def _initial(kinds: Kinds, item: object) -> tuple[type[SpecItemForm], Initial]:
    """Return the first form class that can show the item, and its initial values; JSON can show any item."""
    shown = ((form, form.initial_of(item)) for form in kinds.values())
    return next((form, initial) for form, initial in shown if initial is not None)


def _list(spec: Mapping[str, Any], name: str) -> Iterator[object]:
    items = spec.get(name, [])
    yield from items if isinstance(items, list) else [items]
