"""How a workflow is written in code. Nothing here reads a clock or the database."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from schedules.spec import Spec, SpecError

from .errors import DefinitionError

if TYPE_CHECKING:
    from .contexts import MutateContext, NextContext, PrepareContext, ProduceContext

SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
LONGEST_SLUG = 60
LONGEST_TITLE = 200
LONGEST_VERSION = 100
LONGEST_POOL = 40
MOST_TIMEOUT_SECONDS = 86_400


class Workflow:
    """Handlers that share state and topics; at most one of them runs at any time."""

    slug: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str] = ""
    pool: ClassVar[str] = "default"
    # False leaves it out, such as where what it needs is not set up.
    enabled: ClassVar[bool] = True
    # The topics that it brings along, each with a title.
    topics: ClassVar[Mapping[str, str]] = {}
    producers: ClassVar[Sequence[type[Producer]]] = ()
    consumers: ClassVar[Sequence[type[Consumer]]] = ()

    @classmethod
    def handlers(cls) -> list[type[Handler]]:
        return [*cls.producers, *cls.consumers]


class Handler:
    """What producers and consumers have in common."""

    title: ClassVar[str] = ""
    # Topics that it may publish to.
    publishes: ClassVar[Sequence[str]] = ()
    timeout_seconds: ClassVar[int] = 300
    # Stands for the code; without it, every change of the module counts as another version.
    version: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @classmethod
    def code_version(cls) -> str:
        return cls.version or _digest(cls.__module__)


class Producer(Handler):
    """Looks at the world on a schedule, and publishes what is new."""

    every: ClassVar[str] = ""
    cron: ClassVar[str] = ""
    time_zone: ClassVar[str] = "UTC"
    # Any other spec, as schedules have it.
    spec: ClassVar[Mapping[str, Any]] = {}

    def produce(self, ctx: ProduceContext) -> Any:
        """Returns its new state, None to keep the old one."""
        raise TypeError(f"{type(self).__name__} has no method produce")

    @classmethod
    def spec_json(cls) -> dict[str, object]:
        """The canonical form; DefinitionError if there is none."""
        given = [name for name in ("every", "cron", "spec") if getattr(cls, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise DefinitionError(f"{cls.__name__}: give one of every, cron and spec; found {found}")
        data: dict[str, Any] = dict(cls.spec) or {given[0]: [getattr(cls, given[0])]}
        if given[0] != "spec":
            data["time_zone"] = cls.time_zone
        try:
            return Spec.parse(data).as_json()
        except SpecError as error:
            raise DefinitionError(f"{cls.__name__}: {error}") from error


class Consumer(Handler):
    """Reserves events, makes at most one change outside for them, and publishes what follows."""

    subscribe: ClassVar[Sequence[str]] = ()

    def prepare(self, ctx: PrepareContext) -> Prepared | None:
        """Reads and peeks, changes nothing. None, or nothing reserved: wait for an event or `wake_at`."""
        raise TypeError(f"{type(self).__name__} has no method prepare")

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        """Calls `ctx.apply` at most once; left out if nothing was reserved."""

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> Any:
        """Publishes; returns the new state, None to keep the old one. Always runs."""

    # Defined as a method, it says whether a mutation of unknown outcome happened: applied(result), failed or
    # retry. Without it, a person is asked.
    reconcile: ClassVar[Any] = None


@dataclass(frozen=True)
class Pending:
    """An event as a consumer sees it."""

    id: int
    topic: str
    message_id: str
    payload: Any
    title: str
    attempt: int
    created_at: datetime


@dataclass(frozen=True)
class Prepared:
    """What `prepare` decided: which events this run is about, and what the next phases need to know."""

    reserve: Sequence[Pending] = ()
    data: Any = None
    # An instant with its zone, as datetime or ISO 8601: look again then, even if no event comes.
    wake_at: datetime | str | None = None
    title: str = ""


@dataclass(frozen=True)
class Mutation:
    """What became of the mutation, as `next` is told. `none`: there was nothing to do."""

    outcome: Literal["applied", "none", "skipped"]
    result: Any = None


@dataclass(frozen=True)
class Reconciled:
    """What `reconcile` found out."""

    verdict: Literal["applied", "failed", "retry"]
    result: Any = None


def applied(result: Any = None) -> Reconciled:
    """It happened; `result` stands for what `ctx.apply` would have returned."""
    return Reconciled("applied", result)


failed = Reconciled("failed")
retry = Reconciled("retry")


@dataclass(frozen=True)
class Definitions:
    """All workflows that the code has, checked together."""

    workflows: Mapping[str, type[Workflow]] = field(default_factory=dict)

    @classmethod
    def of(cls, workflows: Sequence[type[Workflow]]) -> Definitions:
        found: dict[str, type[Workflow]] = {}
        for workflow in workflows:
            _check(workflow)
            if workflow.slug in found:
                raise DefinitionError(f"two workflows have the slug {workflow.slug!r}: choose another")
            found[workflow.slug] = workflow
        _check_topics(list(found.values()))
        return cls(found)

    def handler(self, workflow: str, name: str) -> type[Handler] | None:
        known = self.workflows.get(workflow)
        named = [each for each in known.handlers() if each.name() == name] if known else []
        return named[0] if named else None

    @property
    def topics(self) -> dict[str, tuple[str, str]]:
        """By slug: title and the workflow that brings it along."""
        return {
            slug: (title, workflow.slug)
            for workflow in self.workflows.values()
            for slug, title in workflow.topics.items()
        }


def _check(workflow: type[Workflow]) -> None:
    name = workflow.__name__
    _check_slug(f"{name}.slug", getattr(workflow, "slug", ""))
    _check_text(f"{name}.title", getattr(workflow, "title", ""), most=LONGEST_TITLE, least=1)
    _check_text(f"{name}.description", workflow.description)
    _check_text(f"{name}.pool", workflow.pool, most=LONGEST_POOL, least=1)
    if not isinstance(workflow.topics, Mapping):
        raise DefinitionError(f"{name}.topics: a mapping of slugs to titles is expected")
    for slug, title in workflow.topics.items():
        _check_slug(f"{name}.topics", slug)
        _check_text(f"{name}.topics[{slug!r}]", title, most=LONGEST_TITLE)
    _check_handlers(name, workflow)


def _check_handlers(name: str, workflow: type[Workflow]) -> None:
    if not workflow.handlers():
        raise DefinitionError(f"{name}: a workflow needs a producer or a consumer")
    for handler in workflow.handlers():
        if not isinstance(handler, type) or not issubclass(handler, (Producer, Consumer)):
            raise DefinitionError(f"{name}: {handler!r} is neither a Producer nor a Consumer")
    names = [handler.name() for handler in workflow.handlers()]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise DefinitionError(f"{name}: it has two handlers named {twice}")
    for handler in workflow.handlers():
        _check_handler(f"{name}.{handler.name()}", handler)


def _check_text(place: str, text: object, *, most: int | None = None, least: int = 0) -> None:
    if isinstance(text, str) and least <= len(text.strip()) and (most is None or len(text) <= most):
        return
    length = f" of {least} to {most:,} characters" if most is not None else ""
    raise DefinitionError(f"{place}: a text{length} is expected")


def _check_slug(place: str, slug: object) -> None:
    if not isinstance(slug, str) or not SLUG.fullmatch(slug) or len(slug) > LONGEST_SLUG:
        raise DefinitionError(
            f"{place}: {slug!r} is no slug; write at most {LONGEST_SLUG} small letters, digits and hyphens"
        )


def _check_handler(name: str, handler: type[Handler]) -> None:
    _check_text(f"{name}.title", handler.title, most=LONGEST_TITLE)
    _check_text(f"{name}.version", handler.version, most=LONGEST_VERSION)
    seconds = handler.timeout_seconds
    if not isinstance(seconds, int) or not 1 <= seconds <= MOST_TIMEOUT_SECONDS:
        raise DefinitionError(f"{name}.timeout_seconds: from 1 to {MOST_TIMEOUT_SECONDS:,} is expected")
    if isinstance(handler.publishes, str):
        raise DefinitionError(f"{name}.publishes: a list of topics is expected")
    if issubclass(handler, Producer):
        handler.spec_json()
        if handler.produce is Producer.produce:
            raise DefinitionError(f"{name}: a producer needs a method produce(ctx)")
    elif issubclass(handler, Consumer):
        if handler.prepare is Consumer.prepare:
            raise DefinitionError(f"{name}: a consumer needs a method prepare(ctx)")
        if not handler.subscribe or isinstance(handler.subscribe, str):
            raise DefinitionError(f"{name}.subscribe: a list of at least one topic is expected")


def _check_topics(workflows: Sequence[type[Workflow]]) -> None:
    """Topics are known to all workflows, and each has one consumer at most: its events are consumed once."""
    known: dict[str, str] = {}
    for workflow in workflows:
        for slug in workflow.topics:
            if slug in known:
                raise DefinitionError(f"the topic {slug!r} is in both {known[slug]} and {workflow.__name__}")
            known[slug] = workflow.__name__
    consumers: dict[str, str] = {}
    for workflow in workflows:
        for handler in workflow.handlers():
            name = f"{workflow.__name__}.{handler.name()}"
            own = getattr(handler, "subscribe", ())
            if unknown := sorted({*handler.publishes, *own} - known.keys()):
                raise DefinitionError(f"{name}: no workflow has the topic {unknown[0]!r} among its topics")
            for slug in own:
                if slug in consumers:
                    raise DefinitionError(
                        f"{name}.subscribe: {slug!r} is consumed by {consumers[slug]} already; "
                        "publish to a topic of its own for each consumer"
                    )
                consumers[slug] = name


@cache
def _digest(module: str) -> str:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # written in a shell
        source = module
    return hashlib.sha256(source.encode()).hexdigest()[:16]
