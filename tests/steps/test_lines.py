from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execution.children.lines import LONGEST, Lines


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"dos\r\nunix\n", ["dos", "unix"]),
        (b"bar 1%\rbar 2%\n", ["bar 1%\rbar 2%"]),
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


def split(*chunks: bytes) -> list[str]:
    lines = Lines()
    found = [line for chunk in chunks for line in lines.feed(chunk)] + lines.finish()
    assert lines.finish() == [], "it can be used again"
    return found
