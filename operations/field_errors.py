"""Validation errors that name their field by a path.

Models raise Django's ValidationError with dotted paths as keys, such as `steps.1.config.url`. Pages, the
admin, the API and file imports use these paths to place the messages; none of them parses the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

from text.numbers import whole_number

Path = tuple[str | int, ...]


class FieldError(NamedTuple):
    path: Path
    message: str
    code: str = "invalid"

    def inside(self, *outer: str | int) -> FieldError:
        return self._replace(path=(*outer, *self.path))

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}" if self.path else self.message


def dotted(path: Path) -> str:
    return ".".join(map(str, path))


def path_of(key: str) -> Path:
    """Split a dotted key. Django's key for errors without a field becomes the empty path."""
    if key in ("", NON_FIELD_ERRORS):
        return ()
    return tuple(part if (place := whole_number(part)) is None else place for part in key.split("."))


def invalid(errors: Iterable[FieldError]) -> ValidationError:
    by_path: dict[str, list[ValidationError]] = {}
    for error in errors:
        each = ValidationError(error.message, code=error.code)
        by_path.setdefault(dotted(error.path) or NON_FIELD_ERRORS, []).append(each)
    return ValidationError(by_path)


def field_errors(error: ValidationError) -> list[FieldError]:
    """Return the errors that a model raised, each with its path, message and code."""
    by_key: Mapping[str, list[ValidationError]] = (
        error.error_dict if hasattr(error, "error_dict") else {"": error.error_list}
    )
    return [
        FieldError(path_of(key), message, each.code or "invalid")
        for key, errors in by_key.items()
        for each in errors
        for message in each.messages
    ]


def in_words(path: Path, steps: Sequence[str] = ()) -> str:
    """Describe a path in words, with steps counted from one: “steps: Step 2 (load): config: url”."""
    words = []
    for before, part in zip(("", *path), path, strict=False):
        if isinstance(part, str):
            words.append(part)
        elif before == "steps":
            name = steps[part] if part < len(steps) else ""
            words.append(f"Step {part + 1} ({name})" if name else f"Step {part + 1}")
    return ": ".join(words)
