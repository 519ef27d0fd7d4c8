"""What comes in: JSON, and nothing that nobody asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from activities import strict_json

T = TypeVar("T")
MAX_BYTES = 1_048_576


class StrictJSONParser(BaseParser):
    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ParseError(f"The body is longer than {MAX_BYTES:,} bytes.")
        try:
            value = strict_json.loads(raw.decode())
        except UnicodeDecodeError as error:
            raise ParseError("The body is not UTF-8.") from error
        except ValueError as error:
            raise ParseError(f"The body is no proper JSON: {error}.") from error
        if not isinstance(value, dict):
            raise ParseError("The body must be a JSON object.")
        return value


class Strict(serializers.Serializer[T]):
    """Refuses fields that do not exist, by name, instead of ignoring them."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = [name for name, field in self.fields.items() if not field.read_only]
            if unknown := [name for name in data if name not in known]:
                told = f"There is no such field; there are: {', '.join(known) or 'none'}."
                raise serializers.ValidationError(dict.fromkeys(unknown, told))
        return super().to_internal_value(data)


class Nothing(Strict[Any]):
    """The body of actions that need to know no more."""
