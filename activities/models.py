from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, models
from django.db.models import Q, Value
from django.db.models.functions import Coalesce, Greatest
from django.urls import reverse

from database.statements import among, fetch, insert_each, planned_once, update_each, update_those, write
from operations.initiator import Initiator
from text.clean import clean_json, clean_text
from text.words import said

from .details import Detail, details_of
from .signals import activities_finished, listener_condition


class Ending(NamedTuple):
    """How one activity ends. `ActivityQuerySet.finish` stores the fields in columns of the same names."""

    activity_id: int
    status: str
    finished_at: datetime
    executed_at: datetime | None = None
    message: str = ""
    error: str = ""
    traceback: str = ""
    result: Any = None
    items_total: int = 0
    items_failed: int = 0
    permanently_failed: bool = False

    def cleaned(self) -> Ending:
        if not (self.message or self.error or self.traceback) and self.result is None:
            return self
        return self._replace(
            message=clean_text(self.message),
            error=clean_text(self.error),
            traceback=clean_text(self.traceback),
            result=clean_json(self.result),
        )


# The permission that is needed to see the activities of a target type, for the types that are restricted.
# Each app adds its own types.
RESTRICTED: dict[str, str] = {}
# The permission that is needed to see the items of the activities of a target type, for the types whose items
# are personal data. The activities themselves, with their counts, are shown without it.
PERSONAL: dict[str, str] = {}

_OPEN = "t.status IN ('pending', 'in_progress')"


def _hidden(kinds: Mapping[str, str], may: Callable[[str], bool]) -> list[str]:
    return sorted(kind for kind, permission in kinds.items() if not may(permission))


class ActivityQuerySet(models.QuerySet["Activity"]):
    def seen_by(self, may: Callable[[str], bool]) -> ActivityQuerySet:
        """Keep the activities that a reader may see. `may` returns whether the reader has a permission."""
        hidden = _hidden(RESTRICTED, may)
        return self.exclude(target_type__in=hidden) if hidden else self

    def lacking_for_items(self, may: Callable[[str], bool]) -> set[str]:
        """Return the permissions that a reader lacks for seeing all items of these activities."""
        hidden = self.filter(target_type__in=_hidden(PERSONAL, may)).order_by()
        return {PERSONAL[kind] for kind in hidden.values_list("target_type", flat=True).distinct()}

    def open(self) -> ActivityQuerySet:
        return self.filter(status__in=Activity.OPEN)

    def add(
        self, fields: Sequence[str], rows: Sequence[Sequence[Any]], *, status: str, now: datetime
    ) -> list[int]:
        """Insert activities of attempts or executions in one statement; return the ids in the same order."""
        same = Activity.UNSAID | {"status": status, "created_at": now}
        same |= {"executed_at": now} if status == Activity.Status.IN_PROGRESS else {}
        return [pk for (pk,) in insert_each(Activity, fields, rows, same=same, returning="id")]

    def begin(self, ids: Sequence[int], *, worker_id: UUID, now: datetime) -> int:
        theirs, params = among("id", ids)
        at = connection.ops.adapt_datetimefield_value(now)
        return write(
            "UPDATE activities_activity SET status = 'in_progress', worker_id = %s, executed_at = %s "
            f"WHERE status = 'pending' AND {theirs}",
            [_worker(worker_id), at, *params],
        )

    def unbegin(self, ids: Sequence[int]) -> int:
        """Undo `begin` for attempts whose step never started: set them back to pending."""
        return self.filter(pk__in=ids, status=Activity.Status.IN_PROGRESS).update(
            status=Activity.Status.PENDING, worker_id=None, executed_at=None
        )

    def put_off(self, rows: Sequence[tuple[int, datetime, str]]) -> set[int]:
        """Set running attempts back to pending, to be continued later; return their activity ids.

        Each row is (activity id, time at which the attempt began, message).
        """
        return update_each(
            Activity,
            ("status", "worker_id", "executed_at", "message"),
            [(pk, Activity.Status.PENDING, None, begun, clean_text(message)) for pk, begun, message in rows],
            where="t.status = 'in_progress'",
        )

    def finish(self, endings: Sequence[Ending]) -> set[int]:
        """Finish the activities of `endings` that are still open, and return their ids.

        A finished activity never changes again.
        """
        finished = update_each(
            Activity,
            Ending._fields[1:],
            [ending.cleaned() for ending in endings],
            where=_OPEN,
        )
        activities_finished.send(Activity, ids=finished)
        return finished

    def finish_those(
        self, endings: Sequence[Ending], *, fence: str, params: Sequence[Any]
    ) -> list[Sequence[Any]]:
        """Finish those open activities of `endings` whose ids the SQL query `fence` returns.

        `params` are the parameters of `fence`. Its first column, `pk`, must be the activity id. Return the
        rows of `fence` without this column. Everything is one statement, which needs PostgreSQL.
        """
        found = update_those(
            Activity,
            Ending._fields[1:],
            [ending.cleaned() for ending in endings],
            fence=fence,
            fence_params=params,
            where=_OPEN,
            asking=listener_condition(),
        )
        activities_finished.send(
            Activity,
            ids={pk for is_done, _, pk, *_ in found if is_done},
            is_heard=any(is_heard for _, is_heard, *_ in found),
        )
        return [row for _, _, _, *row in found]

    def lock(self) -> ActivityQuerySet:
        """Lock the rows in the order of their ids, to avoid deadlocks."""
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def hold(self, ids: Iterable[int], *, worker_id: UUID) -> None:
        """Lock the attempts that the worker still runs, so that none of them ends during the transaction."""
        mine = self.filter(pk__in=ids, status=Activity.Status.IN_PROGRESS, worker_id=worker_id)
        list(mine.lock().values_list("pk"))

    def hold_attempt(self, key: UUID, attempt: int) -> int | None:
        """Lock this attempt of a task if it still runs, so that it cannot end during the transaction.

        Return the activity id; None if the attempt no longer runs. A step that writes rows of its own calls
        this first in each transaction, and writes nothing if the result is None.
        """
        running = self.filter(task_key=key, attempt=attempt, status=Activity.Status.IN_PROGRESS)
        return running.lock().values_list("pk", flat=True).first()

    def tell_progress(self, rows: Sequence[tuple[int, int, int | None, str]], *, worker_id: UUID) -> set[int]:
        """Store the progress of the attempts that the worker still runs, and return their activity ids.

        Each row is (activity id, done, total, message).
        """
        return update_each(
            Activity,
            ("progress_done", "progress_total", "message"),
            rows,
            where="t.status = 'in_progress' AND t.worker_id = %s",
            params=[_worker(worker_id)],
        )

    def close(self, *, status: str, message: str, now: datetime) -> int:
        """End the open activities of this queryset with this status and message, and return their number.

        The caller must make sure that no other process writes to these activities.
        """
        ids = list(self.open().values_list("pk", flat=True))
        return self._close(ids, status=status, message=message, now=now)

    def close_lines(
        self, lines: Sequence[tuple[int, int]], *, status: str, message: str, now: datetime
    ) -> int:
        """End the open attempts of these steps, and return the number of attempts.

        Each of `lines` is (id of the execution's activity, position of the step in the plan).
        """
        theirs, params = among("(parent_id, line)", lines)
        # The concatenation keeps PostgreSQL from using the index of open activities, which may be huge.
        open_ones = f"{theirs} AND status || '' IN ('pending', 'in_progress')"
        ids = [pk for (pk,) in fetch(f"SELECT id FROM activities_activity WHERE {open_ones}", params)]
        return self._close(ids, status=status, message=message, now=now)

    def _close(self, ids: Sequence[int], *, status: str, message: str, now: datetime) -> int:
        closed = Activity.objects.open().filter(pk__in=ids)
        # An activity may have begun after the clock was read, while this transaction waited for the lock.
        ended = Greatest(Value(now, models.DateTimeField()), Coalesce("executed_at", "created_at"))
        count = closed.update(status=status, message=message, finished_at=ended) if ids else 0
        if count:
            activities_finished.send(Activity, ids=ids)
        return count

    def record(
        self,
        operation: str,
        target: models.Model,
        *,
        initiator: Initiator,
        now: datetime,
        message: str = "",
        details: Any = None,
    ) -> int:
        """Record an administrative change as a finished activity, and return the activity's id."""
        told = {"initiator": initiator, "now": now, "message": message, "details": details}
        [made] = self.record_each(operation, [target], **told)
        return made

    def record_each(
        self,
        operation: str,
        targets: Iterable[models.Model],
        *,
        initiator: Initiator,
        now: datetime,
        message: str = "",
        details: Any = None,
    ) -> list[int]:
        """Record the same change of several targets, in one activity for each target; return their ids."""
        cleaned = clean_text(message), clean_json(details)
        fields = ("target_type", "target_id", "target_name", "message", "details")
        rows = [
            (target._meta.model_name or "", str(target.pk)[:64], str(target), *cleaned) for target in targets
        ]
        same = {name: value for name, value in Activity.UNSAID.items() if name not in fields} | {
            "status": Activity.Status.COMPLETE,
            "operation": operation,
            "initiator_type": initiator.type,
            "initiator_id": initiator.id,
            "initiator_name": initiator.name,
            "created_at": now,
            "executed_at": now,
            "finished_at": now,
        }
        with planned_once():
            made = [pk for (pk,) in insert_each(Activity, fields, rows, same=same, returning="id")]
        activities_finished.send(Activity, ids=made, operation=operation)
        return made

    def record_ended(self, activities: Sequence[Activity]) -> None:
        """Store activities of work that ended without being run."""
        if activities:
            made = self.bulk_create(activities)
            activities_finished.send(Activity, ids=[activity.pk for activity in made])

    def administrative(self) -> ActivityQuerySet:
        return self.exclude(operation=Activity.RUN)

    def prune_single(self, *, before: datetime, limit: int) -> int:
        """Delete all attempts of at most `limit` single jobs whose last attempt ended before `before`.

        The attempts of a job are deleted together, because the first attempt keeps the job's idempotency key
        in use.
        """
        ended = self.filter(operation=Activity.RUN, parent=None, execution=None, retries=None)
        old = list(ended.filter(finished_at__lt=before).values_list("pk", "task_key")[:limit])
        chains = Q(task_key__in=[key for _, key in old if key], parent=None)
        return self.filter(Q(pk__in=[pk for pk, _ in old]) | chains).delete()[0]

    def prune_administrative(self, *, before: datetime, limit: int) -> int:
        old = self.administrative().filter(parent=None, finished_at__lt=before).values_list("pk", flat=True)
        return self.filter(pk__in=list(old[:limit])).delete()[0]


class Activity(models.Model):
    """The permanent record of one attempt, or of one administrative change."""

    class Status(models.TextChoices):
        PENDING = "pending"
        IN_PROGRESS = "in_progress"
        COMPLETE = "complete"
        COMPLETE_WITH_WARNING = "complete_with_warning"
        COMPLETE_WITH_ERROR = "complete_with_error"
        FAILED_WITH_ERROR = "failed_with_error"
        CANCELLED = "cancelled"
        SKIPPED = "skipped"

    OPEN = (Status.PENDING, Status.IN_PROGRESS)
    FAILURES = (Status.FAILED_WITH_ERROR, Status.COMPLETE_WITH_ERROR, Status.CANCELLED)
    RUN = "run"
    # The field values of an activity that has not reported anything yet.
    UNSAID = {
        "operation": RUN,
        "attempt": 1,
        "message": "",
        "error": "",
        "traceback": "",
        "permanently_failed": False,
        "items_total": 0,
        "items_failed": 0,
    }

    status = models.CharField(max_length=24, choices=Status.choices, default=Status.PENDING)
    operation = models.CharField(max_length=24, default=RUN)
    target_type = models.CharField(max_length=40)
    target_id = models.CharField(max_length=64, blank=True)
    target_name = models.CharField(max_length=255)
    initiator_type = models.CharField(max_length=16)
    initiator_id = models.CharField(max_length=64, blank=True)
    initiator_name = models.CharField(max_length=255)
    parent = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, related_name="children", db_index=False
    )
    retry_of = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="retries", db_index=False
    )
    task_key = models.UUIDField(null=True, blank=True)
    attempt = models.PositiveIntegerField(default=1)
    step_index = models.PositiveIntegerField(
        null=True, blank=True, help_text="The number of the group of steps that the step belongs to."
    )
    line = models.PositiveIntegerField(
        null=True, blank=True, help_text="The step's position in the plan, starting at 0."
    )
    worker_id = models.UUIDField(null=True, blank=True)
    created_at = models.DateTimeField()
    executed_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    progress_done = models.BigIntegerField(null=True, blank=True)
    progress_total = models.BigIntegerField(null=True, blank=True)
    message = models.TextField(blank=True)
    error = models.TextField(blank=True)
    permanently_failed = models.BooleanField(
        default=False, help_text="The step failed and will not be retried automatically."
    )
    traceback = models.TextField(blank=True)
    result = models.JSONField(null=True, blank=True)
    details = models.JSONField(null=True, blank=True)
    items_total = models.PositiveIntegerField(default=0)
    items_failed = models.PositiveIntegerField(default=0)

    objects = ActivityQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "activities"
        constraints = [
            models.UniqueConstraint(fields=["task_key", "attempt"], name="activity_once_per_attempt"),
        ]
        indexes = [
            # Each index has a condition: each task writes its activity three times, and each write updates
            # every index that contains the row.
            models.Index(
                fields=["parent", "step_index"],
                name="activity_of_group",
                condition=Q(parent__isnull=False),
            ),
            models.Index(fields=["retry_of"], name="activity_retry_of", condition=Q(retry_of__isnull=False)),
            # Excludes attempts, which are found by their task's key.
            models.Index(
                fields=["target_type", "target_id", "-id"],
                name="activity_of_target",
                condition=Q(task_key=None),
            ),
            # Finds the few changes of a target among its many runs.
            models.Index(
                fields=["target_type", "target_id", "-id"],
                name="activity_change",
                condition=~Q(operation="run"),
            ),
            models.Index(
                fields=["status", "id"],
                name="activity_open",
                condition=Q(status__in=["pending", "in_progress"]),
            ),
            models.Index(
                fields=["finished_at"], name="activity_administrative", condition=~Q(operation="run")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.target_name} ({said(self.status)})"

    def get_absolute_url(self) -> str:
        return reverse("web:activity", args=[self.pk])

    @property
    def is_final(self) -> bool:
        return self.status not in self.OPEN

    @property
    def failed(self) -> bool:
        return self.status in self.FAILURES

    @property
    def finality(self) -> str:
        """Return a sentence that says that the step failed permanently, or an empty string if it did not."""
        if not self.permanently_failed:
            return ""
        if self.attempt == 1:
            return "Failed permanently. The step will not be retried automatically."
        return f"Failed permanently after {self.attempt} attempts."

    @property
    def duration(self) -> timedelta | None:
        if self.executed_at is None or self.finished_at is None:
            return None
        return self.finished_at - self.executed_at

    def chain(self) -> list[Activity]:
        """Return all attempts of the same step, oldest first."""
        return [self] if self.task_key is None else list(self.attempts())

    def attempts(self) -> ActivityQuerySet:
        """Return the queryset of all attempts of the same step; empty for an administrative change."""
        is_step = self.task_key is not None
        rows = Activity.objects.filter(task_key=self.task_key) if is_step else Activity.objects.none()
        return rows.order_by("attempt")


class AttemptOutputQuerySet(models.QuerySet[Any]):
    """Output lines or items of attempts. A worker can add them only while it runs the attempt."""

    def append(self, fields: Sequence[str], rows: Sequence[Sequence[Any]], *, worker_id: UUID) -> set[int]:
        """Insert the rows of attempts that the worker still runs; return the ids of these attempts.

        The first value of each row is the activity id of the attempt.
        """
        written = insert_each(
            self.model,
            ("activity", *fields),
            rows,
            where="EXISTS (SELECT 1 FROM activities_activity a WHERE a.id = v.activity_id "
            "AND a.status = 'in_progress' AND a.worker_id = %s)",
            params=[_worker(worker_id)],
            returning="activity_id",
        )
        return {activity_id for (activity_id,) in written}


class ActivityItemQuerySet(AttemptOutputQuerySet):
    def seen_by(self, may: Callable[[str], bool]) -> ActivityItemQuerySet:
        """Keep the items that a reader may see. `may` returns whether the reader has a permission."""
        hidden = sorted({*_hidden(RESTRICTED, may), *_hidden(PERSONAL, may)})
        return self.exclude(activity__target_type__in=hidden) if hidden else self

    def of_object(self, name: str) -> ActivityItemQuerySet:
        """Keep the items about one of JIM's own objects, such as `identity:17`, the newest first."""
        # The first condition is that of the partial index: SQLite uses the index only if it is repeated.
        return self.exclude(object="").filter(object=name).order_by("-pk")


def _worker(worker_id: UUID) -> Any:
    return Activity._meta.get_field("worker_id").get_db_prep_value(worker_id, connection)


class ActivityItem(models.Model):
    """The outcome of one object that an activity worked on.

    The fields from `change` on are for steps that write their items themselves, together with rows of their
    own. These fields have defaults in the database, so that other items are inserted without them.
    """

    class Outcome(models.TextChoices):
        OK = "ok"
        WARNING = "warning"
        FAILED = "failed"
        SKIPPED = "skipped"

    activity = models.ForeignKey(Activity, models.CASCADE, related_name="items")
    name = models.CharField(max_length=255)
    outcome = models.CharField(max_length=8, choices=Outcome.choices)
    message = models.TextField(blank=True)
    created_at = models.DateTimeField()
    change = models.CharField(
        max_length=24,
        blank=True,
        db_default="",
        help_text="What happened to the object, such as `added` or `updated`.",
    )
    error_type = models.CharField(
        max_length=32, blank=True, db_default="", help_text="The kind of error, such as `bad_value`."
    )
    object = models.CharField(
        max_length=64,
        blank=True,
        db_default="",
        help_text="JIM's own name of the object, such as `identity:17`.",
    )
    external_id = models.CharField(
        max_length=255, blank=True, db_default="", help_text="The id of the object in a connected system."
    )
    data = models.JSONField(
        null=True,
        blank=True,
        help_text="Details by name. A list of two values is a change, such as "
        '`{"department": ["Sales", "IT"]}`; null stands for no value.',
    )

    objects = ActivityItemQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["object", "-id"], name="item_of_object", condition=~Q(object="")),
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.get_outcome_display()}"

    @property
    def details(self) -> list[Detail]:
        return details_of(self.data)


class OutputLine(models.Model):
    activity = models.ForeignKey(Activity, models.CASCADE, related_name="output", db_index=False)
    number = models.PositiveIntegerField()
    stream = models.CharField(max_length=8)
    text = models.TextField(blank=True)
    written_at = models.DateTimeField()

    objects = AttemptOutputQuerySet.as_manager()

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["activity", "number"], name="output_line_once"),
        ]

    def __str__(self) -> str:
        return self.text
