"""Prometheus metrics, computed at each scrape with a few queries of limited size."""

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
    message = (
        f"Metrics need the permission “{VIEW}” and, for tokens, the scope “view”. To publish metrics without "
        "authentication, set JIM_METRICS_OPEN=1."
    )

    def has_permission(self, request: Request, view: Any) -> bool:
        return settings.JIM_METRICS_OPEN or (request.user.is_authenticated and can(request, VIEW))


class IgnoreAcceptHeader(DefaultContentNegotiation):
    """Content negotiation that ignores the Accept header, so that no scraper is refused."""

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


class Metrics(APIView):
    permission_classes = (MayScrape,)
    throttle_classes = ()
    content_negotiation_class = IgnoreAcceptHeader

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        registry = CollectorRegistry()
        registry.register(MetricsCollector(clock.now()))
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        headers = {"Cache-Control": "no-store"}
        return HttpResponse(encode(registry), content_type=content_type, headers=headers)


class MetricsCollector(Collector):
    """A Prometheus collector of all metrics at one point in time."""

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
        """Return nothing, so that registering the collector costs no queries."""
        return []

    def _queue(self) -> Iterator[Metric]:
        found = pools.look(self.now)
        states = ("queued", "delayed", "waiting", "processing")
        yield _gauge(
            "jim_tasks",
            "Number of tasks by state: queued (ready to start), delayed, waiting (for earlier steps) or "
            "processing.",
            [({"pool": pool.name, "state": state}, pool.tasks[state]) for pool in found for state in states],
        )
        yield _gauge(
            "jim_task_oldest_wait_seconds",
            "How long the longest-waiting ready task of the pool has been waiting, in seconds.",
            [({"pool": pool.name}, pool.waits_for(self.now)) for pool in found],
        )
        yield _gauge(
            "jim_pool_seats",
            "Number of tasks that the running workers of a pool can run at once.",
            [({"pool": pool.name}, pool.seats) for pool in found],
        )

    def _workers(self) -> Iterator[Metric]:
        seats = list(Worker.objects.holding_leases(self.now).values_list("seats", flat=True))
        busy = WorkerTask.objects.processing().filter(worker__isnull=False)[:MOST_COUNTED].count()
        yield _number("jim_workers", "Number of running workers.", len(seats))
        yield _number(
            "jim_worker_seats",
            "Number of tasks that all running workers together can run at once (seats).",
            sum(seats),
        )
        yield _number(
            "jim_worker_seats_busy",
            "Number of tasks that the workers are running. Each takes one seat.",
            busy,
        )

    def _executions(self) -> Iterator[Metric]:
        running = Execution.objects.in_progress()
        yield _number(
            "jim_executions_running", "Number of executions in progress.", running[:MOST_COUNTED].count()
        )
        late = Execution.objects.late(self.now)[:MOST_COUNTED].count()
        yield _number(
            "jim_executions_late", "Number of executions that are still running after their deadline.", late
        )
        ended = Execution.objects.filter(finished_at__gt=self.now - RECENTLY).order_by("-finished_at")
        rows = list(ended.values_list("status", "started_at", "finished_at")[:MOST_RECENT])
        outcomes = Counter(status for status, _, _ in rows)
        statuses = [status for status in Execution.Status.values if status != "in_progress"]
        yield _gauge(
            "jim_executions_ended_last_hour",
            "Number of executions that ended in the last hour, by outcome. "
            f"Only the last {MOST_RECENT:,} are counted.",
            [({"outcome": status}, outcomes[status]) for status in statuses],
        )
        seconds = [(end - begin).total_seconds() for _, begin, end in rows if end]
        yield _histogram(
            "jim_execution_seconds_last_hour",
            "Durations of the executions that ended in the last hour, in seconds.",
            seconds,
        )

    def _schedules(self) -> Iterator[Metric]:
        sums = {name: Sum(f"{name}_count") for name in COUNTERS}
        by_status: Any = Schedule.objects.values("status").order_by("status")
        rows = list(by_status.annotate(count=Count("pk"), **sums))
        counts = {row["status"]: row["count"] for row in rows}
        yield _gauge(
            "jim_schedules",
            "Number of schedules by status.",
            [({"status": status}, counts.get(status, 0)) for status in Schedule.Status.values],
        )
        total = CounterMetricFamily(
            "jim_schedule_occurrences",
            "Number of occurrences of all schedules, by outcome. Failed occurrences are also counted as "
            "started.",
            labels=["fate"],
        )
        for name in COUNTERS:
            total.add_metric([name], sum(row[name] or 0 for row in rows))
        yield total
        overdue = Schedule.objects.overdue(self.now)[:MOST_COUNTED].count()
        yield _number(
            "jim_schedules_overdue",
            "Number of overdue schedules: a scheduled time has passed, but no scheduler has processed it.",
            overdue,
        )
        tick = Chore.objects.last_tick()
        at, took = (tick.last_run_at, tick.took_seconds) if tick else (None, None)
        age = max(0.0, (self.now - at).total_seconds()) if at else float("inf")
        yield _number(
            "jim_scheduler_tick_age_seconds",
            "Seconds since a scheduler was last active.",
            age,
        )
        yield _number(
            "jim_scheduler_tick_seconds",
            "Duration of the last pass of a scheduler over all due work, in seconds.",
            took or 0.0,
        )

    def _workflows(self) -> Iterator[Metric]:
        """Yield the metrics of workflows.

        Open runs and topics are counted without a limit, because each workflow has at most one open run and
        topics are declared in code.
        """
        waiting = Run.objects.waiting().filter(workflow__status=Workflow.Status.ACTIVE)
        yield _number("jim_workflows_stuck", "Number of workflows that need attention.", waiting.count())
        active = Run.objects.open().active().count()
        yield _number("jim_runs_active", "Number of workflow runs that are in progress.", active)
        settled = Run.objects.filter(settled_at__gt=self.now - RECENTLY).order_by("-settled_at")
        outcomes = Counter(settled.values_list("status", flat=True)[:MOST_RECENT])
        yield _gauge(
            "jim_runs_ended_last_hour",
            "Number of workflow runs that ended in the last hour, by status. Retried runs also count. "
            f"Only the last {MOST_RECENT:,} are counted.",
            [({"status": each.value}, outcomes[each.value]) for each in Status if each != Status.ACTIVE],
        )
        topics: Any = list(Topic.objects.with_backlog())
        yield _gauge(
            "jim_topic_events_pending",
            f"Number of events that wait to be consumed, by topic, up to {MOST_COUNTED_EVENTS + 1:,}.",
            [({"topic": topic.slug}, topic.pending_count) for topic in topics],
        )
        yield _gauge(
            "jim_topic_oldest_pending_seconds",
            "How long the oldest pending event of a topic has been waiting, in seconds.",
            [({"topic": topic.slug}, self._since(topic.oldest_at)) for topic in topics],
        )

    def _since(self, at: datetime | None) -> float:
        return max(0.0, (self.now - at).total_seconds()) if at else 0.0

    def _webhooks(self) -> Iterator[Metric]:
        pending = Delivery.objects.pending()[:MOST_COUNTED].count()
        yield _number(
            "jim_webhook_deliveries_pending",
            "Number of webhook deliveries that are waiting to be sent or retried.",
            pending,
        )
        counts = Counter(Endpoint.objects.present().values_list("status", flat=True))
        yield _gauge(
            "jim_webhooks",
            "Number of webhooks by status.",
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
