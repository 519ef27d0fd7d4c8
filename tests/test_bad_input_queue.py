"""What programs get wrong in steps and operations: told by step and field, and nothing of it is saved."""

from __future__ import annotations

import ast
from functools import partial
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError

from activities import clock
from execution.invoker import trigger
from execution.models import Execution
from schedules.models import Refused, Schedule
from tests.admin_pages import PYTHON, complaints, operation, save, sign_in, told, typed
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, run_until_idle, start, step
from tests.workflows.base import make_topics

pytestmark = pytest.mark.django_db

# (what, the fields of the second step, the field that complains, what it says)
FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("negative index", {"index": -1}, "index", "greater than or equal to 0"),
    ("large index", {"index": 1001}, "index", "less than or equal to 1000"),
    ("no index", {"index": None}, "index", "cannot be null"),
    ("half an index", {"index": 0.5}, "index", "a whole number expected, found 0.5"),
    ("a bool as index", {"index": True}, "index", "a whole number expected, found true"),
    ("unknown type", {"step_type": "cobol"}, "step_type", "There is no step type “cobol”; there are: "),
    ("no type", {"step_type": ""}, "step_type", "cannot be blank"),
    ("a number as type", {"step_type": 7}, "step_type", "text, in quotes, expected, found 7"),
    ("config as text", {"config": "{}"}, "config", "must be an object of settings"),
    ("negative timeout", {"timeout_seconds": -5}, "timeout_seconds", "greater than or equal to"),
    ("timeout 0", {"timeout_seconds": 0}, "timeout_seconds", "greater than or equal to 1"),
    ("a bool as timeout", {"timeout_seconds": True}, "timeout_seconds", "a whole number expected"),
    ("text as timeout", {"timeout_seconds": "3"}, "timeout_seconds", "a whole number expected, found '3'"),
    ("no text as timeout", {"timeout_seconds": ""}, "timeout_seconds", "a whole number expected, found ''"),
    ("1e400 as timeout", {"timeout_seconds": 1e400}, "timeout_seconds", "expected, found Infinity"),
    ("2^63 as timeout", {"timeout_seconds": 2**63}, "timeout_seconds", "less than or equal to 604800"),
    ("negative retries", {"max_retries": -1}, "max_retries", "greater than or equal to 0"),
    ("a bool as retries", {"max_retries": False}, "max_retries", "a whole number expected, found false"),
    ("text as retries", {"max_retries": "3"}, "max_retries", "a whole number expected, found '3'"),
    ("a list as retries", {"max_retries": [3]}, "max_retries", "a whole number expected, found a list"),
    ("101 retries", {"max_retries": 101}, "max_retries", "less than or equal to 100"),
    ("long delay", {"retry_seconds": 86_401}, "retry_seconds", "less than or equal to 86400"),
    ("factor 0.5", {"retry_factor": 0.5}, "retry_factor", "greater than or equal to 1"),
    ("factor 11", {"retry_factor": 11}, "retry_factor", "less than or equal to 10"),
    ("NaN as factor", {"retry_factor": float("nan")}, "retry_factor", "a number expected, found NaN"),
    ("1e400 as factor", {"retry_factor": 1e400}, "retry_factor", "a number expected, found Infinity"),
    ("10^400 as factor", {"retry_factor": 10**400}, "retry_factor", "a number of more than 18 digits"),
    ("text as factor", {"retry_factor": "2"}, "retry_factor", "a number expected, found '2'"),
    ("a bool as factor", {"retry_factor": True}, "retry_factor", "a number expected, found true"),
    ("no factor", {"retry_factor": None}, "retry_factor", "cannot be null"),
    ("long cap", {"retry_cap_seconds": 604_801}, "retry_cap_seconds", "less than or equal to 604800"),
    ("negative cap", {"retry_cap_seconds": -1}, "retry_cap_seconds", "greater than or equal to 0"),
    ("jitter of 101 %", {"retry_jitter": 101}, "retry_jitter", "less than or equal to 100"),
    ("half a percent", {"retry_jitter": 0.5}, "retry_jitter", "a whole number expected, found 0.5"),
    ("one text to retry on", {"retry_on": "Timeout"}, "retry_on", "A list of texts is expected"),
    ("a number to retry on", {"retry_on": [503]}, "retry_on", "A list of texts is expected"),
    ("nothing to retry on", {"retry_on": [""]}, "retry_on", "must not be blank"),
    ("NUL to retry on", {"retry_on": ["a\0"]}, "retry_on", "U+0000 is not allowed"),
    ("11 texts to retry on", {"retry_on": ["a"] * 11}, "retry_on", "11 are too many: at most 10"),
    ("a long text to retry on", {"retry_on": ["x" * 81]}, "retry_on", "longer than 80 characters"),
    ("unknown condition", {"run_if": "maybe"}, "run_if", "is not a valid choice"),
    ("unknown crash policy", {"on_crash": "shrug"}, "on_crash", "is not a valid choice"),
    ("priority 1001", {"priority": 1001}, "priority", "less than or equal to 1000"),
    ("priority -1001", {"priority": -1001}, "priority", "greater than or equal to -1000"),
    ("text as priority", {"priority": "high"}, "priority", "a whole number expected, found 'high'"),
    ("no pool", {"pool": ""}, "pool", "cannot be blank"),
    ("a hard space in the pool", {"pool": "a\u00a0b"}, "pool", "U+00A0 is not allowed"),
    ("resources as object", {"resources": {"db": 1}}, "resources", "A list of texts is expected"),
    ("a hard space in a resource", {"resources": ["a\u00a0b"]}, "resources", "U+00A0 is not allowed"),
    ("space round a resource", {"resources": [" db"]}, "resources", "has spaces round it"),
    ("long resources", {"resources": ["x" * 80] * 4}, "resources", "320 characters in all are too many"),
    ("continue as number", {"continue_on_failure": 1}, "continue_on_failure", "true or false expected"),
]


@pytest.mark.parametrize(
    ("fields", "field", "words"), [row[1:] for row in FIELDS], ids=[row[0] for row in FIELDS]
)
@pytest.mark.parametrize("is_new", [True, False], ids=["define", "edit"])
def test_a_bad_step_is_told_by_its_name_and_field(
    fields: dict[str, Any], field: str, words: str, is_new: bool
) -> None:
    steps = [step("fine"), step("bad") | fields]
    schedule = make_schedule()
    edit = partial(schedule.edit, token=1, initiator=SOMEBODY, now=NOW, changes={}, steps=steps)
    before = everything()
    with pytest.raises(ValidationError) as refused:
        make_schedule(*steps) if is_new else edit()
    [text] = refused.value.message_dict["steps"]
    assert text.startswith(f"Step 2 (bad): {field}: ")
    assert words in text
    assert everything() == before


TOO_EARLY = "nothing comes before it that could fail: give it a higher index, or run it on success or always."
# (what, the steps, what is said about them)
TOGETHER: list[tuple[str, Any, str]] = [
    ("none", [], "A schedule needs at least one step."),
    ("nothing", None, "A list of steps is expected, found null."),
    ("an object", {"name": "a"}, "A list of steps is expected, found an object."),
    ("text", "steps", "A list of steps is expected, found 'steps'."),
    ("a step of text", ["a"], "Step 1: fields and values expected, found 'a'."),
    ("a step that is null", [step(), None], "Step 2: fields and values expected, found null."),
    ("5,000 of them", [step(f"s{n}") for n in range(5_000)], "5,000 steps are too many: at most 500."),
    ("an unknown field", [step(timeout=5)], "Step 1: unknown field timeout."),
    ("a field that is no text", [step() | {7: 8}], "Step 1: unknown field 7."),
    ("its state", [step(id=5, schedule=7)], "Step 1: unknown field id, schedule."),
    ("no name", [step(""), step()], "Step 1: name: This field cannot be blank."),
    ("a name that is null", [step() | {"name": None}], "Step 1: name: text, in quotes, expected, found null"),
    ("a number as name", [step() | {"name": 7}], "Step 1: name: text, in quotes, expected, found 7"),
    ("a name twice", [step("a"), step("A")], "Step 2 (A): name: another step has this name already."),
    (
        "only after a failure, but first",
        [step("tell", 3, run_if="failure"), step("later", 4)],
        f"Step 1 (tell): run_if: {TOO_EARLY}",
    ),
    (
        "only after a failure, beside the first",
        [step("work"), step("tell", run_if="failure")],
        f"Step 2 (tell): run_if: {TOO_EARLY}",
    ),
]


@pytest.mark.parametrize(("steps", "words"), [row[1:] for row in TOGETHER], ids=[row[0] for row in TOGETHER])
def test_steps_that_are_wrong_together(steps: Any, words: str) -> None:
    before = everything()
    with pytest.raises(ValidationError) as refused:
        Schedule.objects.define(name="Bad", spec={}, steps=steps, initiator=SOMEBODY, now=NOW)
    assert refused.value.message_dict["steps"] == [words]
    assert everything() == before


CIRCLE = "It would start itself: orders → “Echo” → orders."


@pytest.mark.parametrize("is_new", [True, False], ids=["define", "edit"])
def test_a_schedule_that_would_start_itself(is_new: bool) -> None:
    make_topics("orders")
    steps = [{"name": "tell", "step_type": "publish", "config": {"topic": "orders"}}]
    schedule = make_schedule(name="Echo", topics=["orders"])
    if is_new:
        schedule.close(initiator=SOMEBODY, now=NOW)
    edit = partial(schedule.edit, token=1, initiator=SOMEBODY, now=NOW, changes={}, steps=steps)
    before = everything()
    with pytest.raises(ValidationError) as refused:
        make_schedule(*steps, name="Echo", topics=["orders"]) if is_new else edit()
    assert refused.value.message_dict == {"topics": [CIRCLE]}
    assert everything() == before


def test_every_step_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ValidationError) as refused:
        make_schedule(step("a", max_retries=-1, run_if="maybe"), step("b", priority=None))
    assert [text.rpartition(": ")[0] for text in sorted(refused.value.message_dict["steps"])] == [
        "Step 1 (a): max_retries",
        "Step 1 (a): run_if",
        "Step 2 (b): priority",
    ]


def test_gaps_between_indexes_are_gaps_in_nothing_else() -> None:
    execution = start(step("last", 1000), step("first", 7), step("tell", 900, run_if="always"))
    assert run_until_idle() == ["first", "tell", "last"]
    assert fresh(execution).status == "completed"


def test_the_edges_are_allowed() -> None:
    widest: dict[str, Any] = {
        "timeout_seconds": 604_800,
        "max_retries": 100,
        "retry_seconds": 86_400,
        "retry_factor": 10,
        "retry_cap_seconds": 604_800,
        "retry_jitter": 100,
        "retry_on": ["x" * 80] * 10,
        "priority": -1000,
        "resources": ["r" * 30] * 10,
        "pool": "p" * 40,
    }
    assert start(step(**widest)).status == "in_progress"


# (what, the schedule's fields, the field that complains, what it says)
POLICIES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "unknown",
        {"on_failure": "shrug"},
        "on_failure",
        "There is no “shrug”; there are: stop, continue, skip.",
    ),
    ("none", {"on_failure": ""}, "on_failure", "cannot be blank"),
    ("a bool", {"on_failure": True}, "on_failure", "text, in quotes, expected, found true"),
    ("a bool as timeout", {"timeout_seconds": True}, "timeout_seconds", "a whole number expected"),
    ("text as deadline", {"deadline_seconds": "3"}, "deadline_seconds", "a whole number expected"),
    ("1e400 as window", {"catch_up_seconds": 1e400}, "catch_up_seconds", "found Infinity"),
    ("NaN as runs left", {"remaining": float("nan")}, "remaining", "found NaN"),
    ("1 for yes", {"pause_on_failure": 1}, "pause_on_failure", "true or false expected, found 1"),
    ("no name", {"name": None}, "name", "cannot be null"),
    ("a number as name", {"name": 7}, "name", "text, in quotes, expected, found 7"),
    ("a list as description", {"description": ["a"]}, "description", "found a list"),
    ("text as failures", {"failures_to_pause": "1"}, "failures_to_pause", "a whole number expected"),
]


@pytest.mark.parametrize(
    ("fields", "field", "words"), [row[1:] for row in POLICIES], ids=[row[0] for row in POLICIES]
)
def test_a_bad_policy(fields: dict[str, Any], field: str, words: str) -> None:
    before = everything()
    with pytest.raises(ValidationError) as refused:
        make_schedule(**fields)
    assert words in refused.value.message_dict[field][0]
    assert everything() == before


# (what, the fields of a step as typed, the field that complains, what it says)
TYPED: list[tuple[str, dict[str, str], str, str]] = [
    ("a word as factor", {"retry_factor": "double"}, "step retry_factor", "Enter a number"),
    ("NaN as factor", {"retry_factor": "NaN"}, "step retry_factor", "Enter a number"),
    ("1e400 as factor", {"retry_factor": "1e400"}, "step retry_factor", "Enter a number"),
    ("no factor", {"retry_factor": ""}, "step retry_factor", "required"),
    ("jitter of 101 %", {"retry_jitter": "101"}, "step retry_jitter", "less than or equal to 100"),
    ("priority of 1e9", {"priority": "1000000000"}, "step priority", "less than or equal to 1000"),
    ("unknown condition", {"run_if": "maybe"}, "step run_if", "not one of the available choices"),
    ("11 lines", {"resources": "a\r\n" * 11}, "step resources", "11 are too many: at most 10"),
    ("a bell in a line", {"retry_on": "a\x07b"}, "step retry_on", "U+0007 is not allowed"),
    ("failure first", {"run_if": "failure"}, "steps", "nothing comes before it that could fail"),
]


@pytest.mark.parametrize(
    ("fields", "field", "words"), [row[1:] for row in TYPED], ids=[row[0] for row in TYPED]
)
def test_a_bad_step_is_told_on_the_form(fields: dict[str, str], field: str, words: str) -> None:
    client = sign_in()
    before = everything()
    response = save(client, typed(steps=[PYTHON | fields]))
    assert response.status_code == 200
    assert words in complaints(response)[field]
    assert everything() == before


def test_an_unknown_policy_is_told_on_the_form() -> None:
    response = save(sign_in(), typed(on_failure="shrug"))
    assert "There is no “shrug”" in complaints(response)["on_failure"]
    assert not Schedule.objects.exists()


def test_all_there_is_to_a_step_can_be_typed() -> None:
    fields = {
        "run_if": "always",
        "retry_factor": "1.5",
        "retry_cap_seconds": "60",
        "retry_jitter": "25",
        "retry_on": " ConnectionError\r\n\r\n503 \r\n",
        "priority": "-5",
        "resources": "connected-system:7\r\nlicence",
    }
    client = sign_in()
    assert save(client, typed(steps=[PYTHON | fields])).status_code == 302
    schedule = Schedule.objects.get()
    [saved] = schedule.steps.all()
    assert {name: getattr(saved, name) for name in fields} == {
        "run_if": "always",
        "retry_factor": 1.5,
        "retry_cap_seconds": 60,
        "retry_jitter": 25,
        "retry_on": ["ConnectionError", "503"],
        "priority": -5,
        "resources": ["connected-system:7", "licence"],
    }
    before = everything()
    assert save(client, typed(schedule, steps=[PYTHON | fields]), schedule).status_code == 302
    assert everything() == before


class TestOperations:
    def test_a_paused_schedule_runs_by_hand_and_a_closed_one_never(self) -> None:
        schedule = make_schedule()
        schedule.pause(initiator=SOMEBODY, now=NOW)
        assert trigger(schedule, initiator=SOMEBODY, now=NOW).status == "started"
        schedule.close(initiator=SOMEBODY, now=NOW)
        before = everything()
        with pytest.raises(Refused, match="is closed: it cannot be run any more"):
            trigger(schedule, initiator=SOMEBODY, now=NOW)
        assert everything() == before

    def test_the_same_key_is_the_same_run_and_another_request_with_it_is_refused(self) -> None:
        schedule = make_schedule()
        first = trigger(schedule, initiator=SOMEBODY, now=NOW, key="k")
        before = everything()
        assert trigger(schedule, initiator=SOMEBODY, now=NOW, key="k") == first
        with pytest.raises(Refused):
            trigger(schedule, initiator=SOMEBODY, now=NOW, key="k", overlap="allow_all")
        assert everything() == before

    def test_what_has_finished_is_not_cancelled(self) -> None:
        client = sign_in()
        execution = start(now=clock.now())
        run_until_idle(now=clock.now())
        assert not fresh(execution).cancel(initiator=SOMEBODY, now=NOW)
        before = everything()
        response = client.post(operation("execution_execution", "cancel", execution.pk))
        assert "has ended already" in told(client, response)
        assert everything() == before
        assert Execution.objects.get().status == "completed"


OUTGOING, BAD_INPUT = "tests/steps/test_outgoing.py", "tests/test_bad_input.py"
BAD_FILES, SEARCHES = "tests/test_bad_files.py", "tests/test_bad_searches.py"
BAD_LISTS, BACKFILL = "tests/test_bad_lists.py", "tests/schedules/test_backfill.py"
AS_CODE, YAML = "tests/schedules/test_as_code.py", "tests/activities/test_yaml_lines.py"
EVENTS, WAKING = "tests/workflows/test_api.py", "tests/workflows/test_waking.py"
API = "tests/api/test_foundation.py"
HTTP, SQL = "tests/steps/test_http.py", "tests/steps/test_sql_config.py"
# Told elsewhere: (what, the file, the test, the row of its table)
ELSEWHERE: list[tuple[str, str, str, str]] = [
    ("no steps", BAD_INPUT, "test_bad_steps_together", '("none", {"steps": []}'),
    ("negative index", BAD_INPUT, "test_a_bad_step", '("negative index"'),
    ("gapped index", BAD_INPUT, "test_gaps_between_indexes_are_allowed", ""),
    ("unknown type", BAD_INPUT, "test_a_bad_step", '("unknown type"'),
    ("relative program", BAD_INPUT, "test_a_bad_step", '("relative program"'),
    ("missing program", BAD_INPUT, "test_a_bad_step", '("missing program"'),
    ("a folder as program", BAD_INPUT, "test_a_bad_step", '("a folder"'),
    ("no program", BAD_INPUT, "test_a_bad_step", '("not executable"'),
    ("program elsewhere", BAD_INPUT, "test_a_bad_step", '("outside the folders"'),
    ("arguments as text", BAD_INPUT, "test_a_bad_step", '("argv as text"'),
    ("a variable A=B", BAD_INPUT, "test_a_bad_step", '("env as name"'),
    ("LD_PRELOAD", BAD_INPUT, "test_a_bad_step", '("LD_PRELOAD"'),
    ("a line break in a variable", BAD_INPUT, "test_a_bad_step", '("line break in env"'),
    ("missing working folder", BAD_INPUT, "test_a_bad_step", '("missing folder"'),
    ("no SQL", SQL, "test_bad_config", '{"script": ""}'),
    ("several statements", SQL, "test_bad_config", '{"script": "1;" * 10_001}'),
    ("unknown connection", SQL, "test_bad_config", '{"connection": "hr"}'),
    ("a write that may not be", "tests/steps/test_sql.py", "test_read_only", ""),
    ("no scheme", HTTP, "test_bad_config", '{"url": "shop.example"}'),
    ("a file as URL", HTTP, "test_bad_config", '{"url": "file:///etc/passwd"}'),
    ("a user in the URL", HTTP, "test_bad_config", '{"url": "http://me:word@shop.example/"}'),
    ("port 0", HTTP, "test_bad_config", '{"url": "http://shop.example:0/"}'),
    ("a space in the URL", HTTP, "test_bad_config", '{"url": "http://shop.example/a b"}'),
    ("a line break in a header", HTTP, "test_bad_config", r'{"headers": {"X": "a\r\nY: b"}}'),
    (
        "a private address",
        "tests/steps/test_outgoing.py",
        "test_what_is_not_public_is_refused_as_it_is_written",
        "",
    ),
    ("method FOO", HTTP, "test_bad_config", '{"method": "FOO"}'),
    ("a path upwards", SQL, "test_bad_files", '("{sql}/../secret.sql"'),
    ("a path elsewhere", SQL, "test_bad_files", '("/etc/hostname"'),
    ("a link that leads elsewhere", SQL, "test_bad_files", '("{sql}/link.sql"'),
    ("a path with NUL", SQL, "test_bad_files", r'("{sql}/a.sql\0"'),
    ("a pipe as file", SQL, "test_bad_files", '("{sql}/fifo"'),
    ("/dev/zero as file", SQL, "test_bad_files", '("{sql}/zero"'),
    (
        "run of a closed schedule",
        BAD_INPUT,
        "test_a_closed_schedule_stays_closed",
        '("run", {"key": "k"}, "is closed")',
    ),
    ("CSV with a header", BAD_FILES, "test_text_of_another_kind_is_refused", "(ImportSchedules(), HEADER"),
    ("CSV without one", BAD_FILES, "test_text_of_another_kind_is_refused", "(ImportSchedules(), BARE"),
    ("ragged CSV", BAD_FILES, "test_text_of_another_kind_is_refused", "(ImportSchedules(), RAGGED"),
    ("a file with a mark", BAD_FILES, "test_a_good_file_is_taken", r'b"\xef\xbb\xbf"], ids='),
    ("a UTF-16 file", BAD_FILES, "test_what_is_no_text_is_refused", 'UTF16, id="UTF-16"'),
    ("a file of 1 GB", BAD_FILES, "test_what_is_no_text_is_refused", 'id="1 GB"'),
    ("LDAP filter", SEARCHES, "test_a_text_is_in_nothing_that_does_not_contain_it", '"*)(uid=*"'),
    ("stale version", API, "test_a_change_says_which_version", "('\"x\"', 412)"),
    ("edit while it runs", BAD_INPUT, "test_what_runs_goes_on_when_its_schedule_is_changed_or_closed", ""),
    ("reversed backfill", BACKFILL, "test_a_wrong_range_is_refused_by_field", "The range ends before it"),
    ("future backfill", BACKFILL, "test_a_wrong_range_is_refused_by_field", "The range ends in the future"),
    ("too long a backfill", BACKFILL, "test_too_many_times_are_refused_with_their_number", "8,641,000"),
    ("backfill of what ran", BACKFILL, "test_which_times", '("missing", {"none", "skipped"}'),
    ("page -1", BAD_LISTS, "test_the_api_names_the_parameter", '("page -1"'),
    ("page size 1e9", BAD_LISTS, "test_the_api_names_the_parameter", '("limit 1e9"'),
    ("unknown filter", BAD_LISTS, "test_the_api_names_the_parameter", '("unknown filter"'),
    ("unknown order", BAD_LISTS, "test_the_api_names_the_parameter", '("unknown order"'),
    ("unknown id", BAD_LISTS, "test_an_unknown_id_is_not_found", '"999999"'),
    ("somebody else's", BAD_LISTS, "test_what_nobody_may_see_is_answered_as_what_is_not_there", ""),
    ("unknown flag", BAD_INPUT, "test_a_bad_command", '("unknown flag", ["runworker"'),
    ("no workers", BAD_INPUT, "test_a_bad_command", '("no processes"'),
    ("workers in words", BAD_INPUT, "test_a_bad_command", '("processes in words"'),
    ("missing database", BAD_INPUT, "test_a_bad_command", '"no database"'),
    ("unmigrated database", BAD_INPUT, "test_a_bad_command", '("unmigrated", ["runscheduler"]'),
    ("unwritable folder", BAD_INPUT, "test_a_bad_command", '"unwritable folder"'),
    ("second scheduler", "tests/races/test_two_schedulers.py", "test_two_schedulers_and_an_office", ""),
    (
        "SIGINT",
        "tests/jimsite/test_supervisor.py",
        "test_a_stop_signal_stops_stage_by_stage",
        "[signal.SIGINT, ",
    ),
    ("truncated import", AS_CODE, "test_what_is_wrong_is_told_with_its_line", '("truncated"'),
    ("newer import", AS_CODE, "test_what_is_wrong_is_told_with_its_line", '("a newer version"'),
    ("dangling reference", AS_CODE, "test_what_is_wrong_is_told_with_its_line", '"dangling calendar"'),
    ("billion laughs", YAML, "test_a_billion_laughs_are_not_laughed", ""),
    ("the same import again", AS_CODE, "test_again_it_changes_nothing_however_it_is_written", ""),
    (
        "event without an id",
        EVENTS,
        "test_bad_input_is_told_by_field_and_nothing_of_it_is_published",
        '("no id"',
    ),
    ("oversized event", EVENTS, "test_an_oversized_payload_says_what_to_do", ""),
    ("unknown topic", EVENTS, "test_an_unknown_topic_is_not_found", ""),
    ("invalid wake time", WAKING, "test_what_is_granted", ""),
]


@pytest.mark.parametrize(
    ("file", "test", "row"), [row[1:] for row in ELSEWHERE], ids=[r[0] for r in ELSEWHERE]
)
def test_what_is_told_elsewhere_is_told_there(file: str, test: str, row: str) -> None:
    text = (settings.BASE_DIR / file).read_text(encoding="utf-8")
    names = {each.name for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)}
    assert test in names
    assert row in text
