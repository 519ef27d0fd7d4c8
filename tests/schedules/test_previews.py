from __future__ import annotations

from datetime import timedelta

import pytest

from schedules.previews import changed_times, preview
from schedules.spec import Spec, SpecError
from schedules.spec.compiled_exclusions import Exclusions
from schedules.spec.timeline import EFFORT
from tests.base import NOW, make_schedule

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("before", "after", "gone", "added"),
    [
        ([1, 3, 5], [1, 2, 3], [], [2]),  # 5 is beyond what is known of the new ones
        ([1, 2, 3], [1, 3, 5], [2], []),
        ([1, 2], [1], [2], []),  # a list that is not full has ended
        ([1], [1, 2, 3], [], [2, 3]),
        ([1, 2, 3], [], [1, 2, 3], []),
        ([1, 2, 3], [4, 5, 6], [1, 2, 3], []),
    ],
)
def test_which_times_an_edit_changes(
    before: list[int], after: list[int], gone: list[int], added: list[int]
) -> None:
    old, new = ([NOW + number * HOUR for number in numbers] for numbers in (before, after))
    difference = changed_times(old, new, 3)
    assert [(at - NOW) // HOUR for at in difference.gone] == gone
    assert [(at - NOW) // HOUR for at in difference.added] == added


@pytest.mark.django_db
def test_a_preview_of_a_broken_schedule_has_only_new_times() -> None:
    schedule = make_schedule(spec={"cron": ["0 2 * * *"]})
    schedule.spec_error = "broken"
    shown = preview({"cron": ["0 3 * * *"]}, count=2, now=NOW, instead_of=schedule)
    assert shown.difference is not None
    assert (shown.difference.gone, len(shown.difference.added)) == ([], 2)
    with pytest.raises(SpecError):
        preview({"cron": ["nonsense"]}, count=1, now=NOW)


# One time in five hours is left of every second one.
SPARSE = {
    "cron": ["*/2 * * * * * *"],
    "exclude": [
        {"second": "2-59/2"},
        {"minute": "1-59", "second": "*/2"},
        {"second": "*/2", "hour": "1-4,6-9,11-14,16-19,21-23"},
    ],
}


@pytest.mark.django_db
@pytest.mark.parametrize("more", [{}, {"jitter": "10d"}], ids=["plain", "with jitter"])
def test_a_preview_ends_when_its_effort_is_spent_and_shows_what_it_found(
    more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule, asked, end = make_schedule(spec=SPARSE), 0, Exclusions.end

    def counted(self: Exclusions, wall: int, instant: int) -> int | None:
        nonlocal asked
        asked += 1
        return end(self, wall, instant)

    monkeypatch.setattr(Exclusions, "end", counted)
    monkeypatch.setattr("django.conf.settings.JIM_MINIMUM_INTERVAL_SECONDS", 60)
    shown = preview(SPARSE | more, count=100, now=NOW, instead_of=schedule)
    assert asked <= 2 * EFFORT
    assert 1 <= len(shown.upcoming) < 100
    assert [text for text in shown.warnings if "not all of the next times are shown" in text]
    assert shown.difference is None
    asked = 0
    Spec.parse(SPARSE).check(NOW, 60)
    assert asked <= 2 * EFFORT
