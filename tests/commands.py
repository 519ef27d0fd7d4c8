"""JIM's commands, called in this process."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command


def said(*arguments: str) -> list[str]:
    """The lines that a command prints, as into a file."""
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def told(*arguments: str) -> Any:
    """What it tells programs."""
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


def refusal(*arguments: str, code: int = 2) -> str:
    """Its one line about what is wrong."""
    with pytest.raises(CommandError) as error:
        call_command(*arguments, stdout=io.StringIO())
    assert error.value.returncode == code, error.value
    assert "\n" not in str(error.value)
    return str(error.value)
