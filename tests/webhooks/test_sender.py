"""Deliveries over the wire: to a real server, good and bad at its work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from database import clock
from execution.loops.companions import BackgroundThreads, ThreadContext
from execution.outgoing.network import Network
from schedules.models import Schedule
from tests.base import SOMEBODY, fresh, make_schedule, seconds
from tests.conftest import subprocess_env
from tests.steps.test_outgoing import Names
from tests.steps.web_server import WebServer, serving
from tests.waiting import PATIENCE_SECONDS, wait_until
from tests.webhooks.base import make_delivery, make_endpoint, send, told, verify
from webhooks import sender as sender_module
from webhooks.models import Delivery, Endpoint
from webhooks.sender import Sender

pytestmark = pytest.mark.django_db
TOO_LATE = "the call did not end within 0.5 s"


@pytest.fixture
def server() -> Iterator[WebServer]:
    with override_settings(JIM_HTTP_ALLOW=["127.0.0.1"]), serving() as server:
        yield server


def deliver_to(url: str, *, within: float = 3600, **options: object) -> Delivery:
    """One test to this address, tried once."""
    delivery = make_delivery(make_endpoint(url=url, now=clock.now()), now=clock.now())
    send(seconds=within, **options)
    return fresh(delivery)


def test_what_arrives_is_what_was_written_down_and_verifies_with_the_old_and_the_new_secret(
    server: WebServer,
) -> None:
    endpoint = make_endpoint(url=f"{server.url}/status?is=204")
    new = endpoint.rotate(initiator=SOMEBODY, now=clock.now())
    delivery = make_delivery(endpoint, now=clock.now())
    send()
    (request,) = server.seen
    assert (fresh(delivery).status, request["method"], request["body"]) == (
        "delivered",
        "POST",
        delivery.body,
    )
    assert request["headers"]["webhook-id"] == delivery.webhook_id
    assert request["headers"]["content-type"] == "application/json"
    assert verify(request) == verify(request, new) == json.loads(delivery.body)


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [
        ("/status?is=500", 500, "the response was 500, not 2xx"),
        ("/redirect?to=/echo", 302, "the response was 302, not 2xx"),
        ("/drip-head", None, TOO_LATE),
        ("/drop", None, "invalid response"),
    ],
)
def test_what_is_not_taken_is_tried_again(
    server: WebServer, path: str, status: int | None, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Network, "_looked_up", lambda *_: ["127.0.0.1"])  # which has a time limit of its own
    before = clock.now()
    delivery = deliver_to(server.url + path, within=0.5 if error == TOO_LATE else 3600)
    assert (delivery.status, delivery.tries) == ("pending", 1)
    assert len(server.seen) == 1 or error == TOO_LATE
    assert delivery.last_try["status"] == status
    assert error in delivery.last_try["error"]
    assert delivery.next_try_at is not None
    assert before + seconds(5) <= delivery.next_try_at < clock.now() + seconds(30)


def test_what_was_answered_is_kept_as_text_and_not_read_to_its_end_if_it_has_none(server: WebServer) -> None:
    assert deliver_to(f"{server.url}/status?is=418").last_try["answer"] == "this is 418"
    endless = deliver_to(f"{server.url}/huge")
    assert (endless.status, len(endless.last_try["answer"])) == ("delivered", 2_048)


def test_who_asks_for_time_gets_it(server: WebServer) -> None:
    before = clock.now()
    delivery = deliver_to(f"{server.url}/busy?is=429&after=120")
    assert delivery.next_try_at is not None
    assert before + seconds(120) <= delivery.next_try_at < clock.now() + seconds(130)


def test_who_is_gone_is_sent_nothing_more(server: WebServer) -> None:
    endpoint = make_endpoint(url=f"{server.url}/status?is=410", now=clock.now())
    one, other = (make_delivery(endpoint, now=clock.now()) for _ in range(2))
    send()
    assert [fresh(each).status for each in (endpoint, one, other)] == ["disabled", "failed", "failed"]
    assert fresh(endpoint).status_note == "The receiver responded with 410 Gone."
    seen = len(server.seen)
    send()
    assert len(server.seen) == seen


def test_a_name_that_is_bound_anew_between_tries_is_checked_anew(server: WebServer) -> None:
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    delivery = deliver_to(f"{server.url_of('rebinding.example')}/status?is=500", resolve=names)
    assert (delivery.last_try["status"], names.asked) == (500, ["rebinding.example"])
    Delivery.objects.update(next_try_at=clock.now())
    send(resolve=names)
    assert "is not public" in fresh(delivery).last_try["error"]
    assert len(server.seen) == 1


def test_without_its_key_nothing_is_sent_and_the_record_says_why(server: WebServer) -> None:
    endpoint = make_endpoint(url=f"{server.url}/echo")
    delivery = make_delivery(endpoint, now=clock.now())
    with override_settings(JIM_SECRETS_KEYS=["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]):
        send()
    assert "none of the keys in JIM_SECRETS_KEYS fits" in fresh(delivery).last_try["error"]
    assert server.seen == []


@pytest.mark.parametrize("field", ["kinds", "schedules"])
def test_an_endpoint_that_somebody_damaged_holds_nobody_else_back(field: str) -> None:
    damaged, fine = make_endpoint("worker.lost"), make_endpoint("worker.lost")
    delivery = make_delivery(fine)
    Endpoint.objects.filter(pk=damaged.pk).update(**{field: 7})
    send(seconds=0.1)
    assert Delivery.objects.get(pk=delivery.pk).tries == 1


def test_overdue_schedules_are_noticed_by_the_workers() -> None:
    make_endpoint("schedule.overdue")
    make_schedule(spec={"cron": ["* * * * *"]}, now=clock.now() - seconds(600))
    assert Schedule.objects.overdue(clock.now()).count() == 1
    sender = Sender(ThreadContext())
    sender.look()
    sender.look()
    sender.close()
    assert told() == ["schedule.overdue"]


@pytest.mark.django_db(transaction=True)
def test_one_slow_endpoint_holds_nobody_else_back(server: WebServer) -> None:
    slow = make_endpoint(url=f"{server.url}/silence")
    quick = [make_endpoint(url=f"{server.url}/status?is=200") for _ in range(2)]
    for endpoint in (*[slow] * 20, *quick, *quick, *quick):
        make_delivery(endpoint, now=clock.now())
    with sending() as context:
        wait_until(lambda: Delivery.objects.filter(status="delivered").count() == 6)
        wait_until(lambda: server.paths().count("POST /silence") >= 2)
        assert server.paths().count("POST /silence") == 2, "two seats for each, and no more"
        assert not context.stopping.is_set()


@pytest.mark.django_db(transaction=True)
def test_a_new_delivery_goes_out_at_once_and_a_stopped_sender_leaves_none_in_mid_air(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "IDLE_SECONDS", 3600)
    endpoint = make_endpoint(url=f"{server.url}/status?is=200")
    with sending() as context:
        delivery = make_delivery(endpoint, now=clock.now())
        context.woken.set()
        wait_until(lambda: fresh(delivery).status == "delivered")
        Endpoint.objects.update(url=f"{server.url}/silence")
        cut = make_delivery(endpoint, now=clock.now())
        context.woken.set()
        wait_until(lambda: "POST /silence" in server.paths())
    assert (fresh(cut).status, fresh(cut).last_try["error"]) == ("pending", "the call was interrupted")


@contextmanager
def sending() -> Iterator[ThreadContext]:
    """A sender in a thread of its own, as a worker has one."""
    background = BackgroundThreads("worker", is_well=lambda: True)
    with patch.dict(Sender.__init__.__kwdefaults__, seconds=3600):
        background.start()
        ((context, thread),) = background.threads
        try:
            yield context
        finally:
            background.stop()
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


def test_a_worker_loads_the_http_client_with_the_first_call() -> None:
    """It costs every process several megabytes."""
    program = (
        "import django; django.setup(); import execution.loops.worker, sys; "
        "from execution.steps.step_type import get; get('http').clean({'url': 'https://shop.example/'}); "
        "print([name for name in ('httpx2', 'httpcore2', 'cryptography', 'webhooks.admin') "
        "if name in sys.modules], 'webhooks.sender' in sys.modules)"
    )
    options: Any = {"env": subprocess_env(), "cwd": django_settings.BASE_DIR, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, **options)
    assert done.stdout.strip() == "[] True"
