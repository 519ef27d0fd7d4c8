"""Break the engine's rules, one at a time, and tell whether the tests notice.

    python -m tests.mutants                      all of them
    python -m tests.mutants fence overlap.py     those whose rule or file has one of these words in it
    python -m tests.mutants --tests FOLDER       the same faults, with the tests of another tree

It works on a copy. A mutant is caught if a test fails; a fault that keeps tests from running proves nothing.
The exit code is 1 if one survived, or if the product no longer has the text that a mutant is about.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".uv", ".*_cache", ".hypothesis", "node_modules", "data")
FOUND = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
# What a test waits for in vain is waited for half as long as usual.
SURROUNDINGS = {"JIM_TEST_PATIENCE": "0.5"}
TIMEOUT_SECONDS = 300
WORDS = {2: "the tests cannot be collected", 4: "the tests cannot be started", 5: "there are no such tests"}
# Each begins with its rule, the file, the tests that have to notice (below tests/), and the database if it is
# not SQLite. The lines with - are in the file once; those with + take their place.
TABLE = r"""
fence of an attempt | execution/queue/sqlite.py | execution/test_finish.py
-     AND (id, attempt) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]')
-         FROM json_each(%(held)s))
-     AND worker_id
+     AND worker_id
fence of an attempt | execution/queue/postgresql.py | execution/test_finish.py | postgres
-         WHERE (id, attempt) IN (SELECT * FROM unnest((SELECT %s::bigint[]), (SELECT %s::bigint[])))
+         WHERE id IN (SELECT id FROM unnest((SELECT %s::bigint[]), (SELECT %s::bigint[])) AS t(id, n))
fence of a worker | execution/queue/sqlite.py | execution/test_finish.py
-     AND worker_id = %(worker)s AND status = 'processing'
+     AND %(worker)s <> '' AND status = 'processing'
fence of a worker | execution/queue/postgresql.py | execution/test_finish.py | postgres
-             AND worker_id = %s AND status = 'processing' {unless}
+             AND %s::uuid IS NOT NULL AND status = 'processing' {unless}
fence of a retry | execution/queue/finish.py | execution/test_finish.py
- for task in rows.lock().select_related("activity") if task.attempt == attempts[task.pk]]
+ for task in rows.lock().select_related("activity")]
fence of progress | activities/models.py | activities/test_activity.py execution/test_recorder.py
-             where="t.status = 'in_progress' AND t.worker_id = %s",
-             params=[_worker(worker_id)],
+             where="t.status = 'in_progress'",
fence of output and items | activities/models.py | activities/test_activity.py execution/test_recorder.py
- "AND a.status = 'in_progress' AND a.worker_id = %s)",
+ "AND a.worker_id = %s)",
guarded end of an activity | activities/models.py | activities/test_activity.py execution/test_finish.py
- _OPEN = "t.status IN ('pending', 'in_progress')"
+ _OPEN = "t.status IS NOT NULL"
dead worker claims | execution/queue/conditions.py | execution/test_claim.py execution/test_recovery.py
- WHERE w.id = %(worker)s AND w.status = 'alive')"
+ WHERE w.id = %(worker)s)"
lease after an outage | execution/loops/recovery.py | execution/test_recovery.py
-     if now - steady_since < lease():
+     if now < steady_since:
lease before a program | execution/children/nursery_process.py | steps/test_nursery.py
-             if not lease.is_good or is_given_up(wire):
+             if is_given_up(wire):
lease before a function | execution/children/child.py | steps/test_nursery.py
-             if not lease.is_good:
+             if lease.until is None:
locks of executions | execution/models/execution_queryset.py | races/test_verbs.py | postgres
-         locking = "FOR NO KEY UPDATE" if connection.vendor == "postgresql" else ""
+         locking = ""
locks of limits | execution/queue/postgresql.py | races/test_limits.py | postgres
-     ORDER BY key FOR NO KEY UPDATE
+     ORDER BY key
locks of tasks to cancel | execution/models/task_queryset.py | races/test_verbs.py | postgres
-         tasks = [task for task in self.lock() if task.line not in kept]
+         tasks = [task for task in self.order_by("pk") if task.line not in kept]
clean-up after a cancel | execution/failure.py | execution/test_cancel.py
-     return [line["line"] for line in plan if line["index"] > first and line.get("run_if") in kept]
+     return [line["line"] for line in plan if line["index"] >= first and line.get("run_if") in kept]
locks in order | execution/loops/invoker.py | races/test_row_locks.py | postgres
- in Execution.objects.lock().filter(pk__in=stopped) if stopped else ():
+ in Execution.objects.filter(pk__in=stopped).order_by("-pk") if stopped else ():
key of an occurrence | schedules/models/occurrence.py | schedules/test_backfill.py
-         key = f"backfill/{backfill.pk}/{named_time(at)}"
+         key = f"backfill/{named_time(at)}"
key of a request | api/idempotency.py | api/test_limits.py api/test_foundation.py
- return {"principal": principal_of(request), "route"
+ return {"principal": "", "route"
key against twins | execution/queue/enqueue.py | execution/test_jobs.py
-             twins |= {job.dedup_key: job.key} if job.dedup_key else {}
+             pass
overlap SKIP | schedules/overlap.py | schedules/test_overlap.py
-         if occurrence.policy != "skip" or occurrence.source != "auto" or not self._is_occupied:
+         if occurrence.policy != "skip" or not self._is_occupied:
overlap BUFFER_ONE | schedules/overlap.py | schedules/test_overlap.py
-             self._supersede(occurrence.source)
+             self.kept.pop(occurrence.source, None)
overlap BUFFER_ALL | schedules/overlap.py | schedules/test_overlap.py
-             case "buffer_all":
-                 self._start_or_keep(occurrence, is_full=self._is_occupied)
+             case "buffer_all":
+                 self._start_or_keep(occurrence, is_full=bool(self.running))
overlap CANCEL_OTHER | schedules/overlap.py | schedules/test_overlap.py
-             self.decision.cancel += tuple(asked)
-             self._start_or_keep(occurrence, is_full=self._is_occupied)
+             self.decision.cancel += tuple(asked)
+             self._start_or_keep(occurrence, is_full=bool(self.started))
overlap TERMINATE_OTHER | schedules/overlap.py | schedules/test_overlap.py
-             self.decision.terminate += tuple(other.id for other in self.running)
+             self.decision.terminate += tuple(other.id for other in self.running[:1])
overlap ALLOW_ALL | schedules/overlap.py | schedules/test_overlap.py
- and at_once >= BACKFILLS_AT_ONCE
+ and at_once > BACKFILLS_AT_ONCE
overlap supersedes by hand | schedules/overlap.py | schedules/test_overlap.py
- REPLACEABLE = ("event", "auto", "backfill")
+ REPLACEABLE = ("event", "auto", "backfill", "manual")
catch-up window | schedules/overlap.py | schedules/test_overlap.py
-     return missed_before is not None and planned_at < missed_before
+     return missed_before is not None and planned_at <= missed_before
generator cursor | schedules/models/timetable.py | schedules/test_generator.py
- times[-1] if is_full else max(now, self.processed_until)
+ max(now, self.processed_until)
generator next_run_at | schedules/models/timetable.py | schedules/test_generator.py
-             self.next_run_at = spec.next(self.processed_until)
+             self.next_run_at = spec.next(now)
buffer drops the oldest | schedules/models/timetable.py | stories/test_scheduler_archetype_7_limits.py
-             oldest = pending.automatic().order_by("nominal_at")
+             oldest = pending.order_by("nominal_at")
backfill bounds | schedules/models/backfill.py | schedules/test_backfill.py
-         draft.processed_until = draft.start_at - MOMENT
+         draft.processed_until = draft.start_at
last attempts judged | execution/models/advance.py | execution/test_advance.py execution/test_finish.py
- f"WHERE {theirs} ORDER BY a.attempt"
+ f"WHERE {theirs} ORDER BY a.attempt DESC"
advancement past a retry | execution/models/advance.py | execution/test_advance.py execution/test_finish.py
- MAX(CASE WHEN status = 'waiting' THEN 0 ELSE 1 END) AS is_live, "
+ MAX(CASE WHEN status = 'processing' THEN 1 ELSE 0 END) AS is_live, "
group failure continue | execution/failure.py | execution/test_failure.py
-         elif ended.status in FAILED and not step["continue_on_failure"]:
+         elif ended.status in FAILED and not any(each["continue_on_failure"] for each in group):
group failure skip | execution/failure.py | execution/test_conditions.py execution/test_failure.py
- "cancelled": "stop", "skipped": "skip"}[verdict]
+ "cancelled": "stop", "skipped": "stop"}[verdict]
group failure run_if | execution/failure.py | execution/test_conditions.py execution/test_failure.py
-     if not told and not any(line.get("run_if", "success") != "success" for line in later):
+     if not told:
retry max_retries | execution/retry.py | execution/test_retry.py
- failures <= budget.max_retries
+ failures < budget.max_retries
retry backoff | execution/retry.py | execution/test_retry.py
- ** min(failures - 1, 100)
+ ** min(failures, 100)
retry cap | execution/retry.py | execution/test_retry.py
-     cap = max(budget.retry_cap_seconds, budget.retry_seconds)
+     cap = budget.retry_cap_seconds
retry after crashes | execution/retry.py | execution/test_retry.py
-     if crashes >= MAX_CRASHES:
+     if crashes > MAX_CRASHES:
retry after a drain | execution/retry.py | execution/test_retry.py
-     return Next(now, budget.failures, budget.crashes)
+     return Next(now, budget.failures, budget.crashes + 1)
retry of what was cancelled | execution/queue/finish.py | execution/test_cancel.py execution/test_finish.py
- rows = queue.filter(pk__in=attempts, worker=worker_id, cancel_requested_at=None)
+ rows = queue.filter(pk__in=attempts, worker=worker_id)
limits full | execution/queue/concurrency.py | execution/test_limits.py
- all(self.limits.get(key, 1) > 0 for key in keys)
+ all(self.limits.get(key, 1) >= 0 for key in keys)
order of the queue | execution/queue/order.py | stories/test_job_scheduler_5_states.py
-     return f"ORDER BY {of}priority DESC, {of}position, {of}id"
+     return f"ORDER BY {of}priority DESC, {of}id"
reservation once per pool | execution/models/reservation.py | execution/test_reservations.py
-         if any(last.lets_pass(now) for last in released[:1]):
+         if any(last.lets_pass(now) for last in released[1:]):
cancel keeps true outcomes | execution/models/attempt.py | execution/test_cancel.py
-         if cancelled and not self.is_plain:
+         if cancelled:
terminate | execution/models/execution.py | execution/test_cancel.py
-             tasks.delete()
+             tasks.unclaimed().delete()
timeout | execution/models/advance.py | schedules/test_alerts.py execution/test_cancel.py
- execution.Status.FAILED if execution.is_timed_out else execution.Status.CANCELLED
+ execution.Status.CANCELLED
recovery on_crash | execution/retry.py | execution/test_retry.py
-     if budget.on_crash == "fail":
-         return Next(None, budget.failures, crashes, MUST_NOT_REPEAT)
+     if budget.on_crash == "fail" and crashes > 1:
+         return Next(None, budget.failures, crashes, MUST_NOT_REPEAT)
recovery of lost tasks | execution/models/advance.py | execution/test_recovery.py execution/test_advance.py
-     if upcoming != waiting:
+     if waiting is not None and upcoming != waiting:
conflict token | schedules/models/schedule.py | stories/test_scheduler_archetype_5_conflict_token.py
-         if token is not None and token != fresh.token:
+         if token is not None and token > fresh.token:
pause holds events | schedules/models/occurrence.py | workflows/test_triggers.py
- f"AND (source NOT IN ('auto', 'event') OR NOT {held}) "
+ f"AND (source <> 'auto' OR NOT {held}) "
resume measures once | schedules/models/schedule.py | stories/test_scheduler_archetype_6_pause_and_resume.py
-         fresh.update(kept_at=now)
+         fresh.update(kept_at=None)
workflow phases | workflows/models/run.py | stories/test_workflow_scheduling_7_run_records.py
-         before = PHASES[: PHASES.index(phase)]
+         before = PHASES
workflow mutation in flight | workflows/failures.py | workflows/test_failures.py
-         return Beginning(Phase.MUTATING, keeps=True)
+         return Beginning(Phase.PREPARED, keeps=True)
workflow cursor | workflows/models/commit.py | stories/test_workflow_scheduling_3_empty_reservations.py
-     if not run.is_empty:
-         mine.filter(cursor__gt=NEVER).rewind()
-         return
-     for topic
+     for topic
workflow consumers first | workflows/decision.py | workflows/test_decision.py
- if ready := [each for each in facts.consumers if _is_ready(each, now)]:
+ if not any(each.next_run_at and each.next_run_at <= now for each in facts.producers) and (
+         ready := [each for each in facts.consumers if _is_ready(each, now)]
+     ):
webhook tries | webhooks/tries.py | webhooks/test_tries.py
-     delay = DELAYS[max(0, len(DELAYS) - left)]
+     delay = DELAYS[min(left, len(DELAYS)) - 1]
webhook signature | webhooks/signing.py | webhooks/test_signing.py
-     signed = f"{webhook_id}.{at}.{body}".encode()
+     signed = f"{webhook_id}.{body}".encode()
permission to define code | schedules/permissions.py | schedules/test_as_code.py schedules/test_templates.py
-     return is_code or any(ref.kind == "secret" for ref in found(step["config"]))
+     return is_code
permission to run | web/operating.py | test_permissions.py
-     if not (request.user.has_perm(of.view_permission) and operation.is_allowed(request)):
+     if not request.user.has_perm(of.view_permission):
permission within scopes | api/scopes.py | api/test_around.py api/test_limits.py
-     return needed in scopes or "admin" in scopes or (needed == "view" and bool(scopes))
+     return needed in scopes or "admin" in scopes or needed == "view" or "define" in scopes
masking in forms | schedules/secret_form.py | schedules/test_secret_admin.py
-     def format_value(self, value: Any) -> None:
-         return None
+     def format_value(self, value: Any) -> Any:
+         return super().format_value(value)
masking of base64 | execution/steps/masking.py | execution/test_masking.py
-     for before in range(3):
+     for before in range(2):
SSRF private ranges | execution/outgoing/addresses.py | steps/test_outgoing.py
-     return address.is_global
+     return not address.is_private
SSRF addresses in addresses | execution/outgoing/addresses.py | steps/test_outgoing.py
-     if _is_public(candidates[-1]):
+     if _is_public(candidates[0]):
SSRF redirect | execution/outgoing/calls.py | steps/test_outgoing.py
-     if _origin(there) != _origin(here):
+     if there.host != here.host:
SSRF looked-up addresses | execution/outgoing/network.py | steps/test_outgoing.py
-         for address in addresses:
-             if complaint
+         for address in addresses[:1]:
+             if complaint
executables behind links | execution/steps/programs.py | steps/test_config.py steps/test_executable.py
- any(path.is_relative_to(Path(folder).resolve()) for folder
+ any(Path(text).is_relative_to(Path(folder).resolve()) for folder
executables in folders | execution/steps/programs.py | steps/test_config.py steps/test_executable.py
- any(path.is_relative_to(Path(folder).resolve()) for folder
+ any(str(path).startswith(str(Path(folder).resolve())) for folder
SQL on the own database | execution/steps/sql_connections.py | steps/test_sql_config.py
-         return one.resolve() == other.resolve() or one.samefile(other)
+         return one.resolve() == other.resolve()
DST gap | schedules/spec/timeline.py | schedules/test_spec.py
-             if isinstance(rule, OnTheClock) and not rule.each_pass:
+             if isinstance(rule, OnTheClock):
DST fold | schedules/spec/timeline.py | schedules/test_spec.py
-         if not self.each_pass and stretch.before > stretch.offset:
+         if stretch.before > stretch.offset:
cron days | schedules/spec/cron.py | schedules/test_spec.py
- either_day=not (values[3].is_starred or values[5].is_starred))
+ either_day=not (values[3].is_starred and values[5].is_starred))
exclusions | schedules/spec/exclusions.py | schedules/test_spec.py
-         return Span(_seconds(self.start), _seconds(self.until) + 1)
+         return Span(_seconds(self.start), _seconds(self.until))
jitter bounds | schedules/spec/spec.py | schedules/test_jitter.py
-         window = self.jitter if following is None else following - second
+         window = self.jitter
jitter of the renamed | schedules/models/timetable.py | schedules/test_jitter.py
-         return self.original_name or self.name
+         return self.name
failed items allowed | execution/steps/performing.py | steps/test_perform.py
-     if failed * 100 > total * ctx.work.max_failed_percent:
+     if failed * 100 >= total * ctx.work.max_failed_percent:
pools of workers | execution/models/worker.py | execution/test_waits.py execution/test_limits.py
-     return not pools or pool in pools
+     return pool in pools
leases of workers | execution/models/worker.py | api/test_health.py execution/test_waits.py
-         return self.alive().filter(lease_until__gte=now)
+         return self.alive()
times of a broken spec | schedules/models/timetable.py | schedules/test_schedule.py
-             self.restart_cursor(now if spec_changed or since is None else since)
+             self.restart_cursor(now)
output is text | web/ansi.py | web/test_ansi.py
-         else conditional_escape(piece.text)
+         else piece.text
GET changes nothing | web/operating.py | test_looking.py
- operation.ask(targets, request.GET, request.POST if request.method == "POST" else None)
+ operation.ask(targets, request.GET, request.POST or request.GET)
"""


class Mutant(NamedTuple):
    rule: str
    path: str
    tests: list[str]
    database: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.path})"

    def apply(self, tree: Path) -> bool:
        """False: the text is not there, or not only there."""
        source = (ROOT / self.path).read_text() if (ROOT / self.path).exists() else ""
        if source.count(self.old) != 1:
            return False
        (tree / self.path).write_text(source.replace(self.old, self.new))
        return True

    def undo(self, tree: Path) -> None:
        shutil.copy2(ROOT / self.path, tree / self.path)

    def meet_tests(self, tree: Path) -> tuple[str, str]:
        """What became of it, and who says so."""
        found = [f"tests/{name}" for name in self.tests if (tree / "tests" / name).exists()]
        if not found:
            return "no tests", " ".join(self.tests)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not long"]
        done = subprocess.run(
            [*command, "--timeout", str(TIMEOUT_SECONDS), *found],
            cwd=tree,
            env={**SURROUNDINGS, **os.environ, "JIM_TEST_DB": self.database, "PYTHONDONTWRITEBYTECODE": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return "SURVIVED", " ".join(found)
        if done.returncode == 1:
            failed = FOUND.search(done.stdout)
            return "caught", failed[1] if failed else "a test that did not end"
        return "no verdict", f"{WORDS.get(done.returncode, 'pytest broke')}: {' '.join(found)}"


def mutants() -> Iterator[Mutant]:
    for part in re.split(r"\n(?![-+])", TABLE.strip()):
        head, *lines = part.split("\n")
        rule, path, tests, database = [*head.split(" | "), "sqlite"][:4]
        old, new = ("\n".join(line[2:] for line in lines if line[0] == sign) for sign in "-+")
        yield Mutant(rule, path, tests.split(), database, old, new)


def copy_tree(tree: Path, tests: Path) -> None:
    shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
    if tests != ROOT / "tests":
        shutil.rmtree(tree / "tests")
        shutil.copytree(tests, tree / "tests", ignore=NOT_COPIED)
    for name in (".venv", "node_modules"):
        (tree / name).symlink_to(ROOT / name)


def judge(chosen: Sequence[Mutant], tree: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for mutant in chosen:
        began, fate, by = time.monotonic(), "no such text", ""
        if mutant.apply(tree):
            fate, by = mutant.meet_tests(tree)
            mutant.undo(tree)
        counts[fate] += 1
        sys.stdout.write(f"{fate:10} {mutant}: {by} [{time.monotonic() - began:.0f} s]\n")
        sys.stdout.flush()
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether the tests notice faults of the engine's rules.")
    parser.add_argument("words", nargs="*", help="of the rules or files to take; all if none is given")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="the tests of another tree")
    given = parser.parse_args()
    chosen = [each for each in mutants() if not given.words or any(word in str(each) for word in given.words)]
    with tempfile.TemporaryDirectory(prefix="jim-mutants-") as folder:
        tree = Path(folder, "jim")
        copy_tree(tree, given.tests.resolve())
        counts = judge(chosen, tree)
    sys.stdout.write(", ".join(f"{count} {fate}" for fate, count in counts.items()) + "\n")
    return 0 if counts.keys() == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
