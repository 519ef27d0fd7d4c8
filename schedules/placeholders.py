"""Placeholders, `{{ … }}`, in the config of a step: earlier results, secrets, and values of the run."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

VALUES = (
    "nominal_time",
    "nominal_date",
    "started_time",
    "schedule",
    "execution",
    "attempt",
    "idempotency_key",
)
LAST_RESULT = "last_result"
OF_EVENT = ("topic", "message_id", "title", "payload")
LITERAL = "write {{{{ for a literal {{"

_QUOTED = r""""(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+'"""
_PART = rf"{_QUOTED}|[\w-]+"
_PIECE = re.compile(rf"""(\{{{{4}})|\{{\{{((?:[^{{}}"']|{_QUOTED})*+)\}}\}}""", re.DOTALL)
_PATH = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*", re.DOTALL)
_EACH_PART = re.compile(_PART, re.DOTALL)
_PLAIN = re.compile(r"[\w-]+")
_INDEX = re.compile(r"[0-9]{1,9}")


class PlaceholderError(ValueError):
    """A placeholder that cannot be read or filled in; the message says how to write it."""


class Filled(str):
    """Text whose placeholders are already filled in, so that its braces have no meaning."""

    __slots__ = ()

    def strip(self, chars: str | None = None, /) -> Filled:
        return Filled(super().strip(chars))


@dataclass(frozen=True, slots=True)
class Reference:
    """A parsed placeholder; `text` is its canonical form."""

    kind: Literal["step", "secret", "last", "event", "value"]
    name: str
    path: tuple[str, ...]
    text: str


def has_placeholders(value: object) -> bool:
    """Return whether a value holds placeholders or an escaped `{{`."""
    inside = [value]
    for each in inside:  # grows during the loop, which is several times faster than recursion
        if isinstance(each, str):
            if "{{" in each and not isinstance(each, Filled):
                return True
        elif isinstance(each, dict):
            inside += each
            inside += each.values()
        elif isinstance(each, list | tuple):
            inside += each
    return False


def references(value: object) -> list[Reference]:
    """Return each reference in a value once, in order; raise PlaceholderError if one cannot be read."""
    if not has_placeholders(value):
        return []
    return list(dict.fromkeys(_references(value)))


def fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a value with its placeholders filled in; `values` maps the text of each reference to its value.

    A string that is a single placeholder becomes the value itself. In a longer string, strings are inserted
    as they are, null as an empty string, and other values as JSON. Placeholders in inserted text stay as
    they are.
    """
    if isinstance(value, str):
        return _fill_text(value, values) if has_placeholders(value) else value
    if isinstance(value, dict):
        return {key: fill(each, values) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [fill(each, values) for each in value]
    return value


def written(value: object) -> str:
    """Return a value as text, for insertion into a longer string."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def as_filled(value: Any) -> Any:
    """Return a value with all strings inside it marked as filled in."""
    if not has_placeholders(value):
        return value
    if isinstance(value, str):
        return Filled(value)
    if isinstance(value, dict):
        return {as_filled(key): as_filled(each) for key, each in value.items()}
    return [as_filled(each) for each in value]


def is_placeholder(text: str) -> bool:
    """Return whether the text is a single placeholder, valid or not."""
    piece = None if isinstance(text, Filled) else _PIECE.fullmatch(text)
    return piece is not None and piece[2] is not None


def pieces(text: str) -> Iterator[str | Reference]:
    """Yield the plain text and references in a string, in order; raise PlaceholderError if one is invalid."""
    end = 0
    for piece in _PIECE.finditer(text):
        if before := text[end : piece.start()]:
            yield _without_braces(before)
        yield "{{" if piece[2] is None else reference(piece[2])
        end = piece.end()
    if rest := text[end:]:
        yield _without_braces(rest)


def found(value: object) -> Iterator[Reference]:
    """Yield all readable references inside a value; ignore unreadable ones."""
    inside = [value] if has_placeholders(value) else []
    for each in inside:
        if isinstance(each, str):
            bodies = [piece[2] for piece in _PIECE.finditer(each) if piece[2] is not None]
            yield from (ref for body in bodies if (ref := _readable(body)))
        elif isinstance(each, dict):
            inside += [*each, *each.values()]
        elif isinstance(each, list | tuple):
            inside += each


@lru_cache(maxsize=4096)
def reference(body: str) -> Reference:
    """Return the reference for the text between the braces; raise PlaceholderError if it is wrong."""
    body = body.strip()
    if not _PATH.fullmatch(body):
        raise PlaceholderError(
            f"{_shown(f'{{{{ {body} }}}}')} is not a placeholder: write names joined by dots, with "
            f"quotes around names that contain characters other than letters, digits, - and _, as in "
            f'steps."Import HR".result; '
            f"{LITERAL}"
        )
    root, *parts = [_unquoted(part) for part in _EACH_PART.findall(body)]
    match root:
        case "steps":
            return _step(parts)
        case "secrets":
            if len(parts) != 1:
                raise PlaceholderError(f"“{_path(root, *parts)}” must have the form secrets.NAME")
            return Reference("secret", _name(parts[0]), (), _path(root, _name(parts[0])))
        case "last_result":
            return Reference("last", root, tuple(parts), _path(root, *parts))
        case "event":
            return _event(parts)
        case _ if root not in VALUES:
            known = ("steps", "secrets", "event", LAST_RESULT, *VALUES)
            raise PlaceholderError(f"unknown value “{root}”; {hint(root, known)}")
        case _ if parts:
            raise PlaceholderError(f"“{_path(root, *parts)}”: nothing can follow {root}")
    return Reference("value", root, (), root)


def look_up(result: object, path: tuple[str, ...]) -> Any:
    """Return the value at a path; if there is none, raise PlaceholderError with the names that exist."""
    at = result
    for depth, part in enumerate(path):
        if isinstance(at, dict) and part in at:
            at = at[part]
        elif isinstance(at, list) and _INDEX.fullmatch(part) and int(part) < len(at):
            at = at[int(part)]
        else:
            raise PlaceholderError(_nothing(at, _path(*path[: depth + 1])))
    return at


def hint(name: str, known: Collection[str], otherwise: str = "") -> str:
    """Return a hint: the closest known name, or else `otherwise` or a list of known names."""
    folded = {each.casefold(): each for each in known}
    for close in get_close_matches(name.casefold(), folded, n=1):
        return f"did you mean {folded[close]}?"
    return otherwise or f"choose one of: {_some(known)}"


def _readable(body: str) -> Reference | None:
    try:
        return reference(body)
    except PlaceholderError:
        return None


def _references(value: object) -> Iterator[Reference]:
    if isinstance(value, str):
        if has_placeholders(value):
            yield from (piece for piece in pieces(value) if isinstance(piece, Reference))
    elif isinstance(value, dict):
        for key, each in value.items():
            if has_placeholders(key):
                raise PlaceholderError(
                    f"{_shown(str(key))} is a name: placeholders can be used only in values"
                )
            yield from _references(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _references(each)


def _fill_text(text: str, values: Mapping[str, Any]) -> Any:
    match list(pieces(text)):
        case [Reference() as whole]:
            return as_filled(_value_of(whole, values))
        case several:
            texts = (
                written(_value_of(each, values)) if isinstance(each, Reference) else each for each in several
            )
            return as_filled("".join(texts))


def _value_of(one: Reference, values: Mapping[str, Any]) -> Any:
    try:
        return values[one.text]
    except KeyError:
        raise PlaceholderError(f"{{{{ {one.text} }}}} has no value here") from None


def _without_braces(text: str) -> str:
    start = text.find("{{")
    if start >= 0:
        raise PlaceholderError(f"{_shown(text[start:])} is not closed, or is not a placeholder; {LITERAL}")
    return text


def _step(parts: list[str]) -> Reference:
    if len(parts) < 2 or parts[1] != "result":
        name = parts[0] if parts else "NAME"
        raise PlaceholderError(
            f"“{_path('steps', *parts)}” must have the form {_path('steps', name, 'result')}"
        )
    name, path = _name(parts[0]), tuple(parts[2:])
    return Reference("step", name, path, _path("steps", name, "result", *path))


def _event(parts: list[str]) -> Reference:
    """Return a reference to an event; only its payload can have a path."""
    if not parts or parts[0] not in OF_EVENT:
        raise PlaceholderError(
            f"“{_path('event', *parts)}” must be one of {', '.join(f'event.{name}' for name in OF_EVENT)}"
        )
    name, path = parts[0], tuple(parts[1:])
    if path and name != "payload":
        raise PlaceholderError(f"“{_path('event', *parts)}”: nothing can follow event.{name}")
    return Reference("event", name, path, _path("event", name, *path))


def _name(part: str) -> str:
    """Return a name without outer spaces and in the Unicode form NFC, as names are stored."""
    return unicodedata.normalize("NFC", part.strip())


def _unquoted(part: str) -> str:
    return re.sub(r"\\(.)", r"\1", part[1:-1], flags=re.DOTALL) if part[0] in "\"'" else part


def _path(*parts: str) -> str:
    return ".".join(part if _PLAIN.fullmatch(part) else _quoted(part) for part in parts)


def _quoted(part: str) -> str:
    escaped = part.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _nothing(at: object, missing: str) -> str:
    match at:
        case dict():
            return f"{missing} does not exist; available: {_some(at) or 'nothing'}"
        case list():
            return f"{missing} does not exist; the list has a length of {len(at)}, and its first index is 0"
    return f"{missing} does not exist: {_shown(json.dumps(at, ensure_ascii=False))} contains no values"


def _some(names: Collection[str]) -> str:
    shown = ", ".join(islice(names, 20))
    return f"{shown}, …" if len(names) > 20 else shown


def _shown(text: str) -> str:
    return f"“{text}”" if len(text) <= 60 else f"“{text[:60]}…”"
