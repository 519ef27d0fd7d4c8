from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import OperationalError, ProgrammingError


@contextmanager
def usable_database() -> Iterator[None]:
    """A database that is out of reach, or older than this program, is one line and no traceback."""
    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        words = " ".join(str(error).split())
        is_old = isinstance(error, ProgrammingError) or words.startswith("no such")
        hint = "; run “manage.py migrate” first" if is_old else ""
        raise CommandError(f"The database cannot be used: {words}{hint}", returncode=2) from None
