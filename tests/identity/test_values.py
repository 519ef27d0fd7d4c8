"""The values of attributes: how they are read for each kind, stored, converted and compared."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from identity.values import (
    LARGEST,
    BadValue,
    Kind,
    Match,
    as_list,
    canonical,
    converted,
    difference,
    folded,
    in_order,
    parse,
    parse_each,
    same,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXAMPLE = "6f0ad6a4-1b2c-4d3e-8f90-a1b2c3d4e5f6"


class TestParsing:
    @pytest.mark.parametrize(
        ("kind", "value", "stored"),
        [
            (Kind.TEXT, "Ada", "Ada"),
            (Kind.TEXT, " Ada ", " Ada "),
            (Kind.TEXT, "0042", "0042"),
            (Kind.TEXT, 42, "42"),
            (Kind.TEXT, True, "true"),
            (Kind.TEXT, "a\0b\ud800", "a\ufffdb\ufffd"),
            (Kind.REFERENCE, "cn=Ada,o=x", "cn=Ada,o=x"),
            (Kind.REFERENCE, 42, "42"),
            (Kind.INTEGER, 42, 42),
            (Kind.INTEGER, 0, 0),
            (Kind.INTEGER, " 0042 ", 42),
            (Kind.INTEGER, "-7", -7),
            (Kind.INTEGER, "+7", 7),
            (Kind.INTEGER, str(LARGEST), LARGEST),
            (Kind.INTEGER, -LARGEST, -LARGEST),
            (Kind.DECIMAL, "1.50", "1.5"),
            (Kind.DECIMAL, "100", "100"),
            (Kind.DECIMAL, "-0.0", "0"),
            (Kind.DECIMAL, "1e3", "1000"),
            (Kind.DECIMAL, ".5", "0.5"),
            (Kind.DECIMAL, 0.1, "0.1"),
            (Kind.DECIMAL, 7, "7"),
            (Kind.DECIMAL, Decimal("2.00"), "2"),
            (Kind.BOOLEAN, True, True),
            (Kind.BOOLEAN, False, False),
            (Kind.BOOLEAN, " TRUE ", True),
            (Kind.BOOLEAN, "Yes", True),
            (Kind.BOOLEAN, 1, True),
            (Kind.BOOLEAN, "0", False),
            (Kind.BOOLEAN, "n", False),
            (Kind.DATE, "2026-01-31", "2026-01-31"),
            (Kind.DATE, " 20260131 ", "2026-01-31"),
            (Kind.DATE, date(2026, 1, 31), "2026-01-31"),
            (Kind.DATETIME, "2026-01-31T09:00:00Z", "2026-01-31T09:00:00Z"),
            (Kind.DATETIME, "2026-01-31T09:00:00", "2026-01-31T09:00:00Z"),
            (Kind.DATETIME, "2026-01-31 09:00", "2026-01-31T09:00:00Z"),
            (Kind.DATETIME, "2026-01-31", "2026-01-31T00:00:00Z"),
            (Kind.DATETIME, "2026-01-31T01:00:00.5+02:00", "2026-01-30T23:00:00.500000Z"),
            (Kind.DATETIME, datetime(2026, 1, 31, 9, tzinfo=UTC), "2026-01-31T09:00:00Z"),
            (Kind.UUID, EXAMPLE, EXAMPLE),
            (Kind.UUID, f" {{{EXAMPLE.upper()}}} ", EXAMPLE),
            (Kind.UUID, UUID(EXAMPLE), EXAMPLE),
            (Kind.BINARY, b"ada", "YWRh"),
            (Kind.BINARY, " YWRh\n", "YWRh"),
        ],
    )
    def test_a_value_is_stored_in_one_form(self, kind: Kind, value: object, stored: object) -> None:
        found = parse(kind, value)
        assert found == stored
        assert type(found) is type(stored)

    @pytest.mark.parametrize("kind", Kind)
    @pytest.mark.parametrize("empty", [None, ""])
    def test_nothing_is_no_value(self, kind: Kind, empty: object) -> None:
        assert parse(kind, empty) is None

    @pytest.mark.parametrize("empty", [b"", "  "])
    def test_no_bytes_are_no_value(self, empty: object) -> None:
        assert parse(Kind.BINARY, empty) is None

    @pytest.mark.parametrize(
        ("kind", "value", "words"),
        [
            (Kind.TEXT, b"ada", "is not text"),
            (Kind.TEXT, float("nan"), "“nan” is not text"),
            (Kind.INTEGER, "1.0", "“1.0” is not a whole number"),
            (Kind.INTEGER, 1.0, "“1.0” is not a whole number"),
            (Kind.INTEGER, True, "“True” is not a whole number"),
            (Kind.INTEGER, "2026_01", "“2026_01” is not a whole number"),
            (Kind.INTEGER, "  ", "is not a whole number"),
            (Kind.INTEGER, str(LARGEST + 1), f"“{LARGEST + 1}” is too large for a whole number"),
            (Kind.INTEGER, -LARGEST - 1, "is too large for a whole number"),
            (Kind.INTEGER, "1" * 5_000, "“" + "1" * 60 + "…” is not a whole number"),
            (Kind.DECIMAL, "1,5", "“1,5” is not a decimal number"),
            (Kind.DECIMAL, "1_000.5", "“1_000.5” is not a decimal number"),
            (Kind.DECIMAL, "NaN", "“NaN” is not a decimal number"),
            (Kind.DECIMAL, "sNaN", "“sNaN” is not a decimal number"),
            (Kind.DECIMAL, "-Infinity", "is not a decimal number"),
            (Kind.DECIMAL, "1e999999999", "is not a decimal number"),
            (Kind.DECIMAL, "1e-101", "is not a decimal number"),
            (Kind.BOOLEAN, "maybe", "“maybe” is not yes or no (such as true, false, yes, no, 1 or 0)"),
            (Kind.BOOLEAN, 2, "“2” is not yes or no"),
            (Kind.DATE, "31.01.2026", "“31.01.2026” is not a date, such as 2026-01-31"),
            (Kind.DATE, "2026-02-30", "“2026-02-30” is not a date"),
            (Kind.DATE, "2026-01-31T09:00:00Z", "is not a date"),
            (Kind.DATETIME, "soon", "“soon” is not a time, such as 2026-01-31T09:00:00Z"),
            (Kind.DATETIME, "0001-01-01T00:00:00+14:00", "is not a time"),
            (Kind.UUID, EXAMPLE[:-1], "is not a UUID"),
            (Kind.UUID, 5, "“5” is not a UUID"),
            (Kind.BINARY, "YWR", "“YWR” is not base64"),
            (Kind.BINARY, "é", "“é” is not base64"),
            (Kind.BINARY, "YW Rh", "“YW Rh” is not base64"),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused(self, kind: Kind, value: object, words: str) -> None:
        with pytest.raises(BadValue) as raised:
            parse(kind, value)
        assert words in str(raised.value)

    @pytest.mark.parametrize("kind", [each for each in Kind if each not in (Kind.TEXT, Kind.REFERENCE)])
    def test_the_message_can_be_stored(self, kind: Kind) -> None:
        with pytest.raises(BadValue, match="“a\ufffdb\ufffd” is not"):
            parse(kind, "a\0b\ud800")

    @pytest.mark.parametrize("kind", Kind)
    @given(value=st.text() | st.integers(-(2**70), 2**70) | st.booleans() | st.floats() | st.binary())
    def test_what_is_stored_is_json_and_its_own_form(self, kind: Kind, value: object) -> None:
        try:
            stored = parse(kind, value)
        except BadValue as error:
            stored = None
            str(error).encode()
        assert stored != ""
        assert json.loads(canonical(stored)) == stored
        assert parse(kind, stored) == stored

    @given(
        st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**99), max_value=10**99, places=9)
    )
    def test_a_decimal_keeps_its_value(self, number: Decimal) -> None:
        assert Decimal(parse(Kind.DECIMAL, str(number))) == number

    @given(st.integers(-(5 * 10**16), 5 * 10**16), st.integers(-14 * 60, 14 * 60))
    def test_a_time_keeps_its_instant(self, microseconds: int, offset: int) -> None:
        at = EPOCH + timedelta(microseconds=microseconds)
        at = at.astimezone(timezone(timedelta(minutes=offset)))
        stored = parse(Kind.DATETIME, at.isoformat())
        assert datetime.fromisoformat(stored) == at
        assert stored.endswith("Z")

    @given(st.binary(min_size=1))
    def test_binary_values_keep_their_bytes(self, value: bytes) -> None:
        stored = parse(Kind.BINARY, value)
        assert base64.b64decode(stored) == value
        assert parse(Kind.BINARY, stored) == stored


class TestSeveralValues:
    @pytest.mark.parametrize(
        ("kind", "values", "stored"),
        [
            (Kind.TEXT, ["b", "a", "b"], ["a", "b"]),
            (Kind.TEXT, ["a"], ["a"]),
            (Kind.TEXT, ["a", None, ""], ["a"]),
            (Kind.TEXT, [], None),
            (Kind.TEXT, [None, ""], None),
            (Kind.INTEGER, ["10", 9, "9"], [9, 10]),
            (Kind.DECIMAL, ["1.0", "1.00"], ["1"]),
            (Kind.BOOLEAN, ["yes", "no", True], [False, True]),
        ],
    )
    def test_are_stored_in_order_without_duplicates(
        self, kind: Kind, values: list[object], stored: object
    ) -> None:
        assert parse_each(kind, values) == stored

    def test_one_that_does_not_fit_is_refused(self) -> None:
        with pytest.raises(BadValue, match="“x” is not a whole number"):
            parse_each(Kind.INTEGER, [1, "x"])

    @given(st.lists(st.text() | st.integers()).flatmap(lambda some: st.tuples(*[st.permutations(some)] * 2)))
    def test_their_order_does_not_matter(self, orders: tuple[list[Any], list[Any]]) -> None:
        one, other = orders
        assert in_order(one) == in_order(other)

    @pytest.mark.parametrize(
        ("value", "listed"), [(None, []), ("a", ["a"]), (0, [0]), (False, [False]), (["a", "b"], ["a", "b"])]
    )
    def test_every_value_can_be_taken_as_a_list(self, value: object, listed: list[object]) -> None:
        assert as_list(value) == listed


class TestConverting:
    @pytest.mark.parametrize(
        ("value", "source", "target", "expected"),
        [
            (None, Kind.TEXT, Kind.INTEGER, None),
            ("x", Kind.TEXT, Kind.TEXT, "x"),
            ("0042", Kind.TEXT, Kind.INTEGER, 42),
            (42, Kind.INTEGER, Kind.TEXT, "42"),
            (42, Kind.INTEGER, Kind.REFERENCE, "42"),
            (42, Kind.INTEGER, Kind.DECIMAL, "42"),
            ("42", Kind.DECIMAL, Kind.INTEGER, 42),
            (1, Kind.INTEGER, Kind.BOOLEAN, True),
            (True, Kind.BOOLEAN, Kind.TEXT, "true"),
            ("2026-01-31T23:59:59Z", Kind.DATETIME, Kind.DATE, "2026-01-31"),
            ("2026-01-31", Kind.DATE, Kind.DATETIME, "2026-01-31T00:00:00Z"),
            ("2026-01-31", Kind.DATE, Kind.TEXT, "2026-01-31"),
            (EXAMPLE.upper(), Kind.TEXT, Kind.UUID, EXAMPLE),
            ("cn=x", Kind.REFERENCE, Kind.TEXT, "cn=x"),
        ],
    )
    def test_a_value_becomes_one_of_another_kind(
        self, value: object, source: Kind, target: Kind, expected: object
    ) -> None:
        found = converted(value, source, target)
        assert found == expected
        assert type(found) is type(expected)

    @pytest.mark.parametrize(
        ("value", "source", "target"),
        [
            ("Ada", Kind.TEXT, Kind.INTEGER),
            ("1.5", Kind.DECIMAL, Kind.INTEGER),
            (2, Kind.INTEGER, Kind.BOOLEAN),
            (True, Kind.BOOLEAN, Kind.INTEGER),
            ("2026-01-31", Kind.DATE, Kind.UUID),
        ],
    )
    def test_or_is_refused(self, value: object, source: Kind, target: Kind) -> None:
        with pytest.raises(BadValue):
            converted(value, source, target)


class TestComparing:
    @pytest.mark.parametrize(
        ("one", "other", "match", "expected"),
        [
            ("a", "a", Match.EXACT, True),
            ("a", "A", Match.EXACT, False),
            (None, None, Match.EXACT, True),
            (None, "a", Match.EXACT, False),
            (["a", "b"], ["a", "b"], Match.EXACT, True),
            ("Ada ", "ada", Match.NOCASE, True),
            ("Straße", "STRASSE", Match.NOCASE, True),
            (5, "5", Match.NOCASE, True),
            ("a", "b", Match.NOCASE, False),
            (None, "a", Match.NOCASE, False),
            (["B", "a"], ["A", "b"], Match.NOCASE, True),
            (["a"], "A", Match.NOCASE, True),
            (["a", "b"], ["a"], Match.NOCASE, False),
            ("a", "b", Match.IGNORE, True),
            ("a", None, Match.IGNORE, True),
        ],
    )
    def test_whether_values_are_the_same(
        self, one: object, other: object, match: Match, expected: bool
    ) -> None:
        assert same(one, other, match) is expected
        assert same(other, one, match) is expected

    @pytest.mark.parametrize(
        ("value", "text"), [(" Ada\t", "ada"), ("ẞ", "ss"), (True, "true"), (7, "7"), (["A"], '["a"]')]
    )
    def test_folded_values_differ_in_more_than_their_case(self, value: object, text: str) -> None:
        assert folded(value) == text

    @pytest.mark.parametrize(
        ("was", "now", "changed"),
        [
            ({}, {}, {}),
            ({"a": 1}, {"a": 1}, {}),
            ({"a": 1}, {"a": 2}, {"a": [1, 2]}),
            ({"a": 1}, {}, {"a": [1, None]}),
            ({}, {"a": ["x"]}, {"a": [None, ["x"]]}),
            ({"a": None}, {}, {}),
            ({"a": 1, "b": 2}, {"b": 2, "c": 3}, {"a": [1, None], "c": [None, 3]}),
        ],
    )
    def test_what_changed(
        self, was: dict[str, Any], now: dict[str, Any], changed: dict[str, list[Any]]
    ) -> None:
        assert difference(was, now) == changed

    def test_equal_values_have_equal_text(self) -> None:
        assert canonical({"b": ["é", 1], "a": None}) == canonical({"a": None, "b": ["é", 1]})
        assert canonical({"b": ["é", 1], "a": None}) == '{"a":null,"b":["é",1]}'
