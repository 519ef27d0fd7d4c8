"""Hides secrets in what steps say, in whichever of the usual ways they are written. Knows no database."""

from __future__ import annotations

import html
import json
import re
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from execution.lines import LONGEST

if TYPE_CHECKING:
    from execution.steps.base import Sink

MASK = "•••"
SHORTEST = 4  # anything shorter is a part of too many words
# What the usual encoders leave as it is: all, paths, JavaScript's encodeURIComponent, and query strings.
URL_SAFE = ("", "/", "!'()*~", "!$&'()*+,;=:@/?")


class Mask:
    """Replaces secrets, also in base64, URL-encoded, or escaped for JSON, HTML, Python, SQL and shells."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = {part for secret in secrets for part in _parts(secret)}
        forms = {form for part in self._secrets for form in _forms(part) if len(form) >= SHORTEST}
        # The longest first: a secret may be a part of another one.
        self._forms = sorted(forms, key=len, reverse=True)

    @classmethod
    def of(cls, secrets: Iterable[str]) -> Mask:
        """The same one for the same secrets."""
        return _mask(frozenset(secrets))

    def text(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def json(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(key): self.json(each) for key, each in value.items()}
            case list():
                return [self.json(each) for each in value]
            case bool() | None:
                return value
        return MASK if str(value) in self._secrets else value

    def settled(self, text: str) -> tuple[str, str]:
        """As much as can be masked before it is known what follows; and the rest, as it is."""
        cut = max(len(text) - max(map(len, self._forms), default=1) + 1, 0)
        while over := [end for form in self._forms if (end := _end_across(text, form, cut))]:
            cut = max(over)
        return self.text(text[:cut]), text[cut:]


@lru_cache(maxsize=256)
def _mask(secrets: frozenset[str]) -> Mask:
    return Mask(secrets)


class MaskedSink:
    """In front of another sink. A line that was cut for its length is masked together with what follows."""

    def __init__(self, sink: Sink, mask: Mask) -> None:
        self._sink = sink
        self._mask = mask
        self._open: dict[str, str] = {}
        self._lock = threading.Lock()

    def output(self, stream: str, lines: list[str]) -> None:
        with self._lock:
            if masked := [piece for line in lines for piece in self._masked(stream, line)]:
                self._sink.output(stream, masked)

    def progress(self, done: int, total: int | None, message: str) -> None:
        self._sink.progress(done, total, self._mask.text(message))

    def item(self, name: str, outcome: str, message: str) -> None:
        self._sink.item(self._mask.text(name), outcome, self._mask.text(message))

    def finish(self) -> None:
        """Nothing follows any more."""
        with self._lock:
            for stream, rest in self._open.items():
                self._sink.output(stream, _cut(self._mask.text(rest)))
            self._open = {}

    def _masked(self, stream: str, line: str) -> list[str]:
        text = self._open.pop(stream, "") + line
        if len(line) < LONGEST:
            return _cut(self._mask.text(text))
        settled, self._open[stream] = self._mask.settled(text)
        return _cut(settled) if settled else []


_active: dict[Mask, int] = {}
_active_lock = threading.Lock()


@contextmanager
def active(mask: Mask) -> Iterator[None]:
    """Within the block, `conceal` hides these secrets in every thread."""
    with _active_lock:
        _active[mask] = _active.get(mask, 0) + 1
    try:
        yield
    finally:
        with _active_lock:
            _active[mask] -= 1
            if not _active[mask]:
                del _active[mask]


def conceal(text: str) -> str:
    """For words that are not a step's own, such as a line of the log: hides the secrets of all that runs."""
    if _active:
        with _active_lock:
            masks = list(_active)
        for mask in masks:
            text = mask.text(text)
    return text


def _end_across(text: str, form: str, cut: int) -> int:
    """Where the form ends that begins before the cut and ends after it; 0 if none does."""
    found = text.find(form, max(cut - len(form) + 1, 0), cut + len(form) - 1)
    return 0 if found < 0 else found + len(form)


def _cut(text: str) -> list[str]:
    return [text[start : start + LONGEST] for start in range(0, len(text), LONGEST)] or [""]


def _parts(secret: str) -> Iterator[str]:
    """The secret, and its single lines: output has no others."""
    for part in (secret, *secret.splitlines()):
        for each in (part, part.strip()):
            if len(each) >= SHORTEST:
                yield each
                # As whoever takes a header for Latin-1 reads it.
                yield each.encode().decode("latin-1")


def _forms(secret: str) -> Iterator[str]:
    """Written once, and that between quotes again: a log quotes what is JSON already."""
    once = {secret, *_in_quotes(secret), *_in_html(secret), *_in_shells(secret), *_in_urls(secret)}
    for form in once:
        yield form
        yield from _in_quotes(form)
    yield from _base64(secret.encode())


def _in_quotes(text: str) -> Iterator[str]:
    """Of JSON, Python and SQL."""
    for dumped in (_json(text, ensure_ascii=True), _json(text, ensure_ascii=False)):
        yield dumped
        yield dumped.replace("/", "\\/")
    # Whether Python escapes a quote depends on what else stands in the same text.
    for pieces in (
        [repr(piece)[1:-1] for piece in text.split("'")],
        [ascii(piece)[1:-1] for piece in text.split("'")],
        [repr(piece)[2:-1] for piece in text.encode().split(b"'")],
    ):
        yield "'".join(pieces)
        yield "\\'".join(pieces)
    yield text.replace("'", "''")
    yield text.replace("\\", "\\\\").replace("'", "''")


def _in_html(text: str) -> Iterator[str]:
    for escaped in (html.escape(text, quote=False), html.escape(text)):
        yield escaped
        yield escaped.replace("&#x27;", "&#39;").replace("&quot;", "&#34;")


def _in_shells(text: str) -> Iterator[str]:
    yield text.replace("'", "'\"'\"'")
    yield text.replace("'", "'\\''")
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)


def _in_urls(text: str) -> Iterator[str]:
    for safe in URL_SAFE:
        yield from _either_case(quote(text, safe=safe))
    yield from _either_case(quote_plus(text))


def _json(text: str, *, ensure_ascii: bool) -> str:
    return json.dumps(text, ensure_ascii=ensure_ascii)[1:-1]


def _either_case(encoded: str) -> tuple[str, str]:
    return encoded, re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)


def _base64(secret: bytes) -> Iterator[str]:
    """Wherever it begins in what was encoded: a third of a character decides how the rest looks."""
    for before in range(3):
        encoded = b64encode(b"\0" * before + secret).decode()
        start, end = -(-before * 4 // 3), (before + len(secret)) * 4 // 3
        for form in (encoded[start:end], encoded[start:]):
            yield form
            yield form.replace("+", "-").replace("/", "_")
