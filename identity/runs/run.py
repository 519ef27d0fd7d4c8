"""What all runs share: the fence, pages, items, counts and limits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.db.models import Q

from activities.models import Activity, ActivityItem
from database.statements import insert_each, set_locally
from execution.steps.context import Context
from execution.steps.outcome import StepFailed
from identity.models import ConnectedSystem, RunProfile
from identity.rulebook import Rulebook, RuleError
from operations.initiator import Initiator
from text.clean import clean_text

from .limits import Finding, LimitExceeded, check

DEADLOCK = "40P01"
REPEATS = 5
T = TypeVar("T")
ITEM_FIELDS = (
    "activity", "name", "outcome", "message", "created_at",
    "change", "error_type", "object", "external_id", "data",
)  # fmt: skip


class Item(NamedTuple):
    """What a run did to one object, or why it failed."""

    name: str
    change: str = ""
    object: str = ""
    external_id: str = ""
    data: dict[str, Any] | None = None
    message: str = ""
    error_type: str = ""
    is_warning: bool = False

    @property
    def outcome(self) -> str:
        return "failed" if self.error_type and not self.is_warning else "warning" if self.is_warning else "ok"


def insert_items(activity_id: int, items: Sequence[Item], *, now: datetime) -> None:
    rows = [
        (
            activity_id,
            clean_text(item.name)[:255],
            item.outcome,
            clean_text(item.message),
            now,
            item.change,
            item.error_type,
            item.object,
            item.external_id[:255],
            item.data,
        )
        for item in items
    ]
    if rows:
        insert_each(ActivityItem, ITEM_FIELDS, rows)


class PageCounts(NamedTuple):
    """What one page adds to the counts of its run: objects that were considered, and what happened."""

    total: int
    failed: int = 0
    warned: int = 0
    counts: Counter[str] = Counter()


class Run(ABC):
    """One attempt of a step that reads and writes identities or accounts."""

    def __init__(self, ctx: Context, *, keeps_changes: bool = True) -> None:
        self.ctx = ctx
        self.keeps_changes = keeps_changes
        self.counts: Counter[str] = Counter()
        self.now: datetime = ctx.clock()
        activity = Activity.objects.get(task_key=ctx.work.key, attempt=ctx.attempt)
        self.activity_id = activity.pk
        self.initiator = Initiator(activity.initiator_type, activity.initiator_id, activity.initiator_name)

    @abstractmethod
    def perform(self) -> None: ...

    def run(self) -> dict[str, int]:
        """Do the run and return its counts."""
        self.perform()
        return {name: count for name, count in sorted(self.counts.items()) if count}

    def page(self, work: Callable[[], T]) -> T:
        """Do the work in one transaction, if the attempt still runs; repeat it after a deadlock.

        The work must not change anything in memory but what it returns.
        """
        self.ctx.check()
        for repeat in range(REPEATS):
            try:
                with transaction.atomic():
                    _use_indexes()
                    self._hold()
                    return work()
            except OperationalError as error:
                if getattr(error.__cause__, "sqlstate", "") != DEADLOCK or repeat + 1 == REPEATS:
                    raise
        raise AssertionError  # the loop returns or raises

    def _hold(self) -> None:
        if Activity.objects.hold_attempt(UUID(self.ctx.work.key), self.ctx.attempt) is None:
            self.ctx.interrupt("lost")
            self.ctx.check()

    def write_items(self, items: Sequence[Item]) -> None:
        kept = [item for item in items if self.keeps_changes or item.error_type]
        insert_items(self.activity_id, kept, now=self.now)

    def take(self, page: PageCounts) -> None:
        """Add the counts of a page that was committed."""
        self.counts += page.counts
        if page.failed:
            self.counts["failed"] += page.failed
        self.ctx.count(page.total, failed=page.failed, warned=page.warned)

    def progress(self, done: int, total: int | None, what: str) -> None:
        self.ctx.progress(done, total, clean_text(what))


class SystemRun(Run):
    """One attempt to work on a connected system. Only one run at a time does so."""

    def __init__(self, system: ConnectedSystem, ctx: Context, *, keeps_changes: bool = True) -> None:
        super().__init__(ctx, keeps_changes=keeps_changes)
        self.system = system

    def run(self) -> dict[str, int]:
        self._begin()
        try:
            return super().run()
        finally:
            self._end()

    def _begin(self) -> None:
        """Make sure that no other run works on the system; the limit of the resource is only the queue."""
        open_ones = Activity.objects.open().values("pk")
        is_free = Q(running_activity_id=None) | Q(running_activity_id=self.activity_id)
        free = ConnectedSystem.objects.filter(is_free | ~Q(running_activity_id__in=open_ones))
        if not free.filter(pk=self.system.pk).update(running_activity_id=self.activity_id):
            raise StepFailed(
                f"Another run of “{self.system}” is still in progress. Try again when it has ended."
            )

    def _end(self) -> None:
        """Make the system free for the next run. Without this, the next run finds this attempt ended."""
        mine = ConnectedSystem.objects.filter(pk=self.system.pk, running_activity_id=self.activity_id)
        mine.update(running_activity_id=None)


class ProfileRun(SystemRun):
    """One attempt to run a run profile, with its limits."""

    def __init__(self, profile: RunProfile, ctx: Context) -> None:
        super().__init__(profile.system, ctx, keeps_changes=profile.items == RunProfile.Items.CHANGES)
        self.profile = profile

    def run(self) -> dict[str, int]:
        """Do the run and return its counts. Store what exceeded a limit; an approval is good for one run."""
        mine = RunProfile.objects.filter(pk=self.profile.pk)
        try:
            result = super().run()
        except LimitExceeded as exceeded:
            mine.update(finding=exceeded.finding.as_json(activity_id=self.activity_id, now=self.now))
            raise
        mine.update(finding=None, approval=None)
        return result

    def check(self, finding: Finding) -> None:
        """Raise LimitExceeded if the finding exceeds the profile's limit and is not approved."""
        check(self.profile, finding)


def load_rules() -> Rulebook:
    try:
        return Rulebook.load()
    except RuleError as error:
        raise StepFailed(str(error), can_retry=False) from None


def _use_indexes() -> None:
    """Make PostgreSQL use indexes even if a table has just been filled and has no statistics yet."""
    if connection.vendor == "postgresql":
        set_locally({"enable_seqscan": "off", "jit": "off"})
