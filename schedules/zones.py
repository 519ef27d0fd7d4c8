"""Wall-clock time and instants: what the clocks of a place do when they change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from .wording import SpecError, shown

LONGEST_SHIFTED_GAP = timedelta(hours=3)


def wall_time(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def once(wall: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first pass of a wall time; the end of a short gap that swallows it; None in a longer one."""
    first_pass, second_pass = passes_of(wall, zone)
    if first_pass <= second_pass:
        return first_pass
    return gap_end(wall, zone) if first_pass - second_pass <= LONGEST_SHIFTED_GAP else None


def passes_of(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the instants of both folds: equal on ordinary days, in order in a fold, reversed in a gap."""
    local = wall.replace(tzinfo=zone)
    return local.astimezone(UTC), local.replace(fold=1).astimezone(UTC)


def gap_end(wall: datetime, zone: ZoneInfo) -> datetime:
    after, before = passes_of(wall, zone)
    return change(zone, before, after)


def change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the first instant with another UTC offset than `before`, not later than `after`."""
    offset = before.astimezone(zone).utcoffset()
    low, high = int(before.timestamp()), int(after.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return datetime.fromtimestamp(high, UTC)


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    if _is_place(name):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass  # unknown, malformed, or a folder of the time zone database
    raise SpecError("time_zone", f"{shown(name)} {_zone_advice(name)}")


def _is_place(name: str) -> bool:
    """Tell real zones from abbreviations, whose rules are frozen, and from this machine's own files."""
    return name in ("UTC", "GMT") or ("/" in name and not name.startswith(("posix/", "right/")))


def _zone_advice(name: str) -> str:
    if name in _ABBREVIATIONS:
        return f"is an abbreviation, not a place; use {_ABBREVIATIONS[name]}"
    wanted = name[:64].lower().replace(" ", "_")
    zones = {zone.lower(): zone for zone in time_zones()}
    cities = {zone.lower().rpartition("/")[2]: zone for zone in time_zones()}
    close = get_close_matches(wanted, zones, n=1, cutoff=0.75) or get_close_matches(wanted, cities, n=1)
    if not close:
        return "is not a known time zone; use UTC or a place such as Europe/London"
    return f"is not a known time zone; did you mean {zones.get(close[0]) or cities[close[0]]}?"


@lru_cache(maxsize=1)
def time_zones() -> list[str]:
    return sorted(zone for zone in available_timezones() if _is_place(zone))


_ABBREVIATIONS = {
    "EST5EDT": "America/New_York",
    "CST6CDT": "America/Chicago",
    "MST7MDT": "America/Denver",
    "PST8PDT": "America/Los_Angeles",
    "EST": "America/Panama",
    "MST": "America/Phoenix",
    "HST": "Pacific/Honolulu",
    "WET": "Europe/Lisbon",
    "CET": "Europe/Brussels",
    "MET": "Europe/Brussels",
    "EET": "Europe/Athens",
}
