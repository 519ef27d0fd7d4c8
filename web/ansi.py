"""Terminal output as text: its colours become styles, whatever else a terminal would obey is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe

# Control sequences, strings for the terminal (titles, links), and two-character escapes.
ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)(?P<sgr>[0-9;:]*)m"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
CONTROLS = dict.fromkeys((*range(32), *range(127, 160))) | {0x09: "\t", 0x0D: " "}
HUES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
MARKS = {1: "bold", 2: "faint", 3: "italic", 4: "underlined", 9: "struck"}
UNMARKS = {22: ("bold", "faint"), 23: ("italic",), 24: ("underlined",), 29: ("struck",)}
RGB_LEVELS = (0, 95, 135, 175, 215, 255)


class Piece(NamedTuple):
    text: str
    classes: str = ""


def markup(text: str) -> SafeString:
    """Safe to print: the text is escaped, the classes are ours."""
    shown = [
        format_html('<span class="{}">{}</span>', piece.classes, piece.text)
        if piece.classes
        else conditional_escape(piece.text)
        for piece in pieces(text)
    ]
    return mark_safe("".join(shown))  # noqa: S308 each piece is escaped


def plain(text: str) -> str:
    return "".join(piece.text for piece in pieces(text))


def pieces(text: str) -> Iterator[Piece]:
    style, end = Style(), 0
    for found in ESCAPE.finditer(text):
        yield from _piece(text[end : found.start()], style)
        if found["sgr"] is not None:
            style = style.after(_codes(found["sgr"]))
        end = found.end()
    yield from _piece(text[end:], style)


def _piece(text: str, style: Style) -> Iterator[Piece]:
    shown = text.translate(CONTROLS)
    if shown:
        yield Piece(shown, style.classes)


def _codes(parameters: str) -> list[int]:
    """An empty one is 0, as terminals have it; one that no terminal knows is as good as none."""
    return [int(code or 0) if len(code) <= 3 else -1 for code in re.split("[;:]", parameters)]


class Style(NamedTuple):
    marks: frozenset[str] = frozenset()
    front: str = ""
    back: str = ""

    @property
    def classes(self) -> str:
        colours = [f"ansi-{self.front}"] * bool(self.front) + [f"ansi-on-{self.back}"] * bool(self.back)
        return " ".join([*(f"ansi-{mark}" for mark in sorted(self.marks)), *colours])

    def after(self, codes: Sequence[int]) -> Style:
        style, rest = self, list(codes)
        while rest:
            code = rest.pop(0)
            style = style._chosen(code, rest) if code in (38, 48) else style._plain(code)
        return style

    def _plain(self, code: int) -> Style:
        if code == 0:
            return Style()
        if code in MARKS:
            return self._replace(marks=self.marks | {MARKS[code]})
        if code in UNMARKS:
            return self._replace(marks=self.marks.difference(UNMARKS[code]))
        if code in (39, 49):
            return self._replace(front="") if code == 39 else self._replace(back="")
        if 30 <= code <= 37 or 90 <= code <= 97:
            return self._replace(front=HUES[code % 10])
        if 40 <= code <= 47 or 100 <= code <= 107:
            return self._replace(back=HUES[code % 10])
        return self

    def _chosen(self, code: int, rest: list[int]) -> Style:
        """One of 256 colours, or any: the nearest of those that can be read on both themes."""
        kind = rest.pop(0) if rest else 0
        count = {5: 1, 2: 3}.get(kind, 0)
        given, rest[:count] = rest[:count], []
        if len(given) < count or not count:
            return self
        hue = _of_256(given[0]) if kind == 5 else _nearest(given)
        return self._replace(front=hue) if code == 38 else self._replace(back=hue)


def _of_256(number: int) -> str:
    if number < 16:
        return HUES[number % 8]
    if number >= 232:
        return "black" if number < 244 else "white"
    cube = number - 16
    return _nearest([RGB_LEVELS[cube // 36 % 6], RGB_LEVELS[cube // 6 % 6], RGB_LEVELS[cube % 6]])


def _nearest(rgb: Sequence[int]) -> str:
    strongest = max(rgb)
    if strongest < 64:
        return "black"
    bits = [part > strongest * 0.6 for part in rgb]
    return HUES[bits[0] + 2 * bits[1] + 4 * bits[2]]
