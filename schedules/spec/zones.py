"""Conversions between wall-clock time and instants, and clock changes of a time zone."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from .wording import SpecError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_SHIFTED_GAP = timedelta(hours=3)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SURVEYED = 1 << 24
_PROBE = 86_400


class Stretch(NamedTuple):
    """A period without clock changes in a time zone; `start` and `end` are seconds since the epoch.

    `before` is the UTC offset before `start`. It equals `offset` if the clocks do not change at `start`.
    """

    start: int
    end: int
    before: int
    offset: int


def stretch_at(instant: int, zone: ZoneInfo) -> Stretch:
    stretches = _stretches(instant // _SURVEYED, zone)
    if len(stretches) == 1:
        return stretches[0]
    return stretches[bisect_right(stretches, instant, key=lambda stretch: stretch.start) - 1]


@lru_cache(maxsize=4096)
def _stretches(survey: int, zone: ZoneInfo) -> list[Stretch]:
    low, high = survey * _SURVEYED, (survey + 1) * _SURVEYED
    offset = _offset(low, zone)
    stretches = [Stretch(low, high, offset, offset)]
    # A change shortly before still affects the clocks here.
    for start, before, offset in _changes(low - 2 * _PROBE, high, zone):
        if start > low:
            stretches[-1] = stretches[-1]._replace(end=start)
            stretches.append(Stretch(start, high, before, offset))
        else:
            stretches = [Stretch(start, high, before, offset)]
    return stretches


def _changes(low: int, high: int, zone: ZoneInfo) -> Iterator[tuple[int, int, int]]:
    """Yield the clock changes: for each, its instant, and the UTC offsets before and after it.

    One probe per day finds all clock changes: since 1970, no two were less than six days apart.
    """
    probes = [*range(low - 1, high - 1, _PROBE), high - 1]
    offsets = [_offset(probe, zone) for probe in probes]
    for (earlier, before), (later, offset) in pairwise(zip(probes, offsets, strict=True)):
        if before != offset:
            yield _change(zone, earlier, later), before, offset


def _offset(instant: int, zone: ZoneInfo) -> int:
    offset = (_EPOCH + timedelta(seconds=instant)).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def wall_time(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def once(wall: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the instant at which clocks first show a wall time.

    For a wall time in a short gap, return the end of the gap; in a longer gap, None.
    """
    first_pass, second_pass = passes_of(wall, zone)
    if first_pass <= second_pass:
        return first_pass
    return gap_end(wall, zone) if first_pass - second_pass <= LONGEST_SHIFTED_GAP else None


def passes_of(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the two instants that a wall time can mean; usually, they are equal.

    In a fold, the earlier instant comes first; in a gap, the later one comes first.
    """
    local = wall.replace(tzinfo=zone)
    return local.astimezone(UTC), local.replace(fold=1).astimezone(UTC)


def gap_end(wall: datetime, zone: ZoneInfo) -> datetime:
    after, before = passes_of(wall, zone)
    return datetime.fromtimestamp(_change(zone, int(before.timestamp()), int(after.timestamp())), UTC)


def _change(zone: ZoneInfo, before: int, after: int) -> int:
    """Return the first instant in (before, after] whose UTC offset differs from the one at `before`."""
    offset = _offset(before, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(middle, zone) == offset:
            before = middle
        else:
            after = middle
    return after


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    if _is_place(name):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass  # unknown, malformed, or a folder of the time zone database
    raise SpecError("time_zone", f"{shown(name)} {_zone_advice(name)}")


def _is_place(name: str) -> bool:
    """Return whether a name is that of a place or of UTC, not an abbreviation with frozen rules."""
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
