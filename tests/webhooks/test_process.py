"""With a real worker process: what a step did arrives, signed, and what failed is tried again."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from django.test import override_settings

from database import clock
from execution.loops.manual_runs import trigger
from tests.base import SOMEBODY, make_schedule
from tests.fleet import Fleet
from tests.steps.web_server import serving
from tests.waiting import wait_until
from tests.webhooks.base import make_endpoint, verify
from webhooks.models import Delivery

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


def test_a_worker_tells_of_what_it_did(tmp_path: Path) -> None:
    key = Fernet.generate_key().decode()
    env = {"JIM_SECRETS_KEYS": key, "JIM_HTTP_ALLOW": "127.0.0.1"}
    with (
        override_settings(JIM_SECRETS_KEYS=[key], JIM_HTTP_ALLOW=["127.0.0.1"]),
        serving() as server,
        Fleet(tmp_path, **env) as fleet,
    ):
        make_endpoint("activity.completed", url=f"{server.url}/status?is=204", now=clock.now())
        make_endpoint("execution.completed", url=f"{server.url}/recovers?after=1", now=clock.now())
        fleet.worker()
        trigger(make_schedule(), initiator=SOMEBODY, now=clock.now())
        wait_until(lambda: Delivery.objects.filter(status="delivered").count() == 2)
        fleet.stop()
    told = [verify(request)["type"] for request in server.seen]
    assert sorted(told) == ["activity.completed", "execution.completed", "execution.completed"]
    retried = Delivery.objects.get(kind="execution.completed")
    assert [entry["status"] for entry in retried.log] == [500, 204]
