"""Steps that are alike refer to one template; editing it edits them all, and nothing that has started."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from activities.models import Activity
from execution.loops.manual_runs import trigger
from execution.models import Execution, WorkerTask
from schedules.models import Conflict, Refused, Schedule, Secret, Step, TaskTemplate
from schedules.permissions import NotYours
from tests import base
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    everything,
    fresh,
    make_schedule,
    run_until_idle,
    seconds,
    start,
    step,
)

pytestmark = pytest.mark.django_db

EXPORT: dict[str, Any] = {
    "config": {"function": "tests.work.result", "kwargs": {"value": 1}, "isolation": "thread"},
    "max_retries": 7,
    "retry_factor": 3,
    "timeout_seconds": 60,
    "pool": "export",
    "priority": 5,
    "resources": ["directory"],
}


def make_template(name: str = "Export", **fields: Any) -> TaskTemplate:
    return base.make_template(name, **EXPORT | fields)


def edit(template: TaskTemplate, **changes: Any) -> None:
    current = fresh(template)
    current.edit(token=current.token, changes=changes, initiator=SOMEBODY, now=NOW + seconds(60))


def use(name: str = "work", index: int = 0, /, **fields: Any) -> dict[str, Any]:
    return {"name": name, "index": index, "template": "Export"} | fields


def only(schedule: Schedule) -> Any:
    return schedule.steps.get()


def recorded(operation: str, target_type: str = "schedule") -> Any:
    return Activity.objects.get(operation=operation, target_type=target_type).details


class TestAStepThatRefersToOne:
    def test_is_what_the_template_says_but_for_what_it_says_itself(self) -> None:
        template = make_template(continue_on_failure=True)
        made = only(make_schedule(use(config={"kwargs": {"value": 2}}, max_retries=0, run_if="always")))
        assert made.template == template
        assert made.config == EXPORT["config"] | {"args": [], "kwargs": {"value": 2}}
        assert (made.max_retries, made.retry_factor, made.run_if) == (0, 3.0, "always")
        assert (made.timeout_seconds, made.pool, made.priority) == (60, "export", 5)
        assert (made.continue_on_failure, made.resources) == (True, ["directory"])
        # It can take back what the template says.
        made = only(make_schedule(use(timeout_seconds=None, continue_on_failure=False, resources=[])))
        assert (made.timeout_seconds, made.continue_on_failure, made.resources) == (None, False, [])
        assert only(make_schedule(use(config={"kwargs": None}))).config["kwargs"] == {}
        assert only(make_schedule(step(template=None))).template is None

    def test_is_shown_as_it_was_written(self) -> None:
        make_template()
        written = use(config={"kwargs": {"value": 2}}, max_retries=7)
        schedule = make_schedule(written, step("after", 1))
        assert schedule.definition()["steps"][0] == written
        assert schedule.definition()["steps"][1]["step_type"] == "python"
        assert recorded("create")["steps"][0] == written

    def test_runs_and_costs_no_statement_more_when_it_starts(self) -> None:
        make_template()
        plain = make_schedule(step("a"), step("b", 1))
        templated = make_schedule(use("a"), use("b", 1, config={"kwargs": {"value": 8}}))
        counts = []
        for schedule in (make_schedule(), plain, templated):
            with CaptureQueriesContext(connection) as queries:
                trigger(schedule, initiator=SOMEBODY, now=NOW)
            counts.append(len(queries))
        assert counts[1] == counts[2]
        tasks = WorkerTask.objects.filter(execution__schedule=templated)
        assert set(tasks.values_list("pool", "priority")) == {("export", 5)}
        run_until_idle()
        execution = Execution.objects.get(schedule=templated)
        assert (execution.status, [each.result for each in attempts(execution, "b")]) == ("completed", [8])


# (the fields of the step, how the complaint goes on)
BAD_STEPS: list[tuple[dict[str, Any], str]] = [
    ({"template": "Exprot"}, "template: unknown template “Exprot”; did you mean Export?"),
    ({"template": "export"}, "template: unknown template “export”; did you mean"),
    ({"template": 7}, "template: enter the name of a template, not 7"),
    ({"template": "Old"}, "template: “Old” is archived: restore it first, or choose another"),
    ({"step_type": "http"}, "step_type: This field comes from the template “Export”: leave it out."),
    ({"config": "{}"}, "config: must be an object of settings, not '{}'"),
    ({"config": None}, "config: must be an object of settings, not null"),
    ({"config": {"kwargs": [1]}}, "config.kwargs: must be an object"),
    ({"max_retries": "3"}, "max_retries: expected a whole number, found '3'"),
    ({"run_if": "failure"}, "run_if: no step runs before this one"),
]


def test_a_bad_reference_is_told_by_step_and_field() -> None:
    make_template()
    make_template("Old").archive(initiator=SOMEBODY, now=NOW)
    schedule = make_schedule()
    before, wrong = everything(), []
    for fields, words in BAD_STEPS:
        steps = [use("bad") | fields]
        for tell in (
            lambda steps=steps: make_schedule(*steps),
            lambda steps=steps: schedule.edit(token=1, initiator=SOMEBODY, now=NOW, changes={}, steps=steps),
        ):
            with pytest.raises(ValidationError) as refused:
                tell()
            path, [text, *_] = next(iter(refused.value.message_dict.items()))
            if not f"{path}: {text}".startswith(f"steps.0.{words}"):
                wrong.append((fields, refused.value.message_dict))
    assert wrong == []
    assert everything() == before


class TestResolve:
    def test_gives_complete_step_data_with_what_is_written(self) -> None:
        template = make_template()
        data = template.resolve({})
        assert data.keys() == set(Step.FIELDS)
        assert (data["index"], data["name"], data["step_type"]) == (0, "Export", "python")
        assert (data["config"], data["max_retries"], data["retry_factor"]) == (template.config, 7, 3.0)
        given = {"template": "Export", "name": "mine", "config": {"kwargs": {}}, "pool": "other"}
        data = template.resolve(given)
        assert data.keys() == set(Step.FIELDS)
        assert (data["name"], data["config"]["kwargs"], data["pool"]) == ("mine", {}, "other")
        # Nothing of the template changes with it.
        template.resolve({"config": {"kwargs": {"value": 9}}})["config"]["args"] = [1]
        assert template.config == fresh(template).config

    def test_needs_an_active_one(self) -> None:
        make_template("Old").archive(initiator=SOMEBODY, now=NOW)
        with pytest.raises(Refused, match="“Old” is archived: restore it first, or choose another template"):
            TaskTemplate.objects.get().resolve({})

    def test_knows_no_other_fields(self) -> None:
        template = make_template()
        for field in ("timeout", "schedule", "status", "token", "description"):
            with pytest.raises(ValidationError) as refused:
                template.resolve({field: 1})
            assert refused.value.message_dict == {field: ["Steps do not have this field: leave it out."]}


class TestEdit:
    def test_changes_the_steps_that_use_it_and_no_others(self) -> None:
        template, other = make_template(), make_template("Other")
        mine = make_schedule(use("a"), use("b", 1, max_retries=0), step("c", 2), name="Mine")
        theirs = make_schedule(use(template="Other"))
        edit(template, max_retries=2, config=EXPORT["config"] | {"kwargs": {"value": 5}})
        assert [each.max_retries for each in mine.steps.all()] == [2, 0, 0]
        assert [each.config["kwargs"] for each in mine.steps.all()] == [{"value": 5}, {"value": 5}, {}]
        assert (only(theirs).max_retries, fresh(theirs).token, fresh(other).token) == (7, 1, 1)
        assert (fresh(mine).token, fresh(template).token) == (2, 2)

    def test_is_a_revision_of_each_schedule_that_it_changes(self) -> None:
        """Not of one that pins what is edited."""
        template = make_template()
        mine, pinned = make_schedule(use()), make_schedule(use(max_retries=7))
        edit(template, max_retries=2)
        latest, first = mine.revisions()
        assert (latest.number, latest.message) == (2, "The template “Export” was edited.")
        assert [str(change) for change in latest.changes] == ["templates.Export.max_retries: 7 → 2"]
        assert first.definition["steps"] == latest.definition["steps"] == [use()]
        assert (fresh(pinned).token, only(pinned).max_retries) == (1, 7)
        assert recorded("edit", "tasktemplate")["after"]["max_retries"] == 2
        # Nor is it one to describe the template anew.
        edit(template, description="Writes\r\nto the directory.")
        assert (fresh(mine).token, fresh(template).description) == (2, "Writes\nto the directory.")

    def test_true_is_not_one(self) -> None:
        template = make_template(config=EXPORT["config"] | {"kwargs": {"value": 1}})
        schedule = make_schedule(use())
        edit(template, config=EXPORT["config"] | {"kwargs": {"value": True}})
        assert only(schedule).config["kwargs"]["value"] is True

    def test_never_touches_what_has_started(self) -> None:
        template = make_template()
        execution = start(use("a"), use("b", 1))
        before = everything()
        edit(template, max_retries=1, config=EXPORT["config"] | {"kwargs": {"value": 2}})
        assert (everything()["WorkerTask"], fresh(execution).plan) == (before["WorkerTask"], execution.plan)
        run_until_idle()
        results = Activity.objects.filter(parent=execution.activity_id).values_list("result", flat=True)
        assert list(results) == [1, 1]

    def test_is_refused_if_a_step_could_not_live_with_it(self) -> None:
        template = make_template()
        make_schedule(step("a"), use("b", 1, config={"kwargs": {"value": 2}}), name="Mine")
        make_schedule(use("c"), name="Yours")
        before = everything()
        with pytest.raises(Refused, match="“Mine”, step “b”: config: kwargs: is not a setting of http steps"):
            edit(template, step_type="http", config={"url": "https://shop.example/"})
        lost = {"value": "{{ steps.before.result }}"}
        with pytest.raises(Refused, match=r"“Yours”, step “c”: config: kwargs: .* unknown step “before”"):
            edit(template, config=EXPORT["config"] | {"kwargs": lost})
        assert everything() == before

    def test_leaves_closed_schedules_and_what_was_broken_before_alone(self) -> None:
        template = make_template()
        schedule, closed = make_schedule(use("a"), step("b", 1)), make_schedule(use())
        schedule.steps.filter(name="b").update(step_type="cobol")
        closed.close(initiator=SOMEBODY, now=NOW)
        edit(template, max_retries=1)
        assert schedule.steps.get(name="a").max_retries == 1
        assert only(closed).max_retries == 7

    def test_needs_the_newest_token(self) -> None:
        template = make_template()
        edit(template, max_retries=1)
        before = everything()
        with pytest.raises(Conflict, match="This template was changed in the meantime"):
            template.edit(token=1, changes={"max_retries": 2}, initiator=SOMEBODY, now=NOW)
        assert everything() == before

    def test_of_many_users_takes_as_many_statements_as_of_one(self) -> None:
        template = make_template()
        counts = []
        for number in (1, 6):
            for _ in range(number):
                make_schedule(use("a"), step("b", 1))
            with CaptureQueriesContext(connection) as queries:
                edit(template, max_retries=number)
            counts.append(len(queries))
        assert counts[0] == counts[1] <= 16


class TestArchive:
    def test_existing_references_go_on(self) -> None:
        template = make_template()
        schedule = make_schedule(use(max_retries=1), name="Mine")
        template.archive(initiator=SOMEBODY, now=NOW)
        assert trigger(schedule, initiator=SOMEBODY, now=NOW).status == "started"
        schedule.edit(token=1, initiator=SOMEBODY, now=NOW, changes={"description": "new"})
        assert only(schedule).template == template
        assert recorded("edit")["after"]["steps"] == [use(max_retries=1)]
        steps = [use("renamed", max_retries=2), use("more", 1)]
        schedule.edit(token=2, initiator=SOMEBODY, now=NOW, changes={}, steps=steps)
        assert [each.max_retries for each in schedule.steps.all()] == [2, 7]

    def test_nobody_else_can_refer_to_it_or_edit_it_until_it_is_restored(self) -> None:
        template = make_template()
        template.archive(initiator=SOMEBODY, now=NOW)
        with pytest.raises(ValidationError, match="is archived"):
            make_schedule(use())
        with pytest.raises(Refused, match="“Export” is archived: restore it first"):
            edit(template, max_retries=1)
        fresh(template).restore(initiator=SOMEBODY, now=NOW)
        make_schedule(use())
        told = Activity.objects.filter(target_type="tasktemplate").values_list("operation", flat=True)
        assert list(told) == ["create", "archive", "restore"]

    def test_it_is_refused_twice_and_with_a_stale_token(self) -> None:
        template = make_template()
        with pytest.raises(Refused, match="is not archived"):
            template.restore(initiator=SOMEBODY, now=NOW)
        with pytest.raises(Conflict):
            template.archive(initiator=SOMEBODY, now=NOW, token=2)
        template.archive(initiator=SOMEBODY, now=NOW, token=1)
        with pytest.raises(Refused, match="is already archived"):
            template.archive(initiator=SOMEBODY, now=NOW)
        with pytest.raises(Conflict):
            template.restore(initiator=SOMEBODY, now=NOW, token=1)

    def test_its_name_is_free_unless_a_schedule_still_uses_it(self) -> None:
        template = make_template()
        schedule = make_schedule(use(), name="Mine")
        template.archive(initiator=SOMEBODY, now=NOW)
        with pytest.raises(
            ValidationError, match="The archived template “Export” is still used by “Mine”: restore it"
        ):
            make_template("EXPORT")
        schedule.close(initiator=SOMEBODY, now=NOW)
        make_template("EXPORT")
        with pytest.raises(
            Refused, match="Another template that is active or still in use is now named “Export”"
        ):
            fresh(template).restore(initiator=SOMEBODY, now=NOW)


# (the fields, the field that complains, what it says)
BAD_TEMPLATES: list[tuple[dict[str, Any], str, str]] = [
    ({"name": " "}, "name", "This must not be blank"),
    ({"name": 7}, "name", "expected text in quotes, found 7"),
    ({"name": " TAKEN "}, "name", "A template with this name already exists"),
    ({"name": "Cafe\u0301"}, "name", "A template with this name already exists"),
    ({"description": "x" * 1001}, "description", "at most 1000 characters"),
    ({"step_type": "cobol"}, "step_type", "Unknown step type “cobol”"),
    ({"config": {}}, "config.function", "is required"),
    ({"max_retries": True}, "max_retries", "expected a whole number, found true"),
    ({"resources": "db"}, "resources", "Enter a list of strings"),
    ({"config": {"function": "a.b", "args": ["{{ secrets.a }}"]}}, "config.args", "unknown secret “a”"),
]


def test_a_bad_template_is_told_by_field() -> None:
    make_template("Taken")
    make_template("Caf\u00e9")
    before, wrong = everything(), []
    for fields, field, words in BAD_TEMPLATES:
        with pytest.raises(ValidationError) as refused:
            make_template(**fields)
        errors = refused.value.message_dict
        if words not in " ".join(errors.get(field, errors.get("__all__", []))):
            wrong.append((fields, errors))
    assert wrong == []
    assert everything() == before


def test_what_is_no_part_of_its_definition_is_not_edited() -> None:
    template = make_template()
    for field in ("name", "status", "token", "steps", "index"):
        with pytest.raises(ValidationError) as refused:
            edit(template, **{field: "x"})
        assert refused.value.message_dict == {field: ["This field cannot be edited."]}


class TestWhoMayNotDefineCode:
    """The models are told; pages and imports know who asks."""

    PING: dict[str, Any] = {"step_type": "http", "config": {"url": "https://shop.example/"}}

    def edit(self, template: TaskTemplate, **changes: Any) -> None:
        template.edit(token=1, changes=changes, initiator=SOMEBODY, now=NOW, may=lambda _: False)

    def test_defines_none_turns_nothing_into_code_and_describes_what_is(self) -> None:
        template = make_template(**self.PING, may=lambda _: False)
        with pytest.raises(
            ValidationError, match=r"You may not create or change steps that run code .* “Other”"
        ):
            make_template("Other", may=lambda _: False)
        with pytest.raises(ValidationError, match="You may not create or change steps that run code"):
            self.edit(template, step_type="python", config=EXPORT["config"])
        code = make_template("Code")
        self.edit(code, description="d")
        assert fresh(code).description == "d"

    def test_is_not_told_of_secrets(self) -> None:
        template = make_template(**self.PING)
        guess = {"url": "https://shop.example/{{ secrets.a }}"}
        with pytest.raises(NotYours):
            make_template("Guess", **self.PING | {"config": guess}, may=lambda _: False)
        with pytest.raises(NotYours):
            self.edit(template, config=guess)

    def test_sends_no_secret_of_a_step_elsewhere(self) -> None:
        Secret.objects.put("token", "s3cret-value", initiator=SOMEBODY, now=NOW)
        template = make_template(**self.PING)
        credential = {"authentication": "bearer", "credential": "{{ secrets.token }}"}
        make_schedule(use("call", config=credential), name="Mine")
        before = everything()
        with pytest.raises(ValidationError, match="“Mine: call”"):
            self.edit(template, config={"url": "https://thief.example/"})
        assert everything() == before


def test_a_secret_that_one_refers_to_is_not_removed() -> None:
    secret = Secret.objects.put("token", "s3cret-value", initiator=SOMEBODY, now=NOW)
    kwargs = {"kwargs": {"value": "{{ secrets.token }}"}}
    template = make_template(config=EXPORT["config"] | kwargs)
    with pytest.raises(Refused, match="“token” is used by “Export”"):
        secret.remove(initiator=SOMEBODY, now=NOW)
    template.archive(initiator=SOMEBODY, now=NOW)
    secret.remove(initiator=SOMEBODY, now=NOW)
    fresh(template).restore(initiator=SOMEBODY, now=NOW)
    with pytest.raises(ValidationError, match="unknown secret “token”"):
        make_schedule(use())


def test_who_uses_it_is_known_by_name() -> None:
    template = make_template()
    for name in ("b", "A", "c"):
        make_schedule(use("1"), use("2"), name=name)
    Schedule.objects.get(name="c").close(initiator=SOMEBODY, now=NOW)
    assert [schedule.name for schedule in template.used_by()] == ["A", "b"]
