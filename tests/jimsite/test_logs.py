from __future__ import annotations

import io
import json
import logging
import re
import sys
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client, RequestFactory

from jimsite.logs import logging_config
from tests.admin_pages import sign_in


def handler_of(text: io.StringIO, *, is_json: bool = False) -> logging.Handler:
    """As it is configured, but for where it writes to."""
    config = logging_config(json=is_json, level="INFO")
    formatter = config["formatters"]["jim"]
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatter.pop("()")(**formatter))
    for name in config["handlers"]["stderr"].get("filters", ()):
        handler.addFilter(config["filters"][name]["()"]())
    return handler


def logged(*, is_json: bool) -> str:
    """What a request that was not found leaves in the log, as Django tells it."""
    request = {"status_code": 404, "request": RequestFactory().get("/nowhere")}
    told = {"name": "django.request", "levelname": "WARNING", "msg": "Not Found: %s", "args": ("/nowhere",)}
    return written(told | request, is_json=is_json)


def written(record: dict[str, Any], *, is_json: bool) -> str:
    text = io.StringIO()
    handler = handler_of(text, is_json=is_json)
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


@pytest.mark.django_db
def test_a_request_that_is_refused_is_one_line_and_a_broken_one_has_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = io.StringIO()
    handler = handler_of(text)
    logging.getLogger("django").addHandler(handler)
    try:
        client = sign_in("nobody")
        assert client.get("/settings").status_code == 403
        assert sign_in().get("/admin/schedules/schedule/?pk__in=x").status_code == 400
        assert client.get("/", headers={"Host": "elsewhere.example"}).status_code == 400
        lines = text.getvalue().splitlines()
        assert len(lines) >= 3
        assert [line for line in lines if not line[:4].isdigit()] == []
        monkeypatch.setattr("jimsite.health.connection", None)
        assert Client(raise_request_exception=False).get("/healthz").status_code == 500
        assert "Traceback" in text.getvalue()
    finally:
        logging.getLogger("django").removeHandler(handler)
