"""The expressions of flows: what can be written, what they compute, and what is refused with which words."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from identity.expressions import (
    FUNCTIONS,
    LONGEST_EXPRESSION,
    LONGEST_RESULT,
    MAX_LEVELS,
    ExpressionError,
    compiled,
)
from identity.values import LARGEST

ADA: dict[str, Any] = {
    "first_name": "Ada",
    "last_name": "Lovelace",
    "department": "Sales",
    "title": "Dr",
    "level": 7,
    "is_active": True,
    "groups": ["admins", "staff"],
    "birth_date": "1815-12-10",
    "Employee No": "0042",
    "straße": "Hauptstraße 5",
    "class": "A",
    "a.b": "dotted",
}
NAMES = {*ADA, "nickname", "middle_name", "end_date", "mails"}


def value(text: str, **attributes: Any) -> Any:
    """The value of an expression for Ada, with other attributes where these are given."""
    return compiled(text, NAMES).value({**ADA, **attributes})


def refusal(text: str) -> str:
    with pytest.raises(ExpressionError) as raised:
        compiled(text, NAMES)
    assert len(str(raised.value)) < 500
    return str(raised.value)


def failure(text: str, **attributes: Any) -> str:
    expression = compiled(text, NAMES)
    with pytest.raises(ExpressionError) as raised:
        expression.value({**ADA, **attributes})
    assert len(str(raised.value)) < 500
    return str(raised.value)


class TestAttributes:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("first_name", "Ada"),
            ("  first_name\n", "Ada"),
            ("level", 7),
            ("is_active", True),
            ("groups", ["admins", "staff"]),
            ("nickname", None),
            ("straße", "Hauptstraße 5"),
            ('attribute("Employee No")', "0042"),
            ("attribute('a.b')", "dotted"),
            ('attribute("class")', "A"),
            ('attribute("first_name")', "Ada"),
        ],
    )
    def test_each_has_the_value_of_the_object(self, text: str, expected: object) -> None:
        assert value(text) == expected

    def test_the_expression_knows_what_it_reads(self) -> None:
        expression = compiled('coalesce(nickname, first_name + attribute("Employee No"), nickname)', NAMES)
        assert expression.reads == {"nickname", "first_name", "Employee No"}
        assert compiled('"constant"', NAMES).reads == frozenset()

    def test_the_expression_keeps_its_text(self) -> None:
        assert compiled(' lower( first_name )\n+ "x" ', NAMES).text == 'lower( first_name )\n+ "x"'

    def test_a_name_is_an_attribute_unless_it_is_called(self) -> None:
        assert value("title") == "Dr"
        assert value("title(lower(title))") == "Dr"
        assert compiled("title(first_name)", NAMES).reads == {"first_name"}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("fist_name", "character 1: unknown attribute “fist_name”; did you mean first_name?"),
            ("First_Name", "character 1: unknown attribute “First_Name”; did you mean first_name?"),
            ('"ß€😀" + fist_name', "character 9: unknown attribute “fist_name”"),
            ('first_name +\n  attribute("Employee Nr")', "character 16: unknown attribute “Employee Nr”"),
            ("zzz", "unknown attribute “zzz”; choose one of: "),
            ("attribute(first_name)", 'must be text in quotes; write attribute("Employee No")'),
            ("first_name Employee", 'names with spaces are attribute("Employee No")'),
            ("a.b", 'character 2: a dot cannot be used; decimal numbers are text ("1.5"), names with a dot'),
            ("class", '“class” cannot be used; an attribute with this name is written attribute("class")'),
        ],
    )
    def test_an_unknown_one_is_refused(self, text: str, words: str) -> None:
        assert words in refusal(text)

    def test_an_object_type_may_have_none(self) -> None:
        assert compiled('"constant"', ()).value({}) == "constant"
        with pytest.raises(ExpressionError, match="the object type has no attributes"):
            compiled("name", ())


class TestConstants:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('"Sales"', "Sales"),
            ("'Sales'", "Sales"),
            (r'"a\"b\\c\td\n"', 'a"b\\c\td\n'),
            ('"“curly” {braces} #hash %d é"', "“curly” {braces} #hash %d é"),
            ("0", 0),
            ("-42", -42),
            (str(LARGEST), LARGEST),
            ("True", True),
            ("False", False),
            ("None", None),
            ('""', None),
            ('["a", 1, True, None, ""]', ["a", 1, True]),
            ("[]", None),
            ("[None, nickname]", None),
            ("[last_name, first_name]", ["Lovelace", "Ada"]),
        ],
    )
    def test_texts_whole_numbers_true_false_none_and_lists(self, text: str, expected: object) -> None:
        found = value(text)
        assert found == expected
        assert type(found) is type(expected)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("1.5", 'character 2: a dot cannot be used; decimal numbers are text ("1.5")'),
            ("007", "“007” is not a name or a whole number"),
            ("0x1F", "“0x1F” is not a name or a whole number"),
            ("1_000", "“1_000” is not a name or a whole number"),
            ("1e9", "“1e9” is not a name or a whole number"),
            ("3j", "“3j” is not a name or a whole number"),
            ("٣", "“٣” is not a name or a whole number"),
            ("1if True else 2", "“1if” is not a name or a whole number"),
            (str(LARGEST + 1), f"{LARGEST + 1} is too large; the largest number is {LARGEST}"),
            ("9" * 3_000, "99… is too large"),
            ('"open', "character 1: the quote that starts here is not closed on its line"),
            ('first_name + "a\nb"', "character 14: the quote that starts here is not closed on its line"),
            (r'"\d"', "write a backslash only before \\ \" ' n r t"),
            (r'"\u0041"', "write a backslash only before \\ \" ' n r t"),
            ('"a" "b"', "character 5: put a comma or + between two texts"),
            ('"""a"""', "character 3: put a comma or + between two texts"),
            ("“Sales”", "text in straight quotes"),
            ('r"a"', "character 1: “r” cannot be written directly before a quote"),
            ('b"a"', "character 1: “b” cannot be written directly before a quote"),
            ('f"{first_name}"', "character 1: “f” cannot be written directly before a quote"),
            ('("a", "b")', "character 1: write several values as a list: [one, two]"),
        ],
    )
    def test_others_are_refused(self, text: str, words: str) -> None:
        assert words in refusal(text)

    def test_a_list_contains_no_lists(self) -> None:
        assert failure('["a", groups]') == "character 1: a list cannot contain another list"


class TestMissingValues:
    """What is computed from a missing value is missing. The exceptions are told by other classes."""

    @pytest.mark.parametrize(
        "text",
        [
            "nickname",
            'nickname + "x"',
            '"x" + nickname',
            "level + nickname",
            "nickname - level",
            "level - nickname",
            "-nickname",
            "nickname < level",
            "level >= nickname",
            "lower(nickname)",
            "ascii(nickname)",
            "title(nickname)",
            "trim(nickname)",
            "upper(nickname)",
            "dn(nickname)",
            "text(nickname)",
            "number(nickname)",
            "length(nickname)",
            "first(mails)",
            "substr(nickname, 1)",
            "substr(first_name, nickname)",
            "substr(first_name, 1, nickname)",
            'replace(nickname, "a", "b")',
            'replace(first_name, nickname, "b")',
            'replace(first_name, "a", nickname)',
            'split(nickname, ",")',
            "split(first_name, nickname)",
            'contains(nickname, "a")',
            "starts_with(first_name, nickname)",
            'ends_with(nickname, "a")',
            'date(nickname, "%d.%m.%Y")',
            'format_date(nickname, "%d.%m.%Y")',
            "join(nickname, first_name, last_name)",
            "join(nickname, nickname)",
        ],
    )
    def test_have_no_result(self, text: str) -> None:
        assert value(text) is None

    @pytest.mark.parametrize(
        "text",
        [
            'trim("  ")',
            "substr(first_name, 9)",
            "substr(first_name, 1, 0)",
            'replace(first_name, "Ada", "")',
            'split(" ; ;", ";")',
            'ascii("日本")',
            '"" + ""',
            'coalesce("", nickname)',
            'join("-", "", nickname, mails)',
            '"" if level > 5 else "x"',
        ],
    )
    def test_empty_text_counts_as_missing(self, text: str) -> None:
        assert value(text) is None

    def test_written_empty_text_can_be_appended(self) -> None:
        text = 'first_name + (" " + middle_name if middle_name is not None else "") + " " + last_name'
        assert value(text) == "Ada Lovelace"
        assert value(text, middle_name="King") == "Ada King Lovelace"


class TestArithmetic:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('lower(first_name) + "." + lower(last_name)', "ada.lovelace"),
            ("level + 1", 8),
            ("level - 10 - 1", -4),
            ("level - (10 - 1)", -2),
            ("-level", -7),
            ("--level", 7),
        ],
    )
    def test_results(self, text: str, expected: object) -> None:
        assert value(text) == expected

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (
                "first_name + level",
                "character 14: + needs two texts or two whole numbers (see text(…) and number(…)), "
                "not text and a whole number",
            ),
            ("is_active + 1", "not true or false and a whole number"),
            (
                "groups + groups",
                "+ needs two texts or two whole numbers (see text(…) and number(…)), not a l",
            ),
            ("first_name - last_name", "character 14: - needs two whole numbers, not text and text"),
            ("-first_name", "character 2: - needs two whole numbers"),
            (f"{LARGEST} + 1", f"the result is too large; the largest whole number is {LARGEST}"),
            (f"-{LARGEST} - 1", "the result is too large"),
        ],
    )
    def test_values_that_do_not_fit(self, text: str, words: str) -> None:
        assert words in failure(text)


class TestComparisons:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('department == "Sales"', True),
            ('department == "sales"', False),
            ('department != "Sales"', False),
            ("level == 7", True),
            ("is_active == True", True),
            ('groups == ["admins", "staff"]', True),
            ("nickname == None", True),
            ("None == nickname", True),
            ("nickname is None", True),
            ("first_name is None", False),
            ("first_name != None", True),
            ("first_name is not None", True),
            ("nickname is not None", False),
            ("None is None", True),
            ('nickname == ""', True),
            ('first_name != ""', True),
            ('nickname == "x"', False),
            ('nickname != "x"', True),
            ("nickname == end_date", True),
            ("level < 8", True),
            ("level <= 7", True),
            ("level > 7", False),
            ("level >= 7", True),
            ("10 > 9", True),
            ('"10" > "9"', False),
            ('birth_date < "1900-01-01"', True),
        ],
    )
    def test_equality_and_order(self, text: str, expected: bool) -> None:
        assert value(text) is expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('"staff" in groups', True),
            ('"guests" in groups', False),
            ('"guests" not in groups', True),
            ('"staff" not in groups', False),
            ('department in ["Sales", "HR"]', True),
            ("department in []", False),
            ('nickname in ["Sales"]', False),
            ('nickname not in ["Sales"]', True),
            ('"staff" in mails', False),
            ('"staff" not in mails', True),
        ],
    )
    def test_membership_where_a_missing_list_contains_nothing(self, text: str, expected: bool) -> None:
        assert value(text) is expected

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("first_name < level", "character 14: < and > need two texts or two whole numbers, not text"),
            ("is_active < True", "< and > need two texts or two whole numbers, not true or false and true"),
            ("groups >= groups", "not a list and a list"),
            ('level == "7"', "character 10: a whole number never equals text; use text(…), number(…) or in"),
            ("is_active == 1", "true or false never equals a whole number"),
            ('groups != "staff"', "a list never equals text"),
            ('"A" in first_name', "character 8: “in” needs a list on its right side, not text; to search in"),
        ],
    )
    def test_values_that_cannot_be_compared(self, text: str, words: str) -> None:
        assert words in failure(text)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("1 < level < 9", "character 1: write comparisons one by one: a < b and b < c"),
            ('department is "Sales"', "character 15: only None can follow “is” and “is not”; write == or !="),
            ("level is not 7", "only None can follow “is” and “is not”; write == or !="),
            ('department = "Sales"', "character 12: = cannot be used; write == to compare"),
            ("level <> 7", "character 7: invalid syntax"),
        ],
    )
    def test_comparisons_that_are_not_written_so(self, text: str, words: str) -> None:
        assert words in refusal(text)


class TestConditions:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("True and True", True),
            ("True and False", False),
            ("True and None", False),
            ("is_active and level > 5 and nickname", False),
            ("False or True", True),
            ("None or False", False),
            ("nickname or is_active", True),
            ("not True", False),
            ("not False", True),
            ("not nickname", True),
            ("not nickname > 5", True),
            ("True or False and False", True),
            ("(True or False) and False", False),
        ],
    )
    def test_and_or_not_take_a_missing_value_as_false(self, text: str, expected: bool) -> None:
        assert value(text) is expected

    @pytest.mark.parametrize(
        ("text", "end_date", "expected"),
        [
            ('"active" if end_date == None else "leaving"', None, "active"),
            ('"active" if end_date == None else "leaving"', "2026-01-31", "leaving"),
            ('"leaving" if end_date > "2026" else "staying"', None, "staying"),
            ('"x" if end_date < "2020" else "y" if end_date < "2030" else "z"', "2026-01-31", "y"),
            ("end_date if is_active else 1", None, None),
        ],
    )
    def test_a_choice(self, text: str, end_date: str | None, expected: object) -> None:
        assert value(text, end_date=end_date) == expected

    @pytest.mark.parametrize(
        "text",
        ["True or first_name + 1 == 2", "False and first_name + 1 == 2", "1 if True else first_name + 1"],
    )
    def test_what_does_not_matter_is_not_evaluated(self, text: str) -> None:
        assert value(text) in (True, False, 1)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('department == "Sales" or "HR"', "character 26: a condition must be true or false, not text"),
            (
                "not first_name",
                "character 5: a condition must be true or false, not text; write a comparison",
            ),
            ("1 if level else 2", "character 6: a condition must be true or false, not a whole number"),
            ("groups and True", "character 1: a condition must be true or false, not a list"),
        ],
    )
    def test_only_true_false_and_missing_values_are_conditions(self, text: str, words: str) -> None:
        assert words in failure(text, department="HR")

    def test_a_choice_needs_an_else(self) -> None:
        assert "expected 'else' after 'if' expression" in refusal("1 if is_active")


class TestFunctions:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('lower("ÄÖ Straße")', "äö straße"),
            ('upper("äö ß")', "ÄÖ SS"),
            ('title("ada o\'neil-king")', "Ada O'Neil-King"),
            ('trim(" \t Ada  King \n")'.replace("\n", r"\n"), "Ada  King"),
            ("substr(first_name, 1)", "Ada"),
            ("substr(first_name, 1, 1)", "A"),
            ("substr(first_name, 2)", "da"),
            ("substr(first_name, 2, 1)", "d"),
            ("substr(first_name, 2, 99)", "da"),
            ('replace("+49 30 123", " ", "")', "+4930123"),
            ('replace("aaa", "aa", "b")', "ba"),
            ('replace("a.b", ".", "-")', "a-b"),
            ('split("a; b;;a;", ";")', ["a", "b", "a"]),
            ('split("abc", ";")', ["abc"]),
            ("first(groups)", "admins"),
            ('first(split("a b", " "))', "a"),
            ("length(first_name)", 3),
            ("length(groups)", 2),
            ('length("é")', 1),
            ('contains(first_name, "da")', True),
            ('contains(first_name, "DA")', False),
            ('starts_with(first_name, "Ad")', True),
            ('starts_with(first_name, "da")', False),
            ('ends_with(first_name, "da")', True),
            ('ends_with(first_name, "Ad")', False),
            ("text(level)", "7"),
            ("text(is_active)", "true"),
            ("text(first_name)", "Ada"),
            ('number(" 0042 ")', 42),
            ('number("-7")', -7),
            ('number("0")', 0),
            ("number(level)", 7),
            ('text(number(attribute("Employee No")) + 1)', "43"),
        ],
    )
    def test_of_text_numbers_and_lists(self, text: str, expected: object) -> None:
        found = value(text)
        assert found == expected
        assert type(found) is type(expected)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("coalesce(nickname, first_name)", "Ada"),
            ("coalesce(nickname, end_date)", None),
            ("coalesce(nickname)", None),
            ('coalesce("", trim(" "), "x")', "x"),
            ("coalesce(nickname, 0, 1)", 0),
            ("coalesce(nickname, False, True)", False),
            ("coalesce(mails, groups)", ["admins", "staff"]),
        ],
    )
    def test_coalesce_returns_the_first_value(self, text: str, expected: object) -> None:
        assert value(text) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('join(" ", first_name, nickname, last_name)', "Ada Lovelace"),
            ('join(" ", nickname, "", first_name)', "Ada"),
            ('join(", ", groups)', "admins, staff"),
            ('join(", ", groups, mails, first_name)', "admins, staff, Ada"),
            ('join("", first_name, last_name)', "AdaLovelace"),
            ('join(" ", nickname, mails)', None),
        ],
    )
    def test_join_leaves_out_what_is_missing(self, text: str, expected: object) -> None:
        assert value(text) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("Jürgen Groß", "Juergen Gross"),
            ("ÄÖÜẞ", "AeOeUeSS"),
            ("Ju\u0308rgen", "Juergen"),
            ("René Çelik", "Rene Celik"),
            ("Łukasz Żółć", "Lukasz Zolc"),
            ("Sørensen Åse Æbelø", "Soerensen Aase Aebeloe"),
            ("Ðuro Þór İpek I\u015f\u0131l", "Duro Thor Ipek Isil"),
            ("Ada 日本 ﬁn", "Ada  fin"),
        ],
    )
    def test_ascii_spells_names_without_accents(self, text: str, expected: str) -> None:
        assert value("ascii(first_name)", first_name=text) == expected

    @given(st.text())
    def test_ascii_is_always_ascii(self, text: str) -> None:
        found = value("ascii(first_name)", first_name=text)
        assert found is None or found.isascii()

    @pytest.mark.parametrize(
        ("name", "escaped"),
        [
            ("Ada Lovelace", "Ada Lovelace"),
            ('James "Jim" Smith, III', r"James \"Jim\" Smith\, III"),
            ("a+b;c<d>e\\f", r"a\+b\;c\<d\>e\\f"),
            ("#1 #2", r"\#1 #2"),
            (" a b ", r"\ a b\ "),
            (" ", r"\ "),
            ("  ", r"\ \ "),
            ("a=b/c", "a=b/c"),
            ("x\0y", r"x\00y"),
            ("Lučić", "Lučić"),
            ("a\n", "a\n"),
        ],
    )
    def test_dn_escapes_a_value_by_rfc_4514(self, name: str, escaped: str) -> None:
        assert value("dn(first_name)", first_name=name) == escaped

    @given(st.text(min_size=1))
    def test_what_dn_escapes_is_one_value_of_a_dn(self, name: str) -> None:
        assert _unescaped(value("dn(first_name)", first_name=name)) == name

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("lower(level)", "character 1: lower needs text, not a whole number; use text(…)"),
            ("lower(groups)", "character 1: lower needs text, not a list; use first(…) or join(…)"),
            ("lower(is_active)", "lower needs text, not true or false"),
            ('"x" + lower(level)', "character 7: lower needs text"),
            ('substr(first_name, "1")', "substr needs a whole number, not text"),
            ("substr(first_name, True)", "substr needs a whole number, not true or false"),
            ("substr(first_name, 0)", "substr: start (0) must be at least 1, and length"),
            ("substr(first_name, 1, -1)", "substr: start (1) must be at least 1, and length (-1) at least 0"),
            ('replace(first_name, "", "x")', "character 1: replace: the text to look for is empty"),
            ('split(first_name, "")', "split: the separator is empty"),
            ("first(first_name)", "first needs a list, not text"),
            ("length(level)", "length needs text or a list, not a whole number"),
            ("text(groups)", "text needs text or a whole number or true or false, not a list"),
            ("number(first_name)", "number: “Ada” is not a whole number"),
            ('number("1.5")', "number: “1.5” is not a whole number"),
            ('number("1_0")', "number: “1_0” is not a whole number"),
            ('number("99999999999999999999")', "is too large for a whole number"),
            ('join(" ", level)', "join needs text, not a whole number; use text(…)"),
            ("join(level, first_name)", "join needs text, not a whole number; use text(…)"),
        ],
    )
    def test_arguments_that_do_not_fit(self, text: str, words: str) -> None:
        assert words in failure(text)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("open(first_name)", "character 1: “open” is not a function; available: ascii, attribute"),
            ("first_name(1)", "“first_name” is not a function; available"),
            ("lower()", "character 1: wrong number of arguments (0); write lower(text)"),
            ("lower(first_name, last_name)", "wrong number of arguments (2); write lower(text)"),
            ("substr(first_name)", "wrong number of arguments (1); write substr(text, start[, length])"),
            ("substr(first_name, 1, 2, 3)", "wrong number of arguments (4); write substr(text, start["),
            ("coalesce()", "wrong number of arguments (0); write coalesce(value, …)"),
            ('join(" ")', "wrong number of arguments (1); write join(separator, value, …)"),
            ("unique()", "wrong number of arguments (0); write unique(candidate, …)"),
            ('attribute("a.b", "x")', 'wrong number of arguments (2); write attribute("Employee No")'),
        ],
    )
    def test_calls_that_are_not_possible(self, text: str, words: str) -> None:
        assert words in refusal(text)

    def test_each_shows_how_it_is_written(self) -> None:
        assert {name: each.usage.split("(")[0] for name, each in FUNCTIONS.items()} == {
            n: n for n in FUNCTIONS
        }
        assert len(FUNCTIONS) == 22


def _unescaped(escaped: str) -> str:
    """What a directory reads; the text must have no character that ends a value."""
    found, rest = "", escaped
    assert rest[0] not in " #"
    while rest:
        if rest[0] == "\\":
            is_hex = rest[1:3] == "00"
            found, rest = found + ("\0" if is_hex else rest[1]), rest[3 if is_hex else 2 :]
        else:
            assert rest[0] not in '"+,;<>\0'
            assert rest != " "
            found, rest = found + rest[0], rest[1:]
    return found


class TestDates:
    @pytest.mark.parametrize(
        ("written", "form", "expected"),
        [
            ("31.01.2026", "%d.%m.%Y", "2026-01-31"),
            (" 1.2.2026 ", "%d.%m.%Y", "2026-02-01"),
            ("01/31/26", "%m/%d/%y", "2026-01-31"),
            ("29-FEB-2024", "%d-%b-%Y", "2024-02-29"),
            ("3 March 2026", "%d %B %Y", "2026-03-03"),
            ("20260131090000Z", "%Y%m%d%H%M%SZ", "2026-01-31"),
        ],
    )
    def test_date_reads_a_form(self, written: str, form: str, expected: str) -> None:
        assert value(f'date(end_date, "{form}")', end_date=written) == expected

    @pytest.mark.parametrize(
        ("date", "form", "expected"),
        [
            ("2026-01-31", "%d.%m.%Y", "31.01.2026"),
            ("2026-01-31", "%m/%y", "01/26"),
            ("2026-01-31T09:05:07Z", "%Y%m%d%H%M%SZ", "20260131090507Z"),
            ("2026-03-01", "%d %b %Y", "01 Mar 2026"),
            ("2026-03-01", "%B", "March"),
        ],
    )
    def test_format_date_writes_a_form(self, date: str, form: str, expected: str) -> None:
        assert value(f'format_date(end_date, "{form}")', end_date=date) == expected

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('date("30.02.2026", "%d.%m.%Y")', "date: “30.02.2026” is not a date of the form %d.%m.%Y"),
            ('date("2026-01-31", "%d.%m.%Y")', "date: “2026-01-31” is not a date of the form %d.%m.%Y"),
            ('format_date("31.01.2026", "%d.%m.%Y")', "“31.01.2026” is not an ISO date, such as 2026-01-31"),
            ('date(level, "%d.%m.%Y")', "date needs text, not a whole number"),
        ],
    )
    def test_what_is_not_a_date(self, text: str, words: str) -> None:
        assert words in failure(text)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("date(end_date)", 'wrong number of arguments (1); write date(text, "%d.%m.%Y")'),
            ("date(end_date, first_name)", 'must be text in quotes; write date(text, "%d.%m.%Y")'),
            ('date(end_date, "")', "“” must contain parts of a date, each once: %d %m %Y"),
            ('date(end_date, "dd.mm.yyyy")', "“dd.mm.yyyy” must contain parts of a date"),
            ('date(end_date, "%d.%m.%Y %Z")', "must contain parts of a date"),
            ('date(end_date, "%d.%m.%Y %")', "must contain parts of a date"),
            ('date(end_date, "%d.%m.%Y%%")', "must contain parts of a date"),
            ('date(end_date, "%d %d %m %Y")', "must contain parts of a date, each once"),
            ('date(end_date, "%d.%b.%m.%Y")', "must contain parts of a date, each once"),
            ('date(end_date, "%d.%m.")', "character 16: “%d.%m.” lacks the year; write it as in %d.%m.%Y"),
            ('format_date(end_date, "%c")', "must contain parts of a date"),
        ],
    )
    def test_forms_that_are_refused(self, text: str, words: str) -> None:
        assert words in refusal(text)


class TestUniqueValues:
    TEXT = "unique(lower(nickname), lower(first_name), lower(substr(first_name, 1, 1) + last_name))"

    def candidates(self, text: str, most: int = 5, **attributes: Any) -> list[str]:
        return list(islice(compiled(text, NAMES).candidates({**ADA, **attributes}), most))

    @pytest.mark.parametrize(
        ("attributes", "expected"),
        [
            ({}, ["ada", "alovelace", "alovelace2", "alovelace3", "alovelace4"]),
            ({"nickname": "Countess"}, ["countess", "ada", "alovelace", "alovelace2", "alovelace3"]),
            ({"nickname": "ADA"}, ["ada", "alovelace", "alovelace2", "alovelace3", "alovelace4"]),
            ({"nickname": "alovelace2"}, ["alovelace2", "ada", "alovelace", "alovelace3", "alovelace4"]),
            ({"last_name": None}, ["ada", "ada2", "ada3", "ada4", "ada5"]),
            ({"last_name": None, "first_name": None}, []),
        ],
    )
    def test_candidates_come_in_order_and_then_with_numbers(
        self, attributes: dict[str, Any], expected: list[str]
    ) -> None:
        assert self.candidates(self.TEXT, **attributes) == expected

    def test_numbers_never_end(self) -> None:
        assert self.candidates("unique(first_name)", 5_000)[-1] == "Ada5000"

    def test_in_an_address_the_number_comes_before_the_at_sign(self) -> None:
        found = self.candidates('unique(lower(first_name) + "@example.org")', 3)
        assert found == ["ada@example.org", "ada2@example.org", "ada3@example.org"]

    def test_there_is_not_one_value(self) -> None:
        expression = compiled(self.TEXT, NAMES)
        assert expression.is_unique
        assert expression.reads == {"nickname", "first_name", "last_name"}
        with pytest.raises(ExpressionError, match="several candidates"):
            expression.value(ADA)

    def test_other_expressions_have_no_candidates(self) -> None:
        expression = compiled("lower(first_name)", NAMES)
        assert not expression.is_unique
        with pytest.raises(ExpressionError, match=r"“lower\(first_name\)” has one value; write unique\(…\)"):
            next(expression.candidates(ADA))

    @pytest.mark.parametrize("candidate", ["level", "groups", "is_active"])
    def test_candidates_are_text(self, candidate: str) -> None:
        with pytest.raises(ExpressionError, match=r"unique\(…\) needs text, not .*; use text"):
            self.candidates(f"unique({candidate})")

    @pytest.mark.parametrize(
        "text",
        ["lower(unique(first_name))", 'unique(first_name) + "x"', "unique(unique(first_name))"],
    )
    def test_unique_is_always_outermost(self, text: str) -> None:
        assert "unique(…) cannot be a part of an expression; put it around the whole" in refusal(text)


class TestLimits:
    def test_of_the_text(self) -> None:
        longest = '"' + "a" * (LONGEST_EXPRESSION - 2) + '"'
        assert value(longest) == longest.strip('"')
        assert refusal(longest + "x") == "the expression has 4,001 characters, but at most 4,000 are allowed"

    @pytest.mark.parametrize("text", ["", "  ", "\n"])
    def test_the_text_is_not_empty(self, text: str) -> None:
        assert "the expression is empty; write the name of an attribute, or text in quotes" in refusal(text)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("lower(", ")"),
            ("[", "]"),
            ("not ", ""),
            ("-", ""),
            ("", " + first_name"),
            ("1 if True else ", ""),
        ],
    )
    def test_of_nesting(self, before: str, after: str) -> None:
        deepest = before * (MAX_LEVELS - 1) + "first_name" + after * (MAX_LEVELS - 1)
        assert compiled(deepest, NAMES).reads <= {"first_name"}
        for more in (1, 100):
            nested = before * more + deepest + after * more
            assert "the expression is nested more than 50 levels deep" in refusal(nested)

    @pytest.mark.parametrize(
        "sign", ["(", "[", "-", "not ", "lower(", "1 if 1 else ", "1+", "1<", "[(", "- not "]
    )
    def test_of_nesting_that_python_itself_could_not_read(self, sign: str) -> None:
        assert refusal((sign * LONGEST_EXPRESSION)[: LONGEST_EXPRESSION - 1] + "1")

    def test_parentheses_alone_are_not_levels(self) -> None:
        assert value("(" * 60 + "first_name" + ")" * 60) == "Ada"

    @pytest.mark.parametrize(
        "text",
        [
            "first_name",
            "first_name + first_name",
            "unique(first_name)",
            'replace(substr(first_name, 1, 65000), "x", "yy")',
            'join("", first_name, first_name)',
            'dn(replace(substr(first_name, 1, 65000), "x", "+"))',
            "upper(first_name)",
        ],
    )
    def test_of_the_result(self, text: str) -> None:
        expression, attributes = compiled(text, NAMES), {"first_name": "x" * (LONGEST_RESULT + 1)}
        with pytest.raises(
            ExpressionError, match=r"the result would have [\d,]+ characters, but at most 65,536"
        ):
            list(expression.candidates(attributes)) if expression.is_unique else expression.value(attributes)

    def test_a_result_of_the_largest_length(self) -> None:
        assert value("first_name", first_name="x" * LONGEST_RESULT) == "x" * LONGEST_RESULT

    def test_a_text_that_would_not_fit_into_memory_is_never_made(self) -> None:
        text = '"xxxxxxxxxx"'
        for _ in range(MAX_LEVELS - 2):
            text = f'replace({text}, "x", "xxxxxxxxxx")'
        assert "the result would have 100,000 characters" in failure(text)


class TestSecurity:
    """What could reach beyond the values of one object is refused when the expression is saved."""

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("__import__", "unknown attribute “__import__”"),
            ("__import__('os')", "“__import__” is not a function; available: "),
            ("eval('1')", "“eval” is not a function"),
            ("compiled('1')", "“compiled” is not a function"),
            ("attributes", "unknown attribute “attributes”"),
            ("first_name.__class__", "character 11: a dot cannot be used"),
            ("''.join", "character 3: a dot cannot be used"),
            ("...", "character 1: a dot cannot be used"),
            ("groups[0]", "character 1: [ ] cannot follow a value; use first(…), split(…) or substr(…)"),
            ("groups[0:1]", "character 9: “:” cannot be used"),
            ("(lower)(first_name)(1)", "only functions can be called"),
            ("'lower'(first_name)", "only functions can be called"),
            ("[lower][0]", "[ ] cannot follow a value"),
            ("lower", "unknown attribute “lower”"),
            ("lower(text=first_name)", "character 11: = cannot be used"),
            ("lower(*groups)", "character 7: “*” cannot be used"),
            ("lower(**groups)", "character 7: “*” cannot be used"),
            ("[*groups]", "character 2: “*” cannot be used"),
            ("(x := 1)", "character 4: “:” cannot be used"),
            ("lambda: 1", "character 1: “lambda” cannot be used"),
            ("[x for x in groups]", "character 4: “for” cannot be used"),
            ("(x for x in groups)", "“for” cannot be used"),
            ("{x for x in groups}", "character 1: “{” cannot be used"),
            ("{}", "“{” cannot be used"),
            ("await first_name", "“await” cannot be used"),
            ("(yield)", "“yield” cannot be used"),
            ("import os", "“import” cannot be used"),
            ("f'{first_name}'", "“f” cannot be written directly before a quote"),
            ("rb'x'", "“rb” cannot be written directly before a quote"),
            ("'a' * 9", "“*” cannot be used"),
            ("9 ** 9", "“*” cannot be used"),
            ("'%s' % level", "“%” cannot be used"),
            ("level / 0", "“/” cannot be used"),
            ("level @ 1", "“@” cannot be used"),
            ("~level", "“~” cannot be used"),
            ("level | 1", "“|” cannot be used"),
            ("+level", "character 1: write attributes such as first_name"),
            ("first_name; last_name", "“;” cannot be used"),
            ("first_name # comment", "“#” cannot be used"),
            ("first_name \\\n + 'x'", "“\\” cannot be used"),
            ("`first_name`", "“`” cannot be used"),
            ("first_name\0", "contains a character that cannot be stored"),
            ("'\ud800'", "contains a character that cannot be stored"),
            ("first_name) + (last_name", "character 11: unmatched ')'"),
            ("lower(first_name", "character 6: '(' was never closed"),
            ("lower(first_name,)(", "was never closed"),
            ("first_name last_name", "character 12: invalid syntax; look for a missing comma, operator"),
        ],
    )
    def test_it_is_refused(self, text: str, words: str) -> None:
        assert words in refusal(text)

    def test_letters_that_python_takes_as_ascii_are_checked_as_ascii(self) -> None:
        assert "“__import__” is not a function" in refusal(
            "__\N{FULLWIDTH LATIN SMALL LETTER I}mport__('os')"
        )
        assert value("\N{LATIN SMALL LIGATURE FI}rst_name") == "Ada"


# Expressions that are often right: put together from what the language has, without regard to types.
_ATOMS = st.sampled_from(
    [
        *("first_name", "level", "is_active", "groups", "nickname", "mails", "end_date", 'attribute("a.b")'),
        *('"a"', '""', '"ß, #"', "0", "1", "-2", "True", "None", "[]", '["a", 1]', str(LARGEST)),
    ]
)
_CALLS = [name for name in FUNCTIONS if name not in ("attribute", "date", "format_date")]


def _larger(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = ["+", "-", "==", "!=", "<", "<=", ">", ">=", "and", "or", "in", "not in"]
    return st.one_of(
        st.builds("({} {} {})".format, smaller, st.sampled_from(operators), smaller),
        st.builds("({} if {} else {})".format, smaller, smaller, smaller),
        st.builds("(not {})".format, smaller),
        st.builds("(- {})".format, smaller),
        st.builds("({} is not None)".format, smaller),
        st.builds("[{}, {}]".format, smaller, smaller),
        st.builds('date({}, "%d.%m.%Y")'.format, smaller),
        st.builds('format_date({}, "%H:%M %d.%m.%Y")'.format, smaller),
        st.builds(
            lambda name, arguments: f"{name}({', '.join(arguments)})",
            st.sampled_from(_CALLS),
            st.lists(smaller, max_size=3),
        ),
    )


_TEXTS = st.recursive(_ATOMS, _larger, max_leaves=8)
_SCALARS = st.none() | st.booleans() | st.integers(-LARGEST, LARGEST) | st.text(max_size=20)
_SCALARS |= st.sampled_from(["2026-01-31", "31.01.2026", "2026-01-31T09:00:00Z", "a", "Ada"])
_DOCUMENTS = st.dictionaries(st.sampled_from(sorted(NAMES)), _SCALARS | st.lists(_SCALARS, max_size=3))


class TestAnyText:
    @given(st.text() | st.text(alphabet="ab_1(),[]\"'+-<>=! \\\n.:*{}fr#ß", max_size=30) | _TEXTS)
    @example("\x0cfirst_name")
    @example("a if")
    @example("1 .real")
    @example("(\u00b2)")
    @example("a\u0308")
    def test_compiles_or_is_refused(self, text: str) -> None:
        with suppress(ExpressionError):
            assert compiled(text, NAMES).reads <= NAMES

    @given(_TEXTS, _DOCUMENTS)
    def test_has_a_json_value_or_fails(self, text: str, document: dict[str, Any]) -> None:
        with suppress(ExpressionError):
            found = _result(text, document)
            assert found != ""
            assert json.loads(json.dumps(found)) == found

    @given(_TEXTS, _DOCUMENTS)
    def test_reads_what_it_says_and_changes_nothing(self, text: str, document: dict[str, Any]) -> None:
        before = json.dumps(document)
        with suppress(ExpressionError):
            reads = compiled(text, NAMES).reads
            read = {name: each for name, each in document.items() if name in reads}
            assert _result(text, document) == _result(text, read)
        assert json.dumps(document) == before


def _result(text: str, document: dict[str, Any]) -> Any:
    expression = compiled(text, NAMES)
    if expression.is_unique:
        return list(islice(expression.candidates(document), 5))
    return expression.value(document)
