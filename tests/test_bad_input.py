"""What people get wrong: every case is told at its field, and nothing of it is saved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client

from database import clock
from files import strict_json
from schedules.admin.step import StepInline
from schedules.models import Schedule
from tests.addresses import visitor
from tests.admin_pages import PYTHON, complaints, operation, page, save, sign_in, told, typed
from tests.base import SOMEBODY, everything, fresh, make_schedule
from tests.conftest import subprocess_env


@pytest.fixture
def client() -> Client:
    return sign_in()


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Sends many forms, and is not drawn the page with what is wrong."""
    return visitor(User.objects.create_superuser("ada"), monkeypatch, draws=False)


def complained(response: Any) -> dict[str, str]:
    """As it was handed to the page; nothing when it was saved."""
    return complaints(SimpleNamespace(context=response.context_data)) if response.status_code == 200 else {}


IN_THE_GAP = {"at": "2030-03-10 02:30", "time_zone": "America/New_York", "dst": "literal"}
# (what, the fields as typed, the field that complains, what it says)
FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("10 kB of cron", {"cron": "1," * 5000 + "1 * * * *"}, "cron", "characters are too many"),
    ("one bad line of several", {"cron": "0 3 * * *\n61 * * * *"}, "cron", "minute 61"),
    ("101 cron lines", {"cron": "0 3 * * *\n" * 101}, "cron", "101 entries are too many"),
    ("interval 0", {"every": "0"}, "every", "outside the range"),
    ("unknown zone", {"time_zone": "Europe/Berln"}, "time_zone", "did you mean Europe/Berlin?"),
    ("a long zone", {"time_zone": "x" * 300}, "time_zone", "at most 100 characters"),
    ("no such time", {"at": "tomorrow"}, "at", "is not a time"),
    ("in the past", {"at": "2020-01-01 00:00"}, "at", "all scheduled times are in the past"),
    ("in the gap", IN_THE_GAP, "at", "does not exist"),
    ("unknown dst", {"dst": "sometimes"}, "dst", "not one of the available choices"),
    ("unknown overlap", {"overlap": "sometimes"}, "overlap", "not one of the available choices"),
    ("unknown policy", {"on_failure": "shrug"}, "on_failure", "“shrug” is not a failure policy"),
    ("negative window", {"catch_up_seconds": "-1"}, "catch_up_seconds", "greater than or equal to 0"),
    ("2^63 as window", {"catch_up_seconds": str(2**63)}, "catch_up_seconds", "less than or equal to"),
    ("5,000 digits as window", {"catch_up_seconds": "9" * 5000}, "catch_up_seconds", "whole number"),
    ("blank name", {"name": " \t "}, "name", "required"),
    ("256 characters", {"name": "x" * 256}, "name", "at most 200 characters"),
    ("the same name in capitals", {"name": "TAKEN"}, "name", "already"),
    ("the same name, decomposed", {"name": "Cafe\u0301"}, "name", "already"),
    ("right-to-left override", {"name": "a\u202eb"}, "name", "U+202E is not allowed"),
    ("zero-width space", {"name": "a\u200bb"}, "name", "U+200B is not allowed"),
    ("NUL in the name", {"name": "a\0b"}, "name", "Null characters are not allowed"),
    ("long description", {"description": "x" * 1001}, "description", "at most 1000 characters"),
]


@pytest.mark.django_db
@pytest.mark.parametrize("is_new", [True, False], ids=["define", "edit"])
def test_a_bad_field(blind: Client, is_new: bool) -> None:
    make_schedule(name="Taken")
    make_schedule(name="Caf\u00e9")
    schedule = None if is_new else make_schedule(name="Mine")
    before, wrong = everything(), []
    for what, fields, field, words in FIELDS:
        said = complained(save(blind, typed(schedule, **fields), schedule))
        if words not in said.get(field, ""):
            wrong.append(f"{what}: {said}")
    assert wrong == []
    assert everything() == before


@pytest.mark.django_db
def test_what_is_odd_but_right_is_saved_in_one_form(blind: Client) -> None:
    spec = {"cron": ["0 3 * * *"], "every": ["1m", "1m30s"]}
    for name in ("\N{ROCKET} Launch", "\N{MAN}\u200d\N{PERSONAL COMPUTER}", "Bücher für Ærø", "日本語"):
        fields: dict[str, Any] = {"every": "60s\n1m\n90", "time_zone": ""}
        fields |= {"cron": "\n  0  3 * * *\t\r\n# 0 4 * * *"}
        assert complained(save(blind, typed(name=name, **fields))) == {}
        assert Schedule.objects.get(name=name).spec == spec


# (the text, what is said about it)
NO_JSON: list[tuple[str, str]] = [
    ("{function: x}", "not JSON: Expecting property name"),
    ('{"function": ', "not JSON: Expecting value"),
    ("[NaN]", "NaN is not JSON"),
    ("[1e400]", "1e400 is too large a number"),
    ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
    ("[" * 33 + "]" * 33, "nested too deeply"),
    ("9" * 5000, "a number of 5,000 digits is too long"),
    (f'"{"x" * 300_000}"', "300,002 characters are too many"),
]


def test_what_is_no_json_is_told() -> None:
    assert strict_json.loads("[" * 32 + "1e40" + "]" * 32)
    for text, words in NO_JSON:
        with pytest.raises(ValueError, match=words):
            strict_json.loads(text)


JSON = {"as_json": "on", "drawn_for": "json:type:python"}


def config(**config: Any) -> dict[str, str]:
    text = json.dumps({"function": "tests.work.noop"} | config)
    return JSON | {"config": text}


LISTED = {
    "runs": "type:http",
    "drawn_for": "json:type:http",
    "config": '{"url": "https://shop.example", "method": ["GET"]}',
}
# (what, the fields of a step as typed, the field that complains, what it says)
STEPS: list[tuple[str, dict[str, str], str, str]] = [
    ("NUL in the name", {"name": "a\0b"}, "step name", "Null characters are not allowed"),
    ("control character in the name", {"name": "a\u0007b"}, "step name", "U+0007 is not allowed"),
    ("a word as index", {"index": "first"}, "step index", "whole number"),
    ("no type", {"runs": ""}, "step runs", "Choose a step type"),
    ("unknown type", {"runs": "type:cobol"}, "step runs", "Unknown step type “cobol”"),
    ("1e400 as timeout", {"timeout_seconds": "1e400"}, "step timeout_seconds", "whole number"),
    ("many retries", {"max_retries": "101"}, "step max_retries", "less than or equal to 100"),
    ("1e400 as factor", {"retry_factor": "1e400"}, "step retry_factor", "Enter a number"),
    ("11 lines", {"resources": "a\r\n" * 11}, "step resources", "11 entries are too many: at most 10"),
    ("a bell in a line", {"retry_on": "a\x07b"}, "step retry_on", "U+0007 is not allowed"),
    ("unknown condition", {"run_if": "maybe"}, "step run_if", "not one of the available choices"),
    ("failure first", {"run_if": "failure"}, "step run_if", "No step runs before this one"),
    ("no JSON", JSON | {"config": "{function: x}"}, "step config", "Not JSON: Expecting property name"),
    ("depth 100,000", JSON | {"config": "[" * 100_000}, "step config", "Nested too deeply"),
    ("300 kB", config(args=["x" * 300_000]), "step config", "too many"),
    ("no function", JSON | {"config": "{}"}, "step config", "function: Is required"),
    ("no function typed", {"config-function": ""}, "step config-function", "Is required"),
    ("unknown setting", config(functoin="x"), "step config", "functoin: Is not a setting of python steps"),
    ("a list for a choice", LISTED, "step config", "method: Must be one of"),
    ("lone surrogate", config(args=["\ud800"]), "step config", "args: Contains NUL"),
]


@pytest.mark.django_db
def test_a_bad_step(blind: Client) -> None:
    schedule = make_schedule()
    before, wrong = everything(), []
    for what, fields, field, words in STEPS:
        steps = [PYTHON | {"name": "fine"}, PYTHON | fields]
        said = complained(save(blind, typed(schedule, steps=steps), schedule))
        if words not in said.get(field, ""):
            wrong.append(f"{what}: {said}")
    assert wrong == []
    assert everything() == before


# (what, the form, what is said about its steps, together or of one)
UNTOUCHED = {name: text for name, text in PYTHON.items() if not name.startswith("config")} | {
    "name": "",
    "runs": "",
    "drawn_for": "fields:",
}
ALL_STEPS: list[tuple[str, dict[str, Any], str]] = [
    ("only an untouched row", {"steps": [UNTOUCHED]}, "needs at least one step"),
    (
        "the same name twice",
        {"steps": [PYTHON, PYTHON | {"name": "WORK"}]},
        "Another step already has this name",
    ),
    ("one too many", {"steps": [PYTHON | {"name": f"s{n}"} for n in range(6)]}, "at most 5"),
    ("no count", {"steps": [PYTHON], "steps-TOTAL_FORMS": ""}, "ManagementForm data is missing"),
    ("an absurd count", {"steps": [PYTHON], "steps-TOTAL_FORMS": "99999999"}, "at most 5"),
]


@pytest.mark.django_db
def test_bad_steps_together(blind: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepInline, "max_num", 5)  # of 500: a page with all of them takes its time
    monkeypatch.setattr("schedules.models.step.MAX_STEPS", 5)
    before, wrong = everything(), []
    for what, form, words in ALL_STEPS:
        said = complained(save(blind, typed(**form)))
        if words not in said.get("steps", said.get("step name", "")):
            wrong.append(f"{what}: {said}")
    assert wrong == []
    assert everything() == before


@pytest.mark.django_db
def test_what_is_not_on_the_form_cannot_be_set(client: Client) -> None:
    schedule = make_schedule()
    columns: dict[str, Any] = {"status": "closed", "token": "99", "started_count": "5"}
    columns |= {"next_run_at": "2030-01-01", "steps-0-folded": "[]"}
    assert save(client, typed(schedule, description="new", **columns), schedule).status_code == 302
    schedule = fresh(schedule)
    assert (schedule.status, schedule.token, schedule.started_count) == ("active", 2, 0)
    assert (schedule.description, schedule.next_run_at) == ("new", None)
    assert [each.name for each in schedule.steps.all()] == [PYTHON["name"]]
    before = everything()
    for name in (schedule.name, "Another"):
        assert save(client, typed(schedule, name=name, _saveasnew="1"), schedule).status_code == 400
    assert everything() == before


FORM = "application/x-www-form-urlencoded"
BODIES: dict[str, tuple[bytes, str]] = {
    "3 MB": (b"x" * 3_000_000, FORM),
    "10,001 fields": (b"&".join(b"f%d=1" % n for n in range(10_001)), FORM),
    "invalid UTF-8": (b"name=%ff%fe&steps-TOTAL_FORMS=1", FORM),
    "JSON": (b'{"name": "JSON"}', "application/json"),
    "a torn part": (b"--x\r\nnot a part", "multipart/form-data; boundary=x"),
    "no boundary": (b"", "multipart/form-data"),
}


@pytest.mark.django_db
def test_a_bad_body(blind: Client) -> None:
    before = everything()
    for what, (body, content_type) in BODIES.items():
        response = blind.post(page("schedules_schedule_add"), body, content_type=content_type)
        assert response.status_code == 400 or complained(response), what
    assert everything() == before


# (what, the operation, the answers, what is said at the field or as message)
OPERATIONS: list[tuple[str, str, dict[str, str], str]] = [
    ("pause until yesterday", "pause", {"until": "2020-01-01T00:00"}, "must end in the future"),
    ("pause until year 99999", "pause", {"until": "99999-01-01T00:00"}, "Enter a date and time"),
    ("pause with a long note", "pause", {"note": "x" * 1001}, "at most 1000 characters"),
    ("pause with NUL", "pause", {"note": "a\0b"}, "Null characters are not allowed"),
    ("resume in an unknown way", "resume", {"missed": "shrug"}, "not one of the available choices"),
    ("run without a key", "run", {}, "required"),
    ("run with a long key", "run", {"key": "x" * 65}, "at most 64 characters"),
]


@pytest.mark.django_db
def test_bad_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    client = visitor(User.objects.create_superuser("ada"), monkeypatch)
    schedule = make_schedule()
    before, wrong = everything(), []
    for what, name, answers, words in OPERATIONS:
        response = client.post(operation("schedules_schedule", name, schedule.pk), answers)
        if response.status_code != 200 or words not in response.content.decode():
            wrong.append(f"{what}: {response.status_code}")
    unknown = ("", "id=", "id=1&id=x", "id=%00", "id=-1", "id=999999", "id=" + "9" * 31)
    for name, query in (("explode", "id=1"), *(("close", query) for query in unknown)):
        url = f"{page('schedules_schedule_do', name)}?{query}"
        assert (client.get(url).status_code, client.post(url).status_code) == (404, 404), url
    assert wrong == []
    assert everything() == before


# (the operation, the answers, what is said)
CLOSED: list[tuple[str, dict[str, str], str]] = [
    ("run", {"key": "k"}, "is closed"),
    ("pause", {}, "is closed"),
    ("resume", {"missed": "discard"}, "is closed"),
    ("close", {}, "is closed"),
    ("cancel", {}, "no running executions"),
]


@pytest.mark.django_db
def test_a_closed_schedule_stays_closed(client: Client) -> None:
    schedule = make_schedule()
    schedule.close(initiator=SOMEBODY, now=clock.now())
    before = everything()
    for name, answers, words in CLOSED:
        assert words in told(client, client.post(operation("schedules_schedule", name, schedule.pk), answers))
    assert everything() == before


NO_DATABASE = {"DATABASE_URL": "postgresql://x@/x?host=/no/where"}
NO_FOLDER = {"JIM_DATA_DIR": "/dev/null/jim"}
MIGRATE, UNUSABLE = "run “manage.py migrate” first", "The database cannot be used"
# The arguments, the environment, what the last line says
IN_A_SHELL: list[Any] = [
    (["runworker", "--nope"], {}, "unrecognized arguments: --nope"),
    (["runworker"], {"JIM_LEASE_SECONDS": "soon"}, "JIM_LEASE_SECONDS=soon must be a number"),
    (["runworker"], NO_FOLDER, "The folder /dev/null/jim cannot be created"),
    (["up"], NO_FOLDER, "The folder /dev/null/jim cannot be created"),
    (["up"], NO_DATABASE, UNUSABLE),
    (["runscheduler"], {}, MIGRATE),
    (["pause", "--all"], {}, MIGRATE),
    pytest.param(["demo"], {}, MIGRATE, marks=pytest.mark.long),
    pytest.param(["rundirect", "python", "{}"], {}, MIGRATE, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("arguments", "environment", "words"), IN_A_SHELL, ids=str)
def test_a_bad_command_in_a_shell(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], words: str
) -> None:
    env = subprocess_env(**{"DATABASE_URL": "", "JIM_DATA_DIR": str(tmp_path / "data")} | environment)
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=settings.BASE_DIR,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    path = tmp_path / "data" / "jim.sqlite3"
    assert not path.exists()
    assert words != MIGRATE or f"The database {path} does not exist: " in done.stderr
    assert done.stderr.startswith("usage:") or done.stderr.count("\n") == 1


BAD_ARGUMENTS = [
    (["up", "--nope"], "unrecognized arguments: --nope"),
    (["runworker", "--processes", "0"], "--processes: must be a whole number from 1 to 1000"),
    (["runworker", "--processes", "two"], "--processes: must be a whole number"),
    (["runworker", "--threads", "1001"], "--threads: must be a whole number from 1 to 1000"),
    (["runworker", "--pools", "a,,b"], "--pools: must be names of pools"),
    (["rundirect", "python", "{"], "CONFIG: must be a JSON object: not JSON"),
    (["rundirect", "python", "{}", "--wait", "-1"], "--wait: must be a number of seconds from 0 to"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_ARGUMENTS, ids=str)
def test_a_bad_command(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        call_command(*arguments)
