from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execution.lines import LONGEST, Lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"no end", ["no end"]),
        (b"\n\n", ["", ""]),
        (b"dos\r\nunix\n", ["dos", "unix"]),
        (b"bar 1%\rbar 2%\n", ["bar 1%\rbar 2%"]),
        ("é🎉\n".encode(), ["é🎉"]),
        (b"bad \xff\xfe\n", ["bad \ufffd\ufffd"]),
        (b"cut \xc3", ["cut \ufffd"]),
        (b"x" * LONGEST + b"\n", ["x" * LONGEST]),
        (b"x" * (LONGEST + 1) + b"\n", ["x" * LONGEST, "x"]),
        (b"x" * (2 * LONGEST) + b"y", ["x" * LONGEST, "x" * LONGEST, "y"]),
    ],
)
def test_bytes_become_lines(data: bytes, lines: list[str]) -> None:
    assert split(data) == lines
    assert split(*(data[i : i + 1] for i in range(len(data)))) == lines


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_how_the_bytes_arrive_makes_no_difference(chunks: list[bytes]) -> None:
    assert split(*chunks) == split(b"".join(chunks))


def test_it_can_be_used_again_after_the_end() -> None:
    lines = Lines()
    assert lines.feed(b"half \xc3") == []
    assert lines.finish() == ["half \ufffd"]
    assert lines.feed(b"\xa9 new\n") == ["\ufffd new"]
    assert lines.finish() == []


def split(*chunks: bytes) -> list[str]:
    lines = Lines()
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.finish()
