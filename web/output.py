"""The output and the items of attempts: on a page, as a live log and as a text file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django import forms
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString

from activities.models import ActivityItem, ActivityItemQuerySet, ActivityQuerySet, OutputLine
from activities.transcript import MOST_DOWNLOADED, MOST_LINES, STREAMS, Transcript, read_cursor
from text.numbers import whole_number

from .ansi import markup, plain
from .filters import search_box
from .keyset import address
from .page import STOP_POLLING, is_htmx

MOST_CHOICES = 300
MOST_SHOWN = 100
ITEM_COLUMNS = (
    *("name", "outcome", "message", "created_at", "change", "error_type", "external_id", "data"),
    *("activity__target_name", "activity__attempt"),
)
OUTCOMES = {"": "All", **dict(ActivityItem.Outcome.choices)}


class OutputFilters(forms.Form):
    of = forms.TypedChoiceField(label="Step", required=False, coerce=int, empty_value=None)
    stream = forms.ChoiceField(
        required=False, choices=[("", "All"), *((stream, stream) for stream in STREAMS)]
    )
    q = search_box()
    tab = forms.CharField(required=False, widget=forms.HiddenInput)
    to = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1, widget=forms.HiddenInput)

    def __init__(self, given: Any, attempts: Sequence[Any]) -> None:
        super().__init__(given)
        began = [attempt for attempt in attempts if attempt.executed_at or attempt.last_line]
        choices = [(each.pk, _attempt_name(each)) for each in began[-MOST_CHOICES:]]
        self.fields["of"].choices = [("", "All steps"), *choices]  # type: ignore[attr-defined]
        if len(attempts) == 1:
            self.fields["of"].widget = forms.HiddenInput()


class Line(NamedTuple):
    row: OutputLine
    step: str
    text: SafeString


def output_page(request: HttpRequest, attempts: Sequence[Any], *, is_final: bool) -> dict[str, Any]:
    """Return the template context of the output; the attempts must come from `with_last_lines`."""
    form, transcript = _selected(request, attempts)
    to = form.cleaned_data.get("to")
    rows = transcript.lines(to=to)
    is_single = len(transcript.attempts) == 1 and not transcript.is_filtered
    first = rows[0].number if rows and is_single else 1
    return {
        "output_form": form,
        "lines": _lines(rows, transcript, with_steps=len(attempts) > 1 and not form.cleaned_data.get("of")),
        "is_cut": len(rows) >= MOST_LINES and not is_single,
        "most_lines": MOST_LINES,
        "earlier": address(request, to=first - 1) if first > 1 else "",
        "latest": address(request, to="") if to else "",
        "cursor": transcript.cursor,
        "follows": not is_final and not to,
        "query": request.GET.urlencode(),
    }


def follow(request: HttpRequest, attempts: Sequence[Any], *, is_final: bool) -> HttpResponse:
    """Render only the new lines, and a new polling element that replaces the old one.

    Return status 204 if there are no new lines and more may follow.
    """
    form, transcript = _selected(request, attempts)
    rows = transcript.lines(after=read_cursor(request.GET.get("after", "")))
    if not rows and not is_final:
        return HttpResponse(status=204)
    context = {
        "lines": _lines(rows, transcript, with_steps=len(attempts) > 1 and not form.cleaned_data.get("of")),
        "cursor": transcript.cursor,
        "follows": not is_final,
        "has_ended": is_final,
        "query": address(request, after="").partition("?")[2],
        "path": request.path,
    }
    answer = render(request, "web/executions/_lines.html", context)
    answer.status_code = STOP_POLLING if is_final and is_htmx(request) else 200
    return answer


def download(request: HttpRequest, attempts: Sequence[Any], *, name: str) -> HttpResponse:
    """Return the output as a plain text file."""
    _, transcript = _selected(request, attempts)
    rows, names = transcript.everything(), _names(transcript)
    is_merged = len(transcript.attempts) > 1
    text = "".join(
        f"[{names[row.activity_id]}] {plain(row.text)}\n" if is_merged else f"{plain(row.text)}\n"
        for row in rows
    )
    if len(rows) == MOST_DOWNLOADED:
        text += f"… Only the first {MOST_DOWNLOADED:,} lines are shown. Choose a step to download the rest.\n"
    headers = {"Content-Disposition": f'attachment; filename="{name}.txt"'}
    return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=headers)


def _selected(request: HttpRequest, attempts: Sequence[Any]) -> tuple[OutputFilters, Transcript]:
    form = OutputFilters(request.GET, attempts)
    form.is_valid()
    given = form.cleaned_data
    of = given.get("of")
    chosen = [attempt for attempt in attempts if of is None or attempt.pk == of]
    return form, Transcript.of(chosen, stream=given.get("stream", ""), text=given.get("q", ""))


def _lines(rows: Sequence[OutputLine], transcript: Transcript, *, with_steps: bool) -> list[Line]:
    names = _names(transcript) if with_steps else {}
    return [Line(row, names.get(row.activity_id, ""), markup(row.text)) for row in rows]


def _names(transcript: Transcript) -> dict[int, str]:
    return {attempt.pk: _attempt_name(attempt) for attempt in transcript.attempts}


def _attempt_name(attempt: Any) -> str:
    number = f" · attempt {attempt.attempt}" if attempt.attempt > 1 else ""
    return f"{attempt.target_name}{number}"


def items_page(request: HttpRequest, items: ActivityItemQuerySet, *, of: ActivityQuerySet) -> dict[str, Any]:
    """Return the template context of one page of the items of these activities, ordered by attempt.

    An index provides this order, whether or not the items are filtered by outcome.
    """
    may = request.user.has_perm
    items, outcome = items.seen_by(may), request.GET.get("outcome", "")
    if outcome in ActivityItem.Outcome.values:
        items = items.filter(outcome=outcome)
    rows = items.select_related("activity").order_by("activity", "pk")
    rows = rows.only(*ITEM_COLUMNS)
    found = list(rows.filter(_after(request.GET.get("from", "")))[: MOST_SHOWN + 1])
    shown = found[:MOST_SHOWN]
    more = (
        address(request, **{"from": f"{shown[-1].activity_id}.{shown[-1].pk}"})
        if len(found) > MOST_SHOWN
        else ""
    )
    outcomes = [
        (label, address(request, outcome=name, **{"from": ""}), name == outcome)
        for name, label in OUTCOMES.items()
    ]
    return {
        "items": shown,
        "more_items": more,
        "outcomes": outcomes,
        "outcome": outcome,
        "lacking": sorted(of.lacking_for_items(may)),
    }


def _after(cursor: str) -> Q:
    """Return a condition that keeps only items after the cursor; an invalid cursor keeps all items."""
    activity, item = (whole_number(part) for part in cursor.partition(".")[::2])
    if activity is None or item is None:
        return Q()
    return Q(activity__gt=activity) | Q(activity=activity, pk__gt=item)
