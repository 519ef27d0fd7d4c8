"""The permissions for writing steps. Steps can run code, so writing them needs a separate permission."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError

from .placeholders import found
from .registry import step_types

RUN = "schedules.run_schedule"
CLOSE = "schedules.delete_schedule"
DEFINE_CODE = "schedules.define_code"
MOST_NAMED = 5
# A function that returns whether a person or token has a permission.
May = Callable[[str], bool]


def anything(permission: str) -> bool:
    """Return True for any permission: the check for JIM itself and for its shell commands."""
    return True


def lacking(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], may: May
) -> dict[str, list[str]]:
    """Return a dict from each missing permission to the names of the steps in `after` that need it.

    Steps that are unchanged from `before` need no permission.
    """
    known, found = {_exactly(step) for step in before}, defaultdict[str, list[str]](list)
    for step in after:
        for permission in needed_by(step) if _exactly(step) not in known else ():
            if not may(permission):
                found[permission].append(step["name"])
    return dict(found)


class NotYours(ValidationError):
    """The error when the writer of some steps lacks a permission for them."""

    def __init__(self, permission: str, names: Sequence[str], *, field: str = "steps") -> None:
        self.permission, self.names = permission, names
        what = "steps that run code or use a secret" if permission == DEFINE_CODE else "these steps"
        needed = f"You need the permission {permission}."
        super().__init__({field: f"You may not create or change {what}: {self.named}. {needed}"})

    @property
    def named(self) -> str:
        """Return the names of the first steps and the number of further steps, as text."""
        told = ", ".join(f"“{name}”" for name in self.names[:MOST_NAMED])
        rest = len(self.names) - MOST_NAMED
        return f"{told} and {rest:,} more" if rest > 0 else told


def check_writer(
    after: Sequence[Mapping[str, Any]], may: May, *, before: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Raise NotYours if a step that is new or changed in `after` needs a permission that its writer lacks."""
    if may is anything:
        return
    for permission, names in lacking(before, after, may).items():
        raise NotYours(permission, names)


def _exactly(step: Mapping[str, Any]) -> str:
    """Return the step as JSON text, because Python treats 1 and True as equal."""
    return json.dumps(step, sort_keys=True)


def needed_by(step: Mapping[str, Any]) -> list[str]:
    """Return the permissions that writing the step needs."""
    kind = step_types.get(step["step_type"])
    own = [kind.permission] if kind is not None and kind.permission else []
    return [DEFINE_CODE, *own] if needs_code(step) else own


def needs_code(step: Mapping[str, Any]) -> bool:
    """Return whether the step runs code or uses a secret, so that writing it needs `define_code`."""
    kind = step_types.get(step["step_type"])
    is_code = kind is None or kind.needs_code_permission
    return is_code or any(ref.kind == "secret" for ref in found(step["config"]))
