from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from web.ansi import markup, pieces, plain

SEQUENCES = st.sampled_from(
    [
        *("\x1b[31m", "\x1b[1;38;5;196m", "\x1b[38;2;1;2;3m", "\x1b[0m", "\x1b[m", "\x1b[2K", "\x1b[?25l"),
        *("\x1b]0;title\x07", "\x1b]8;;https://example.org\x1b\\", "\x1b(B", "\x9b32m", "\x1b[999999m"),
        *("\x1b[38m", "\x1b[38;5m", "\x1b[38;2;1m", "\x1b[;;;m", "\x1b[4:3m"),
    ]
)
WORDS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20)
ANYTHING = st.lists(
    st.one_of(SEQUENCES, WORDS, st.text(max_size=20), st.just("<script>alert(1)</script>"))
).map("".join)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m plain", '<span class="ansi-red">red</span> plain'),
        ("\x1b[1;92mgood", '<span class="ansi-bold ansi-green">good</span>'),
        ("\x1b[1mbold\x1b[22m not", '<span class="ansi-bold">bold</span> not'),
        ("\x1b[41mon red\x1b[49m off", '<span class="ansi-on-red">on red</span> off'),
        ("\x1b[38;5;196mbright red", '<span class="ansi-red">bright red</span>'),
        ("\x1b[38;2;10;200;30mgreen", '<span class="ansi-green">green</span>'),
        ("\x1b[38:5:4mblue", '<span class="ansi-blue">blue</span>'),
        ("\x1b[31mred\x1b[39m not", '<span class="ansi-red">red</span> not'),
        ("\x1b[38mnothing follows", "nothing follows"),
        ("\x1b[2Kcleared \x1b]0;a title\x07line", "cleared line"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        (f"\x1b[{'9' * 5_000}mone number of 5,000 digits", "one number of 5,000 digits"),
        (f"\x1b[{'1;' * 500_000}mmany codes", "many codes"),
        ("\x1b[38;5;244mgrey", '<span class="ansi-white">grey</span>'),
        ("10 %\r20 %", "10 % 20 %"),
        ("a\tb\x00\x08c", "a\tbc"),
        ("<b>&amp;</b>", "&lt;b&gt;&amp;amp;&lt;/b&gt;"),
    ],
)
def test_colours_become_styles_and_the_rest_is_text(text: str, shown: str) -> None:
    assert markup(text) == shown


@given(ANYTHING)
@settings(max_examples=60)
def test_output_never_becomes_markup_and_no_control_character_is_left(text: str) -> None:
    left = re.sub(r'<span class="(ansi-[a-z-]+ ?)+">|</span>', "", markup(text))
    assert "<" not in left
    assert ">" not in left
    assert unescape(left) == plain(text)
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", plain(text))


@given(st.lists(st.tuples(WORDS, SEQUENCES)))
@settings(max_examples=60)
def test_every_word_stays_and_a_reset_ends_every_style(parts: list[tuple[str, str]]) -> None:
    text = "".join(word + sequence for word, sequence in parts)
    assert plain(text) == "".join(word for word, _ in parts)
    assert all(not piece.classes for word, _ in parts for piece in pieces(f"\x1b[1;3;4;31;42m\x1b[0m{word}"))
