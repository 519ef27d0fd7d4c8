"""The times between which a list is looked through, as a form asks for them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone

from schedules.spec.wall_calendar import FIRST, LAST


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
