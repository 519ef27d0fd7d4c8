"""The data of the editor's forms as a browser sends it: unparsed text, so that no input is lost."""

from __future__ import annotations

from django.http import QueryDict

from schedules.forms.sent import put
from text.clean import clean_lines
from text.numbers import whole_number


def cleaned(post: QueryDict) -> QueryDict:
    """Return a mutable copy with clean text that can be stored."""
    data = QueryDict(mutable=True)
    for name, texts in post.lists():
        data.setlist(name, [clean_lines(str(text)) for text in texts])
    return data


def count_of(data: QueryDict, prefix: str) -> int:
    """Return the number of forms in a formset, including removed ones."""
    return whole_number(data.get(f"{prefix}-TOTAL_FORMS", ""), digits=4) or 0


def put_count(data: QueryDict, prefix: str, count: int) -> None:
    put(data, {f"{prefix}-TOTAL_FORMS": [str(count)], f"{prefix}-INITIAL_FORMS": ["0"]})


def added(data: QueryDict, prefix: str, *, most: int) -> int | None:
    """Add a form to a formset and return its number, or None if the formset is full."""
    number = count_of(data, prefix)
    if number >= most:
        return None
    put_count(data, prefix, number + 1)
    return number


def removed(data: QueryDict, prefix: str, number: int) -> None:
    """Mark a form as removed. The other forms keep their numbers, so that no input moves between forms."""
    take(data, f"{prefix}-{number}-", QueryDict())
    data[f"{prefix}-{number}-DELETE"] = "on"


def take(data: QueryDict, start: str, source: QueryDict) -> None:
    """Replace all fields whose names begin with `start` by those of `source`."""
    for name in [name for name in data if name.startswith(start)]:
        del data[name]
    put(data, {name: source.getlist(name) for name in source if name.startswith(start)})
