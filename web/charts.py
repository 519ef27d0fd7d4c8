"""Pure functions that turn data into the shapes of charts, each with a label in words.

The labels, shapes and tables are for users who cannot see a chart or tell its colours apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from math import sqrt
from typing import NamedTuple

from django.utils import timezone
from django.utils.safestring import SafeString

from execution.history import Bucket, Ran, usual_duration
from schedules.spec.wording import counted, date_words, listed
from text.words import here, span, tone

BARS, BAR_WIDTH, BAR_STEP, BAR_HEIGHT, FOOT, LEAST_BAR = 60, 2, 3, 16, 4, 3
HOURS, HOUR_WIDTH, HOUR_HEIGHT = 24, 20, 48
CELL, CELL_STEP, DAYS_SHOWN, MONTHS_HEIGHT, WEEKDAYS_WIDTH = 11, 13, 365, 16, 28
PLOT_WIDTH, PLOT_HEIGHT, PLOT_MARGIN = 600, 120, 8
LEVELS = (1, 3, 10)


def outcome_words(counts: Counter[str], *, nothing: str = "none") -> str:
    """Return counts in words, such as “57 completed, 2 failed and 1 in progress”."""
    told = [f"{count:,} {state.replace('_', ' ')}" for state, count in counts.most_common() if count]
    return listed(told) if told else nothing


def bars(ran: Sequence[Ran], *, url: Callable[[int], str]) -> SafeString:
    """Draw a bar for each of the newest executions in `ran`, which is sorted from newest to oldest.

    The oldest bar is on the left, and each bar links to the `url` of its execution. The longer an execution
    took, the higher its bar. The bar of a completed execution stands on a line, that of a failed one extends
    below the line, that of a cancelled one is hollow, and that of a running one is open at the top.

    The SVG is built as text, because a page has thousands of bars. The text contains only addresses, numbers
    and fixed words, so it needs no escaping.
    """
    shown = list(reversed(ran[:BARS]))
    longest = max((each.duration or timedelta(0) for each in shown), default=timedelta(0))
    drawn = []
    for place, each in enumerate(shown, start=BARS - len(shown)):
        took = f", {span(each.duration)}" if each.duration is not None else ""
        words = f"#{each.id} {each.state.replace('_', ' ')}{took}"
        shape = _bar(place * BAR_STEP, _height(each, longest), each.state)
        style = f"tone-{tone(each.state)} {_style(each.state)}"
        path = f'<path class="{style}" d="{shape}"><title>{words}</title></path>'
        drawn.append(f'<a href="{url(each.id)}" tabindex="-1">{path}</a>')
    line = f'<path class="axis" d="M0 {BAR_HEIGHT}.5h{BARS * BAR_STEP}"/>'
    width, height = BARS * BAR_STEP, BAR_HEIGHT + FOOT
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    told = outcome_words(Counter(each.state for each in shown))
    label = f"The last {counted(len(shown), 'run')}: {told}" if shown else "No runs"
    return SafeString(
        f'<svg class="bars" aria-hidden="true" {size}>{line}{"".join(drawn)}</svg>'
        f'<span class="visually-hidden">{label}</span>'
    )


def _height(each: Ran, longest: timedelta) -> int:
    """Return the height of a bar. It is not proportional to the duration, so that short bars stay visible."""
    if each.duration is None:
        return BAR_HEIGHT
    part = sqrt(each.duration / longest) if longest else 0
    return round(LEAST_BAR + (BAR_HEIGHT - LEAST_BAR) * part)


def _bar(x: int, height: int, state: str) -> str:
    top, bottom = BAR_HEIGHT - height, BAR_HEIGHT + (FOOT if tone(state) == "failed" else 0)
    if tone(state) in ("cancelled", "running", "waiting"):
        is_open = tone(state) != "cancelled"
        side, across = bottom - top - 1, BAR_WIDTH - 1
        return f"M{x + 0.5} {top + 0.5}v{side}h{across}v-{side}" + ("" if is_open else "z")
    return f"M{x} {top}v{bottom - top}h{BAR_WIDTH}v-{bottom - top}z"


def _style(state: str) -> str:
    return "hollow" if tone(state) in ("cancelled", "running", "waiting") else "solid"


class Segment(NamedTuple):
    tone: str
    y: float
    height: float


class Hour(NamedTuple):
    at: datetime
    x: int
    parts: list[Segment]
    counts: dict[str, int]
    words: str


@dataclass(frozen=True)
class Day:
    """A chart of the last 24 hours, with a column for each hour."""

    hours: list[Hour]
    most: int
    label: str
    width: int = HOURS * HOUR_WIDTH
    height: int = HOUR_HEIGHT

    @property
    def counts(self) -> Counter[str]:
        return sum((Counter(hour.counts) for hour in self.hours), Counter())

    @property
    def total(self) -> int:
        return self.counts.total()

    @property
    def success_rate(self) -> float | None:
        """Return the share of completed runs among completed and failed ones; None if there are neither."""
        ended = self.counts["completed"] + self.counts["failed"]
        return self.counts["completed"] / ended if ended else None


def day(buckets: Iterable[Bucket], *, now: datetime) -> Day:
    """Draw the last 24 hours. Failures are at the bottom of the columns, where they are easy to compare."""
    by_hour: dict[datetime, dict[str, int]] = defaultdict(dict)
    for each in buckets:
        by_hour[each.at][each.status] = each.number
    first = first_hour(now)
    times = [first + timedelta(hours=number) for number in range(HOURS)]
    most = max((sum(by_hour[at].values()) for at in times), default=0)
    hours = [_hour(at, number * HOUR_WIDTH, by_hour[at], most) for number, at in enumerate(times)]
    total = Counter({state: sum(hour.counts.get(state, 0) for hour in hours) for state in _STACK})
    label = f"Runs that ended in the last 24 hours: {outcome_words(total)}"
    return Day(hours, most, label)


def first_hour(now: datetime) -> datetime:
    return now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)


_STACK = ("failed", "cancelled", "completed")


def _hour(at: datetime, x: int, counts: dict[str, int], most: int) -> Hour:
    parts, bottom = [], float(HOUR_HEIGHT)
    for status in _STACK:
        if count := counts.get(status, 0):
            height = max(count / most * HOUR_HEIGHT, 2)
            bottom -= height
            parts.append(Segment(tone(status), round(max(bottom, 0), 1), round(height, 1)))
    told = outcome_words(Counter(counts), nothing="nothing")
    local = timezone.localtime(at)
    return Hour(at, x, parts, counts, f"{local:%H:%M} {local.tzinfo}: {told}")


class Cell(NamedTuple):
    x: int
    y: int
    tone: str
    level: int
    is_marked: bool
    words: str


class Mark(NamedTuple):
    x: int
    y: int
    words: str


@dataclass(frozen=True)
class Year:
    """A chart of a year: a cell for each day, a column for each week, and a mark on days with failures."""

    cells: list[Cell]
    months: list[Mark]
    weekdays: list[Mark]
    width: int
    height: int
    label: str

    @property
    def drawn(self) -> SafeString:
        """Return all cells as safe SVG text, which contains only numbers, dates and fixed words."""
        return SafeString("".join(map(_drawn_cell, self.cells)))


def year(buckets: Iterable[Bucket], *, zone: tzinfo, now: datetime) -> Year:
    days: dict[date, Counter[str]] = defaultdict(Counter)
    for each in buckets:
        days[each.at.astimezone(zone).date()][each.status] += each.number
    today = now.astimezone(zone).date()
    start = today - timedelta(days=DAYS_SHOWN - 1)
    monday = start - timedelta(days=start.weekday())
    shown = [start + timedelta(days=number) for number in range(DAYS_SHOWN)]
    cells = [_cell(each, monday, days.get(each, Counter())) for each in shown]
    total: Counter[str] = sum((days[each] for each in shown if each in days), Counter())
    weeks = (today - monday).days // 7 + 1
    named = (("Mon", 0), ("Wed", 2), ("Fri", 4))
    return Year(
        cells,
        _months(shown, monday),
        [Mark(0, MONTHS_HEIGHT + row * CELL_STEP + CELL - 2, name) for name, row in named],
        WEEKDAYS_WIDTH + weeks * CELL_STEP,
        MONTHS_HEIGHT + 7 * CELL_STEP,
        f"Runs by day since {date_words(start)}: {outcome_words(total)}",
    )


def _drawn_cell(cell: Cell) -> str:
    place = f'x="{cell.x}" y="{cell.y}" width="{CELL}" height="{CELL}"'
    box = f'<rect class="cell tone-{cell.tone} level-{cell.level}" {place} rx="2"/>'
    mark = f'<path class="mark" d="M{cell.x + 3} {cell.y + 3}l5 5m0 -5l-5 5"/>' if cell.is_marked else ""
    return f"<g><title>{cell.words}</title>{box}{mark}</g>"


_WORST_FIRST = ("failed", "completed", "in_progress", "cancelled")


def _cell(each: date, monday: date, counts: Counter[str]) -> Cell:
    x = WEEKDAYS_WIDTH + (each - monday).days // 7 * CELL_STEP
    y = MONTHS_HEIGHT + each.weekday() * CELL_STEP
    has_failed, total = counts["failed"] > 0, counts.total()
    worst = next((status for status in _WORST_FIRST if counts[status]), "")
    level = sum(total > most for most in LEVELS) + 1 if total else 0
    words = f"{each:%a} {date_words(each)}: {outcome_words(counts, nothing='no runs')}"
    return Cell(x, y, tone(worst) if worst else "none", level, has_failed, words)


def _months(shown: Sequence[date], monday: date) -> list[Mark]:
    firsts = [each for each in shown if each.day == 1]
    return [
        Mark(WEEKDAYS_WIDTH + (each - monday).days // 7 * CELL_STEP, MONTHS_HEIGHT - 5, f"{each:%b}")
        for each in firsts
    ]


class Point(NamedTuple):
    id: int
    x: float
    y: float
    tone: str
    words: str


@dataclass(frozen=True)
class Plot:
    """A chart of the durations of the last executions: failed ones are crosses, all others are circles."""

    points: list[Point]
    longest: str
    usual: str
    usual_y: float | None
    label: str
    width: int = PLOT_WIDTH
    height: int = PLOT_HEIGHT

    def drawn(self, url: Callable[[int], str]) -> SafeString:
        """Draw all points, each with a link to its execution."""
        return SafeString("".join(_drawn_point(point, url(point.id)) for point in self.points))


def durations(ran: Sequence[Ran]) -> Plot | None:
    """Plot the durations of the executions in `ran` (newest first); return None if none of them has ended."""
    ended = [(each, each.duration) for each in reversed(ran) if each.duration is not None]
    if not ended:
        return None
    longest = max(length for _, length in ended) or timedelta(milliseconds=1)
    inner_width, inner_height = PLOT_WIDTH - 2 * PLOT_MARGIN, PLOT_HEIGHT - 2 * PLOT_MARGIN
    step = inner_width / max(len(ended) - 1, 1)

    def height_of(length: timedelta) -> float:
        return round(PLOT_HEIGHT - PLOT_MARGIN - length / longest * inner_height, 1)

    points = [
        Point(
            each.id,
            round(PLOT_WIDTH - PLOT_MARGIN - (len(ended) - 1 - place) * step, 1),
            height_of(length),
            tone(each.state),
            f"#{each.id} {each.state} in {span(length)}, {here(each.started_at)}",
        )
        for place, (each, length) in enumerate(ended)
    ]
    usual = usual_duration(ran)
    label = f"Duration of the last {counted(len(ended), 'run')}: at most {span(longest)}"
    return Plot(
        points,
        span(longest),
        span(usual) if usual is not None else "",
        height_of(min(usual, longest)) if usual is not None else None,
        f"{label}, usually {span(usual)}" if usual is not None else label,
    )


def _drawn_point(point: Point, url: str) -> str:
    if point.tone == "failed":
        shape = f'<path class="tone-failed cross" d="M{point.x} {point.y}m-3.5 -3.5l7 7m0 -7l-7 7"/>'
    else:
        look = "solid" if point.tone == "complete" else "hollow"
        shape = f'<circle class="tone-{point.tone} {look}" cx="{point.x}" cy="{point.y}" r="3"/>'
    return f'<a href="{url}" tabindex="-1"><title>{point.words}</title>{shape}</a>'
