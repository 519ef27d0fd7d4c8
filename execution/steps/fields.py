"""The settings of a step type, from which forms are drawn and by which values are checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from schedules.placeholders import as_filled, fill, found, is_placeholder, references, written
from text.clean import clean_json, clean_text

from .masking import conceal

Kind = Literal["text", "textarea", "list", "mapping", "choice", "bool", "number"]
TYPES: dict[Kind, tuple[type, ...]] = {
    "text": (str,),
    "textarea": (str,),
    "choice": (str,),
    "list": (list,),
    "mapping": (dict,),
    "bool": (bool,),
    "number": (int, float),
}


@dataclass(frozen=True)
class Field:
    """One setting of a step type. Forms show it, and `StepType.clean` checks its value.

    `fixed`: the setting decides which code runs, so it cannot contain placeholders. `secrets`: False if
    others could read the value, such as in a process list (`shown_in` says where), so it cannot contain
    secrets. `text_only`: when placeholders are filled in, all entries of the list or mapping become strings.
    `fixed_names`: one placeholder cannot stand for the whole mapping, because its names must be written out.
    """

    name: str
    label: str
    kind: Kind = "text"
    required: bool = False
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    default: Any = None
    fixed: bool = False
    secrets: bool = True
    shown_in: str = "it would be visible in the process list; pass the secret in env instead"
    text_only: bool = False
    fixed_names: bool = False

    def clean(self, value: object) -> Any:
        if not value and not isinstance(value, (bool, int, float)):
            if self.required:
                raise ValueError(f"is required: {self.help}" if self.help else "is required")
            return self._empty() if self.default is None else self.default
        if not self._fits(value) and not self._will_fit(value):
            raise ValueError(f"must be {self._wanted()}, not {shown(value)}")
        if "{{" in _stored(value):
            value = self._with_placeholders(value)
        return value.strip() if self.kind == "text" and isinstance(value, str) else value

    def fill(self, value: object, values: Mapping[str, Any]) -> Any:
        """Return the value with its placeholders filled in, in the form that `clean` expects."""
        if not self._is_open or self._hides_names(value):
            return value
        filled = fill(value, values)
        if self.kind in ("text", "textarea"):
            return as_filled(written(filled))
        match filled:
            case list() if self.text_only:
                return [as_filled(written(each)) for each in filled]
            case dict() if self.text_only:
                return {name: as_filled(written(each)) for name, each in filled.items()}
        return filled

    def refuse_secrets(self, value: object) -> None:
        if any(each.kind == "secret" for each in references(value)) and not self.secrets:
            raise ValueError(f"cannot contain a secret: {self.shown_in}")

    def _fits(self, value: object) -> bool:
        if not isinstance(value, TYPES[self.kind]):
            return False
        if self.kind == "number":
            return not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]
        return self.kind != "choice" or value in dict(self.choices)

    def _will_fit(self, value: object) -> bool:
        """Return whether the value is an allowed placeholder; what it stands for is checked later."""
        return self._is_open and isinstance(value, str) and is_placeholder(value)

    def _with_placeholders(self, value: object) -> Any:
        if self._is_open:
            self.refuse_secrets(value)
            if self._hides_names(value):
                raise ValueError(
                    'can have placeholders in its values only: write out the names, as in {"name": …}'
                )
            return value
        for each in found(value):
            raise ValueError(
                f"cannot contain placeholders, because it decides what runs: replace {{{{ {each.text} }}}}"
            )
        return as_filled(value)

    def _hides_names(self, value: object) -> bool:
        return self.fixed_names and isinstance(value, str)

    @property
    def _is_open(self) -> bool:
        return not self.fixed and self.kind != "choice"

    def _empty(self) -> object:
        return None if self.kind in ("choice", "number") else TYPES[self.kind][0]()

    def _wanted(self) -> str:
        return {
            "list": 'a list with one entry per value, such as ["a", "b"]',
            "mapping": 'an object of names and values, such as {"name": "value"}',
            "choice": f"one of {', '.join(name for name, _ in self.choices)}",
            "bool": "true or false",
            "number": "a number",
        }.get(self.kind, "text")


def _stored(value: Any) -> str:
    """Return the string or JSON to store for the value; raise ValueError if it cannot be stored."""
    try:
        is_clean = (clean_text(value) if isinstance(value, str) else clean_json(value)) == value
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot be stored as JSON: {error}") from None
    if not is_clean:
        raise ValueError("contains NUL or half a surrogate pair; remove these characters")
    return text


def shown(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "a value that is nested too deeply"
    # Hide secrets before the text is cut, because half a secret would not be recognised.
    shown = conceal(text)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
