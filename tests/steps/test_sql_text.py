"""Where statements end and what their parameters are, as psql and sqlite3 would see it."""

from __future__ import annotations

import sqlite3
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execution.steps.sql_text import Dialect, SqlTextError, split

BOTH: tuple[Dialect, ...] = ("postgresql", "sqlite")


def texts(script: str, dialect: Dialect) -> list[str]:
    return [statement.text for statement in split(script, dialect)]


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", []),
        (";;; ;", []),
        ("-- only a comment", []),
        ("/* only; a comment */;", []),
        (" SELECT 1 ;\r\n SELECT 2 ; ", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';';SELECT 'it''s;'", ["SELECT ';'", "SELECT 'it''s;'"]),
        ('SELECT 1 AS "a;""b";SELECT 2', ['SELECT 1 AS "a;""b"', "SELECT 2"]),
        ("SELECT 1 -- one; two\n;SELECT 2", ["SELECT 1 -- one; two", "SELECT 2"]),
        ("SELECT 1 /* one; ' two */;SELECT 2", ["SELECT 1 /* one; ' two */", "SELECT 2"]),
        ("/*+ hint */ SELECT 1;SELECT 2 -- end", ["/*+ hint */ SELECT 1", "SELECT 2 -- end"]),
    ],
)
def test_both_languages_split(dialect: Dialect, script: str, expected: list[str]) -> None:
    assert texts(script, dialect) == expected


@pytest.mark.parametrize(
    "statement",
    [
        r"SELECT E'it\'s;' , 1",
        r"SELECT e'\\', 1",
        "SELECT E'one'\n  'two\\';', 1",
        "SELECT E'one' -- and\n  'two\\';', 1",
        r"""SELECT U&'\0041;' , U&"a;" """.rstrip(),
        "SELECT $$ ; ' -- $$",
        "SELECT $a$ ; $b$ ; $$ ; $a$",
        "SELECT $ä1$ ; $ä1$",
        "SELECT a$b$c, d$e$ FROM t",
        "DO $$ BEGIN PERFORM 1; COMMIT; END $$",
        "SELECT 1 /* outer; /* inner; */ still; */",
        "CREATE RULE r AS ON INSERT TO t DO ALSO (SELECT 1; SELECT 2)",
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 1 END; END",
        "CREATE OR REPLACE PROCEDURE p() BEGIN ATOMIC DELETE FROM t; END",
        r"SELECT 'a\'",
        "SELECT a ? 'b', c @> d, e #>> '{x}', 5 % 3",
    ],
)
def test_postgresql_keeps_together(statement: str) -> None:
    assert texts(f"{statement};SELECT 'next'", "postgresql") == [statement, "SELECT 'next'"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT [a;b], `c;d`",
        r"SELECT 'a\'",
        "SELECT 1 /* /* not nested */",
        "CREATE TRIGGER t AFTER INSERT ON x BEGIN UPDATE x SET a = 1; SELECT CASE WHEN 1 THEN 2 END; END",
        "CREATE TEMP TRIGGER t AFTER INSERT ON x BEGIN SELECT 'END'; SELECT 2; /* ; */ END",
        "EXPLAIN CREATE TEMPORARY TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; END",
        "SELECT * FROM main\n.t",
    ],
)
def test_sqlite_keeps_together(statement: str) -> None:
    assert texts(f"{statement};SELECT 'next'", "sqlite") == [statement, "SELECT 'next'"]


PIECES = [
    "SELECT", "1", "'a;'", "';", '";"', "-- x;\n", "/* ; */", "/*", ";", ";", "[;]", "`", " ", "\n",
    "CREATE", "TEMP", "TRIGGER", "EXPLAIN", "BEGIN", "END", "CASE", "(", ")", ":a", "é",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join))
def test_sqlite_agrees_that_each_statement_is_complete(script: str) -> None:
    try:
        statements = split(script, "sqlite")
    except SqlTextError:
        return
    for number, statement in enumerate(statements, 1):
        ends_open = number == len(statements) and not sqlite3.complete_statement(script)
        assert ends_open or sqlite3.complete_statement(f"{statement.text}\n;")
        assert not sqlite3.complete_statement(statement.text), "it would be more than one"


@given(st.lists(st.sampled_from([*PIECES, "E'", "\\'", "$$", "$a$", "::", ":", "*/", "U&'"])).map("".join))
def test_nothing_is_lost_or_invented(script: str) -> None:
    for dialect in BOTH:
        try:
            statements = split(script, dialect)
        except SqlTextError:
            continue
        position = 0
        for statement in statements:
            position = script.index(statement.text, position) + len(statement.text)
            for parameter in statement.parameters:
                assert statement.text[parameter.start : parameter.end] == f":{parameter.name}"


@pytest.mark.parametrize(
    ("script", "numbered", "names"),
    [
        ("SELECT :b, :a, :b", "SELECT $1, $2, $1", ["b", "a"]),
        ("SELECT :a::int, :b::text[]", "SELECT $1::int, $2::text[]", ["a", "b"]),
        ("SELECT x::int, 'a'::text", "SELECT x::int, 'a'::text", []),
        ("SELECT x[1:2], x[low:high], x[:2]", "SELECT x[1:2], x[low:high], x[:2]", []),
        ("SELECT x[:i], ARRAY[:a,:b]", "SELECT x[$1], ARRAY[$2,$3]", ["i", "a", "b"]),
        ("SELECT JSON_OBJECT('k':v, 'l' : :w)", "SELECT JSON_OBJECT('k':v, 'l' : $1)", ["w"]),
        ("SELECT ':a', \":b\", $$:c$$, E'\\':d' -- :e\n/* :f */", None, []),
        ("SELECT :_x9 :Ä", "SELECT $1 $2", ["_x9", "Ä"]),
    ],
)
def test_parameters_of_postgresql(script: str, numbered: str | None, names: list[str]) -> None:
    (statement,) = split(script, "postgresql")
    assert (statement.numbered(), statement.names) == (numbered or script, names)


def test_parameters_of_sqlite() -> None:
    (statement,) = split("SELECT :a, ':b', [:c], `:d`, \":e\", x'00' -- :f\n, :a+:g", "sqlite")
    assert statement.names == ["a", "g"]


@pytest.mark.parametrize(
    ("dialect", "script", "words"),
    [
        ("postgresql", "SELECT 1;\n SELECT 'open", "the text that begins with ' in line 2 is never closed"),
        ("postgresql", "SELECT E'it\\';", "the text that begins with E' in line 1 is never closed"),
        ("postgresql", '\n\nSELECT "open', 'the quoted name that begins with " in line 3 is never closed'),
        ("postgresql", "SELECT $x$ a $y$", "the text that begins with $x$ in line 1 is never closed"),
        ("postgresql", "/* /* */", "the comment that begins with /* in line 1 is never closed"),
        ("sqlite", "SELECT 1 /* *", "the comment that begins with /* in line 1 is never closed"),
        ("sqlite", "SELECT [a", "the quoted name that begins with [ in line 1 is never closed"),
        ("postgresql", "SELECT $1", "line 1: $1 is not supported; write parameters as :name"),
        ("sqlite", "SELECT ?", "line 1: ? is not supported; write parameters as :name"),
        ("sqlite", "SELECT @a", "line 1: @a is not supported"),
        ("sqlite", "SELECT :1", "line 1: :1 is not supported"),
        (
            "postgresql",
            "\\d staff",
            r"line 1: \d is a command of the database's shell, not SQL; remove it",
        ),
        ("postgresql", "SELECT 1\n\\gexec", r"line 2: \gexec is a command of the database's shell"),
        ("sqlite", "SELECT 1;\n.mode csv", "line 2: .mode is a command of the database's shell"),
        ("postgresql", "\ncopy a.t (x) from /* */ stdin;\n1\t'x\n\\.", "line 2: COPY between the server and"),
        ("postgresql", "COPY (SELECT 1) TO STDOUT WITH (FORMAT csv)", "line 1: COPY between the server and"),
    ],
)
def test_what_cannot_be_a_script(dialect: Dialect, script: str, words: str) -> None:
    with pytest.raises(SqlTextError) as raised:
        split(script, dialect)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("script", "verb", "words"),
    [
        ("select 1", "SELECT", ("SELECT",)),
        ("WITH a AS (DELETE FROM t), b AS (SELECT 1) UPDATE t SET x = 1", "UPDATE", ("WITH", "A", "AS")),
        ("/* c */ -- d\n CoMmIt", "COMMIT", ("COMMIT",)),
        ("ROLLBACK TO SAVEPOINT a", "ROLLBACK", ("ROLLBACK", "TO", "SAVEPOINT", "A")),
    ],
)
def test_the_kind_of_a_statement(script: str, verb: str, words: tuple[str, ...]) -> None:
    (statement,) = split(script, "postgresql")
    assert statement.verb == verb
    assert statement.words[: len(words)] == words


def test_lines_are_those_of_the_script() -> None:
    script = "\n-- about the first\nSELECT 1;\n\n/* two\nlines */ SELECT :long_name,\n :b,\n c"
    first, second = split(script, "postgresql")
    assert (first.line, second.line) == (3, 6)
    assert second.line_at(second.numbered().index("$2")) == 7
    assert second.line_at(second.numbered().index("c", second.numbered().index("$2"))) == 8


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    "piece", ["INSERT INTO t VALUES (1, 'a', :x);\n", *"'/[;\\", "''", "E'", "/*", "$a$", "((", ":a"]
)
def test_much_of_anything_is_read(dialect: Dialect, piece: str) -> None:
    """So much that it would not end if it took more than its share of time per character."""
    with suppress(SqlTextError):
        split.__wrapped__(piece * (100_000 // len(piece)), dialect)
