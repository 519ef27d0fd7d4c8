"""Health checks for monitoring and load balancers, without authentication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from typing import Any

from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from database import clock
from database.statements import AWAY, fetch
from execution.models import Chore, Worker
from execution.models.chore import is_ticking
from text.words import span

NO_DATABASE = "The database is unreachable."


@dataclass(frozen=True)
class Check:
    ok: bool
    detail: str


class HealthCheckSerializer(serializers.Serializer[Any]):
    ok = serializers.BooleanField()
    detail = serializers.CharField(help_text="What the check found and, if the check failed, what to do.")


class LivenessSerializer(serializers.Serializer[Any]):
    status = serializers.ChoiceField(choices=["alive"])


class ReadinessSerializer(serializers.Serializer[Any]):
    status = serializers.ChoiceField(choices=["ready", "not ready"])
    checks = serializers.DictField(child=HealthCheckSerializer())


class Health(APIView):
    """The base class of endpoints that monitoring systems call often, without authentication."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    throttle_classes = ()


class Live(Health):
    @extend_schema(responses=LivenessSerializer, auth=[], tags=["health"])
    def get(self, request: Request) -> Response:
        """Check that the web process responds.

        The database, the scheduler and the workers are not checked.
        """
        return Response({"status": "alive"}, headers={"Cache-Control": "no-store"})


class Ready(Health):
    @extend_schema(
        responses={200: ReadinessSerializer, 503: OpenApiResponse(ReadinessSerializer, "A check failed.")},
        auth=[],
        tags=["health"],
    )
    def get(self, request: Request) -> Response:
        """Check the database, its migrations, the scheduler and the workers.

        The response is 503 if any check fails.
        """
        found = checks(CHECKS)
        is_ready = all(check.ok for check in found.values())
        body = {
            "status": "ready" if is_ready else "not ready",
            "checks": {name: asdict(check) for name, check in found.items()},
        }
        return Response(body, status=200 if is_ready else 503, headers={"Cache-Control": "no-store"})


def checks(known: Mapping[str, Callable[[datetime], Check]]) -> dict[str, Check]:
    """Run checks and return their results by name. If the database is unreachable, all checks fail."""
    try:
        now = clock.now()
        return {name: check(now) for name, check in known.items()}
    except (DatabaseError, *AWAY):
        connection.close()
        return dict.fromkeys(known, Check(False, NO_DATABASE))


def _database(now: datetime) -> Check:
    fetch("SELECT 1", [])
    return Check(True, "The database responds.")


def _migrations(now: datetime) -> Check:
    missing = _shipped() - set(MigrationRecorder(connection).applied_migrations())
    if missing:
        return Check(False, f"Unapplied migrations: {len(missing)}. Run “manage.py migrate”.")
    return Check(True, "All migrations are applied.")


@cache
def _shipped() -> frozenset[tuple[str, str]]:
    loader = MigrationLoader(None, ignore_no_migrations=True)
    replaced = {name for each in loader.replacements.values() for name in each.replaces}
    return frozenset(loader.disk_migrations) - replaced


def _scheduler(now: datetime) -> Check:
    tick = Chore.objects.last_tick()
    if tick is None or tick.last_run_at is None:
        return Check(False, "No scheduler has run yet. Start “manage.py runscheduler”.")
    ago = span(max(now, tick.last_run_at) - tick.last_run_at)
    if not is_ticking(tick, now=now):
        return Check(False, f"No scheduler has run for {ago}. Start “manage.py runscheduler”.")
    return Check(True, f"A scheduler was last active {ago} ago.")


def _workers(now: datetime) -> Check:
    seats = list(Worker.objects.holding_leases(now).values_list("seats", flat=True))
    if not seats:
        return Check(False, "No worker is running. Start “manage.py runworker”.")
    return Check(True, f"Running workers: {len(seats)}. Tasks that they can run at once: {sum(seats)}.")


CHECKS = {"database": _database, "migrations": _migrations, "scheduler": _scheduler, "workers": _workers}
