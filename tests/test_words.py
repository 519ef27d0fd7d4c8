"""User-facing text is plain English: some words never appear in it. Each rule finds a text that breaks it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_conventions import texts

# Nowhere, not even in comments.
VAGUE = re.compile(r"\b(?:somebody|nobody|whoever|everybody|anybody)\b", re.IGNORECASE)
# Where users read: pages, errors, help, documentation.
CLUMSY = re.compile(r"\b(?:(?:is|are)\s+no(?!\s+(?:longer|more))|of\s+it)\b", re.IGNORECASE)
PROSE = {".html", ".md"}
SOURCES = {".py", ".js", ".css", *PROSE}


def product() -> Iterator[tuple[Path, str]]:
    for path, text in texts():
        if path.suffix in SOURCES and path.parts[0] != "tests":
            yield path, text


def literals(source: str) -> list[str]:
    """Return the strings of a module that are not docstrings; the parts of an f-string count as one."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    return [
        _text(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in docstrings | inside
    ]


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]
    return node.value if isinstance(node.value, str) else ""


def docstrings(source: str) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)
    ]


def read_by_users(path: Path, text: str) -> list[str]:
    if path.suffix in PROSE:
        return [] if "decisions" in path.parts else [text]
    if path.suffix != ".py":
        return []
    # The API's description is made from docstrings.
    return literals(text) + (docstrings(text) if path.parts[0] == "api" else [])


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (VAGUE, "Nobody has asked for it"),
        (VAGUE, "by whoever comes first"),
        (CLUMSY, "That is no id."),
        (CLUMSY, "There are no\n  schedules"),
        (CLUMSY, "the end of it"),
    ],
)
def test_a_text_that_breaks_a_rule_is_found(rule: re.Pattern[str], text: str) -> None:
    assert rule.search(text)


def test_ordinary_english_is_not_found() -> None:
    for text in (
        "It is no longer used",
        "the rest of its items",
        "a number of items",
        "is not a number",
        "is now",
    ):
        assert not VAGUE.search(text), text
        assert not CLUMSY.search(text), text


def test_the_strings_of_a_module_are_found() -> None:
    source = '"""Module."""\ndef f(x):\n    """Of it."""\n    return "a" "b", f"is {x} no", 1'
    assert sorted(literals(source)) == ["", "ab", "is … no"]
    assert docstrings(source) == ["Module.", "Of it."]


def test_no_file_uses_vague_words() -> None:
    found = [f"{path}: {hit[0]}" for path, text in product() for hit in VAGUE.finditer(text)]
    assert not found, "\n".join(found)


def test_users_read_no_clumsy_words() -> None:
    read = [(path, each) for path, text in product() for each in read_by_users(path, text)]
    assert len(read) > 1_000
    found = [
        f"{path}: …{each[max(0, hit.start() - 40) : hit.end() + 40]}…"
        for path, each in read
        for hit in CLUMSY.finditer(each)
    ]
    assert not found, "\n".join(found)
