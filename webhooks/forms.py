from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib.admin.widgets import FilteredSelectMultiple
from django.core.exceptions import ValidationError
from django.utils.html import format_html
from django.utils.safestring import SafeString

from schedules.forms import OneComplaint, Unsaved
from schedules.models import Schedule
from schedules.secret_form import Concealed

from .events import KINDS
from .models import Endpoint
from .signing import secret_complaint

if TYPE_CHECKING:
    EndpointModelForm = forms.ModelForm[Endpoint]
else:
    EndpointModelForm = forms.ModelForm


class SigningSecret(forms.CharField):
    HELP = (
        "Leave it empty to have one made, which is shown once. One of your own is “whsec_” and the base64 of "
        "24 to 64 random bytes."
    )

    def __init__(self) -> None:
        super().__init__(
            label="Signing secret", required=False, widget=Concealed(rows=2), help_text=self.HELP
        )

    def clean(self, value: Any) -> str:
        secret: str = super().clean(value)
        if secret and (complaint := secret_complaint(secret)):
            raise ValidationError(complaint)
        return secret


class Chosen(FilteredSelectMultiple):
    """In the frame that the admin puts around its own."""

    def render(self, *args: Any, **kwargs: Any) -> SafeString:
        return format_html('<div class="related-widget-wrapper">{}</div>', super().render(*args, **kwargs))


class EndpointForm(OneComplaint, EndpointModelForm):
    kinds = forms.MultipleChoiceField(
        label="Events",
        choices=[
            (kind, format_html("<code>{}</code> <span>{}</span>", kind, words))
            for kind, words in KINDS.items()
        ],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one event."},
    )
    schedules = forms.ModelMultipleChoiceField(
        Schedule.objects.none(),
        required=False,
        widget=Chosen("schedules", is_stacked=False),
        help_text="Only what these schedules do is told. None: all of them, single jobs and workers as well.",
    )
    secret = SigningSecret()

    unsaved = Unsaved({})

    class Meta:
        model = Endpoint
        fields = ("name", "url", "description", "kinds", "schedules", "failures", "among")
        widgets = {
            "url": forms.TextInput(attrs={"class": "vLargeTextField code", "spellcheck": "false"}),
            "description": forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        }
        help_texts = {
            "url": "Where events are sent (POST), such as https://chat.example/hooks/jim.",
            "failures": "So many of them make a schedule “failing”. It is told when that is reached, not "
            "again with each further failure.",
            "among": "So many executions count; with the same number in both fields, failures in a row do.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(schedules := self.fields.get("schedules"), forms.ModelMultipleChoiceField):
            chosen = Schedule.objects.filter(pk__in=self.instance.schedules)
            schedules.queryset = (Schedule.objects.open() | chosen).order_by("name")

    def clean_schedules(self) -> list[int]:
        return sorted(schedule.pk for schedule in self.cleaned_data["schedules"])

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name, texts in self.unsaved.fields.items():
            self.add_error(name if name in self.fields else None, texts)
        return cleaned

    def full_clean(self) -> None:
        super().full_clean()
        if self.is_bound and self.errors and self.cleaned_data.get("secret"):
            self.add_error("secret", "Please type it again: what you typed is not sent back to you.")


class RotateForm(forms.Form):
    secret = SigningSecret()


class NoteForm(forms.Form):
    note = forms.CharField(
        required=False, max_length=500, widget=forms.TextInput(attrs={"class": "vTextField"})
    )
