from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import pytest
from django.conf import settings
from django.db import connection

from execution import direct
from execution.models import Limit
from tests.api.calling import Caller
from tests.api.serving import serving, token_of
from tests.base import claim, enqueue, make_template, make_worker, step
from tests.steps.stage import is_alive
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def body(function: str = "result", **fields: Any) -> dict[str, Any]:
    config = {"function": f"tests.work.{function}", "isolation": "thread"}
    return {"step_type": "python", "config": config, "name": "now"} | fields


def test_a_step_runs_at_once_and_its_outcome_is_the_answer() -> None:
    api = Caller("Author")
    answer = api.post("direct", body())
    told = answer.json()
    assert (answer.status_code, told["status"], told["result"]) == (200, "complete", 42)
    assert api.get(f"activities/{told['activity']}").json()["result"] == 42
    told = api.post("direct", body("fail")).json()
    assert (told["has_failed"], told["status"]) == (True, "failed_with_error")
    assert "it broke" in told["error"]
    odd: dict[str, Any] = {"wait_seconds": 900, "priority": 1, "config": {}}
    for field, value in odd.items():
        wrong = api.post("direct", body(**{field: value}))
        named = "config.function" if field == "config" else field
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (400, named)


@pytest.mark.live
def test_no_code_reaches_the_processes_that_serve_the_pages() -> None:
    """Neither their keys nor their lives; and it ends with them."""
    with serving(GRANIAN_WORKERS="2") as address:
        authorization = {"Authorization": f"Bearer {token_of('Author')}", "Content-Type": "application/json"}

        def ask(function: str) -> Any:
            asked = Request(f"{address}/api/v1/direct", json.dumps(body(function)).encode(), authorization)
            with urlopen(asked, timeout=PATIENCE_SECONDS) as answer:
                return json.load(answer)

        assert settings.SECRET_KEY not in json.dumps(ask("keys")["result"])
        for _ in range(4):
            assert ask("die")["error"] == "the child process died (exit code 3)"
        children = {ask("keys")["result"]["pid"] for _ in range(4)}
        assert all(is_alive(pid) for pid in children)
    wait_until(lambda: not any(is_alive(pid) for pid in children))


def test_a_template_will_do_and_own_code_needs_its_permission() -> None:
    make_template("Export", continue_on_failure=True)
    assert Caller("Operator").post("direct", {"template": "Export"}).json()["result"] == 1
    assert Caller("Operator").post("direct", body()).status_code == 403
    assert Caller("Viewer").post("direct", {"template": "Export"}).status_code == 403
    assert Caller("Operator").post("direct", {"template": "None"}).status_code == 400


def test_whoever_finds_no_seat_in_time_is_told_who_has_them() -> None:
    Limit.objects.create(key="pool:default", size=1)
    worker = make_worker()
    enqueue(step("long"))
    claim(worker)
    late = Caller("Author").post("direct", body(wait_seconds=0))
    assert (late.status_code, late.json()["type"]) == (409, "urn:jim:problem:no-seat")
    assert "still running: “long”" in late.json()["detail"]
    assert late["Retry-After"] == "1"


def test_a_second_request_for_the_same_seat_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        assert not connection.in_atomic_block
        raise direct.Busy("another direct request is already waiting for the next seat of pool “default”")

    monkeypatch.setattr(direct, "run", refuse)
    busy = Caller("Author").post("direct", body())
    assert (busy.status_code, busy.json()["type"], busy["Retry-After"]) == (409, "urn:jim:problem:busy", "5")
