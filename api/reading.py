"""Parsers and serializers of request bodies: strict JSON, exact types, known fields only.

DRF's fields convert values ("3" and 3.0 to 3, 1 to true, 5 to "5", an integer to a UUID), and this cannot be
switched off. `wrong_type` refuses such values, as tests/api/test_foundation.py and other tests require. DRF
validates the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from drf_spectacular.extensions import OpenApiSerializerExtension
from rest_framework import serializers
from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.parsers import BaseParser

from files import given_files, strict_json, yaml_lines
from schedules.spec import SpecError
from schedules.spec.moments import clock_reading
from schedules.spec.wording import shown
from text.clean import clean_text

T = TypeVar("T")
MAX_BYTES = 1_048_576
UNSTORABLE = "The text contains a NUL character or an unpaired surrogate. Remove these characters."
WORDS: dict[type[serializers.Field[Any, Any, Any, Any]], tuple[str, type | tuple[type, ...]]] = {
    serializers.BooleanField: ("true or false", bool),
    serializers.IntegerField: ("a whole number", int),
    serializers.FloatField: ("a number", (int, float)),
    serializers.ListField: ("a list", list),
    serializers.DictField: ("an object", dict),
    serializers.CharField: ("text in quotes", str),
    serializers.ChoiceField: ("text in quotes", str),
    serializers.UUIDField: ("text in quotes", str),
    serializers.DateTimeField: ("text in quotes", str),
}


class StrictJSONParser(BaseParser):
    media_type = "application/json"
    max_bytes = MAX_BYTES
    max_chars = strict_json.MAX_CHARS
    max_depth = strict_json.MAX_DEPTH

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        raw = stream.read(self.max_bytes + 1)
        if len(raw) > self.max_bytes:
            raise ParseError(f"The body is too long. It can have at most {self.max_bytes:,} bytes.")
        try:
            value = strict_json.loads(raw.decode("utf-8-sig"), most=self.max_chars, deepest=self.max_depth)
        except UnicodeDecodeError as error:
            raise ParseError("The body is not valid UTF-8.") from error
        except ValueError as error:
            raise ParseError(f"The body is not valid JSON: {error}.") from error
        if not isinstance(value, dict):
            raise ParseError("The body must be a JSON object.")
        if wrong := dict.fromkeys(_unstorable("", value), UNSTORABLE):
            raise ValidationError(wrong)
        return value


class LongJSONParser(StrictJSONParser):
    """A JSON parser for batches, which can be longer than other bodies."""

    max_bytes = max_chars = 4 * MAX_BYTES


class FileJSONParser(LongJSONParser):
    """A JSON parser for schedule files, which may be nested more deeply than other request bodies."""

    max_depth = yaml_lines.MAX_DEPTH


class YAMLParser(BaseParser):
    """A YAML parser that returns the body as text, so that later errors can name the line."""

    media_type = "application/yaml"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        most = LongJSONParser.max_bytes
        try:
            return given_files.text_of(stream.read(most + 1), most=most)
        except given_files.Unfit as error:
            raise ParseError(f"The body {error.words}.") from error


class Strict(serializers.Serializer[T]):
    """A serializer that refuses unknown fields and wrong types, and reports all errors together."""

    # Fields that other endpoints accept, each with a message that says what to do instead.
    elsewhere: ClassVar[Mapping[str, str]] = {}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return super().to_internal_value(data)
        wrong = {**self._unknown(data), **self._wrong_types(data)}
        try:
            value = super().to_internal_value({name: data[name] for name in data if name not in wrong})
        except serializers.ValidationError as error:
            raise serializers.ValidationError({**dict(error.detail), **wrong}) from error  # type: ignore[arg-type]
        if wrong:
            raise serializers.ValidationError(wrong)
        return value

    def _unknown(self, data: Mapping[str, Any]) -> dict[str, Any]:
        known = [name for name, field in self.fields.items() if not field.read_only]
        told = f"Unknown field. Available fields: {', '.join(known) or 'none'}."
        return {name: self.elsewhere.get(name, told) for name in data if name not in known}

    def _wrong_types(self, data: Mapping[str, Any]) -> dict[str, Any]:
        found = {
            name: wrong_type(self.fields[name], data[name]) for name in data if name in self.fields.fields
        }
        return {name: told for name, told in found.items() if told}


def wrong_type(field: Any, value: Any) -> Any:
    """Return what is wrong with the type of a value: a message, or None or {} if nothing is wrong.

    For a list, return a dict from index to errors; for an object, a dict from name to errors.
    """
    if value is None:
        return None
    for kind, (words, types) in WORDS.items():
        if isinstance(field, kind):
            is_number_for_bool = isinstance(value, bool) and types is not bool
            if not isinstance(value, types) or is_number_for_bool:
                # The error does not repeat values that can never be read, such as secrets.
                return f"expected {words}" if field.write_only else f"expected {words}, found {shown(value)}"
            break
    match field:
        case serializers.DateTimeField():
            return _wrong_moment(value)
        case serializers.ListField():
            inner = {number: wrong_type(field.child, item) for number, item in enumerate(value)}
        case serializers.DictField():
            inner = {name: wrong_type(field.child, item) for name, item in value.items()}
        case _:
            return None
    return {str(name): told for name, told in inner.items() if told}


def _wrong_moment(text: str) -> str | None:
    try:
        moment = clock_reading("", text)
    except SpecError as error:
        return error.message
    return None if moment.tzinfo else "Add the UTC offset to the time, as in 2026-12-01T09:00:00Z."


def _unstorable(path: str, value: Any) -> Iterator[str]:
    match value:
        case str() if clean_text(value) != value:
            yield path
        case dict():
            for name, item in value.items():
                inner = f"{path}.{clean_text(name)}" if path else clean_text(name)
                yield from [inner] if clean_text(name) != name else _unstorable(inner, item)
        case list():
            for number, item in enumerate(value):
                yield from _unstorable(f"{path}.{number}", item)


class Nothing(Strict[Any]):
    """The empty request body of an action that has no options."""


class StrictShape(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """The OpenAPI schema of strict serializers, which says that unknown fields are refused."""

    target_class = "api.reading.Strict"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> Any:
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return {**schema, "additionalProperties": False} if direction == "request" else schema
