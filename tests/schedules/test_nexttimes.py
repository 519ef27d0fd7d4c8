"""`manage.py nexttimes`: when a schedule runs next, and for a spec in a file without any database."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.conf import settings
from django.core.management import CommandError, call_command

from database import clock
from schedules.models import Schedule, SharedCalendar
from schedules.spec import Spec
from tests.base import NOW, SOMEBODY, make_schedule, seconds
from tests.conftest import subprocess_env

WEEKDAYS = {"cron": ["0 9 * * mon-fri"], "time_zone": "Europe/London"}
HALF_A_PAIR = r'{"name": "a\ud800b", "spec": {"every": ["1h"], "jitter": "5m"}}'


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(clock, "now", lambda: NOW)
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    """The lines that the command prints."""

    def lines(*arguments: str) -> list[str]:
        call_command("nexttimes", *arguments)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return lines


@pytest.fixture
def told(said: Any) -> Any:
    """What it tells programs."""
    return lambda *arguments: json.loads("\n".join(said(*arguments, "--json")))


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts text, or something as JSON, on standard input."""

    def put(content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return put


def refusal(*arguments: str) -> str:
    with pytest.raises(CommandError) as error:
        call_command("nexttimes", *arguments)
    assert error.value.returncode == 2
    assert "\n" not in str(error.value)
    return str(error.value)


class TestSpecInAFile:
    """None of these may ask the database: pytest-django would not let them."""

    def test_the_sentence_and_a_table(self, said: Any, typed: Any) -> None:
        typed({"cron": ["30 1 * * *"], "time_zone": "Europe/London"})
        assert said("-", "--count", "2", "--after", "2027-03-27T12:00") == [
            "At 01:30 every day, Europe/London",
            "",
            "Europe/London         UTC               From now  Note",
            "Sun 2027-03-28 02:00  2027-03-28 01:00  in 131 d  moved: 01:30 does not exist on",
            "                                                  28 March 2027",
            "Mon 2027-03-29 01:30  2027-03-29 00:30  in 132 d",
        ]

    def test_jitter_and_seconds_have_their_place(self, said: Any, typed: Any) -> None:
        spec = {"calendars": [{"hour": 23, "minute": 59, "second": 30}], "jitter": "1h"}
        typed({"name": "Nightly", "spec": spec})
        due = [Spec.parse(spec).due_at(NOW + seconds(75_570 + 86_400 * day), "Nightly") for day in range(2)]
        assert said("-", "--count", "2") == [
            "Nightly",
            "At 23:59:30 every day, UTC, up to 1 hour later",
            "",
            "UTC                      From now     With jitter",
            f"Mon 2026-11-16 23:59:30  in 20 h      {due[0]:%Y-%m-%d %H:%M:%S}",
            f"Tue 2026-11-17 23:59:30  in 1 d 20 h  {due[1]:%Y-%m-%d %H:%M:%S}",
        ]

    @pytest.mark.parametrize(
        "text",
        [
            '{"every": ["1h"], "exclude": [{"dates": "2026-11-16"}]}',
            '\ufeff{\n\t"every": ["1h"],\n\t"exclude": [{"dates": "2026-11-16"}]\n}',
            "# hourly\nevery: [1h]\nexclude:\n  - dates: 2026-11-16\n",
            "name: Hourly\nsteps: [{name: x}]\nspec:\n  every: [1h]\n  exclude: [{dates: 2026-11-16}]\n",
            "spec: {every: [1h], exclude: [{calendar: off}]}\ncalendars: {off: [{dates: 2026-11-16}]}",
            "version: 1\ncalendars: [{name: off, excluded: [{dates: 2026-11-16}]}]\n"
            "schedules: [{name: Hourly, spec: {every: [1h], exclude: [{calendar: off}]}}]",
        ],
    )
    def test_it_may_be_written_in_many_ways(self, told: Any, tmp_path: Path, text: str) -> None:
        (tmp_path / "spec").write_text(text, encoding="utf-8")
        assert (
            told("--file", str(tmp_path / "spec"), "--count", "1")["times"][0]["at"] == "2026-11-17T00:00:00Z"
        )

    def test_for_programs(self, told: Any, typed: Any) -> None:
        typed({"cron": ["30 1 * * *"], "time_zone": "Europe/London"})
        shown = told("-", "--count", "1", "--after", "2027-03-28")
        assert (shown["name"], shown["notes"], shown["time_zone"]) == ("", [], "Europe/London")
        assert shown["sentence"] == "At 01:30 every day, Europe/London"
        (moved,) = shown["times"]
        assert moved.pop("note") == "moved: 01:30 does not exist on 28 March 2027"
        assert moved.pop("local") == "2027-03-28T02:00:00+01:00"
        assert moved == {"at": "2027-03-28T01:00:00Z", "due_at": "2027-03-28T01:00:00Z", "skipped_by": ""}

    @pytest.mark.parametrize(
        ("after", "first"),
        [
            ("2026-12-01T09:00", "2026-12-02T14:00:00Z"),
            ("2026-12-01T13:59:59Z", "2026-12-01T14:00:00Z"),
            ("2026-12-01", "2026-12-01T14:00:00Z"),
            ("", "2026-11-16T14:00:00Z"),
        ],
    )
    def test_after_is_read_on_its_clock(self, told: Any, typed: Any, after: str, first: str) -> None:
        typed({"cron": ["0 9 * * *"], "time_zone": "America/New_York"})
        assert told("-", "--count", "1", "--after", after)["times"][0]["at"] == first

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"cron": ["0 9 13 * 5"]}, "Note: 0 9 13 * 5 sets both day of month and day of week"),
            (
                {"at": ["2020-01-01T00:00"]},
                "Note: A new schedule with this spec would be refused: at: all scheduled times",
            ),
            ({"at": ["2020-01-01T00:00"]}, "No runs after 2026-11-16 03:00 UTC."),
            ({"every": ["1h"], "jitter": "5m"}, "Note: Jitter depends on the name of the schedule"),
        ],
    )
    def test_what_may_surprise_is_noted(self, said: Any, typed: Any, spec: Any, words: str) -> None:
        typed(spec)
        assert words in "\n".join(said("-"))

    def test_what_would_move_the_cursor_is_not_printed(self, said: Any, typed: Any) -> None:
        calendars = {"[bold]\x1b[2J": [{"dates": "2026-11-16"}]}
        spec = {"every": ["1h"], "exclude": [{"calendar": "[bold]\x1b[2J"}]}
        typed({"name": "\x1b]0;x\x07", "spec": spec, "calendars": calendars})
        assert said("-")[:2] == ["\ufffd]0;x\ufffd", "Every hour, UTC, except [bold]\ufffd[2J"]
        typed(HALF_A_PAIR)
        assert said("-")[0] == "a\ufffdb"

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ({"cron": ["61 * * * *"]}, "cron: minute 61 is outside the range"),
            ({"name": 7, "spec": {}}, "name: expected text, got 7"),
            ({"spec": {}, "calendars": []}, "calendars: expected an object of names and lists"),
            ({"spec": {"every": ["1h"], "exclude": [{"calendar": "x"}]}, "calendars": {"x": 1}}, "exclude: "),
            ({"every": ["1h"], "exclude": [{"calendar": "x"}]}, "exclude: the calendar 'x' is not given;"),
            ("", "standard input is empty: give a spec"),
            ('{"cron": [}', "standard input: not JSON: Expecting value (line 1, column 11)."),
            ("a: 1\na: 2", "standard input: line 2: the key “a” appears twice."),
            (
                {"schedules": [{}, {}]},
                "schedules: expected a list with one schedule, as in the output of “exportschedules NAME”",
            ),
            ("every hour", "allowed keys: cron, every, calendars"),
        ],
    )
    def test_bad_input_is_one_line_that_names_it(self, typed: Any, content: Any, words: str) -> None:
        typed(content)
        assert words in refusal("-")

    def test_an_export_whose_calendars_have_no_names(self, typed: Any, said: Any) -> None:
        unnamed = [{"name": [1]}, {"name": {}}, {}, "x"]
        typed({"schedules": [{"spec": {}}], "calendars": unnamed})
        assert said("-") == ["Only when started by hand"]
        typed({"schedules": [{"spec": {"exclude": [{"calendar": "x"}]}}], "calendars": unnamed})
        assert refusal("-").startswith("standard input: exclude: the calendar 'x' is not given")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([], "Give the name of a schedule, or a spec with --file FILE or on standard input (-)."),
            ([" "], "Give the name of a schedule"),
            (["x", "--file", "y"], "Give the name of a schedule or --file FILE, but not both."),
            (["--file", "/no/where"], "/no/where cannot be read: No such file or directory."),
            (["-", "--count", "0"], "--count: '0' is not a whole number from 1 to 1,000."),
            (["-", "--count", "1001"], "--count: '1001' is not a whole number"),
            (["-", "--after", "2026-02-30"], "--after: '2026-02-30' is not a date"),
        ],
    )
    def test_bad_arguments_are_named(self, typed: Any, arguments: list[str], words: str) -> None:
        typed({})
        assert words in refusal(*arguments)

    @pytest.mark.live
    def test_it_needs_no_database(self, tmp_path: Path) -> None:
        def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "manage.py", "nexttimes", *arguments],
                cwd=settings.BASE_DIR,
                env=subprocess_env(
                    DATABASE_URL="postgresql://x@/x?host=/no/where",
                    JIM_DATA_DIR=str(tmp_path),
                    PYTHONIOENCODING="utf-8",
                ),
                input=given,
                capture_output=True,
                text=True,
            )

        done = run("-", "--json", given=HALF_A_PAIR)
        assert (done.returncode, done.stderr) == (0, "")
        assert "a\N{REPLACEMENT CHARACTER}b" in done.stdout
        assert len(json.loads(done.stdout)["times"]) == 10
        stored = run("Nightly")
        assert (stored.returncode, stored.stderr.count("\n"), stored.stdout) == (2, 1, "")
        assert "The database cannot be used" in stored.stderr


@pytest.mark.django_db
class TestStoredSchedule:
    def test_by_name_and_else_by_id(self, said: Any) -> None:
        first = make_schedule(name="Nightly", spec=WEEKDAYS)
        for wanted in ("Nightly", " nightly ", str(first.pk)):
            assert said(wanted)[:2] == ["Nightly", "At 09:00 on weekdays, Europe/London"]
        make_schedule(name=str(first.pk), spec={})
        assert said(str(first.pk))[0] == str(first.pk)

    def test_an_open_one_comes_before_closed_ones_of_its_name(self, said: Any) -> None:
        for spec in ({"every": ["1h"]}, {"every": ["2h"]}, {"every": ["3h"]}):
            schedule = make_schedule(name="Nightly", spec=spec)
            schedule.close(initiator=SOMEBODY, now=NOW)
        assert "Note: The schedule is closed, so it will not run at these times." in said("Nightly")
        assert said("Nightly")[1] == "Every 3 hours"
        make_schedule(name="Nightly", spec={"every": ["4h"]})
        assert said("Nightly")[1] == "Every 4 hours"

    def test_an_export_of_it_has_the_same_times(self, said: Any, typed: Any) -> None:
        SharedCalendar.objects.define("off", [{"dates": "2026-11-16"}], initiator=SOMEBODY, now=NOW)
        make_schedule(name="Nightly", spec=WEEKDAYS | {"exclude": [{"calendar": "off"}], "jitter": "1h"})
        export = io.StringIO()
        call_command("exportschedules", "Nightly", stdout=export)
        typed(export.getvalue())
        lines = said("Nightly", "--count", "1")
        assert lines[1].startswith("At 09:00 on weekdays, Europe/London, except off")
        assert lines[-1].startswith("Tue 2026-11-17 09:00")
        assert said("-", "--count", "1") == lines

    def test_times_that_are_skipped_on_request_are_marked(self, said: Any, told: Any) -> None:
        schedule = make_schedule(name="Nightly", spec=WEEKDAYS)
        schedule.skip_next(initiator=SOMEBODY, now=NOW)
        skipped, kept = said("Nightly", "--count", "2")[-2:]
        assert skipped.endswith("skipped on request from ada")
        assert kept.endswith("in 1 d 6 h")
        assert [time["skipped_by"] for time in told("Nightly", "--count", "2")["times"]] == ["ada", ""]

    def test_its_state_is_told(self, said: Any) -> None:
        schedule = make_schedule(name="Nightly", spec=WEEKDAYS, remaining=3)
        schedule.pause(initiator=SOMEBODY, now=NOW, note="disk is full", until=NOW + seconds(86_400))
        lines = said("Nightly", "--count", "1")
        assert "Note: Scheduled runs left: 3. Further scheduled runs will be skipped." in lines
        assert "Note: The schedule is paused until 2026-11-17 03:00 UTC (“disk is full”), so its" in lines

    @pytest.mark.parametrize(
        ("wanted", "words"),
        [
            ("nightly", "Unknown schedule “nightly”; did you mean Nightly report?"),
            ("weather", "Unknown schedule “weather”; choose one of: Nightly backup, Nightly report"),
            ("9" * 30, "; choose one of"),
            ("a\x00b", "Unknown schedule"),
        ],
    )
    def test_an_unknown_one_gets_advice(self, wanted: str, words: str) -> None:
        for name in ("Nightly backup", "Nightly report"):
            make_schedule(name=name)
        assert words in refusal(wanted)

    def test_a_broken_spec_is_told(self) -> None:
        assert refusal("Nightly") == "Unknown schedule “Nightly”; no schedules exist yet"
        make_schedule(name="Nightly")
        Schedule.objects.update(spec={"cron": ["61 * * * *"]})
        assert refusal("Nightly").startswith("The spec of “Nightly” is invalid: cron: minute 61")
