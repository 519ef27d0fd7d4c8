"""What programs get wrong in steps and operations: told by step and field, and nothing of it is saved."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from schedules.models import Schedule
from tests.admin_pages import PYTHON, save, sign_in, typed
from tests.base import NOW, SOMEBODY, everything, make_schedule, run_until_idle, start, step

pytestmark = pytest.mark.django_db

# (what, the fields of the second step, the field that complains, what it says)
FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("large index", {"index": 1001}, "index", "less than or equal to 1000"),
    ("no index", {"index": None}, "index", "cannot be null"),
    ("half an index", {"index": 0.5}, "index", "expected a whole number, found 0.5"),
    ("a bool as index", {"index": True}, "index", "expected a whole number, found true"),
    ("unknown type", {"step_type": "cobol"}, "step_type", "Unknown step type “cobol”: choose one of "),
    ("a number as type", {"step_type": 7}, "step_type", "expected text in quotes, found 7"),
    ("config as text", {"config": "{}"}, "config", "must be an object of settings"),
    ("timeout 0", {"timeout_seconds": 0}, "timeout_seconds", "greater than or equal to 1"),
    ("2^63 as timeout", {"timeout_seconds": 2**63}, "timeout_seconds", "less than or equal to 604800"),
    ("negative retries", {"max_retries": -1}, "max_retries", "greater than or equal to 0"),
    ("101 retries", {"max_retries": 101}, "max_retries", "less than or equal to 100"),
    ("factor 0.5", {"retry_factor": 0.5}, "retry_factor", "greater than or equal to 1"),
    ("factor 11", {"retry_factor": 11}, "retry_factor", "less than or equal to 10"),
    ("long delay", {"retry_seconds": 86_401}, "retry_seconds", "less than or equal to 86400"),
    ("NaN as factor", {"retry_factor": float("nan")}, "retry_factor", "expected a number, found NaN"),
    ("1e400 as factor", {"retry_factor": 1e400}, "retry_factor", "expected a number, found Infinity"),
    ("10^400 as factor", {"retry_factor": 10**400}, "retry_factor", "a number with more than 18 digits"),
    ("long cap", {"retry_cap_seconds": 604_801}, "retry_cap_seconds", "less than or equal to 604800"),
    ("negative cap", {"retry_cap_seconds": -1}, "retry_cap_seconds", "greater than or equal to 0"),
    ("jitter of 101 %", {"retry_jitter": 101}, "retry_jitter", "less than or equal to 100"),
    ("101 % of items", {"max_failed_percent": 101}, "max_failed_percent", "less than or equal to 100"),
    ("nothing to retry on", {"retry_on": [""]}, "retry_on", "must not be blank"),
    ("NUL to retry on", {"retry_on": ["a\0"]}, "retry_on", "U+0000 is not allowed"),
    ("11 texts to retry on", {"retry_on": ["a"] * 11}, "retry_on", "11 entries are too many: at most 10"),
    ("a long text to retry on", {"retry_on": ["x" * 81]}, "retry_on", "use at most 80 characters"),
    ("unknown condition", {"run_if": "maybe"}, "run_if", "is not a valid choice"),
    ("unknown crash policy", {"on_crash": "shrug"}, "on_crash", "is not a valid choice"),
    ("priority 1001", {"priority": 1001}, "priority", "less than or equal to 1000"),
    ("priority -1001", {"priority": -1001}, "priority", "greater than or equal to -1000"),
    ("no pool", {"pool": ""}, "pool", "cannot be blank"),
    ("a hard space in the pool", {"pool": "a\u00a0b"}, "pool", "U+00A0 is not allowed"),
    ("resources as object", {"resources": {"db": 1}}, "resources", "Enter a list of strings"),
    ("space round a pool", {"pool": "dmz "}, "pool", "begins or ends with a space"),
    ("space round a resource", {"resources": [" db"]}, "resources", "must not begin or end with a space"),
    (
        "long resources",
        {"resources": ["x" * 80] * 4},
        "resources",
        "All entries together have 320 characters",
    ),
    ("continue as number", {"continue_on_failure": 1}, "continue_on_failure", "expected true or false"),
]


@pytest.mark.parametrize("is_new", [True, False], ids=["define", "edit"])
def test_a_bad_step_is_told_by_its_place_and_field(is_new: bool) -> None:
    schedule = make_schedule()
    by: dict[str, Any] = {"initiator": SOMEBODY, "now": NOW}
    define = partial(Schedule.objects.define, name="Bad", spec={}, **by)
    call = define if is_new else partial(schedule.edit, token=1, changes={}, **by)
    before, wrong = everything(), []
    for what, fields, field, words in FIELDS:
        with pytest.raises(ValidationError) as refused:
            call(steps=[step("fine"), step("bad") | fields])
        [(path, [text])] = refused.value.message_dict.items()
        if path != f"steps.1.{field}" or words not in text:
            wrong.append(f"{what}: {path}: {text}")
    assert wrong == []
    assert everything() == before


TOO_EARLY = (
    "no step runs before this one: move it to a later group (a higher index), or run it on success or always."
)
# (what, the steps, where it is said, and what)
TOGETHER: list[tuple[str, Any, str, str]] = [
    ("none", [], "steps", "A schedule needs at least one step."),
    ("nothing", None, "steps", "Expected a list of steps, found null."),
    ("an object", {"name": "a"}, "steps", "Expected a list of steps, found an object."),
    ("a step of text", ["a"], "steps.0", "expected fields and values, found 'a'."),
    (
        "501 of them",
        [step(f"s{n}") for n in range(501)],
        "steps",
        "501 steps are too many: at most 500 are allowed.",
    ),
    ("an unknown field", [step(timeout=5)], "steps.0", "unknown field timeout."),
    ("no name", [step(""), step()], "steps.0.name", "This field cannot be blank."),
    ("a number as name", [step() | {"name": 7}], "steps.0.name", "expected text in quotes, found 7"),
    ("a name twice", [step("a"), step("A")], "steps.1.name", "another step already has this name."),
    (
        "only after a failure, beside the first",
        [step("work"), step("tell", run_if="failure"), step("later", 4)],
        "steps.1.run_if",
        TOO_EARLY,
    ),
]


def test_steps_that_are_wrong_together() -> None:
    before = everything()
    for _, steps, path, words in TOGETHER:
        with pytest.raises(ValidationError) as refused:
            Schedule.objects.define(name="Bad", spec={}, steps=steps, initiator=SOMEBODY, now=NOW)
        assert refused.value.message_dict == {path: [words]}
    assert everything() == before


def test_every_step_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ValidationError) as refused:
        make_schedule(step("a", max_retries=-1, run_if="maybe"), step("b", priority=None))
    paths = ["steps.0.max_retries", "steps.0.run_if", "steps.1.priority"]
    assert sorted(refused.value.message_dict) == paths


def test_the_edges_are_allowed() -> None:
    widest = {"timeout_seconds": 604_800, "max_retries": 100, "retry_seconds": 86_400, "retry_factor": 10}
    widest |= {"retry_cap_seconds": 604_800, "retry_jitter": 100, "max_failed_percent": 0, "priority": -1000}
    texts = {"retry_on": ["x" * 80] * 10, "resources": ["r" * 30] * 10, "pool": "p" * 40}
    start(step("last", 1000, **widest, **texts), step("first", 7), step("tell", 900, run_if="always"))
    # Gaps between indexes are gaps in nothing else.
    assert run_until_idle() == ["first", "tell", "last"]


# (what, the schedule's fields, the field that complains, what it says)
POLICIES: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown", {"on_failure": "shrug"}, "on_failure", "choose one of stop, continue, skip."),
    ("none", {"on_failure": ""}, "on_failure", "cannot be blank"),
    ("a bool", {"on_failure": True}, "on_failure", "expected text in quotes, found true"),
    ("1e400 as window", {"catch_up_seconds": 1e400}, "catch_up_seconds", "found Infinity"),
    ("NaN as runs left", {"remaining": float("nan")}, "remaining", "found NaN"),
    ("1 for yes", {"pause_on_failure": 1}, "pause_on_failure", "expected true or false, found 1"),
    ("no name", {"name": None}, "name", "cannot be null"),
    ("a list as description", {"description": ["a"]}, "description", "found a list"),
    ("text as failures", {"failures_to_pause": "1"}, "failures_to_pause", "expected a whole number"),
]


def test_a_bad_policy() -> None:
    before = everything()
    for _, fields, field, words in POLICIES:
        with pytest.raises(ValidationError) as refused:
            make_schedule(**fields)
        assert words in refused.value.message_dict[field][0]
    assert everything() == before


def test_all_there_is_to_a_step_can_be_typed() -> None:
    fields = {"run_if": "always", "retry_factor": "1.5", "retry_cap_seconds": "60", "retry_jitter": "25"}
    fields |= {
        "max_failed_percent": "5",
        "retry_on": " ConnectionError\r\n\r\n503 \r\n",
        "priority": "-5",
        "resources": "a:7\r\nb",
    }
    client = sign_in()
    assert save(client, typed(steps=[PYTHON | fields])).status_code == 302
    schedule = Schedule.objects.get()
    saved: dict[str, Any] = {
        "run_if": "always",
        "retry_factor": 1.5,
        "retry_cap_seconds": 60,
        "retry_jitter": 25,
    }
    saved |= {
        "max_failed_percent": 5,
        "retry_on": ["ConnectionError", "503"],
        "priority": -5,
        "resources": ["a:7", "b"],
    }
    assert {name: getattr(schedule.steps.get(), name) for name in fields} == saved
    before = everything()
    assert save(client, typed(schedule, steps=[PYTHON | fields]), schedule).status_code == 302
    assert everything() == before
