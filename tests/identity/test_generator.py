"""Example data: what each rule generates, that it is always the same, and who works in a company on a day."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from django.conf import settings
from hypothesis import given
from hypothesis import strategies as st

import identity.generating
from identity.generating import Template, TemplateError
from identity.generating.rules import plain
from identity.generating.word_lists import WORD_LISTS
from identity.shape import AttributeShape
from identity.values import Kind, as_list, in_order, parse

DOCUMENTED: dict[str, Any] = json.loads(
    "\n".join(re.findall("^    (.*)", identity.generating.__doc__ or "", re.MULTILINE))
)
EVERY_RULE = {
    **DOCUMENTED,
    "attributes": {
        **DOCUMENTED["attributes"],
        "tags": {"by": "department", "values": {"Sales": ["b", "a", "b"]}, "fill": 90},
        "seen": {"datetime": ["2026-01-01", "2026-01-31T12:00:00+02:00"], "fill": 60},
        "rate": {"range": [0.5, 2], "step": 0.25},
        "key": {"uuid": True},
        "number": {"sequence": -5},
    },
}


def template(attributes: dict[str, Any], *, count: int = 1000, seed: int = 7) -> Template:
    return Template.parse({"seed": seed, "count": count, "attributes": attributes})


def values(rule: object, *, count: int = 1000, **others: object) -> list[Any]:
    """The values of an attribute `x` with this rule, None where it has none."""
    return [each.get("x") for each in template({**others, "x": rule}, count=count).objects()]


def errors(data: object) -> dict[str, str]:
    with pytest.raises(TemplateError) as raised:
        Template.parse(data)
    return raised.value.errors


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param("employee", ["employee"] * 4, id="text for all"),
        pytest.param(True, [True] * 4, id="true for all"),
        pytest.param(1.50, ["1.5"] * 4, id="a decimal number as it is stored"),
        pytest.param(["b", "a", "b"], [["a", "b"]] * 4, id="several values for all"),
        pytest.param({"sequence": 1000}, [1000, 1001, 1002, 1003], id="numbers"),
        pytest.param(
            {"sequence": "E0099"}, ["E0099", "E0100", "E0101", "E0102"], id="numbers of four digits"
        ),
        pytest.param({"sequence": "a9"}, ["a9", "a10", "a11", "a12"], id="more digits than at the beginning"),
        pytest.param({"choose": [4]}, [4] * 4, id="a choice of one"),
        pytest.param({"range": [5, 9], "step": 10}, [5] * 4, id="a range smaller than its step"),
        pytest.param({"range": [0.5, 0.5]}, ["0.5"] * 4, id="a range of one decimal number"),
        pytest.param({"date": ["2026-02-28", "2026-02-28"]}, ["2026-02-28"] * 4, id="one day"),
        pytest.param(
            {"datetime": ["2026-02-28T01:00:00+02:00", "2026-02-27T23:00:00Z"]},
            ["2026-02-27T23:00:00Z"] * 4,
            id="one second, in UTC",
        ),
        pytest.param({"boolean": 100}, [True] * 4, id="always true"),
        pytest.param({"boolean": 0}, [False] * 4, id="never true"),
        pytest.param({"choose": ["a"], "fill": 0}, [None] * 4, id="never filled"),
        pytest.param({"choose": ["a"], "fill": 100}, ["a"] * 4, id="always filled"),
        pytest.param({"pattern": "all@x"}, ["all@x"] * 4, id="a pattern of nothing but text"),
        pytest.param(
            {"pattern": "all@x", "unique": True},
            ["all.1@x", "all.2@x", "all.3@x", "all.4@x"],
            id="unique, before the @",
        ),
        pytest.param(
            {"pattern": "all", "unique": True}, ["all.1", "all.2", "all.3", "all.4"], id="unique, at the end"
        ),
    ],
)
def test_rules_without_chance(rule: object, expected: list[object]) -> None:
    assert values(rule, count=4) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param({"choose": ["a", "b"]}, {"a", "b"}, id="a list"),
        pytest.param({"choose": [1, 2.5]}, {"1", "2.5"}, id="whole and decimal numbers"),
        pytest.param({"choose": [False, True]}, {True, False}, id="true and false"),
        pytest.param({"choose": {"a": 1, "b": 9}}, {"a", "b"}, id="weights"),
        pytest.param({"choose": "departments"}, set(WORD_LISTS["departments"]), id="a word list"),
        pytest.param({"range": [-1, 2]}, {-1, 0, 1, 2}, id="whole numbers, both ends included"),
        pytest.param({"range": [1, 10], "step": 4}, {1, 5, 9}, id="steps from the first number"),
        pytest.param({"range": [0.98, 1.01]}, {"0.98", "0.99", "1", "1.01"}, id="hundredths"),
        pytest.param({"range": [1, 2], "step": 0.5}, {"1", "1.5", "2"}, id="a decimal step"),
        pytest.param(
            {"range": [0.001, 0.02]}, {f"0.0{n:02}" for n in (1, 11)}, id="hundredths from the first"
        ),
        pytest.param(
            {"date": ["2024-02-28", "2024-03-01"]}, {"2024-02-28", "2024-02-29", "2024-03-01"}, id="days"
        ),
        pytest.param(
            {"datetime": ["2026-01-01T00:00:00", "2026-01-01T00:00:01"]},
            {"2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"},
            id="seconds",
        ),
        pytest.param({"boolean": 50}, {True, False}, id="yes or no"),
        pytest.param({"choose": ["a"], "fill": 50}, {"a", None}, id="filled or not"),
    ],
)
def test_what_chance_can_bring(rule: object, expected: set[object]) -> None:
    assert set(values(rule)) == expected


@pytest.mark.parametrize(
    ("rule", "value", "least", "most"),
    [
        ({"choose": {"Sales": 5, "IT": 2, "HR": 1}}, "Sales", 6100, 6400),
        ({"choose": {"Sales": 5, "IT": 2, "HR": 1}}, "IT", 2400, 2600),
        ({"choose": ["a", "b", "a", "a"]}, "b", 2400, 2600),
        ({"boolean": 95}, True, 9450, 9550),
        ({"boolean": 0.5}, True, 30, 70),
        ({"choose": ["a"], "fill": 20}, "a", 1900, 2100),
    ],
)
def test_shares_are_about_right(rule: object, value: object, least: int, most: int) -> None:
    assert least <= values(rule, count=10_000).count(value) <= most


@pytest.mark.parametrize(
    ("pattern", "first_name", "last_name", "expected"),
    [
        ({"pattern": "{last}, {first}"}, "José", "O'Brien", "O'Brien, José"),
        ({"pattern": "{first:1}{last:3}"}, "Élise", "Li", "ÉLi"),
        (
            {"pattern": "{first:1}{last}@x.org", "plain": True},
            "Øyvind",
            "O'Brien-Weiß",
            "oobrien-weiss@x.org",
        ),
        ({"pattern": "{first:3}", "plain": True}, "'s Gra", "Li", "sgr"),
        ({"pattern": "CN={last} X", "plain": True}, "José", "van den Berg", "CN=vandenberg X"),
        (
            {"pattern": "{first}.{last}@x", "plain": True, "unique": True},
            "Łukasz",
            "Nguyễn",
            "lukasz.nguyen.1@x",
        ),
        ({"pattern": "{last}{middle}"}, "José", "Li", "Li"),
        ({"pattern": "{middle}"}, "José", "Li", None),
        ({"pattern": "{number}/{yes}"}, "José", "Li", "41/true"),
    ],
)
def test_patterns(pattern: object, first_name: str, last_name: str, expected: str | None) -> None:
    others = {"first": first_name, "last": last_name, "middle": {"choose": ["X"], "fill": 0}}
    assert values(pattern, count=1, number=41, yes=True, **others) == [expected]


def test_long_values_are_cut_where_they_are_inserted() -> None:
    grown = {"a": "x" * 1000, "b": {"pattern": "{a}{a:150}{a:999}"}, "x": {"pattern": "{b}"}}
    [made] = template(grown, count=1).objects()
    assert (len(made["b"]), len(made["x"])) == (550, 200)


@given(st.lists(st.sampled_from(["a", "A", "a.1", "1", "1.2", "a@", "@b.1", "a.1@b", "é", "."]), min_size=1))
def test_unique_values_differ_whatever_is_inserted(texts: list[str]) -> None:
    found = values({"pattern": "{t}", "unique": True, "plain": True}, count=60, t={"choose": texts})
    assert len({each.casefold() for each in found}) == 60


def test_a_value_depends_on_another_attribute() -> None:
    location = {
        "by": "department",
        "values": {"IT": {"choose": ["Berlin", "Porto"]}, "HR": "Rome"},
        "otherwise": {"by": "remote", "values": {"true": "Home"}},
    }
    made = template(
        {"x": location, "department": {"choose": ["IT", "HR", "Law"], "fill": 80}, "remote": {"boolean": 50}}
    ).objects()
    assert {(each.get("department"), each["remote"], each.get("x")) for each in made} == {
        *(("IT", remote, city) for remote in (True, False) for city in ("Berlin", "Porto")),
        *(("HR", remote, "Rome") for remote in (True, False)),
        *((department, True, "Home") for department in ("Law", None)),
        *((department, False, None) for department in ("Law", None)),
    }


@pytest.mark.parametrize("span", [1, 2, 8])
def test_managers_form_a_tree(span: int) -> None:
    made = values({"manager": "id", "span": span}, count=100, id={"sequence": 10})
    ids = [str(10 + index) for index in range(100)]
    assert made[0] is None
    assert all(manager in ids[:index] for index, manager in enumerate(made) if index)
    assert max(Counter(made).values()) == span


@pytest.mark.parametrize(
    ("count", "objects", "sizes"),
    [
        ([0, 3], 50, {0, 1, 2, 3}),
        ([2, 2], 50, {2}),
        pytest.param([5, 9], 4, {3}, id="no more than there are others"),
        pytest.param([1, 1], 1, {0}, id="no others"),
        pytest.param([49, 49], 50, {49}, id="all others"),
    ],
)
def test_references_name_different_others(count: list[int], objects: int, sizes: set[int]) -> None:
    ids = [f"E{index:02}" for index in range(objects)]
    found = [
        as_list(each)
        for each in values({"references": "id", "count": count}, count=objects, id={"sequence": "E00"})
    ]
    assert {len(each) for each in found} == sizes
    assert all(each == sorted(set(each)) for each in found)
    assert all(set(each) <= {*ids} - {own} for own, each in zip(ids, found, strict=True))


def test_all_others_are_referred_to() -> None:
    found = values({"references": "id", "count": [1, 1]}, count=20, id={"sequence": "E00"})
    assert len({each for one in found for each in one}) > 10


def test_references_are_the_ids_of_these_objects() -> None:
    made = list(
        template(
            {
                "mail": {"pattern": "{name}@x", "unique": True},
                "name": {"choose": "first_names"},
                "boss": {"manager": "mail", "span": 2},
                "key": {"uuid": True},
                "friends": {"references": "key", "count": [1, 2]},
            },
            count=30,
        ).objects()
    )
    assert [each.get("boss") for each in made[1:]] == [
        made[(index - 1) // 2]["mail"] for index in range(1, 30)
    ]
    assert {key for each in made for key in each["friends"]} <= {each["key"] for each in made}


def test_the_shape_of_the_objects() -> None:
    assert Template.parse(EVERY_RULE).shape() == [
        AttributeShape("employee_id"),
        AttributeShape("kind"),
        AttributeShape("first_name"),
        AttributeShape("last_name"),
        AttributeShape("nickname"),
        AttributeShape("mail"),
        AttributeShape("department"),
        AttributeShape("location"),
        AttributeShape("salary", Kind.INTEGER),
        AttributeShape("hired", Kind.DATE),
        AttributeShape("active", Kind.BOOLEAN),
        AttributeShape("manager", Kind.REFERENCE),
        AttributeShape("deputies", Kind.REFERENCE, is_multi=True),
        AttributeShape("tags", is_multi=True),
        AttributeShape("seen", Kind.DATETIME),
        AttributeShape("rate", Kind.DECIMAL),
        AttributeShape("key", Kind.UUID),
        AttributeShape("number", Kind.INTEGER),
    ]


@given(st.integers(0, 2**63 - 1))
def test_values_have_the_form_in_which_they_are_stored(seed: int) -> None:
    made = Template.parse({**EVERY_RULE, "seed": seed, "count": 20})
    shapes = {each.name: each for each in made.shape()}
    for each in made.objects():
        for name, value in each.items():
            shape = shapes[name]
            assert isinstance(value, list) == shape.is_multi
            stored = [parse(shape.kind, single) for single in as_list(value)]
            assert (in_order(stored) if shape.is_multi else stored[0]) == value


def test_objects_never_change() -> None:
    """An interrupted generation goes on after an upgrade of JIM or Python."""
    assert Template.parse(EVERY_RULE).object(500) == {
        "employee_id": "E001500",
        "kind": "employee",
        "first_name": "Ngozi",
        "last_name": "Tanaka",
        "department": "HR",
        "location": "Rome",
        "salary": 58000,
        "hired": "2017-05-02",
        "active": True,
        "manager": "E001062",
        "deputies": ["E001176", "E001202", "E001587"],
        "rate": "0.5",
        "key": "41edbf61-7600-4d74-adc9-d4a4425b9843",
        "number": 495,
        "mail": "ntanaka.501@example.com",
    }


def test_the_order_of_names_does_not_matter() -> None:
    """PostgreSQL stores the names of a JSON object in another order."""
    weights = {"Sales": 5, "IT": 2, "HR": 1}
    reversed_weights = dict(reversed(weights.items()))
    assert values({"choose": weights}) == values({"choose": reversed_weights})


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_other_processes_generate_the_same_in_the_same_order(hash_seed: str) -> None:
    script = (
        "import json, sys; from identity.generating import Template; "
        "print(json.dumps(list(Template.parse(json.load(sys.stdin)).objects(900, 910))))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(EVERY_RULE),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=settings.BASE_DIR,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == json.dumps(list(Template.parse(EVERY_RULE).objects(900, 910)))


@given(st.integers(0, 2**63 - 1), st.integers(1, 60), st.lists(st.integers(0, 70)))
def test_slices_make_up_the_whole(seed: int, count: int, cuts: list[int]) -> None:
    data = {**EVERY_RULE, "seed": seed, "count": count}
    edges = [0, *sorted(cuts), 70]
    pieces = [Template.parse(data).objects(*edges[at : at + 2]) for at in range(len(edges) - 1)]
    whole = list(Template.parse(data).objects())
    assert [each for piece in pieces for each in piece] == whole
    assert len(whole) == count


def test_seeds_lead_to_different_objects() -> None:
    made = [Template.parse({**DOCUMENTED, "seed": seed}).object(3) for seed in range(20)]
    assert len({json.dumps(each) for each in made}) == 20
    assert Template.parse({"count": 1, "attributes": {"x": {"range": [0, 10**9]}}}).object(0) == (
        template({"x": {"range": [0, 10**9]}}, seed=0).object(0)
    )


def test_an_attribute_does_not_change_the_others() -> None:
    fewer = {
        name: rule
        for name, rule in DOCUMENTED["attributes"].items()
        if name not in ("kind", "nickname", "salary")
    }
    for all_, some in zip(
        Template.parse(DOCUMENTED).objects(0, 50), template(fewer).objects(0, 50), strict=True
    ):
        assert {name: all_[name] for name in all_ if name in fewer} == some


def test_attributes_with_the_same_rule_have_values_of_their_own() -> None:
    made = template({name: {"choose": "cities"} for name in "abc"}).objects()
    assert sum(len(set(each.values())) == 3 for each in made) > 900


@pytest.mark.parametrize(
    ("rule", "path", "message"),
    [
        (None, "x", "is missing; write a value, or a rule"),
        ("", "x", "contains an empty value"),
        ([], "x", "is empty; write at least one value"),
        ([1, "a"], "x", "mixes values of different kinds (integer, text)"),
        (10**30, "x", "contains a value that does not fit"),
        ({}, "x", "does not say how to generate values; choose one of: choose, range, date"),
        ({"chose": ["a"]}, "x", "does not say how to generate values; did you mean choose?"),
        ({"choose": ["a"], "range": [1, 2]}, "x", "has choose and range; keep one of these"),
        ({"range": [1, 2], "stop": 1}, "x.stop", "is unknown here; did you mean step?"),
        ({"date": ["2026-01-01", "2026-01-02"], "step": 1}, "x.step", "is unknown here"),
        ({"choose": "first_nmes"}, "x.choose", "is not the name of a word list; did you mean first_names?"),
        ({"choose": 5}, "x.choose", "must be a list of values"),
        ({"choose": []}, "x.choose", "is empty"),
        ({"choose": {}}, "x.choose", "is empty"),
        ({"choose": ["a", None]}, "x.choose", "must be text, a number, true or false, not None"),
        ({"choose": {"a": 0}}, "x.choose.a", "must be a whole number from 1 to 1,000,000, not 0"),
        ({"choose": {1: 1}}, "x.choose", "has a name that is not text; write 1 in quotes"),
        ({"choose": {"a\0": 1}}, "x.choose", "with NUL or half a surrogate pair"),
        ({"range": [5, 1]}, "x.range", "begins after its end"),
        ({"range": [1]}, "x.range", "must be a list of the first and the last value, such as [1, 100]"),
        ({"range": ["a", 1]}, "x.range", "must be a number, not 'a'"),
        ({"range": [True, 1]}, "x.range", "must be a number, not True"),
        ({"range": [0, float("inf")]}, "x.range", "contains a value that does not fit"),
        ({"range": [0, 1e50]}, "x.range", "needs too many digits"),
        ({"range": [0, 1e-30]}, "x.range", "needs too many digits"),
        ({"range": [1, 5], "step": 0}, "x.step", "must be greater than 0"),
        ({"date": ["2026-02-30", "2026-03-01"]}, "x.date", "“2026-02-30” is not a date, such as"),
        ({"date": ["2026-02-03", None]}, "x.date", "contains an empty value"),
        ({"datetime": ["today", "2026-03-01"]}, "x.datetime", "“today” is not a time, such as"),
        ({"boolean": 101}, "x.boolean", "must be a percentage from 0 to 100, not 101"),
        ({"boolean": True}, "x.boolean", "must be a percentage from 0 to 100, not True"),
        ({"choose": ["a"], "fill": -1}, "x.fill", "must be a percentage from 0 to 100, not -1"),
        ({"choose": ["a"], "fill": float("nan")}, "x.fill", "must be a percentage from 0 to 100, not nan"),
        ({"sequence": "E"}, "x.sequence", "must end with a number, such as E0001, not 'E'"),
        ({"sequence": 1.5}, "x.sequence", "must be a whole number from"),
        ({"sequence": 10**18}, "x.sequence", "must be a whole number from"),
        ({"uuid": 1}, "x.uuid", "must be true, not 1"),
        ({"pattern": ""}, "x.pattern", "must be text of 1 to 200 characters"),
        ({"pattern": "{id} {"}, "x.pattern", "contains a brace that is not part of {name} or {name:3}"),
        ({"pattern": "{id:a}"}, "x.pattern", "contains a brace"),
        ({"pattern": "{idd}"}, "x.pattern", "“idd” is not an attribute; did you mean id?"),
        ({"pattern": "{tags}"}, "x.pattern", "“tags” is a reference or a list"),
        ({"pattern": "{boss}"}, "x.pattern", "“boss” is a reference or a list"),
        ({"pattern": "{x}"}, "x", "depends on itself: x → x; remove one of these uses"),
        ({"pattern": "{id}", "unique": "yes"}, "x.unique", "must be true or false, not 'yes'"),
        ({"pattern": "{id}", "plain": 1}, "x.plain", "must be true or false, not 1"),
        ({"by": "idd", "values": {"a": 1}}, "x.by", "“idd” is not an attribute; did you mean id?"),
        ({"by": "id"}, "x.values", "must be an object"),
        ({"by": "id", "values": {}}, "x.values", "is empty; write a rule for at least one value"),
        ({"by": "id", "values": {"a": 1}, "otherwise": "b"}, "x.values", "different kinds (integer, text)"),
        (
            {"by": "id", "values": {"a": "b", "c": ["d"]}},
            "x.values",
            "different kinds (text, several of text)",
        ),
        ({"by": "id", "values": {"a": {"range": 1}}}, "x.values.a.range", "must be a list of the first"),
        ({"by": "id", "values": {"a": 1}, "otherwise": {"uuid": 0}}, "x.otherwise.uuid", "must be true"),
        ({"manager": "bos"}, "x.manager", "“bos” is not an attribute; did you mean boss?"),
        (
            {"manager": "name"},
            "x.manager",
            "“name” does not identify objects; use an attribute with a sequence",
        ),
        ({"manager": "some_id"}, "x.manager", "“some_id” does not identify objects"),
        ({"manager": 5}, "x.manager", "must be text"),
        ({"manager": "id", "span": 0}, "x.span", "must be a whole number from 1 to 1,000,000, not 0"),
        ({"references": "id"}, "x.count", "must be a list of the first and the last value, such as [0, 5]"),
        ({"references": "id", "count": [3, 2]}, "x.count", "begins after its end"),
        ({"references": "id", "count": [0, 10**9]}, "x.count", "must be a whole number from 0 to 10,000"),
        ({"references": "x", "count": [0, 1]}, "x.references", "“x” does not identify objects"),
    ],
)
def test_wrong_rules_are_reported_by_path(rule: object, path: str, message: str) -> None:
    sound = {
        "id": {"sequence": 1},
        "name": "a",
        "tags": ["a"],
        "boss": {"manager": "id"},
        "some_id": {"sequence": 1, "fill": 99},
    }
    found = errors({"count": 1, "attributes": {**sound, "x": rule}})
    assert found.keys() == {f"attributes.{path}"}
    assert message in found[f"attributes.{path}"]


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ([], "template", "must be an object, such as {…}, not []"),
        ({"attributes": {"a": 1}}, "count", "is missing; write a whole number from 1 to 10,000,000"),
        (
            {"count": 10_000_001, "attributes": {"a": 1}},
            "count",
            "must be a whole number from 1 to 10,000,000",
        ),
        ({"count": True, "attributes": {"a": 1}}, "count", "must be a whole number from 1 to 10,000,000"),
        ({"count": 1, "seed": -1, "attributes": {"a": 1}}, "seed", "must be a whole number from 0"),
        ({"count": 1, "sed": 1, "attributes": {"a": 1}}, "sed", "is unknown here; did you mean seed?"),
        ({"count": 1}, "attributes", "must be an object"),
        ({"count": 1, "attributes": {}}, "attributes", "must have 1 to 200 attributes, not 0"),
        (
            {"count": 1, "attributes": {str(n): n for n in range(201)}},
            "attributes",
            "must have 1 to 200 attributes, not 201",
        ),
        ({"count": 1, "attributes": {"a{": 1}}, "attributes.a{", "cannot be a name"),
        ({"count": 1, "attributes": {"a ": 1}}, "attributes.a ", "cannot be a name"),
        ({"count": 1, "attributes": {"a": 1, "A": 1}}, "attributes.A", "differs from “a” only in case"),
        ({"count": 1, "attributes": {"\ud800": 1}}, "attributes", "with NUL or half a surrogate pair"),
        (
            {
                "count": 1,
                "attributes": {
                    "a": {"pattern": "{b}"},
                    "b": {"by": "c", "values": {"x": "y"}},
                    "c": {"pattern": "{a}"},
                },
            },
            "attributes.a",
            "depends on itself: a → b → c → a; remove one of these uses",
        ),
    ],
)
def test_wrong_templates_are_reported_by_path(data: object, path: str, message: str) -> None:
    found = errors(data)
    assert found.keys() == {path}
    assert message in found[path]


def test_all_that_is_wrong_is_reported_at_once() -> None:
    wrong = {"a": {"pattern": "{b}{c}"}, "b": None, "d": {"by": "e", "values": {"x": None, "y": {"uuid": 0}}}}
    assert errors({"seed": "x", "attributes": wrong}).keys() == {
        *("seed", "count", "attributes.a.pattern", "attributes.b"),
        *("attributes.d.by", "attributes.d.values.x", "attributes.d.values.y.uuid"),
    }


def test_an_error_reads_as_a_sentence_with_its_path() -> None:
    with pytest.raises(TemplateError, match=r"^attributes\.x\.uuid: must be true, not 0$"):
        template({"x": {"uuid": 0}})


def test_rules_inside_rules_have_a_limit() -> None:
    nested: dict[str, Any] = {"uuid": True}
    for _ in range(500):
        nested = {"by": "a", "values": {"x": nested}}
    [path] = errors({"count": 1, "attributes": {"a": 1, "x": nested}})
    assert path == "attributes.x" + ".values.x" * 6


@pytest.mark.parametrize("name", WORD_LISTS)
def test_word_lists_have_no_empty_or_double_words(name: str) -> None:
    words = WORD_LISTS[name]
    assert len(set(words)) == len(words)
    assert all(plain(word) for word in words)
    assert all(word == parse(Kind.TEXT, word) == word.strip() for word in words)


COMPANY = {
    "seed": 3,
    "count": 40,
    "attributes": {
        "id": {"sequence": "E1000"},
        "name": {"choose": "last_names"},
        "department": {"choose": {"Sales": 5, "IT": 2, "HR": 1}},
        "location": {"by": "department", "values": {"Sales": "Lisbon", "IT": "Berlin", "HR": "Rome"}},
        "manager": {"manager": "id", "span": 3},
        "deputies": {"references": "id", "count": [0, 3]},
    },
}
LOCATIONS = {"Sales": "Lisbon", "IT": "Berlin", "HR": "Rome"}
People = dict[str, dict[str, Any]]


def people(day: int, *, count: int = 40, hires: int = 3, leavers: int = 2, movers: int = 2) -> People:
    """The people of the company by id, in their order."""
    found = list(
        Template.parse({**COMPANY, "count": count}).population(
            day, hires_per_day=hires, leavers_per_day=leavers, movers_per_day=movers
        )
    )
    by_id = {each["id"]: each for each in found}
    assert len(by_id) == len(found)
    return by_id


def own(person: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on other people or on the department."""
    return {"id": person["id"], "name": person["name"]}


sizes = {
    "count": st.integers(1, 40),
    "hires": st.integers(0, 5),
    "leavers": st.integers(0, 5),
    "movers": st.integers(0, 5),
}


@given(st.integers(1, 40), st.fixed_dictionaries(sizes))
def test_a_day_differs_from_the_day_before_by_hires_leavers_and_movers(
    day: int, size: dict[str, int]
) -> None:
    before, after = people(day - 1, **size), people(day, **size)
    gone, stayed = before.keys() - after.keys(), before.keys() & after.keys()
    first_new = 1000 + size["count"] + (day - 1) * size["hires"]
    hired = {f"E{number}" for number in range(first_new, first_new + size["hires"])}
    moved = {each for each in stayed if before[each]["department"] != after[each]["department"]}

    assert hired <= after.keys() - before.keys()
    assert all(each < f"E{first_new}" for each in after.keys() - before.keys() - hired)  # re-hired
    assert len(gone) == min(size["leavers"], len(before))
    assert len(moved) == min(size["movers"], len(stayed))
    assert {each: own(before[each]) for each in stayed} == {each: own(after[each]) for each in stayed}


@given(st.integers(0, 40), st.fixed_dictionaries(sizes))
def test_every_day_is_consistent(day: int, size: dict[str, int]) -> None:
    today = people(day, **size)
    assert list(today) == sorted(today)
    assert people(day, **size) == today
    for each in today.values():
        assert each["location"] == LOCATIONS[each["department"]]
        assert {*as_list(each.get("manager")), *each.get("deputies", [])} <= today.keys() - {each["id"]}


def test_the_first_day_has_all_objects() -> None:
    assert list(people(0).values()) == list(Template.parse(COMPANY).objects())


def test_every_tenth_leaver_comes_back_within_a_month_as_the_same_person() -> None:
    days = [people(day, count=200, hires=20, leavers=20, movers=0) for day in range(101)]
    left: dict[str, int] = {}
    absences = []
    for day in range(1, 101):
        before, after = days[day - 1], days[day]
        left |= dict.fromkeys(before.keys() - after.keys(), day)
        for each in left.keys() & (after.keys() - before.keys()):
            last = days[left[each] - 1][each]
            assert own(after[each]) == own(last)
            assert after[each]["department"] == last["department"]
            absences.append((left[each], day - left[each]))
    # All who return from the first 70 days, of 20 leavers each, are back on day 100.
    assert sum(day <= 70 for day, _ in absences) == 140
    assert {min(away for _, away in absences), max(away for _, away in absences)} == {2, 30}


def test_movers_need_another_value_to_move_to() -> None:
    made = Template.parse(COMPANY)
    for moving in ("name_", "location", "id"):
        with pytest.raises(
            ValueError, match=f"“{moving}” is not an attribute with a choice of several values"
        ):
            made.population(1, hires_per_day=0, leavers_per_day=0, movers_per_day=1, moving=moving)
