"""Public holidays of countries and their subdivisions, from the holidays library."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple, Protocol, cast

from .wall_calendar import EPOCH_ORDINAL
from .wording import SpecError, listed, shown

_SMALL_WORDS = ("and", "of", "the")
_YEARS_KEPT = 16


class _Source(Protocol):
    """A country in the holidays library, with the attributes that this module uses."""

    default_language: str | None
    supported_languages: Sequence[str]
    subdivisions: Sequence[str]
    subdivisions_aliases: Mapping[str, str]


class _Country(NamedTuple):
    name: str
    source: _Source


class Place(NamedTuple):
    country: str
    subdivision: str = ""


class PublicHolidays:
    """The public holidays of several places."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = tuple(places)
        self._in_year = lru_cache(maxsize=_YEARS_KEPT)(self._find)

    def has(self, day: int) -> bool:
        """Return whether a day, counted from 1970-01-01, is a holiday."""
        return bool(self._places) and day in self._in_year(_year_of(day))

    def _find(self, year: int) -> frozenset[int]:
        return frozenset().union(*(_holidays(place, year) for place in self._places))


def holiday_name(place: Place, day: int) -> str | None:
    """Return the name of the public holiday on a day, in English if possible; None on other days.

    Days are counted from 1970-01-01.
    """
    return _holidays(place, _year_of(day)).get(day)


def _year_of(day: int) -> int:
    return date.fromordinal(day + EPOCH_ORDINAL).year


@lru_cache(maxsize=4096)
def _holidays(place: Place, year: int) -> dict[int, str]:
    # The library loads slowly, and few schedules need it.
    from holidays import country_holidays

    country, subdivision = place
    language = _english(_countries()[country].source)
    with warnings.catch_warnings():
        # For distant years, some countries have no list. The library warns about this, and finds no holidays.
        warnings.simplefilter("ignore")
        days = country_holidays(country, subdiv=subdivision or None, years=year, language=language)
    return {day.toordinal() - EPOCH_ORDINAL: name for day, name in days.items() if day.year == year}


def _english(source: _Source) -> str | None:
    """Return the language for the names of holidays: English if known, otherwise the default language."""
    own = source.default_language
    if own is None or own.startswith("en"):
        return own
    return "en_US" if "en_US" in source.supported_languages else own


def country_of(field: str, text: str) -> str:
    """Return the two-letter code of a country; `text` is that code or another one, such as GBR."""
    code = text.upper()
    if code in _countries():
        return code
    if code in _other_codes():
        return _other_codes()[code]
    codes = {country.name.lower(): code for code, country in _countries().items()}
    close = get_close_matches(text[:64].lower(), codes, n=1, cutoff=0.7)
    wanted = codes[close[0]] if close else ""
    advice = (
        f"did you mean {wanted} ({_countries()[wanted].name})?"
        if wanted
        else "use a code such as GB, US or DE"
    )
    raise SpecError(field, f"{shown(text)} is not the code of a country with known public holidays; {advice}")


def subdivision_of(field: str, text: str, country: str) -> str:
    name, source = _countries()[country]
    codes = {code.lower(): code for code in source.subdivisions}
    codes |= {alias.lower(): code for alias, code in source.subdivisions_aliases.items()}
    if text.lower() in codes:
        return codes[text.lower()]
    known = listed(source.subdivisions, last="or") if source.subdivisions else ""
    advice = f"use {known}" if known else "this country has no subdivisions: leave the subdivision out"
    raise SpecError(field, f"{shown(text)} is not a subdivision of {name} ({country}); {advice}")


def place_words(place: Place) -> str:
    country, subdivision = place
    name, source = _countries()[country]
    names = {code: alias for alias, code in source.subdivisions_aliases.items()}
    return f"{name}, {names.get(subdivision, subdivision)}" if subdivision else name


@lru_cache(maxsize=1)
def _countries() -> dict[str, _Country]:
    """Return all countries by two-letter code."""
    import holidays
    from holidays.registry import COUNTRIES

    return {
        codes[1]: _Country(_title(name), cast("_Source", getattr(holidays, codes[1])))
        for name, codes in COUNTRIES.items()
    }


@lru_cache(maxsize=1)
def _other_codes() -> dict[str, str]:
    from holidays.registry import COUNTRIES

    return {other: codes[1] for codes in COUNTRIES.values() for other in codes[2:] if other.isupper()}


def _title(name: str) -> str:
    return " ".join(word if word in _SMALL_WORDS else word.capitalize() for word in name.split("_"))
