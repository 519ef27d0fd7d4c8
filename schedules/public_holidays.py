"""The public holidays of a country, by day."""

from __future__ import annotations

import warnings
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING

from .wall_calendar import EPOCH_ORDINAL
from .wording import SpecError, listed, shown

if TYPE_CHECKING:
    from holidays import HolidayBase


def holiday_name(country: str, subdivision: str, day: int, year: int) -> str | None:
    """The English name of the holiday on a day, counted from 1970-01-01."""
    return _year(country, subdivision, year).get(day)


@lru_cache(maxsize=4096)
def _year(country: str, subdivision: str, year: int) -> dict[int, str]:
    from holidays import country_holidays

    language = _english(_countries()[country][0])
    with warnings.catch_warnings():
        # Some countries have no list for years far away: then they have no holidays that we know of.
        warnings.simplefilter("ignore")
        days = country_holidays(country, subdiv=subdivision or None, years=year, language=language)
    return {day.toordinal() - EPOCH_ORDINAL: name for day, name in days.items() if day.year == year}


def _english(country: type[HolidayBase]) -> str | None:
    """Its own English where it has one; None where it has only one language, which is English then."""
    own = country.default_language
    if own and own.startswith("en"):
        return own
    return "en_US" if "en_US" in country.supported_languages else own


def country_of(field: str, text: str) -> str:
    """The two-letter code of a country, also from its other codes."""
    code = text.upper()
    if code in _countries():
        return code
    if code in _other_codes():
        return _other_codes()[code]
    names = {name.lower(): code for code, (_, name) in _countries().items()}
    close = get_close_matches(text[:64].lower(), names, n=1, cutoff=0.7)
    advice = (
        f"did you mean {names[close[0]]} ({close[0].title()})?"
        if close
        else "write a code such as GB, US or DE"
    )
    raise SpecError(field, f"{shown(text)} is no country whose public holidays are known; {advice}")


def subdivision_of(field: str, text: str, country: str) -> str:
    entity, name = _countries()[country]
    by_name = {alias.lower(): code for alias, code in entity.subdivisions_aliases.items()}
    codes = {code.lower(): code for code in entity.subdivisions}
    code = codes.get(text.lower()) or by_name.get(text.lower())
    if code is None:
        known = listed(entity.subdivisions, last="or") if entity.subdivisions else ""
        advice = f"use {known}" if known else "leave the subdivision out"
        raise SpecError(field, f"{shown(text)} is no subdivision of {name} ({country}); {advice}")
    return code


def place_words(country: str, subdivision: str) -> str:
    entity, name = _countries()[country]
    names = {code: alias for alias, code in entity.subdivisions_aliases.items()}
    return f"{name}, {names.get(subdivision, subdivision)}" if subdivision else name


@lru_cache(maxsize=1)
def _countries() -> dict[str, tuple[type[HolidayBase], str]]:
    """By two-letter code: the class of the library, and the country's name."""
    import holidays
    from holidays.registry import COUNTRIES

    return {codes[1]: (getattr(holidays, codes[1]), _title(key)) for key, codes in COUNTRIES.items()}


@lru_cache(maxsize=1)
def _other_codes() -> dict[str, str]:
    from holidays.registry import COUNTRIES

    return {other: codes[1] for codes in COUNTRIES.values() for other in codes[2:] if other.isupper()}


def _title(key: str) -> str:
    return " ".join(word if word in ("and", "of", "the") else word.capitalize() for word in key.split("_"))
