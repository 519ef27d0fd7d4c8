"""Commands with verbs: they ask the models what pages and admin ask them, and say what becomes of it."""

from __future__ import annotations

import getpass
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from activities.models import Activity
from api.models import ApiToken
from database import clock
from execution.models import Execution, Job, Limit, Reservation, WorkerTask
from execution.models.adhoc import job_line
from jimsite.completion import own_commands, parser_of, verbs_of
from operations.initiator import Initiator
from operations.operation import offered_for
from schedules.models import Backfill, Schedule, Secret, SharedCalendar
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    enqueue,
    fresh,
    make_schedule,
    make_template,
    make_worker,
    seconds,
    step,
)
from tests.commands import refusal, said, told
from tests.webhooks.base import SECRET, make_endpoint
from webhooks.models import Delivery, Endpoint

pytestmark = pytest.mark.django_db

CANARY = "canary-51d07aa4"
NOOP = json.dumps(step()["config"])


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> None:
    """In time, without a terminal, and with keys of its own."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
    settings.JIM_DATA_DIR, settings.JIM_SECRETS_KEYS = tmp_path / "data", []
    typed(monkeypatch, "")


def typed(monkeypatch: pytest.MonkeyPatch, text: str, *, is_terminal: bool = False) -> None:
    """What standard input says."""
    given = SimpleNamespace(
        buffer=io.BytesIO(text.encode()),
        readline=io.StringIO(text).readline,
        isatty=lambda: is_terminal,
    )
    monkeypatch.setattr(sys, "stdin", given)


def written(tmp_path: Path, data: Any) -> str:
    path = tmp_path / "given.yaml"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def in_turn() -> list[str]:
    return [row["name"] for row in told("queue")["tasks"]]


def last_record() -> Activity:
    return Activity.objects.latest("pk")


def test_every_verb_explains_itself_and_takes_what_all_commands_take() -> None:
    found = {
        (name, verb): parser
        for name, app in own_commands().items()
        for verb, parser in verbs_of(parser_of(app, name)).items()
    }
    assert len(found) > 20
    for (name, verb), parser in found.items():
        options = parser._option_string_actions
        assert {"--json", "--no-color", "--settings", "--traceback"} <= options.keys(), (name, verb)
        help_text = parser.format_help()
        assert "Exit codes: 0 success" in help_text, (name, verb)
        assert len((parser.description or "").split()) > 3, (name, verb)
        assert "--no-color" not in help_text, "those are told by the command itself"
        assert "None." not in help_text, (name, verb)


def test_what_operations_ask_names_no_class() -> None:
    for model in (Schedule, Secret, SharedCalendar, Limit, Endpoint):
        for operation in offered_for(model):
            words = f"{operation.label} {operation.question}"
            assert not any(each[1:] != each[1:].lower() for each in words.split()), words


# The command that has the verbs of a model, and the commands of their own that others have.
NOUNS = {
    "api.ApiToken": "token",
    "execution.Limit": "limit",
    "execution.Reservation": "reservation",
    "execution.WorkerTask": "task",
    "schedules.Secret": "secret",
    "schedules.SharedCalendar": "calendar",
    "schedules.TaskTemplate": "template",
    "webhooks.Delivery": "webhook",
    "webhooks.Endpoint": "webhook",
    "workflows.Event": "event",
    "workflows.Run": "workflow",
    "workflows.Workflow": "workflow",
}
COMMANDS = {
    "activities.Activity": {"retry": "retry"},
    "execution.Execution": {"retry": "retry", "again": "retry", "cancel": "cancel", "terminate": "cancel"},
    "execution.WorkerTask": {"cancel": "cancel"},
    "schedules.Backfill": {"cancel": "cancelbackfill"},
    "schedules.Schedule": {
        **{name: name for name in ("cancel", "backfill", "pause", "resume", "close")},
        "run": "runschedule",
        "skip": "skipnext",
        "unskip": "skipnext",
    },
    "schedules.TaskTemplate": {"run": "job"},
    "workflows.Topic": {"publish": "publish"},
}


def test_every_operation_can_be_asked_for_in_a_shell() -> None:
    known, missing = own_commands(), []
    for model in apps.get_models():
        label = model._meta.label
        for operation in offered_for(model):
            own, noun = COMMANDS.get(label, {}).get(operation.name), NOUNS.get(label)
            verbs = verbs_of(parser_of(known[noun], noun)) if noun in known and noun else {}
            if own not in known and operation.name not in verbs:
                missing.append((label, operation.name))
    assert missing == []


class TestClosing:
    def test_it_asks_first_and_says_what_it_would_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        schedule = make_schedule(name="Nightly")
        told("runschedule", "nightly")
        [line] = said("close", "nightly", "--dry-run")
        assert line == "Would close “Nightly”: 1 execution will continue."
        assert "--yes" in refusal("close", "nightly")
        typed(monkeypatch, "no\n", is_terminal=True)
        assert refusal("close", "nightly") == "Nothing was changed."
        assert fresh(schedule).status != "closed"
        typed(monkeypatch, "y\n", is_terminal=True)
        assert said("close", "nightly") == ["“Nightly” is closed."]
        assert last_record().initiator_name == Initiator.command("close").name
        assert "closed" in refusal("close", "nightly", "--yes")

    def test_several_are_closed_each_on_its_own(self) -> None:
        first, second = make_schedule(name="First"), make_schedule(name="Second")
        second.close(initiator=SOMEBODY, now=NOW)
        out = io.StringIO()
        with pytest.raises(CommandError) as error:
            call_command("close", "first", "first", "second", "--yes", "--json", stdout=out)
        facts = json.loads(out.getvalue())
        assert [(each["target"], each["message"]) for each in facts["done"]] == [
            ("first", "“First” is closed.")
        ]
        assert facts["declined"] == [{"target": "second", "message": str(error.value)}]
        assert (fresh(first).status, error.value.returncode) == ("closed", 2)
        assert refusal("close", "fist", "--yes").startswith("Unknown schedule “fist”")


class TestTasks:
    # What is asked of the third of three, and the order then.
    VERBS = [
        (["front"], ["c", "a", "b"]),
        (["back"], ["a", "b", "c"]),
        (["prioritise", "--priority", "5"], ["c", "a", "b"]),
        (["prioritise", "--priority", "-5"], ["a", "b", "c"]),
    ]

    @pytest.mark.parametrize(("asked", "order"), VERBS)
    def test_the_order_of_the_queue(self, asked: list[str], order: list[str]) -> None:
        *_, third = enqueue(step("a"), step("b"), step("c"))
        verb, *rest = asked
        [line] = said("task", verb, str(third.key), *rest)
        assert line.startswith("“c” ")
        assert in_turn() == order
        assert last_record().initiator_name == Initiator.command(f"task {verb}").name

    def test_several_are_put_in_order_and_named_by_what_the_queue_shows(self) -> None:
        enqueue(step("a"), step("b"), step("c"))
        numbers = {row["name"]: str(row["activity"]) for row in told("queue")["tasks"]}
        lines = said("queue")
        assert [each in line for each, line in zip(numbers.values(), lines[3:], strict=True)] == [True] * 3
        assert said("task", "reorder", numbers["c"], numbers["b"]) == [
            "Moved 2 tasks to the front, in the given order."
        ]
        assert in_turn() == ["c", "b", "a"]
        assert told("task", "reorder", numbers["a"]) == {"moved": 1}

    def test_what_waits_for_its_time_need_not(self) -> None:
        later, now = (WorkerTask.objects.get(activity__task_key=key) for key in _queued_later())
        assert "is no longer delayed" in said("task", "hasten", str(later.key))[0]
        assert fresh(later).available_at == NOW
        assert refusal("task", "hasten", str(now.key)) == ("“now” is not delayed: nothing was changed.")

    def test_what_runs_or_is_not_there_is_told(self) -> None:
        running, waiting = enqueue(step("running"), step("waiting"))
        claim(make_worker(), limit=1)
        wrong = [
            (["front", str(running.key)], "has started in the meantime: nothing was changed"),
            (["reorder", str(running.key)], "Nothing was changed"),
            (["front", "seven"], "Task “seven” was not found. Use “queue” to list tasks that have not ended"),
            (["front", str(last_record().pk + 7)], "was not found"),
            (["prioritise", str(waiting.key), "--priority", "many"], "--priority: Enter a whole number."),
            (["prioritise", str(waiting.key), "--priority", "99999999"], "--priority: Ensure this value"),
        ]
        found = [(words, refusal("task", *arguments)) for arguments, words in wrong]
        assert [(words, line) for words, line in found if words not in line] == []


def _queued_later() -> list[Any]:
    asked = [step("later") | {"available_at": NOW + seconds(3_600)}, step("now")]
    asked = [{name: each[name] for name in each if name != "index"} for each in asked]
    return WorkerTask.objects.enqueue(asked, initiator=SOMEBODY, now=NOW)


class TestJobs:
    def test_one_is_queued_by_its_type_or_as_a_template_says(self) -> None:
        make_template("Export")
        asked = ["--config", NOOP, "--priority", "5", "--pool", "reports", "--timeout", "1m"]
        facts = told("job", "run", "python", *asked, "--at", "2026-11-16T04:00", "--max-retries", "1")
        task = WorkerTask.objects.get(activity__task_key=facts["job"])
        assert (task.name, task.pool, task.priority, task.activity_id) == (
            *("python", "reports", 5),
            facts["activity"],
        )
        assert task.available_at == NOW + seconds(3_600)
        assert (task.step["timeout_seconds"], task.step["max_retries"]) == (60, 1)
        [line] = said("job", "run", "--template", "Export", "--name", "By hand")
        assert line.startswith("Queued “By hand”: job ")
        assert last_record().initiator_name == Initiator.command("job run").name

    def test_the_same_key_asks_for_the_same_job_and_twins_are_left_out(self) -> None:
        asked = ("job", "run", "python", "--config", NOOP)
        assert told(*asked, "--key", "monday") == told(*asked, "--key", "monday")
        told(*asked, "--dedup-key", "one")
        assert told(*asked, "--dedup-key", "one")["state"] == "skipped"
        assert "was not queued" in said(*asked, "--dedup-key", "one")[0]

    def test_several_at_once_or_none(self, tmp_path: Path) -> None:
        jobs = [{"step_type": "python", "config": step()["config"], "name": name} for name in "ab"]
        facts = told("job", "batch", written(tmp_path, jobs))
        assert [WorkerTask.objects.get(activity__task_key=key).name for key in facts["jobs"]] == ["a", "b"]
        jobs[1]["available_at"] = "2026-11-16T05:00:00Z"
        said("job", "batch", written(tmp_path, {"jobs": jobs}))
        assert WorkerTask.objects.latest("pk").available_at == NOW + seconds(7_200)
        before = WorkerTask.objects.count()
        jobs[1]["pol"] = "x"
        assert "job 2: pol: A job has no field with" in refusal("job", "batch", written(tmp_path, jobs))
        assert WorkerTask.objects.count() == before

    def test_a_group_runs_as_its_file_says(self, tmp_path: Path) -> None:
        group = {"name": "Move", "mode": "sequential", "steps": [_step("a"), _step("b")]}
        facts = told("job", "group", written(tmp_path, group))
        execution = Execution.objects.get(pk=facts["execution"])
        assert (str(execution), execution.tasks.count()) == (f"Move #{execution.pk}", 2)
        refused = refusal("job", "group", written(tmp_path, group), "--wait", "--timeout", "1s", code=3)
        assert refused.startswith("Timed out")

    WRONG: list[tuple[list[str], Any, str]] = [
        (["run", "pyton"], None, "step_type"),
        (["run", "python", "--config", "{"], None, "--config: not JSON"),
        (["run", "python", "--config", "[]"], None, "config"),
        (["run", "python", "--config", NOOP, "--priority", "99999999"], None, "--priority: "),
        (["run", "python", "--config", NOOP, "--at", "soon"], None, "--at: "),
        (["run", "--template", "Nothing"], None, "--template: "),
        (["batch", "FILE"], "jobs: [", "given.yaml: line 1"),
        (["batch", "FILE"], "just words", "given.yaml: expected a list of jobs"),
        (["batch", "FILE"], ["a"], "job 1: "),
        (["batch", "FILE"], [{"step_type": "python", "available_at": "soon"}], "job 1: available_at"),
        (["batch", "/nowhere.yaml"], None, "/nowhere.yaml cannot be read"),
        (["group", "FILE"], ["a"], "given.yaml: expected an object with the fields"),
        (["group", "FILE"], {"name": "x", "stpes": []}, "given.yaml: unknown field “stpes”"),
        (["group", "FILE"], {"name": "", "mode": "all", "steps": []}, "mode: “all”"),
    ]

    @pytest.mark.parametrize(("arguments", "data", "words"), WRONG)
    def test_what_is_wrong_is_one_line(
        self, tmp_path: Path, arguments: list[str], data: Any, words: str
    ) -> None:
        file = written(tmp_path, data) if data is not None else ""
        assert words in refusal("job", *(file if each == "FILE" else each for each in arguments))
        assert not WorkerTask.objects.exists()


def _step(name: str) -> dict[str, Any]:
    return {key: value for key, value in step(name).items() if key != "index"}


class TestLimits:
    def test_one_is_set_and_set_again_and_listed_and_deleted(self) -> None:
        assert said("limit", "list") == ["No limits yet: queued tasks start as soon as a worker is free."]
        assert said("limit", "set", "type:sql", "3", "--note", "The database is small") == [
            "“type:sql” is limited to 3 tasks at once."
        ]
        assert told("limit", "set", "type:sql", "0") == {
            "key": "type:sql",
            "size": 0,
            "note": "The database is small",
        }
        assert last_record().initiator_name == Initiator.command("limit set").name
        before = last_record()
        told("limit", "set", "type:sql", "0")
        assert last_record() == before, "a script that is repeated changes nothing"
        [facts] = told("limit", "list")["limits"]
        assert facts == {
            "key": "type:sql",
            "size": 0,
            "running": 0,
            "waiting": 0,
            "note": "The database is small",
        }
        assert said("limit", "list")[1].split()[:2] == ["type:sql", "0"]
        assert "--yes" in refusal("limit", "delete", "type:sql")
        assert said("limit", "delete", "type:sql", "--yes") == ["“type:sql” is deleted."]
        assert not Limit.objects.exists()

    WRONG = [
        (["set", "global", "many"], "size: "),
        (["set", "global", "-1"], "size: "),
        (["set", "x" * 101, "1"], "key: "),
        (["set", "global", "1", "--note", "x" * 201], "--note: "),
        (["delete", "globl", "--yes"], "Limit “globl” does not exist; did you mean global?"),
    ]

    @pytest.mark.parametrize(("arguments", "words"), WRONG)
    def test_what_is_wrong_is_one_line(self, arguments: list[str], words: str) -> None:
        Limit.objects.define("global", 5, initiator=SOMEBODY, now=NOW)
        assert words in refusal("limit", *arguments)
        assert Limit.objects.get().size == 5


class TestSecrets:
    def test_its_value_comes_from_a_pipe_or_is_typed_unseen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        typed(monkeypatch, f"{CANARY}\n")
        assert said("secret", "set", "token", "--description", "Of the bank") == ["“token” is set."]
        assert Secret.objects.reveal(["token"]) == {"token": CANARY}
        typed(monkeypatch, "", is_terminal=True)
        monkeypatch.setattr(getpass, "getpass", lambda prompt: f"{CANARY}-2")
        assert told("secret", "set", "token") == {"name": "token", "description": "Of the bank"}
        assert Secret.objects.reveal(["token"]) == {"token": f"{CANARY}-2"}
        assert last_record().initiator_name == Initiator.command("secret set").name
        key = "-----BEGIN KEY-----\nabc\n-----END KEY-----\n"
        typed(monkeypatch, key)
        said("secret", "set", "key")
        assert Secret.objects.reveal(["key"]) == {"key": key}, "what has several lines is kept as it is"

    def test_names_are_listed_and_deleted_and_no_value_is_shown(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "secret set" in said("secret", "list")[0]
        typed(monkeypatch, CANARY)
        said("secret", "set", "token")
        [facts] = told("secret", "list")["secrets"]
        assert (facts["name"], facts["changed_at"]) == ("token", "2026-11-16T03:00:00Z")
        assert CANARY not in "".join([*said("secret", "list"), json.dumps(facts)])
        make_schedule(step(kwargs={"value": "{{ secrets.token }}"}), name="Nightly")
        assert "is used by" in refusal("secret", "delete", "token", "--yes")
        Schedule.objects.get().close(initiator=SOMEBODY, now=NOW)
        assert said("secret", "delete", "token", "--yes") == ["“token” is deleted."]

    WRONG = [
        (["set", "token"], "x", "value: A value must have at least"),
        (["set", "token"], "", "value: A value must have at least"),
        (["set", "Not a name"], CANARY, "name: "),
        (["set", "token", "--description", "x" * 1_001], CANARY, "--description: "),
        (["delete", "token", "--yes"], "", "Secret “token” does not exist"),
    ]

    @pytest.mark.parametrize(("arguments", "given", "words"), WRONG)
    def test_what_is_wrong_is_one_line_without_the_value(
        self, monkeypatch: pytest.MonkeyPatch, arguments: list[str], given: str, words: str
    ) -> None:
        typed(monkeypatch, given)
        line = refusal("secret", *arguments)
        assert words in line
        assert CANARY not in line
        assert not Secret.objects.exists()

    def test_no_value_is_an_argument(self) -> None:
        with pytest.raises(CommandError, match="unrecognized arguments"):
            call_command("secret", "set", "token", CANARY)


class TestWebhooks:
    NEW = ("webhook", "add", "Chat", "https://chat.example/jim", "--event", "execution.failed")

    def test_one_is_added_and_only_its_secret_goes_to_standard_output(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_schedule(name="Nightly")
        out, err = io.StringIO(), io.StringIO()
        call_command(*self.NEW, "--schedule", "nightly", "--failures", "2", stdout=out, stderr=err)
        endpoint = Endpoint.objects.get()
        assert endpoint.signing(NOW) == [out.getvalue().removesuffix("\n")]
        assert "“Chat” was added" in err.getvalue()
        assert (endpoint.name, endpoint.kinds, endpoint.failures) == ("Chat", ["execution.failed"], 2)
        assert endpoint.schedules == [Schedule.objects.get().pk]
        typed(monkeypatch, f"{SECRET}\n")
        facts = told(
            "webhook", "add", "Own", "https://own.example", "--event", "execution.failed", "--secret"
        )
        assert (facts["name"], facts["secret"]) == ("Own", SECRET)

    def test_what_is_not_named_stays_as_it_is(self) -> None:
        endpoint = make_endpoint("execution.failed", name="Chat", failures=2, among=4)
        said("webhook", "edit", "chat", "--url", "https://new.example", "--event", "execution.started")
        edited = fresh(endpoint)
        assert (edited.url, edited.kinds) == ("https://new.example", ["execution.started"])
        assert (edited.name, edited.failures, edited.among) == ("Chat", 2, 4)
        assert edited.signing(NOW) == [SECRET]

    def test_it_is_tested_and_disabled_and_enabled_and_rotated_and_deleted(self) -> None:
        endpoint = make_endpoint("execution.failed", name="Chat")
        [row] = told("webhook", "list")["webhooks"]
        assert (row["name"], row["status"], row["events"]) == ("Chat", "enabled", ["execution.failed"])
        said("webhook", "test", "chat")
        assert Delivery.objects.get().kind == "endpoint.test"
        said("webhook", "disable", "chat", "--note", "moving")
        assert (fresh(endpoint).status, fresh(endpoint).status_note) == ("disabled", "moving")
        assert "disabled" in said("webhook", "list")[1]
        assert refusal("webhook", "test", "chat") == "The webhook “Chat” is disabled. Enable it first."
        said("webhook", "enable", str(endpoint.pk))
        fresh_secret = told("webhook", "rotate", "chat")["secret"]
        assert fresh(endpoint).signing(NOW) == [fresh_secret, SECRET]
        said("webhook", "delete", "chat", "--yes")
        assert not Endpoint.objects.present().exists()
        assert said("webhook", "list") == ["No webhooks yet: “webhook add” creates one."]

    def test_a_delivery_that_failed_is_sent_again(self) -> None:
        endpoint = make_endpoint("execution.failed", name="Chat")
        told("webhook", "test", "chat")
        endpoint.deliveries.give_up("The endpoint was disabled.", now=NOW)
        [row] = told("webhook", "deliveries", "chat", "--status", "failed")["deliveries"]
        assert (row["webhook"], row["event"], row["status"]) == ("Chat", "endpoint.test", "failed")
        assert len(said("webhook", "deliveries")) == 2
        said("webhook", "redeliver", str(row["id"]))
        assert Delivery.objects.get().status == "pending"
        assert refusal("webhook", "redeliver", "x") == (
            "Delivery “x” was not found. Use “webhook deliveries” to list deliveries and their numbers."
        )

    WRONG = [
        (
            ["add", "Chat", "https://other.example", "--event", "execution.failed"],
            "A webhook with this name",
        ),
        (["add", "New", "ftp://x", "--event", "execution.failed"], "url: The URL"),
        (["add", "New", "https://x.example"], "--event: Choose at least one event."),
        (
            ["add", "New", "https://x.example", "--event", "execution.failed", "--schedule", "nowhere"],
            "--schedule: Unknown schedule “nowhere”",
        ),
        (
            ["add", "New", "https://x.example", "--event", "execution.failed", "--failures", "x"],
            "--failures: Enter a whole number.",
        ),
        (["edit", "chat", "--among", "0"], "--among: "),
        (["test", "caht"], "Webhook “caht” does not exist; did you mean Chat?"),
    ]

    @pytest.mark.parametrize(("arguments", "words"), WRONG)
    def test_what_is_wrong_is_one_line(self, arguments: list[str], words: str) -> None:
        endpoint = make_endpoint("execution.failed", name="Chat")
        assert words in refusal("webhook", *arguments)
        assert list(Endpoint.objects.values_list("url")) == [(endpoint.url,)]

    def test_an_event_that_does_not_exist(self) -> None:
        with pytest.raises(CommandError, match="--event: invalid choice: 'nothing'"):
            call_command("webhook", "add", "New", "https://x.example", "--event", "nothing")


def test_a_seat_is_listed_and_released() -> None:
    assert said("reservation", "list") == ["No direct request holds or waits for a seat."]
    line = job_line(step("direct", pool="reports"), now=NOW)
    reservation = Reservation.objects.reserve(line, holder="here:1", now=NOW)
    assert reservation is not None
    [facts] = told("reservation", "list")["reservations"]
    assert (facts["pool"], facts["holder"], facts["state"]) == ("reports", "here:1", "waiting")
    assert said("reservation", "list")[1].split()[:3] == ["◔", "waiting", "reports"]
    assert "--yes" in refusal("reservation", "release", "reports")
    assert "was released" in said("reservation", "release", "reports", "--yes", "--reason", "stuck")[0]
    assert fresh(reservation).state == "released"
    assert refusal("reservation", "release", "reports", "--yes") == (
        "No direct request holds or waits for a seat of pool “reports”. Use “reservation list” to list the "
        "reservations."
    )


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["queue", "--pool", "\udcff"], "“\N{REPLACEMENT CHARACTER}” is not UTF-8 text."),
        (["job", "run", "--template", "\udcff"], "unknown template “\N{REPLACEMENT CHARACTER}”"),
        (["reservation", "release", "\udcff", "--yes"], "“\N{REPLACEMENT CHARACTER}” is not UTF-8 text."),
    ],
)
def test_what_is_no_text_is_told(arguments: list[str], wrong: str) -> None:
    assert wrong in refusal(*arguments)


class TestTokens:
    def test_they_are_listed_and_revoked_by_how_they_begin(self) -> None:
        assert said("token", "list") == ["No active tokens. Use “createtoken” to create one."]
        User.objects.create_user("ada")
        text = told("createtoken", "ada", "--name", "backup", "--scopes", "view,run")["token"]
        [facts] = told("token", "list")["tokens"]
        assert (facts["name"], facts["user"], facts["state"]) == ("backup", "ada", "active")
        assert text not in json.dumps(facts)
        assert "backup" in said("token", "list")[1]
        assert "--yes" in refusal("token", "revoke", facts["prefix"])
        assert "was revoked" in said("token", "revoke", facts["prefix"], "--yes")[0]
        assert ApiToken.objects.named_by(text, now=NOW) is None
        assert told("token", "list")["tokens"] == []
        assert [each["state"] for each in told("token", "list", "--all")["tokens"]] == ["revoked"]
        assert "was already revoked" in refusal("token", "revoke", text, "--yes"), "by the whole text as well"
        words = refusal("token", "revoke", f"{text[:-4]}nope-at-all", "--yes")
        assert text[:-4] not in words, "a token that was mistyped is still a secret"


def test_templates_are_archived_and_restored_and_calendars_deleted() -> None:
    template = make_template("Export")
    assert [each["name"] for each in told("template", "list")["templates"]] == ["Export"]
    said("template", "archive", "export")
    assert fresh(template).is_archived
    assert said("template", "list")[1].split()[:2] == ["⊘", "archived"]
    said("template", "restore", "export")
    assert not fresh(template).is_archived
    rules = [{"dates": "2026-12-25/2026-12-26"}]
    SharedCalendar.objects.define("UK holidays", rules, initiator=SOMEBODY, now=NOW)
    assert [each["name"] for each in told("calendar", "list")["calendars"]] == ["UK holidays"]
    assert said("calendar", "delete", "uk holidays", "--yes") == ["“UK holidays” is deleted."]
    assert "Calendar “uk holidays” does not exist" in refusal("calendar", "delete", "uk holidays", "--yes")


def test_a_backfill_is_cancelled() -> None:
    make_schedule(name="Nightly", spec={"cron": ["0 2 * * *"]})
    facts = told("backfill", "nightly", "--from", "2026-11-10", "--to", "2026-11-12")
    number = str(facts["backfill"])
    assert "--yes" in refusal("cancelbackfill", number)
    assert "is cancelled" in said("cancelbackfill", number, "--yes", "--reason", "wrong month")[0]
    assert Backfill.objects.get().status == "cancelled"
    assert "Backfill “x” was not found" in refusal("cancelbackfill", "x", "--yes")


def test_jobs_can_be_found_again() -> None:
    facts = told("job", "run", "python", "--config", NOOP)
    job = Job.find(facts["job"])
    assert job is not None
    assert told("cancel", facts["job"])["cancelled"][0]["is_cancelled"] is True
