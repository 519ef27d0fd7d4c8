"""The base classes of workflows in code, and checks of their definitions that need no database."""

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
    """Producers and consumers that belong together. At most one of them runs at any time."""

    slug: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str] = ""
    pool: ClassVar[str] = "default"
    # Set to False to leave the workflow out, for example where a service it needs is not set up.
    enabled: ClassVar[bool] = True
    # The topics that this workflow declares: slug and title.
    topics: ClassVar[Mapping[str, str]] = {}
    producers: ClassVar[Sequence[type[Producer]]] = ()
    consumers: ClassVar[Sequence[type[Consumer]]] = ()

    @classmethod
    def handlers(cls) -> list[type[Handler]]:
        return [*cls.producers, *cls.consumers]


class Handler:
    """The base class of producers and consumers."""

    title: ClassVar[str] = ""
    # The topics that this handler may publish to.
    publishes: ClassVar[Sequence[str]] = ()
    timeout_seconds: ClassVar[int] = 300
    # The version of the code; if empty, every change to the module counts as a new version.
    version: ClassVar[str] = ""

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @classmethod
    def code_version(cls) -> str:
        return cls.version or _digest(cls.__module__)


class Producer(Handler):
    """A handler that runs on a schedule and publishes new data as events."""

    every: ClassVar[str] = ""
    cron: ClassVar[str] = ""
    time_zone: ClassVar[str] = "UTC"
    # Any other spec, written as in a schedule.
    spec: ClassVar[Mapping[str, Any]] = {}

    def produce(self, ctx: ProduceContext) -> Any:
        """Publish events and return the new state, or None to keep the old one."""
        raise TypeError(f"{type(self).__name__} has no method produce")

    @classmethod
    def spec_json(cls) -> dict[str, object]:
        """Return the spec in its canonical form; raise DefinitionError if it is invalid."""
        given = [name for name in ("every", "cron", "spec") if getattr(cls, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise DefinitionError(f"{cls.__name__}: set exactly one of every, cron and spec; found {found}")
        data: dict[str, Any] = dict(cls.spec) or {given[0]: [getattr(cls, given[0])]}
        if given[0] != "spec":
            data["time_zone"] = cls.time_zone
        try:
            return Spec.parse(data).as_json()
        except SpecError as error:
            raise DefinitionError(f"{cls.__name__}: {error}") from error


class Consumer(Handler):
    """A handler that reserves events, makes at most one change outside JIM, and publishes further events."""

    subscribe: ClassVar[Sequence[str]] = ()

    def prepare(self, ctx: PrepareContext) -> Prepared | None:
        """Choose the events to reserve, without changing anything.

        If this method returns None or reserves nothing, the consumer waits for an event or for `wake_at`.
        """
        raise TypeError(f"{type(self).__name__} has no method prepare")

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        """Make the change outside JIM with at most one `ctx.apply`.

        This method is not called if nothing was reserved.
        """

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> Any:
        """Publish events, and return the new state, or None to keep the old one.

        This method is called even if nothing was reserved or changed.
        """

    # Define this as a method that finds out whether a mutation of unknown outcome happened, and returns
    # applied(result), failed or retry. Without the method, a person is asked.
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
    """The result of `prepare`: the events to reserve, and data for the later phases."""

    reserve: Sequence[Pending] = ()
    data: Any = None
    # Run again at this time even if no event comes: a datetime with a time zone, or ISO 8601 text.
    wake_at: datetime | str | None = None
    title: str = ""


@dataclass(frozen=True)
class Mutation:
    """The outcome of the mutation, as `next` receives it. `none` means that `ctx.apply` was not called."""

    outcome: Literal["applied", "none", "skipped"]
    result: Any = None


@dataclass(frozen=True)
class Reconciled:
    """What `reconcile` found out about the mutation.

    `applied`: it happened. `failed`: it did not happen. `retry`: this is still unknown.
    """

    verdict: Literal["applied", "failed", "retry"]
    result: Any = None


def applied(result: Any = None) -> Reconciled:
    """Report that the mutation happened; `result` replaces what `ctx.apply` would have returned."""
    return Reconciled("applied", result)


failed = Reconciled("failed")
retry = Reconciled("retry")


@dataclass(frozen=True)
class Definitions:
    """All workflows in the code, checked together."""

    workflows: Mapping[str, type[Workflow]] = field(default_factory=dict)

    @classmethod
    def of(cls, workflows: Sequence[type[Workflow]]) -> Definitions:
        found: dict[str, type[Workflow]] = {}
        for workflow in workflows:
            _check(workflow)
            if workflow.slug in found:
                raise DefinitionError(
                    f"two workflows have the slug {workflow.slug!r}; give one of them another slug"
                )
            found[workflow.slug] = workflow
        _check_topics(list(found.values()))
        return cls(found)

    def handler(self, workflow: str, name: str) -> type[Handler] | None:
        known = self.workflows.get(workflow)
        named = [each for each in known.handlers() if each.name() == name] if known else []
        return named[0] if named else None

    @property
    def topics(self) -> dict[str, tuple[str, str]]:
        """Return a dict from topic slug to (title, slug of the workflow that declares the topic)."""
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
        raise DefinitionError(f"{name}.topics: must be a mapping of slugs to titles")
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
        raise DefinitionError(f"{name}: two handlers are named {twice}; rename one of them")
    for handler in workflow.handlers():
        _check_handler(f"{name}.{handler.name()}", handler)


def _check_text(place: str, text: object, *, most: int | None = None, least: int = 0) -> None:
    if isinstance(text, str) and least <= len(text.strip()) and (most is None or len(text) <= most):
        return
    length = f" with {least} to {most:,} characters" if most is not None else ""
    raise DefinitionError(f"{place}: must be a string{length}")


def _check_slug(place: str, slug: object) -> None:
    if not isinstance(slug, str) or not SLUG.fullmatch(slug) or len(slug) > LONGEST_SLUG:
        raise DefinitionError(
            f"{place}: {slug!r} is not a slug; use 1 to {LONGEST_SLUG} lowercase letters, digits and hyphens"
        )


def _check_handler(name: str, handler: type[Handler]) -> None:
    _check_text(f"{name}.title", handler.title, most=LONGEST_TITLE)
    _check_text(f"{name}.version", handler.version, most=LONGEST_VERSION)
    seconds = handler.timeout_seconds
    if not isinstance(seconds, int) or not 1 <= seconds <= MOST_TIMEOUT_SECONDS:
        raise DefinitionError(f"{name}.timeout_seconds: must be from 1 to {MOST_TIMEOUT_SECONDS:,}")
    if isinstance(handler.publishes, str):
        raise DefinitionError(f"{name}.publishes: must be a list of topics")
    if issubclass(handler, Producer):
        handler.spec_json()
        if handler.produce is Producer.produce:
            raise DefinitionError(f"{name}: a producer needs a method produce(ctx)")
    elif issubclass(handler, Consumer):
        if handler.prepare is Consumer.prepare:
            raise DefinitionError(f"{name}: a consumer needs a method prepare(ctx)")
        if not handler.subscribe or isinstance(handler.subscribe, str):
            raise DefinitionError(f"{name}.subscribe: must be a list of at least one topic")


def _check_topics(workflows: Sequence[type[Workflow]]) -> None:
    """Raise DefinitionError unless each topic in use is declared once and has at most one consumer."""
    known: dict[str, str] = {}
    for workflow in workflows:
        for slug in workflow.topics:
            if slug in known:
                raise DefinitionError(
                    f"topic {slug!r} is declared by both {known[slug]} and {workflow.__name__}"
                )
            known[slug] = workflow.__name__
    consumers: dict[str, str] = {}
    for workflow in workflows:
        for handler in workflow.handlers():
            name = f"{workflow.__name__}.{handler.name()}"
            own = getattr(handler, "subscribe", ())
            if unknown := sorted({*handler.publishes, *own} - known.keys()):
                raise DefinitionError(
                    f"{name}: no workflow declares the topic {unknown[0]!r}; add it to `topics`"
                )
            for slug in own:
                if slug in consumers:
                    raise DefinitionError(
                        f"{name}.subscribe: {slug!r} is already consumed by {consumers[slug]}; "
                        "use a separate topic for each consumer"
                    )
                consumers[slug] = name


@cache
def _digest(module: str) -> str:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # defined in a shell
        source = module
    return hashlib.sha256(source.encode()).hexdigest()[:16]
