"""Texts of the editor's form, and the JSON that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import QueryDict

from schedules.forms import settings, weekdays
from schedules.forms.sent import Sent, put
from schedules.forms.times import ExclusionFormSet, RuleFormSet, exclusions_data, rules_data
from schedules.registry import step_types
from schedules.spec import Spec
from web.editing import plan

RULES: list[tuple[dict[str, Any], str]] = [
    ({"patterns": [{"times": ["09:00", "12:30"], "weekdays": "mon-fri"}]}, "week"),
    ({"patterns": [{"times": ["09:00"], "weekdays": "1-5"}]}, "week"),
    ({"patterns": [{"times": ["09:00"], "weekdays": "fri#2"}]}, "week"),
    ({"patterns": [{"times": ["00:00:30"]}]}, "week"),
    ({"patterns": [{"every": "25m", "from": "09:00", "until": "17:30", "weekdays": "sat,sun"}]}, "window"),
    ({"cron": ["0 3 * * mon-fri", "@daily"]}, "cron"),
    ({"every": ["15m", {"every": "1h", "offset": "5m"}]}, "interval"),
    ({"calendars": [{"hour": "9-17", "day_of_month": "L", "comment": "ends"}]}, "calendar"),
    ({"calendars": [{}]}, "calendar"),
    ({"at": ["2027-01-01T09:00:00Z", "2027-02-01T09:00:00Z"]}, "once"),
]


def several(kind: str) -> list[Any]:
    return [field for each in step_types.values() for field in each.fields if field.kind == kind]


@pytest.mark.parametrize(
    ("kind", "lines", "whole"),
    [("list", "north\n3", '["north", "3"]'), ("mapping", "a: north", '{"a": "north"}')],
)
def test_lists_and_mappings_are_written_by_line_or_as_json_as_their_help_says(
    kind: str, lines: str, whole: str
) -> None:
    assert several(kind)
    for field in several(kind):
        told, read = settings._help(field), settings._field(field).clean
        assert (told.count("per line, or"), told.count("JSON")) == (1, 1)
        assert told.count("such as") == field.help.count("such as")
        if field.text_only:
            assert read(lines) == read(whole)
        assert isinstance(read(whole), dict if kind == "mapping" else list)


@pytest.mark.parametrize(("spec", "kind"), RULES)
def test_a_rule_comes_back_as_it_was_stored(spec: dict[str, Any], kind: str) -> None:
    again: dict[str, list[object]] = {}
    for form in read(RuleFormSet, "rules", rules_data(spec, {})):
        assert form.slug == kind
        again.setdefault(form.spec_list, []).extend(form.items())
    assert Spec.parse(again).as_json() == Spec.parse(spec).as_json() == spec


EXCLUSIONS: list[tuple[dict[str, str], str]] = [
    ({"calendar": "Days off"}, "shared"),
    ({"dates": "2026-12-24", "comment": "Christmas"}, "dates"),
    ({"dates": "2026-12-24/2027-01-02"}, "dates"),
    ({"from": "2026-12-01T22:00:00", "until": "2026-12-02T04:00:00"}, "between"),
    ({"holidays": "GB", "subdivision": "ENG"}, "holidays"),
    ({"day_of_week": "sat,sun", "comment": "weekend"}, "matching"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("item", "kind"), EXCLUSIONS)
def test_an_exclusion_comes_back_as_it_was_stored(item: dict[str, str], kind: str) -> None:
    [form] = read(ExclusionFormSet, "exclude", exclusions_data({"exclude": [item]}))
    assert (form.slug, form.items()) == (kind, [item])


@pytest.mark.parametrize("rule", [7, None, {"times": [9]}, {"every": 5}, ["x"], {"odd": "thing"}])
def test_what_no_form_can_say_stays_as_it_is_stored(rule: object) -> None:
    [form] = read(RuleFormSet, "rules", rules_data({"patterns": [rule]}, {}))
    assert (form.slug, form.spec_list, form.items()) == ("json", "patterns", [rule])
    [form] = read(ExclusionFormSet, "exclude", exclusions_data({"exclude": [rule]}))
    assert (form.slug, form.items()) == ("json", [rule])


def read(formset: Any, prefix: str, sent: Sent) -> list[Any]:
    """Return the forms that read what a browser sends."""
    data = QueryDict(mutable=True)
    put(data, sent)
    forms: list[Any] = formset(data, prefix=prefix).item_forms
    return forms


def test_ticked_days_are_written_as_people_write_them() -> None:
    wanted = {
        "": "*",
        "mon tue wed thu fri sat sun": "*",
        "mon tue wed thu fri": "mon-fri",
        "sat sun": "sat,sun",
        "mon wed fri": "mon,wed,fri",
        "mon tue wed sat": "mon-wed,sat",
    }
    assert {ticks: weekdays.text_of(ticks.split()) for ticks in wanted} == wanted
    # Another tick writes the days anew.
    shown = weekdays.initial_of("1-5")
    assert weekdays.text_of(**shown) == "1-5"
    assert weekdays.text_of([*shown["days"], "sat"], shown["was"]) == "mon-sat"


CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("http", {"headers": {"Accept": "text/plain", "X-Number": "3"}}),
    ("http", {"expected_status": [200, "2xx", "204"]}),
    ("http", {"body": "two\nlines\n", "follow_redirects": True}),
    ("python", {"args": ["north", 3, True, None, {"a": [1]}, "3", "true", ""]}),
    ("python", {"kwargs": {"a:b": "x", "n": 1, "": ""}}),
    ("executable", {"argv": ["/bin/echo", "3", '"quoted"', " spaced ", "two\nlines", "[1]"]}),
    ("executable", {"argv": ["[1]"]}),
    ("sql", {"parameters": {"since": "2026-01-01", "limit": 5}, "transaction": False}),
    ("sql", {"max_rows": 0}),
]


@pytest.mark.parametrize(("name", "config"), CONFIGS)
def test_settings_come_back_as_they_were_stored(name: str, config: dict[str, Any]) -> None:
    kind = step_types[name]
    assert settings.can_show(kind, config)
    fields = {name.removeprefix(settings.PREFIX): field for name, field in settings.fields_of(kind).items()}
    read = {name: field.clean(field.prepare_value(config.get(name))) for name, field in fields.items()}
    assert {key: value for key, value in read.items() if value or key in config} == config


NOT_IN_FIELDS: list[Any] = [{"unknown": 1}, {"headers": "{{ steps.a.result }}"}, ["no object"]]
NOT_IN_FIELDS += [{"follow_redirects": "{{ x }}"}, {"body": "with\r\nreturns"}, {"url": "two\nlines"}]


@pytest.mark.parametrize("config", NOT_IN_FIELDS)
def test_settings_that_fields_cannot_say_are_shown_as_json(config: Any) -> None:
    assert not settings.can_show(step_types["http"], config)


def test_a_new_step_has_the_defaults_of_its_type_which_complains_about_lines_without_a_colon() -> None:
    initial = {name: field.initial for name, field in settings.fields_of(step_types["sql"]).items()}
    assert (initial["config-transaction"], initial["config-max_rows"]) == (True, 20)
    field = settings.MappingSetting(text_only=True)
    for lines in ("a: 1\nb", "a: 1\na: 2"):
        assert field.clean(lines) == lines


def steps(text: str) -> dict[str, int]:
    """“a b|c” is a beside b, then c; by name, their indices."""
    groups = [group.split() for group in text.split("|")]
    return {name: 10 * at for at, group in enumerate(groups) for name in group}


def moved(plan_before: str, verb: Any, name: str, /, **where: str) -> dict[str, int]:
    """The indices after a move, by name."""
    known = steps(plan_before)
    numbers = {each: number for number, each in enumerate(sorted(known))}
    places = {how: numbers[other] for how, other in where.items()}
    after = verb({numbers[each]: index for each, index in known.items()}, numbers[name], **places)
    return {each: after[number] for each, number in numbers.items()}


def drawn(indices: dict[str, int]) -> str:
    groups = [[name for name in sorted(indices) if indices[name] == at] for at in sorted({*indices.values()})]
    return "|".join(" ".join(group) for group in groups)


MOVES: list[tuple[str, Any, str, str]] = [
    ("a|b|c", plan.earlier, "b", "b|a|c"),
    ("a|b|c", plan.earlier, "a", "a|b|c"),
    ("a|b c", plan.earlier, "c", "a|c|b"),
    ("a b|c", plan.earlier, "c", "c|a b"),
    ("a|b|c", plan.later, "b", "a|c|b"),
    ("a|b|c", plan.later, "c", "a|b|c"),
    ("a b|c", plan.later, "a", "b|a|c"),
    ("a|b|c", plan.joined, "b", "a b|c"),
    ("a|b|c", plan.joined, "a", "a|b|c"),
    ("a|b c|d", plan.joined, "c", "a c|b|d"),
]


@pytest.mark.parametrize(("before", "verb", "name", "after"), MOVES)
def test_buttons_move_steps(before: str, verb: Any, name: str, after: str) -> None:
    assert drawn(moved(before, verb, name)) == after


def test_moving_keeps_the_indices_that_somebody_chose() -> None:
    assert moved("a|b|c", plan.earlier, "b") == {"a": 10, "b": 0, "c": 20}


DROPS: list[tuple[str, str, dict[str, str], str]] = [
    ("a|b|c", "c", {"before": "a"}, "c|a|b"),
    ("a|b|c", "a", {"beside": "c"}, "b|a c"),
    ("a b|c", "a", {"before": "b"}, "a|b|c"),
    ("a b|c", "a", {}, "b|c|a"),
    ("a|b", "a", {"beside": "a"}, "a|b"),
]


@pytest.mark.parametrize(("before", "name", "where", "after"), DROPS)
def test_a_step_is_dropped_somewhere(before: str, name: str, where: dict[str, str], after: str) -> None:
    assert drawn(moved(before, plan.put, name, **where)) == after
