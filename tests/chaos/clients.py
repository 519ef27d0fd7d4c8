"""Clients that send requests with an Idempotency-Key, to any web server, until they are answered."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from activities.models import Activity
from execution.models import Execution
from schedules.models import Occurrence

# After this long, another server is asked the same: one that is frozen does not answer.
UNANSWERED_SECONDS = 5
# The server is being restarted, waits for its database, or still works on the same key.
COME_BACK = (409, 429, 502, 503, 504)


class Answer(NamedTuple):
    status: int
    body: Any


@dataclass
class Promise:
    """One request, by its key, and everything that was answered to it."""

    kind: str
    tag: str
    path: str
    body: dict[str, Any]
    answers: list[Answer] = field(default_factory=list)


class Client(threading.Thread):
    """Sends one request after the other, and some of them again after they were answered."""

    def __init__(
        self, name: str, seed: int, addresses: Sequence[str], token: str, kinds: Sequence[Kind]
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.random = random.Random(f"{seed} {name}")
        self.addresses, self.token, self.kinds = addresses, token, kinds
        self.promises: list[Promise] = []
        self.statuses: Counter[int] = Counter()
        self.is_enough = threading.Event()

    def run(self) -> None:
        while not self.is_enough.wait(0.1):
            promise = self.random.choice(self.kinds)(f"{self.name}-{len(self.promises)}")
            self.promises.append(promise)
            for _ in range(self.random.choice((1, 1, 2))):
                self._insist(promise)

    def _insist(self, promise: Promise) -> None:
        while (answer := self._ask(promise)) is None or answer.status in COME_BACK:
            threading.Event().wait(self.random.uniform(0.05, 0.4))
        promise.answers.append(answer)

    def _ask(self, promise: Promise) -> Answer | None:
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "Idempotency-Key": promise.tag,
        }
        data = json.dumps(promise.body).encode()
        request = Request(self.random.choice(self.addresses) + promise.path, data, headers)
        try:
            with urlopen(request, timeout=UNANSWERED_SECONDS) as response:
                answer = Answer(response.status, json.load(response))
        except HTTPError as refusal:
            with refusal:
                answer = Answer(refusal.code, refusal.read().decode(errors="replace"))
        except (OSError, HTTPException, ValueError):
            return None
        self.statuses[answer.status] += 1
        return answer


Kind = Callable[[str], Promise]


def kinds_of_requests(ledger: str, schedule: int) -> list[Kind]:
    def step(name: str) -> dict[str, Any]:
        kwargs = {"ledger": ledger, "seconds": 0.05}
        config = {"function": "tests.work.note", "kwargs": kwargs, "isolation": "thread"}
        return {"name": name, "step_type": "python", "config": config}

    def job(tag: str) -> Promise:
        return Promise("job", tag, "/api/v1/tasks", step(tag))

    def batch(tag: str) -> Promise:
        jobs = [step(f"{tag}/{number}") for number in range(3)]
        return Promise("batch", tag, "/api/v1/tasks/batch", {"jobs": jobs})

    def group(tag: str) -> Promise:
        body = {"name": tag, "mode": "sequential", "steps": [step("first"), step("second")]}
        return Promise("group", tag, "/api/v1/executions", body)

    def run(tag: str) -> Promise:
        return Promise("run", tag, f"/api/v1/schedules/{schedule}/run", {})

    return [job, batch, group, run]


def broken_promises(promises: Sequence[Promise]) -> list[str]:
    """What differs between the answers and the tables. To be asked when every request was answered."""
    return [
        *_wrong_answers(promises),
        *_wrong_jobs(promises),
        *_wrong_groups(promises),
        *_wrong_runs(promises),
    ]


def _wrong_answers(promises: Sequence[Promise]) -> Iterator[str]:
    for promise in promises:
        if {answer.status for answer in promise.answers} != {202}:
            yield f"{promise.tag} ({promise.kind}) was answered {promise.answers}"
        elif any(answer != promise.answers[0] for answer in promise.answers):
            yield f"{promise.tag} ({promise.kind}) was answered in two ways: {promise.answers}"


def _wrong_jobs(promises: Sequence[Promise]) -> Iterator[str]:
    known: dict[str, list[str]] = {}
    first = Activity.objects.filter(parent=None, attempt=1, task_key__isnull=False)
    for name, key in first.values_list("target_name", "task_key"):
        known.setdefault(name, []).append(str(key))
    for promise in _answered(promises, "job", "batch"):
        body = promise.answers[0].body
        ids = body.get("ids") or [body.get("id")]
        names = [f"{promise.tag}/{n}" for n in range(len(ids))] if promise.kind == "batch" else [promise.tag]
        if (found := [key for name in names for key in known.get(name, [])]) != ids:
            yield f"{promise.tag} was answered with {ids}, there are {found}"


def _wrong_groups(promises: Sequence[Promise]) -> Iterator[str]:
    known: dict[str, list[int]] = {}
    for name, pk in Execution.objects.filter(schedule=None).values_list("activity__target_name", "pk"):
        known.setdefault(name, []).append(pk)
    for promise in _answered(promises, "group"):
        if (found := known.get(promise.tag, [])) != [promise.answers[0].body["id"]]:
            yield f"{promise.tag} was answered with {promise.answers[0].body}, there are {found}"


def _wrong_runs(promises: Sequence[Promise]) -> Iterator[str]:
    promised = [promise.answers[0].body["occurrence"] for promise in _answered(promises, "run")]
    found = Occurrence.objects.filter(source=Occurrence.Source.MANUAL).order_by("pk")
    if sorted(promised) != (there := list(found.values_list("pk", flat=True))):
        missing, extra = set(promised) - set(there), set(there) - set(promised)
        yield f"{len(promised)} runs were promised: lost {missing}, not asked for {extra}"


def _answered(promises: Sequence[Promise], *kinds: str) -> list[Promise]:
    return [
        each for each in promises if each.kind in kinds and each.answers and each.answers[0].status == 202
    ]
