"""Decides from the tables whether a schedule kept to its spec and to its policies, in all its life.

What was in force when is read from the activities; the times come from arithmetic or from the oracle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import Min

from activities.models import Activity
from execution.models import Execution
from schedules.models import Backfill, Occurrence, Schedule
from tests.schedules import oracle

MICROSECOND, DAY = timedelta(microseconds=1), timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVER = datetime(9000, 1, 1, tzinfo=UTC)
ON_TIME = timedelta(seconds=10)
BACKFILLS_AT_ONCE = 10
LATE = "later than the catch-up window"
# Each reason, or the beginning of one that goes on, and under what it is counted.
SKIPS = {
    "overlap": "overlap",
    "superseded": "superseded",
    "no runs left": "no runs left",
    "discarded": "discarded",
    "on request from ": "on request",
    "the schedule has no steps": "impossible",
    "cannot be started: ": "impossible",
    "could not be started: ": "impossible",
}
REASONS = {
    "pending": {"", "overlap"},
    "started": {""},
    "missed": {LATE},
    "dropped": {"buffer full"},
    "cancelled": {"closed", "backfill cancelled"},
}
KEYS = {
    "auto": "auto/{at}",
    "manual": "manual/",
    "event": "event/",
    "backfill": "backfill/{backfill}/{at}",
}


class Version(NamedTuple):
    """A definition, and how long it was in force."""

    since: datetime
    until: datetime
    definition: Mapping[str, Any]


@dataclass
class Life:
    """All that the tables tell of one schedule, in the order in which it was written.

    `moment`: clocks of several processes meet in one record, so this much difference is no contradiction.
    """

    schedule: Schedule
    occurrences: list[Occurrence]
    executions: list[Execution]
    changes: list[Activity]
    backfills: list[Backfill]
    claims: Mapping[int, datetime]
    calendar_changes: list[Activity]
    moment: timedelta

    @classmethod
    def load_all(cls, *, moment: timedelta) -> list[Life]:
        targets = Activity.objects.filter(target_type="schedule").administrative().order_by("pk")
        changes = _by(lambda activity: int(activity.target_id), targets)
        executions = _by(lambda execution: execution.schedule_id, Execution.objects.order_by("pk"))
        occurrences = _by(lambda occurrence: occurrence.schedule_id, Occurrence.objects.order_by("pk"))
        backfills = _by(lambda backfill: backfill.schedule_id, Backfill.objects.order_by("pk"))
        steps = Activity.objects.filter(parent__execution__isnull=False, executed_at__isnull=False)
        shared = (
            dict(steps.values_list("parent__execution").annotate(first=Min("executed_at"))),
            list(Activity.objects.filter(target_type="sharedcalendar").order_by("pk")),
            moment,
        )
        return [
            cls(s, occurrences[s.pk], executions[s.pk], changes[s.pk], backfills[s.pk], *shared)
            for s in Schedule.objects.order_by("pk")
        ]

    @cached_property
    def automatic(self) -> list[Occurrence]:
        return [occurrence for occurrence in self.occurrences if occurrence.source == "auto"]

    @cached_property
    def versions(self) -> list[Version]:
        """From its creation on; each edit, also of a calendar that it uses, begins a new one."""
        definition = {name: getattr(self.schedule, name) for name in Schedule.DEFINITION} | {"calendars": {}}
        known: list[tuple[datetime, Mapping[str, Any]]] = []
        for change in self.changes:
            if change.operation in ("create", "edit"):
                details = change.details or {}
                after = details.get("after", details)
                told = definition["calendars"] | after.get("calendars", {})
                definition = definition | after
                definition["calendars"] = self._calendars(definition["spec"], told, before=change.pk)
                known.append((change.created_at, definition))
        known = known or [(EPOCH, definition)]
        ends = [since for since, _ in known[1:]] + [EVER]
        return [Version(since, until, found) for (since, found), until in zip(known, ends, strict=True)]

    def _calendars(self, spec: Mapping[str, Any], told: Mapping[str, Any], *, before: int) -> dict[str, Any]:
        """What the calendars that a spec names left out, as its schedule was told or as they were then."""
        named = [item["calendar"] for item in spec.get("exclude", []) if "calendar" in item]
        stored: dict[str, Any] = {}
        for change in self.calendar_changes:
            if change.pk < before and change.details:
                stored[change.target_name] = change.details.get("after", change.details)["excluded"]
        return {name: told[name] if name in told else stored[name] for name in named}

    def in_force(self, name: str, since: datetime, until: datetime | None = None) -> list[Any]:
        """What a field of the definition may have said between these times."""
        until = since if until is None else until
        return [
            version.definition[name]
            for version in self.versions
            if version.since <= until + self.moment and version.until >= since - self.moment
        ]

    def policies(self, occurrence: Occurrence, at: datetime | None) -> set[str]:
        """Those that may have decided on it: its own, or its schedule's; of all its life if `at` is None."""
        if occurrence.overlap:
            return {occurrence.overlap}
        if at is None:
            return set(self.in_force("overlap", occurrence.created_at, occurrence.settled_at or EVER))
        return set(self.in_force("overlap", at))

    @property
    def pauses(self) -> list[tuple[datetime, datetime]]:
        """A resume that no pause precedes ends one that began with the schedule."""
        found: list[tuple[datetime, datetime]] = []
        since: datetime | None = None
        for change in self.changes:
            if change.operation == "pause":
                since = since or change.created_at
            elif change.operation in ("resume", "close"):
                if since is not None or change.operation == "resume":
                    found.append((since or self.versions[0].since, change.created_at))
                since = None
        if self.schedule.is_paused:
            found.append((since or self.versions[0].since, EVER))
        return found

    def times(self, operation: str) -> list[datetime]:
        """When this was done to it."""
        return [change.created_at for change in self.changes if change.operation == operation]


def _by(key: Callable[[Any], Any], rows: Any) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def nominal_times(
    spec: Mapping[str, Any], after: datetime, until: datetime, calendars: Mapping[str, Any]
) -> list[datetime]:
    """By arithmetic if there are intervals only; else the oracle looks at every minute, or second."""
    if set(spec) <= {"every", "jitter", "time_zone"}:
        found = {at for every in spec.get("every", []) for at in _multiples(every, after, until)}
        return sorted(found)
    has_seconds = any(oracle.interval(every)[0] % oracle.MINUTE for every in spec.get("every", []))
    return oracle.times(
        spec, after, until, calendars=calendars, step=oracle.SECOND if has_seconds else oracle.MINUTE
    )


def _multiples(every: Any, after: datetime, until: datetime) -> list[datetime]:
    size, offset = oracle.interval(every)
    first, last = (after - EPOCH - offset) // size + 1, (until - EPOCH - offset) // size
    return [EPOCH + offset + number * size for number in range(first, last + 1)]


def every_nominal_time_occurs_once(life: Life) -> Iterator[str]:
    """By each version of the spec, from when it was written until it was replaced."""
    schedule = life.schedule
    if schedule.spec_error or schedule.processed_until is None:
        return
    found = Counter(occurrence.nominal_at for occurrence in life.automatic)
    yield from (f"{at} occurs {count} times" for at, count in found.items() if count > 1)
    required: set[datetime] = set()
    allowed: set[datetime] = set()
    for number, version in enumerate(_specs(life)):
        until = min(version.until, schedule.processed_until)
        slack = life.moment if version.until < EVER else timedelta(0)
        spec, calendars = _when(version)
        times = nominal_times(spec, version.since, until + slack, calendars)
        allowed |= set(times)
        since = version.since + (life.moment if number else timedelta(0))
        required |= {at for at in times if since < at <= until}
    missing, extra = required - set(found), set(found) - allowed
    if missing or extra:
        yield f"missing {_listed(missing)}, extra {_listed(extra)}"


def _specs(life: Life) -> Iterator[Version]:
    """Its versions as far as they differ in when it is due."""
    for _, same in groupby(life.versions, key=_when):
        first, *_, last = [*same] * 2
        yield first._replace(until=last.until)


def _when(version: Version) -> tuple[Any, Any]:
    return version.definition["spec"], version.definition["calendars"]


def _listed(times: set[datetime]) -> str:
    return ", ".join(f"{at:%Y-%m-%d %H:%M:%S}" for at in sorted(times)[:10]) or "none"


def the_cursor_only_moves_on(life: Life) -> Iterator[str]:
    """Times are written in their order, up to the cursor; the next one is the first beyond it."""
    schedule = life.schedule
    for before, after in pairwise(life.automatic):
        if after.nominal_at < before.nominal_at:
            yield f"{after} was written after {before}"
    cursor, following = schedule.processed_until, schedule.next_run_at
    if cursor is None:
        yield "it has no cursor"
        return
    yield from (f"{o} is beyond the cursor {cursor}" for o in life.automatic if o.nominal_at > cursor)
    if schedule.status == Schedule.Status.CLOSED or schedule.spec_error:
        if following is not None:
            yield f"it is {schedule.status} {schedule.spec_error!r} and has the next time {following}"
        return
    until = following or cursor + 2 * DAY
    spec, calendars = _when(life.versions[-1])
    expected = nominal_times(spec, max(cursor, until - 31 * DAY), until, calendars)
    if expected != ([following] if following else []):
        yield f"the next time after {cursor} is {following}, not {_listed(set(expected))}"


def keys_name_their_time(life: Life) -> Iterator[str]:
    for o in life.occurrences:
        expected = KEYS[o.source].format(at=f"{o.nominal_at:%Y-%m-%dT%H:%M:%SZ}", backfill=o.backfill_id)
        if not o.key.startswith(expected) or (o.source in ("auto", "backfill") and o.key != expected):
            yield f"{o} is of {o.source} and of {o.nominal_at}"


def every_request_occurs_once(life: Life) -> Iterator[str]:
    """Each accepted trigger has one occurrence; a schedule may also be run when it is created."""
    asked = len(life.times("trigger"))
    manual = [o for o in life.occurrences if o.source == "manual"]
    at_once = any(o.created_at in life.times("create") for o in manual)
    if not asked <= len(manual) <= asked + at_once:
        yield f"{asked} triggers, {len(manual)} manual occurrences"


def every_fate_is_explained(life: Life) -> Iterator[str]:
    for o in life.occurrences:
        if o.status == Occurrence.Status.SKIPPED:
            is_known = _counted_as(o.reason) is not None
        else:
            is_known = o.reason in REASONS[o.status]
        if not is_known:
            yield f"{o} because of {o.reason!r}"
        if (o.settled_at is None) != (o.status == Occurrence.Status.PENDING):
            yield f"{o} was settled at {o.settled_at}"


def _counted_as(reason: str) -> str | None:
    for known, name in SKIPS.items():
        if reason == known or (known.endswith(" ") and reason.startswith(known)):
            return name
    return None


def whoever_blocked_was_running(life: Life) -> Iterator[str]:
    by_pk = {execution.pk: execution for execution in life.executions}
    for o in life.occurrences:
        needs_blocker = o.reason == "overlap" or (o.reason == "superseded" and o.blocked_by)
        if o.status == Occurrence.Status.SKIPPED and needs_blocker:
            blocker = by_pk.get(o.blocked_by or 0)
            if blocker is None or not _is_running(blocker, o.settled_at or EVER, life.moment):
                yield f"{o} was blocked by {o.blocked_by}, which was not running at {o.settled_at}"


def _is_running(execution: Execution, at: datetime, moment: timedelta) -> bool:
    return execution.started_at <= at + moment and (execution.finished_at or EVER) >= at - moment


def nobody_starts_too_late_or_is_missed_too_soon(life: Life) -> Iterator[str]:
    """Measured once: when it was first kept, or else when it was settled."""
    invoked = {"overlap", "superseded", "", LATE}
    for o in life.automatic:
        measured_at = o.kept_at or o.settled_at
        if measured_at is None or o.reason not in invoked:
            continue
        late = measured_at - o.planned_at
        windows = [_window(found) for found in life.in_force("catch_up_seconds", measured_at)]
        if o.status == Occurrence.Status.MISSED:
            if o.kept_at is not None or all(late <= window for window in windows):
                yield f"{o} was missed after {late}, kept at {o.kept_at}"
        elif late < timedelta(0) or all(late > window for window in windows):
            yield f"{o} was looked at after {late}"


def _window(found: int | None) -> timedelta:
    return timedelta.max if found is None else max(timedelta(seconds=found), ON_TIME)


def only_allow_all_runs_side_by_side(life: Life) -> Iterator[str]:
    """Whatever else starts does so when all before it has ended, before its first step is claimed."""
    occurrences = {occurrence.pk: occurrence for occurrence in life.occurrences}
    for number, execution in enumerate(life.executions):
        occurrence = occurrences.get(execution.occurrence_id or 0)
        if occurrence is None:
            yield f"nobody knows why execution {execution.pk} started"
            continue
        beside = [e for e in life.executions[:number] if (e.finished_at or EVER) > execution.started_at]
        policies = life.policies(occurrence, execution.started_at)
        if beside and "allow_all" not in policies:
            yield f"execution {execution.pk} ({policies}) started beside {[e.pk for e in beside]}"
        backfills = [e for e in beside if e.source == execution.source == "backfill"]
        if len(backfills) >= BACKFILLS_AT_ONCE:
            yield f"execution {execution.pk} started beside {len(backfills)} others of backfills"
        claimed_at = life.claims.get(execution.pk, EVER) + life.moment
        early = [e.pk for e in life.executions[:number] if (e.finished_at or EVER) > claimed_at]
        if early and "allow_all" not in policies:
            yield f"execution {execution.pk} was claimed before {early} had ended"


def at_most_one_is_buffered(life: Life) -> Iterator[str]:
    """BUFFER_ONE keeps one of each source. What a resume has measured waits for its first decision."""
    resumed = set(life.times("resume"))
    for source in ("auto", "event", "backfill"):
        kept = [
            o
            for o in life.occurrences
            if o.source == source and o.kept_at and o.kept_at not in resumed
            if life.policies(o, None) == {"buffer_one"}
        ]
        for before, after in pairwise(sorted(kept, key=lambda o: (o.kept_at, o.pk))):
            if (before.settled_at or EVER) > (after.kept_at or EVER) + life.moment:
                yield f"{after} was kept beside {before}"


def buffered_times_start_in_order(life: Life) -> Iterator[str]:
    by_pk = {o.pk: o for o in life.occurrences if life.policies(o, None) == {"buffer_all"}}
    started = [by_pk[e.occurrence_id] for e in life.executions if e.occurrence_id in by_pk]
    for key in {(o.source, o.backfill_id) for o in started if o.source in ("auto", "backfill")}:
        own = [o for o in started if (o.source, o.backfill_id) == key]
        for before, after in pairwise(own):
            if after.nominal_at < before.nominal_at:
                yield f"{after} started after {before}"


def only_a_full_buffer_drops(life: Life) -> Iterator[str]:
    limit = settings.JIM_BUFFER_LIMIT
    pending = Counter(
        o.source == "backfill" for o in life.occurrences if o.status == Occurrence.Status.PENDING
    )
    for is_backfill, allowed in ((False, limit), (True, limit // 2)):
        if pending[is_backfill] > allowed:
            yield f"{pending[is_backfill]} are pending (backfill: {is_backfill}), and {allowed} are allowed"
    dropped = [o for o in life.occurrences if o.status == Occurrence.Status.DROPPED]
    for at in {o.settled_at or EVER for o in dropped}:
        waiting = [
            o
            for o in life.occurrences
            if o.source != "backfill"
            and o.created_at - life.moment <= at <= (o.settled_at or EVER) + life.moment
            and not (o.status == Occurrence.Status.MISSED and o.settled_at == o.created_at)
        ]
        if len(waiting) <= limit:
            yield f"only {len(waiting)} were waiting when some were dropped at {at}"
        youngest = max(o.nominal_at for o in dropped if o.settled_at == at)
        spared = [o for o in waiting if o.source == "auto" and o.nominal_at < youngest]
        if any(o.status != Occurrence.Status.DROPPED for o in spared):
            yield f"not the oldest were dropped at {at}"
    yield from (f"{o} is of {o.source} and was dropped" for o in dropped if o.source != "auto")


def nothing_starts_by_itself_in_a_pause(life: Life) -> Iterator[str]:
    pauses = [(since + life.moment, until - life.moment) for since, until in life.pauses]
    for execution in life.executions:
        if execution.source == "auto" and any(a < execution.started_at < b for a, b in pauses):
            yield f"execution {execution.pk} started at {execution.started_at}, while it was paused"


def counters_say_what_the_rows_say(life: Life) -> Iterator[str]:
    schedule = life.schedule
    fates = Counter(o.status for o in life.occurrences)
    skips = Counter(_counted_as(o.reason) for o in life.occurrences if o.status == "skipped")
    counted = {
        name: getattr(schedule, f"{name}_count") for name in ("started", "skipped", "missed", "dropped")
    }
    expected = {name: fates[name] for name in counted}
    if counted != expected or schedule.skipped_reasons != dict(skips):
        yield f"counted {counted} {schedule.skipped_reasons}, the rows say {expected} {dict(skips)}"
    newest = life.executions[-1].started_at if life.executions else None
    if schedule.last_run_at != newest:
        yield f"it last ran at {schedule.last_run_at}, its newest execution started at {newest}"


def outcomes_say_what_the_executions_say(life: Life) -> Iterator[str]:
    """The newest first; cancelled ones say nothing about whether it works."""
    schedule = life.schedule
    recorded, known = schedule.recent_outcomes, ""
    for together in _accounted_together(life):
        letters = sorted(e.status[0] for e in together if e.status in ("completed", "failed"))
        found = sorted(recorded[len(known) : len(known) + len(letters)])
        if found != letters and len(known) + len(letters) <= 100:
            yield f"recorded {recorded!r}, not {letters} of {[e.pk for e in together]} after {known!r}"
        known += "".join(letters)
    failures = len(recorded) - len(recorded.lstrip("f"))
    if len(recorded) != min(len(known), 100) or schedule.failed_count != known.count("f"):
        yield f"{schedule.failed_count} failed in {recorded!r}, the executions say {known!r}"
    if schedule.failures_in_a_row != failures and failures < 100:
        yield f"{schedule.failures_in_a_row} failures in a row in {recorded!r}"
    newest = {e.status for together in _accounted_together(life)[:1] for e in together} or {""}
    if schedule.last_outcome not in newest:
        yield f"the last outcome was {schedule.last_outcome!r}, not one of {newest}"


def _accounted_together(life: Life) -> list[list[Execution]]:
    """The newest first. Nobody can tell in which order those were counted that are a moment apart."""
    accounted = [e for e in life.executions if e.accounted_at is not None]
    groups: list[list[Execution]] = []
    for execution in sorted(accounted, key=lambda e: e.accounted_at or EVER, reverse=True):
        before = groups[-1][-1].accounted_at if groups else None
        if before is not None and before - (execution.accounted_at or EVER) <= life.moment:
            groups[-1].append(execution)
        else:
            groups.append([execution])
    return groups


def automatic_starts_use_up_what_remains(life: Life) -> Iterator[str]:
    """Counted from the last change that tells how many were left."""
    told = [
        (change.created_at, details["remaining"])
        for change in life.changes
        if "remaining" in (details := (change.details or {}).get("after", change.details or {}))
    ]
    if not told:
        return
    since, initial = told[-1]
    starts = [e.started_at for e in life.executions if e.source == "auto"]
    least = sum(at > since + life.moment for at in starts)
    most = sum(at >= since - life.moment for at in starts)
    remaining = life.schedule.remaining
    if initial is None or remaining is None:
        if initial != remaining:
            yield f"{remaining} are left of {initial}"
    elif not least <= initial - remaining <= most:
        yield f"{remaining} are left of {initial} after {least} to {most} automatic starts"


def backfills_add_each_time_once(life: Life) -> Iterator[str]:
    for backfill in life.backfills:
        own = [o for o in life.occurrences if o.backfill_id == backfill.pk]
        times = nominal_times(
            backfill.spec, backfill.start_at - MICROSECOND, backfill.end_at, backfill.calendars
        )
        if backfill.added_count != len(own) or len({o.nominal_at for o in own}) != len(own):
            yield f"backfill {backfill.pk} added {backfill.added_count}, there are {len(own)}"
        if extra := {o.nominal_at for o in own} - set(times):
            yield f"backfill {backfill.pk} added {_listed(extra)}"
        is_whole = (backfill.passed_count, backfill.total) == (len(times), len(times))
        if backfill.status == Backfill.Status.DONE and not is_whole:
            yield f"backfill {backfill.pk} is done and passed {backfill.passed_count} of {len(times)}"
        if backfill.status == Backfill.Status.DONE and backfill.which == "all" and len(own) != len(times):
            yield f"backfill {backfill.pk} is done and added {len(own)} of {len(times)}"
        if (backfill.finished_at is None) != (backfill.status == Backfill.Status.OPEN):
            yield f"backfill {backfill.pk} is {backfill.status} and finished at {backfill.finished_at}"


RULES: tuple[Callable[[Life], Iterator[str]], ...] = (
    every_nominal_time_occurs_once,
    the_cursor_only_moves_on,
    keys_name_their_time,
    every_request_occurs_once,
    every_fate_is_explained,
    whoever_blocked_was_running,
    nobody_starts_too_late_or_is_missed_too_soon,
    only_allow_all_runs_side_by_side,
    at_most_one_is_buffered,
    buffered_times_start_in_order,
    only_a_full_buffer_drops,
    nothing_starts_by_itself_in_a_pause,
    counters_say_what_the_rows_say,
    outcomes_say_what_the_executions_say,
    automatic_starts_use_up_what_remains,
    backfills_add_each_time_once,
)
