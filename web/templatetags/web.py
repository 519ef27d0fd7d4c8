"""Template tags of all pages: times, numbers, badges, operations, forms and links."""

from __future__ import annotations

import json
from datetime import datetime, tzinfo
from typing import Any
from urllib.parse import urlencode

from django import forms, template
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from database import clock
from text import words
from web import keyset
from web.operating import operation_url, operations_of
from web.page import is_htmx
from web.saving import mistakes_of

register = template.Library()
register.filter("badge", words.badge)
register.filter("glyph", words.glyph)
register.filter("span", words.span)


@register.filter
def moment(at: datetime | None) -> SafeString:
    """Return a relative time, such as “in 4 min”, which the page updates. The title is the exact time."""
    return words.moment(at, now=clock.now())


@register.filter
def on_clock(at: datetime | None, zone: tzinfo | None = None) -> SafeString:
    """Return the time in the user's zone; the title shows it in the schedule's zone, if that differs."""
    if at is None:
        return SafeString(words.NOTHING)
    there = words.exact(at, zone) if zone and str(zone) != timezone.get_current_timezone_name() else ""
    title = format_html(' title="{}"', there) if there else ""
    shown = words.here(at)
    return format_html('<time datetime="{}" class="clock"{}>{}</time>', at.isoformat(), title, shown)


@register.filter
def thousands(number: int | None) -> str:
    return words.NOTHING if number is None else f"{number:,}"


@register.filter
def up_to(number: int, most: int) -> str:
    """Return a number as text. If counting stopped at `most`, the text ends with “+”, as in “1,000+”."""
    return f"{number:,}" if number < most else f"{most:,}+"


@register.filter
def percent(part: float | None) -> str:
    """Return a share from 0 to 1 as a percentage. A share below 1 is never rounded up to 100 %."""
    if part is None:
        return words.NOTHING
    return f"{min(part * 100, 99.9):.1f} %" if part < 1 else "100 %"


@register.filter(name="words")
def split(text: str) -> list[str]:
    return text.split()


@register.filter
def clock_of(at: datetime, zone: tzinfo) -> SafeString:
    """Return a short time for lists, in the user's zone, with seconds only if they are not zero.

    The title shows the exact time, and also the time in the schedule's zone if that differs.
    """
    local = timezone.localtime(at)
    shown = f"{local:%a %d %b %H:%M:%S}" if local.second else f"{local:%a %d %b %H:%M}"
    title = words.here(at)
    if str(zone) != str(local.tzinfo):
        title = f"{title}\n{words.exact(at, zone)}"
    words_of = (at.isoformat(), title, shown, local.tzinfo)
    return format_html('<time datetime="{}" title="{}">{} {}</time>', *words_of)


@register.filter
def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


@register.inclusion_tag("web/_operations.html", takes_context=True)
def operations(context: Any, target: Model, only: str = "", first: str = "") -> dict[str, Any]:
    """Show buttons for the operations that the user may perform on `target`.

    `only` contains the names of the operations to show, separated by spaces; if empty, all are shown. `first`
    is the name of the operation with the primary button.
    """
    request: HttpRequest = context["request"]
    wanted = only.split()
    found = [(o, url) for o, url in operations_of(request, target) if not wanted or o.name in wanted]
    return {
        "main": [(o, _with_back(url, request)) for o, url in found if o.name == first],
        "others": [(o, _with_back(url, request)) for o, url in found if o.name != first],
        "target": target,
    }


@register.simple_tag(takes_context=True)
def address(context: Any, **changed: Any) -> str:
    """Return the address of this page with some parameters changed."""
    return keyset.address(context["request"], **changed)


@register.simple_tag(takes_context=True)
def operate(context: Any, name: str, target: Model) -> str:
    return operation_url(name, [target], back=_here(context["request"]))


@register.simple_tag(takes_context=True)
def can(context: Any, permission: str) -> bool:
    return bool(context["request"].user.has_perm(permission))


@register.simple_tag(takes_context=True)
def in_admin(context: Any, target: Model) -> SafeString | str:
    """Return a link to the row in the admin, or an empty string if the user may not see the row there."""
    user, meta = context["request"].user, target._meta
    if not (user.is_staff and user.has_perm(f"{meta.app_label}.view_{meta.model_name}")):
        return ""
    url = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[quote(target.pk)])
    return format_html('<a class="button" href="{}">Open in admin</a>', url)


@register.inclusion_tag("web/_field.html")
def field(bound: Any) -> dict[str, Any]:
    return {"field": bound, "kind": type(bound.field.widget).__name__.lower()}


@register.inclusion_tag("web/_mistakes.html")
def mistakes(form: forms.BaseForm) -> dict[str, Any]:
    """Show the error summary of a form, which takes the focus and links to each field that has errors."""
    hidden = [str(error) for bound in form.hidden_fields() for error in bound.errors]
    return {"mistakes": mistakes_of(form), "general": [*map(str, form.non_field_errors()), *hidden]}


def _with_back(url: str, request: HttpRequest) -> str:
    return f"{url}&{urlencode({'next': _here(request)})}"


def _here(request: HttpRequest) -> str:
    """Return the address of the page, even if only a part of the page is requested."""
    shown_on = request.htmx.current_url_abs_path if is_htmx(request) else None  # type: ignore[attr-defined]
    return shown_on or request.get_full_path()
