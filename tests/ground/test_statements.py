"""Many rows, each with other values, in one statement."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import DataError, connection, transaction

from activities.models import Activity, OutputLine
from database import statements
from database.statements import fetch, insert_each, update_each
from tests.base import NOW

pytestmark = pytest.mark.django_db


def activities(count: int) -> list[Activity]:
    return Activity.objects.bulk_create(
        Activity(target_name=f"a{number}", initiator_name="test", created_at=NOW) for number in range(count)
    )


class TestUpdateEach:
    def test_each_row_gets_its_own_values_and_the_changed_keys_come_back(self) -> None:
        first, second, untouched = activities(3)
        key = uuid.uuid4()
        changed = update_each(
            Activity,
            ("message", "result", "finished_at", "worker_id", "progress_done"),
            [
                (first.pk, 'it\'s "%s"', {"a": [1]}, NOW, key, None),
                (second.pk, "", None, None, None, 2**40),
            ],
        )
        assert changed == {first.pk, second.pk}
        first, second = (Activity.objects.get(pk=row.pk) for row in (first, second))
        assert (first.message, first.result, first.finished_at) == ('it\'s "%s"', {"a": [1]}, NOW)
        assert (first.worker_id, second.progress_done, second.result) == (key, 2**40, None)
        assert Activity.objects.get(pk=untouched.pk).message == ""

    def test_what_is_too_long_is_refused_and_not_cut_off(self) -> None:
        (row,) = activities(1)
        if connection.vendor != "postgresql":
            pytest.skip("SQLite stores texts of any length")
        with pytest.raises(DataError), transaction.atomic():
            update_each(Activity, ("target_name",), [(row.pk, "x" * 256)])

    def test_the_guard_decides_which_rows_change(self) -> None:
        first, second = activities(2)
        Activity.objects.filter(pk=second.pk).update(status="complete")
        rows = [(first.pk, "new"), (second.pk, "new"), (10**9, "nowhere")]
        changed = update_each(Activity, ("message",), rows, where="t.status = %s", params=["pending"])
        assert changed == {first.pk}
        assert Activity.objects.get(pk=second.pk).message == ""
        assert update_each(Activity, ("message",), []) == set()

    def test_the_guard_may_ask_for_the_new_values(self) -> None:
        (row,) = activities(1)
        Activity.objects.update(progress_done=5)
        guard = "t.progress_done < CAST(v.progress_done AS integer)"
        assert update_each(Activity, ("progress_done",), [(row.pk, 4)], where=guard) == set()
        assert update_each(Activity, ("progress_done",), [(row.pk, 6)], where=guard) == {row.pk}

    def test_more_rows_than_one_statement_takes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(statements, "VARIABLES_PER_STATEMENT", 10)
        rows = activities(23)
        changed = update_each(
            Activity,
            ("message", "finished_at"),
            [(row.pk, str(row.pk), NOW + timedelta(seconds=n)) for n, row in enumerate(rows)],
        )
        assert changed == {row.pk for row in rows}
        assert all(row.message == str(row.pk) for row in Activity.objects.all())


def test_both_passes_of_an_hour_in_autumn_are_stored() -> None:
    """They are equal to Python, and so to whatever remembers what it made of one of them."""
    rows = activities(2)
    passes = [datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin")) for fold in (0, 1)]
    update_each(Activity, ("finished_at",), [(row.pk, at) for row, at in zip(rows, passes, strict=True)])
    stored = Activity.objects.order_by("pk").values_list("finished_at", flat=True)
    assert [at.hour for at in stored if at] == [0, 1]


class TestInsertEach:
    FIELDS = ("activity", "number", "stream", "text", "written_at")

    def test_only_the_rows_that_the_condition_allows_are_inserted(self) -> None:
        first, second = activities(2)
        Activity.objects.filter(pk=second.pk).update(status="complete")
        written = insert_each(
            OutputLine,
            self.FIELDS,
            [(row.pk, 1, "stdout", "it's %s", NOW) for row in (first, second)],
            where="EXISTS (SELECT 1 FROM activities_activity a WHERE a.id = v.activity_id AND a.status = %s)",
            params=["pending"],
            returning="activity_id",
        )
        assert written == [(first.pk,)]
        (line,) = OutputLine.objects.all()
        assert (line.activity_id, line.text, line.written_at) == (first.pk, "it's %s", NOW)

    def test_more_rows_than_one_statement_takes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(statements, "VARIABLES_PER_STATEMENT", 50)
        (row,) = activities(1)
        rows = [(row.pk, number, "stdout", "x", NOW) for number in range(37)]
        insert_each(OutputLine, self.FIELDS, rows, returning="activity_id")
        assert list(OutputLine.objects.values_list("number", flat=True)) == list(range(37))

    @pytest.mark.parametrize("plan", ["nestloop", "hashjoin", "mergejoin"])
    def test_rows_get_their_ids_in_the_order_given_whatever_the_plan(self, plan: str) -> None:
        first, second = activities(2)
        if connection.vendor == "postgresql":
            for other in {"nestloop", "hashjoin", "mergejoin"} - {plan}:
                fetch("SELECT set_config(%s, 'off', true)", [f"enable_{other}"])
        given = [(row.pk, number, "stdout", "", NOW) for number in range(20) for row in (second, first)]
        condition = "EXISTS (SELECT 1 FROM activities_activity a WHERE a.id = v.activity_id)"
        told = insert_each(OutputLine, self.FIELDS, given, where=condition, returning="activity_id, number")
        assert told == [(activity, number) for activity, number, *_ in given]
        assert list(OutputLine.objects.order_by("pk").values_list("activity", "number")) == told


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite goes by the order of its indexes")
def test_of_indexes_on_the_same_column_those_with_conditions_were_made_last() -> None:
    for table in connection.introspection.table_names():
        found = fetch("SELECT name, partial FROM pragma_index_list(%s) ORDER BY seq DESC", [table])
        conditional: dict[str, str] = {}
        for name, is_partial in found:
            [(column,)] = fetch("SELECT name FROM pragma_index_info(%s) WHERE seqno = 0", [name])
            if is_partial:
                conditional[column] = name
            else:
                assert column not in conditional, f"{name} was made after {conditional[column]}."
