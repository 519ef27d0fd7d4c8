from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError

from operations.form_errors import VerbForm

from .models import Secret
from .models.secret import LONGEST_BYTES, SHORTEST, check_value

if TYPE_CHECKING:
    SecretModelForm = forms.ModelForm[Secret]
else:
    SecretModelForm = forms.ModelForm


class Concealed(forms.Textarea):
    """A text area that never shows its value, not even when the form is shown again."""

    def __init__(self, *, rows: int = 4) -> None:
        # The spell checker of a browser can send the text to its vendor.
        quiet = {"autocomplete": "off", "autocapitalize": "none", "autocorrect": "off", "spellcheck": "false"}
        super().__init__(attrs={"rows": rows, "class": "vLargeTextField code concealed", **quiet})

    def format_value(self, value: Any) -> None:
        return None


def as_meant(value: str) -> str:
    """Return a value with \\n as line ends; a single line loses its final line end, which `echo` adds."""
    value = value.replace("\r\n", "\n")
    return value if "\n" in value.rstrip("\n") else value.rstrip("\n")


class SecretForm(VerbForm, SecretModelForm):
    value = forms.CharField(
        strip=False,
        widget=Concealed,
        help_text=f"At least {SHORTEST} characters and at most {LONGEST_BYTES // 1024} KiB. Several lines "
        "are allowed, as in a private key. The value is stored encrypted and is never shown again.",
    )

    class Meta:
        model = Secret
        fields = ("name", "description")
        widgets = {
            "name": forms.TextInput(attrs={"class": "vTextField code", "spellcheck": "false"}),
            "description": forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
        }
        help_texts = {"name": "Lower-case letters, digits, - and _. Steps refer to the secret by this name."}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk and "value" in self.fields:
            field = self.fields["value"]
            field.required, field.label = False, "New value"
            field.help_text = f"Leave this empty to keep the stored value. {field.help_text}"

    def full_clean(self) -> None:
        super().full_clean()
        if self.is_bound and self.errors and self.cleaned_data.get("value"):
            self.add_error("value", "Type the value again: secret values are never sent back to the browser.")

    def clean_value(self) -> str:
        value = as_meant(self.cleaned_data["value"])
        if value or not self.instance.pk:
            try:
                check_value(value)
            except ValidationError as error:
                raise ValidationError(error.message_dict["value"]) from None
        return value
