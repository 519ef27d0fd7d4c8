from __future__ import annotations

import io
import json
import logging
import re
import sys
from typing import Any

import pytest
from django.db import OperationalError
from django.test import RequestFactory

from jimsite.logs import logging_config


def logged(*, is_json: bool) -> str:
    """What a request that was not found leaves in the log, as Django tells it."""
    request = {"status_code": 404, "request": RequestFactory().get("/nowhere")}
    told = {"name": "django.request", "levelname": "WARNING", "msg": "Not Found: %s", "args": ("/nowhere",)}
    return written(told | request, is_json=is_json)


def written(record: dict[str, Any], *, is_json: bool) -> str:
    text = io.StringIO()
    formatter = logging_config(json=is_json, level="INFO")["formatters"]["jim"]
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatter.pop("()")(**formatter))
    handler.handle(logging.makeLogRecord(record))
    return text.getvalue()


def test_times_are_in_utc_and_a_request_is_told_in_words() -> None:
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ", logged(is_json=False))
    assert json.loads(logged(is_json=True))["timestamp"].endswith("Z")
    for line in (logged(is_json=False), logged(is_json=True)):
        assert line.count("/nowhere") == 1
        assert "404" in line


@pytest.mark.parametrize("is_json", [True, False])
def test_an_outage_of_the_database_is_one_line_and_every_other_error_has_its_traceback(is_json: bool) -> None:
    for error, is_expected in (
        (OperationalError("closed\n\tunexpectedly"), True),
        (ZeroDivisionError(), False),
    ):
        try:
            raise error
        except type(error):
            record = {"name": "jim", "levelname": "ERROR", "msg": "a part failed", "exc_info": sys.exc_info()}
        text = written(record, is_json=is_json)
        assert ("Traceback" in text) is not is_expected
        if is_expected:
            assert text.count("\n") == 1
            assert "a part failed: closed unexpectedly" in text
            assert "warning" in text
