"""Everything that the description allows, and much that it does not, sent to a real server by schemathesis.

`make fuzz` sends thousands of requests; as a part of the suite it is a sample.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity
from api.models import ApiToken
from execution.models import Execution, Reservation, Worker, WorkerTask
from execution.models.adhoc import job_line
from schedules.models import Backfill, Occurrence, Schedule, Secret, SharedCalendar, TaskTemplate
from tests.api.serving import serving, token_of
from tests.base import NOW, SOMEBODY, make_schedule, make_template, run_until_idle, start, step
from tests.settings import TEST_DB
from tests.workflows.base import publish
from tests.workflows.orders import orders, stuck
from webhooks.models import Delivery, Endpoint
from workflows import AuthRequired
from workflows.models import Event, Run

CASES = int(os.environ.get("FUZZ_EXAMPLES") or 0)
SAMPLE = 1
OPTIONS = shlex.split(os.environ.get("FUZZ_OPTIONS") or "")
ROLES = ("Administrator", "Viewer")
pytestmark = [
    pytest.mark.live,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(TEST_DB != "sqlite", reason="what is asked is the same on every database"),
]
# A spec or a config may be refused although its shape is right, and a change may name an old version.
ACCEPTED = ["2xx", "304", "400", "401", "403", "404", "409", "412", "428"]
CONFIG = f"""
request-timeout = 600
[checks]
max_response_time = 600
positive_data_acceptance.expected-statuses = {json.dumps(ACCEPTED)}
negative_data_rejection.expected-statuses = {json.dumps(["4xx"])}
missing_required_header.expected-statuses = [400, 401, 403, 404, 406, 415, 428]
# What is closed stays to be read.
use_after_free.enabled = false
[parameters]
"header.If-Match" = {{ dictionary = "versions", probability = 0.8 }}
[dictionaries.versions]
values = ["*", '"1"', '"2"', '"x"']
[[operations]]
# No scheduler runs, which is said.
include-path = "/api/v1/health/ready"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", "503"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "503"]
[[operations]]
# To follow what nobody works on takes ten minutes.
include-operation-id = "activities_output"
parameters."query.follow" = "false"
"""


def known() -> dict[str, list[Any]]:
    """By the beginning of a path: ids that exist."""
    rows: dict[str, Any] = {"schedules": Schedule, "backfills": Backfill, "calendars": SharedCalendar}
    rows |= {"templates": TaskTemplate, "executions": Execution, "activities": Activity, "workers": Worker}
    rows |= {"webhooks": Endpoint, "deliveries": Delivery, "tokens": ApiToken, "runs": Run, "events": Event}
    rows |= {"reservations": Reservation}
    ids = {name: list(model.objects.values_list("pk", flat=True)[:20]) for name, model in rows.items()}
    slugs = {"workflows": ["orders"], "secrets": ["smtp"], "topics": ["orders", "parcels"]}
    return ids | slugs | {"tasks": list(WorkerTask.objects.values_list("key", flat=True)[:20])}


def make_something_of_everything() -> None:
    """All of it quick: what is run directly is waited for."""
    with orders():
        publish("parcels", "p1", "p2", payload={"weight": 7})
        stuck(AuthRequired("sign in to the carrier"))
    make_template()
    make_schedule({"index": 0, "name": "export", "template": "Export"}, spec={"every": ["1h"]}, tags=["a"])
    make_schedule(overlap="allow_all").pause(initiator=SOMEBODY, now=NOW, note="a fire")
    SharedCalendar.objects.define("Holidays", [{"holidays": "GB"}], initiator=SOMEBODY, now=NOW)
    Secret.objects.define("smtp", "correct horse", initiator=SOMEBODY, now=NOW)
    Reservation.objects.reserve(job_line(step(pool="ldap"), now=NOW), holder="here:1", now=NOW)
    schedule = make_schedule(step("one"), step("two", 1), spec={"cron": ["0 2 * * *"]})
    schedule.edit(token=1, changes={"tags": ["a"]}, initiator=SOMEBODY, now=NOW)
    first, last = NOW.replace(day=10), NOW.replace(day=12)
    Backfill.objects.ask(schedule, start_at=first, end_at=last, initiator=SOMEBODY, now=NOW)
    start(step("talk", 0, "talk"))
    start(step("fail", 0, "fail"))
    run_until_idle()
    start(step("wait"))
    assert Occurrence.objects.exists()


def config(ids: Mapping[str, list[Any]]) -> str:
    text = CONFIG
    for name, values in ids.items():
        if values:
            path = f'include-path-regex = "^/api/v1/{name}/"'
            names = ("id", "activity", "schedule_id", "slug", "topic", "name")
            given = "\n".join(
                f'parameters."path.{each}" = {{ dictionary = "{name}", probability = 0.8 }}' for each in names
            )
            text += f"[dictionaries.{name}]\nvalues = {json.dumps(values, default=str)}\n"
            text += f"[[operations]]\n{path}\n{given}\n"
    return text


def fuzz(folder: Path, address: str, token: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{address}/api/v1/schema"]
    # Whoever calls must not lose the right to do so half-way.
    command += ["--exclude-operation-id", "tokens_revoke", "--checks", "all", "--continue-on-failure"]
    # Calls without a token are counted, and soon told to wait: tests/test_permissions.py makes them.
    command += ["--exclude-checks", "ignored_auth"]
    command += ["-H", "Accept: application/json", "-H", f"Authorization: Bearer {token}", "--warnings", "off"]
    sample = ["--phases", "fuzzing,stateful", "--max-examples", str(SAMPLE), "-n", "1", "--seed", "7"]
    command += ["--max-examples", str(CASES), *OPTIONS] if CASES else sample
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_nothing_breaks_and_nothing_undescribed_is_answered(tmp_path: Path) -> None:
    make_something_of_everything()
    (tmp_path / "schemathesis.toml").write_text(config(known()))
    with serving(JIM_API_PER_MINUTE="1000000", JIM_LOG_LEVEL="ERROR") as address:
        found = {role: fuzz(tmp_path, address, token_of(role)) for role in ROLES}
    for role, done in found.items():
        print(role, done.stdout, done.stderr)  # noqa: T201
    assert {role: done.returncode for role, done in found.items()} == dict.fromkeys(ROLES, 0)
