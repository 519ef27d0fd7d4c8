"""What Prometheus scrapes: looked up at each scrape, in a few queries that no large table makes long."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Sum
from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeHistogramMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from database import clock
from execution.models import Chore, Execution, Worker, WorkerTask
from execution.queue import pools
from schedules.models import Schedule
from webhooks.models import Delivery, Endpoint
from workflows.failures import Status
from workflows.models import Run, Topic, Workflow
from workflows.models.event import MOST_COUNTED as MOST_COUNTED_EVENTS

from .permissions import can

VIEW = "execution.view_execution"
RECENTLY = timedelta(hours=1)
MOST_RECENT = 10_000
MOST_COUNTED = 100_000
BUCKETS = (0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3_600, 14_400)
COUNTERS = ("started", "skipped", "missed", "dropped", "failed")


class MayScrape(BasePermission):
    message = f"This needs the permission “{VIEW}”, a token with the scope “view”, or JIM_METRICS_OPEN=1."

    def has_permission(self, request: Request, view: Any) -> bool:
        return settings.JIM_METRICS_OPEN or (request.user.is_authenticated and can(request, VIEW))


class Whatever(DefaultContentNegotiation):
    """Prometheus asks for formats that are none of the API's; errors come as JSON."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


class Metrics(APIView):
    permission_classes = (MayScrape,)
    throttle_classes = ()
    content_negotiation_class = Whatever

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        registry = CollectorRegistry()
        registry.register(Look(clock.now()))
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        headers = {"Cache-Control": "no-store"}
        return HttpResponse(encode(registry), content_type=content_type, headers=headers)


class Look(Collector):
    """How things are at one moment."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def collect(self) -> Iterator[Metric]:
        yield from self._queue()
        yield from self._workers()
        yield from self._executions()
        yield from self._schedules()
        yield from self._workflows()
        yield from self._webhooks()

    def describe(self) -> list[Metric]:
        """Nothing is looked up to register it."""
        return []

    def _queue(self) -> Iterator[Metric]:
        found = pools.look(self.now)
        states = ("queued", "delayed", "waiting", "processing")
        yield _gauge(
            "jim_tasks",
            "Tasks of the queue: ready, for a later time, behind other steps, running.",
            [({"pool": pool.name, "state": state}, pool.tasks[state]) for pool in found for state in states],
        )
        yield _gauge(
            "jim_task_oldest_wait_seconds",
            "For how long the first of the ready tasks could have started.",
            [({"pool": pool.name}, pool.waits_for(self.now)) for pool in found],
        )
        yield _gauge(
            "jim_pool_seats",
            "How many tasks the living workers of a pool run at once.",
            [({"pool": pool.name}, pool.seats) for pool in found],
        )

    def _workers(self) -> Iterator[Metric]:
        seats = list(Worker.objects.holding_leases(self.now).values_list("seats", flat=True))
        busy = WorkerTask.objects.processing().filter(worker__isnull=False)[:MOST_COUNTED].count()
        yield _number("jim_workers", "Workers whose lease holds.", len(seats))
        yield _number("jim_worker_seats", "Their seats.", sum(seats))
        yield _number("jim_worker_seats_busy", "Those of them in which a task runs.", busy)

    def _executions(self) -> Iterator[Metric]:
        running = Execution.objects.in_progress()
        yield _number("jim_executions_running", "In progress.", running[:MOST_COUNTED].count())
        late = Execution.objects.late(self.now)[:MOST_COUNTED].count()
        yield _number("jim_executions_late", "Still running after their deadline.", late)
        ended = Execution.objects.filter(finished_at__gt=self.now - RECENTLY).order_by("-finished_at")
        rows = list(ended.values_list("status", "started_at", "finished_at")[:MOST_RECENT])
        outcomes = Counter(status for status, _, _ in rows)
        statuses = [status for status in Execution.Status.values if status != "in_progress"]
        yield _gauge(
            "jim_executions_ended_last_hour",
            f"By outcome; of the last {MOST_RECENT:,} at most.",
            [({"outcome": status}, outcomes[status]) for status in statuses],
        )
        seconds = [(end - begin).total_seconds() for _, begin, end in rows if end]
        yield _histogram("jim_execution_seconds_last_hour", "How long those took.", seconds)

    def _schedules(self) -> Iterator[Metric]:
        sums = {name: Sum(f"{name}_count") for name in COUNTERS}
        by_status: Any = Schedule.objects.values("status").order_by("status")
        rows = list(by_status.annotate(count=Count("pk"), **sums))
        counts = {row["status"]: row["count"] for row in rows}
        yield _gauge(
            "jim_schedules",
            "By status.",
            [({"status": status}, counts.get(status, 0)) for status in Schedule.Status.values],
        )
        total = CounterMetricFamily(
            "jim_schedule_occurrences",
            "What became of times and requests; failed ones started.",
            labels=["fate"],
        )
        for name in COUNTERS:
            total.add_metric([name], sum(row[name] or 0 for row in rows))
        yield total
        overdue = Schedule.objects.overdue(self.now)[:MOST_COUNTED].count()
        yield _number("jim_schedules_overdue", "Their time has passed, and no scheduler saw to it.", overdue)
        tick = Chore.objects.last_tick()
        at, took = (tick.last_run_at, tick.took_seconds) if tick else (None, None)
        age = max(0.0, (self.now - at).total_seconds()) if at else float("inf")
        yield _number("jim_scheduler_tick_age_seconds", "Since a scheduler looked at everything.", age)
        yield _number("jim_scheduler_tick_seconds", "How long that took.", took or 0.0)

    def _workflows(self) -> Iterator[Metric]:
        """Of each workflow at most one run is open, and topics are as many as the code has."""
        waiting = Run.objects.waiting().filter(workflow__status=Workflow.Status.RUNNING)
        yield _number("jim_workflows_stuck", "Waiting for somebody to act.", waiting.count())
        active = Run.objects.open().active().count()
        yield _number("jim_runs_active", "Runs of handlers that were started and have not ended.", active)
        settled = Run.objects.filter(settled_at__gt=self.now - RECENTLY).order_by("-settled_at")
        outcomes = Counter(settled.values_list("status", flat=True)[:MOST_RECENT])
        yield _gauge(
            "jim_runs_ended_last_hour",
            f"By status; of the last {MOST_RECENT:,} at most. Those that were tried again count as well.",
            [({"status": each.value}, outcomes[each.value]) for each in Status if each != Status.ACTIVE],
        )
        topics: Any = list(Topic.objects.with_backlog())
        yield _gauge(
            "jim_topic_events_pending",
            f"Events that wait to be consumed; counted up to {MOST_COUNTED_EVENTS + 1:,}.",
            [({"topic": topic.slug}, topic.pending_count) for topic in topics],
        )
        yield _gauge(
            "jim_topic_oldest_pending_seconds",
            "For how long the first of them waits.",
            [({"topic": topic.slug}, self._since(topic.oldest_at)) for topic in topics],
        )

    def _since(self, at: datetime | None) -> float:
        return max(0.0, (self.now - at).total_seconds()) if at else 0.0

    def _webhooks(self) -> Iterator[Metric]:
        pending = Delivery.objects.pending()[:MOST_COUNTED].count()
        yield _number("jim_webhook_deliveries_pending", "On their way.", pending)
        counts = Counter(Endpoint.objects.present().values_list("status", flat=True))
        yield _gauge(
            "jim_webhooks",
            "By status.",
            [({"status": status}, counts[status]) for status in ("enabled", "disabled")],
        )


def _number(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value=value)


def _gauge(name: str, words: str, samples: Iterable[tuple[dict[str, str], float]]) -> Metric:
    listed = list(samples)
    family = GaugeMetricFamily(name, words, labels=list(listed[0][0]) if listed else [])
    for labels, value in listed:
        family.add_metric(list(labels.values()), value)
    return family


def _histogram(name: str, words: str, values: Iterable[float]) -> Metric:
    ordered = sorted(values)
    buckets = [(str(float(edge)), float(bisect_left(ordered, edge + 1e-9))) for edge in BUCKETS]
    buckets.append(("+Inf", float(len(ordered))))
    return GaugeHistogramMetricFamily(name, words, buckets=buckets, gsum_value=sum(ordered))
