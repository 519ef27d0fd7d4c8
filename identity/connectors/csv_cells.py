"""Turns objects into the lines of a CSV file, so that an import reads the same objects again."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from identity.shape import AttributeShape, TypeShape
from identity.values import BadValue, as_list

from .csv_objects import Key, Row, as_text
from .csv_records import FIELD_CHARS, RECORD_BYTES
from .csv_settings import AUTO, CsvSettings


@dataclass(frozen=True)
class Style:
    """How the text of a file is stored. `mark` is its byte order mark, and `ending` the end of its lines."""

    encoding: str
    mark: bytes = b""
    ending: str = "\n"

    @classmethod
    def of_new_file(cls, encoding: str) -> Style:
        name = "utf-8" if encoding == AUTO else codecs.lookup(encoding).name
        return cls(name.removesuffix("-sig"), codecs.BOM_UTF8 if name.endswith("-sig") else b"")


class Sheet:
    """A file that is written: a header, and below it the objects of these types."""

    def __init__(
        self, header: Sequence[str], settings: CsvSettings, types: Mapping[str, TypeShape], style: Style
    ) -> None:
        self._header, self._types, self._settings, self._style = header, types, settings, style
        self._places: dict[str, list[int]] = {}
        for place, name in enumerate(header):
            self._places.setdefault(name, []).append(place)
        self._line = _Line()
        # With this line terminator, Python quotes both LF and CR in values.
        self._writer = csv.writer(self._line, delimiter=settings.delimiter, lineterminator="\r\n")

    def beginning(self, *more_columns: str) -> bytes:
        return self._style.mark + self.line([*more_columns, *self._header])

    def key(self, type_name: str, external_id: str, attributes: Mapping[str, Any]) -> Key:
        """Return which object this is. The external id of a new one may be known only as an attribute."""
        shape = self._types.get(type_name)
        value = attributes.get(shape.external_id) if shape else None
        return type_name, external_id or ("" if value is None else as_text(value))

    def line(self, cells: Sequence[str]) -> bytes:
        """Return a line of the file; raise BadValue if an import could not read it."""
        if max(map(len, cells)) > FIELD_CHARS:
            raise BadValue("a value is longer than 1 MiB")
        self._writer.writerow(cells)
        try:
            data = (self._line.text.removesuffix("\r\n") + self._style.ending).encode(self._style.encoding)
        except UnicodeEncodeError as error:
            character = error.object[error.start]
            raise BadValue(
                f"“{character}” cannot be written in the encoding {self._style.encoding}"
            ) from None
        if len(data) > RECORD_BYTES:
            raise BadValue("the values are longer than 10 MiB together")
        return data

    def cells(self, type_name: str, external_id: str, attributes: Mapping[str, Any]) -> Row:
        """Return the cells of an object; raise BadValue if an import would read something else."""
        if type_name not in self._types:
            raise BadValue(f"objects of the type “{type_name}” cannot be written to {self._settings.path}")
        shape, cells = self._types[type_name], [""] * len(self._header)
        cells[self._places[shape.external_id][0]] = _written_id(shape, external_id, attributes)
        if self._settings.type_column:
            cells[self._places[self._settings.type_column][0]] = type_name
        for attribute in shape.attributes.values():
            value = attributes.get(attribute.name)
            if value is not None and attribute.name != shape.external_id:
                self._fill(cells, attribute, [as_text(each) for each in as_list(value)])
        return cells

    def _fill(self, cells: Row, attribute: AttributeShape, values: list[str]) -> None:
        name, separator, places = attribute.name, self._settings.separator, self._places[attribute.name]
        if not attribute.is_multi and len(values) > 1:
            raise BadValue(f"column “{name}”: has {len(values)} values, but the attribute has one value")
        alone = len(places) - 1
        for place, value in zip(places, values[:alone], strict=False):
            cells[place] = value
        cells[places[-1]] = separator.join(values[alone:])
        if attribute.is_multi and values != _values_in([cells[place] for place in places], separator):
            raise BadValue(f"column “{name}”: a value contains “{separator}”, which separates values")


class _Line:
    """Takes the line that a csv.writer writes."""

    text = ""

    def write(self, text: str) -> None:
        self.text = text


def _values_in(cells: Sequence[str], separator: str) -> list[str]:
    return [value for cell in cells for value in cell.split(separator) if value]


def _written_id(shape: TypeShape, external_id: str, attributes: Mapping[str, Any]) -> str:
    column, value = shape.external_id, attributes.get(shape.external_id)
    text = external_id if value is None else as_text(value)
    if not text or text != text.strip():
        raise BadValue(
            f"column “{column}”: “{text}” cannot identify an object: it is empty, or has outer spaces"
        )
    if external_id and text != external_id:
        raise BadValue(
            f"column “{column}”: an external id cannot change, here from “{external_id}” to “{text}”"
        )
    return text
