"""A schedule while somebody edits it: texts as they were typed, not read yet, so that none is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from django.http import QueryDict

from files import strict_json
from text.clean import clean_lines, clean_text
from text.numbers import whole_number

Texts = dict[str, str]

LISTS = ("rule", "exclusion", "step")
# One more than a schedule may have, so that the model still says that there are too many.
MOST_PARTS = 1001
KEY_DIGITS = 6


class Part(NamedTuple):
    """A rule, an exclusion or a step; its key stays the same wherever it is moved."""

    key: str
    texts: Texts


@dataclass(frozen=True)
class Draft:
    """`own` holds what is in no list: the name, the policies, the bounds of the times."""

    own: Texts = field(default_factory=dict)
    rules: list[Part] = field(default_factory=list)
    exclusions: list[Part] = field(default_factory=list)
    steps: list[Part] = field(default_factory=list)

    @classmethod
    def read(cls, post: QueryDict) -> Draft:
        """Whatever was sent: what the form does not know is passed over when it is read."""
        own: Texts = {}
        parts: dict[str, dict[str, Texts]] = {
            what: {key: {} for key in _keys(post.getlist(what))} for what in LISTS
        }
        for name in post:
            what, _, rest = name.partition("-")
            key, dash, inner = rest.partition("-")
            if dash and what in parts:
                if key in parts[what]:
                    parts[what][key][inner] = _text(post, name)
            elif name not in LISTS:
                own[name] = _text(post, name)
        rules, exclusions, steps = ([_part(*each) for each in parts[what].items()] for what in LISTS)
        return cls(own, rules, exclusions, steps)

    def with_own(self, **texts: str) -> Draft:
        return replace(self, own=self.own | texts)


def packed(texts: Texts) -> str:
    """All in one field: a long plan has more texts than a form may have fields."""
    return json.dumps({name: text for name, text in texts.items() if text}, ensure_ascii=False)


def _part(key: str, texts: Texts) -> Part:
    try:
        inner = strict_json.loads(texts.pop("packed", "{}"))
    except ValueError:
        inner = {}
    known = inner if isinstance(inner, dict) else {}
    clean = {name: clean_text(text) for name, text in known.items() if isinstance(text, str)}
    return Part(key, clean | texts)


def numbered(texts: Iterable[Texts]) -> list[Part]:
    return [Part(str(number), each) for number, each in enumerate(texts, 1)]


def fresh_key(parts: Iterable[Part]) -> str:
    """None that is taken: what was typed into one part never ends up in another."""
    return str(max((int(part.key) for part in parts), default=0) + 1)


def given(texts: Mapping[str, str], *names: str) -> Texts:
    """Those that are not empty."""
    return {name: texts[name].strip() for name in names if texts.get(name, "").strip()}


def index_of(texts: Mapping[str, str]) -> int:
    """Where a step stands; what is no number is the beginning."""
    return whole_number(texts.get("index", ""), digits=9) or 0


def as_text(value: object) -> str:
    """As a form shows it; a tick is “on”."""
    if isinstance(value, bool):
        return "on" if value else ""
    return "" if value is None else str(value)


def _keys(keys: Iterable[str]) -> Iterator[str]:
    known: set[str] = set()
    for key in keys:
        if whole_number(key, digits=KEY_DIGITS) is not None and len(known) < MOST_PARTS:
            known.add(key)
            yield key


def _text(post: QueryDict, name: str) -> str:
    return clean_lines(str(post.get(name, "")))
