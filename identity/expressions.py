"""Expressions, which compute the value of an attribute from the attributes of an object. Uses no database.

An expression such as `lower(first_name) + "." + lower(last_name)` is compiled once, into nested closures. It
consists only of what is listed in this module, and is never executed as Python code.

Values are text, whole numbers, True and False, lists of these, and None for no value. Decimal numbers, dates
and times are text. A function or operator that misses a value has no value either, with these exceptions:

- `coalesce` returns its first value. `join` and `[…]` leave out what is missing.
- `==`, `!=`, `is None`, `in` and `not in` are always true or false. A missing list contains nothing.
- `and`, `or`, `not` and `… if … else …` take None as false.

A function that returns empty text has no value. A written `""` can be appended to text, but equals None.
"""

from __future__ import annotations

import ast
import operator
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from keyword import iskeyword
from typing import Any

from schedules.placeholders import hint
from text.clean import clean_text

from .values import LARGEST, Kind, as_list, canonical, parse

LONGEST_EXPRESSION = 4_000
LONGEST_RESULT = 64 * 1024
MAX_LEVELS = 50

Evaluate = Callable[[Mapping[str, Any]], Any]
Types = tuple[type, ...]


class ExpressionError(ValueError):
    """The expression cannot be compiled, or has no result for an object; the message says where and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A compiled expression; `reads` are the attributes that it uses.

    If `is_unique`, it has `candidates` for a value that no other object has. Otherwise it has a `value`.
    """

    text: str
    parts: Sequence[Evaluate]
    reads: frozenset[str]
    is_unique: bool = False

    def value(self, attributes: Mapping[str, Any]) -> Any:
        """Return the value for an object, or None; raise ExpressionError if it cannot be computed."""
        if self.is_unique:
            raise ExpressionError("unique(…) has several candidates, and not one value")
        result = self.parts[0](attributes)
        return (_limited(result) or None) if type(result) is str else result

    def candidates(self, attributes: Mapping[str, Any]) -> Iterator[str]:
        """Yield the candidates for an object, then the last one with 2, 3, 4 … appended, without end.

        In an address, the number is inserted before the `@`. Yield nothing if no candidate has a value.
        """
        if not self.is_unique:
            raise ExpressionError(f"“{_shortened(self.text)}” has one value; write unique(…) around it")
        found: list[str] = []
        for part in self.parts:
            value = part(attributes)
            if type(value) is not str and value is not None:
                raise ExpressionError(f"unique(…) needs text, not {_named(value)}; use text(…)")
            if value and _limited(value) not in found:
                found.append(value)
                yield value
        if found:
            name, at, host = found[-1].partition("@")
            numbered = (f"{name}{number}{at}{host}" for number in count(2))
            yield from (each for each in numbered if each not in found)


def compiled(text: str, names: Collection[str]) -> Expression:
    """Compile an expression on objects that have attributes with these names; raise ExpressionError."""
    text = text.strip()
    if not text:
        raise ExpressionError("the expression is empty; write the name of an attribute, or text in quotes")
    if len(text) > LONGEST_EXPRESSION:
        raise ExpressionError(
            f"the expression has {len(text):,} characters, but at most {LONGEST_EXPRESSION:,} are allowed"
        )
    source = _one_line(text)
    compiler = _Compiler(source, names)
    match _parsed(source):
        case ast.Call(func=ast.Name(id="unique"), args=[_, *_] as nodes, keywords=[]):
            return Expression(text, compiler.each(nodes), frozenset(compiler.reads), is_unique=True)
        case node:
            return Expression(text, [compiler.part(node)], frozenset(compiler.reads))


# Reading the text


_QUOTED = r""""(?:[^"\\\r\n]|\\[\\"'nrt])*+"|'(?:[^'\\\r\n]|\\[\\"'nrt])*+'"""
_TOKEN = re.compile(
    rf"(?P<space>\s+)|(?P<quoted>{_QUOTED})|(?P<word>(?:\w|[^\x00-\x7f\s])+)"
    r"|(?P<symbol>==|!=|<=|>=|[-+<>()\[\],])"
)
_NUMBER = re.compile("0|[1-9][0-9]*")
_WORDS = {"and", "or", "not", "if", "else", "in", "is", "None", "True", "False"}
_ALLOWED = (
    'write attributes such as first_name or attribute("Employee No"), text in straight quotes, '
    "whole numbers, functions, and the operators + - == != < <= > >= and or not in if else"
)
_QUOTES = "the quote that starts here is not closed on its line; write a backslash only before \\ \" ' n r t"
_INSTEAD = {
    "=": "= cannot be used; write == to compare",
    ".": 'a dot cannot be used; decimal numbers are text ("1.5"), names with a dot are attribute("a.b")',
    '"': _QUOTES,
    "'": _QUOTES,
}
_TOO_DEEP = f"the expression is nested more than {MAX_LEVELS} levels deep; use join(…) to append many texts"


def _one_line(text: str) -> str:
    """Return the expression on one line, with every character in its place; refuse what is not known.

    After this, the parser sees only parts of this language, and has no reason to warn about anything.
    """
    if clean_text(text) != text:
        raise ExpressionError("the expression contains a character that cannot be stored; remove it")
    line, last = "", ""
    while len(line) < len(text):
        at = len(line)
        token = _TOKEN.match(text, at)
        if reason := _refusal(text, at, token, last):
            raise ExpressionError(f"character {at + 1}: {reason}")
        assert token
        line += " " * len(token[0]) if token["space"] else token[0]
        last = last if token["space"] else str(token.lastgroup)
    return line


def _refusal(text: str, at: int, token: re.Match[str] | None, last: str) -> str:
    """Return why a token cannot be used, or an empty text; `last` is the kind of the token before."""
    if not token:
        return _INSTEAD.get(text[at], f"“{text[at]}” cannot be used; {_ALLOWED}")
    if token["quoted"] and last == "quoted":
        return "put a comma or + between two texts"
    word = token["word"]
    if not word or word in _WORDS:
        return ""
    if iskeyword(word):
        return f'“{word}” cannot be used; an attribute with this name is written attribute("{word}")'
    if text[token.end() : token.end() + 1] in ('"', "'"):
        return f"“{_shortened(word)}” cannot be written directly before a quote; {_ALLOWED}"
    if _NUMBER.fullmatch(word):
        is_too_large = len(word) > len(str(LARGEST)) or int(word) > LARGEST
        return f"{_shortened(word)} is too large; the largest number is {LARGEST}" if is_too_large else ""
    return "" if word.isidentifier() else f"“{_shortened(word)}” is not a name or a whole number; {_ALLOWED}"


def _parsed(source: str) -> ast.expr:
    try:
        return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        advice = 'look for a missing comma, operator or else; names with spaces are attribute("Employee No")'
        reason = f"{error.msg}; {advice}" if error.msg.startswith("invalid syntax") else error.msg
        raise ExpressionError(f"character {error.offset or 1}: {reason}") from None
    except (RecursionError, MemoryError):
        raise ExpressionError(_TOO_DEEP) from None


# Compiling


class _Compiler:
    def __init__(self, source: str, names: Collection[str]) -> None:
        self.source = source.encode()
        self.names = names
        self.reads: set[str] = set()
        self.level = 0

    def each(self, nodes: Sequence[ast.expr]) -> list[Evaluate]:
        return [self.part(node) for node in nodes]

    def part(self, node: ast.expr) -> Evaluate:
        self.level += 1
        if self.level > MAX_LEVELS:
            raise ExpressionError(_TOO_DEEP)
        evaluate = self.value(node)
        self.level -= 1
        return evaluate

    def value(self, node: ast.expr) -> Evaluate:
        match node:
            case ast.Constant(value=str() | int() | None as value):
                return lambda attributes: value
            case ast.Name(id=name):
                return self.attribute(name, node)
            case ast.Call(func=ast.Name(id=name), keywords=[]):
                return self.call(name, node)
            case ast.List(elts=nodes):
                return _list(self.each(nodes), self.place(node))
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                return _choice(self.part(test), self.part(body), self.part(otherwise), self.place(test))
            case ast.BoolOp(op=op, values=nodes):
                return _any_or_all(
                    isinstance(op, ast.Or), [(self.part(each), self.place(each)) for each in nodes]
                )
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return _not(self.part(operand), self.place(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.binary(ast.Constant(0), ast.Sub(), operand)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                return self.binary(left, op, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.comparison(left, op, right)
        raise self.error(node, _REFUSED.get(type(node), _ALLOWED))

    def binary(self, left: ast.expr, op: ast.operator | ast.cmpop, right: ast.expr) -> Evaluate:
        return _binary(_OPERATORS[type(op)], self.part(left), self.part(right), self.place(right))

    def comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Evaluate:
        place = self.place(right)
        match op:
            case ast.Is() | ast.IsNot() if not _is_none(right):
                raise self.error(right, "only None can follow “is” and “is not”; write == or !=")
            case ast.In() | ast.NotIn():
                return _in(self.part(left), self.part(right), isinstance(op, ast.In), place)
            case ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot():
                wanted = isinstance(op, ast.Eq | ast.Is)
                if _is_none(left) or _is_none(right):
                    return _is_empty(self.part(left if _is_none(right) else right), wanted)
                return _equal(self.part(left), self.part(right), wanted, place)
        return self.binary(left, op, right)

    def attribute(self, name: str, node: ast.expr) -> Evaluate:
        if name not in self.names:
            advice = hint(name, self.names) if self.names else "the object type has no attributes"
            raise self.error(node, f"unknown attribute “{_shortened(name)}”; {advice}")
        self.reads.add(name)
        return lambda attributes: attributes.get(name)

    def call(self, name: str, node: ast.Call) -> Evaluate:
        function = FUNCTIONS.get(name)
        if function is None:
            available = ", ".join(FUNCTIONS)
            raise self.error(node, f"“{_shortened(name)}” is not a function; available: {available}")
        if not function.least <= len(node.args) <= function.most:
            raise self.error(node, f"wrong number of arguments ({len(node.args)}); write {function.usage}")
        return function.compile(self, function, node)

    def quoted(self, node: ast.expr, function: Function) -> str:
        match node:
            case ast.Constant(value=str() as value):
                return value
        raise self.error(node, f"must be text in quotes; write {function.usage}")

    def place(self, node: ast.expr) -> str:
        """Return where a node is. The parser counts bytes, and users count characters."""
        return f"character {len(self.source[: node.col_offset].decode()) + 1}"

    def error(self, node: ast.expr, reason: str) -> ExpressionError:
        return ExpressionError(f"{self.place(node)}: {reason}")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or node.value == "")


_REFUSED: dict[type[ast.expr], str] = {
    ast.Subscript: "[ ] cannot follow a value; use first(…), split(…) or substr(…)",
    ast.Tuple: "write several values as a list: [one, two]",
    ast.Call: "only functions can be called",
    ast.Compare: "write comparisons one by one: a < b and b < c",
}


# Operators


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator on two values of the same type, which is one of `takes`."""

    run: Callable[[Any, Any], Any]
    takes: Types
    needs: str


def _binary(operator: Operator, left: Evaluate, right: Evaluate, place: str) -> Evaluate:
    run, takes, needs = operator.run, operator.takes, operator.needs

    def evaluate(attributes: Mapping[str, Any]) -> Any:
        one = left(attributes)
        if one is None:
            return None
        other = right(attributes)
        if other is None:
            return None
        if type(one) is not type(other) or type(one) not in takes:
            raise ExpressionError(f"{place}: {needs}, not {_named(one)} and {_named(other)}")
        return run(one, other)

    return evaluate


def _equal(left: Evaluate, right: Evaluate, wanted: bool, place: str) -> Evaluate:
    def evaluate(attributes: Mapping[str, Any]) -> bool:
        one, other = left(attributes), right(attributes)
        if type(one) is not type(other) and one is not None and other is not None:
            raise ExpressionError(
                f"{place}: {_named(one)} never equals {_named(other)}; use text(…), number(…) or in"
            )
        return (one == other) is wanted

    return evaluate


def _is_empty(part: Evaluate, wanted: bool) -> Evaluate:
    return lambda attributes: (part(attributes) in (None, "")) is wanted


def _in(left: Evaluate, right: Evaluate, wanted: bool, place: str) -> Evaluate:
    def evaluate(attributes: Mapping[str, Any]) -> bool:
        one, several = left(attributes), right(attributes)
        if several is None:
            return not wanted
        if type(several) is not list:
            raise ExpressionError(
                f"{place}: “in” needs a list on its right side, not {_named(several)}; "
                "to search in text, use contains(text, part)"
            )
        return (one in several) is wanted

    return evaluate


def _not(part: Evaluate, place: str) -> Evaluate:
    return lambda attributes: not _truth(part(attributes), place)


def _any_or_all(is_any: bool, parts: Sequence[tuple[Evaluate, str]]) -> Evaluate:
    def evaluate(attributes: Mapping[str, Any]) -> bool:
        for part, place in parts:
            if _truth(part(attributes), place) is is_any:
                return is_any
        return not is_any

    return evaluate


def _choice(test: Evaluate, body: Evaluate, otherwise: Evaluate, place: str) -> Evaluate:
    return lambda attributes: (body if _truth(test(attributes), place) else otherwise)(attributes)


def _truth(value: Any, place: str) -> bool:
    if value is True or value is False:
        return bool(value)
    if value is None:
        return False
    raise ExpressionError(
        f"{place}: a condition must be true or false, not {_named(value)}; "
        'write a comparison, such as department == "Sales" or department is not None'
    )


def _list(parts: Sequence[Evaluate], place: str) -> Evaluate:
    def evaluate(attributes: Mapping[str, Any]) -> list[Any] | None:
        values = [value for part in parts if (value := part(attributes)) not in (None, "")]
        if any(type(value) is list for value in values):
            raise ExpressionError(f"{place}: a list cannot contain another list")
        return values or None

    return evaluate


def _limited(value: Any) -> Any:
    """Return a text or whole number; raise ExpressionError if it is too large to be stored."""
    if type(value) is str:
        _check_length(len(value))
    elif abs(value) > LARGEST:
        raise ExpressionError(f"the result is too large; the largest whole number is {LARGEST}")
    return value


def _check_length(length: int) -> None:
    if length > LONGEST_RESULT:
        raise ExpressionError(
            f"the result would have {length:,} characters, but at most {LONGEST_RESULT:,} are allowed"
        )


def _named(value: object) -> str:
    return _NAMES.get(type(value), "an unknown kind of value")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


_NAMES = {str: "text", int: "a whole number", bool: "true or false", list: "a list", type(None): "no value"}
_ORDER = "< and > need two texts or two whole numbers"
_OPERATORS: dict[type[ast.AST], Operator] = {
    ast.Add: Operator(
        lambda one, other: _limited(one + other),
        (str, int),
        "+ needs two texts or two whole numbers (see text(…) and number(…))",
    ),
    ast.Sub: Operator(lambda one, other: _limited(one - other), (int,), "- needs two whole numbers"),
    ast.Lt: Operator(operator.lt, (str, int), _ORDER),
    ast.LtE: Operator(operator.le, (str, int), _ORDER),
    ast.Gt: Operator(operator.gt, (str, int), _ORDER),
    ast.GtE: Operator(operator.ge, (str, int), _ORDER),
}


# Functions

Compile = Callable[[_Compiler, "Function", ast.Call], Evaluate]


@dataclass(frozen=True, slots=True)
class Function:
    """A function, with the least and largest number of its arguments."""

    usage: str
    least: int
    most: int
    compile: Compile

    @property
    def name(self) -> str:
        return self.usage.partition("(")[0]


def _function(usage: str, run: Callable[..., Any], *takes: Types, optional: int = 0) -> Function:
    """Return a function that has no value if an argument has none; `takes` are the types of its arguments."""

    def compile_call(compiler: _Compiler, function: Function, node: ast.Call) -> Evaluate:
        return _call(function.name, run, takes, compiler.each(node.args), compiler.place(node))

    return Function(usage, len(takes) - optional, len(takes), compile_call)


def _call(
    name: str, run: Callable[..., Any], takes: Sequence[Types], parts: Sequence[Evaluate], place: str
) -> Evaluate:
    typed = tuple(zip(parts, takes, strict=False))

    def evaluate(attributes: Mapping[str, Any]) -> Any:
        values = []
        for part, types in typed:
            value = part(attributes)
            if value is None:
                return None
            if type(value) not in types:
                raise _unfit(name, types, value, place)
            values.append(value)
        try:
            result = run(*values)
        except ValueError as error:
            raise ExpressionError(f"{place}: {name}: {error}") from None
        return None if result == "" else result

    return evaluate


def _unfit(name: str, types: Types, value: object, place: str) -> ExpressionError:
    needed = " or ".join(_NAMES[each] for each in types)
    advice = {list: "; use first(…) or join(…)", int: "; use text(…)"}.get(type(value), "")
    return ExpressionError(f"{place}: {name} needs {needed}, not {_named(value)}{advice}")


def _attribute(compiler: _Compiler, function: Function, node: ast.Call) -> Evaluate:
    return compiler.attribute(compiler.quoted(node.args[0], function), node)


def _inner_unique(compiler: _Compiler, function: Function, node: ast.Call) -> Evaluate:
    raise compiler.error(
        node, "unique(…) cannot be a part of an expression; put it around the whole expression"
    )


def _coalesce(compiler: _Compiler, function: Function, node: ast.Call) -> Evaluate:
    parts = compiler.each(node.args)

    def evaluate(attributes: Mapping[str, Any]) -> Any:
        for part in parts:
            value = part(attributes)
            if value is not None and value != "":
                return value
        return None

    return evaluate


def _join(compiler: _Compiler, function: Function, node: ast.Call) -> Evaluate:
    separator, *parts = compiler.each(node.args)
    place = compiler.place(node)

    def evaluate(attributes: Mapping[str, Any]) -> str | None:
        between = separator(attributes)
        values = [value for part in parts for value in as_list(part(attributes)) if value not in (None, "")]
        for value in [*values, between]:
            if type(value) is not str and value is not None:
                raise _unfit("join", (str,), value, place)
        if between is None or not values:
            return None
        _check_length(sum(map(len, values)) + len(between) * (len(values) - 1))
        return str(between.join(values))

    return evaluate


def _dated(run: Callable[[str, str], str], *, needed: Collection[str]) -> Compile:
    """Return how a function of text and a form of dates is compiled; the form must have the needed parts."""

    def compile_call(compiler: _Compiler, function: Function, node: ast.Call) -> Evaluate:
        form = compiler.quoted(node.args[1], function)
        if reason := _wrong_form(form, needed):
            raise compiler.error(node.args[1], reason)
        text, place = compiler.part(node.args[0]), compiler.place(node)
        return _call(function.name, lambda value: run(value, form), [(str,)], [text], place)

    return compile_call


def _wrong_form(form: str, needed: Collection[str]) -> str:
    """Return what is wrong with the form of a date, or an empty text."""
    parts = [_PARTS_OF_DATE.get(letter, "") for letter in re.findall("%(.?)", form)]
    if not form.isprintable() or not parts or "" in parts or len(set(parts)) < len(parts):
        return (
            f"“{_shortened(form)}” must contain parts of a date, each once: %d %m %Y (or %b %B %y) %H %M %S"
        )
    if missing := [part for part in needed if part not in parts]:
        return f"“{_shortened(form)}” lacks the {missing[0]}; write it as in %d.%m.%Y"
    return ""


def _date(text: str, form: str) -> str:
    try:
        return datetime.strptime(text.strip(), form).date().isoformat()  # noqa: DTZ007
    except ValueError:
        raise ValueError(f"“{_shortened(text)}” is not a date of the form {form}") from None


def _format_date(text: str, form: str) -> str:
    try:
        return datetime.fromisoformat(text.strip()).strftime(form)
    except ValueError:
        raise ValueError(f"“{_shortened(text)}” is not an ISO date, such as 2026-01-31") from None


def _substr(text: str, start: int, length: int = LONGEST_RESULT) -> str:
    if start < 1 or length < 0:
        raise ValueError(f"start ({start}) must be at least 1, and length ({length}) at least 0")
    return text[start - 1 : start - 1 + length]


def _replace(text: str, old: str, new: str) -> str:
    if not old:
        raise ValueError("the text to look for is empty")
    _check_length(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def _split(text: str, separator: str) -> list[str] | None:
    """Split text into its parts, without the spaces around them and without empty parts."""
    if not separator:
        raise ValueError("the separator is empty")
    return [part.strip() for part in text.split(separator) if part.strip()] or None


def _text(value: str | int | bool) -> str:
    return value if isinstance(value, str) else canonical(value)


def _dn(text: str) -> str:
    """Return a value as it is written in a distinguished name, by RFC 4514."""
    escaped = _SPECIAL_IN_DN.sub(r"\\\g<0>", text).replace("\0", r"\00")
    return str(_limited(escaped))


def _ascii(text: str) -> str:
    """Return text in ASCII, as in user names; leave out characters that have no equivalent."""
    spelled = unicodedata.normalize("NFC", text).translate(_SPELLED)
    return unicodedata.normalize("NFKD", spelled).encode("ascii", "ignore").decode()


_TEXT: Types = (str,)
_SPECIAL_IN_DN = re.compile(r'\A[ #]|["+,;<>\\]| \Z')
_GERMANIC = {"ae": "äæ", "Ae": "ÄÆ", "oe": "öøœ", "Oe": "ÖØŒ", "ue": "ü", "Ue": "Ü", "aa": "å", "Aa": "Å"}
_OTHERS = {
    "ss": "ß",
    "SS": "ẞ",
    "d": "đð",
    "D": "ĐÐ",
    "th": "þ",
    "Th": "Þ",
    "l": "ł",
    "L": "Ł",
    "i": "\u0131",
}
_SPELLED = str.maketrans({each: to for to, letters in (_GERMANIC | _OTHERS).items() for each in letters})
_LETTERS = {"day": "d", "month": "mbB", "year": "yY", "hour": "H", "minute": "M", "second": "S"}
_PARTS_OF_DATE = {letter: part for part, letters in _LETTERS.items() for letter in letters}
_FUNCTIONS = [
    _function("ascii(text)", _ascii, _TEXT),
    Function('attribute("Employee No")', 1, 1, _attribute),
    Function("coalesce(value, …)", 1, LONGEST_EXPRESSION, _coalesce),
    _function("contains(text, part)", operator.contains, _TEXT, _TEXT),
    Function('date(text, "%d.%m.%Y")', 2, 2, _dated(_date, needed=("day", "month", "year"))),
    _function("dn(text)", _dn, _TEXT),
    _function("ends_with(text, end)", str.endswith, _TEXT, _TEXT),
    _function("first(list)", lambda values: values[0] if values else None, (list,)),
    Function('format_date(date, "%d.%m.%Y")', 2, 2, _dated(_format_date, needed=())),
    Function("join(separator, value, …)", 2, LONGEST_EXPRESSION, _join),
    _function("length(text or list)", len, (str, list)),
    _function("lower(text)", str.lower, _TEXT),
    _function("number(text)", lambda value: parse(Kind.INTEGER, value), (str, int)),
    _function("replace(text, old, new)", _replace, _TEXT, _TEXT, _TEXT),
    _function("split(text, separator)", _split, _TEXT, _TEXT),
    _function("starts_with(text, start)", str.startswith, _TEXT, _TEXT),
    _function("substr(text, start[, length])", _substr, _TEXT, (int,), (int,), optional=1),
    _function("text(value)", _text, (str, int, bool)),
    _function("title(text)", str.title, _TEXT),
    _function("trim(text)", str.strip, _TEXT),
    Function("unique(candidate, …)", 1, LONGEST_EXPRESSION, _inner_unique),
    _function("upper(text)", str.upper, _TEXT),
]
FUNCTIONS: Mapping[str, Function] = {each.name: each for each in _FUNCTIONS}
