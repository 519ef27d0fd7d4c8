"""Fields of the editor: they show what was typed; what is wrong with it, the spec and the models say."""

from __future__ import annotations

from typing import Any

from django import forms

QUIET = {"autocomplete": "off", "spellcheck": "false"}


def line(
    label: str, *, help: str = "", example: str = "", code: bool = True, **attrs: Any
) -> forms.CharField:
    more = {"placeholder": example} if example else {}
    shown = {"class": "code"} if code else {}
    widget = forms.TextInput(attrs={**QUIET, **shown, **more, **attrs})
    return forms.CharField(label=label, required=False, strip=False, help_text=help, widget=widget)


def lines(
    label: str, *, help: str = "", example: str = "", rows: int = 3, code: bool = True
) -> forms.CharField:
    more = {"placeholder": example} if example else {}
    shown = {**QUIET, "class": "code"} if code else {}
    widget = forms.Textarea(attrs={**shown, "rows": rows, **more})
    return forms.CharField(label=label, required=False, strip=False, help_text=help, widget=widget)


def choice(label: str, choices: list[tuple[str, str]], *, help: str = "") -> forms.CharField:
    """Also takes what is not among them: what is wrong with that is said elsewhere."""
    return forms.CharField(label=label, required=False, help_text=help, widget=forms.Select(choices=choices))


def tick(label: str, *, help: str = "") -> forms.BooleanField:
    return forms.BooleanField(label=label, required=False, help_text=help)


def hidden() -> forms.CharField:
    return forms.CharField(required=False, strip=False, widget=forms.HiddenInput)
