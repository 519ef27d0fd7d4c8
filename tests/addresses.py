"""Every address of the site, as the URLconf has them, and an example of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.test import Client
from django.urls import NoReverseMatch, URLPattern, URLResolver, get_resolver, reverse
from drf_spectacular.generators import SchemaGenerator

from jimsite.authentication import Backend

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# What an address is about that is not called like it.
ABOUT = {
    "schedule-occurrence-detail": "occurrence",
    "ledger": "schedule",
    "why": "schedule",
    "revisions": "schedule",
    "backfills": "schedule",
    "webhook": "endpoint",
    "runs": "workflow",
}
# Where the name of a parameter says what it is.
NAMED = {"number": 1, "content_type_id": 1, "object_id": 0, "url": "nowhere", "app_label": "schedules"}


class Route(NamedTuple):
    """One address of the URLconf; of what can be operated on, each operation is one."""

    name: str
    parameters: tuple[str, ...]
    fixed: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join((self.name, *self.fixed))

    def path(self, examples: Mapping[str, Any]) -> str:
        """With what the examples have; where they have nothing, it leads to what does not exist."""
        if self.fixed:
            kind = {"sharedcalendar": "calendar", "tasktemplate": "template"}
            kind |= {"workertask": "task-row", "workflow": "workflow-row"}
            given = examples.get(kind.get(self.fixed[0], self.fixed[0]), 0)
            return f"{reverse(self.name, args=self.fixed)}?id={given}"
        values = {name: self._example(name, examples) for name in self.parameters}
        try:
            return reverse(self.name, kwargs=values)
        except NoReverseMatch:
            nobody = "00000000-0000-0000-0000-000000000000"
            return reverse(self.name, kwargs=dict.fromkeys(values, nobody))

    def _example(self, parameter: str, examples: Mapping[str, Any]) -> Any:
        kind = parameter.removesuffix("_id")
        if parameter not in ("pk", "key", "id") and kind in examples:
            return examples[kind]
        return NAMED.get(parameter, examples.get(self._kind(), 0))

    def _kind(self) -> str:
        name = self.name.partition(":")[2]
        return ABOUT.get(name) or ABOUT.get(name.partition("-")[0]) or name.partition("-")[0]


def routes() -> Iterator[Route]:
    from operations.operation import offered_for
    from web.operating import kinds

    for name, pattern in _walk(get_resolver().url_patterns, ""):
        if name == "web:operate":
            for kind, of in sorted(kinds.items()):
                yield from (Route(name, (), (kind, operation.name)) for operation in offered_for(of.model))
        elif pattern.name:
            yield Route(name, tuple(_parameters(pattern)))


def _walk(patterns: Any, namespace: str) -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            inside = f"{pattern.namespace}:" if pattern.namespace else ""
            yield from _walk(pattern.url_patterns, namespace + inside)
        else:
            yield f"{namespace}{pattern.name}", pattern


def _parameters(pattern: URLPattern) -> Iterator[str]:
    yield from pattern.pattern.converters
    if regex := getattr(pattern.pattern, "_regex", ""):
        yield from re.findall(r"\?P<(\w+)>", str(regex))


@cache
def described() -> Any:
    """The addresses of the API, as it describes them."""
    return SchemaGenerator().get_schema(request=None, public=True)["paths"]  # type: ignore[no-untyped-call]


def visitor(
    user: User | None, monkeypatch: pytest.MonkeyPatch, *, draws: bool = True, **options: Any
) -> Client:
    """Somebody who asks for hundreds of addresses, and is looked up once.

    Where only the code of the answer matters, no page is drawn.
    """
    found: Any = Backend().get_user(user.pk) if user else AnonymousUser()
    monkeypatch.setattr("django.contrib.auth.middleware.get_user", lambda request: found)
    if not draws:
        monkeypatch.setattr("django.template.backends.django.Template.render", lambda *args, **kwargs: "")
    return Client(raise_request_exception=False, **options)
