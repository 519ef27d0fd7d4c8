from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection

from jimsite.doctor import examine
from schedules.management.usable_database import WAYS_OUT, require_migrated, usable_database
from tests.settings import TEST_DB


@pytest.mark.django_db
def test_the_database_is_the_one_asked_for() -> None:
    assert connection.vendor == {"sqlite": "sqlite", "postgres": "postgresql"}[TEST_DB]


class Elsewhere:
    """A connection that was not opened yet, to a file that a test chooses."""

    vendor, connection, in_atomic_block = "sqlite", None, False

    def __init__(self, path: Path) -> None:
        self.settings_dict = {"NAME": str(path)}


@pytest.mark.parametrize(
    ("content", "words"), [(None, "The database {} does not exist"), ("", "The database {} is empty")]
)
def test_a_database_that_is_not_there_is_named_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, words: str
) -> None:
    path = tmp_path / "jim.sqlite3"
    if content is not None:
        path.write_text(content)
    for module in ("schedules.management.usable_database", "jimsite.doctor.database"):
        monkeypatch.setattr(f"{module}.connection", Elsewhere(path))
    told = f"{words.format(path)}: {WAYS_OUT}."
    looks: list[Any] = [usable_database().__enter__, lambda: require_migrated("schedules_schedule")]
    for look in looks:
        with pytest.raises(CommandError) as refused:
            look()
        assert (str(refused.value), refused.value.returncode) == (told, 2)
    [found] = [finding for finding in examine() if finding.subject == "database"]
    assert (found.severity, found.text) == ("error", f"{words.format(path)}.")
    assert path.exists() == (content is not None)


@pytest.mark.django_db
def test_a_database_without_tables_of_jim_is_named() -> None:
    with pytest.raises(
        CommandError, match=f"{connection.settings_dict['NAME']}.* has no JIM tables yet: run"
    ):
        require_migrated("no_such_table")
