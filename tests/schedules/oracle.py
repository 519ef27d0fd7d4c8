"""When a schedule fires, worked out the slow way: by looking at the wall clock at every instant of a window.

It judges the production code, so it shares nothing with it: what it knows is the written description of the
spec, and what zoneinfo says the clock shows. It reads well-formed specs only, and knows no public holidays.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=n) for n in (1, 60, 3600, 86400))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_GAP_MADE_UP_FOR = 3 * HOUR

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
NUMBERS = {name: n for n, name in enumerate(MONTHS, 1)} | {name: n for n, name in enumerate(WEEKDAYS)}
LIMITS = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day_of_month": (1, 31),
    "month": (1, 12),
    "year": (1, 9999),
    "day_of_week": (0, 6),
}
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

Wall = datetime  # naive: what the clock shows
Test = Callable[[Wall], bool]


class Tick(NamedTuple):
    """An instant, what the clock shows then, and what it jumped over on the way there."""

    at: datetime
    wall: Wall
    is_second_pass: bool
    skipped: list[Wall]


class Rule(NamedTuple):
    matches: Test
    is_starred: bool = False
    is_one_off: bool = False


def times(
    spec: Mapping[str, Any],
    after: datetime,
    until: datetime,
    *,
    calendars: Mapping[str, Any] | None = None,
    step: timedelta = MINUTE,
) -> list[datetime]:
    """Every time of the spec after `after` up to and including `until`.

    The step has to divide every time of the spec, and every change of the clocks in the window.
    """
    zone = ZoneInfo(zone_of(spec))
    rules = list(rules_of(spec))
    is_interval = interval_test(spec)
    is_excluded = exclusion_test(spec, calendars or {})
    is_within_bounds = bounds_test(spec, zone)
    instants = {moment(text) for text in spec.get("at", []) if has_offset(text)}
    is_literal = spec.get("dst", "cron") == "literal"

    def fires(tick: Tick) -> bool:
        if (is_interval(tick.at) or tick.at in instants) and not is_excluded(tick.wall, tick.at):
            return True
        return any(
            rule.matches(wall) and not is_excluded(tick.wall if rule.is_one_off else wall, tick.at)
            for rule in rules
            for wall in walls_that_count(
                tick, at_every_instant=rule.is_starred or (is_literal and not rule.is_one_off)
            )
        )

    return [tick.at for tick in ticks(zone, after, until, step) if is_within_bounds(tick.at) and fires(tick)]


def walls_that_count(tick: Tick, *, at_every_instant: bool) -> list[Wall]:
    if at_every_instant:
        return [tick.wall]
    return tick.skipped if tick.is_second_pass else [tick.wall, *tick.skipped]


def ticks(zone: ZoneInfo, after: datetime, until: datetime, step: timedelta) -> Iterator[Tick]:
    at = after.astimezone(UTC) - (after - EPOCH) % step
    before = at.astimezone(zone).replace(tzinfo=None, fold=0)
    while (at := at + step) <= until:
        local = at.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        yield Tick(at, wall, local.fold == 1, skipped_walls(before + step, wall, step))
        before = wall


def skipped_walls(expected: Wall, shown: Wall, step: timedelta) -> list[Wall]:
    if not timedelta(0) < shown - expected <= LONGEST_GAP_MADE_UP_FOR:
        return []
    return [expected + n * step for n in range((shown - expected) // step)]


def rules_of(spec: Mapping[str, Any]) -> Iterator[Rule]:
    for line in spec.get("cron", []):
        expression = bare_cron(line)
        if not expression.startswith("@every"):
            yield cron_rule(expression)
    for fields in spec.get("calendars", []):
        yield calendar_rule(fields)
    for pattern in spec.get("patterns", []):
        yield Rule(pattern_test(pattern))
    walls = {datetime.fromisoformat(text) for text in spec.get("at", []) if not has_offset(text)}
    yield Rule(walls.__contains__, is_one_off=True)


def bare_cron(line: str) -> str:
    """Without its time zone and its comment; a # inside a field has no space before it."""
    expression = line.split(" #", 1)[0].strip()
    if expression.startswith(("TZ=", "CRON_TZ=")):
        expression = expression.split(None, 1)[1]
    return ALIASES.get(expression.lower(), expression)


def cron_rule(expression: str) -> Rule:
    fields = expression.lower().split()
    if len(fields) == 5:
        fields = [*fields, "*"]
    if len(fields) == 6:
        fields = ["0", *fields]
    second, minute, hour, day_of_month, month, day_of_week, year = fields
    is_time = calendar_test({"second": second, "minute": minute, "hour": hour, "month": month, "year": year})
    is_day = cron_day_test(day_of_month, day_of_week)
    starred = minute.startswith("*") or hour.startswith("*")
    return Rule(lambda wall: is_time(wall) and is_day(wall), is_starred=starred)


def cron_day_test(day_of_month: str, day_of_week: str) -> Test:
    """If both fields restrict the day, either will do; one that begins with * does not, as in any crontab."""
    is_day_of_month = cron_day_of_month_test(day_of_month)
    weekdays = [weekday_part_test(part) for part in day_of_week.split(",")]

    def is_weekday(wall: Wall) -> bool:
        return any(test(wall) for test in weekdays)

    if day_of_month.startswith("*") or day_of_week.startswith("*"):
        return lambda wall: is_day_of_month(wall) and is_weekday(wall)
    return lambda wall: is_day_of_month(wall) or is_weekday(wall)


def cron_day_of_month_test(text: str) -> Test:
    parts = text.split(",")
    numbered = [part for part in parts if part != "l"]
    is_numbered = among("day_of_month", ",".join(numbered)) if numbered else lambda day: False
    return lambda wall: is_numbered(wall.day) or ("l" in parts and wall.day == days_in_month(wall))


def weekday_part_test(part: str) -> Test:
    if "#" in part:
        weekday, _, nth = part.partition("#")
        return lambda wall: weekday_of(wall) == number(weekday) % 7 and (wall.day + 6) // 7 == int(nth)
    if "l" in (part[0], part[-1]) and part.strip("l").isdigit():
        return lambda wall: (
            weekday_of(wall) == int(part.strip("l")) % 7 and wall.day + 7 > days_in_month(wall)
        )
    is_weekday = among("day_of_week", part)
    return lambda wall: is_weekday(weekday_of(wall))


def calendar_rule(fields: Mapping[str, Any]) -> Rule:
    at_the_full = {"second": 0, "minute": 0, "hour": 0}
    starred = any(starts_with_star(fields.get(name, 0)) for name in ("minute", "hour"))
    return Rule(calendar_test({**at_the_full, **fields}), is_starred=starred)


def calendar_test(fields: Mapping[str, Any]) -> Test:
    """A field that is not named allows everything; all that are named have to match."""
    tests = [(name, among(name, fields[name])) for name in LIMITS if name in fields]
    return lambda wall: all(test(part_of(wall, name)) for name, test in tests)


def pattern_test(pattern: Mapping[str, Any]) -> Test:
    is_weekday = among("day_of_week", pattern.get("weekdays", "*"))
    clock = set(clock_times(pattern))
    return lambda wall: since_midnight(wall.time()) in clock and is_weekday(weekday_of(wall))


def clock_times(pattern: Mapping[str, Any]) -> Iterator[timedelta]:
    if "times" in pattern:
        yield from (since_midnight(time.fromisoformat(text)) for text in pattern["times"])
        return
    shown = since_midnight(time.fromisoformat(pattern["from"]))
    while shown <= since_midnight(time.fromisoformat(pattern["until"])):
        yield shown
        shown += duration(pattern["every"])


def since_midnight(clock: time) -> timedelta:
    return timedelta(hours=clock.hour, minutes=clock.minute, seconds=clock.second)


def interval_test(spec: Mapping[str, Any]) -> Callable[[datetime], bool]:
    intervals = [interval(entry) for entry in spec.get("every", [])]
    for line in spec.get("cron", []):
        if bare_cron(line).startswith("@every"):
            every, _, offset = bare_cron(line).removeprefix("@every").strip().partition("/")
            intervals.append((duration(every), duration(offset or "0s")))
    return lambda at: any((at - EPOCH - offset) % every == timedelta(0) for every, offset in intervals)


def interval(entry: Any) -> tuple[timedelta, timedelta]:
    if isinstance(entry, str):
        return duration(entry), timedelta(0)
    return duration(entry["every"]), duration(entry.get("offset", "0s"))


def exclusion_test(spec: Mapping[str, Any], calendars: Mapping[str, Any]) -> Callable[[Wall, datetime], bool]:
    items = spec.get("exclude", [])
    shared = [item for named in items if "calendar" in named for item in calendars[named["calendar"]]]
    tests = [one_exclusion(item) for item in [*items, *shared] if "calendar" not in item]
    return lambda wall, at: any(test(wall, at) for test in tests)


def one_exclusion(item: Mapping[str, Any]) -> Callable[[Wall, datetime], bool]:
    if "dates" in item:
        first, _, last = item["dates"].partition("/")
        first_day, last_day = date.fromisoformat(first), date.fromisoformat(last or first)
        return lambda wall, at: first_day <= wall.date() <= last_day
    if "from" in item:
        start, end = datetime.fromisoformat(item["from"]), datetime.fromisoformat(item["until"])
        if has_offset(item["from"]):
            return lambda wall, at: start <= at <= end
        return lambda wall, at: start <= wall <= end
    is_in_calendar = calendar_test(item)
    return lambda wall, at: is_in_calendar(wall)


def bounds_test(spec: Mapping[str, Any], zone: ZoneInfo) -> Callable[[datetime], bool]:
    start = moment(spec["start_at"], zone) if "start_at" in spec else datetime.min.replace(tzinfo=UTC)
    end = moment(spec["end_at"], zone) if "end_at" in spec else datetime.max.replace(tzinfo=UTC)
    return lambda at: start <= at <= end


def zone_of(spec: Mapping[str, Any]) -> str:
    for line in spec.get("cron", []):
        if line.startswith(("TZ=", "CRON_TZ=")):
            name: str = line.split()[0].partition("=")[2]
            return name
    return str(spec.get("time_zone", "UTC"))


def among(name: str, value: Any) -> Callable[[int], bool]:
    return values(name, value).__contains__


def values(name: str, value: Any) -> set[int] | range:
    """The numbers that a field allows: text, a number, {"start", "end", "step"}, or a list of these."""
    low, high = LIMITS[name]
    if value == "*":
        return range(low, high + 1)
    if isinstance(value, str):
        found = {n for part in value.lower().split(",") for n in span(part, low, high)}
    elif isinstance(value, list):
        found = {n for part in value for n in values(name, part)}
    elif isinstance(value, int):
        found = {value}
    else:
        found = set(range(value["start"], value.get("end", value["start"]) + 1, value.get("step", 1)))
    return {n % 7 for n in found} if name == "day_of_week" else found


def span(part: str, low: int, high: int) -> range:
    ends, _, step = part.partition("/")
    if ends == "*":
        first, last = low, high
    elif "-" in ends:
        first, last = (number(end) for end in ends.split("-"))
    else:
        first = number(ends)
        last = high if step else first
    return range(first, last + 1, int(step or 1))


def number(text: str) -> int:
    return int(text) if text.isdigit() else NUMBERS[text.lower()[:3]]


def starts_with_star(value: Any) -> bool:
    if isinstance(value, list):
        return starts_with_star(value[0])
    return isinstance(value, str) and value.startswith("*")


def part_of(wall: Wall, name: str) -> int:
    if name == "day_of_week":
        return weekday_of(wall)
    part: int = getattr(wall, "day" if name == "day_of_month" else name)
    return part


def weekday_of(wall: Wall) -> int:
    return wall.isoweekday() % 7


def days_in_month(wall: Wall) -> int:
    return calendar.monthrange(wall.year, wall.month)[1]


def duration(text: str) -> timedelta:
    return int(text[:-1]) * {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}[text[-1]]


def has_offset(text: str) -> bool:
    return datetime.fromisoformat(text).tzinfo is not None


def moment(text: str, zone: ZoneInfo | None = None) -> datetime:
    read = datetime.fromisoformat(text)
    return (read if read.tzinfo else read.replace(tzinfo=zone)).astimezone(UTC)
