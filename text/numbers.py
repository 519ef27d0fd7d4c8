"""Parses whole numbers in form fields, query parameters, cursors and command-line options."""

from __future__ import annotations

# Every number of up to 18 digits fits into the integers of both databases.
MOST_DIGITS = 18


def whole_number(
    text: str, *, digits: int = MOST_DIGITS, least: int = 0, most: int = 10**MOST_DIGITS - 1
) -> int | None:
    """Parse a whole number that consists only of the digits 0 to 9.

    Return None for other text, for more than `digits` digits and for numbers outside `least` to `most`.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        return None
    number = int(text)
    return number if least <= number <= most else None
