"""Command-line options that are generated from the fields of a form, which then validates the values."""

from __future__ import annotations

import getpass
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django import forms
from django.core.exceptions import ValidationError
from django.core.management.base import CommandParser
from django.forms.utils import pretty_name
from django.http import QueryDict
from django.utils.html import strip_tags

from files import given_files
from schedules.form_fields import WallTime, Words
from schedules.models import Refused
from schedules.models.secret import LONGEST_BYTES
from schedules.secret_form import Concealed

METAVARS: dict[type[forms.Field], str] = {
    forms.IntegerField: "N",
    forms.JSONField: "JSON",
    WallTime: "TIME",
    forms.Field: "TEXT",
}
# The start of the help of fields with one value per line. On the command line, their option is repeated.
_PER_LINE = re.compile(r"^One [a-z ]+ per line[:.] ")
F = TypeVar("F", bound=forms.BaseForm)


@dataclass(frozen=True)
class FormOptions:
    """Command-line options for the fields of a form, from whose values the form is filled."""

    form: type[forms.BaseForm]
    # The metavars of fields that are positional arguments.
    positional: Mapping[str, str] = field(default_factory=dict)
    # Options whose name differs from that of the field.
    names: Mapping[str, str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    # True if the form edits a stored row: fields whose option is not given keep their value.
    is_edit: bool = False

    def ask(self, parser: CommandParser) -> None:
        for name, each in self._fields():
            if name in self.positional:
                parser.add_argument(name, metavar=self.positional[name], help=_help(name, each))
                continue
            option = self.names.get(name, f"--{name.replace('_', '-')}")
            is_needed = each.required and each.initial is None and not self.is_edit and not _is_many(each)
            kind = _kind(each, option)
            parser.add_argument(option, dest=name, required=is_needed, help=_help(name, each), **kind)

    def read(self, make: Callable[[QueryDict | None], F], options: dict[str, Any]) -> F:
        """Return the form, filled with the given options; raise ValidationError if it is invalid.

        `make` creates the form. Fields whose option is not given get the initial values of the page's form.
        """
        shown, given = make(None), QueryDict(mutable=True)
        for name, each in shown.fields.items():
            typed = None if name in self.without else options.get(name)
            given.setlist(name, _sent(each, shown[name].value() if typed is None else typed))
        form = make(given)
        if not form.is_valid():
            raise ValidationError(form.errors.as_data())
        return form

    def _fields(self) -> Iterator[tuple[str, forms.Field]]:
        for name, each in self.form().fields.items():
            if name not in self.without and not each.widget.is_hidden:
                yield name, each


def unseen(prompt: str) -> str:
    """Read a value from a pipe or a hidden prompt, to keep it off the screen and out of the shell history."""
    try:
        if sys.stdin is not None and sys.stdin.isatty():
            return getpass.getpass(f"{prompt}: ")
        return given_files.read(given_files.STANDARD_INPUT, most=2 * LONGEST_BYTES)
    except given_files.Unfit as error:
        raise Refused(f"{prompt}: standard input {error}.") from None
    except EOFError:
        raise Refused(f"{prompt}: no value was entered.") from None


def _help(name: str, each: forms.Field) -> str:
    if isinstance(each.widget, Concealed):
        return "set your own value, which is read from standard input or a hidden prompt"
    words = strip_tags(str(each.help_text)).replace("{clock}", "").strip()
    words = words or f"{each.label or pretty_name(name)}."
    if _is_many(each):
        words = f"{_PER_LINE.sub('', words)} Can be repeated."
    if choices := _choices(each):
        words = f"{words} One of: {', '.join(choices)}."
    return words.replace("%", "%%")


def _kind(each: forms.Field, option: str) -> dict[str, Any]:
    if isinstance(each.widget, Concealed) or isinstance(each, forms.BooleanField):
        return {"action": "store_true", "default": None}
    metavar = next(said for cls, said in METAVARS.items() if isinstance(each, cls))
    kind: dict[str, Any] = {"metavar": metavar, "choices": _choices(each) or None}
    if _is_many(each):
        kind |= {"metavar": option.strip("-").upper(), "action": "append"}
    return kind


def _choices(each: forms.Field) -> list[str]:
    choices: Any = each.choices if isinstance(each, forms.ChoiceField) else ()
    return [value for value, _ in choices if value]


def _is_many(each: forms.Field) -> bool:
    return isinstance(each, forms.MultipleChoiceField | Words)


def _sent(each: forms.Field, value: Any) -> list[str]:
    """Return a field's value as a browser would send it; read a secret value from a pipe or a prompt."""
    if value is True and isinstance(each.widget, Concealed):
        return [unseen(str(each.label)).rstrip("\r\n")]
    if isinstance(value, list):
        return ["\n".join(value)] if isinstance(each, Words) else value
    return [] if value in (None, False) else [str(value)]
