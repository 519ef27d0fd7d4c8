"""Whole numbers in form fields, query parameters, cursors and command-line options."""

from __future__ import annotations

# Every number of so many digits fits into the integers of both databases.
MOST_DIGITS = 18


def whole_number(
    text: str, *, digits: int = MOST_DIGITS, least: int = 0, most: int = 10**MOST_DIGITS - 1
) -> int | None:
    """Read the digits 0 to 9, without sign, space or separator.

    None for any other text, for one of more than `digits`, and for a number outside `least` to `most`.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        return None
    number = int(text)
    return number if least <= number <= most else None
