from __future__ import annotations

from datetime import timedelta

import pytest

from schedules.previews import changed_times, preview
from schedules.spec import SpecError
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
