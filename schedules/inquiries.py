"""Helpers for the pages that explain a time, compare revisions, or list the uses of a template."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.db.models.functions import Lower
from django.http import HttpRequest
from django.utils.text import Truncator

from schedules.form_fields import WallTime
from schedules.models import Schedule, Step, TaskTemplate
from schedules.revisions import Change, Revision, Revisions, compare
from text.numbers import whole_number
from text.words import as_json

USERS_SHOWN = 50
LONGEST_SHOWN = 200

REVISIONS_PER_PAGE = 25
CHANGES_SHOWN = 10
DIFFERENCES_SHOWN = 500


class WhyForm(forms.Form):
    at = WallTime(label="Time")

    @classmethod
    def asked(cls, request: HttpRequest, schedule: Schedule) -> WhyForm:
        """Return the form filled in from a request; put a time with a UTC offset in the schedule's zone."""
        form = cls(request.GET if "at" in request.GET else None)
        form.fields["at"].help_text = f"In the time zone {schedule.zone}."
        at = form.cleaned_data["at"] if form.is_valid() else None
        if at is not None and at.tzinfo is not None:
            form.data = {"at": f"{at.astimezone(schedule.zone):%Y-%m-%dT%H:%M:%S}"}
        return form


def comparison(revisions: Revisions, request: HttpRequest) -> dict[str, Any]:
    """Return the template context that compares the two requested revisions, or else the newest two."""
    newest = len(revisions)
    after = _number(request.GET.get("to"), among=newest) or newest
    before = _number(request.GET.get("from"), among=newest) or max(after - 1, 1)
    if not newest:
        return {}
    older, newer = _revision(revisions, before), _revision(revisions, after)
    differences = compare(older.definition, newer.definition)
    return {
        "older": older,
        "newer": newer,
        "differences": [_shown(change) for change in differences[:DIFFERENCES_SHOWN]],
        "is_cut": len(differences) > DIFFERENCES_SHOWN,
    }


def _shown(change: Change) -> Change:
    """Return a change with its values as text."""
    before, after = (
        value if value is None or isinstance(value, str) else as_json(value)
        for value in (change.before, change.after)
    )
    return Change(change.path, before, after)


def _number(text: str | None, *, among: int) -> int | None:
    return whole_number(text or "", digits=9, least=1, most=among)


def _revision(revisions: Revisions, number: int) -> Revision:
    return revisions[len(revisions) - number]


def uses(template: TaskTemplate) -> list[tuple[Step, list[str]]]:
    """Return the steps of open schedules that use the template, each with its overrides in words.

    The list has at most one step more than a page shows; the extra step tells the page that the list is cut.
    """
    steps = template.steps.exclude(schedule__status="closed").select_related("schedule")
    ordered = steps.order_by(Lower("schedule__name"), "index", "pk")
    return [(step, _own_words(step)) for step in ordered[: USERS_SHOWN + 1]]


def _own_words(step: Step) -> list[str]:
    own = {name: value for name, value in step.overrides.items() if name != "template"}
    texts = (f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in own.items())
    return [Truncator(text).chars(LONGEST_SHOWN) for text in texts]
