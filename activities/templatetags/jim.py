from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.safestring import SafeString

from database import clock
from text import words

register = template.Library()
register.filter("badge", words.badge)
register.filter("span", words.span)


@register.filter
def moment(at: datetime | None) -> SafeString:
    return words.moment(at, now=clock.now())
