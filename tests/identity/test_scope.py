"""Scopes: which objects they hold for, what they say in English, and which trees are refused.

This file has case 20 of the design: each operator on each kind of attribute, with and without values.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identity.scope import ALL_OBJECTS, MAX_CONDITIONS, MAX_LEVELS, OPERATORS, ScopeError, scope
from identity.shape import AttributeShape
from identity.values import Kind, folded

# For each kind: a low, a middle and a high value in stored form, and the middle one as a person may write it.
VALUES: dict[Kind, tuple[Any, Any, Any, Any]] = {
    Kind.TEXT: ("HR", "Sales", "sales", "Sales"),
    Kind.INTEGER: (-2, 7, 10, " 7 "),
    Kind.DECIMAL: ("-1.5", "9.5", "10", "9.50"),
    Kind.BOOLEAN: (False, True, True, "yes"),
    Kind.DATE: ("0999-01-01", "2026-01-31", "2026-02-01", "20260131"),
    Kind.DATETIME: (
        "2026-01-31T09:00:00Z",
        "2026-01-31T09:00:00.500000Z",
        "2026-01-31T09:00:01Z",
        "2026-01-31T10:00:00.5+01:00",
    ),
    Kind.UUID: (
        "00000000-0000-0000-0000-000000000001",
        "6f0ad6a4-0000-4000-8000-000000000000",
        "f0000000-0000-0000-0000-000000000001",
        "{6F0AD6A4-0000-4000-8000-000000000000}",
    ),
    Kind.BINARY: ("AA==", "YWRh", "YWRi", "YWRh"),
    Kind.REFERENCE: ("cn=a", "cn=b", "cn=c", "cn=b"),
}
SHAPES = {f"{kind}": AttributeShape(f"{kind}", kind) for kind in Kind}
SHAPES |= {f"{kind}s": AttributeShape(f"{kind}s", kind, is_multi=True) for kind in Kind}
PEOPLE = {
    each.name: each
    for each in (
        AttributeShape("department"),
        AttributeShape("end date", Kind.DATE),
        AttributeShape("level", Kind.INTEGER),
        AttributeShape("is_active", Kind.BOOLEAN),
        AttributeShape("salary", Kind.DECIMAL),
        AttributeShape("seen", Kind.DATETIME),
        AttributeShape("groups", is_multi=True),
    )
}
SALES = {"attribute": "department", "operator": "equals", "value": "Sales"}
ENDING = {"attribute": "end date", "operator": "is_set"}
ORDERED = {Kind.TEXT, Kind.INTEGER, Kind.DECIMAL, Kind.DATE, Kind.DATETIME}
# What each operator says of the low, middle and high value when asked about the middle one, and of no value.
ON_SINGLE: dict[str, tuple[bool, bool, bool, bool]] = {
    "equals": (False, True, False, False),
    "not_equals": (True, False, True, True),
    "less": (True, False, False, False),
    "at_most": (True, True, False, False),
    "greater": (False, False, True, False),
    "at_least": (False, True, True, False),
    "in": (False, True, False, False),
    "is_set": (True, True, True, False),
    "is_empty": (False, False, False, True),
}
# The same of the lists [low], [middle], [low, middle] and of no list.
ON_MULTI: dict[str, tuple[bool, bool, bool, bool]] = {
    "equals": (False, True, False, False),
    "not_equals": (True, False, True, True),
    "includes": (False, True, True, False),
    "is_set": (True, True, True, False),
    "is_empty": (False, False, False, True),
}
OF_ORDER = {"less", "at_most", "greater", "at_least"}
OF_TEXT = ["equals_nocase", "starts_with", "ends_with", "contains"]


def condition(attribute: str, operator: str, value: object = None) -> dict[str, object]:
    return {"attribute": attribute, "operator": operator, "value": value}


def holds(tree: object, **attributes: Any) -> bool:
    return scope(tree, PEOPLE).holds(attributes)


def refusal(tree: object) -> str:
    with pytest.raises(ScopeError) as raised:
        scope(tree, PEOPLE)
    return str(raised.value)


class TestMatrix:
    @pytest.mark.parametrize("kind", Kind)
    @pytest.mark.parametrize("operator", ON_SINGLE)
    def test_on_one_value(self, operator: str, kind: Kind) -> None:
        low, middle, high, written = VALUES[kind]
        value = {"in": [written, written], "is_set": None, "is_empty": None}.get(operator, written)
        tree = condition(kind, operator, value)
        if operator in OF_ORDER and kind not in ORDERED:
            with pytest.raises(ScopeError, match=rf"^operator: {operator} does not fit “{kind}” \({kind}\)"):
                scope(tree, SHAPES)
            return
        found = scope(tree, SHAPES)
        at_low, at_middle, at_high, at_none = ON_SINGLE[operator]
        assert found.reads == {kind}
        assert found.holds({kind: low}) is at_low
        assert found.holds({kind: middle}) is at_middle
        assert found.holds({kind: high}) is (at_high if high != middle else at_middle)
        assert found.holds({kind: None}) is at_none
        assert found.holds({}) is at_none

    @pytest.mark.parametrize("kind", Kind)
    @pytest.mark.parametrize("operator", ON_MULTI)
    def test_on_several_values(self, operator: str, kind: Kind) -> None:
        low, middle, _, written = VALUES[kind]
        value = {"includes": written, "is_set": None, "is_empty": None}.get(operator, [written, written])
        found = scope(condition(f"{kind}s", operator, value), SHAPES)
        at_low, at_middle, at_both, at_none = ON_MULTI[operator]
        assert found.holds({f"{kind}s": [low]}) is at_low
        assert found.holds({f"{kind}s": [middle]}) is at_middle
        assert found.holds({f"{kind}s": [low, middle]}) is at_both
        assert found.holds({}) is at_none

    @pytest.mark.parametrize("kind", Kind)
    @pytest.mark.parametrize("operator", OF_TEXT)
    def test_parts_are_compared_only_in_text(self, operator: str, kind: Kind) -> None:
        tree = condition(kind, operator, VALUES[kind][-1])
        if kind is Kind.TEXT:
            assert scope(tree, SHAPES).holds({"text": "Sales"})
            assert not scope(tree, SHAPES).holds({})
        else:
            with pytest.raises(ScopeError, match=rf"^operator: {operator} does not fit “{kind}” \({kind}\)"):
                scope(tree, SHAPES)

    @pytest.mark.parametrize("operator", sorted(OPERATORS.keys() - ON_MULTI.keys()))
    def test_on_several_values_some_do_not_fit(self, operator: str) -> None:
        words = (
            f"operator: {operator} does not fit “groups” (text, several values); "
            "choose one of: equals, not_equals, includes, is_set, is_empty"
        )
        assert refusal(condition("groups", operator, "x")) == words

    def test_includes_fits_only_several_values(self) -> None:
        assert "operator: includes does not fit “level” (integer)" in refusal(
            condition("level", "includes", 1)
        )

    def test_these_are_all_operators(self) -> None:
        assert OPERATORS.keys() == {*ON_SINGLE, *ON_MULTI, *OF_TEXT}


class TestText:
    @pytest.mark.parametrize(
        ("operator", "value", "held", "expected"),
        [
            ("equals", "Sales", "sales", False),
            ("equals", "Sales", "Sales ", False),
            ("equals_nocase", "Sales", "SALES", True),
            ("equals_nocase", "Straße", "STRASSE", True),
            ("equals_nocase", "Sales", "Sale", False),
            ("starts_with", "Sa", "Sales", True),
            ("starts_with", "sa", "Sales", False),
            ("starts_with", "les", "Sales", False),
            ("ends_with", "es", "Sales", True),
            ("ends_with", "Sal", "Sales", False),
            ("contains", "ale", "Sales", True),
            ("contains", "ALE", "Sales", False),
            ("contains", ".*", "Sales", False),
            ("less", "b", "a", True),
            ("less", "a", "B", True),
            ("less", "10", "9", False),
            ("greater", "z", "ä", True),
        ],
    )
    def test_is_compared_exactly_and_by_code_point(
        self, operator: str, value: str, held: str, expected: bool
    ) -> None:
        assert holds(condition("department", operator, value), department=held) is expected

    @pytest.mark.parametrize(
        ("held", "expected"), [("Sales", True), ("HR", True), ("sales", False), (None, False)]
    )
    def test_in_has_several_values(self, held: str | None, expected: bool) -> None:
        assert holds(condition("department", "in", ["HR", "Sales"]), department=held) is expected

    @pytest.mark.parametrize("value", [["b", "a"], ["a", "b", "a"]])
    def test_several_values_are_compared_as_sets(self, value: list[str]) -> None:
        assert holds(condition("groups", "equals", value), groups=["a", "b"])
        assert not holds(condition("groups", "not_equals", value), groups=["a", "b"])
        assert not holds(condition("groups", "equals", value), groups=["a", "b", "c"])

    def test_includes_compares_whole_values(self) -> None:
        assert not holds(condition("groups", "includes", "a"), groups=["ab"])


class TestTrees:
    @pytest.mark.parametrize("tree", [{}, None])
    def test_without_conditions_a_scope_holds_for_all(self, tree: object) -> None:
        found = scope(tree, PEOPLE)
        assert found.holds({})
        assert found.holds({"department": "Sales"})
        assert (found.text, found.reads) == (ALL_OBJECTS, frozenset())

    @pytest.mark.parametrize(
        ("tree", "expected"),
        [
            # For objects that are neither, in sales, ending, and both.
            (SALES, [False, True, False, True]),
            ({"not": SALES}, [True, False, True, False]),
            ({"not": {"not": SALES}}, [False, True, False, True]),
            ({"all": [SALES]}, [False, True, False, True]),
            ({"any": [SALES]}, [False, True, False, True]),
            ({"all": [SALES, ENDING]}, [False, False, False, True]),
            ({"any": [SALES, ENDING]}, [False, True, True, True]),
            ({"all": [SALES, {"not": ENDING}]}, [False, True, False, False]),
            ({"not": {"all": [SALES, ENDING]}}, [True, True, True, False]),
            ({"not": {"any": [SALES, ENDING]}}, [True, False, False, False]),
            ({"any": [{"all": [SALES, ENDING]}, {"not": SALES}]}, [True, False, True, True]),
        ],
    )
    def test_all_any_and_not(self, tree: object, expected: list[bool]) -> None:
        found = scope(tree, PEOPLE)
        ended = {"end date": "2026-01-31"}
        objects: list[dict[str, Any]] = [{}, {"department": "Sales"}, ended, {"department": "Sales", **ended}]
        assert [found.holds(each) for each in objects] == expected

    def test_not_is_plain_logic_also_without_a_value(self) -> None:
        assert holds({"not": SALES})
        assert holds({"not": condition("level", "less", 5)})
        assert not holds({"not": condition("level", "not_equals", 5)})

    def test_a_scope_knows_what_it_reads(self) -> None:
        tree = {"any": [{"all": [SALES, {"not": ENDING}]}, SALES]}
        assert scope(tree, PEOPLE).reads == {"department", "end date"}

    @pytest.mark.parametrize(
        ("tree", "held"),
        [
            (condition("level", "less", 5), "abc"),
            (condition("salary", "less", 5), "abc"),
            (condition("seen", "less", "2026-01-31"), True),
            (condition("department", "starts_with", "a"), 5),
            (condition("department", "in", ["a"]), ["a"]),
            (condition("groups", "includes", "a"), "abc"),
        ],
    )
    def test_a_value_of_another_kind_decides_nothing(self, tree: dict[str, Any], held: object) -> None:
        """An object has such values after a change of the kind, until the next import."""
        with pytest.raises(ScopeError, match=r": the value .* is not of the kind .*; run a full import"):
            scope(tree, PEOPLE).holds({tree["attribute"]: held})


class TestEnglish:
    @pytest.mark.parametrize(
        ("tree", "text"),
        [
            ({"all": [SALES, {"not": ENDING}]}, "department is Sales and not (end date is set)"),
            (
                {"all": [SALES, {"any": [SALES, {"all": [ENDING, SALES]}]}]},
                "department is Sales and (department is Sales or (end date is set and department is Sales))",
            ),
            ({"not": {"any": [SALES, ENDING]}}, "not (department is Sales or end date is set)"),
            ({"all": [{"any": [SALES]}]}, "department is Sales"),
            (condition("department", "not_equals", "Sales EMEA"), "department is not “Sales EMEA”"),
            (condition("department", "equals_nocase", "x"), "department is (ignoring case) x"),
            (condition("department", "starts_with", " "), "department starts with “ ”"),
            (condition("department", "ends_with", "x"), "department ends with x"),
            (condition("department", "contains", "x"), "department contains x"),
            (condition("department", "in", ["b c", "a"]), "department is one of a, “b c”"),
            (condition("groups", "includes", "a"), "groups includes a"),
            (condition("groups", "equals", ["b", "a"]), "groups is a, b"),
            (condition("is_active", "equals", "yes"), "is_active is true"),
            (condition("level", "less", 5), "level is less than 5"),
            (condition("level", "at_most", 5), "level is at most 5"),
            (condition("level", "greater", 5), "level is greater than 5"),
            (condition("level", "at_least", 5), "level is at least 5"),
            (condition("end date", "less", "2026-01-31"), "end date is before 2026-01-31"),
            (condition("end date", "at_most", "2026-01-31"), "end date is not after 2026-01-31"),
            (condition("seen", "greater", "2026-01-31"), "seen is after 2026-01-31T00:00:00Z"),
            (condition("seen", "at_least", "2026-01-31"), "seen is not before 2026-01-31T00:00:00Z"),
            (condition("end date", "is_empty"), "end date is empty"),
        ],
    )
    def test_says_the_same_as_the_tree(self, tree: object, text: str) -> None:
        assert scope(tree, PEOPLE).text == text


class TestRefusals:
    @pytest.mark.parametrize(
        ("tree", "words"),
        [
            ([], "scope: must be an object, such as {"),
            ("department", "scope: must be an object, such as {"),
            ({"every": [SALES]}, "scope: must have either all, any, not, or attribute, operator and value"),
            ({"all": [SALES], "any": [SALES]}, "scope: must have either all, any, not, or attribute"),
            ({"not": SALES, "all": [SALES]}, "scope: must have either all, any, not, or attribute"),
            ({"all": []}, "all: must be a list with at least one condition"),
            ({"any": SALES}, "any: must be a list with at least one condition"),
            ({"all": [SALES, {}]}, "all[1]: must have either all, any, not, or attribute"),
            ({"all": [None]}, "all[0]: must be an object"),
            ({"not": None}, "not: must be an object"),
            ({"not": {"any": [SALES, {"all": [SALES, 5]}]}}, "not.any[1].all[1]: must be an object"),
            (
                {**SALES, "all": [SALES]},
                "all: is unknown; a condition has an attribute, an operator and a val",
            ),
            ({"all": [{**SALES, "nocase": True}]}, "all[0].nocase: is unknown"),
            (
                condition("depratment", "is_set"),
                "attribute: unknown attribute “depratment”; did you mean depar",
            ),
            ({"attribute": 5}, "attribute: unknown attribute “5”; choose one of: "),
            ({"attribute": "level"}, "operator: unknown operator “”; choose one of: equals, not_equals"),
            (
                {"all": [SALES, condition("level", "eqals", 5)]},
                "all[1].operator: unknown operator “eqals”; did",
            ),
            (condition("level", "equals"), "value: is empty; to find objects without a value, use is_empty"),
            (condition("department", "starts_with", ""), "value: is empty"),
            (condition("level", "equals", "x"), "value: “x” is not a whole number"),
            (condition("level", "in", [1, "x"]), "value: “x” is not a whole number"),
            (condition("end date", "less", "31.01.2026"), "value: “31.01.2026” is not a date"),
            (condition("is_active", "equals", "maybe"), "value: “maybe” is not yes or no"),
            (condition("department", "equals", ["a"]), "value: must be a single value"),
            (condition("department", "equals", {"a": 1}), "value: must be text, a number, true or false"),
            (condition("department", "in", "a"), "value: must be a list of values"),
            (condition("department", "in", []), "value: is empty"),
            (condition("department", "in", ["a", None]), "value: is empty"),
            (condition("department", "in", [["a"]]), "value: must be text, a number, true or false"),
            (condition("groups", "equals", "a"), "value: must be a list of values"),
            (condition("groups", "includes", ["a"]), "value: must be a single value"),
            (condition("department", "is_set", "x"), "value: is_set takes no value; remove it"),
            (condition("department", "is_empty", False), "value: is_empty takes no value; remove it"),
        ],
    )
    def test_name_the_wrong_part(self, tree: object, words: str) -> None:
        assert refusal(tree).startswith(words)

    def test_an_object_type_may_have_no_attributes(self) -> None:
        with pytest.raises(ScopeError, match="the object type has no attributes"):
            scope(SALES, {})

    def test_of_levels(self) -> None:
        deepest: dict[str, object] = {**SALES}
        for _ in range(MAX_LEVELS - 1):
            deepest = {"not": deepest}
        assert holds(deepest) is True
        assert "nested too deeply; at most 20 levels are allowed" in refusal({"all": [SALES, deepest]})
        for _ in range(5_000):
            deepest = {"not": deepest}
        assert "nested too deeply" in refusal(deepest)

    def test_of_conditions(self) -> None:
        assert holds({"any": [SALES] * MAX_CONDITIONS}, department="Sales")
        words = "all[1].any[1]: at most 1,000 conditions are allowed"
        assert refusal({"all": [{"any": [SALES] * (MAX_CONDITIONS - 1)}, {"any": [SALES] * 2}]}) == words


# Any tree, against a naive reading of the same tree


def naive(tree: dict[str, Any], attributes: dict[str, Any]) -> bool:
    match tree:
        case {"all": parts}:
            return all(naive(part, attributes) for part in parts)
        case {"any": parts}:
            return any(naive(part, attributes) for part in parts)
        case {"not": part}:
            return not naive(part, attributes)
    held: Any = attributes.get(tree["attribute"])
    operator, value = tree["operator"], tree.get("value")
    if operator in ("is_empty", "is_set"):
        return (held is None) is (operator == "is_empty")
    if held is None:
        return bool(operator == "not_equals")
    meaning = _meaning(PEOPLE[tree["attribute"]])
    match operator:
        case "in":
            return any(meaning(held) == meaning(each) for each in value or [])
        case "includes":
            return value in held
        case "equals_nocase":
            return folded(held) == folded(value)
    return _COMPARED[operator](meaning(held), meaning(value))


def _meaning(shape: AttributeShape) -> Callable[[Any], Any]:
    if shape.is_multi:
        return frozenset
    if shape.kind is Kind.DATETIME:
        return datetime.fromisoformat
    return Decimal if shape.kind is Kind.DECIMAL else lambda value: value


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "equals": lambda one, other: one == other,
    "not_equals": lambda one, other: one != other,
    "less": lambda one, other: one < other,
    "at_most": lambda one, other: one <= other,
    "greater": lambda one, other: one > other,
    "at_least": lambda one, other: one >= other,
    "starts_with": lambda one, other: one[: len(other)] == other,
    "ends_with": lambda one, other: one[-len(other) :] == other,
    "contains": lambda one, other: one.find(other) >= 0,
}
# Few values, so that they meet; in stored form.
_SOME: dict[str, list[Any]] = {
    "department": ["Sales", "sales", "a", "al", "ß", "SS"],
    "end date": ["2026-01-31", "2026-02-01", "0999-12-31"],
    "level": [-1, 0, 1, 10],
    "is_active": [True, False],
    "salary": ["-1", "0.5", "9", "10"],
    "seen": [VALUES[Kind.DATETIME][0], VALUES[Kind.DATETIME][1], VALUES[Kind.DATETIME][2]],
    "groups": ["a", "b", "c"],
}


def _conditions(name: str) -> st.SearchStrategy[dict[str, Any]]:
    shape, one = PEOPLE[name], st.sampled_from(_SOME[name])
    fitting = [each.name for each in OPERATORS.values() if each.fits(shape)]

    def with_value(operator: str) -> st.SearchStrategy[dict[str, Any]]:
        if operator in ("is_set", "is_empty"):
            return st.just({"attribute": name, "operator": operator})
        takes_list = operator == "in" or (shape.is_multi and operator != "includes")
        value = st.lists(one, min_size=1, max_size=3) if takes_list else one
        return st.builds(condition, st.just(name), st.just(operator), value)

    return st.sampled_from(fitting).flatmap(with_value)


_TREES = st.recursive(
    st.sampled_from(sorted(PEOPLE)).flatmap(_conditions),
    lambda parts: st.one_of(
        st.builds(lambda several: {"all": several}, st.lists(parts, min_size=1, max_size=3)),
        st.builds(lambda several: {"any": several}, st.lists(parts, min_size=1, max_size=3)),
        st.builds(lambda part: {"not": part}, parts),
    ),
    max_leaves=8,
)
_PERSONS = st.fixed_dictionaries(
    {},
    optional={
        name: st.lists(st.sampled_from(some), min_size=1, unique=True).map(sorted)
        if PEOPLE[name].is_multi
        else st.sampled_from(some)
        for name, some in _SOME.items()
    },
)


class TestAnyTree:
    @given(_TREES, _PERSONS)
    def test_holds_as_a_naive_reader_expects(self, tree: dict[str, Any], person: dict[str, Any]) -> None:
        assert scope(tree, PEOPLE).holds(person) is naive(tree, person)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _TREES,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["all", "any", "not", "attribute", "operator", "value"]), inner
                )
            ),
            max_leaves=10,
        )
    )
    def test_other_json_is_refused_or_compiled(self, tree: object) -> None:
        try:
            found = scope(tree, PEOPLE)
        except ScopeError as error:
            message = str(error)
        else:
            message = found.text
        assert message
