"""The forms of webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models.functions import Lower
from django.utils.html import format_html

from operations.form_errors import VerbForm
from schedules.form_fields import Words
from schedules.models import Schedule, ScheduleQuerySet
from schedules.models.refusals import unknown_schedule
from schedules.secret_form import Concealed

from .events import KINDS
from .models import Endpoint
from .signing import secret_error

if TYPE_CHECKING:
    EndpointModelForm = forms.ModelForm[Endpoint]
else:
    EndpointModelForm = forms.ModelForm


MOST_ALIKE = 100


class SigningSecret(forms.CharField):
    HELP = (
        "Leave empty to generate a secret, which is shown once. To use your own, enter “whsec_” followed by "
        "24 to 64 random bytes in base64."
    )

    def __init__(self) -> None:
        super().__init__(
            label="Signing secret", required=False, widget=Concealed(rows=2), help_text=self.HELP
        )

    def clean(self, value: Any) -> str:
        secret: str = super().clean(value)
        if secret and (message := secret_error(secret)):
            raise ValidationError(message)
        return secret


class ScheduleNames(Words):
    """A text field for the names of schedules, one per line. The cleaned value is a list of schedule ids.

    Names are typed, because a list of all schedules could be too long to choose from.
    """

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, list) or not all(isinstance(pk, int) for pk in value):
            return super().prepare_value(value)
        return super().prepare_value([str(schedule) for schedule in _by_name(pk__in=value)])

    def clean(self, value: Any) -> list[int]:
        wanted = list(dict.fromkeys(self.to_python(value)))
        keys = [name.lower() for name in wanted]
        # An open schedule takes precedence over a closed one of the same name.
        found = sorted(_by_name(key__in=keys), key=lambda each: each.status != Schedule.Status.CLOSED)
        known = {schedule.name.lower(): schedule.pk for schedule in found}
        if missing := [name for name, key in zip(wanted, keys, strict=True) if key not in known]:
            alike = _by_name(key__startswith=missing[0].lower()[:3]).values_list("name", flat=True)
            raise ValidationError(str(unknown_schedule(missing[0][:100], list(alike[:MOST_ALIKE]))))
        return sorted(known[key] for key in keys)


def _by_name(**which: Any) -> ScheduleQuerySet:
    rows: ScheduleQuerySet = Schedule.objects.annotate(key=Lower("name"))
    return rows.filter(**which).order_by("name")


class EndpointForm(VerbForm, EndpointModelForm):
    kinds = forms.MultipleChoiceField(
        label="Events",
        choices=[
            (kind, format_html("<code>{}</code> <span>{}</span>", kind, words))
            for kind, words in KINDS.items()
        ],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one event."},
    )
    schedules = ScheduleNames(
        help_text="One name per line. Only the events of these schedules are sent. If empty, all events are "
        "sent, including those that do not concern a schedule.",
    )
    secret = SigningSecret()

    class Meta:
        model = Endpoint
        fields = ("name", "url", "description", "kinds", "schedules", "failures", "among")
        widgets = {
            "url": forms.TextInput(attrs={"class": "vLargeTextField code", "spellcheck": "false"}),
            "description": forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        }
        help_texts = {
            "url": "The URL to which events are sent as POST requests, such as https://chat.example/hooks/jim.",
            "failures": "Send “schedule.failing” when this many of a schedule's most recent executions have "
            "failed. The event is not repeated for each further failure.",
            "among": "How many of a schedule's most recent executions to check for failures. To be notified "
            "only of consecutive failures, enter the same number as in “Failures”.",
        }

    def full_clean(self) -> None:
        super().full_clean()
        if self.is_bound and self.errors and self.cleaned_data.get("secret"):
            self.add_error("secret", "Enter the secret again. For security, it is not kept in the form.")


class RotateForm(forms.Form):
    secret = SigningSecret()


class NoteForm(forms.Form):
    note = forms.CharField(
        required=False, max_length=500, widget=forms.TextInput(attrs={"class": "vTextField"})
    )
