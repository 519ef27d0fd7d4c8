"""YAML that says what it seems to say, and where it says it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from files.yaml_lines import MAX_DEPTH, MOST_COMPLAINTS, Loader, Unreadable, read, write


def complaints(text: str) -> list[tuple[int, str]]:
    with pytest.raises(Unreadable) as unreadable:
        read(text)
    return [(line, words) for line, words in unreadable.value.complaints]


# What other readers take for something else.
TEXT = [
    *("yes", "NO", "on", "Off", "y", "12:30", "09:00", "1:30:00", "2026-12-01", "2026-12-01T09:00:00Z"),
    *("0755", "0o17", "0x1F", "0b1", "1_000", "+5", "1.", ".5", "1e", "=", "<<", "nul", "TruE", "None"),
    "NaN",
]
VALUES: list[tuple[str, Any]] = [
    *(("", None), ("~", None), ("null", None), ("Null", None)),
    *(("true", True), ("True", True), ("FALSE", False)),
    *(("0", 0), ("-7", -7), ("1.5", 1.5), ("-0.25", -0.25), ("1e3", 1000.0), ("1.5E-3", 0.0015)),
    *(('"5"', "5"), ("'true'", "true"), ('"\\t\\u00e9"', "\té"), ("[]", []), ("{}", {})),
    ("[1, a]", [1, "a"]),
]


def test_a_value_is_what_json_knows() -> None:
    known = [*((word, word) for word in TEXT), *VALUES]
    told = [read(f"key: {text}\n").plain()["key"] for text, _ in known]
    assert [(each, type(each)) for each in told] == [(value, type(value)) for _, value in known]


def test_keys_are_text_as_it_stands() -> None:
    assert read("on: 1\n5: 2\ntrue: 3\n~: 4\n'': 5\n").plain() == {"on": 1, "5": 2, "true": 3, "~": 4, "": 5}
    assert read('{"a": [1, {"b": null}], "c": "x\\ny"}').plain() == {"a": [1, {"b": None}], "c": "x\ny"}


def test_each_value_has_the_line_of_its_key_or_item() -> None:
    document = read("# first\na:\n  - 1\n  - b: |\n      two\n      lines\n    c: 3\nd: {e: 4,\n    f: 5}\n")
    lines: dict[tuple[str | int, ...], int] = {("a",): 2, ("a", 0): 3, ("a", 1): 4, ("a", 1, "b"): 4}
    lines |= {("a", 1, "c"): 7, ("d", "e"): 8, ("d", "f"): 9}
    assert {path: document.inside(*path).line for path in lines} == lines
    assert document.inside("a", 1, "c", "deeper").line == document.inside("a", 1, "c").line
    assert document.inside("a", 7).line == document.inside("a").line


REFUSED: list[tuple[str, str, list[tuple[int, str]]]] = [
    (
        "alias",
        "a: &x 1\nb: *x\n",
        [(1, "anchors are not allowed: remove &x"), (2, "aliases are not allowed: replace *x")],
    ),
    ("alias as a key", "? *x\n: 1\n", [(1, "aliases are not allowed")]),
    (
        "python object",
        "a: !!python/object/apply:os.system [ls]",
        [(1, "tags are not allowed: remove !!python/object/apply:os.")],
    ),
    ("tag of a list", "a: !!set {x}", [(1, "tags are not allowed: remove !!set,")]),
    ("key twice", "a: 1\nb: 2\na: 3\n", [(3, "the key “a” appears twice")]),
    ("key twice, further in", "a:\n  - {b: 1, b: 2}\n", [(2, "the key “b” appears twice")]),
    ("list as a key", "a: 1\n? [b]\n: 2\n", [(2, "a key must be text")]),
    ("two documents", "a: 1\n---\na: 2\n", [(2, "a second document begins here")]),
    ("not a number", "a: .nan", [(1, ".nan is not JSON")]),
    ("infinity", "a: [1, -.Inf]", [(1, "-.Inf is not JSON")]),
    ("too large", "a: 1e400", [(1, "1e400 is too large a number")]),
    ("too long a number", f"a: {'9' * 5000}", [(1, "a number of 5,000 digits is too long")]),
    ("NUL", 'a: 1\nb: "x\\0"', [(2, "NUL or half a surrogate pair")]),
    ("NUL as it is", "a: 1\nb: \0", [(2, "the character U+0000 cannot be part")]),
    ("escape sequence", "a: \x1b[0m", [(1, "the character U+001B cannot be part")]),
    ("lone surrogate", 'a: "\\ud800"', [(1, "not YAML: found invalid Unicode character escape code")]),
    ("truncated list", "a: 1\nb: [1,\n  2", [(3, "that begins on line 2")]),
    ("truncated text", 'a: "one\n  two\n', [(2, "found unexpected end of stream")]),
    ("tab", "a:\n\tb: 1\n", [(2, "not YAML: indent with spaces, not with tabs")]),
    ("two colons", "a: b: c\n", [(1, "not YAML: mapping values are not allowed")]),
    ("too deep", "[" * 100_000, [(1, f"nested too deeply; at most {MAX_DEPTH} levels")]),
    ("too deep in lists", "- " * 100_000, [(1, "nested too deeply")]),
    ("too deep in keys", "".join(f"{' ' * n}a:\n" for n in range(100)), [(MAX_DEPTH + 1, "nested too")]),
]


@pytest.mark.parametrize(("text", "wanted"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_refused_has_its_line(text: str, wanted: list[tuple[int, str]]) -> None:
    found = complaints(text)
    assert [line for line, _ in found] == [line for line, _ in wanted]
    for (_, told), (_, words) in zip(found, wanted, strict=True):
        assert words in told


def test_endless_complaints_end() -> None:
    found = complaints("- *x\n" * 100_000)
    assert len(found) == MOST_COMPLAINTS + 1
    assert found[-1][1] == "more problems follow that are not listed"


ODD = [
    *TEXT,
    *("", " ", "null", "true", "5", "1e3", "1.5", "-", "?", ":", "a: b", "a #b", "#", "- a", "[a", "{a"),
    "a, b",
    *("*a", "&a", "!a", "%a", "@a", "`a", "|", ">", "'", '"', "it's", '"quoted"', "---", "...", "--- a\nb"),
    "\\",
    *("two\nlines", "two\nlines\n", "\n", "\n\n", "\na", "a\n\n\nb\n\n", " indented\nfirst", "a\n  b\n c\n"),
    *("a:\nb", "trailing \nspace", "trailing ", " leading", "tab\there", "a\n\tb", "a\n\t\nb", "a\n \nb"),
    "  \n",
    *("#\n#", "a\r\nb", "a\rb", "\x85", "a\u2028b", "a\u2029b\nc", "\ufeffa", "a\ufeff\nb", "\xa0"),
    "\xa0\nb\xa0\n",
    *("\x07", "\x1b[31mred", "\x7f", "a\x0bb", "\x1c", "é", "日本語", "\N{ROCKET} go"),
    "\N{ROCKET}\n\N{ROCKET}\n",
    *("{{ secrets.token }}", "x" * 500 + " y" * 200, "SELECT 1\n  FROM t -- a: b\n\n WHERE x = 'y'\n"),
]
PLAIN: list[Any] = [
    *(None, True, False, 0, -1, 10**30, 1.5, -0.0, 1e300, 1e-7, 0.1),
    *([], {}, [[]], [{}], {"a": []}, [[1, [2]]]),
]


def test_what_is_written_is_read_as_it_was() -> None:
    shapes: list[Any] = [{"key": value} for value in PLAIN]
    for text in ODD:
        deep = {"a": [{"b": {"c": [text, {text: text}]}}], "d": 2}
        shapes += [{"key": text, "next": 1}, [text, 1], {text: 1}, deep]
    shared = {"a": [1]}
    shapes.append([shared, shared])
    assert [shape for shape in shapes if read(write(shape)).plain() != shape] == []
    assert [text for text in ODD if yaml.safe_load(write([{text: text}])) != [{text: text}]] == []


def test_it_is_written_for_people() -> None:
    value = {
        "name": "Nightly: 1",
        "statement": "SELECT 1\n  FROM t\n\nWHERE x = 'a: b'\n",
        "cron": ["0 2 * * *", "*/5 * * * *"],
        "country": "NO",
        "nested": [{"a": 1, "b": []}, [1, 2]],
        "long": "word " * 40 + "end",
    }
    assert write(value) == (
        "name: 'Nightly: 1'\n"
        "statement: |\n"
        "  SELECT 1\n"
        "    FROM t\n"
        "\n"
        "  WHERE x = 'a: b'\n"
        "cron:\n"
        "  - 0 2 * * *\n"
        "  - '*/5 * * * *'\n"
        "country: 'NO'\n"
        "nested:\n"
        "  - a: 1\n"
        "    b: []\n"
        "  - - 1\n"
        "    - 2\n"
        f"long: {'word ' * 40}end\n"
    )


def test_without_the_parser_in_c_the_same_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever builds PyYAML without libyaml gets the one in Python."""
    assert Loader is yaml.CSafeLoader
    monkeypatch.setattr("files.yaml_lines.Loader", yaml.SafeLoader)
    for text in ODD:
        assert read(write({"key": text})).plain() == {"key": text}
    for _, text, wanted in REFUSED:
        assert [line for line, _ in complaints(text)][-1] == wanted[-1][0]
