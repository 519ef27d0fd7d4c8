"""The step type `publish`."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from execution.loops import recovery
from execution.models import Worker
from execution.steps.performing import perform
from execution.steps.step_type import get
from schedules.models import Secret
from schedules.registry import ConfigError
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    claim,
    enqueue,
    fresh,
    make_schedule,
    make_template,
    make_worker,
    nursery,
    run_until_idle,
    seconds,
    start,
    step,
)
from tests.steps.stage import Recorder
from tests.workflows.base import events, make_topics
from workflows.models import Event, Topic

pytestmark = pytest.mark.django_db


def publishing(name: str = "publish", index: int = 0, /, **config: Any) -> dict[str, Any]:
    frame = {"name": name, "index": index, "step_type": "publish", "max_retries": 0}
    return frame | {"config": {"topic": "orders"} | config}


@pytest.fixture(autouse=True)
def orders() -> None:
    make_topics("orders")


def test_an_event_is_published_with_what_earlier_steps_found() -> None:
    fetch = step("fetch", 0, "result", kwargs={"value": {"id": 17, "lines": [1, 2]}})
    filled = {
        "message_id": "order-{{ steps.fetch.result.id }}",
        "payload": {"lines": "{{ steps.fetch.result.lines }}", "of": "{{ schedule }}"},
        "title": "Order {{ steps.fetch.result.id }}",
    }
    execution = start(fetch, publishing("publish", 1, **filled), name="Shop")
    run_until_idle()
    event = Event.objects.get()
    assert (event.message_id, event.title, event.created_at) == ("order-17", "Order 17", NOW)
    assert event.payload == {"lines": [1, 2], "of": "Shop"}
    [done] = attempts(execution, "publish")
    assert (done.status, done.result) == (
        "complete",
        {"topic": "orders", "message_id": "order-17", "new": 1, "updated": 0, "unchanged": 0},
    )
    assert [line.text for line in done.output.all()] == ["orders: order-17 (1 new)"]


def test_a_retry_publishes_once() -> None:
    execution, worker, later = start(publishing()), make_worker(), NOW + seconds(120)
    [task] = claim(worker)
    with nursery() as children:
        outcome = perform(task.work, Recorder(), nursery=children, clock=lambda: NOW)
    assert (outcome.status, outcome.result["new"]) == ("complete", 1)  # type: ignore[index]
    # Its worker dies before it can say so.
    Worker.objects.filter(pk=worker.pk).bury(now=later)
    recovery.recover(later)
    run_until_idle(now=later)
    first, second = attempts(execution, "publish")
    assert (first.error, second.status) == ("worker lost", "complete")
    assert (second.result or {}).items() >= {"new": 0, "updated": 1}.items()
    assert events("orders") == {task.work.key: "pending"}


def test_what_fills_a_placeholder_may_not_fit() -> None:
    long = step("fetch", 0, "result", kwargs={"value": "x" * 201})
    execution = start(long, publishing("publish", 1, message_id="{{ steps.fetch.result }}"))
    run_until_idle()
    [failed] = attempts(execution, "publish")
    assert failed.status == "failed_with_error"
    assert "message_id: Must be a string with 1 to 200 characters" in failed.error
    assert not Event.objects.exists()


def test_a_topic_that_is_gone_is_told_with_what_there_is_instead() -> None:
    execution = start(publishing())
    Topic.objects.update(slug="order")
    run_until_idle()
    [failed] = attempts(execution, "publish")
    assert (failed.status, fresh(execution).status) == ("failed_with_error", "failed")
    assert "topic: topic “orders” does not exist; did you mean order?" in failed.error


# (what, the config, the field that complains, what it says)
BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("no topic", {"topic": ""}, "topic", "is required: slug of the topic"),
    ("unknown topic", {"topic": "order"}, "topic", "topic “order” does not exist; did you mean orders?"),
    ("a placeholder as topic", {"topic": "{{ schedule }}"}, "topic", "cannot contain placeholders"),
    ("long message id", {"message_id": "x" * 201}, "message_id", "Must be a string with 1 to 200 characters"),
    ("payload as text", {"payload": "17"}, "payload", "must be an object of names and values"),
    ("NUL", {"payload": {"a": "\0"}}, "payload", "contains NUL"),
    ("long title", {"title": "x" * 201}, "title", "Must be a string with at most 200 characters"),
    ("another setting", {"key": "k"}, "key", "known settings: topic, message_id, payload, title"),
    ("no value", {"title": "{{ weather }}"}, "title", "unknown value “weather”"),
    ("a secret as id", {"message_id": "x-{{ secrets.key }}"}, "message_id", "cannot contain a secret"),
    ("a secret as title", {"title": "{{ secrets.key }}"}, "title", "cannot contain a secret"),
    (
        "a secret inside",
        {"payload": {"a": [{"b": "is {{secrets.key}}"}]}},
        "payload",
        "every viewer can read the event",
    ),
]


def test_bad_config() -> None:
    for name, config, field, words in BAD:
        with pytest.raises(ConfigError) as refused:
            get("publish").clean({"topic": "orders"} | config)
        assert list(refused.value.errors) == [field], name
        assert words in refused.value.errors[field], name


def test_a_plan_that_was_frozen_with_a_secret_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Secret.objects.define("key", "s3cret-value", initiator=SOMEBODY, now=NOW)
    with monkeypatch.context() as before:
        before.setattr("execution.steps.fields.Field.refuse_secrets", lambda self, value: None)
        execution = start(publishing(payload={"a": "{{ secrets.key }}"}))
    run_until_idle()
    [failed] = attempts(execution, "publish")
    assert (failed.status, Event.objects.exists()) == ("failed_with_error", False)
    assert "payload: cannot contain a secret" in failed.error


def test_single_jobs_and_templates_publish_too() -> None:
    [job] = enqueue({"name": "tell", "step_type": "publish", "config": {"topic": "orders"}})
    run_until_idle()
    assert list(events("orders")) == [str(job.key)]
    template = make_template("Tell", step_type="publish", config={"topic": "orders"})
    make_schedule({"name": "a", "index": 0, "template": "Tell"})
    with pytest.raises(ValidationError, match="topic “mail” does not exist"):
        template.edit(token=1, changes={"config": {"topic": "mail"}}, initiator=SOMEBODY, now=NOW)
