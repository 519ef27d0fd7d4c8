from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.contrib.staticfiles import finders
from django.test import Client

from database import clock
from execution.loops.manual_runs import trigger
from operations.operation import offered_for
from tests.admin_pages import sign_in
from tests.base import SOMEBODY, make_schedule, make_worker, run_until_idle, start, step
from tests.web.pages import markup, poll, version_of

pytestmark = pytest.mark.django_db


def test_a_first_visit_transfers_less_than_100_kb_and_nothing_from_elsewhere() -> None:
    for number in range(10):
        make_schedule(name=f"Schedule {number}", spec={"every": ["1h"]})
    client = sign_in()
    answer = client.get("/", headers={"Accept-Encoding": "gzip"})
    text = gzip.decompress(answer.content).decode()
    parts = re.findall(r'(?:src|href)="(/static/[^"?]+)"', text)
    assert len(parts) >= 4
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)
    sizes = [Path(str(finders.find(part.removeprefix("/static/")))).stat().st_size for part in set(parts)]
    assert len(answer.content) + sum(sizes) < 100_000


@pytest.mark.parametrize(
    ("query", "goal"),
    [("", "/"), ("?next=/queue", "/queue"), ("?next=/login", "/"), ("?next=https://elsewhere.example/", "/")],
)
def test_whoever_is_signed_in_is_not_asked_to_sign_in(query: str, goal: str) -> None:
    answer = sign_in().get(f"/login{query}", follow=True)
    assert (answer.status_code, answer.request["PATH_INFO"]) == (200, goal)


def test_verbs_are_offered_and_asked_about_in_words_not_in_names_of_code() -> None:
    offered = [each for model in apps.get_models() for each in offered_for(model)]
    assert len(offered) > 30
    told = [text for each in offered for text in (each.label, each.question)]
    assert [text for text in told if re.search(r"[a-z][A-Z]|_", text)] == []


COOKIE = "jim_time_zone"
KOLKATA, BERLIN = "Asia/Kolkata", "Europe/Berlin"
FORGED = ("Nowhere/Land", "../../etc/passwd", "posix/Europe/Berlin", "EST", "europe/berlin", "x" * 4000, "é")


def test_a_forged_zone_is_none() -> None:
    client = sign_in()
    for forged in FORGED:
        client.cookies[COOKIE] = forged
        assert "From (UTC)" in client.get("/executions").text, forged


@pytest.mark.parametrize(("cookie", "zone"), [("", "UTC"), (BERLIN, BERLIN), (KOLKATA, KOLKATA)])
def test_every_page_shows_times_in_the_zone_of_its_reader_and_names_it(cookie: str, zone: str) -> None:
    client = sign_in()
    client.cookies[COOKIE] = cookie
    spec = {"cron": ["0 2 * * *"], "time_zone": "America/New_York"}
    schedule = make_schedule(step("talk", 0, "talk"), spec=spec, now=clock.now())
    trigger(schedule, initiator=SOMEBODY, now=clock.now())
    make_worker(clock.now())
    run_until_idle(now=clock.now())
    execution = schedule.executions.get()
    about, record = schedule.get_absolute_url(), execution.activity.get_absolute_url()
    pages = ("/", "/schedules", "/executions", execution.get_absolute_url(), record, f"{about}/ledger")
    for path in pages:
        text = unescape(client.get(path).text)
        named = re.findall(r"<time [^>]*>[^<]*\d:\d\d (\S+)</time>", text)
        assert set(named) == {zone}, path
        assert set(re.findall(r'title="\w{3} [-\d]+ [:\d]+ ([^"\s]+)', text)) <= {zone, "America/New_York"}, (
            path
        )
    for path in ("/executions", "/activities"):
        assert f"From ({zone})" in client.get(path).text, path
    assert re.search(rf"<figcaption><span>\d\d:\d\d {zone}</span>", markup(client.get("/")))
    output = client.get(f"{execution.get_absolute_url()}?tab=output").text
    assert set(re.findall(r'class="at"[^>]*title="[-\d]+ [:\d]+ ([^"]+)"', output)) == {zone}
    assert f"Time ({zone})" in client.get(f"{about}/ledger").text
    schedule.refresh_from_db()
    asked: dict[str, Any] = {"token": schedule.token, "initiator": SOMEBODY, "now": clock.now()}
    schedule.edit(changes={"description": "changed"}, **asked)
    assert len(re.findall(rf":\d\d {zone}, ", client.get(f"{about}/revisions").text)) == 2


# What is typed, and the start of the only execution that it leaves out, or not.
TYPED = [
    ("", "since=2026-10-24T23:45", "2026-10-24T23:45Z", True),
    ("", "since=2026-10-25", "2026-10-24T23:45Z", False),
    (KOLKATA, "since=2026-10-25T05:15", "2026-10-24T23:45Z", True),
    (KOLKATA, "since=2026-10-25T05:16", "2026-10-24T23:45Z", False),
    (KOLKATA, "until=2026-10-25T05:16", "2026-10-24T23:45Z", True),
    (KOLKATA, "since=2026-10-24T23:45Z", "2026-10-24T23:45Z", True),
    # Berlin has 02:30 twice: the first of them is meant. It never has 02:30 on 29 March.
    (BERLIN, "since=2026-10-25T02:30", "2026-10-25T00:30Z", True),
    (BERLIN, "until=2026-10-25T02:30", "2026-10-25T00:30Z", False),
    (BERLIN, "since=2026-03-29T02:30", "2026-03-29T01:30Z", True),
]


@pytest.mark.parametrize(("zone", "asked", "started", "is_shown"), TYPED)
def test_times_are_typed_on_the_clock_of_the_reader(
    zone: str, asked: str, started: str, is_shown: bool
) -> None:
    client = sign_in()
    client.cookies[COOKIE] = zone
    start(now=datetime.fromisoformat(started))
    answer = client.get(f"/executions?{asked}")
    assert (len(answer.context["rows"]) == 1, answer.context["form"].errors) == (is_shown, {})
    [shown] = re.findall(r'type="datetime-local" name="\w+" value="([^"]+)"', answer.text)
    assert (
        client.get(f"/executions?{asked.partition('=')[0]}={shown}").context["rows"] == answer.context["rows"]
    )


def test_a_time_that_no_zone_can_hold_is_told_at_its_field() -> None:
    client = sign_in()
    for zone in (KOLKATA, "America/New_York"):
        client.cookies[COOKIE] = zone
        for end in ("0001-01-01", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00", "9999-12-31", "x"):
            answer = client.get("/executions", {"since": end, "until": end})
            assert answer.context["form"].errors.keys() == {"since", "until"}, (zone, end)


@pytest.mark.parametrize("zone", ["", KOLKATA, BERLIN, "Pacific/Kiritimati"])
def test_the_figures_of_a_day_lead_to_what_they_count_in_every_zone(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day after a quarter past the second pass of 02:00 in Berlin."""
    client = sign_in()
    client.cookies[COOKIE] = zone
    start(name="Before", now=datetime(2026, 10, 25, 0, 59, tzinfo=UTC))
    start(name="Within", now=datetime(2026, 10, 25, 1, 0, tzinfo=UTC))
    monkeypatch.setattr(clock, "now", lambda: datetime(2026, 10, 26, 0, 15, tzinfo=UTC))
    [url] = re.findall(r'href="([^"]+since=[^"]+)"><b[^>]*>\d+</b><span>runs', client.get("/").text)
    rows = client.get(unescape(url)).context["rows"]
    assert [row["execution"].schedule_name for row in rows] == ["Within"], url


def test_what_polls_is_sent_again_once_the_zone_is_another() -> None:
    client = sign_in()
    make_schedule(spec={"every": ["1h"]}, now=clock.now())
    polled = {"/home/upcoming": "upcoming", "/schedules/rows": "rows", "/executions": "rows"}
    seen = [(path, part, version_of(client.get(path), part)) for path, part in polled.items()]
    assert [poll(client, path, part, version=one).status_code for path, part, one in seen] == [204] * 3
    client.cookies[COOKIE] = KOLKATA
    assert [poll(client, path, part, version=one).status_code for path, part, one in seen] == [200] * 3


def test_the_zone_is_chosen_on_a_page_and_remembered_by_the_browser() -> None:
    client = sign_in("nobody")
    assert 'href="/time-zone?next=/tokens">Time zone: UTC</a>' in markup(client.get("/tokens"))
    answer = client.post("/time-zone?next=/tokens", {"time_zone": KOLKATA})
    assert (answer.status_code, answer["Location"]) == (302, "/tokens")
    cookie = answer.cookies[COOKIE]
    assert (cookie.value, cookie["samesite"], bool(cookie["httponly"])) == (KOLKATA, "Lax", True)
    assert f"Time zone: {KOLKATA}</a>" in markup(client.get("/tokens"))
    assert f'<option value="{KOLKATA}" selected>' in client.get("/time-zone").text
    for forged in ("", *FORGED, "\0"):
        answer = client.post("/time-zone", {"time_zone": forged})
        assert (answer.status_code, COOKIE in answer.cookies, answer.context["form"].errors.keys()) == (
            *(200, False),
            {"time_zone"},
        )
    assert client.post("/time-zone?next=//elsewhere.example", {"time_zone": "UTC"})["Location"] == "/"


@pytest.mark.parametrize(
    ("known", "sent", "remembered"),
    [("", KOLKATA, KOLKATA), ("UTC", KOLKATA, None), ("Nowhere/Land", KOLKATA, KOLKATA), ("", "EST", None)],
)
def test_a_browser_without_a_zone_brings_its_own_when_somebody_signs_in(
    known: str, sent: str, remembered: str | None
) -> None:
    User.objects.create_user("ada", password="correct horse")
    client = Client()
    client.cookies[COOKIE] = known
    answer = client.post("/login", {"username": "ada", "password": "correct horse", "time_zone": sent})
    assert answer.status_code == 302
    assert (answer.cookies[COOKIE].value if COOKIE in answer.cookies else None) == remembered
