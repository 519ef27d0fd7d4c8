"""Hide secrets in the output, errors and results of steps, even if encoded, without using a database.

Do not remove any of the tables below to save a line: each is needed by a case in `FORMS` of
tests/execution/test_masking.py, or describes the default encoder of a widely used language.
"""

from __future__ import annotations

import html
import json
import re
import sys
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from text.clean import map_json

if TYPE_CHECKING:
    from .context import Sink

MASK = "•••"
SHORTEST = 4  # shorter secrets are part of too many words
FRAGMENT = 8  # this many characters in common with a secret are not a coincidence
LONG_FRAGMENT = 16  # longer than an ordinary word; Python and databases cut long values that they quote
FEW = 100  # up to this many forms are searched one by one
LINE_WIDTHS = (64, 76)  # of base64, as the usual encoders write it
# Words that may be base64; words in lower case only are ordinary words.
BASE64 = re.compile(rf"(?<![\w+/-])(?=[a-z/_-]*[A-Z0-9+])[\w+/-]{{{FRAGMENT},}}=*", re.ASCII)
UNQUOTED = re.compile(r"[ !#-&(-.0-\[\]-~]*")  # not changed by quoting
# Characters that URL encoders do not encode: none, in paths, in JavaScript's encodeURIComponent, in queries.
URL_SAFE = ("", "/", "!'()*~", "!$&'()*+,;=:@/?")
# Characters that JSON writers escape beyond the standard: none, Go and Ruby, PowerShell, PHP, .NET.
JSON_ESCAPED = ("", "&<>\u2028\u2029", "&<>'", "&<>'\"", "&<>'\"+`\x7f")
HTML_ESCAPED: tuple[dict[str, str], ...] = (
    {},
    {'"': "&quot;"},
    {'"': "&quot;", "'": "&#x27;"},
    {'"': "&quot;", "'": "&#39;"},
    {'"': "&quot;", "'": "&#039;"},
    {'"': "&quot;", "'": "&apos;"},
    {'"': "&quot;", "'": "&#x27;", "/": "&#x2F;"},
    {'"': "&#34;", "'": "&#39;"},
    {'"': "&#34;", "'": "&#39;", "+": "&#43;"},
    {'"': "&#x22;", "'": "&#x27;"},
)

Span = tuple[int, int]


class Mask:
    """Secrets to hide, also in base64 or hex, or encoded for URLs, JSON, HTML, Python, SQL or shells."""

    def __init__(self, secrets: Iterable[str]) -> None:
        wholes = set(secrets)
        self._secrets = {part for secret in wholes for part in _parts(secret)}
        self._forms = {form for part in self._secrets for form in _forms(part) if len(form) >= SHORTEST}
        self._lengths: dict[str, set[int]] = {}
        for form in self._forms:
            self._lengths.setdefault(form[:SHORTEST], set()).add(len(form))
        self._pieces = _Pieces({*wholes, *map(_as_latin_1, wholes)})
        self._base64 = _Pieces(form for secret in wholes for form in _aligned(secret.encode()))
        self.longest = max(map(len, self._forms), default=0)

    @classmethod
    def of(cls, secrets: Iterable[str]) -> Mask:
        """Return the cached mask for these secrets, or a new one."""
        return _mask(frozenset(secrets))

    def text(self, text: str) -> str:
        return _without(text, self._spans(text))

    def fragments(self, text: str) -> str:
        """Return the text with secrets, and also short parts of secrets, hidden.

        This is for messages of programs, which cut the values that they quote.
        """
        return _without(text, _merged([*self._spans(text), *self._pieces.spans(text, FRAGMENT)]))

    def json(self, value: Any) -> Any:
        return map_json(value, self._leaf)

    def gap(self, text: str, at: int) -> int:
        """Return a place at or near `at` where the text can be cut without cutting a secret in two."""
        for start, end in self._spans(text[: at + self.longest]):
            if start < at < end:
                return start or end
        return at

    def _leaf(self, value: object) -> object:
        if isinstance(value, str):
            return self.text(value)
        return MASK if str(value) in self._secrets and not isinstance(value, bool | None) else value

    def _spans(self, text: str) -> list[Span]:
        """Return the spans of secrets in the text. Overlaps are merged, as a secret may contain another."""
        found = [*self._in_forms(text), *self._pieces.spans(text, LONG_FRAGMENT)]
        for word in BASE64.finditer(text):
            found += self._in_base64(word[0], word.start())
        return _merged(found)

    def _in_base64(self, word: str, offset: int) -> Iterator[Span]:
        """Yield the spans of secrets in base64, in either alphabet, even in one line of wrapped base64."""
        for start, end in self._base64.spans(word.replace("-", "+").replace("_", "/"), FRAGMENT):
            yield offset + start, offset + end

    def _in_forms(self, text: str) -> Iterator[Span]:
        if len(self._forms) <= max(FEW, len(text) // 5):
            for form in self._forms:
                yield from _places(text, form)
            return
        # A secret with thousands of lines has more forms than the text has places where a form can begin.
        for at in range(len(text)):
            for length in self._lengths.get(text[at : at + SHORTEST], ()):
                if text[at : at + length] in self._forms:
                    yield at, at + length


class _Pieces:
    """A search for parts of the given strings in a text, wherever the strings were cut off."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._text = "\0".join(texts)  # no text contains NUL
        starts = range(len(self._text) - FRAGMENT + 1)
        self._seeds = {self._text[start : start + FRAGMENT] for start in starts}

    def spans(self, text: str, shortest: int) -> Iterator[Span]:
        end = 0
        for at in range(0, len(text) - FRAGMENT + 1, shortest - FRAGMENT + 1):
            seed = text[at : at + FRAGMENT]
            if at + FRAGMENT <= end or seed not in self._seeds:
                continue
            place = self._text.find(seed)
            start = at - _common(text[:at][::-1], self._text[:place][::-1])
            end = at + _common(text[at:], self._text[place:])
            if end - start >= shortest:
                yield start, end


@lru_cache(maxsize=256)
def _mask(secrets: frozenset[str]) -> Mask:
    return Mask(secrets)


class MaskedSink:
    """A sink that hides secrets and passes everything on to another sink."""

    def __init__(self, sink: Sink, mask: Mask) -> None:
        self._sink = sink
        self._mask = mask

    def output(self, stream: str, lines: list[str]) -> None:
        self._sink.output(stream, [self._mask.text(line) for line in lines])

    def progress(self, done: int, total: int | None, message: str) -> None:
        self._sink.progress(done, total, self._mask.text(message))

    def item(self, name: str, outcome: str, message: str) -> None:
        self._sink.item(self._mask.text(name), outcome, self._mask.text(message))


_active: dict[Mask, int] = {}
_active_lock = threading.Lock()


class _Concealing:
    """A wrapper around a standard stream, to which functions in threads print; it hides active secrets."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(conceal(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def active(mask: Mask) -> Iterator[None]:
    """Make `conceal` and the standard streams hide these secrets within the block, in every thread."""
    with _active_lock:
        if not _active:
            sys.stdout, sys.stderr = _Concealing(sys.stdout), _Concealing(sys.stderr)
        _active[mask] = _active.get(mask, 0) + 1
    try:
        yield
    finally:
        with _active_lock:
            _active[mask] -= 1
            if not _active[mask]:
                del _active[mask]
            if not _active:
                sys.stdout, sys.stderr = _plain(sys.stdout), _plain(sys.stderr)


def _plain(stream: Any) -> Any:
    """Return the stream inside the wrapper, or the stream itself if a function has replaced the wrapper."""
    return stream.stream if isinstance(stream, _Concealing) else stream


def conceal(text: str) -> str:
    """Hide the secrets of all running steps in text that does not belong to one step, such as a log line."""
    if _active:
        with _active_lock:
            masks = list(_active)
        for mask in masks:
            text = mask.text(text)
    return text


def _places(text: str, form: str) -> Iterator[Span]:
    place = text.find(form)
    while place >= 0:
        yield place, place + len(form)
        place = text.find(form, place + 1)


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _without(text: str, spans: Iterable[Span]) -> str:
    pieces, last = [], 0
    for start, end in spans:
        pieces += [text[last:start], MASK]
        last = end
    return "".join([*pieces, text[last:]])


def _parts(secret: str) -> Iterator[str]:
    """Yield the secret and each of its lines, because output is masked line by line."""
    for part in (secret, *secret.splitlines()):
        for each in (part, part.strip()):
            if len(each) >= SHORTEST:
                yield each
                yield _as_latin_1(each)


def _as_latin_1(text: str) -> str:
    """Return the text as read by a program that mistakes UTF-8 for Latin-1, as some do with headers."""
    return text.encode().decode("latin-1")


def _forms(secret: str) -> Iterator[str]:
    """Yield the secret in each encoding, most of them also inside quotes, as when a log quotes JSON."""
    once = {secret, *_in_json(secret), *_in_quotes(secret), *_in_html(secret)}
    once |= {*_in_shells(secret), *_in_urls(secret)}
    for form in once:
        yield form
        yield from _in_quotes(form)
    yield from _base64(secret.encode())
    yield from (secret.encode().hex(), secret.encode().hex().upper())


def _in_json(text: str) -> Iterator[str]:
    """Yield the text as JSON writers escape it, some more than necessary or with capital hex digits."""
    escaped = _json(text, ensure_ascii=True)
    capital = re.sub(r"\\(u[0-9a-f]{4}|.)", _capital, escaped)
    for dumped in {escaped, capital, _json(text, ensure_ascii=False)}:
        for also in {"".join(filter(text.__contains__, chars)) for chars in JSON_ESCAPED}:
            plain = dumped.replace('\\"', '"') if '"' in also else dumped
            for digits in ("04x", "04X"):
                form = plain.translate({ord(char): f"\\u{ord(char):{digits}}" for char in also})
                yield form
                yield form.replace("/", "\\/")


def _in_quotes(text: str) -> Iterator[str]:
    """Yield the text as it appears between quotes in JSON, Python and SQL."""
    if UNQUOTED.fullmatch(text):
        return
    for dumped in (_json(text, ensure_ascii=True), _json(text, ensure_ascii=False)):
        yield dumped
        yield dumped.replace("/", "\\/")
    # Whether Python escapes a quote depends on the rest of the text.
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
    for table in HTML_ESCAPED:
        escaped = html.escape(text, quote=False).translate({ord(char): name for char, name in table.items()})
        yield escaped
        yield escaped.encode("ascii", "xmlcharrefreplace").decode()


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


def _capital(escape: re.Match[str]) -> str:
    return f"\\u{escape[1][1:].upper()}" if escape[1] > "u" else escape[0]


def _either_case(encoded: str) -> tuple[str, str]:
    return encoded, re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)


def _base64(secret: bytes) -> Iterator[str]:
    for encoded in _aligned(secret):
        yield encoded
        yield encoded.replace("+", "-").replace("/", "_")
        for width in LINE_WIDTHS:
            # The last line may be too short to be recognised as a part.
            yield encoded[len(encoded) // width * width :]


def _aligned(secret: bytes) -> Iterator[str]:
    """Yield the secret in base64 for each of the three offsets at which it can begin in encoded data."""
    for before in range(3):
        encoded = b64encode(b"\0" * before + secret).decode()
        start, end = -(-before * 4 // 3), (before + len(secret)) * 4 // 3
        yield from (encoded[start:end], encoded[start:])
