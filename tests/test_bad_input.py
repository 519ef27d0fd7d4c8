"""What people get wrong: every case is told at its field, and nothing of it is saved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from activities import clock
from schedules.admin.step import StepInline
from schedules.models import Schedule
from tests.admin_pages import (
    PYTHON,
    complaints,
    operation,
    page,
    save,
    sign_in,
    told,
    typed,
)
from tests.base import SOMEBODY, everything, fresh, make_schedule, run_until_idle, start
from tests.conftest import subprocess_env


@pytest.fixture
def client() -> Client:
    return sign_in()


# (what, the fields as typed, the field that complains, what it says)
FIELDS: list[tuple[str, dict[str, str], str, str]] = [
    ("four cron fields", {"cron": "* * * *"}, "cron", "5 fields expected, got 4"),
    ("eight cron fields", {"cron": "0 0 * * * * * *"}, "cron", "5 fields expected, got 8"),
    ("minute 60", {"cron": "60 * * * *"}, "cron", "minute 60 is out of range 0\N{EN DASH}59"),
    ("hour 24", {"cron": "0 24 * * *"}, "cron", "hour 24 is out of range 0\N{EN DASH}23"),
    ("day 0", {"cron": "0 0 0 * *"}, "cron", "day of month 0 is out of range"),
    ("month 13", {"cron": "0 0 1 13 *"}, "cron", "month 13 is out of range"),
    ("weekday 8", {"cron": "0 0 * * 8"}, "cron", "day of week 8 is out of range"),
    ("backward range", {"cron": "5-1 * * * *"}, "cron", "runs backwards"),
    ("step 0", {"cron": "*/0 * * * *"}, "cron", "has step 0"),
    ("negative step", {"cron": "*/-1 * * * *"}, "cron", "is not understood"),
    ("empty list item", {"cron": "1,,2 * * * *"}, "cron", "is not understood"),
    ("a word", {"cron": "FOO * * * *"}, "cron", "'FOO' is not understood"),
    ("30 February", {"cron": "0 0 30 2 *"}, "cron", "never matches"),
    ("31 April", {"cron": "0 0 31 4,6,9,11 *"}, "cron", "never matches"),
    ("10 kB of cron", {"cron": "1," * 5000 + "1 * * * *"}, "cron", "characters are too many"),
    ("full-width digits", {"cron": "\uff15 * * * *"}, "cron", "only ASCII"),
    ("@reboot", {"cron": "@reboot"}, "cron", "not supported"),
    ("@sometimes", {"cron": "@sometimes"}, "cron", "is not known"),
    ("third last day", {"cron": "0 0 L-3 * *"}, "cron", "is not supported"),
    ("nearest weekday", {"cron": "0 0 15W * *"}, "cron", "is not supported"),
    ("sixth friday", {"cron": "0 0 * * 5#6"}, "cron", "is not understood"),
    ("one bad line of several", {"cron": "0 3 * * *\n61 * * * *"}, "cron", "minute 61"),
    ("101 cron lines", {"cron": "0 3 * * *\n" * 101}, "cron", "101 entries are too many"),
    ("interval 0", {"every": "0"}, "every", "out of range"),
    ("interval 0s", {"every": "0s"}, "every", "out of range"),
    ("negative interval", {"every": "-5m"}, "every", "is not a duration"),
    ("negative seconds", {"every": "-5"}, "every", "out of range"),
    ("1e9d", {"every": "1e9d"}, "every", "is not a duration"),
    ("half a second", {"every": "0.5s"}, "every", "is not a duration"),
    ("a million days", {"every": "1000000d"}, "every", "out of range"),
    ("20 digits of seconds", {"every": "9" * 20}, "every", "is not a duration"),
    ("offset beyond", {"every": "1m offset 2m"}, "every", "offset"),
    ("unknown zone", {"time_zone": "Europe/Berln"}, "time_zone", "did you mean Europe/Berlin?"),
    ("an abbreviation", {"time_zone": "EST5EDT"}, "time_zone", "use America/New_York"),
    ("a path as zone", {"time_zone": "../../etc/passwd"}, "time_zone", "is not a known time zone"),
    ("a long zone", {"time_zone": "x" * 300}, "time_zone", "at most 100 characters"),
    ("no such time", {"at": "tomorrow"}, "at", "is not a time"),
    ("year 9999", {"at": "9999-01-01 00:00"}, "at", "year 9999 is out of range"),
    ("year 1", {"at": "0001-01-01 00:00"}, "at", "year 1 is out of range"),
    ("30 February, once", {"at": "2998-02-30 00:00"}, "at", "is not a time"),
    ("in the past", {"at": "2020-01-01 00:00"}, "at", "only matches in the past"),
    (
        "in the gap",
        {"at": "2030-03-10 02:30", "time_zone": "America/New_York", "dst": "literal"},
        "at",
        "does not exist",
    ),
    ("unknown dst", {"dst": "sometimes"}, "dst", "not one of the available choices"),
    ("unknown overlap", {"overlap": "sometimes"}, "overlap", "not one of the available choices"),
    ("negative window", {"catch_up_seconds": "-1"}, "catch_up_seconds", "greater than or equal to 0"),
    ("a word as window", {"catch_up_seconds": "true"}, "catch_up_seconds", "whole number"),
    ("1e400 as window", {"catch_up_seconds": "1e400"}, "catch_up_seconds", "whole number"),
    ("2^31 as window", {"catch_up_seconds": str(2**31)}, "catch_up_seconds", "less than or equal to"),
    ("2^63 as window", {"catch_up_seconds": str(2**63)}, "catch_up_seconds", "less than or equal to"),
    ("5,000 digits as window", {"catch_up_seconds": "9" * 5000}, "catch_up_seconds", "whole number"),
    ("no name", {"name": ""}, "name", "required"),
    ("blank name", {"name": " \t "}, "name", "required"),
    ("256 characters", {"name": "x" * 256}, "name", "at most 200 characters"),
    ("the same name", {"name": "Taken"}, "name", "already"),
    ("the same name in capitals", {"name": "TAKEN"}, "name", "already"),
    ("the same name, decomposed", {"name": "Cafe\u0301"}, "name", "already"),
    ("right-to-left override", {"name": "a\u202eb"}, "name", "U+202E is not allowed"),
    ("zero-width space", {"name": "a\u200bb"}, "name", "U+200B is not allowed"),
    ("bell", {"name": "a\u0007b"}, "name", "U+0007 is not allowed"),
    ("line break in the name", {"name": "a\nb"}, "name", "U+000A is not allowed"),
    ("NUL in the name", {"name": "a\0b"}, "name", "Null characters are not allowed"),
    ("NUL in the description", {"description": "a\0b"}, "description", "Null characters are not allowed"),
    ("long description", {"description": "x" * 1001}, "description", "at most 1000 characters"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "field", "words"), [row[1:] for row in FIELDS], ids=[row[0] for row in FIELDS]
)
@pytest.mark.parametrize("is_new", [True, False], ids=["define", "edit"])
def test_a_bad_field(client: Client, fields: dict[str, Any], field: str, words: str, is_new: bool) -> None:
    make_schedule(name="Taken")
    make_schedule(name="Caf\u00e9")
    schedule = None if is_new else make_schedule(name="Mine")
    before = everything()
    response = save(client, typed(schedule, **fields), schedule)
    assert response.status_code == 200
    assert words in complaints(response)[field]
    assert everything() == before


ODD_BUT_RIGHT: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("nothing but comments", {"cron": "# 0 3 * * *"}, {}),
    ("space around", {"cron": "\n  0  3 * * *\t\r\n"}, {"cron": ["0 3 * * *"]}),
    ("29 February", {"cron": "0 0 29 2 *"}, {"cron": ["0 0 29 2 *"]}),
    ("bare seconds", {"every": "90"}, {"every": ["1m30s"]}),
    ("the same twice", {"every": "60s\n1m"}, {"every": ["1m"]}),
    ("microseconds and an offset", {"at": "2998-01-01T00:00:00.5+02:00"}, {"at": ["2997-12-31T22:00:00Z"]}),
    (
        "a wall-clock time",
        {"at": "2998-01-01 00:00", "time_zone": "Asia/Tokyo"},
        {"at": ["2997-12-31T15:00:00Z"], "time_zone": "Asia/Tokyo"},
    ),
    ("no zone", {"time_zone": ""}, {}),
]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "spec"), [row[1:] for row in ODD_BUT_RIGHT], ids=[row[0] for row in ODD_BUT_RIGHT]
)
def test_what_is_odd_but_right_is_saved_in_one_form(
    client: Client, fields: dict[str, Any], spec: dict[str, Any]
) -> None:
    assert save(client, typed(**fields)).status_code == 302
    assert Schedule.objects.get().spec == spec


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("cron", "note"),
    [("*/100 * * * *", "steps past 59"), ("0 0 13 * 5", "a day that matches either is enough")],
)
def test_what_may_surprise_is_saved_with_a_note(client: Client, cron: str, note: str) -> None:
    assert save(client, typed(cron=cron)).status_code == 302
    text = client.get(page("schedules_schedule_change", Schedule.objects.get().pk)).content.decode()
    assert note in text


@pytest.mark.django_db
@pytest.mark.parametrize(
    "name", ["\N{ROCKET} Launch", "\N{MAN}\u200d\N{PERSONAL COMPUTER}", "Bücher für Ærø", "日本語"]
)
def test_names_of_all_languages_are_names(client: Client, name: str) -> None:
    assert save(client, typed(name=name)).status_code == 302
    assert Schedule.objects.get().name == name


def python(**config: Any) -> dict[str, str]:
    return {"config": json.dumps({"function": "tests.work.noop"} | config)}


def executable(**config: Any) -> dict[str, str]:
    config = {"argv": [str(settings.BASE_DIR / "scripts" / "disk_report.sh")]} | config
    return {"step_type": "executable", "config": json.dumps(config)}


# (what, the fields of a step as typed, the field that complains, what it says)
STEPS: list[tuple[str, dict[str, str], str, str]] = [
    ("no name", {"name": ""}, "step name", "required"),
    ("long name", {"name": "x" * 201}, "step name", "at most 200 characters"),
    ("NUL in the name", {"name": "a\0b"}, "step name", "Null characters are not allowed"),
    ("control character in the name", {"name": "a\u0007b"}, "step name", "U+0007 is not allowed"),
    ("negative index", {"index": "-1"}, "step index", "greater than or equal to 0"),
    ("large index", {"index": "1001"}, "step index", "less than or equal to 1000"),
    ("2^63 as index", {"index": str(2**63)}, "step index", "less than or equal to"),
    ("a word as index", {"index": "first"}, "step index", "whole number"),
    ("no type", {"step_type": ""}, "step step_type", "required"),
    ("unknown type", {"step_type": "cobol"}, "step step_type", "There is no step type “cobol”"),
    ("timeout 0", {"timeout_seconds": "0"}, "step timeout_seconds", "greater than or equal to 1"),
    ("negative timeout", {"timeout_seconds": "-5"}, "step timeout_seconds", "greater than or equal to"),
    ("long timeout", {"timeout_seconds": "604801"}, "step timeout_seconds", "less than or equal to 604800"),
    ("1e400 as timeout", {"timeout_seconds": "1e400"}, "step timeout_seconds", "whole number"),
    ("negative retries", {"max_retries": "-1"}, "step max_retries", "greater than or equal to 0"),
    ("many retries", {"max_retries": "101"}, "step max_retries", "less than or equal to 100"),
    ("a bool as retries", {"max_retries": "True"}, "step max_retries", "whole number"),
    ("no retries given", {"max_retries": ""}, "step max_retries", "required"),
    ("long delay", {"retry_seconds": "86401"}, "step retry_seconds", "less than or equal to 86400"),
    ("unknown policy", {"on_crash": "shrug"}, "step on_crash", "not one of the available choices"),
    ("no pool", {"pool": ""}, "step pool", "required"),
    ("control character in the pool", {"pool": "a\u200bb"}, "step pool", "U+200B is not allowed"),
    ("no JSON", {"config": "{function: x}"}, "step config", "Not JSON: Expecting property name"),
    ("half a JSON", {"config": '{"function": '}, "step config", "Not JSON"),
    ("NaN", {"config": '{"function": "a.b", "args": [NaN]}'}, "step config", "NaN is not JSON"),
    ("Infinity", {"config": '{"function": "a.b", "args": [-Infinity]}'}, "step config", "is not JSON"),
    ("1e400", {"config": '{"function": "a.b", "args": [1e400]}'}, "step config", "too large a number"),
    ("a key twice", {"config": '{"function": "a.b", "function": "c.d"}'}, "step config", "appears twice"),
    ("depth 100,000", {"config": "[" * 100_000}, "step config", "Nested too deeply"),
    (
        "depth 40",
        {"config": json.dumps({"function": "a.b", "args": json.loads("[" * 40 + "]" * 40)})},
        "step config",
        "Nested too deeply",
    ),
    (
        "5,000 digits",
        {"config": f'{{"function": "a.b", "args": [{"9" * 5000}]}}'},
        "step config",
        "A number of 5,000 digits is too long",
    ),
    (
        "300 kB",
        {"config": json.dumps({"function": "a.b", "args": ["x" * 300_000]})},
        "step config",
        "too many",
    ),
    (
        "NUL in JSON",
        {"config": '{"function": "a.b", "args": ["\\u0000"]}'},
        "step config",
        "args: contains NUL",
    ),
    (
        "lone surrogate",
        {"config": '{"function": "a.b", "args": ["\\ud800"]}'},
        "step config",
        "args: contains NUL",
    ),
    ("a list", {"config": "[]"}, "step config", "must be an object"),
    ("a number", {"config": "5"}, "step config", "must be an object"),
    ("null", {"config": "null"}, "step config", "must be an object"),
    ("no function", {"config": "{}"}, "step config", "function: is required"),
    ("null for required", python(function=None), "step config", "function: is required"),
    ("no dotted path", python(function="noop"), "step config", "function: must be a dotted path"),
    ("code as path", python(function="os.system('x')"), "step config", "function: must be a dotted path"),
    ("args as text", python(args="a b"), "step config", "args: must be a list"),
    ("kwargs as list", python(kwargs=["a"]), "step config", "kwargs: must be an object"),
    ("ctx as argument", python(kwargs={"ctx": 1}), "step config", "ctx is passed by JIM itself"),
    ("unknown setting", python(functoin="x"), "step config", "functoin: is not a setting of python steps"),
    ("unknown isolation", python(isolation="none"), "step config", "isolation: must be one of"),
    ("no program", executable(argv=[]), "step config", "argv: is required"),
    ("argv as text", executable(argv="ls -l"), "step config", "argv: must be a list"),
    ("a number in argv", executable(argv=["/bin/ls", 1]), "step config", "argv: every entry must be text"),
    ("relative program", executable(argv=["ls"]), "step config", "is not an absolute path"),
    ("missing program", executable(argv=["/no/such/program"]), "step config", "does not exist"),
    ("a folder", executable(argv=[str(settings.BASE_DIR / "scripts")]), "step config", "is a folder"),
    ("outside the folders", executable(argv=["/bin/sh"]), "step config", "outside the folders"),
    (
        "a way out of the folders",
        executable(argv=[f"{settings.BASE_DIR}/scripts/../manage.py"]),
        "step config",
        "outside the folders",
    ),
    ("not executable", executable(argv=["{plain}"]), "step config", "is not executable"),
    ("env as name", executable(env={"A=B": "c"}), "step config", "is not the name of a variable"),
    ("LD_PRELOAD", executable(env={"LD_PRELOAD": "x.so"}), "step config", "LD_PRELOAD may not be set"),
    ("line break in env", executable(env={"A": "b\nc"}), "step config", "must be one line"),
    ("a number in env", executable(env={"A": 1}), "step config", "must be text"),
    ("missing folder", executable(cwd="/no/such/folder"), "step config", "is not an existing folder"),
    ("relative folder", executable(cwd="scripts"), "step config", "is not an absolute path"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "field", "words"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS]
)
def test_a_bad_step(
    client: Client, fields: dict[str, str], field: str, words: str, tmp_path: Path, settings: Any
) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    settings.JIM_EXECUTABLE_FOLDERS = [*settings.JIM_EXECUTABLE_FOLDERS, tmp_path]
    fields = {name: value.replace("{plain}", str(plain)) for name, value in fields.items()}
    schedule = make_schedule()
    before = everything()
    response = save(client, typed(schedule, steps=[PYTHON | {"name": "fine"}, PYTHON | fields]), schedule)
    assert response.status_code == 200
    assert words in complaints(response)[field]
    shown = fields.get("config", "")
    assert shown[:200].replace('"', "&quot;") in response.content.decode().replace("&#x27;", "'")
    assert everything() == before


ALL_STEPS: list[tuple[str, dict[str, Any], str]] = [
    ("none", {"steps": []}, "needs at least one step"),
    (
        "only an untouched row",
        {"steps": [PYTHON | {"name": "", "step_type": "", "config": "{}"}]},
        "needs at least one step",
    ),
    ("the same name twice", {"steps": [PYTHON, PYTHON | {"name": "WORK"}]}, "another step has this name"),
    ("one too many", {"steps": [PYTHON | {"name": f"s{n}"} for n in range(21)]}, "at most 20"),
    ("no count", {"steps": [PYTHON], "steps-TOTAL_FORMS": ""}, "ManagementForm data is missing"),
    ("an absurd count", {"steps": [PYTHON], "steps-TOTAL_FORMS": "99999999"}, "at most 20"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("form", "words"), [row[1:] for row in ALL_STEPS], ids=[row[0] for row in ALL_STEPS])
def test_bad_steps_together(
    client: Client, form: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepInline, "max_num", 20)  # of 500: a page with all of them takes its time
    monkeypatch.setattr("schedules.models.step.MAX_STEPS", 20)
    before = everything()
    response = save(client, typed(**form))
    assert response.status_code == 200
    assert words in complaints(response)["steps"]
    assert everything() == before


@pytest.mark.django_db
def test_gaps_between_indexes_are_allowed(client: Client) -> None:
    steps = [PYTHON | {"index": "7"}, PYTHON | {"index": "900", "name": "last"}]
    assert save(client, typed(steps=steps)).status_code == 302
    start_at = Schedule.objects.get()
    client.post(operation("schedules_schedule", "run", start_at.pk), {"key": "k"})
    assert run_until_idle(now=clock.now()) == ["work", "last"]


@pytest.mark.django_db
def test_what_is_not_on_the_form_cannot_be_set(client: Client) -> None:
    schedule = make_schedule()
    columns: dict[str, Any] = {
        "status": "closed",
        "token": "99",
        "started_count": "5",
        "next_run_at": "2030-01-01",
        "spec": "{}",
    }
    assert save(client, typed(schedule, description="new", **columns), schedule).status_code == 302
    schedule = fresh(schedule)
    assert (schedule.status, schedule.token, schedule.started_count) == ("running", 2, 0)
    assert (schedule.description, schedule.next_run_at) == ("new", None)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"x" * 3_000_000, "application/x-www-form-urlencoded"),
        (b"&".join(b"f%d=1" % n for n in range(10_001)), "application/x-www-form-urlencoded"),
        (b"name=%ff%fe&steps-TOTAL_FORMS=1", "application/x-www-form-urlencoded"),
        (b'{"name": "JSON"}', "application/json"),
        (b"--x\r\nnot a part", "multipart/form-data; boundary=x"),
        (b"", "multipart/form-data"),
    ],
    ids=["3 MB", "10,001 fields", "invalid UTF-8", "JSON", "a torn part", "no boundary"],
)
def test_a_bad_body(client: Client, body: bytes, content_type: str) -> None:
    before = everything()
    response = client.post(page("schedules_schedule_add"), body, content_type=content_type)
    assert response.status_code in (200, 400)
    if response.status_code == 200:
        assert complaints(response)
    assert everything() == before


# (what, the operation, the answers, what is said at the field or as message)
OPERATIONS: list[tuple[str, str, dict[str, str], str]] = [
    ("pause until yesterday", "pause", {"until": "2020-01-01T00:00"}, "must end in the future"),
    ("pause until a word", "pause", {"until": "soon"}, "valid date/time"),
    ("pause until year 99999", "pause", {"until": "99999-01-01T00:00"}, "valid date/time"),
    ("pause with a long note", "pause", {"note": "x" * 1001}, "at most 1000 characters"),
    ("pause with NUL", "pause", {"note": "a\0b"}, "Null characters are not allowed"),
    ("resume in an unknown way", "resume", {"missed": "shrug"}, "not one of the available choices"),
    ("resume without saying how", "resume", {}, "required"),
    ("run without a key", "run", {}, "required"),
    ("run with a long key", "run", {"key": "x" * 65}, "at most 64 characters"),
    ("cancel with a long reason", "cancel", {"reason": "x" * 1001}, "at most 1000 characters"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "answers", "words"), [row[1:] for row in OPERATIONS], ids=[r[0] for r in OPERATIONS]
)
def test_bad_answers(client: Client, name: str, answers: dict[str, str], words: str) -> None:
    schedule = make_schedule()
    before = everything()
    response = client.post(operation("schedules_schedule", name, schedule.pk), answers)
    assert response.status_code == 200
    assert words in response.content.decode()
    assert everything() == before


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "answers", "words"),
    [
        ("run", {"key": "k"}, "is closed"),
        ("pause", {}, "is closed"),
        ("resume", {"missed": "discard"}, "is closed"),
        ("close", {}, "is closed"),
        ("cancel", {}, "Nothing of"),
    ],
)
def test_a_closed_schedule_stays_closed(
    client: Client, name: str, answers: dict[str, str], words: str
) -> None:
    schedule = make_schedule()
    schedule.close(initiator=SOMEBODY, now=clock.now())
    before = everything()
    assert words in told(client, client.post(operation("schedules_schedule", name, schedule.pk), answers))
    assert everything() == before


@pytest.mark.django_db
def test_what_runs_goes_on_when_its_schedule_is_changed_or_closed(client: Client) -> None:
    execution = start()
    schedule = execution.schedule
    assert schedule
    assert save(client, typed(schedule, steps=[PYTHON | {"name": "other"}]), schedule).status_code == 302
    client.post(operation("schedules_schedule", "close", schedule.pk))
    assert run_until_idle() == ["work"]
    assert fresh(execution).status == "completed"


@pytest.mark.django_db
@pytest.mark.parametrize("query", ["", "id=", "id=1&id=x", "id=%00", "id=-1", "id=999999", "id=9" + "9" * 30])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_operation_on_nothing_is_not_found(client: Client, query: str, method: str) -> None:
    make_schedule()
    before = everything()
    url = f"{page('schedules_schedule_do', 'close')}?{query}"
    assert client.generic(method, url).status_code == 404
    assert client.generic(method, f"{page('schedules_schedule_do', 'explode')}?id=1").status_code == 404
    assert everything() == before


# (what, the arguments, the environment, what the last line says)
COMMANDS: list[tuple[str, list[str], dict[str, str], str]] = [
    ("unknown flag", ["runworker", "--nope"], {}, "unrecognized arguments: --nope"),
    ("unknown flag", ["runscheduler", "--nope"], {}, "unrecognized arguments: --nope"),
    ("unknown flag", ["up", "--nope"], {}, "unrecognized arguments: --nope"),
    ("unknown flag", ["demo", "--nope"], {}, "unrecognized arguments: --nope"),
    ("no processes", ["runworker", "--processes", "0"], {}, "--processes: a whole number from 1 to 1000"),
    ("negative processes", ["runworker", "--processes=-1"], {}, "--processes: a whole number from 1 to 1000"),
    ("processes in words", ["runworker", "--processes", "two"], {}, "--processes: a whole number"),
    ("too many threads", ["runworker", "--threads", "1001"], {}, "--threads: a whole number from 1 to 1000"),
    ("no pool", ["runworker", "--pools", "a,,b"], {}, "--pools: name the pools"),
    ("no JSON", ["rundirect", "python", "{"], {}, "CONFIG: a JSON object is needed: not JSON"),
    ("no wait", ["rundirect", "python", "{}", "--wait", "-1"], {}, "--wait: a number of seconds from 0 to"),
    ("unmigrated", ["rundirect", "python", "{}"], {}, "run “manage.py migrate” first"),
    ("unmigrated", ["runworker"], {}, "run “manage.py migrate” first"),
    ("unmigrated", ["runscheduler"], {}, "run “manage.py migrate” first"),
    ("unmigrated", ["demo"], {}, "run “manage.py migrate” first"),
    (
        "unwritable folder",
        ["runworker"],
        {"JIM_DATA_DIR": "/dev/null/jim"},
        "The folder /dev/null/jim cannot be made",
    ),
    (
        "unwritable folder",
        ["up"],
        {"JIM_DATA_DIR": "/dev/null/jim"},
        "The folder /dev/null/jim cannot be made",
    ),
    (
        "no database",
        ["demo"],
        {"DATABASE_URL": "postgresql://x@/x?host=/no/where"},
        "The database cannot be used",
    ),
    (
        "no database",
        ["up"],
        {"DATABASE_URL": "postgresql://x@/x?host=/no/where"},
        "The database cannot be used",
    ),
    ("a bad setting", ["runworker"], {"JIM_LEASE_SECONDS": "soon"}, "JIM_LEASE_SECONDS=soon is not a number"),
]


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [row[1:] for row in COMMANDS],
    ids=[f"{row[1][0]}: {row[0]}" for row in COMMANDS],
)
def test_a_bad_command(tmp_path: Path, arguments: list[str], environment: dict[str, str], words: str) -> None:
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
    assert done.stderr.startswith("usage:") or done.stderr.count("\n") == 1
