from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command

from activities.models import OutputLine
from database import clock
from execution.loops.manual_runs import trigger
from execution.loops.recorder import StepOutput
from execution.models import Execution, WorkerTask
from execution.steps.context import Context, Work
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from jimsite import demo
from jimsite.management.commands.demo import create
from schedules.models import Schedule, SharedCalendar, TaskTemplate
from tests.base import NOW, SOMEBODY, everything, make_schedule, make_template, nursery
from tests.conftest import subprocess_env

SCRIPT = settings.BASE_DIR / "scripts" / "disk_report.sh"


@pytest.mark.django_db
def test_it_creates_each_schedule_once_and_starts_the_nightly_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, settings: Any
) -> None:
    settings.JIM_DATA_DIR = tmp_path
    call_command("demo")
    out = capsys.readouterr().out
    assert "Nightly HR Sync" in out
    assert f"Created 5 files in {tmp_path / 'inbox'}" in out
    assert Schedule.objects.count() == len(demo.definitions()) == 10
    nightly = Execution.objects.get()
    assert nightly.schedule_name == "Nightly HR Sync"
    assert WorkerTask.objects.filter(status="queued").get().name == "HR System - Full Import"
    before = everything()
    call_command("demo")
    out = capsys.readouterr().out
    assert "exist already" in out
    assert "inbox" not in out
    assert everything() == before


@pytest.mark.django_db
def test_what_has_one_of_its_names_is_left_alone() -> None:
    now, closed = clock.now(), [{"dates": "2026-12-25"}]
    own = make_schedule(name="HEARTBEAT", description="mine")
    SharedCalendar.objects.define("uk HOLIDAYS", closed, initiator=SOMEBODY, now=now)
    template = make_template("DIRECTORY EXPORT")
    create(now=now)
    assert Schedule.objects.filter(name__iexact="heartbeat").get() == own
    assert Schedule.objects.count() == 10
    assert SharedCalendar.objects.get().excluded == closed
    assert Schedule.objects.get(name="Opening report").calendars == {"uk HOLIDAYS": closed}
    assert list(TaskTemplate.objects.all()) == [template]
    nightly = Schedule.objects.get(name="Nightly HR Sync")
    assert {step.template for step in nightly.steps.all()} == {None}


@pytest.mark.long
@pytest.mark.live
@pytest.mark.django_db(transaction=True)
def test_a_worker_runs_them() -> None:
    create(now=clock.now())
    names = ["Heartbeat", "Regional report", "Disk space", "Payroll export"]
    for schedule in Schedule.objects.filter(name__in=names):
        trigger(schedule, initiator=SOMEBODY, now=clock.now())
    done = subprocess.run(
        [sys.executable, "manage.py", "runworker", "--until-idle"],
        cwd=settings.BASE_DIR,
        env=subprocess_env(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert dict(Execution.objects.values_list("schedule_name", "status")) == dict.fromkeys(
        ["Nightly HR Sync", *names], "completed"
    )
    assert OutputLine.objects.filter(text="Disk usage for Report, attempt 1:").exists()


def performed(function: str, **kwargs: Any) -> tuple[Outcome, StepOutput]:
    """A function of the demonstration, in this process."""
    config = {"function": f"jimsite.demo.{function}", "args": [], "kwargs": kwargs, "isolation": "thread"}
    work = Work(key="k", attempt=2, name=function, step_type="python", config=config)
    said = StepOutput(1, lambda: NOW)
    with nursery() as children:
        return perform(work, said, nursery=children), said


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "wait", lambda self, seconds: None)


@pytest.mark.usefixtures("hasty")
def test_each_function_does_what_it_says() -> None:
    wanted: dict[str, tuple[dict[str, Any], str, Any]] = {
        "import_people": ({}, "complete", {"imported": 16}),
        "synchronise": ({}, "complete_with_warning", {"changed": 7, "unchanged": 9}),
        "export": ({"directory": "AD"}, "complete", {"exported": 7}),
        "confirm": ({"directory": "AD"}, "complete", "confirmed"),
        "tell": ({}, "complete", "told"),
        "clean_up": ({}, "complete", "tidy"),
        "beat": ({}, "complete", None),
    }
    found = {name: performed(name, **given)[0] for name, (given, _, _) in wanted.items()}
    told = {name: (outcome.status, outcome.result) for name, outcome in found.items()}
    assert told == {name: (status, result) for name, (_, status, result) in wanted.items()}
    items = performed("import_people")[1].take().items
    assert len(items) == 16


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("luck", "status"), [(0.0, "failed_with_error"), (0.9, "complete")])
def test_the_supplier_is_unreliable(monkeypatch: pytest.MonkeyPatch, luck: float, status: str) -> None:
    monkeypatch.setattr(random, "random", lambda: luck)
    outcome, said = performed("fetch_prices")
    assert outcome.status == status
    assert outcome.can_retry is (status != "complete")
    assert [line[3] for line in said.take().lines] == ["Attempt 2: asking the supplier"]


@pytest.mark.parametrize(
    ("arguments", "code", "error"), [([], 0, ""), (["-1"], 1, "is fuller than -1%")], ids=["fine", "full"]
)
def test_the_disk_report_needs_nothing_but_a_shell(arguments: list[str], code: int, error: str) -> None:
    assert os.access(SCRIPT, os.X_OK)
    done = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, env={"PATH": os.defpath})
    assert done.returncode == code
    assert done.stdout.startswith("Disk usage for a manual run, attempt 1:\n")
    assert error in done.stderr
