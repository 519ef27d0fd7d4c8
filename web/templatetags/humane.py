"""Template filters for numbers and short times."""

from __future__ import annotations

from datetime import datetime, tzinfo

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from text import words

register = template.Library()


@register.filter
def thousands(number: int | None) -> str:
    return words.NOTHING if number is None else f"{number:,}"


@register.filter
def up_to(number: int, most: int) -> str:
    """Return a count that stopped at `most`, such as “1,000+”."""
    return f"{number:,}" if number < most else f"{most:,}+"


@register.filter
def percent(part: float | None) -> str:
    """Return a percentage. Only 1 becomes 100 %; smaller parts are never rounded up to it."""
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
