"""Every address of the pages, as the URLconf has them, each with an example of what it is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.urls import URLPattern, reverse

from tests.installation import installation
from web import urls

# Addresses that take more, or something else, than the key of what they are named after.
ARGUMENTS: dict[str, list[tuple[Any, ...]]] = {
    "operate": [
        *(("schedule", "pause"), ("limit", "delete"), ("endpoint", "rotate")),
        *(("sharedcalendar", "delete"), ("run", "approve"), ("workflow", "pause")),
    ]
}
QUERIES = {"operate": "?id={id}"}
# What addresses are about that are not named after it.
ABOUT = dict.fromkeys(("ledger", "why", "revisions", "backfills"), "schedule") | {"runs": "workflow"}
ID_OF_KIND = {"sharedcalendar": "calendar", "tasktemplate": "template", "workflow": "workflow-row"}


class Address(NamedTuple):
    name: str
    url: str


def addresses() -> Iterator[Address]:
    """Of all there is; a new address whose example nobody knows is an error, not an omission."""
    examples = installation.examples()
    for pattern in urls.urlpatterns:
        assert isinstance(pattern, URLPattern), pattern
        yield from _addresses(str(pattern.name), list(pattern.pattern.converters), examples)


def admin_addresses() -> Iterator[Address]:
    """Of each kind of row the list, and the page of the newest one."""
    yield Address("admin", reverse("admin:index"))
    for model in admin.site._registry:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        yield Address(f"admin-{name}", reverse(f"admin:{name}_changelist"))
        if (newest := model._default_manager.order_by("pk").last()) is not None:
            url = reverse(f"admin:{name}_change", args=[quote(newest.pk)])
            yield Address(f"admin-{name}-change", url)


def _addresses(name: str, parameters: list[str], examples: Mapping[str, Any]) -> Iterator[Address]:
    if name in ARGUMENTS:
        for given in ARGUMENTS[name]:
            key = examples[ID_OF_KIND.get(given[0], given[0])]
            query = QUERIES.get(name, "").format(id=key)
            yield Address("-".join(map(str, (name, *given))), reverse(f"web:{name}", args=given) + query)
        return
    values = [_example(name, parameter, examples) for parameter in parameters]
    yield Address(name, reverse(f"web:{name}", args=values))


def _example(name: str, parameter: str, examples: Mapping[str, Any]) -> Any:
    """By the name of the parameter, else by what the address is named after: `schedule-edit`, `schedule`."""
    about = ABOUT.get(name, name)
    known = [kind for kind in examples if kind == parameter or f"{about}-".startswith(f"{kind}-")]
    assert known, (
        f"Nobody knows an example of <{parameter}> for the address web:{name}: "
        "add it to tests.installation.installation.examples, or to ARGUMENTS here."
    )
    exact = [kind for kind in known if kind == parameter]
    return examples[max(exact or known, key=len)]


def is_page(answer: Any) -> bool:
    """Not a part of one, a file, or what can only be sent."""
    is_html = answer.headers.get("content-type", "").startswith("text/html")
    return answer.status == 200 and is_html and "<html" in answer.text()
