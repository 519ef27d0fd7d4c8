"""What docs/api.md shows is what happens: its examples run, in their order, against a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import ExitStack
from typing import Any

import pytest
from django.conf import settings

from api.metrics import MetricsCollector
from database import clock
from tests.addresses import described
from tests.api.serving import serving, token_of
from tests.base import NOW
from tests.loops import running_worker
from tests.settings import TEST_DB
from tests.workflows.base import deployed
from tests.workflows.orders import Orders
from workflows.models import Workflow

FENCE = re.compile(r"```bash ([0-9]{3})\n(.*?)```(?:\n```json\n(.*?)```)?", re.DOTALL)
CURL = """curl() { command curl -sS --max-time 60 -w '\\n%{http_code}' "$@"; }"""
ANYTHING = "…"


def guide() -> str:
    return (settings.BASE_DIR / "docs" / "api.md").read_text()


@pytest.mark.live
@pytest.mark.skipif(TEST_DB != "sqlite", reason="ids of PostgreSQL have gaps")
@pytest.mark.django_db(transaction=True, reset_sequences=True)
def test_the_examples_run_as_they_are_shown() -> None:
    with serving() as address, running_worker(), ExitStack() as later:
        env = {"JIM": address, "TOKEN": token_of("Author"), "PATH": os.environ["PATH"]}
        for wanted, command, answer in FENCE.findall(guide()):
            if "/topics/" in command and not Workflow.objects.exists():
                later.enter_context(deployed(Orders, now=clock.now()))
            shell = ["bash", "-c", f"{CURL}\n{command}"]
            done = subprocess.run(shell, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            body, _, status = done.stdout.rpartition("\n")
            assert status == wanted, f"{command}\n{body}"
            if answer:
                assert_like(json.loads(body), json.loads(answer), command)


def assert_like(found: Any, shown: Any, where: str) -> None:
    """Compare a response with the shown one; a response may have more fields."""
    if shown == ANYTHING:
        return
    if isinstance(shown, dict):
        assert set(shown) <= set(found), f"{where}: {set(shown) - set(found)} is not in {found}"
        for name, value in shown.items():
            assert_like(found[name], value, f"{where} > {name}")
    elif isinstance(shown, list):
        assert len(found) == len(shown), where
        for number, value in enumerate(shown):
            assert_like(found[number], value, f"{where} > {number}")
    else:
        assert found == shown, where


@pytest.mark.django_db
def test_every_metric_and_every_resource_is_in_the_guide() -> None:
    names = {metric.name for metric in MetricsCollector(NOW).collect()}
    assert {name for name in names if name not in guide()} == set()
    named = {path.split("/")[3] for path in described() if path.startswith("/api/v1/")}
    assert named
    assert {name for name in named if f"`{name}" not in guide()} == set()
