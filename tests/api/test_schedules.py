from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission

from activities.models import Activity
from execution.models import Execution
from schedules.models import Occurrence, Schedule
from tests.api.calling import Caller, fields
from tests.base import NOW, SOMEBODY, fresh, make_schedule, make_template, run_until_idle, step

pytestmark = pytest.mark.django_db
NIGHTLY: dict[str, Any] = {
    "name": "Nightly",
    "tags": ["finance"],
    "memo": {"owner": "Ada"},
    "spec": {"cron": ["30 2 * * *"], "time_zone": "Europe/London"},
    "steps": [step("fetch"), step("load", 1)],
}
DAILY = {"cron": ["0 2 * * *"]}
FETCH = {"name": "fetch", "step_type": "http", "config": {"url": "https://example.com"}}


def stranger(*permissions: str) -> Caller:
    """Somebody with no role, but with these permissions."""
    api = Caller("")
    names = [name.partition(".")[2] for name in permissions]
    api.user.user_permissions.add(*Permission.objects.filter(codename__in=names))
    return api


def test_a_schedule_is_defined_as_a_person_writes_it() -> None:
    api = Caller("Author")
    made = api.post("schedules", NIGHTLY)
    assert made.status_code == 201, made.json()
    body = made.json()
    assert made["Location"] == f"http://testserver/api/v1/schedules/{body['id']}"
    assert {name: body[name] for name in ("name", "tags", "memo", "spec")} == {
        name: NIGHTLY[name] for name in ("name", "tags", "memo", "spec")
    }
    assert [each["name"] for each in body["steps"]] == ["fetch", "load"]
    assert body["state"]["sentence"] == "At 02:30 every day, Europe/London"
    assert body["state"]["summary"] == "active"
    assert len(body["overview"]["upcoming"]) == 10
    assert api.get(f"schedules/{body['id']}").json() == body


def test_what_is_read_can_be_sent_back_and_changes_nothing() -> None:
    api = Caller("Author")
    make_template("Export")
    steps = [*NIGHTLY["steps"], {"index": 2, "name": "send", "template": "Export", "max_retries": 9}]
    made = api.post("schedules", NIGHTLY | {"steps": steps, "overlap": "buffer_all", "remaining": 3})
    read = api.get(f"schedules/{made.json()['id']}")
    sent = api.put(f"schedules/{read.json()['id']}", read.json(), if_match=read["ETag"])
    assert sent.status_code == 200, sent.json()
    assert (sent.json(), sent["ETag"]) == (read.json(), read["ETag"])
    assert not Activity.objects.filter(operation="edit").exists()


def test_to_replace_it_gives_defaults_to_what_is_left_out() -> None:
    api, schedule = Caller("Author"), make_schedule(name="Old", overlap="allow_all", tags=["a"], spec=DAILY)
    body = {"name": "New", "steps": [FETCH]}
    response = api.put(f"schedules/{schedule.pk}", body, if_match='"1"')
    assert response.status_code == 200, response.json()
    now = fresh(schedule)
    assert (now.name, now.overlap, now.tags, now.spec, now.token) == ("New", "skip", [], {}, 2)
    # To change a field leaves the others; true is another value than 1.
    steps = [step("one", kwargs={"value": 1})]
    api.patch(f"schedules/{schedule.pk}", {"steps": steps, "tags": ["a"]}, if_match="*")
    steps[0]["config"]["kwargs"]["value"] = True
    response = api.patch(f"schedules/{schedule.pk}", {"steps": steps}, if_match="*")
    assert response["ETag"].startswith('"4.')
    assert (fresh(schedule).name, fresh(schedule).tags) == ("New", ["a"])
    assert schedule.steps.get().config["kwargs"]["value"] is True


def test_an_edit_names_the_version_that_was_read() -> None:
    api, schedule = Caller("Author"), make_schedule()
    url = f"schedules/{schedule.pk}"
    tag = api.get(url)["ETag"]
    assert api.patch(url, {"description": "mine"}).status_code == 428
    # Counters move the tag, but not the version.
    Schedule.objects.update(started_count=5)
    assert api.client.get(f"/api/v1/{url}", headers={"If-None-Match": tag}).status_code == 200
    assert api.patch(url, {"tags": ["a"]}, if_match=tag).status_code == 200
    fresh(schedule).pause(initiator=SOMEBODY, now=NOW)
    stale = api.patch(url, {"description": "mine"}, if_match=tag)
    assert (stale.status_code, stale["ETag"]) == (412, '"3"')
    assert api.delete(url).status_code == 428
    assert fresh(schedule).description == ""


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"name": ""}, "name", "blank"),
    ({"spec": {"cron": ["nonsense"]}}, "spec.cron", "nonsense"),
    ({"spec": []}, "spec", "object"),
    ({"overlap": "maybe"}, "overlap", "maybe"),
    ({"catch_up_seconds": "1"}, "catch_up_seconds", "whole number"),
    ({"pause_on_failure": 1}, "pause_on_failure", "true or false"),
    ({"tags": "finance"}, "tags", "list"),
    ({"memo": {"owner": 1}}, "memo.owner", "text"),
    ({"steps": []}, "steps", "at least 1"),
    ({"steps": [FETCH | {"index": "1"}]}, "steps.0.index", "whole number"),
    ({"steps": [FETCH | {"colour": "red"}]}, "steps.0.colour", "Unknown field"),
    ({"steps": [FETCH | {"step_type": "magic"}]}, "steps.0.step_type", "Unknown step type “magic”"),
    ({"steps": [FETCH, FETCH]}, "steps.1.name", "another step already has this name"),
    ({"steps": [{"name": "a", "template": "none"}]}, "steps.0.template", "unknown template “none”"),
    ({"remaining": 10**30}, "remaining", "less than or equal"),
]


def test_what_is_wrong_is_told_by_field() -> None:
    api, silent = Caller("Author"), []
    for wrong, field, said in WRONG:
        response = api.post("schedules", NIGHTLY | wrong)
        told = [each["detail"] for each in response.json()["errors"] if each["field"] == field]
        if response.status_code != 400 or [said in each for each in told] != [True]:
            silent.append((wrong, response.json()))
    assert silent == []
    assert not Schedule.objects.exists()
    body = api.post("schedules", NIGHTLY | {"paused": True, "note": "not yet"}).json()
    assert (body["state"]["status"], body["state"]["pause"]["note"]) == ("paused", "not yet")
    assert "already" in api.post("schedules", NIGHTLY).json()["detail"]
    for verb in ("run", "pause", "resume", "skip-next", "unskip"):
        response = api.post(f"schedules/{body['id']}/{verb}", {"colour": "red"})
        assert (response.status_code, "colour" in fields(response)) == (400, True), verb


def test_steps_that_run_code_need_a_permission_of_their_own() -> None:
    api = stranger("schedules.add_schedule", "schedules.change_schedule", "schedules.view_schedule")
    refused = api.post("schedules", NIGHTLY)
    assert refused.status_code == 403
    assert "“fetch”, “load”" in refused.json()["detail"]
    assert Caller("Author", scopes=["run"]).post("schedules", NIGHTLY).status_code == 403
    allowed = api.post("schedules", NIGHTLY | {"steps": [FETCH]})
    assert allowed.status_code == 201, allowed.json()


def test_code_that_was_there_before_stays_without_that_permission() -> None:
    api = stranger("schedules.change_schedule", "schedules.view_schedule")
    schedule = make_schedule(step("mine"))
    read = api.get(f"schedules/{schedule.pk}").json()
    known, more = read["steps"], [*read["steps"], step("theirs", 1)]
    moved = [known[0] | {"config": {"function": "os.getcwd"}}]
    tagged = api.put(f"schedules/{schedule.pk}", read | {"tags": ["a"]}, if_match="*")
    assert tagged.status_code == 200, tagged.json()
    for steps, named in ((more, "“theirs”"), (moved, "“mine”")):
        response = api.patch(f"schedules/{schedule.pk}", {"steps": steps}, if_match="*")
        assert response.status_code == 403
        assert named in response.json()["detail"]


def test_to_delete_is_to_close() -> None:
    api, schedule = Caller("Author"), make_schedule(spec=DAILY)
    assert api.delete(f"schedules/{schedule.pk}", if_match='"1"').status_code == 204
    assert api.get(f"schedules/{schedule.pk}").json()["state"]["status"] == "closed"
    assert api.get("schedules").json()["results"] == []
    assert len(api.get("schedules", status="closed").json()["results"]) == 1
    again = api.delete(f"schedules/{schedule.pk}", if_match="*")
    assert (again.status_code, "closed" in again.json()["detail"]) == (409, True)
    assert Caller().post(f"schedules/{schedule.pk}/run").status_code == 409


def make_some() -> dict[str, Schedule]:
    """One of each kind that can be looked for."""
    names = ("plain", "tagged", "paused", "failing", "overdue", "broken", "closed", "manual")
    made = {name: make_schedule(name=f"The {name} one", spec=DAILY) for name in names}
    made["tagged"].edit(token=1, changes={"tags": ["a", "b"]}, initiator=SOMEBODY, now=NOW)
    made["paused"].pause(initiator=SOMEBODY, now=NOW)
    assert made["failing"].pause_over_failures("The last execution failed: x", now=NOW)
    made["closed"].close(initiator=SOMEBODY, now=NOW)
    Schedule.objects.filter(pk=made["failing"].pk).update(last_outcome="failed")
    Schedule.objects.exclude(pk=made["overdue"].pk).update(next_run_at=None)
    Schedule.objects.filter(pk=made["broken"].pk).update(spec_error="cron: nonsense")
    Schedule.objects.filter(pk=made["manual"].pk).update(overlap="allow_all")
    return made


OPEN = {"plain", "tagged", "paused", "failing", "overdue", "broken", "manual"}
NARROWED: list[tuple[dict[str, Any], set[str]]] = [
    ({}, OPEN),
    ({"status": "all", "search": "closed"}, {"closed"}),
    ({"status": "paused"}, {"paused", "failing"}),
    ({"name": "the PLAIN one"}, {"plain"}),
    ({"tag": ["a", "b"]}, {"tagged"}),
    ({"tag": ["a", "c"]}, set()),
    ({"last_outcome": "failed"}, {"failing"}),
    ({"is_overdue": "true"}, {"overdue"}),
    ({"is_overdue": "false", "status": "active"}, {"plain", "tagged", "broken", "manual"}),
    ({"is_paused_by_failures": "true"}, {"failing"}),
    ({"is_broken": "true"}, {"broken"}),
    ({"overlap": "allow_all"}, {"manual"}),
    ({"next_run_before": "2027-01-01T00:00:00Z"}, {"overdue"}),
    ({"next_run_after": "2027-01-01T00:00:00Z"}, set()),
    ({"calendar": "7"}, set()),
]


def test_a_list_is_narrowed_down() -> None:
    made = {schedule.pk: name for name, schedule in make_some().items()}
    Schedule.objects.filter(next_run_at__isnull=False).update(next_run_at=NOW)
    api, wrong = Caller("Viewer"), []
    for query, expected in NARROWED:
        rows = api.get("schedules", **query).json()["results"]
        if (found := {made[row["id"]] for row in rows}) != expected:
            wrong.append((query, found))
    assert wrong == []
    odd = [("status", "asleep"), ("status", ""), ("is_overdue", "maybe"), ("is_overdue", "")]
    odd += [("next_run_after", "yesterday"), ("next_run_after", "2026-11-16T03:00:00"), ("calendar", "x")]
    for name, value in odd:
        assert fields(api.get("schedules", **{name: value})) == [name], (name, value)


def test_a_list_costs_the_same_whatever_its_length_and_one_a_handful_of_statements(
    django_assert_num_queries: Any, django_assert_max_num_queries: Any
) -> None:
    make_some()
    api = Caller("Viewer")
    api.get("schedules")
    with django_assert_num_queries(4):  # the token, two for permissions, the list
        api.get("schedules", status="all")
    schedule = make_schedule(*(step(f"s{number}", number) for number in range(20)), spec=DAILY)
    schedule.pause(initiator=SOMEBODY, now=NOW)
    with django_assert_max_num_queries(10):
        assert api.get(f"schedules/{schedule.pk}").status_code == 200


def test_a_run_is_accepted_and_can_be_watched() -> None:
    api, schedule = Caller("Operator"), make_schedule()
    response = api.post(f"schedules/{schedule.pk}/run", {"at": "2026-11-01T02:00:00+01:00"})
    assert response.status_code == 202, response.json()
    assert Occurrence.objects.get().nominal_at.isoformat() == "2026-11-01T01:00:00+00:00"
    execution = Execution.objects.get()
    assert response.json() == {
        "occurrence": Occurrence.objects.get().pk,
        "status": "started",
        "execution": execution.pk,
        "url": f"http://testserver/api/v1/executions/{execution.pk}",
    }
    assert response["Location"] == response.json()["url"]
    run_until_idle()
    assert api.get(f"schedules/{schedule.pk}").json()["overview"]["results"][0]["outcome"] == "completed"


def test_a_run_that_is_in_the_way_is_named() -> None:
    api, schedule = Caller("Operator"), make_schedule()
    first = api.post(f"schedules/{schedule.pk}/run").json()["execution"]
    refused = api.post(f"schedules/{schedule.pk}/run")
    assert (refused.status_code, refused.json()["blocked_by"]) == (409, first)
    beside = api.post(f"schedules/{schedule.pk}/run", {"overlap": "allow_all"})
    assert beside.json()["status"] == "started"
    waiting = api.post(f"schedules/{schedule.pk}/run", {"overlap": "buffer_all"})
    assert (waiting.status_code, waiting.json()["execution"]) == (202, None)
    assert api.client.get(waiting["Location"]).json()["status"] == "pending"


def test_a_schedule_is_paused_and_resumed() -> None:
    api, schedule = Caller("Operator"), make_schedule(spec=DAILY)
    url = f"schedules/{schedule.pk}"
    paused = api.post(f"{url}/pause", {"note": "a fire", "until": "2099-01-01T00:00:00Z"})
    assert paused.status_code == 200, paused.json()
    told = paused.json()["state"]["pause"]
    assert (told["until"], told["note"]) == ("2099-01-01T00:00:00Z", "a fire")
    assert paused.json()["overview"]["paused_by"] == "operator (test)"
    assert api.post(f"{url}/resume", {"missed": "discard"}, if_match=paused["ETag"]).status_code == 200
    again = api.post(f"{url}/resume")
    assert (again.status_code, "not paused" in again.json()["detail"]) == (409, True)
    assert api.post(f"{url}/pause", {}, if_match='"1"').status_code == 412
    assert api.post(f"{url}/pause", {"until": "2001-01-01T00:00:00Z"}).status_code == 400


@pytest.mark.parametrize("tags", [[], ["hr"]])
def test_all_schedules_or_those_with_tags_are_paused_and_resumed_together(tags: list[str]) -> None:
    """A pause that one of them had before stays its own, as on the page and in the terminal."""
    api, body = Caller("Operator", scopes=["run"]), {"tags": tags} if tags else {}
    one, other = make_schedule(tags=["hr"]), make_schedule(tags=["hr", "nightly"])
    own = make_schedule(tags=["hr"])
    own.pause(initiator=SOMEBODY, now=NOW, note="a fire")
    untagged = make_schedule()
    paused = api.post("schedules/pause-all", body | {"note": "moving"})
    count = 2 if tags else 3
    assert (paused.status_code, paused.json()) == (200, {"paused": count, "left": 1})
    assert (fresh(one).pause_note, fresh(own).pause_note) == ("moving", "a fire")
    assert fresh(untagged).is_paused == (not tags)
    resumed = api.post("schedules/resume-all", body | {"missed": "discard"})
    assert (resumed.status_code, resumed.json()) == (200, {"resumed": count, "left": 1})
    assert [fresh(each).is_paused for each in (one, other, own)] == [False, False, True]
    refused = api.post("schedules/pause-all", {"tags": ["hrr"]})
    assert (refused.status_code, "tag hrr" in refused.json()["detail"]) == (409, True)
    assert Caller("Viewer").post("schedules/pause-all", body).status_code == 403


def test_the_next_time_is_skipped_and_taken_back() -> None:
    api, schedule = Caller("Operator"), make_schedule(spec=DAILY)
    url = f"schedules/{schedule.pk}"
    skipped = api.post(f"{url}/skip-next")
    assert skipped.status_code == 200, skipped.json()
    at = skipped.json()["at"]
    assert api.get(url).json()["state"]["skips"] == [at]
    assert at not in [row["at"] for row in api.get(f"{url}/preview").json()["upcoming"]]
    assert api.post(f"{url}/unskip", {"at": at}).status_code == 200
    assert api.post(f"{url}/unskip", {"at": at}).status_code == 409
    assert api.get(url).json()["state"]["skips"] == []
