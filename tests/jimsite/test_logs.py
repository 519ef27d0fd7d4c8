from __future__ import annotations

import io
import json
import logging
import re

import pytest
from django.test import Client, RequestFactory

from jimsite.logs import logging_config
from tests.admin_pages import sign_in


def handler_of(written: io.StringIO, *, is_json: bool = False) -> logging.Handler:
    """As it is configured, but for where it writes to."""
    config = logging_config(json=is_json, level="INFO")
    formatter = config["formatters"]["jim"]
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter.pop("()")(**formatter))
    for name in config["handlers"]["stderr"].get("filters", ()):
        handler.addFilter(config["filters"][name]["()"]())
    return handler


def logged(*, is_json: bool) -> str:
    """What a request that was not found leaves in the log, as Django tells it."""
    written = io.StringIO()
    handler = handler_of(written, is_json=is_json)
    request = {"status_code": 404, "request": RequestFactory().get("/nowhere")}
    told = {"name": "django.request", "levelname": "WARNING", "msg": "Not Found: %s", "args": ("/nowhere",)}
    handler.handle(logging.makeLogRecord(told | request))
    return written.getvalue()


def test_times_are_in_utc_and_a_request_is_told_in_words() -> None:
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ", logged(is_json=False))
    assert json.loads(logged(is_json=True))["timestamp"].endswith("Z")
    for line in (logged(is_json=False), logged(is_json=True)):
        assert line.count("/nowhere") == 1
        assert "404" in line


@pytest.mark.django_db
def test_a_request_that_is_refused_is_one_line_and_a_broken_one_has_its_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.StringIO()
    handler = handler_of(written)
    logging.getLogger("django").addHandler(handler)
    try:
        client = sign_in("nobody")
        assert client.get("/settings").status_code == 403
        assert sign_in().get("/admin/schedules/schedule/?pk__in=x").status_code == 400
        assert client.get("/", headers={"Host": "elsewhere.example"}).status_code == 400
        lines = written.getvalue().splitlines()
        assert len(lines) >= 3
        assert [line for line in lines if not line[:4].isdigit()] == []
        monkeypatch.setattr("jimsite.health.connection", None)
        assert Client(raise_request_exception=False).get("/healthz").status_code == 500
        assert "Traceback" in written.getvalue()
    finally:
        logging.getLogger("django").removeHandler(handler)
