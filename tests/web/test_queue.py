from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from database import clock
from database.batched import together
from execution.models import Execution, WorkerTask
from execution.operations import CancelTask
from execution.queue.turns import depths
from operations.operation import Declined
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, claim, enqueue, fresh, make_worker, run_until_idle, seconds, start, step
from tests.web.pages import ask, markup, poll, text_of, toasts, version_of
from text.words import badge

pytestmark = pytest.mark.django_db


def shown(answer: Any) -> list[str]:
    return re.findall(r'id="task-\d+" data-row-link>([^<]+)', markup(answer))


def fill() -> None:
    """One of each: running, ready in two pools, put off, and waiting for a step before it."""
    now = clock.now()
    start(step("running"), step("waiting", 1), name="Nightly", now=now)
    claim(make_worker(now), now=now)
    enqueue(step("flaky", 0, "fail", max_retries=3), now=now)
    run_until_idle(now=now)
    enqueue(step("ready"), step("urgent", priority=5), step("elsewhere", pool="slow"), now=now)


def test_states_and_pools_are_filters_of_what_is_in_the_order_of_the_queue(client: Client) -> None:
    fill()
    wanted = {
        "": ["running", "urgent", "ready", "elsewhere", "flaky", "waiting"],
        "state=processing": ["running"],
        "state=queued": ["urgent", "ready", "elsewhere"],
        "state=delayed": ["flaky"],
        "state=waiting": ["waiting"],
        "pool=slow": ["elsewhere"],
        "pool=default&state=queued": ["urgent", "ready"],
    }
    answers = {query: client.get(f"/queue?{query}") for query in wanted}
    assert {query: shown(answer) for query, answer in answers.items()} == wanted
    text = text_of(answers[""])
    assert "All Processing 1 Queued 3 Delayed 1 Waiting 1" in text
    for words in (
        "Running on ",
        "seat: this task is next",
        "Retry in ",
        "Group 1 of 2 is running: “running”",
    ):
        assert words in text
    assert together(depths()) == [[[1, 3, 1, 1]]]
    # Each is shown in the state that its tab counts.
    assert badge("delayed") in answers["state=delayed"].text
    assert badge("delayed") not in answers["state=queued"].text


def test_a_long_queue_is_shown_in_parts_and_costs_no_more(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    enqueue(*(step(f"job {number}") for number in range(60)))
    first = client.get("/queue")
    last = [f"job {number}" for number in range(50, 60)]
    assert (len(shown(first)), shown(client.get("/queue?skip=50"))) == (50, last)
    assert "skip=50" in first.text
    fill()
    start(*(step(f"step {number}", number) for number in range(20)))
    with django_assert_max_num_queries(14):
        client.get("/queue")


def test_the_queue_is_sent_again_only_if_it_changed(
    client: Client, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    fill()
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now)
    version = version_of(client.get("/queue?state=queued"))
    with django_assert_max_num_queries(4):
        answer = poll(client, "/queue?state=queued", "rows", version=version)
    assert answer.status_code == 204
    claim(make_worker(now), now=now)
    answer = poll(client, "/queue?state=queued", "rows", version=version)
    assert (answer.status_code, shown(answer)) == (200, [])
    monkeypatch.setattr(clock, "now", lambda: now + seconds(60))
    assert poll(client, "/queue?state=queued", "rows", version=version_of(answer)).status_code == 200


class TestVerbs:
    def test_several_are_moved_and_prioritised_at_once(self, client: Client) -> None:
        tasks = enqueue(step("one"), step("two"), step("three"))
        ids = [task.pk for task in tasks]
        assert len(toasts(client, client.post(f"{ask('workertask', 'front', ids[2])}&next=/queue"))) == 1
        assert shown(client.get("/queue")) == ["three", "one", "two"]
        client.post(f"{ask('workertask', 'prioritise', *ids[:2])}&next=/queue", {"priority": "7"})
        assert shown(client.get("/queue")) == ["one", "two", "three"]
        client.post(f"{ask('workertask', 'back', ids[0])}&next=/queue")
        assert shown(client.get("/queue")) == ["two", "one", "three"]
        # Those who may not run only look.
        viewer = sign_in("viewer")
        assert 'type="checkbox"' not in viewer.get("/queue").text

    def test_all_tasks_of_one_execution_are_cancelled_together(self, client: Client) -> None:
        execution = start(step("a"), step("b"), step("c", 1), name="Nightly")
        ids = WorkerTask.objects.order_by("pk").values_list("pk", flat=True)
        url = f"{ask('workertask', 'cancel', *ids)}&next=/queue"
        assert f"the whole execution {execution.pk}: 3 tasks will not start" in text_of(client.get(url))
        assert toasts(client, client.post(url)) == [
            f"“Nightly #{execution.pk}” is being cancelled.",
            f"“b” is being cancelled together with “Nightly #{execution.pk}”.",
            f"“c” is being cancelled together with “Nightly #{execution.pk}”.",
        ]
        assert fresh(execution).status == Execution.Status.CANCELLED

    def test_one_that_has_ended_meanwhile_is_said_so(self) -> None:
        execution = start(step("a"), now=clock.now())
        [task] = WorkerTask.objects.all()
        run_until_idle(now=clock.now())
        with pytest.raises(Declined, match="has already ended"):
            CancelTask().perform(task, answers={}, initiator=SOMEBODY, now=NOW)
        assert fresh(execution).status == Execution.Status.COMPLETED
