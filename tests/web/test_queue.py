from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from activities import clock
from activities.together import together
from activities.words import badge
from execution.models import Execution, WorkerTask
from execution.turns import depths
from tests.admin_pages import sign_in
from tests.base import break_down, claim, enqueue, fresh, make_worker, seconds, start, step
from tests.web.pages import ask, poll, text_of, toasts, version_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    return sign_in()


def shown(answer: Any) -> list[str]:
    return re.findall(r'id="task-\d+" data-row-link>([^<]+)', answer.text)


def fill() -> None:
    """One of each: running, ready in two pools, put off, and waiting for a step before it."""
    now = clock.now()
    worker = make_worker(now)
    start(step("running"), step("waiting", 1), name="Nightly", now=now)
    claim(worker, now=now)
    enqueue(step("flaky", max_retries=3), now=now)
    break_down(worker, *claim(worker, now=now), now=now)
    enqueue(step("ready"), step("urgent", priority=5), step("elsewhere", pool="slow"), now=now)


def test_an_empty_queue_says_what_will_be_there(client: Client) -> None:
    assert "Nothing runs and nothing waits." in text_of(client.get("/queue"))


def test_what_runs_comes_first_then_what_is_ready_in_its_order(client: Client) -> None:
    fill()
    assert shown(client.get("/queue")) == ["running", "urgent", "ready", "elsewhere", "flaky", "waiting"]


def test_each_says_why_it_waits(client: Client) -> None:
    fill()
    text = text_of(client.get("/queue"))
    for words in (
        "Runs on ",
        "Waits for a free seat: it is the next",
        "Waits for a free seat: 1 task goes before it",
        "Retry in ",
        "Group 1 of 2 is running: “running”",
    ):
        assert words in text


def test_states_pools_and_names_are_filters(client: Client) -> None:
    fill()
    wanted = {
        "state=processing": ["running"],
        "state=queued": ["urgent", "ready", "elsewhere"],
        "state=delayed": ["flaky"],
        "state=waiting": ["waiting"],
        "pool=slow": ["elsewhere"],
        "pool=default&state=queued": ["urgent", "ready"],
        "pool=nowhere": [],
        "state=odd": ["running", "urgent", "ready", "elsewhere", "flaky", "waiting"],
    }
    assert {query: shown(client.get(f"/queue?{query}")) for query in wanted} == wanted
    text = text_of(client.get("/queue"))
    assert "All Processing 1 Queued 3 Delayed 1 Waiting 1" in text
    assert together(depths()) == [[[1, 3, 1, 1]]]


def test_each_is_shown_in_the_state_that_its_tab_counts(client: Client) -> None:
    fill()
    assert badge("delayed") in client.get("/queue?state=delayed").text
    assert badge("delayed") not in client.get("/queue?state=queued").text


def test_a_long_queue_is_shown_in_parts(client: Client) -> None:
    enqueue(*(step(f"job {number}") for number in range(60)))
    first = client.get("/queue")
    assert (len(shown(first)), shown(client.get("/queue?skip=50"))) == (
        50,
        [f"job {number}" for number in range(50, 60)],
    )
    assert "skip=50" in first.text
    assert client.get("/queue?skip=99999999999999").status_code == 200


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


def test_its_cost_does_not_depend_on_its_length(client: Client, django_assert_max_num_queries: Any) -> None:
    fill()
    enqueue(*(step(f"job {number}") for number in range(60)))
    start(*(step(f"step {number}", number) for number in range(20)))
    with django_assert_max_num_queries(14):
        client.get("/queue")


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

    def test_a_retry_need_not_wait(self, client: Client) -> None:
        fill()
        flaky = WorkerTask.objects.get(name="flaky")
        client.post(f"{ask('workertask', 'hasten', flaky.pk)}&next=/queue")
        assert fresh(flaky).is_delayed is False

    def test_all_tasks_of_one_execution_are_cancelled_together(self, client: Client) -> None:
        execution = start(step("a"), step("b"), step("c", 1), name="Nightly")
        ids = WorkerTask.objects.order_by("pk").values_list("pk", flat=True)
        url = f"{ask('workertask', 'cancel', *ids)}&next=/queue"
        assert f"all of execution {execution.pk}: 3 tasks will not start" in text_of(client.get(url))
        assert toasts(client, client.post(url)) == [
            f"“Nightly #{execution.pk}” is being cancelled.",
            f"“b” is cancelled with “Nightly #{execution.pk}”.",
            f"“c” is cancelled with “Nightly #{execution.pk}”.",
        ]
        assert fresh(execution).status == Execution.Status.CANCELLED

    def test_one_that_has_ended_meanwhile_is_said_so(self, client: Client) -> None:
        execution = start(step("a"), now=clock.now())
        [task] = WorkerTask.objects.all()
        from activities.operations import Declined
        from execution.operations import CancelTask
        from tests.base import NOW, SOMEBODY, run_until_idle

        run_until_idle(now=clock.now())
        with pytest.raises(Declined, match="has ended already"):
            CancelTask().perform(task, answers={}, initiator=SOMEBODY, now=NOW)
        assert fresh(execution).status == Execution.Status.COMPLETED

    def test_those_who_may_not_run_only_look(self) -> None:
        (task,) = enqueue(step("one"))
        viewer = sign_in("viewer")
        assert 'type="checkbox"' not in viewer.get("/queue").text
        assert viewer.post(ask("workertask", "cancel", task.pk)).status_code == 403
        assert sign_in("nobody").get("/queue").status_code == 403
