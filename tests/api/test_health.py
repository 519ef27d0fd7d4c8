"""What watches from outside sees: health without an account, metrics with a token."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from api import health
from database import clock
from execution.loops import recovery
from tests.api.calling import Caller
from tests.base import make_worker, run_until_idle, seconds, start, step
from tests.workflows.base import publish
from tests.workflows.orders import orders, stuck
from workflows import AuthRequired
from workflows.models import Run

pytestmark = pytest.mark.django_db


class TestHealth:
    def test_a_process_that_answers_is_alive_and_an_installation_at_work_ready(
        self, django_assert_num_queries: Any, django_assert_max_num_queries: Any
    ) -> None:
        with django_assert_num_queries(0):
            answer = Client().get("/api/v1/health/live")
        assert (answer.status_code, answer.json()) == (200, {"status": "alive"})
        recovery.bury_expired(clock.now())
        make_worker(clock.now())
        with django_assert_max_num_queries(6):
            answer = Client().get("/api/v1/health/ready")
        assert (answer.status_code, answer.json()["status"]) == (200, "ready")
        assert answer.json()["checks"]["workers"] == {
            "ok": True,
            "detail": "Running workers: 1. Tasks that they can run at once: 100.",
        }

    def test_each_check_says_what_is_missing_and_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_worker(clock.now() - seconds(3600))
        answer = Client().get("/api/v1/health/ready")
        checks = answer.json()["checks"]
        assert answer.status_code == 503
        is_well = {"database": True, "migrations": True, "scheduler": False, "workers": False}
        assert {name: check["ok"] for name, check in checks.items()} == is_well
        assert "runscheduler" in checks["scheduler"]["detail"]
        assert "runworker" in checks["workers"]["detail"]
        recovery.bury_expired(clock.now() - seconds(600))
        monkeypatch.setattr(health, "_shipped", lambda: frozenset({("execution", "9999_later")}))
        checks = Client().get("/api/v1/health/ready").json()["checks"]
        assert "No scheduler has run for 10 min" in checks["scheduler"]["detail"]
        assert (checks["migrations"]["ok"], "migrate" in checks["migrations"]["detail"]) == (False, True)

    def test_without_a_database_nothing_is_ready_and_no_secret_is_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away() -> None:
            raise DatabaseError("password=hunter2")

        monkeypatch.setattr(clock, "now", away)
        answer = Client().get("/api/v1/health/ready")
        assert answer.status_code == 503
        assert "hunter2" not in answer.content.decode()
        assert answer.json()["checks"]["database"]["detail"] == "The database is unreachable."


class TestMetrics:
    def scraped(self, text: str) -> dict[tuple[str, ...], float]:
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def test_they_tell_how_things_are(self, django_assert_max_num_queries: Any) -> None:
        now = clock.now()
        start(step("bad", 0, "fail"), now=now)
        run_until_idle(now=now)
        start(step("a", pool="ldap"), step("b", 1, pool="ldap"), now=now - seconds(100))
        recovery.bury_expired(now)
        api = Caller("Viewer", scopes=["view"])
        with django_assert_max_num_queries(22):
            answer = api.client.get("/metrics")
        assert answer["Content-Type"].startswith("text/plain")
        told = self.scraped(answer.content.decode())
        wanted = {
            **dict.fromkeys(("jim_tasks ldap queued", "jim_tasks ldap waiting", "jim_workers"), 1),
            **dict.fromkeys(("jim_executions_running", "jim_executions_ended_last_hour failed"), 1),
            **dict.fromkeys(("jim_schedules active", "jim_schedule_occurrences_total started"), 2),
            **dict.fromkeys(("jim_schedules_overdue", "jim_webhook_deliveries_pending"), 0),
            "jim_worker_seats": 100,
            "jim_execution_seconds_last_hour_bucket +Inf": 1,
        }
        assert {name: told[tuple(name.split())] for name in wanted} == wanted
        assert 100 <= told["jim_task_oldest_wait_seconds", "ldap"] < 160
        assert told["jim_scheduler_tick_age_seconds",] < 60

    def test_a_worker_counts_only_while_its_lease_holds(self) -> None:
        """Without a scheduler nothing marks it dead, and that is when the alert has to fire."""
        now = clock.now()
        make_worker(now - seconds(3600))
        told = self.scraped(Caller("Viewer").client.get("/metrics").content.decode())
        seats = told["jim_worker_seats",], told["jim_pool_seats", "default"]
        assert (told["jim_workers",], *seats) == (0, 0, 0)

    def test_they_tell_of_workflows(self) -> None:
        now = clock.now()
        with orders(now=now - seconds(60)):
            publish("parcels", "p1", "p2", now=now - seconds(40))
            stuck(AuthRequired("sign in"), now=now - seconds(30))
            told = self.scraped(Caller("Viewer").client.get("/metrics").content.decode())
        assert told["jim_workflows_stuck",] == 1
        assert told["jim_runs_active",] == 0
        assert told["jim_runs_ended_last_hour", "committed"] == Run.objects.filter(status="committed").count()
        assert told["jim_topic_events_pending", "parcels"] == 2
        assert told["jim_topic_events_pending", "orders"] == 0
        assert 40 <= told["jim_topic_oldest_pending_seconds", "parcels"] < 100
        assert told["jim_topic_oldest_pending_seconds", "orders"] == 0

    def test_they_take_a_token_unless_they_are_open_and_have_the_format_that_is_asked_for(
        self, settings: Any
    ) -> None:
        assert Client().get("/metrics").status_code == 401
        settings.JIM_METRICS_OPEN = True
        assert Client().get("/metrics").status_code == 200
        accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        answer = Caller("Viewer").client.get("/metrics", headers={"Accept": accept})
        assert answer["Content-Type"].startswith("application/openmetrics-text")
        assert answer.content.decode().endswith("# EOF\n")
        # A scheduler that never ticked is infinitely late.
        told = self.scraped(Client().get("/metrics").content.decode())
        assert told["jim_scheduler_tick_age_seconds",] == float("inf")
