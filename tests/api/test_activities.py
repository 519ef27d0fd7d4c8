from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client

from activities.models import Activity, ActivityItem
from api.models import ApiToken
from api.resources.activities import Activities
from execution.loops.recorder import StepOutput, write
from operations.initiator import Initiator
from tests.api.calling import Caller, fields
from tests.base import NOW, claim, end, enqueue, make_schedule, make_worker, run_until_idle, start, step

pytestmark = pytest.mark.django_db


class TestHistory:
    def test_it_can_be_narrowed(self) -> None:
        api, execution = Caller("Viewer"), start(step("load", 0, "fail"), name="Nightly")
        run_until_idle()
        root, attempt = execution.activity_id, Activity.objects.get(target_name="load").pk
        for query, expected in (
            ({"status": "failed_with_error"}, {root, attempt}),
            ({"task": str(Activity.objects.get(pk=attempt).task_key)}, {attempt}),
            ({"parent": root}, {attempt}),
            ({"text": "LOA"}, {attempt}),
            ({"status": "failed_with_error", "initiator": "user:7"}, {root, attempt}),
            ({"initiator": "system"}, set()),
            ({"operation": "run", "created_before": NOW.isoformat()}, set()),
        ):
            rows = api.get("activities", **query).json()["results"]
            assert {row["id"] for row in rows} == expected, query
        rows = api.get("activities", target=f"schedule:{execution.schedule_id}").json()["results"]
        assert "create" in [row["operation"] for row in rows]
        assert fields(api.get("activities", target="schedule")) == ["target"]
        assert api.get("activities", cursor="abc", text="x").status_code == 400

    def test_a_rare_one_is_looked_for_a_part_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Activities, "history_range", Activities.history_range._replace(reach=10))
        api, straws = Caller("Viewer"), [f"straw {number}" for number in range(25)]
        enqueue(step("needle"), *map(step, straws))
        seen, url = [], "/api/v1/activities?text=straw&limit=2"
        while url:
            page = api.client.get(url).json()
            seen += [row["target"]["name"] for row in page["results"]]
            url = page["next"]
        assert seen == straws[::-1]
        first = api.get("activities", text="needle").json()
        assert (first["results"], first["previous"]) == ([], None)
        second = api.client.get(first["next"]).json()
        third = api.client.get(second["next"]).json()
        assert [row["target"]["name"] for row in third["results"]] == ["needle"]
        assert third["next"] is None or not api.client.get(third["next"]).json()["results"]

    def test_its_page_is_one_query(self, django_assert_max_num_queries: Any) -> None:
        api = Caller("Viewer")
        start(*(step(f"s{number}") for number in range(20)))
        api.get("activities")
        with django_assert_max_num_queries(4):
            assert len(api.get("activities").json()["results"]) > 20

    def test_one_comes_with_its_result_its_parts_and_its_items(self) -> None:
        api = Caller("Viewer")
        execution = start(step("talk", 0, "talk"), step("answer", 1, "result"))
        run_until_idle()
        parts = api.get(f"activities/{execution.activity_id}/children").json()["results"]
        assert [part["target"]["name"] for part in parts] == ["talk", "answer"]
        talk, answer = (part["id"] for part in parts)
        assert api.get(f"activities/{answer}").json()["result"] == 42
        items = api.get(f"activities/{talk}/items", limit=2).json()
        assert [item["name"] for item in items["results"]] == ["object 0", "object 1"]
        assert items["next"] is not None
        assert api.get(f"activities/{talk}/items", outcome="failed").json()["results"] == []

    def test_items_of_objects_say_more_and_are_found_by_it(self) -> None:
        api, (task,) = Caller("Viewer"), enqueue(step("sync"))
        own: dict[str, Any] = {
            "change": "updated",
            "error_type": "bad_value",
            "object": "identity:17",
            "external_id": "e-1",
            "data": {"department": ["Sales", "IT"]},
        }
        for name, said in (("ada", own), ("bob", {"change": "added"}), ("plain", {})):
            ActivityItem.objects.create(activity=task.activity, name=name, created_at=NOW, **said)

        def found(**wanted: str) -> list[dict[str, Any]]:
            return list(api.get(f"activities/{task.activity_id}/items", **wanted).json()["results"])

        ada, _, plain = found()
        assert {name: ada[name] for name in own} == own
        nothing = {name: None if name == "data" else "" for name in own}
        assert {name: plain[name] for name in own} == nothing
        queries = (
            {"change": "updated"},
            {"change": "added"},
            {"error_type": "bad_value"},
            {"change": "Added"},
        )
        names = [[item["name"] for item in found(**wanted)] for wanted in queries]
        assert names == [["ada"], ["bob"], ["ada"], []]

    def test_a_job_is_retried_by_its_activity(self) -> None:
        api, (task,) = Caller("Operator"), enqueue(step(function := "bad", 0, "fail"))
        run_until_idle()
        first = Activity.objects.get(target_name=function)
        answer = api.post(f"activities/{first.pk}/retry")
        assert (answer.status_code, answer.json()["id"]) == (202, str(task.key))
        root = api.post(f"activities/{start().activity_id}/retry")
        assert (root.status_code, "Retry the execution" in root.json()["detail"]) == (409, True)
        created = Activity.objects.get(
            operation="create", target_type="schedule", target_id=make_schedule().pk
        )
        change = api.post(f"activities/{created.pk}/retry")
        assert (change.status_code, "execution" in change.json()["detail"]) == (409, False)


class TestOutput:
    @pytest.fixture
    def spoken(self) -> Activity:
        enqueue(step("talk", 0, "talk", kwargs={"lines": 5}))
        run_until_idle()
        return Activity.objects.get(target_name="talk")

    def test_it_comes_in_pages_of_lines(self, spoken: Activity) -> None:
        api = Caller("Viewer")
        first = api.get(f"activities/{spoken.pk}/output", limit=2).json()
        assert [line["text"] for line in first["lines"]] == ["line 0", "line 1"]
        assert (first["has_more"], first["is_final"]) == (True, True)
        rest = api.get(f"activities/{spoken.pk}/output", after=first["after"]).json()
        assert [line["text"] for line in rest["lines"]] == ["line 2", "line 3", "line 4"]
        assert not rest["has_more"]
        nothing = api.get(f"activities/{spoken.pk}/output", after=rest["after"]).json()
        assert (nothing["lines"], nothing["after"]) == ([], rest["after"])

    def test_it_comes_as_text_or_as_lines_of_json_and_is_followed_to_its_end(self, spoken: Activity) -> None:
        api, path = Caller("Viewer"), f"activities/{spoken.pk}/output"
        text = api.get(path, form="text", limit=2)
        assert text.content.decode() == "line 0\nline 1\n"
        assert text["Content-Type"] == "text/plain; charset=utf-8"
        lines = api.get(path, form="ndjson").content.decode().splitlines()
        assert json.loads(lines[0])["text"] == "line 0"
        followed = api.get(path, follow="true", after=4)
        assert b"".join(followed.streaming_content) == b"line 4\n"

    def test_what_makes_no_sense_is_refused_by_name(self, spoken: Activity) -> None:
        odd: list[dict[str, Any]] = [{"after": "x"}, {"limit": 0}, {"follow": "maybe"}]
        odd += [{"form": "xml"}, {"form": ""}, {"colour": "red"}, {"form": "json", "follow": "true"}]
        for query in odd:
            wrong = Caller("Viewer").get(f"activities/{spoken.pk}/output", **query)
            assert (wrong.status_code, fields(wrong)) == (400, [next(iter(query))])


LOST: dict[str, Callable[[Caller], Any]] = {
    "token revoked": lambda api: api.token.revoke(initiator=Initiator.user(api.user), now=NOW),
    "token expired": lambda api: ApiToken.objects.update(expires_at=NOW),
    "permission lost": lambda api: api.user.groups.clear(),
    "account closed": lambda api: User.objects.update(is_active=False),
    "signed out": lambda api: api.client.logout(),
    "password changed": lambda api: User.objects.update(password="another"),
}


@pytest.mark.parametrize("what", LOST)
def test_what_is_followed_ends_when_its_reader_may_not_read_it_any_more(what: str) -> None:
    api, worker = Caller("Viewer"), make_worker()
    if what in ("signed out", "password changed"):
        api.client = Client()
        api.client.force_login(api.user)
    enqueue(step("talk"))
    [held] = claim(worker)
    said = StepOutput(held.activity_id, lambda: NOW)
    said.output("stdout", ["seen"])
    write([said], worker_id=worker.pk)
    answer = api.get(f"activities/{held.activity_id}/output", follow="true")
    coming: Iterator[bytes] = iter(answer.streaming_content)
    assert next(coming) == b"seen\n"
    LOST[what](api)
    said.output("stdout", ["not for them"])
    write([said], worker_id=worker.pk)
    assert next(coming, None) is None


@pytest.mark.django_db(transaction=True)
def test_what_is_followed_comes_as_it_is_written() -> None:
    api, worker = Caller("Viewer"), make_worker()
    enqueue(step("talk"))
    [held] = claim(worker)
    said = StepOutput(held.activity_id, lambda: NOW)
    answer = api.get(f"activities/{held.activity_id}/output", follow="true", form="ndjson")
    coming: Iterator[bytes] = iter(answer.streaming_content)

    def go_on() -> None:
        for number in range(2):
            said.output("stdout", [f"line {number}"])
            write([said], worker_id=worker.pk)
        end(worker, held)
        connections.close_all()

    thread = threading.Thread(target=go_on)
    thread.start()
    lines = b"".join(coming).decode().splitlines()
    thread.join()
    assert [json.loads(line)["text"] for line in lines] == ["line 0", "line 1"]
