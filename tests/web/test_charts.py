from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from execution.history import Bucket, Ran, usual_duration
from tests.base import NOW, seconds
from web import charts
from web.lanes import Planned, lanes


def ran(pk: int, state: str = "completed", took: float | None = 10) -> Ran:
    start = NOW + seconds(60 * pk)
    return Ran(pk, state, start, None if took is None else start + seconds(took))


def url(pk: int) -> str:
    return f"/executions/{pk}"


def shapes(drawn: str) -> list[str]:
    return re.findall(r' d="([^"]+)"', drawn)[1:]


class TestBars:
    def test_no_more_than_sixty_are_drawn_the_oldest_first_as_high_as_they_took_long(self) -> None:
        drawn = charts.bars([ran(pk) for pk in range(100, 0, -1)], url=url)
        assert re.findall(r'href="([^"]+)"', drawn) == [url(pk) for pk in range(41, 101)]
        drawn = charts.bars([ran(3, took=100), ran(2, took=25), ran(1, took=0)], url=url)
        assert [shape[:4] for shape in shapes(drawn)] == ["M171", "M174", "M177"]
        heights = [int(re.findall(r"v(\d+)", shape)[0]) for shape in shapes(drawn)]
        assert heights == [charts.LEAST_BAR, 10, charts.BAR_HEIGHT]

    def test_outcomes_differ_in_shape_not_only_in_colour(self) -> None:
        wanted = {
            "completed": "M177 0v16h2v-16z",
            "failed": "M177 0v20h2v-20z",
            "cancelled": "M177.5 0.5v15h1v-15z",
            "in_progress": "M177.5 0.5v15h1v-15",
        }
        for state, shape in wanted.items():
            took = None if state == "in_progress" else 10
            assert shapes(charts.bars([ran(1, state, took)], url=url)) == [shape], state

    def test_they_are_told_in_words_as_well(self) -> None:
        drawn = charts.bars([ran(3, "in_progress", None), ran(2, "failed"), ran(1), ran(0)], url=url)
        assert "The last 4 runs: 2 completed, 1 failed and 1 in progress</span>" in drawn
        assert "<title>#2 failed, 10 s</title>" in drawn
        assert "No runs" in charts.bars([], url=url)


class TestDay:
    def test_each_hour_is_a_column_and_failures_stand_at_the_bottom(self) -> None:
        at = NOW - timedelta(hours=1)
        day = charts.day([Bucket(at, "completed", 6), Bucket(at, "failed", 2)], now=NOW)
        assert len(day.hours) == 24
        assert day.hours[-1].at == NOW
        hour = day.hours[-2]
        assert [(part.tone, part.y, part.height) for part in hour.parts] == [
            ("failed", 36, 12),
            ("complete", 0, 36),
        ]
        assert hour.words == "02:00 UTC: 6 completed and 2 failed"
        assert day.label == "Runs that ended in the last 24 hours: 6 completed and 2 failed"
        # One failure among thousands is still seen.
        day = charts.day([Bucket(NOW, "completed", 5_000), Bucket(NOW, "failed", 1)], now=NOW)
        assert day.hours[-1].parts[0].height == 2

    def test_the_rate_is_of_what_completed_or_failed_in_that_day(self) -> None:
        buckets = [Bucket(NOW, "completed", 3), Bucket(NOW, "failed", 1), Bucket(NOW, "cancelled", 9)]
        day = charts.day([*buckets, Bucket(NOW - timedelta(hours=24), "completed", 1)], now=NOW)
        assert (day.total, day.success_rate) == (13, 0.75)
        day = charts.day([], now=NOW)
        assert (day.total, day.success_rate, day.label[-4:]) == (0, None, "none")


class TestYear:
    def test_a_day_is_one_of_the_schedules_own_zone(self) -> None:
        late = datetime(2026, 11, 15, 23, 30, tzinfo=UTC)
        there = charts.year([Bucket(late, "completed", 1)], zone=ZoneInfo("Europe/Berlin"), now=NOW)
        here = charts.year([Bucket(late, "completed", 1)], zone=UTC, now=NOW)
        assert there.cells[-1].words == "Mon 16 November 2026: 1 completed"
        assert here.cells[-2].words == "Sun 15 November 2026: 1 completed"

    def test_there_is_a_cell_for_each_day_with_mondays_on_top(self) -> None:
        year = charts.year([], zone=UTC, now=NOW)
        assert len(year.cells) == 365
        assert year.cells[-1].y == charts.MONTHS_HEIGHT
        assert max(cell.x for cell in year.cells) + charts.CELL_STEP <= year.width
        assert {cell.tone for cell in year.cells} == {"none"}
        assert [mark.words for mark in year.months][0:2] == ["Dec", "Jan"]

    def test_a_cell_shows_the_worst_of_its_day_and_how_much_there_was(self) -> None:
        for counts, tone, level, is_marked in (
            ({"completed": 1}, "complete", 1, False),
            ({"completed": 3}, "complete", 2, False),
            ({"completed": 500}, "complete", 4, False),
            ({"completed": 9, "failed": 1}, "failed", 3, True),
            ({"cancelled": 1}, "cancelled", 1, False),
            ({"in_progress": 1}, "running", 1, False),
        ):
            buckets = [Bucket(NOW, status, count) for status, count in counts.items()]
            year = charts.year(buckets, zone=UTC, now=NOW)
            cell = year.cells[-1]
            assert (cell.tone, cell.level, cell.is_marked) == (tone, level, is_marked), counts
            assert year.drawn.count('class="mark"') == year.drawn.count("tone-failed") == is_marked


class TestDurations:
    def test_the_newest_is_at_the_right_the_longest_on_top_and_failures_are_crosses(self) -> None:
        plot = charts.durations([ran(3, took=20), ran(2, "failed", 40), ran(1, took=10)])
        assert plot is not None
        assert plot.points[-1].x == charts.PLOT_WIDTH - charts.PLOT_MARGIN
        assert min(plot.points, key=lambda point: point.y).id == 2
        assert plot.label == "Duration of the last 3 runs: at most 40 s, usually 15 s"
        drawn = plot.drawn(url)
        assert (drawn.count("<circle"), drawn.count('class="tone-failed cross"')) == (2, 1)
        assert re.findall(r'href="([^"]+)"', drawn) == [url(pk) for pk in (1, 2, 3)]

    def test_what_runs_has_no_duration_yet_and_what_took_none_is_at_the_bottom(self) -> None:
        assert charts.durations([ran(1, "in_progress", None)]) is None
        plot = charts.durations([ran(1, took=0)])
        assert plot is not None
        assert plot.points[0].y == charts.PLOT_HEIGHT - charts.PLOT_MARGIN


def test_groups_stand_side_by_side_and_their_steps_one_below_the_other() -> None:
    steps = [Planned("a", 0, "Python"), Planned("b", 5, "SQL"), Planned("c", 5, "SQL")]
    plan = lanes(steps)
    places = {box.name: (box.x, box.y) for box in plan.boxes}
    assert places["b"][0] == places["c"][0] > places["a"][0]
    assert places["b"][1] < places["a"][1] < places["c"][1]
    assert plan.groups == [["a"], ["b", "c"]]
    assert plan.label == "The plan: “a”, then “b” beside “c”"
    assert len(plan.arrows) == 1
    assert max(box.x for box in plan.boxes) + plan.box_width == plan.width


def test_clean_up_is_drawn_as_what_it_is() -> None:
    """In the first group there is nothing to clean up after."""
    steps = [Planned("a", 0, "Python", "always"), Planned("b", 1, "SQL", "always"), Planned("c", 2, "SQL")]
    assert [box.condition for box in lanes(steps).boxes] == ["always", "always (clean-up)", ""]


def test_what_is_usual_is_the_median_of_successes() -> None:
    runs = [ran(3, "in_progress", None), ran(2, "failed", 900)]
    runs += [ran(1, took=took) for took in (30, 10, 20)]
    assert usual_duration(runs) == seconds(20)
    assert usual_duration([ran(1, "failed")]) is None
