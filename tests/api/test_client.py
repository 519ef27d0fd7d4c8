"""A client that is generated from the schema creates, runs and follows a schedule; output streams."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import Request, urlopen

import pytest
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer

from tests.api.serving import WSGI, serving, token_of
from tests.base import enqueue, step
from tests.loops import running_worker
from tests.waiting import PATIENCE_SECONDS, wait_until

NAME = "jim_client"
pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def jim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The generated package."""
    schema, config = tmp_path / "schema.json", tmp_path / "config.yml"
    generated = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    schema.write_bytes(OpenApiJsonRenderer().render(generated))
    config.write_text("post_hooks: []\n")
    tool = Path(sys.executable).with_name("openapi-python-client")
    command: list[str | Path] = [tool, "generate", "--fail-on-warning", "--meta", "none"]
    command += ["--path", schema, "--config", config, "--output-path", tmp_path / NAME]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module(NAME)


class Calls:
    """The functions of the generated package, by resource and name."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __call__(self, resource: str, name: str, *args: Any, **kwargs: Any) -> Any:
        module = importlib.import_module(f"{NAME}.api.{resource}.{resource}_{name}")
        return module.sync(*args, client=self.client, **kwargs)


def test_a_generated_client_runs_a_schedule_and_reads_what_is_written(jim: Any, tmp_path: Path) -> None:
    models = importlib.import_module(f"{NAME}.models")
    with serving() as address, running_worker():
        with jim.AuthenticatedClient(base_url=address, token=token_of("Author")) as client:
            follow_a_schedule(Calls(client), models)
        read_what_is_written(address, tmp_path / "go-on")


def follow_a_schedule(call: Calls, models: Any) -> None:
    steps = [step("talk", 0, "talk"), step("answer", 1, "result")]
    body = models.NewScheduleRequest.from_dict({"name": "Hello", "steps": steps})
    schedule = str(call("schedules", "create", body=body).id)
    once: dict[str, Any] = {"body": models.RunOptionsRequest(), "idempotency_key": "once"}
    run = call("schedules", "run", schedule, **once)
    assert call("schedules", "run", schedule, **once).execution == run.execution

    def execution() -> Any:
        return call("executions", "retrieve", str(run.execution))

    wait_until(lambda: execution().finished_at is not None)
    told = execution()
    assert (told.state.value, told.progress.ended) == ("completed", 2)
    talk, answer = (str(each.attempts[0].id) for each in told.steps)
    output = call("activities", "output", talk)
    assert [line.text for line in output.lines] == ["line 0", "line 1", "line 2"]
    assert call("activities", "retrieve", answer).result == 42


def read_what_is_written(address: str, go_on: Path) -> None:
    """It arrives while the step still runs."""
    [task] = enqueue(step("chatter", 0, "chatter", kwargs={"path": str(go_on)}))
    url = f"{address}/api/v1/activities/{task.activity_id}/output?follow=true&form=ndjson"
    request = Request(url, headers={"Authorization": f"Bearer {token_of('Viewer')}"})
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        first = json.loads(answer.readline())
        go_on.touch()
        rest = answer.read()
    assert first["text"] in ("written", "printed")
    assert rest.count(b"\n") <= 1


@pytest.mark.long
def test_output_arrives_while_it_is_written_without_asgi_as_well(tmp_path: Path) -> None:
    with serving(WSGI) as address, running_worker():
        read_what_is_written(address, tmp_path / "go-on")
