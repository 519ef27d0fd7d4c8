"""Lists by what no index knows: a table of millions is looked through a part at a time, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from database.batched import Statement, together
from database.statements import finding_first_since
from schedules.spec.wall_calendar import FIRST, LAST
from text.numbers import whole_number

from .keyset import OLDER, ROWS, Pages, address

M = TypeVar("M", bound=Model)
# Who commits later may have an earlier time than the ids before it.
SLACK = timedelta(minutes=10)


class _Moment(forms.DateTimeField):
    """A time in the reader's zone that leaves room on both sides: for zones, and for a little slack."""

    def __init__(self) -> None:
        widget = forms.DateTimeInput(attrs={"type": "datetime-local"})
        super().__init__(required=False, widget=widget, validators=[_check_year])

    def to_python(self, value: Any) -> datetime | None:
        """Take times that the clocks show twice, as the first of the two, and those that they leave out."""
        try:
            return super().to_python(value)
        except ValidationError as error:
            if error.code != "ambiguous_timezone" or not error.params:
                raise
            return timezone.make_aware(error.params["datetime"])

    def prepare_value(self, value: Any) -> Any:
        """Links carry an offset, which the field of a browser cannot show."""
        try:
            at = self.clean(value)
        except ValidationError:
            return value
        return timezone.localtime(at).replace(tzinfo=None).isoformat() if at else value


def _check_year(moment: datetime) -> None:
    if not FIRST.year <= moment.year <= LAST.year:
        raise ValidationError(f"Enter a year from {FIRST.year} to {LAST.year}.")


class TimesForm(forms.Form):
    since = _Moment()
    until = _Moment()

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        for name, label in {"since": "From", "until": "To"}.items():
            self.fields[name].label = f"{label} ({timezone.get_current_timezone_name()})"


@dataclass(frozen=True)
class Looked(Pages[M]):
    reached_at: datetime | None = None
    """How far back was looked, if there is more to look through."""
    further: str = ""


def look_back(
    request: HttpRequest,
    rows: QuerySet[M],
    *,
    by: str,
    since: datetime | None = None,
    until: datetime | None = None,
    reach: int,
) -> Looked[M]:
    """`by` is the time that grows with the ids; the rows come newest first, already filtered."""
    model: Any = rows.model
    before = whole_number(request.GET.get(OLDER, ""))
    top, floor = _bounds(model, by, since, until)
    top = top if before is None else before
    bottom = max(top - reach, floor, 0)
    near = rows.filter(_between(by, since, until), pk__gte=bottom, pk__lt=top).order_by("-pk")
    beyond = model.objects.filter(pk__lt=bottom) if bottom > floor else model.objects.none()
    found, reached = together(near[: ROWS + 1], beyond.order_by("-pk").values_list(by, flat=True)[:1])
    shown = found[:ROWS]
    newest = address(request, **{OLDER: ""}) if before is not None else ""
    if len(found) > ROWS:
        return Looked(shown, address(request, **{OLDER: shown[-1].pk}), newest)
    reached_at = next(iter(reached), None)
    further = address(request, **{OLDER: bottom}) if reached_at else ""
    return Looked(shown, "", newest, reached_at, further)


def _bounds(model: Any, by: str, since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """Between which ids those times are, the last one excluded."""
    newest = model.objects.order_by("-pk").values_list("pk", flat=True)[:1]
    times = [at for at in (until and until + SLACK, since and since - SLACK) if at]
    ids, *firsts = together(newest, *(Statement(*finding_first_since(model, by, at), 1) for at in times))
    top, found = next(iter(ids), 0) + 1, [first for [[first]] in firsts]
    return min(top, found[0]) if until else top, found[-1] if since else 0


def look_among(
    request: HttpRequest,
    rows: QuerySet[M],
    wanted: Q,
    *,
    key: str = "pk",
    within: str = "",
    by: str,
    reach: int,
) -> Looked[M]:
    """The same for rows that one index has in the order of `key`, or of both: so many of them at a time."""
    among: Any = rows.order_by(*filter(None, [within]), f"-{key}")
    before = whole_number(request.GET.get(OLDER, ""))
    if before is not None:
        among = among.filter(**{f"{key}__lt": before})
    beyond = among.values_list(key, flat=True)[reach : reach + 1].first()
    near = among if beyond is None else among.filter(**{f"{key}__gt": beyond})
    last = rows.none() if beyond is None else rows.filter(**{key: beyond})
    found, reached = together(near.filter(wanted)[: ROWS + 1], last.values_list(by, flat=True))
    shown, newest = found[:ROWS], address(request, **{OLDER: ""}) if before is not None else ""
    if len(found) > ROWS:
        return Looked(shown, address(request, **{OLDER: getattr(shown[-1], key)}), newest)
    if beyond is None:
        return Looked(shown, "", newest)
    return Looked(shown, "", newest, next(iter(reached), None), address(request, **{OLDER: beyond + 1}))


def _between(by: str, since: datetime | None, until: datetime | None) -> Q:
    return (Q(**{f"{by}__gte": since}) if since else Q()) & (Q(**{f"{by}__lt": until}) if until else Q())
