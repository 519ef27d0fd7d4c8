"""Schedules as files: written out, reviewed, read back."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection

from activities.models import Activity
from files.yaml_lines import write
from operations.initiator import Initiator
from schedules import code_files
from schedules.code_files import Library
from schedules.models import Schedule, Secret, SharedCalendar, Step
from schedules.reconcile import Author, Outcome, reconcile
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, step
from tests.conftest import subprocess_env
from tests.races.meeting import queue_up
from tests.waiting import PATIENCE_SECONDS
from tests.workflows.base import make_topics

pytestmark = pytest.mark.django_db

CANARY = "canary-5d81f0ce"
POST = {"url": "https://shop.example/", "method": "POST"}
HTTP = {"name": "call", "step_type": "http", "config": {"url": "https://shop.example/"}}


@pytest.fixture(autouse=True)
def key_file(settings: Any, tmp_path: Path) -> None:
    settings.JIM_DATA_DIR, settings.JIM_SECRETS_KEYS = tmp_path / "data", []


def exported(*names: str, tags: list[str] | None = None) -> str:
    out = StringIO()
    call_command("exportschedules", *names, tag=tags or [], stdout=out)
    return out.getvalue()


def imported(*texts: str, author: Author | None = None, **options: Any) -> Outcome:
    library = Library()
    for number, text in enumerate(texts, 1):
        library.add(f"{number}.yaml", text.encode())
    return reconcile(library, author=author or Author(), now=NOW, **options)


def complaints(*texts: str, **options: Any) -> list[str]:
    """What is wrong with these files; nothing of them is saved."""
    before = stored()
    outcome = imported(*texts, **options)
    assert stored() == before
    return [str(problem) for problem in outcome.problems]


stored = everything


def file(text: str) -> str:
    return f"version: 1\n{dedent(text)}"


def schedule_file(name: str = "Mine", **fields: Any) -> str:
    """A file with one schedule, beside the step that it needs."""
    entry = {"name": name, **fields, "steps": fields.get("steps", [HTTP])}
    return f"version: 1\nschedules:\n{write([entry])}"


def define_calendar(name: str = "Closing days", *excluded: Any, description: str = "") -> SharedCalendar:
    items = list(excluded) or [{"dates": "2026-12-25"}]
    return SharedCalendar.objects.define(name, items, description=description, initiator=SOMEBODY, now=NOW)


def person(*permitted: str) -> Author:
    user = User.objects.create_user("ada")
    for name in permitted:
        app, codename = name.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    return Author(Initiator.user(user), user.has_perm)


def clear() -> None:
    """An empty database, as somebody else has it."""
    Schedule.objects.all().delete()
    SharedCalendar.objects.all().delete()


class TestExport:
    def test_it_is_one_to_review(self) -> None:
        """Sorted, in a fixed order, and without defaults; the rest is in the documentation."""
        define_calendar("Off", {"holidays": "GB"}, description="Of England.")
        make_schedule(
            step("Load: people", kwargs={"zone": "NO", "all": True}, isolation="process"),
            name="Nightly",
            description="First line.\nSecond line.\n",
            tags=["hr", "finance"],
            memo={"owner": "Ada", "issue": "7"},
            spec={"exclude": [{"calendar": "Off"}], "cron": ["0 2 * * *", "*/5 9 * * mon"]},
            catch_up_seconds=None,
        )
        assert exported() == dedent(
            """\
            version: 1

            calendars:
              - name: 'Off'
                description: Of England.
                excluded:
                  - holidays: GB

            schedules:
              - name: Nightly
                description: |-
                  First line.
                  Second line.
                tags:
                  - finance
                  - hr
                memo:
                  issue: '7'
                  owner: Ada
                spec:
                  cron:
                    - 0 2 * * *
                    - '*/5 9 * * mon'
                  exclude:
                    - calendar: 'Off'
                catch_up_seconds: null
                steps:
                  - name: 'Load: people'
                    step_type: python
                    config:
                      function: tests.work.noop
                      kwargs:
                        all: true
                        zone: 'NO'
                    max_retries: 0
            """
        )

    def test_it_holds_neither_state_nor_secrets(self) -> None:
        Secret.objects.put("token", CANARY, initiator=SOMEBODY, now=NOW)
        kwargs = {"token": "{{ secrets.token }}"}
        schedule = make_schedule(step(kwargs=kwargs), name="Mine", spec={"every": ["1h"]}, remaining=7)
        before = exported()
        schedule.skip_next(initiator=SOMEBODY, now=NOW)
        schedule.pause(initiator=SOMEBODY, now=NOW, note="The bank is closed.")
        Schedule.objects.update(started_count=99, last_failure="it broke", processed_until=NOW)
        assert exported() == before
        assert "token: '{{ secrets.token }}'" in before
        assert CANARY not in before
        assert "remaining" not in before

    def test_some_of_them_with_the_calendars_that_they_use(self) -> None:
        for name in ("Used", "Unused"):
            define_calendar(name)
        spec = {"every": ["1h"], "exclude": [{"calendar": "Used"}]}
        make_schedule(name="Ältere", tags=["hr", "nightly"])
        make_schedule(name="Nightly", tags=["nightly"], spec=spec)
        make_schedule(name="Other")
        make_schedule(name="Closed", tags=["nightly"]).close(initiator=SOMEBODY, now=NOW)
        assert _names(exported("nightly")) == ["Used", "Nightly"]
        assert _names(exported("ältere ", "Other")) == ["Other", "Ältere"]
        assert _names(exported(tags=["nightly"])) == ["Used", "Nightly", "Ältere"]
        assert _names(exported(tags=["nightly", "hr"])) == ["Ältere"]
        assert _names(exported()) == ["Unused", "Used", "Nightly", "Other", "Ältere"]

    def test_one_that_is_not_there(self) -> None:
        make_schedule(name="Nightly", tags=["hr"])
        make_schedule(name="Other", tags=["fine"])
        for names, tags, words in (
            (["Nightly", "Weekly"], [], "Unknown schedule “Weekly”; choose one of: Nightly"),
            (["Nightly"], ["hr", "x"], "No schedule with the tags “hr” and “x” was found."),
            (["Nightly"], ["fine"], "Unknown schedule “Nightly” with the tag “fine”; choose one of: Other"),
        ):
            with pytest.raises(CommandError, match=words) as refused:
                exported(*names, tags=tags)
            assert refused.value.returncode == 2

    def test_to_a_file(self, tmp_path: Path) -> None:
        make_schedule(name="\N{ROCKET} Launch")
        path = tmp_path / "schedules.yaml"
        path.write_text("old" * 1000)
        call_command("exportschedules", output=str(path))
        assert path.read_text(encoding="utf-8") == exported()
        with pytest.raises(CommandError, match="cannot be written: No such file or directory") as refused:
            call_command("exportschedules", output=str(tmp_path / "nowhere" / "x.yaml"))
        assert refused.value.returncode == 2

    def test_what_is_broken_is_written_as_it_is(self) -> None:
        schedule = make_schedule(name="Mine")
        schedule.steps.update(step_type="gone", config={"b": [], "a": {"d": 1, "c": 2}})
        Schedule.objects.update(spec={"every": ["1x"], "cron": "?"})
        assert "config:\n          a:\n            c: 2\n            d: 1\n          b: []\n" in exported()
        assert "spec:\n      cron: '?'\n      every:\n        - 1x\n" in exported()


def _names(text: str) -> list[str]:
    return [line.split(": ", 1)[1] for line in text.splitlines() if line.startswith("  - name: ")]


class TestRoundTrip:
    def test_of_everything_at_once(self) -> None:
        """Again it changes nothing; into an empty database, and out of it again, it is the same bytes."""
        define_calendar("Closing: days", {"dates": "2026-12-24/2027-01-02"}, {"day_of_week": "sat,sun"})
        make_topics("mail", "orders")
        # Any text can be written and read: that is tested with what reads and writes YAML.
        for text in ("0755", "[1, 2]", "\N{ROCKET} it's “quoted”"):
            make_schedule(step(text, kwargs={text: [text, [], {}, None]}), name=text, memo={text: text})
        make_schedule(
            step("a", config={**POST, "body": "a\r\nb: \u2028\x1b[31m\n"}, step_type="http"),
            step() | ALL_STEP_FIELDS,
            name="All fields",
            **ALL_FIELDS,
        )
        definitions = [schedule.definition() for schedule in Schedule.objects.order_by("name")]
        text, before = exported(), stored()
        assert imported(text) == Outcome([], 5, 0, [])
        assert stored() == before
        clear()
        outcome = imported(text)
        assert ([str(problem) for problem in outcome.problems], outcome.unchanged) == ([], 0)
        assert exported() == text
        assert [each.definition() for each in Schedule.objects.order_by("name")] == definitions

    def test_of_the_example_in_the_documentation(self) -> None:
        Secret.objects.put("directory-token", CANARY, initiator=SOMEBODY, now=NOW)
        document = (settings.BASE_DIR / "docs" / "as-code.md").read_text(encoding="utf-8")
        example = document.partition("```yaml\n")[2].partition("```")[0]
        assert imported(example).problems == []
        assert exported() == example

    def test_of_nothing(self) -> None:
        assert imported(exported()) == Outcome([], 0, 0, [])


ALL_FIELDS: dict[str, Any] = {
    "description": "d",
    "tags": ["b", "a"],
    "memo": {"z": "1", "a": "yes"},
    "spec": {
        "cron": ["0 9 * * mon-fri"],
        "every": ["15m", {"every": "1h", "offset": "5m"}],
        "patterns": [{"times": ["09:00", "12:30"], "weekdays": "mon-fri"}],
        "exclude": [{"calendar": "Closing: days"}, {"dates": "2026-12-25"}, {"holidays": "NO"}],
        "start_at": "2026-11-20T00:00",
        "dst": "literal",
    },
    "topics": ["mail", "orders"],
    "overlap": "cancel_other",
    "catch_up_seconds": None,
    "timeout_seconds": 60,
    "deadline_seconds": 30,
    "on_failure": "skip",
    "pause_on_failure": True,
    "failures_to_pause": 2,
    "failures_among": 5,
}


ALL_STEP_FIELDS: dict[str, Any] = {
    "index": 7,
    "run_if": "always",
    "continue_on_failure": True,
    "max_failed_percent": 5,
    "timeout_seconds": 60,
    "max_retries": 5,
    "retry_seconds": 1,
    "retry_factor": 1.5,
    "retry_cap_seconds": 90,
    "retry_jitter": 25,
    "retry_on": ["NO", "503"],
    "on_crash": "fail",
    "pool": "ldap",
    "priority": -5,
    "resources": ["connected-system:7"],
}


def test_all_fields_are_all_fields() -> None:
    assert {"name", *ALL_FIELDS} == set(Schedule.DEFINITION)
    assert {"name", "step_type", "config", *ALL_STEP_FIELDS} == set(Step.FIELDS)


class TestImport:
    def test_what_is_new_is_defined(self) -> None:
        calendar = file("calendars: [{name: Closed, excluded: [{dates: 2026-12-25}]}]")
        spec = {"patterns": [{"times": ["09:00"]}], "exclude": [{"calendar": "Closed"}]}
        steps = [HTTP | {"index": 1}, HTTP | {"name": "first", "index": 0}]
        assert imported(schedule_file(spec=spec, steps=steps), calendar).problems == []
        schedule = Schedule.objects.get()
        assert (schedule.status, schedule.token, schedule.catch_up_seconds) == ("active", 1, 86_400)
        assert schedule.spec == spec
        assert schedule.calendars == {"Closed": [{"dates": "2026-12-25"}]}
        assert [each.name for each in schedule.steps.all()] == ["first", "call"]
        assert set(Activity.objects.values_list("operation", "initiator_type", "initiator_name")) == {
            ("create", "system", Initiator.command("importschedules").name)
        }

    def test_what_has_changed_is_edited(self) -> None:
        schedule = make_schedule(step(max_retries=3), name="Mine", description="old", memo={"a": "b"})
        untouched = make_schedule(name="Not in the file")
        outcome = imported(schedule_file(description="new"))
        assert (outcome.problems, outcome.others) == ([], 1)
        changed = fresh(schedule)
        assert (changed.token, changed.description, changed.memo) == (2, "new", {})
        assert [each.step_type for each in changed.steps.all()] == ["http"]
        assert Activity.objects.get(operation="edit").target_id == str(schedule.pk)
        assert fresh(untouched).token == 1

    def test_true_is_not_one(self) -> None:
        schedule = make_schedule(step(kwargs={"all": True}), name="Mine")
        assert imported(schedule_file(steps=[step(kwargs={"all": 1})])).problems == []
        assert fresh(schedule).steps.get().config["kwargs"] == {"all": 1}

    def test_it_is_known_by_its_name_whatever_its_capitals(self) -> None:
        schedule = make_schedule(name="Caf\u00e9 Nightly")
        assert imported(schedule_file("CAFE\u0301 nightly ")).problems == []
        assert [(each.pk, each.name) for each in Schedule.objects.all()] == [(schedule.pk, "CAFÉ nightly")]

    def test_one_of_the_very_same_name_comes_first(self) -> None:
        """SQLite takes Ä and ä for two letters."""
        make_schedule(name="Ärger")
        if connection.vendor == "sqlite":
            make_schedule(name="ärger")
        for name in ("Ärger", "ärger"):
            assert imported(schedule_file(name, description=name)).problems == []
        names = ["Ärger", "ärger"] if connection.vendor == "sqlite" else ["ärger"]
        rows = Schedule.objects.order_by("pk").values_list("name", "description")
        assert list(rows) == [(name, name) for name in names]

    def test_the_name_of_a_closed_one_is_free(self) -> None:
        make_schedule(name="Mine").close(initiator=SOMEBODY, now=NOW)
        assert imported(schedule_file()).problems == []
        assert Schedule.objects.open().get().name == "Mine"
        assert Schedule.objects.count() == 2

    def test_again_it_changes_nothing_however_it_is_written(self) -> None:
        first = file(
            """
            schedules:
              - name: Mine
                tags: [b, a, a]
                spec: {every: [90s], time_zone: UTC}
                overlap: skip
                steps: [{name: a, step_type: http, config: {url: " https://a.example/ "}, retry_factor: 3}]
            """
        )
        again = file(
            """
            schedules:
              - steps:
                  - {retry_factor: 3.0, index: 0, name: a, step_type: http, config: {url: https://a.example/}}
                spec: {every: [1m30s]}
                tags: [a, b]
                name: Mine
            """
        )
        assert imported(first).problems == []
        before = stored()
        assert imported(again) == Outcome([], 1, 0, [])
        assert stored() == before

    def test_state_stays(self) -> None:
        schedule = make_schedule(name="Mine", spec={"every": ["1h"]}, remaining=7)
        schedule.pause(initiator=SOMEBODY, now=NOW, note="audit")
        assert imported(schedule_file(spec={"every": ["2h"]}, paused=False, remaining=9)).problems == []
        changed = fresh(schedule)
        assert (changed.status, changed.pause_note, changed.remaining) == ("paused", "audit", 7)
        assert changed.spec == {"every": ["2h"]}

    def test_a_new_one_may_begin_paused_or_with_limited_runs(self) -> None:
        assert imported(schedule_file("a", remaining=5), schedule_file("b", paused=True)).problems == []
        assert imported(schedule_file("c", paused=False), paused=True).problems == []
        rows = Schedule.objects.order_by("name").values_list("status", "remaining")
        assert list(rows) == [("active", 5), ("paused", None), ("paused", None)]

    def test_a_calendar_and_what_uses_it_change_together(self) -> None:
        define_calendar("A", {"dates": "2026-12-25"})
        spec = {"every": ["1h"], "exclude": [{"calendar": "A"}]}
        schedule, bystander = make_schedule(name="Mine", spec=spec), make_schedule(name="Other", spec=spec)
        # It is in a later file: several files are one import.
        calendar = file("calendars: [{name: A, excluded: [{dates: 2026-12-26}]}]")
        texts = schedule_file(spec={**spec, "every": ["2h"]}), calendar
        assert imported(*texts).problems == []
        for each in (schedule, bystander):
            assert fresh(each).calendars == {"A": [{"dates": "2026-12-26"}]}
        assert fresh(schedule).spec["every"] == ["2h"]
        before = stored()
        assert imported(*texts) == Outcome([], 2, 1, [])
        assert stored() == before


NO_KEYS = "each schedule must be an object with a name: - name: …"
# The file after its version, and what is told of it: with its line.
REFUSED = [
    ("schedule: []", "2: unknown key “schedule”; did you mean schedules?"),
    ("schedules:\ncalendars: {}", "2: schedules: expected a list, found nothing"),
    ("schedules:\n- Mine", f"3: {NO_KEYS}"),
    ("schedules:\n- {tags: []}", f"3: {NO_KEYS}"),
    ("schedules:\n- name: 2026", f"3: {NO_KEYS}"),
    ("schedules:\n- name: ' '", f"3: {NO_KEYS}"),
    ("schedules:\n- name: Mine", "3: schedule “Mine”: steps: A schedule needs at least one step."),
    (
        "schedules:\n- {name: A}\n- name: a",
        "4: schedule “a”: name: the schedule at 1.yaml:3 has the same name: rename or remove one of the two",
    ),
    ('schedules:\n- name: "a\\u202eb"', "3: schedule “a\u202eb”: name: The character U+202E is not"),
    ("calendars:\n- name: A", "3: calendar “A”: excluded: "),
    ("calendars:\n- name: A\n  excluded:\n  - holidays: XX", "5: calendar “A”: excluded: "),
]
OTHER_VERSIONS = [
    ("schedules: []\n", "1: version: is missing: write version: 1"),
    ("version: 2\nwhat: ever\n", "1: version: 2 is too new: this JIM reads version 1"),
    ("\nversion: 0\n", "2: version: 0 is not supported; write version: 1"),
    ("version: '1'\n", "1: version: expected a whole number"),
]
TWO_EXCLUDED = [{"dates": "2026-12-25"}, {"calendar": "Closing"}]
# (what a schedule says, the line, what is told of it)
REFUSED_FIELDS: list[tuple[dict[str, Any], int, str]] = [
    ({"overlapp": "skip"}, 4, "unknown key “overlapp”; did you mean overlap?"),
    ({"status": "closed"}, 4, "unknown key “status”; files cannot set"),
    ({"timeout_seconds": True}, 4, "timeout_seconds: expected a whole number, found true"),
    ({"description": 5}, 4, "description: expected text in quotes, found 5"),
    ({"description": None}, 4, "description: is empty: write a value, or leave the key out"),
    ({"tags": "a"}, 4, "tags: Enter a list of tags"),
    ({"timeout_seconds": 0}, 4, "timeout_seconds: Ensure this value is greater"),
    ({"spec": {"cron": ["0 9 * * *", "61 * * * *"], "time_zone": "UTC"}}, 7, "spec: cron: "),
    ({"spec": {"every": ["1h"], "crom": []}}, 7, "spec: unknown key 'crom'"),
    ({"spec": {"at": ["2020-01-01T00:00:00Z"]}}, 5, "spec: at: "),
    ({"spec": {"every": ["1h"], "exclude": TWO_EXCLUDED}}, 9, "spec: exclude: unknown calendar"),
    ({"steps": []}, 4, "steps: A schedule needs at least one step."),
    ({"steps": "a"}, 4, "steps: expected a list, found 'a'"),
    ({"steps": ["a"]}, 5, "steps: Step 1: expected keys and values"),
    ({"steps": [HTTP, HTTP]}, 5, "steps: Step 1: index: is missing: give each step an index"),
    ({"steps": [HTTP | {"index": 0}, HTTP | {"index": 1}]}, 10, "steps: Step 2 (call): name: another step"),
]
# (what a step says, the line, what is told of it)
REFUSED_STEPS: list[tuple[dict[str, Any], int, str]] = [
    ({"retries": 3}, 9, "Step 1: unknown key “retries”; did you mean max_retries?"),
    ({"retry_factor": "2"}, 9, "Step 1: retry_factor: expected a number, found '2'"),
    ({"index": -1}, 9, "Step 1 (call): index: "),
    ({"step_type": "htp"}, 6, "Step 1 (call): step_type: Unknown step type “htp”"),
    ({"config": {**POST, "verb": "GET"}}, 10, "Step 1 (call): config: verb: is not a setting of http steps"),
    ({"config": {**POST, "body": "{{ secrets.a }}"}}, 10, "Step 1 (call): config: body: "),
]


def test_what_is_wrong_is_told_with_its_line() -> None:
    before = stored()
    rows = [*OTHER_VERSIONS, *((file(text), words) for text, words in REFUSED)]
    fields = [*REFUSED_FIELDS]
    fields += [({"steps": [HTTP | given]}, line, f"steps: {words}") for given, line, words in REFUSED_STEPS]
    rows += [(schedule_file(**given), f"{line}: schedule “Mine”: {words}") for given, line, words in fields]
    told = [([str(each) for each in imported(text).problems], words) for text, words in rows]
    assert [row for row in told if not any(each.startswith(f"1.yaml:{row[1]}") for each in row[0])] == []
    assert stored() == before


def test_only_the_calendar_complains_and_not_what_uses_it() -> None:
    calendar = file("calendars: [{name: A, excluded: [{dates: tomorrow}]}]")
    (told,) = complaints(calendar, schedule_file(spec={"every": ["1h"], "exclude": [{"calendar": "A"}]}))
    assert "calendar “A”: excluded: " in told


class TestAllOrNothing:
    def test_one_mistake_keeps_everything_out(self) -> None:
        make_schedule(name="Changed")
        calendar = file("calendars: [{name: Closing days, excluded: [{dates: 2026-12-25}]}]")
        (told,) = complaints(calendar, schedule_file("New"), schedule_file("Changed", timeout_seconds=0))
        assert told.startswith("3.yaml:4: schedule “Changed”: timeout_seconds: ")

    def test_all_mistakes_of_all_files_are_told_together(self) -> None:
        told = complaints(
            "version: 3\n",
            "a: [",
            schedule_file("One", tags=5, timeout_seconds="a", spec={"every": ["0s"]}),
            schedule_file("Two", steps=[]),
            schedule_file("ONE"),
        )
        assert [each.split(": ")[0] for each in told] == [
            *("1.yaml:1", "2.yaml:1"),
            *("3.yaml:5", "5.yaml:3", "3.yaml:4", "3.yaml:7", "4.yaml:4"),
        ]

    def test_too_much(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(code_files, "MOST_ENTRIES", 2)
        monkeypatch.setattr(code_files, "MOST_BYTES", 1024**2)
        told = complaints(schedule_file("a"), schedule_file("b"), schedule_file("c"), "#" * (1024**2 + 1))
        assert told == [
            "3.yaml:2: schedules: more than 2 cannot be imported at once: split the import",
            "4.yaml: is larger than 1 MB: make it smaller or split it",
        ]

    def test_a_calendar_has_one_name(self) -> None:
        define_calendar("Closing days")
        text = file("calendars: [{name: closing Days, excluded: []}]")
        told = "name: the stored name is “Closing days”: use the same spelling"
        assert complaints(text) == [f"1.yaml:2: calendar “closing Days”: {told}"]

    def test_a_calendar_that_would_leave_no_time(self) -> None:
        define_calendar("A")
        make_schedule(name="Once", spec={"at": ["2026-12-01T09:00:00Z"], "exclude": [{"calendar": "A"}]})
        (told,) = complaints(file("calendars: [{name: A, excluded: [{dates: 2020-01-01/2099-12-31}]}]"))
        assert told.startswith("1.yaml:2: calendar “A”: “Once” would have no scheduled times left")


class TestPermissions:
    CODE, PLAIN = schedule_file(steps=[step()]), schedule_file(steps=[HTTP])
    CALENDAR = file("calendars: [{name: A, excluded: []}]")

    @pytest.mark.parametrize(
        ("permitted", "text", "missing"),
        [
            ("change_schedule", PLAIN, ["add_schedule"]),
            ("add_schedule", PLAIN, []),
            ("add_schedule", CODE, ["define_code"]),
            ("change_schedule", CODE, ["add_schedule", "define_code"]),
            ("add_schedule define_code", CODE, []),
            ("add_schedule", CALENDAR, ["add_sharedcalendar"]),
            ("add_sharedcalendar", CALENDAR, []),
        ],
    )
    def test_to_define(self, permitted: str, text: str, missing: list[str]) -> None:
        author, before = person(*self.named(permitted)), stored()
        assert self.missing(text, author) == missing
        assert (stored() == before) == bool(missing)

    @pytest.mark.parametrize(
        ("permitted", "fields", "missing"),
        [
            ("add_schedule", {"description": "new"}, ["change_schedule"]),
            ("change_schedule", {"description": "new"}, []),
            ("change_schedule", {"steps": [step("other")]}, ["define_code"]),
            ("change_schedule define_code", {"steps": [step("other")]}, []),
            ("change_schedule", {"steps": [HTTP]}, []),
            ("", {}, []),
        ],
        ids=str,
    )
    def test_to_change(self, permitted: str, fields: dict[str, Any], missing: list[str]) -> None:
        """Code that was there before takes no permission to keep."""
        schedule = make_schedule(step(), name="Mine")
        text = schedule_file(**{"steps": [step()], **fields})
        assert self.missing(text, person(*self.named(permitted))) == missing
        assert fresh(schedule).token == (1 if missing or not fields else 2)

    def named(self, permitted: str) -> list[str]:
        return [f"schedules.{name}" for name in permitted.split()]

    def missing(self, text: str, author: Author) -> list[str]:
        told = [problem.words for problem in imported(text, author=author).problems]
        return [words.partition("the permission schedules.")[2].rstrip(".") for words in told]

    def test_a_secret_is_code(self) -> None:
        Secret.objects.put("token", CANARY, initiator=SOMEBODY, now=NOW)
        text = schedule_file(steps=[HTTP | {"config": {**POST, "body": "{{ secrets.token }}"}}])
        assert complaints(text, author=person("schedules.add_schedule")) == [
            "1.yaml:4: schedule “Mine”: steps: You may not create or change steps that run code or use a "
            "secret: “call”. You need the permission schedules.define_code."
        ]

    def test_it_is_done_in_their_name_if_they_are_active(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text(self.PLAIN)
        person("schedules.add_schedule")
        user = User.objects.get(username="ada")
        call_command("importschedules", str(path), username="ada", stdout=StringIO())
        created = Activity.objects.get(operation="create")
        assert (created.initiator_type, created.initiator_id) == ("user", str(user.pk))
        User.objects.update(is_active=False, is_superuser=True)
        for username, words in (("bob", "“bob” does not exist"), ("ada", "“ada” is not active")):
            with pytest.raises(CommandError, match=f"--as: the user {words}") as refused:
                call_command("importschedules", str(path), username=username)
            assert refused.value.returncode == 2


class TestCommand:
    BODY = "SELECT 1\nFROM a\nWHERE b\n  AND c\n  AND d\nORDER BY e\n"

    def run(self, path: Path, **options: Any) -> list[str]:
        out = StringIO()
        call_command("importschedules", str(path), stdout=out, **options)
        return out.getvalue().splitlines()

    def test_a_dry_run_shows_what_would_change_and_changes_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        define_calendar("Closing days", {"dates": "2026-12-25"})
        make_schedule(
            step("Post", 0, config={**POST, "body": self.BODY}, step_type="http"),
            step("Load", 1),
            name="Nightly",
            spec={"cron": ["0 2 * * *"]},
        )
        make_schedule(name="Same")
        make_schedule(name="Other")
        changed = {
            "name": "Nightly",
            "tags": ["hr"],
            "spec": {"cron": ["0 3 * * *"]},
            "steps": [
                step("Post", 0, config={**POST, "body": self.BODY.replace("d", "x")}, step_type="http"),
                step("Load", 1, timeout_seconds=5),
                step("Fresh", 2),
            ],
        }
        new = {"name": "New", "spec": {"every": ["1h"]}, "paused": True, "steps": [step()]}
        calendars = [{"name": "Closing days", "excluded": []}]
        schedules = [changed, {"name": "Same", "steps": [step()]}, new]
        path.write_text(write({"version": 1, "calendars": calendars, "schedules": schedules}))
        before = stored()
        told = self.run(path, dry_run=True)
        assert stored() == before
        assert told == [
            "~ change calendar “Closing days”",
            "    excluded[0]:",
            "      - dates: '2026-12-25'",
            "~ change “Nightly”",
            "    tags[0]:",
            "      + hr",
            "    spec.cron[0]:",
            "      - 0 2 * * *",
            "      + 0 3 * * *",
            "    steps.“Post”.config.body:",
            "      …",
            "        WHERE b",
            "          AND c",
            "      -   AND d",
            "      +   AND x",
            "        ORDER BY e",
            "    steps.“Load”.timeout_seconds:",
            "      - null",
            "      + 5",
            "    steps.“Fresh”:",
            "      + index: 2",
            "      + name: Fresh",
            "      + step_type: python",
            "      + config:",
            "      +   function: tests.work.noop",
            "      +   isolation: thread",
            "      + max_retries: 0",
            "+ create “New”: Every hour; 1 step, paused",
            "= unchanged 1",
            "Dry run (nothing was saved): 1 created, 2 changed, 1 unchanged; "
            "1 other schedule not in the files.",
        ]
        assert self.run(path)[:-1] == told[:-1]
        assert self.run(path) == [
            "= unchanged 4",
            "Imported: 4 unchanged; 1 other schedule not in the files.",
        ]

    def test_mistakes_are_lines_in_the_order_of_the_files(self, tmp_path: Path) -> None:
        """What moves a cursor is not printed."""
        path, missing = tmp_path / "mine.yaml", tmp_path / "missing.yaml"
        path.write_text('version: 1\nschedules:\n- {name: "a\\e[2Jb", steps: [], tags: 5}')
        errors = StringIO()
        with pytest.raises(CommandError, match=r"^4 problems: nothing was imported\.$") as refused:
            call_command("importschedules", str(missing), str(path), str(tmp_path), stderr=errors)
        assert refused.value.returncode == 2
        told = errors.getvalue().replace(str(tmp_path), "…").splitlines()
        assert told[0] == "…/missing.yaml: cannot be read: No such file or directory"
        assert told[1].startswith("…/mine.yaml:3: schedule “a\\u001b[2Jb”: name: The character U+001B")
        assert told[-1] == "…: cannot be read: Is a directory"
        assert "\x1b" not in errors.getvalue()

    @pytest.mark.live
    @pytest.mark.django_db(transaction=True)
    def test_from_one_process_to_another(self) -> None:
        make_schedule(name="\N{ROCKET} Launch")
        env = subprocess_env()

        def manage(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [sys.executable, "manage.py", *arguments],
                cwd=settings.BASE_DIR,
                env={**env, "PYTHONIOENCODING": "latin-1:replace"},
                input=given,
                capture_output=True,
                timeout=PATIENCE_SECONDS,
            )

        text = manage("exportschedules").stdout
        assert text.decode() == exported()
        done = manage("importschedules", "-", given=text[:-40])
        assert (done.returncode, done.stdout) == (2, b"")
        first, last = done.stderr.decode("latin-1").splitlines()
        assert first.startswith("-:")
        assert last == "CommandError: 1 problem: nothing was imported."


@pytest.mark.django_db(transaction=True)
class TestMeanwhile:
    """Somebody else changes the same thing between the look and the change."""

    def test_an_edited_schedule(self) -> None:
        schedule = make_schedule(name="Mine")
        theirs = {"description": "theirs"}
        (outcome,) = queue_up(
            lambda: imported(schedule_file("New"), schedule_file(description="ours")),
            behind=lambda: schedule.edit(token=1, changes=theirs, initiator=SOMEBODY, now=NOW),
        )
        assert [str(problem) for problem in outcome.problems] == [
            "2.yaml:3: schedule “Mine”: was changed in the meantime: run the import again"
        ]
        assert [each.description for each in Schedule.objects.all()] == ["theirs"]
        assert imported(schedule_file(description="ours")).problems == []

    def test_an_edited_calendar(self) -> None:
        calendar, changes = define_calendar(), {"excluded": [{"dates": "2026-12-26"}]}
        text = file("calendars: [{name: Closing days, excluded: []}]")
        (outcome,) = queue_up(
            lambda: imported(text, schedule_file("New")),
            behind=lambda: calendar.edit(token=1, changes=changes, initiator=SOMEBODY, now=NOW),
        )
        assert [problem.words for problem in outcome.problems] == [
            "calendar “Closing days”: was changed in the meantime: run the import again"
        ]
        assert (fresh(calendar).excluded, Schedule.objects.count()) == (changes["excluded"], 0)

    def test_a_name_that_was_taken(self) -> None:
        (outcome,) = queue_up(
            lambda: imported(schedule_file("Mine"), schedule_file("New")),
            behind=lambda: make_schedule(name="Mine", description="theirs"),
        )
        assert [problem.file for problem in outcome.problems] == ["1.yaml"]
        assert [each.description for each in Schedule.objects.all()] == ["theirs"]

    def test_two_imports_of_the_same_files(self) -> None:
        make_schedule(name="Mine")
        make_schedule(name="Yours")
        texts = [schedule_file("Mine", description="new"), schedule_file("Yours", description="new")]
        first, second = queue_up(
            lambda: imported(*texts),
            lambda: imported(*reversed(texts)),
            behind=Schedule.objects.filter(name="Mine"),
        )
        assert sorted([bool(first.problems), bool(second.problems)]) == [False, True]
        assert {(each.token, each.description) for each in Schedule.objects.all()} == {(2, "new")}

    def test_an_export_is_never_half_of_an_edit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        schedule = make_schedule(step("old"), name="Mine", description="old")
        rows = type(Schedule.objects.open())
        look = rows.values_list

        def edit_before(*args: Any, **kwargs: Any) -> Any:
            if args[1:] == ("pk", "token") and fresh(schedule).token == 1:
                changes = {"description": "new"}
                schedule.edit(token=1, changes=changes, steps=[step("new")], initiator=SOMEBODY, now=NOW)
            return look(*args, **kwargs)

        monkeypatch.setattr(rows, "values_list", edit_before)
        text = exported()
        assert ("description: new" in text, "name: new" in text, "old" in text) == (True, True, False)
