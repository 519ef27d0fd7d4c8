"""What the log says while the database is away."""

from __future__ import annotations

import logging

import pytest
from django.db import OperationalError, connection

from database.outage import Outage, is_outage

logger = logging.getLogger(__name__)


def test_each_outage_is_told_once_in_one_line_and_a_mistake_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage(logger, "steps go on")
    for error in ("closed\n\tunexpectedly", "starting up", ""):
        outage.note(OperationalError(error)) if error else outage.is_over()
    outage.is_over()
    outage.note(OperationalError("again"))
    outage.note(ZeroDivisionError())
    told = [(each.levelname, each.getMessage().partition(" after ")[0]) for each in caplog.records]
    assert told == [
        ("WARNING", "steps go on: closed unexpectedly"),
        ("INFO", "the database is back"),
        ("WARNING", "steps go on: again"),
        ("ERROR", "steps go on"),
    ]
    assert [bool(each.exc_info) for each in caplog.records] == [False, False, False, True]


@pytest.mark.django_db
@pytest.mark.parametrize("sql", ["SELECT * FROM nowhere", "SELECT 1 +"])
def test_a_mistake_in_a_statement_is_no_outage(sql: str) -> None:
    """Even though SQLite calls it an operational error."""
    with (
        pytest.raises(Exception, match=r"nowhere|syntax|incomplete") as caught,
        connection.cursor() as cursor,
    ):
        cursor.execute(sql)
    assert not is_outage(caught.value)
