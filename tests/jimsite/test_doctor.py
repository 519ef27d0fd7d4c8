"""`manage.py doctor` finds each ailment, with a remedy, and none in a healthy system."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as jim
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from database import clock
from execution.models import Chore, Execution, Limit, Worker, WorkerTask
from jimsite.doctor import configuration, database, examine
from jimsite.doctor.finding import Finding
from schedules.models import Schedule
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    enqueue,
    everything,
    make_schedule,
    make_worker,
    seconds,
    start,
    step,
)
from tests.conftest import subprocess_env
from tests.workflows.orders import orders, stuck
from webhooks.models import Endpoint
from workflows import AuthRequired
from workflows.definition import Definitions

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def healthy(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> None:
    """A scheduler that ticks, a worker, an administrator, a public name behind TLS, a folder of its own."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
    monkeypatch.setattr(database, "DURABLE", {})  # a server of tests need not survive a power cut
    Chore.objects.tick(outage=seconds(45), now=NOW - seconds(5))
    make_worker()
    User.objects.create_superuser("ada")
    tmp_path.chmod(0o700)
    settings.JIM_DATA_DIR = tmp_path
    settings.JIM_EXECUTABLE_FOLDERS = settings.JIM_SQL_FOLDERS = [tmp_path]
    settings.ALLOWED_HOSTS, settings.JIM_HTTPS = ["jim.example"], True
    settings.JIM_HEARTBEAT_URL, settings.JIM_PWSH = "https://monitor.example/ping", "/bin/sh"


def ailments() -> list[Finding]:
    return [each for each in examine() if each.severity != "ok"]


def test_a_healthy_system_has_nothing_to_complain_of_and_looking_changes_nothing() -> None:
    start()
    before = everything()
    assert ailments() == []
    out = io.StringIO()
    call_command("doctor", stdout=out)
    assert "without problems" in out.getvalue()
    assert everything() == before


def serve_another_pool() -> None:
    Worker.objects.update(pools=["default"])
    enqueue(step("north", pool="reports"))


def queue_for_hours() -> None:
    enqueue(step())
    WorkerTask.objects.update(available_at=NOW - timedelta(hours=3))


def lose_a_worker() -> None:
    enqueue(step())
    claim(other := make_worker())
    Worker.objects.filter(pk=other.pk).bury(now=NOW)


def lose_tasks() -> None:
    execution = start(name="Nightly", now=NOW - timedelta(minutes=5))
    WorkerTask.objects.filter(execution=execution).delete()


FAILED = {"status": "paused", "is_paused_by_failures": True}


def nightly(**fields: Any) -> None:
    """A schedule to which this happened."""
    schedule = make_schedule(name="Nightly", spec={"every": ["1h"]})
    Schedule.objects.filter(pk=schedule.pk).update(**fields)


def tick_at(name: str = "tick", **ago: int) -> None:
    Chore.objects.update_or_create(name=name, defaults={"last_run_at": NOW - timedelta(**ago)})


def be_late() -> None:
    execution = start(name="Nightly")
    Execution.objects.filter(pk=execution.pk).update(deadline_at=NOW - seconds(1))


def close_a_limit() -> None:
    Limit.objects.define(key="type:sql", size=0, initiator=SOMEBODY, now=NOW)


def disable_an_endpoint() -> None:
    endpoint, _ = Endpoint.objects.define(
        name="Pager", url="https://pager.example/", kinds=["execution.failed"], initiator=SOMEBODY, now=NOW
    )
    endpoint.disable(initiator=SOMEBODY, now=NOW, by_itself=True)


def get_a_workflow_stuck() -> None:
    with orders():
        stuck(AuthRequired("sign in to the carrier"))


AILMENTS: list[tuple[Callable[[], object], str, str, str]] = [
    (
        lambda: tick_at(minutes=5),
        "error",
        "scheduler",
        "A scheduler was last active 5 min ago. Schedules are not being started.",
    ),
    (lambda: Chore.objects.all().delete(), "error", "scheduler", "The scheduler has never run"),
    (lambda: Worker.objects.update(lease_until=NOW - seconds(1)), "error", "workers", "No worker is running"),
    (
        lambda: Worker.objects.update(clock_skew_seconds=90),
        "warning",
        "clock",
        "is 1 min 30 s ahead of the database's",
    ),
    (serve_another_pool, "error", "pool reports", "1 task queued, but no running worker serves this pool."),
    (queue_for_hours, "warning", "queue", "has been waiting for 3 h."),
    (lose_a_worker, "warning", "stuck work", "Found 1 task assigned to workers that are no longer running."),
    (
        lose_tasks,
        "warning",
        "stuck work",
        "1 execution in progress without a queued or running task: “Nightly #",
    ),
    (lambda: nightly(next_run_at=NOW - seconds(300)), "warning", "schedules", "1 overdue schedule"),
    (
        lambda: nightly(spec_error="cron: nonsense"),
        "warning",
        "schedules",
        "their specs cannot be read: “Nightly”.",
    ),
    (lambda: nightly(**FAILED), "warning", "schedules", "were paused after repeated failures: “Nightly”."),
    (be_late, "warning", "executions", "still running after their deadline: “Nightly #"),
    (close_a_limit, "note", "limits", "“type:sql”"),
    (lambda: tick_at("history", days=3), "warning", "housekeeping", "last deleted 3 d ago"),
    (disable_an_endpoint, "warning", "webhooks", "because their deliveries failed: “Pager”."),
    (get_a_workflow_stuck, "warning", "workflows", "These workflows need an operator: “Orders”."),
    (lambda: User.objects.update(is_active=False), "warning", "users", "No active administrator exists."),
]


@pytest.mark.parametrize(("ail", "severity", "subject", "words"), AILMENTS)
def test_what_ails_the_work(ail: Callable[[], object], severity: str, subject: str, words: str) -> None:
    ail()
    [found] = [each for each in ailments() if each.subject == subject][:1]
    assert (found.severity, words in found.text, bool(found.remedy)) == (severity, True, True), found.text


def test_workflows_that_cannot_be_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "shop.workflows: Orders.slug: '' is no slug"
    monkeypatch.setattr("workflows.discovery._discover", lambda: (Definitions(), [problem]))
    [found] = [each for each in ailments() if each.subject == "workflows"]
    assert (found.severity, found.text) == ("error", f"Workflows cannot be deployed: {problem}")
    assert "syncworkflows" in found.remedy


AILING: list[tuple[dict[str, Any], str, str, str]] = [
    ({"ALLOWED_HOSTS": ["localhost"]}, "note", "web", "can be reached only by local names"),
    ({"ALLOWED_HOSTS": ["*"]}, "warning", "web", "Every host name is allowed"),
    ({"JIM_HTTPS": False}, "warning", "web", "sent unencrypted"),
    ({"DEBUG": True}, "error", "web", "JIM_DEBUG is on"),
    ({"JIM_HEARTBEAT_URL": ""}, "note", "heartbeat", "No external monitoring service is configured"),
    ({"JIM_PWSH": "no-such-pwsh"}, "note", "powershell", "no step needs it"),
    ({"JIM_EXECUTABLE_FOLDERS": ["/nowhere"]}, "note", "JIM_EXECUTABLE_FOLDERS", "does not exist"),
    ({"JIM_DATA_DIR": "/nowhere"}, "error", "data folder", "cannot read and write"),
    ({"JIM_CONCURRENCY_POLICY": "no.such"}, "error", "check execution.E001", "no.such"),
]


def test_what_ails_the_configuration() -> None:
    healthy = []
    for changes, severity, subject, words in AILING:
        with override_settings(**changes):
            found = [each for each in ailments() if (each.severity, each.subject) == (severity, subject)]
        if not any(words in each.text and each.remedy for each in found):
            healthy.append((changes, found))
    assert healthy == []


def test_powershell_is_missed_where_steps_need_it(settings: Any, tmp_path: Path) -> None:
    script = tmp_path / "x.ps1"
    script.touch()
    make_schedule({"name": "x", "index": 0, "step_type": "powershell", "config": {"script": str(script)}})
    settings.JIM_PWSH = "no-such-pwsh"
    assert [(each.severity, each.subject) for each in ailments()] == [("warning", "powershell")]


def test_keys_that_others_can_read_and_folders_that_they_can_write_to(tmp_path: Path) -> None:
    for name in ("secret_key", "secrets_keys", "sql_connections.json"):
        path = tmp_path / name
        path.write_text("x")
        path.chmod(0o644)
        [found] = [each for each in configuration.data_folder() if each.severity == "error"]
        assert found.remedy == f"chmod 600 {path}"
        path.unlink()
    tmp_path.chmod(0o777)
    assert {(each.severity, each.subject) for each in ailments()} == {
        ("warning", "data folder"),
        ("error", "JIM_EXECUTABLE_FOLDERS"),
        ("error", "JIM_SQL_FOLDERS"),
    }
    tmp_path.chmod(0o700)


def test_a_full_disk_and_a_database_that_answers_slowly_or_has_another_time() -> None:
    free = [configuration.free_space(Path("/data"), size << 20).severity for size in (51_200, 1024, 100)]
    assert free == ["ok", "warning", "error"]
    assert [database.latency(seconds(took)).severity for took in (0.001, 0.2)] == ["ok", "warning"]
    skews = [database.skew(seconds(ahead)) for ahead in (0.3, -1, 5, -90)]
    assert [each.severity for each in skews] == ["ok", "ok", "warning", "warning"]
    assert ["ahead of" in each.text for each in skews[2:]] == [True, False]


def test_a_server_that_may_lose_what_was_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That of the tests may; and so may a file that another machine keeps."""
    monkeypatch.setattr(database, "DURABLE", {"fsync": "error"})
    found = [each.text for each in ailments() if each.subject == "database"]
    told = ["fsync is off, so accepted work can be lost in a power failure."]
    assert found == (told if connection.vendor == "postgresql" else [])
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/sda / ext4 rw 0 0\nserver:/x /mnt/share nfs4 rw 0 0\n")
    for path, kind in (("/srv/jim/x", "ext4"), ("/mnt/share/jim", "nfs4"), ("/mnt/shared", "ext4")):
        assert database.filesystem_of(Path(path), mounts) == kind


def test_a_database_that_is_not_migrated() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_migrations SET name = '9999_later' WHERE app = 'web'")
    errors = [each.text for each in ailments() if each.subject == "migrations"]
    assert [text.partition(":")[0] for text in errors] == [
        "These migrations are not applied",
        "This version of JIM is older than the database",
    ]


def test_a_check_that_breaks_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker.objects, "alive", lambda: 1 / 0)
    [found] = ailments()
    assert (found.subject, found.severity) == ("doctor", "error")
    assert "ZeroDivisionError" in found.text


def test_the_exit_code_is_the_worst_finding() -> None:
    for ail, verdict, code in (
        (close_a_limit, "note", 0),
        (be_late, "warning", 1),
        (lambda: Worker.objects.all().bury(now=NOW), "error", 2),
    ):
        ail()
        out, found = io.StringIO(), 0
        try:
            call_command("doctor", "--json", stdout=out)
        except CommandError as error:
            found = error.returncode
        assert (json.loads(out.getvalue())["verdict"], found) == (verdict, code)


@pytest.mark.live
def test_without_a_database_the_rest_is_examined(tmp_path: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    env = subprocess_env(DATABASE_URL=url, JIM_DATA_DIR=str(tmp_path / str(uuid.uuid4())))
    done = subprocess.run(
        [sys.executable, "manage.py", "doctor", "--json"],
        cwd=jim.BASE_DIR,
        env=env,
        capture_output=True,
        text=True,
    )
    findings = json.loads(done.stdout)["findings"]
    assert (done.returncode, findings[0]["severity"], findings[0]["subject"]) == (2, "error", "database")
    assert "data folder" in {each["subject"] for each in findings}
    assert "Traceback" not in done.stderr
