"""Pure functions that turn the attempts of an execution into the bars of a timeline.

Horizontal lengths are percentages, so that the drawing fits any screen; heights are pixels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from activities.models import Activity
from text import words
from text.words import TONES, span, tone

AXIS = 20
ROW = 36
BAR_TOP, BAR = 18, 14
NARROWEST = 0.4
# A bar whose width is below this percentage has its glyph beside it.
WIDE_ENOUGH = 6.0
MOST_ROWS = 200
MOST_TICKS = 5
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


@dataclass(frozen=True)
class Bar:
    attempt_id: int
    tone: str
    glyph: str
    title: str
    x: float
    width: float
    wait_x: float = 0
    wait_width: float = 0

    @property
    def glyph_x(self) -> float:
        if self.is_wide:
            return round(self.x + self.width / 2, 2)
        return self.x if self.is_at_end else round(self.x + self.width, 2)

    @property
    def is_wide(self) -> bool:
        return self.width >= WIDE_ENOUGH

    @property
    def is_at_end(self) -> bool:
        """Return whether the glyph must precede the bar, because the space after the bar is too small."""
        return not self.is_wide and self.x + self.width > 94


@dataclass(frozen=True)
class Row:
    name: str
    note: str
    y: int
    bars: list[Bar]

    @property
    def bar_y(self) -> int:
        return self.y + BAR_TOP

    @property
    def text_y(self) -> int:
        return self.y + 13

    @property
    def glyph_y(self) -> int:
        return self.bar_y + BAR - 3


@dataclass(frozen=True)
class Band:
    """The background of the rows of one group, whose steps run side by side."""

    y: int
    height: int


@dataclass(frozen=True)
class Tick:
    x: float
    label: str

    @property
    def is_at_end(self) -> bool:
        """Return whether the label must precede the tick, because the space after the tick is too small."""
        return self.x > 80


@dataclass(frozen=True)
class Chart:
    height: int
    rows: list[Row]
    bands: list[Band]
    ticks: list[Tick]
    left_out: int = 0


def chart(attempts: Iterable[Activity], *, start: datetime, now: datetime) -> Chart:
    """Draw the attempts of the first MOST_ROWS steps as bars on a time axis.

    The axis begins at `start`. It ends at `now` if an attempt has not ended yet, otherwise at the end of the
    last attempt.
    """
    steps = _steps(attempts)
    shown = steps[:MOST_ROWS]
    scale = Scale.of([attempt for step in shown for attempt in step], start, now)
    reached = _reached(shown, start)
    rows = [
        _row(step, AXIS + number * ROW, reached[step[0].step_index], scale)
        for number, step in enumerate(shown)
    ]
    return Chart(
        height=AXIS + len(rows) * ROW,
        rows=rows,
        bands=_bands(shown),
        ticks=_ticks(scale.seconds),
        left_out=len(steps) - len(shown),
    )


@dataclass(frozen=True)
class Scale:
    start: datetime
    seconds: float
    now: datetime

    @classmethod
    def of(cls, attempts: Sequence[Activity], start: datetime, now: datetime) -> Scale:
        ends = [attempt.finished_at for attempt in attempts if attempt.finished_at]
        is_open = any(attempt.finished_at is None for attempt in attempts)
        last = max([*ends, now] if is_open or not ends else ends)
        return cls(start, max((last - start).total_seconds(), 0.001), now)

    def x(self, at: datetime) -> float:
        """Return the position of a time as a percentage; times outside the axis are moved to its ends."""
        share = (at - self.start).total_seconds() / self.seconds * 100
        return round(min(max(share, 0.0), 100.0), 2)


def _steps(attempts: Iterable[Activity]) -> list[list[Activity]]:
    by_line: dict[tuple[int, int], list[Activity]] = defaultdict(list)
    for attempt in attempts:
        by_line[attempt.step_index or 0, attempt.line or 0].append(attempt)
    return [sorted(step, key=lambda attempt: attempt.attempt) for _, step in sorted(by_line.items())]


def _reached(steps: Sequence[Sequence[Activity]], start: datetime) -> dict[int | None, datetime | None]:
    """Return a dict from step index to the time when all earlier groups had ended; None if one is open."""
    reached: dict[int | None, datetime | None] = {}
    last: datetime | None = start
    for index, group in groupby(steps, key=lambda step: step[0].step_index):
        reached[index] = last
        ends = [attempt.finished_at for step in group for attempt in step]
        finished = [end for end in ends if end is not None]
        last = None if last is None or len(finished) < len(ends) else max([last, *finished])
    return reached


def _row(step: Sequence[Activity], y: int, reached: datetime | None, scale: Scale) -> Row:
    return Row(
        name=step[0].target_name,
        note=_note(step, scale.now),
        y=y,
        bars=[bar for attempt in step if (bar := _bar(attempt, reached, scale))],
    )


def _note(step: Sequence[Activity], now: datetime) -> str:
    last = step[-1]
    said = [words.said(last.status)]
    if last.executed_at:
        said.append(span((last.finished_at or now) - last.executed_at))
    if len(step) > 1:
        said.append(f"{len(step)} attempts")
    return " · ".join(said)


def _bar(attempt: Activity, reached: datetime | None, scale: Scale) -> Bar | None:
    """Draw an attempt, or return None if the attempt is still waiting for earlier groups to end."""
    if attempt.executed_at is None and attempt.finished_at is None and reached is None:
        return None
    since = max(attempt.created_at, reached) if reached else attempt.created_at
    began = attempt.executed_at or attempt.finished_at
    wait_x, wait_end = scale.x(since), scale.x(began or scale.now)
    is_run = attempt.executed_at is not None
    end = scale.x(attempt.finished_at or scale.now) if is_run else wait_end
    width = max(end - wait_end, NARROWEST) if is_run else 0.0
    return Bar(
        attempt_id=attempt.pk,
        tone=tone(attempt.status),
        glyph=TONES[tone(attempt.status)][0],
        title=_title(attempt, since, scale.now),
        x=min(wait_end, 100 - width),
        width=round(width, 2),
        wait_x=wait_x if is_run or attempt.finished_at is None else wait_end,
        wait_width=round(max(wait_end - wait_x, 0.0), 2) if is_run or attempt.finished_at is None else 0.0,
    )


def _title(attempt: Activity, since: datetime, now: datetime) -> str:
    state = words.said(attempt.status)
    told = [f"{attempt.target_name}, attempt {attempt.attempt}: {state}"]
    if attempt.executed_at:
        waited = attempt.executed_at - since
        if waited > timedelta(0):
            told.append(f"waited {span(waited)}")
        told.append(
            f"{'took' if attempt.finished_at else 'running for'} "
            f"{span((attempt.finished_at or now) - attempt.executed_at)}"
        )
    elif attempt.finished_at is None:
        told.append(f"waiting for {span(now - since)}")
    return " · ".join(told)


def _bands(steps: Sequence[Sequence[Activity]]) -> list[Band]:
    bands, y = [], AXIS
    for _, group in groupby(steps, key=lambda step: step[0].step_index):
        height = ROW * len(list(group))
        bands.append(Band(y, height))
        y += height
    return bands


def _ticks(seconds: float) -> list[Tick]:
    days = 86_400
    step = next((size for size in TICKS if seconds / size <= MOST_TICKS), None)
    if step is None:
        step = days * (int(seconds / days / MOST_TICKS) + 1)
    count = int(seconds / step)
    ticks = [
        Tick(round(step * n / seconds * 100, 2), span(timedelta(seconds=step * n)))
        for n in range(1, count + 1)
    ]
    return [Tick(0.0, "0"), *(tick for tick in ticks if tick.x < 96)]
