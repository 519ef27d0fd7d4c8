from __future__ import annotations

import io
import json
import logging
import re

from django.test import RequestFactory

from jimsite.logs import logging_config


def logged(*, is_json: bool) -> str:
    """What a request that was not found leaves in the log, as Django tells it."""
    written = io.StringIO()
    formatter = logging_config(json=is_json, level="INFO")["formatters"]["jim"]
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter.pop("()")(**formatter))
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
