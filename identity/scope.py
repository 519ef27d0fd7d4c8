"""Scopes: trees of conditions, which select the objects that a rule applies to. Uses no database.

A tree is JSON: `{"all": […]}`, `{"any": […]}`, `{"not": {…}}`, or a condition such as
`{"attribute": "department", "operator": "equals", "value": "Sales"}`. A scope without conditions (`{}` or
None) holds for all objects. A missing value satisfies only `is_empty` and `not_equals`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from schedules.placeholders import hint

from .shape import AttributeShape
from .values import BadValue, Kind, as_list, canonical, folded, parse, parse_each

MAX_LEVELS = 20
MAX_CONDITIONS = 1_000
ALL_OBJECTS = "all objects"

EXAMPLE = '{"attribute": "department", "operator": "equals", "value": "Sales"}'

Holds = Callable[[Mapping[str, Any]], bool]


class ScopeError(ValueError):
    """The scope cannot be compiled, or cannot be applied to an object; the message says where and why."""


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """A compiled scope: `text` is its meaning in English, and `reads` are the attributes that it uses.

    `holds` raises ScopeError for an object with a value that has not the kind of its attribute.
    """

    text: str
    reads: frozenset[str]
    holds: Holds


def scope(tree: object, shapes: Mapping[str, AttributeShape]) -> Scope:
    """Compile a scope of objects that have these attributes; raise ScopeError."""
    if tree is None or tree == {}:
        return Scope(ALL_OBJECTS, frozenset(), lambda attributes: True)
    compiler = _Compiler(shapes)
    part = compiler.part(tree, "scope", 1)
    return Scope(part.text, frozenset(compiler.reads), part.holds)


# Trees


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    holds: Holds
    is_group: bool = False


class _Compiler:
    """Compiles the parts of a tree. Paths such as `all[1].operator` say where a part is."""

    def __init__(self, shapes: Mapping[str, AttributeShape]) -> None:
        self.shapes = shapes
        self.reads: set[str] = set()
        self.conditions = 0

    def part(self, tree: object, path: str, level: int) -> _Part:
        if level > MAX_LEVELS:
            raise ScopeError(f"{path}: nested too deeply; at most {MAX_LEVELS} levels are allowed")
        if not isinstance(tree, dict):
            raise ScopeError(f"{path}: must be an object, such as {EXAMPLE}")
        match tree:
            case {"attribute": _}:
                return self.condition(tree, path)
            case {"not": inner} if len(tree) == 1:
                return _not(self.part(inner, _at(path, "not"), level + 1))
            case {"all": parts} | {"any": parts} if len(tree) == 1:
                word = min(tree)
                return _group(word, self.parts(parts, _at(path, word), level))
        raise ScopeError(
            f"{path}: must have either all, any, not, or attribute, operator and value, as in {EXAMPLE}"
        )

    def parts(self, trees: object, path: str, level: int) -> list[_Part]:
        if not isinstance(trees, list) or not trees:
            raise ScopeError(f"{path}: must be a list with at least one condition, such as [{EXAMPLE}]")
        return [self.part(each, f"{path}[{place}]", level + 1) for place, each in enumerate(trees)]

    def condition(self, tree: dict[str, object], path: str) -> _Part:
        self.conditions += 1
        if self.conditions > MAX_CONDITIONS:
            raise ScopeError(f"{path}: at most {MAX_CONDITIONS:,} conditions are allowed")
        if unknown := sorted(map(str, tree.keys() - {"attribute", "operator", "value"})):
            raise ScopeError(
                f"{_at(path, unknown[0])}: is unknown; a condition has an attribute, an operator and a value"
            )
        shape = self.shape(tree["attribute"], _at(path, "attribute"))
        found = _operator(tree.get("operator", ""), shape, _at(path, "operator"))
        value = found.value(tree.get("value"), shape, _at(path, "value"))
        self.reads.add(shape.name)
        return _Part(found.text(shape, value), found.compile(shape, value))

    def shape(self, name: object, path: str) -> AttributeShape:
        if not isinstance(name, str) or name not in self.shapes:
            advice = hint(str(name), self.shapes) if self.shapes else "the object type has no attributes"
            raise ScopeError(f"{path}: unknown attribute “{name}”; {advice}")
        return self.shapes[name]


def _at(path: str, name: str) -> str:
    return name if path == "scope" else f"{path}.{name}"


def _group(word: str, parts: list[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    tests, is_any = tuple(part.holds for part in parts), word == "any"

    def holds(attributes: Mapping[str, Any]) -> bool:
        for test in tests:
            if test(attributes) is is_any:
                return is_any
        return not is_any

    texts = [f"({part.text})" if part.is_group else part.text for part in parts]
    return _Part((" or " if is_any else " and ").join(texts), holds, is_group=True)


def _not(part: _Part) -> _Part:
    holds = part.holds
    return _Part(f"not ({part.text})", lambda attributes: not holds(attributes))


# Conditions


@dataclass(frozen=True, slots=True)
class Operator:
    """What a condition says about an attribute; `compile` gets the attribute and the parsed value.

    `words` say it in English. Dates and times have `words_for_time`, if these differ.
    """

    name: str
    words: str
    compile: Callable[[AttributeShape, Any], Holds]
    kinds: Collection[Kind] = frozenset(Kind)
    on_single: bool = True
    on_multi: bool = False
    needs_value: bool = True
    needs_list: bool = False
    words_for_time: str = ""

    def fits(self, shape: AttributeShape) -> bool:
        return shape.kind in self.kinds and (self.on_multi if shape.is_multi else self.on_single)

    def value(self, value: object, shape: AttributeShape, path: str) -> Any:
        """Return the value of a condition as the attribute stores it; raise ScopeError if it does not fit."""
        if not self.needs_value:
            if value is not None and value != "":
                raise ScopeError(f"{path}: {self.name} takes no value; remove it")
            return None
        # Only what compares all values of an attribute at once takes several.
        takes_list = self.needs_list or (shape.is_multi and self.on_single)
        if isinstance(value, list) is not takes_list:
            raise ScopeError(f"{path}: must be {'a list of values' if takes_list else 'a single value'}")
        return _parsed(value, shape.kind, path)

    def text(self, shape: AttributeShape, value: Any) -> str:
        is_time = shape.kind in (Kind.DATE, Kind.DATETIME)
        words = (self.words_for_time if is_time else "") or self.words
        return " ".join([shape.name, words, ", ".join(map(_shown, as_list(value)))]).rstrip()


def _operator(name: object, shape: AttributeShape, path: str) -> Operator:
    found = OPERATORS.get(str(name))
    if not found:
        raise ScopeError(f"{path}: unknown operator “{name}”; {hint(str(name), OPERATORS)}")
    if not found.fits(shape):
        what = f"{shape.kind}, several values" if shape.is_multi else str(shape.kind)
        fitting = ", ".join(each.name for each in OPERATORS.values() if each.fits(shape))
        raise ScopeError(f"{path}: {name} does not fit “{shape.name}” ({what}); choose one of: {fitting}")
    return found


def _parsed(value: object, kind: Kind, path: str) -> Any:
    for each in as_list(value):
        if isinstance(each, list | dict):
            raise ScopeError(f"{path}: must be text, a number, true or false, not a list or an object")
        if each is None or each == "":
            raise ScopeError(f"{path}: is empty; to find objects without a value, use is_empty")
    try:
        parsed = parse_each(kind, value) if isinstance(value, list) else parse(kind, value)
    except BadValue as error:
        raise ScopeError(f"{path}: {error}") from None
    if parsed is None:
        raise ScopeError(f"{path}: is empty; to find objects without a value, use is_empty")
    return parsed


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else canonical(value)
    return text if re.fullmatch(r"[\w.:@+-]+", text) else f"“{text}”"


# What conditions test


def _equals(shape: AttributeShape, value: Any) -> Holds:
    name = shape.name
    return lambda attributes: attributes.get(name) == value


def _not_equals(shape: AttributeShape, value: Any) -> Holds:
    name = shape.name
    return lambda attributes: attributes.get(name) != value


def _is_set(shape: AttributeShape, value: None) -> Holds:
    name = shape.name
    return lambda attributes: attributes.get(name) is not None


def _is_empty(shape: AttributeShape, value: None) -> Holds:
    name = shape.name
    return lambda attributes: attributes.get(name) is None


def _equals_nocase(shape: AttributeShape, value: str) -> Holds:
    wanted = folded(value)
    return _has(shape, lambda held: folded(held) == wanted)


def _starts_with(shape: AttributeShape, value: str) -> Holds:
    return _has(shape, lambda held: str.startswith(held, value))


def _ends_with(shape: AttributeShape, value: str) -> Holds:
    return _has(shape, lambda held: str.endswith(held, value))


def _contains(shape: AttributeShape, value: str) -> Holds:
    return _has(shape, lambda held: str.__contains__(held, value))


def _in(shape: AttributeShape, value: list[Any]) -> Holds:
    wanted = frozenset(value)
    return _has(shape, wanted.__contains__)


def _includes(shape: AttributeShape, value: Any) -> Holds:
    return _has(shape, lambda held: list.__contains__(held, value))


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[AttributeShape, Any], Holds]:
    def compile_order(shape: AttributeShape, value: Any) -> Holds:
        read = _COMPARABLE.get(shape.kind)
        if read is None:
            return _has(shape, lambda held: compare(held, value))
        wanted = read(value)
        return _has(shape, lambda held: compare(read(held), wanted))

    return compile_order


def _has(shape: AttributeShape, test: Callable[[Any], bool]) -> Holds:
    """Return whether an object has a value that passes a test."""
    name = shape.name

    def holds(attributes: Mapping[str, Any]) -> bool:
        held = attributes.get(name)
        if held is None:
            return False
        try:
            return test(held)
        except (TypeError, ValueError, ArithmeticError):
            raise ScopeError(
                f"{name}: the value {_shown(held)} is not of the kind {shape.kind}; run a full import"
            ) from None

    return holds


# Kinds whose stored form has another order than their values.
_COMPARABLE: dict[Kind, Callable[[Any], Any]] = {Kind.DECIMAL: Decimal, Kind.DATETIME: datetime.fromisoformat}
_TEXT = frozenset({Kind.TEXT})
_WITH_ORDER = frozenset({Kind.TEXT, Kind.INTEGER, Kind.DECIMAL, Kind.DATE, Kind.DATETIME})
_OPERATORS = [
    Operator("equals", "is", _equals, on_multi=True),
    Operator("not_equals", "is not", _not_equals, on_multi=True),
    Operator("equals_nocase", "is (ignoring case)", _equals_nocase, _TEXT),
    Operator("starts_with", "starts with", _starts_with, _TEXT),
    Operator("ends_with", "ends with", _ends_with, _TEXT),
    Operator("contains", "contains", _contains, _TEXT),
    Operator("less", "is less than", _ordered(operator.lt), _WITH_ORDER, words_for_time="is before"),
    Operator("at_most", "is at most", _ordered(operator.le), _WITH_ORDER, words_for_time="is not after"),
    Operator("greater", "is greater than", _ordered(operator.gt), _WITH_ORDER, words_for_time="is after"),
    Operator("at_least", "is at least", _ordered(operator.ge), _WITH_ORDER, words_for_time="is not before"),
    Operator("in", "is one of", _in, needs_list=True),
    Operator("includes", "includes", _includes, on_single=False, on_multi=True),
    Operator("is_set", "is set", _is_set, on_multi=True, needs_value=False),
    Operator("is_empty", "is empty", _is_empty, on_multi=True, needs_value=False),
]
OPERATORS: Mapping[str, Operator] = {each.name: each for each in _OPERATORS}
