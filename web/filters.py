"""Form fields of the filters above lists: a search field, and a range of times."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone

from schedules.spec.wall_calendar import FIRST, LAST
from text.clean import LONGEST_SEARCH, search_text


class SearchField(forms.CharField):
    """A search field that accepts any text, because a list with an invalid filter would show all rows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, max_length=LONGEST_SEARCH, **options)

    def to_python(self, value: Any) -> str:
        return search_text(super().to_python(value) or "")


def search_box(placeholder: str = "") -> SearchField:
    attributes = {"type": "search", "placeholder": placeholder} if placeholder else {"type": "search"}
    return SearchField(label="Search", widget=forms.TextInput(attrs=attributes))


class _Moment(forms.DateTimeField):
    """A field for a time in the user's time zone, in a year that JIM supports."""

    def __init__(self) -> None:
        widget = forms.DateTimeInput(attrs={"type": "datetime-local"})
        super().__init__(required=False, widget=widget, validators=[_check_year])

    def to_python(self, value: Any) -> datetime | None:
        """Parse a time, even one that the clocks skip or show twice; of the latter, take the first."""
        try:
            return super().to_python(value)
        except ValidationError as error:
            if error.code != "ambiguous_timezone" or not error.params:
                raise
            return timezone.make_aware(error.params["datetime"])

    def prepare_value(self, value: Any) -> Any:
        """Convert a time to the user's time zone, without the UTC offset, which a browser cannot show."""
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
