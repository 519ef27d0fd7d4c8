"""Texts of the editor's form, and the JSON that they stand for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from schedules.registry import step_types
from schedules.spec import Spec
from web.editing import plan, settings, weekdays
from web.editing.draft import Part, numbered
from web.editing.exclusions import exclusion_form, exclusions_of
from web.editing.rules import list_of, rule_form, rules_of

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
        told = settings._told(field)
        assert (told.count("per line, or"), told.count("JSON")) == (1, 1)
        assert told.count("such as") == field.help.count("such as")
        if field.text_only:
            assert settings.value_of(field, lines) == settings.value_of(field, whole)
        assert isinstance(settings.value_of(field, whole), dict if kind == "mapping" else list)


@pytest.mark.parametrize(("spec", "kind"), RULES)
def test_a_rule_comes_back_as_it_was_stored(spec: dict[str, Any], kind: str) -> None:
    parts = rules_of(spec, {})
    assert {part.texts["kind"] for part in parts} == {kind}
    again: dict[str, list[object]] = {}
    for form in map(rule_form, parts):
        again.setdefault(list_of(form), []).extend(form.items())
    assert Spec.parse(again).as_json() == Spec.parse(spec).as_json() == spec


EXCLUSIONS: list[tuple[dict[str, str], str]] = [
    ({"calendar": "Days off"}, "shared"),
    ({"dates": "2026-12-24", "comment": "Christmas"}, "dates"),
    ({"dates": "2026-12-24/2027-01-02"}, "dates"),
    ({"from": "2026-12-01T22:00:00", "until": "2026-12-02T04:00:00"}, "between"),
    ({"holidays": "GB", "subdivision": "ENG"}, "holidays"),
    ({"day_of_week": "sat,sun", "comment": "weekend"}, "matching"),
]


@pytest.mark.parametrize(("item", "kind"), EXCLUSIONS)
def test_an_exclusion_comes_back_as_it_was_stored(item: dict[str, str], kind: str) -> None:
    [part] = exclusions_of({"exclude": [item]})
    assert part.texts["kind"] == kind
    assert exclusion_form(part).items() == [item]


@pytest.mark.parametrize("rule", [7, None, {"times": [9]}, {"every": 5}, ["x"], {"odd": "thing"}])
def test_what_no_form_can_say_stays_as_it_is_stored(rule: object) -> None:
    [part] = rules_of({"patterns": [rule]}, {})
    form = rule_form(part)
    assert (part.texts["kind"], list_of(form), form.items()) == ("json", "patterns", [rule])
    [part] = exclusions_of({"exclude": [rule]})
    assert (part.texts["kind"], exclusion_form(part).items()) == ("json", [rule])


def test_ticked_days_are_written_as_people_write_them() -> None:
    wanted = {
        "": "*",
        "mon tue wed thu fri sat sun": "*",
        "mon tue wed thu fri": "mon-fri",
        "sat sun": "sat,sun",
        "mon wed fri": "mon,wed,fri",
        "mon tue wed sat": "mon-wed,sat",
    }
    assert {ticks: weekdays.text_of(dict.fromkeys(ticks.split(), "on")) for ticks in wanted} == wanted
    # Another tick writes the days anew.
    assert weekdays.text_of(weekdays.ticked("1-5")) == "1-5"
    assert weekdays.text_of(weekdays.ticked("1-5") | {"sat": "on"}) == "mon-sat"


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
    texts = settings.texts_of(kind, config)
    assert texts is not None
    read = settings.values_of(kind, texts)
    assert {key: value for key, value in read.items() if value or key in config} == config


NOT_IN_FIELDS: list[Any] = [{"unknown": 1}, {"headers": "{{ steps.a.result }}"}, ["no object"]]
NOT_IN_FIELDS += [{"follow_redirects": "{{ x }}"}, {"body": "with\r\nreturns"}, {"url": "two\nlines"}]


@pytest.mark.parametrize("config", NOT_IN_FIELDS)
def test_settings_that_fields_cannot_say_are_shown_as_json(config: Any) -> None:
    assert settings.texts_of(step_types["http"], config) is None


def test_a_new_step_has_the_defaults_of_its_type_which_complains_about_lines_without_a_colon() -> None:
    assert settings.defaults_of(step_types["sql"]) == {"config-transaction": "on", "config-max_rows": "20"}
    field: Any = SimpleNamespace(kind="mapping", text_only=True)
    for lines in ("a: 1\nb", "a: 1\na: 2"):
        assert settings.value_of(field, lines) == lines


def steps(text: str) -> list[Part]:
    """“a b|c” is a beside b, then c; each step's key is its place."""
    groups = [group.split() for group in text.split("|")]
    texts = [{"name": name, "index": str(10 * at)} for at, group in enumerate(groups) for name in group]
    return numbered(texts)


def drawn(parts: list[Part]) -> str:
    return "|".join(" ".join(part.texts["name"] for part in group) for group in plan.groups_of(parts))


def key(parts: list[Part], name: str) -> str:
    return next(part.key for part in parts if part.texts["name"] == name)


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
    ("a|b|c", plan.later, "nobody", "a|b|c"),
]


@pytest.mark.parametrize(("before", "verb", "name", "after"), MOVES)
def test_buttons_move_steps(before: str, verb: Any, name: str, after: str) -> None:
    parts = steps(before)
    assert drawn(verb(parts, name if name == "nobody" else key(parts, name))) == after


def test_moving_keeps_the_indices_that_somebody_chose() -> None:
    moved = plan.earlier(steps("a|b|c"), "2")
    found = [(part.texts["name"], part.texts["index"]) for part in moved]
    assert sorted(found) == [("a", "10"), ("b", "0"), ("c", "20")]


DROPS: list[tuple[str, str, dict[str, str], str]] = [
    ("a|b|c", "c", {"before": "a"}, "c|a|b"),
    ("a|b|c", "a", {"beside": "c"}, "b|c a"),
    ("a b|c", "a", {"before": "b"}, "a|b|c"),
    ("a b|c", "a", {}, "b|c|a"),
    ("a|b", "a", {"beside": "a"}, "a|b"),
]


@pytest.mark.parametrize(("before", "name", "where", "after"), DROPS)
def test_a_step_is_dropped_somewhere(before: str, name: str, where: dict[str, str], after: str) -> None:
    parts = steps(before)
    places = {how: key(parts, other) for how, other in where.items()}
    assert drawn(plan.put(parts, key(parts, name), **places)) == after
