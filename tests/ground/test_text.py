from __future__ import annotations

import json

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st

from text.clean import clean_json, clean_text
from text.numbers import whole_number

ANY_TEXT = st.text(st.characters(codec=None, categories=None))
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("tab\tand\nline", "tab\tand\nline"),
        ("naïve 日本 🎉", "naïve 日本 🎉"),
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
        ("x\udfffy\0", "x\N{REPLACEMENT CHARACTER}y\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_only_nul_and_lone_surrogates_are_replaced(text: str, clean: str) -> None:
    assert clean_text(text) == clean


@given(ANY_TEXT)
def test_clean_text_can_be_encoded_and_is_clean_for_good(text: str) -> None:
    cleaned = clean_text(text)
    assert "\0" not in cleaned
    assert len(cleaned) == len(text)
    cleaned.encode()
    assert clean_text(cleaned) == cleaned


@settings(max_examples=30)
@given(ANY_JSON)
def test_clean_json_keeps_everything_else(value: object) -> None:
    cleaned = clean_json(value)
    json.dumps(cleaned, ensure_ascii=False).encode()
    assert clean_json(cleaned) == cleaned


def test_json_is_cleaned_at_every_depth_keys_included() -> None:
    assert clean_json({"a\0": [("b\0", 1)], "c": {"d": "\ud800"}}) == {"a�": [["b�", 1]], "c": {"d": "�"}}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("0", 0), ("7", 7), ("007", 7), ("9" * 18, 10**18 - 1)],
        *[(text, None) for text in ("", " 7", "7 ", "+7", "-7", "1_000", "1.0", "x", "٣", "²", "9" * 19)],
    ],
)
def test_a_whole_number_has_at_most_eighteen_plain_digits(text: str, number: int | None) -> None:
    assert whole_number(text) == number


def test_a_whole_number_stays_within_its_limits() -> None:
    texts = ["0", "1", "1000", "1001", "01000"]
    assert [whole_number(text, digits=4, least=1, most=1000) for text in texts] == [None, 1, 1000, None, None]


@pytest.mark.django_db
def test_the_database_gives_back_what_it_was_given() -> None:
    text = clean_text("".join(map(chr, range(0x300))) + "\ud800🎉")
    with connection.cursor() as cursor:
        cursor.execute("SELECT CAST(%s AS text)", [text])
        assert cursor.fetchone() == (text,)
