from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import strip_tags

from activities.models import Activity
from database import clock
from execution.admin import ExecutionAdmin
from execution.loops.manual_runs import trigger
from execution.models import Execution, Worker, WorkerTask
from tests.admin_pages import member, operation, page, sign_in, told
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    enqueue,
    everything,
    fresh,
    make_template,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)

pytestmark = pytest.mark.django_db
LIST = "execution_execution_changelist"


@pytest.fixture
def client() -> Client:
    return sign_in()


def text_of(client: Client, name: str, pk: object) -> str:
    return str(client.get(page(f"execution_{name}_change", pk)).content.decode())


def test_the_list_says_how_far_each_execution_is(client: Client) -> None:
    now = clock.now()
    done = start(step("a"), step("b", 10), step("c", 20), name="Done")
    run_until_idle()
    halfway = start(step("a"), step("b", 10), step("c", 20), step("d", 30), name="Halfway")
    worker = make_worker()
    end(worker, *claim(worker))
    claim(worker)
    broken = start(step("a"), step("b", 1, "fail"), name="Broken")
    run_until_idle()
    stopping = start(step("slow"), name="Stopping")
    claim(make_worker())
    client.post(operation("execution_execution", "cancel", stopping.pk), {"reason": "enough"})
    limits = {"deadline_seconds": 1, "timeout_seconds": 3600}
    late = start(name="Late", now=now - seconds(60), **limits)
    rows = shown_rows(client)
    said = {pk: (row["state_badge"], row["group"]) for pk, row in rows.items()}
    assert said == {
        done.pk: ("✓ completed", "3 of 3"),
        halfway.pk: ("▶ in progress", "2 of 4"),
        broken.pk: ("✕ failed ! partial", "2 of 2"),
        stopping.pk: ("◔ cancelling", "1 of 1"),
        late.pk: ("▶ in progress ◔ late", "1 of 1"),
    }
    assert ("it broke" in rows[broken.pk]["words"], rows[stopping.pk]["who"]) == (True, "ada")
    found = {"cancelling": [stopping.pk], "late": [late.pk], "partial": [broken.pk], "cancelled": []}
    assert {state: list(shown_rows(client, f"?state={state}")) for state in found} == found
    assert "Nothing here." in client.get(page(LIST) + "?source__exact=auto").content.decode()
    text = text_of(client, "execution", late.pk)
    assert ("late since" in text, "times out" in text) == (True, True)
    assert page("schedules_occurrence_change", late.occurrence_id) in text


def test_the_page_shows_steps_by_group_with_every_attempt_and_output_to_those_who_may(client: Client) -> None:
    flaky = step("flaky", 1, "fail", max_retries=1)
    execution = start(step("first", 0, "talk"), flaky, step("beside", 1, "result"), step("never", 2))
    run_until_idle()
    assert 'http-equiv="refresh"' in text_of(client, "execution", execution.pk)
    run_until_idle(now=NOW + seconds(10))
    text = text_of(client, "execution", execution.pk)
    assert ('http-equiv="refresh"' in text, text.count("RuntimeError: it broke") >= 2) == (False, True)
    for words in ("Group 2: 2 steps side by side", "Not run: an earlier step failed."):
        assert words in text
    for activity in Activity.objects.filter(parent=execution.activity_id):
        assert page("activities_activity_change", activity.pk) in text
    for reader, is_shown in ((sign_in("viewer"), True), (member("view_execution"), False)):
        text = text_of(reader, "execution", execution.pk)
        assert ("first" in text, "line 2" in text) == (True, is_shown)
        assert page("execution_execution_do", "retry") not in text


def test_cancel_and_terminate_ask_first_and_leave_alone_what_has_ended(client: Client) -> None:
    execution = start(step("slow"), step("after", 1))
    claim(make_worker())
    cancel, terminate = (
        operation("execution_execution", name, execution.pk) for name in ("cancel", "terminate")
    )
    assert "asked to stop" in client.get(cancel).content.decode()
    assert fresh(execution).cancel_requested_at is None
    assert "is being cancelled" in told(client, client.post(cancel, {"reason": "too slow"}))
    assert fresh(execution).state == "cancelling"
    assert "was terminated" in told(client, client.post(terminate, {"reason": "now"}))
    execution = fresh(execution)
    assert (execution.status, execution.error) == ("cancelled", "now")
    recorded = Activity.objects.filter(target_type="execution").order_by("pk")
    assert [each.operation for each in recorded] == ["cancel", "terminate"]
    assert {each.initiator_name for each in recorded} == {"superuser"}
    before = everything()
    for url in (cancel, terminate):
        assert "has already ended" in told(client, client.post(url, {"reason": ""}))
    assert everything() == before


class TestTheQueue:
    def test_it_says_why_each_task_waits(self, client: Client) -> None:
        """tests/execution/test_waits.py has all reasons."""
        start(step("running"), step("later", 7))
        worker = make_worker(clock.now())
        claim(worker)
        start(step("lonely", pool="ldap"), now=clock.now())
        Worker.objects.update(pools=["default"], stale_refused=3, clock_skew_seconds=90)
        rows = client.get(page("execution_workertask_changelist")).context["cl"].result_list
        whys = {row.name: row.why for row in rows}
        assert whys["running"].startswith(f"running on {worker} for ")
        assert whys["later"] == "group 1 of 2 is running: “running”"
        text = text_of(client, "workertask", WorkerTask.objects.get(name="later").pk)
        assert re.search(r'field-group.*?class="readonly">2</div>', text, re.DOTALL)
        text = text_of(client, "workertask", WorkerTask.objects.get(name="lonely").pk)
        assert ("no running worker" in text, "tests.work.noop" in text) == (True, True)
        (row,) = client.get(page("execution_worker_changelist")).context["cl"].result_list
        assert (row.busy, row.seats, row.stale_refused) == (1, 100, 3)
        text = text_of(client, "worker", worker.pk)
        assert ("alive" in text, str(worker.pk) in text, "1 min 30 s ahead" in text) == (True, True, True)

    def test_it_cancels_jobs_and_executions_alike(self, client: Client) -> None:
        execution = start(step("a"), step("b", 1))
        (job,) = enqueue(step("alone"))
        for task in WorkerTask.objects.filter(name__in=["b", "alone"]):
            url = operation("execution_workertask", "cancel", task.pk)
            assert client.get(url).status_code == 200
            assert "is being cancelled" in told(client, client.post(url))
        assert fresh(execution).status == "cancelled"
        assert Activity.objects.get(task_key=job.key).status == "cancelled"
        assert not WorkerTask.objects.exists()

    def test_it_changes_the_order_of_what_waits_and_of_nothing_else(self, client: Client) -> None:
        a, b, c = enqueue(step("a", max_retries=1), step("b"), step("c"))
        client.post(operation("execution_workertask", "front", b.pk))
        prioritise = operation("execution_workertask", "prioritise", c.pk)
        response = client.post(prioritise, {"priority": "9999"})
        assert "less than or equal to 1000" in response.content.decode()
        client.post(prioritise, {"priority": "5"})
        worker = make_worker(clock.now())
        order = [claim(worker, limit=1, now=clock.now())[0] for _ in range(3)]
        assert [each.name for each in order] == ["c", "b", "a"]
        response = client.post(operation("execution_workertask", "front", a.pk))
        assert "started in the meantime" in told(client, response)
        break_down(worker, order[2], now=clock.now())
        assert fresh(a).is_delayed is True
        client.post(operation("execution_workertask", "hasten", a.pk))
        assert fresh(a).is_delayed is False

    def test_a_template_is_run_as_a_single_job_until_it_is_archived(self, client: Client) -> None:
        template = make_template("Report")
        url = operation("schedules_tasktemplate", "run", template.pk)
        assert sign_in("author").post(url).status_code == 403
        for _ in range(2):  # a page that is sent twice
            assert "Queued a job from the template “Report”." in told(
                client, client.post(url, {"key": "once"})
            )
        assert run_until_idle(now=clock.now()) == ["Report"]
        template.archive(initiator=SOMEBODY, now=NOW)
        assert "is archived" in told(client, client.post(url, {"key": "other"}))
        assert not WorkerTask.objects.exists()


class TestRetry:
    def test_of_executions_keeps_what_succeeded(self, client: Client) -> None:
        execution = start(step("a"), step("b", 1, "fail"), name="Nightly", overlap="allow_all")
        assert execution.schedule is not None
        trigger(execution.schedule, initiator=SOMEBODY, now=NOW)
        run_until_idle()
        assert "Retry failed steps" in text_of(client, "execution", execution.pk)
        url = operation("execution_execution", "retry", execution.pk)
        for _ in range(2):
            response = client.post(url, {"key": "once"})
            again = Execution.objects.get(retry_of=execution)
            assert response["Location"] == again.get_absolute_url()
        assert run_until_idle(now=clock.now()) == ["b"]
        assert f"execution {execution.pk}" in text_of(client, "execution", again.pk)
        both = Execution.objects.filter(retry_of=None).values_list("pk", flat=True)
        client.post(operation("execution_execution", "retry", *both), {"key": "twice"})
        assert Execution.objects.exclude(retry_of=None).count() == 3

    def test_of_one_that_runs_or_succeeded_is_declined_and_running_it_again_is_not(
        self, client: Client
    ) -> None:
        execution = start(step("a"))
        again = operation("execution_execution", "again", execution.pk)
        assert "still running" in told(client, client.post(again, {"key": "k"}))
        run_until_idle()
        response = client.post(operation("execution_execution", "retry", execution.pk), {"key": "k"})
        assert "run the whole execution again" in told(client, response)
        client.post(again, {"key": "k2"})
        assert run_until_idle(now=clock.now()) == ["a"]

    def test_of_a_single_job(self, client: Client) -> None:
        (task,) = enqueue(step("job", 0, "fail"))
        run_until_idle()
        failed = Activity.objects.get(task_key=task.key)
        url = operation("activities_activity", "retry", failed.pk)
        assert url in client.get(page("activities_activity_change", failed.pk)).content.decode()
        response = client.post(url)
        assert response["Location"] == Activity.objects.get(retry_of=failed).get_absolute_url()
        assert "queued again" in told(client, response)
        assert "has not ended" in told(client, client.post(url))


def test_the_page_of_an_execution_needs_a_bounded_number_of_queries(client: Client) -> None:
    counts = []
    for size in (12, 12, 16):  # the first one to let Django remember the types of content
        execution = start(*(step(f"s{n}", n, "talk") for n in range(size)))
        run_until_idle()
        with CaptureQueriesContext(connection) as captured:
            text_of(client, "execution", execution.pk)
        counts.append(len(captured))
    assert counts[1] == counts[2] <= 20


def test_pages_by_key(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [start().pk for _ in range(3)][::-1]
    monkeypatch.setattr(ExecutionAdmin, "list_per_page", 2)
    first = client.get(page(LIST) + "?state=in+progress")
    assert [row.pk for row in first.context["cl"].result_list] == ids[:2]
    second = client.get(page(LIST) + first.context["cl"].older)
    assert [row.pk for row in second.context["cl"].result_list] == ids[2:]
    assert second.context["cl"].older is None
    assert "First page" in second.content.decode()


def shown_rows(client: Client, query: str = "") -> dict[int, dict[str, str]]:
    """The list as text, by execution and column."""
    changelist = client.get(page(LIST) + query).context["cl"]
    admin: Any = changelist.model_admin
    columns = [name for name in admin.list_display if hasattr(admin, name) and name != "__str__"]
    return {
        row.pk: {name: strip_tags(str(getattr(admin, name)(row))) for name in columns}
        for row in changelist.result_list
    }
