"""Terminal output as safe HTML: colours become CSS classes, and other control sequences are removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, cast

from django.utils.html import conditional_escape, format_html
from django.utils.safestring import SafeString, mark_safe
from rich.ansi import AnsiDecoder
from rich.color import Color, ColorSystem
from rich.style import Style

LONGEST_CODES = 64  # rich fails on numbers with thousands of digits
# The alternatives match colours and styles, other control sequences, strings for the terminal (titles,
# links), two-character escapes, and single control characters. Only the first kind is passed to rich.
CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)(?P<codes>[0-9;:]*)m"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f]"
)
HUES = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
STYLES = {"bold": "bold", "dim": "faint", "italic": "italic", "underline": "underlined", "strike": "struck"}


class Piece(NamedTuple):
    text: str
    classes: str = ""


def markup(text: str) -> SafeString:
    """Return text with ANSI codes as escaped HTML; colours and styles become class names of `jim.css`."""
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
    cleaned = CONTROL.sub(_for_rich, text)
    if "\x1b" not in cleaned:
        yield Piece(cleaned)
        return
    decoded = AnsiDecoder().decode_line(cleaned)
    end = 0
    for span in decoded.spans:  # in order, without overlap
        if span.start > end:
            yield Piece(decoded.plain[end : span.start])
        yield Piece(decoded.plain[span.start : span.end], _classes(cast(Style, span.style)))
        end = span.end
    if end < len(decoded.plain):
        yield Piece(decoded.plain[end:])


def _for_rich(control: re.Match[str]) -> str:
    codes = control["codes"]
    if codes is None:
        return " " if control[0] == "\r" else ""
    return f"\x1b[{codes.replace(':', ';')}m" if len(codes) <= LONGEST_CODES else ""


def _classes(style: Style) -> str:
    names = sorted(name for attribute, name in STYLES.items() if getattr(style, attribute))
    colours = [_hue(style.color), f"on-{_hue(style.bgcolor)}" if _hue(style.bgcolor) else ""]
    return " ".join(f"ansi-{name}" for name in (*names, *colours) if name)


def _hue(color: Color | None) -> str:
    """Return the name of the nearest of eight colours, or an empty string for the default colour."""
    if color is None or color.is_default:
        return ""
    return HUES[(color.downgrade(ColorSystem.STANDARD).number or 0) % 8]
