from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import strip_tags

from activities import clock
from activities.models import Activity
from execution.admin import ExecutionAdmin
from execution.invoker import trigger
from execution.models import Execution, Worker, WorkerTask
from schedules.models import TaskTemplate
from tests.admin_pages import operation, page, sign_in, told
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    enqueue,
    everything,
    fresh,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    return sign_in()


def test_the_list_says_how_far_each_execution_is(client: Client) -> None:
    done = start(step("a"), step("b", 10), step("c", 20), name="Done")
    run_until_idle()
    halfway = start(step("a"), step("b", 10), step("c", 20), step("d", 30), name="Halfway")
    worker = make_worker()
    end(worker, *claim(worker))
    claim(worker)
    broken = start(step("a", 0, "fail"), step("b", 1), name="Broken")
    run_until_idle()
    stopping = start(step("slow"), name="Stopping")
    claim(make_worker())
    client.post(operation("execution_execution", "cancel", stopping.pk), {"reason": "enough"})
    rows = shown_rows(client.get(page("execution_execution_changelist")))
    assert rows[done.pk]["state_badge"] == "✓ completed"
    assert rows[done.pk]["group"] == "3 of 3"
    assert rows[halfway.pk]["state_badge"] == "▶ in progress"
    assert rows[halfway.pk]["group"] == "2 of 4"
    assert rows[broken.pk]["state_badge"] == "✕ failed"
    assert "it broke" in rows[broken.pk]["words"]
    assert rows[stopping.pk]["state_badge"] == "◔ cancelling"
    assert rows[stopping.pk]["who"] == "ada"
    cancelling = client.get(page("execution_execution_changelist") + "?state=cancelling")
    assert list(shown_rows(cancelling)) == [stopping.pk]


def test_the_page_shows_steps_by_group_with_every_attempt(client: Client) -> None:
    execution = start(
        step("first", 0, "talk"),
        step("flaky", 1, "fail", max_retries=1),
        step("beside", 1, "result"),
        step("never", 2),
    )
    run_until_idle()
    text = client.get(page("execution_execution_change", execution.pk)).content.decode()
    assert 'http-equiv="refresh"' in text
    run_until_idle(now=NOW + seconds(10))
    response = client.get(page("execution_execution_change", execution.pk))
    text = response.content.decode()
    assert 'http-equiv="refresh"' not in text
    assert "Group 2: 2 steps side by side" in text
    assert "line 2" in text
    assert text.count("RuntimeError: it broke") >= 2
    assert "Not run: an earlier step failed." in text
    for activity in Activity.objects.filter(parent=execution.activity_id):
        assert page("activities_activity_change", activity.pk) in text


def test_output_is_for_those_who_may_read_activities() -> None:
    execution = start(step("first", 0, "talk"))
    run_until_idle()
    url = page("execution_execution_change", execution.pk)
    assert "line 2" in sign_in("viewer").get(url).content.decode()
    client = sign_in("nobody")
    grant("nobody", "execution.view_execution")
    text = client.get(url).content.decode()
    assert "first" in text
    assert "line 2" not in text


def test_a_late_one_is_marked_with_its_limits_and_what_it_is_for(client: Client) -> None:
    now = clock.now()
    late = start(name="Late", deadline_seconds=1, timeout_seconds=3600, now=now - seconds(60))
    start(name="In time", deadline_seconds=3600, now=now)
    listed = client.get(page("execution_execution_changelist") + "?state=late")
    assert list(shown_rows(listed)) == [late.pk]
    assert shown_rows(listed)[late.pk]["state_badge"] == "▶ in progress ◔ late"
    text = client.get(page("execution_execution_change", late.pk)).content.decode()
    assert "late since" in text
    assert "times out" in text
    assert page("schedules_occurrence_change", late.occurrence_id) in text
    text = client.get(page("execution_execution_changelist") + "?source__exact=auto").content.decode()
    assert "Nothing here." in text


def test_cancel_and_terminate_ask_first_and_leave_alone_what_has_ended(client: Client) -> None:
    execution = start(step("slow"), step("after", 1))
    claim(make_worker())
    url = operation("execution_execution", "cancel", execution.pk)
    assert "asked to stop" in client.get(url).content.decode()
    assert fresh(execution).cancel_requested_at is None
    assert "is being cancelled" in told(client, client.post(url, {"reason": "too slow"}))
    assert fresh(execution).state == "cancelling"
    url = operation("execution_execution", "terminate", execution.pk)
    assert "is terminated" in told(client, client.post(url, {"reason": "now"}))
    execution = fresh(execution)
    assert (execution.status, execution.error) == ("cancelled", "now")
    recorded = Activity.objects.filter(target_type="execution").order_by("pk")
    assert [(a.operation, a.initiator_name) for a in recorded] == [
        ("cancel", "superuser"),
        ("terminate", "superuser"),
    ]
    before = everything()
    for name in ("cancel", "terminate"):
        response = client.post(operation("execution_execution", name, execution.pk), {"reason": ""})
        assert "has ended already" in told(client, response)
    assert everything() == before


def test_the_queue_says_why_each_task_waits(client: Client) -> None:
    """tests/execution/test_waits.py has all reasons."""
    start(step("running"), step("later", 1))
    worker = make_worker(clock.now())
    claim(worker)
    start(step("lonely", pool="ldap"), now=clock.now())
    Worker.objects.update(pools=["default"])
    changelist = client.get(page("execution_workertask_changelist")).context["cl"]
    whys = {row.name: changelist.model_admin.why(row) for row in changelist.result_list}
    assert whys["running"].startswith(f"runs on {worker} for ")
    assert whys["later"] == "group 1 of 2 is running: “running”"
    assert whys["lonely"] == "no worker is alive that serves pool ldap"
    task = WorkerTask.objects.get(name="lonely")
    text = client.get(page("execution_workertask_change", task.pk)).content.decode()
    assert "no worker is alive" in text
    assert "tests.work.noop" in text


class TestTheQueue:
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
        a, b, c = enqueue(step("a"), step("b"), step("c"))
        client.post(operation("execution_workertask", "front", b.pk))
        prioritise = operation("execution_workertask", "prioritise", c.pk)
        response = client.post(prioritise, {"priority": "9999"})
        assert "less than or equal to 1000" in response.content.decode()
        client.post(prioritise, {"priority": "5"})
        assert [claim(make_worker(), limit=1)[0].name for _ in range(3)] == ["c", "b", "a"]
        response = client.post(operation("execution_workertask", "front", a.pk))
        assert "started meanwhile" in told(client, response)

    def test_a_retry_need_not_wait(self, client: Client) -> None:
        (task,) = enqueue(step("a", max_retries=1), now=clock.now())
        worker = make_worker(clock.now())
        break_down(worker, *claim(worker, now=clock.now()), now=clock.now())
        client.post(operation("execution_workertask", "hasten", task.pk))
        assert fresh(task).is_delayed is False

    def test_nobody_changes_it_without_the_permission_to_run(self) -> None:
        (task,) = enqueue(step("a"))
        viewer = sign_in("viewer")
        assert viewer.get(page("execution_workertask_changelist")).context["action_form"] is None
        before = everything()
        for name in ("cancel", "front", "back", "prioritise", "hasten"):
            url = operation("execution_workertask", name, task.pk)
            assert viewer.post(url, {"priority": "1"}).status_code == 403
        assert everything() == before


def test_a_template_can_be_run_as_a_single_job_by_who_may_and_until_it_is_archived(client: Client) -> None:
    fields = {name: value for name, value in step().items() if name not in ("index", "name")}
    template = TaskTemplate.objects.define(name="Report", initiator=SOMEBODY, now=NOW, **fields)
    url = operation("schedules_tasktemplate", "run", template.pk)
    assert sign_in("author").post(url).status_code == 403
    assert "A job of “Report” is queued." in told(client, client.post(url))
    assert run_until_idle(now=clock.now()) == ["Report"]
    template.archive(initiator=SOMEBODY, now=NOW)
    assert "is archived" in told(client, client.post(url))
    assert not WorkerTask.objects.exists()


class TestRetry:
    def test_of_an_execution_keeps_what_succeeded(self, client: Client) -> None:
        execution = start(step("a"), step("b", 1, "fail"), name="Nightly")
        run_until_idle()
        text = client.get(page("execution_execution_change", execution.pk)).content.decode()
        assert "Retry what failed" in text
        assert "partial" in text
        response = client.post(operation("execution_execution", "retry", execution.pk), {"key": "once"})
        again = Execution.objects.get(retry_of=execution)
        assert response["Location"] == again.get_absolute_url()
        assert run_until_idle(now=clock.now()) == ["b"]
        text = client.get(page("execution_execution_change", again.pk)).content.decode()
        assert f"execution {execution.pk}" in text
        client.post(operation("execution_execution", "retry", execution.pk), {"key": "once"})
        assert Execution.objects.count() == 2

    def test_of_several_executions_of_one_schedule(self, client: Client) -> None:
        first = start(step("a", 0, "fail"), overlap="allow_all")
        assert first.schedule is not None
        trigger(first.schedule, initiator=SOMEBODY, now=NOW)
        run_until_idle()
        both = Execution.objects.values_list("pk", flat=True)
        client.post(operation("execution_execution", "retry", *both), {"key": "once"})
        assert Execution.objects.exclude(retry_of=None).count() == 2

    def test_of_one_that_runs_or_succeeded_is_declined_and_running_it_again_is_not(
        self, client: Client
    ) -> None:
        execution = start(step("a"))
        again = operation("execution_execution", "again", execution.pk)
        assert "still running" in told(client, client.post(again, {"key": "k"}))
        run_until_idle()
        response = client.post(operation("execution_execution", "retry", execution.pk), {"key": "k"})
        assert "run it again as a whole" in told(client, response)
        client.post(again, {"key": "k2"})
        assert run_until_idle(now=clock.now()) == ["a"]

    def test_of_a_single_job(self, client: Client) -> None:
        (task,) = enqueue(step("job", 0, "fail"))
        run_until_idle()
        failed = Activity.objects.get(task_key=task.key)
        text = client.get(page("activities_activity_change", failed.pk)).content.decode()
        assert operation("activities_activity", "retry", failed.pk) in text
        response = client.post(operation("activities_activity", "retry", failed.pk))
        second = Activity.objects.get(retry_of=failed)
        assert response["Location"] == second.get_absolute_url()
        assert "queued again" in told(client, response)
        response = client.post(operation("activities_activity", "retry", failed.pk))
        assert "has not ended" in told(client, response)


def test_workers_show_lease_seats_and_refused_outcomes(client: Client) -> None:
    worker = make_worker(clock.now())
    start(step("a"), step("b"))
    claim(worker)
    Worker.objects.update(stale_refused=3)
    (row,) = client.get(page("execution_worker_changelist")).context["cl"].result_list
    assert (row.busy, row.seats, row.stale_refused) == (2, 100, 3)
    text = client.get(page("execution_worker_change", worker.pk)).content.decode()
    assert "alive" in text
    assert str(worker.pk) in text


def test_lists_need_as_many_queries_for_many_rows_as_for_few(client: Client) -> None:
    most = {
        "execution_execution_changelist": 4,
        "execution_workertask_changelist": 8,
        "execution_worker_changelist": 4,
    }
    taken: dict[str, list[int]] = {url: [] for url in most}
    for number in (2, 5):
        for _ in range(number):
            start(step("a"), step("b", 1))
            make_worker()
        for url in most:
            asked = queries(client, page(url))
            taken[url].append(len(asked))
            assert url == "execution_worker_changelist" or not [sql for sql in asked if "COUNT(*)" in sql]
    assert {url: many for url, (few, many) in taken.items() if few != many or many > most[url]} == {}


def test_the_page_of_an_execution_needs_a_bounded_number_of_queries(client: Client) -> None:
    small = start(*(step(f"s{n}", n, "talk") for n in range(12)))
    large = start(*(step(f"s{n}", n, "talk") for n in range(16)))
    run_until_idle()
    client.get(page("execution_execution_change", small.pk))  # Django remembers the types of content
    few = queries(client, page("execution_execution_change", small.pk))
    many = queries(client, page("execution_execution_change", large.pk))
    assert len(many) == len(few) <= 20


def test_pages_by_key(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    executions = [start() for _ in range(3)]
    ids = [execution.pk for execution in executions][::-1]
    monkeypatch.setattr(ExecutionAdmin, "list_per_page", 2)
    first = client.get(page("execution_execution_changelist") + "?state=in+progress")
    assert [row.pk for row in first.context["cl"].result_list] == ids[:2]
    second = client.get(page("execution_execution_changelist") + first.context["cl"].older)
    assert [row.pk for row in second.context["cl"].result_list] == ids[2:]
    assert second.context["cl"].older is None
    assert "First page" in second.content.decode()


@pytest.mark.parametrize("role", ["viewer", "author", "closer", "operator"])
def test_who_may_stop_what_runs(role: str) -> None:
    """tests/test_permissions.py has the roles of the house; these have single permissions."""
    execution, client, may = start(), sign_in(role), role == "operator"
    before = everything()
    buttons = client.get(page("execution_execution_change", execution.pk)).content.decode()
    for name in ("cancel", "terminate"):
        url = operation("execution_execution", name, execution.pk)
        assert client.get(url).status_code == (200 if may else 403)
        assert (url in buttons) is may
        assert everything() == before
        if not may:
            assert client.post(url).status_code == 403
            assert everything() == before
    if may:
        assert client.post(operation("execution_execution", "cancel", execution.pk)).status_code == 302
        assert fresh(execution).status == "cancelled"


def shown_rows(response: Any) -> dict[int, dict[str, str]]:
    """The list as text, by execution and column."""
    changelist = response.context["cl"]
    admin = changelist.model_admin
    return {
        row.pk: {
            column: text_of(getattr(admin, column)(row))
            for column in admin.list_display
            if hasattr(admin, column) and column != "__str__"
        }
        for row in changelist.result_list
    }


def text_of(cell: Any) -> str:
    return strip_tags(str(cell))


def queries(client: Client, url: str) -> list[str]:
    clock.now()
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return [query["sql"] for query in captured]


def grant(username: str, name: str) -> None:
    app, codename = name.split(".")
    permission = Permission.objects.get(content_type__app_label=app, codename=codename)
    User.objects.get(username=username).user_permissions.add(permission)
