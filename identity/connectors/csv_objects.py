"""Reads the records of a CSV file as objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from identity.shape import AttributeShape, TypeShape
from identity.values import Attributes, BadValue, Kind, canonical, parse, parse_each

from .connector import ConnectorError, Problem, ReadObject
from .csv_settings import DELIMITER_NAMES, CsvSettings

# These values are what their cells contain.
TEXTS = {Kind.TEXT, Kind.REFERENCE}

Row = list[str]
# The type and external id of an object.
Key = tuple[str, str]


class Unreadable(Exception):
    """A record that cannot be read as an object. What is known of the object is passed on."""

    def __init__(self, error_type: str, message: str, *, type_name: str = "", external_id: str = "") -> None:
        super().__init__(message)
        self.error_type, self.type_name, self.external_id = error_type, type_name, external_id

    def problem(self, line: int) -> Problem:
        return Problem(
            self.type_name, f"line {line}", self.error_type, f"line {line}: {self}", self.external_id
        )


class Columns:
    """Where the columns of a header are. A name that occurs several times is one multi-valued column."""

    def __init__(self, shown: str, header: Sequence[str]) -> None:
        self._shown, self._header = shown, header

    def all(self, name: str) -> tuple[int, ...]:
        found = tuple(place for place, each in enumerate(self._header) if each == name)
        if not found:
            raise ConnectorError(
                f"{self._shown} has no column “{name}”; its header is: {', '.join(self._header)}. "
                "Correct the header, or read the schema of the system again"
            )
        return found

    def one(self, name: str) -> int:
        found = self.all(name)
        if len(found) > 1:
            raise ConnectorError(
                f"{self._shown} has {len(found)} columns “{name}”, but this attribute has one value; "
                "make the attribute multi-valued, or rename the other columns"
            )
        return found[0]

    def optional(self, name: str) -> int | None:
        return self.one(name) if name else None


class TypeReader:
    """Reads the records of one type."""

    def __init__(self, shape: TypeShape, columns: Columns, separator: str) -> None:
        attributes = dict(shape.attributes)
        self.name, self.id_name = shape.name, shape.external_id
        self.id_place = columns.one(self.id_name)
        known_id = attributes.pop(self.id_name, None)
        self._id_kind = Kind.TEXT if known_id is None or known_id.kind in TEXTS else known_id.kind
        self._shows_id = known_id is not None
        texts = {name for name, each in attributes.items() if each.kind in TEXTS and not each.is_multi}
        self._texts = [(name, columns.one(name)) for name in attributes if name in texts]
        self._others = [
            (name, _conversion(each, columns, separator))
            for name, each in attributes.items()
            if name not in texts
        ]

    def identify(self, row: Row) -> Any:
        """Return the value of the external id; raise Unreadable."""
        cell = row[self.id_place].strip()
        if not cell:
            message = f"column “{self.id_name}” is empty, so JIM cannot tell which object this is"
            raise Unreadable("missing_external_id", message, type_name=self.name)
        if self._id_kind is Kind.TEXT:
            return cell
        try:
            return parse(self._id_kind, cell)
        except BadValue as error:
            message = f"column “{self.id_name}”: {error}"
            raise Unreadable("bad_value", message, type_name=self.name) from None

    def attributes(self, row: Row, external_id: Any) -> tuple[Attributes, list[str]]:
        """Return the values of the record, and what is wrong with those that do not fit."""
        values: Attributes = {name: cell for name, place in self._texts if (cell := row[place])}
        if self._shows_id:
            values[self.id_name] = external_id
        bad = []
        for name, conversion in self._others:
            try:
                value = conversion(row)
            except BadValue as error:
                bad.append(f"column “{name}”: {error}")
            else:
                if value is not None:
                    values[name] = value
        return values, bad


def _conversion(shape: AttributeShape, columns: Columns, separator: str) -> Callable[[Row], Any]:
    """Return how the value of an attribute is read from a record."""
    kind = shape.kind
    if not shape.is_multi:
        place = columns.one(shape.name)
        return lambda row: parse(kind, row[place])
    places = columns.all(shape.name)
    return lambda row: parse_each(kind, (part for place in places for part in row[place].split(separator)))


class ObjectReader:
    """Reads the records of a file. `repeated` has the lines of external ids that occur more than once."""

    def __init__(
        self,
        settings: CsvSettings,
        header: Sequence[str],
        types: Mapping[str, TypeShape],
        *,
        is_delta: bool,
    ) -> None:
        columns = Columns(settings.path, header)
        self.repeated: Mapping[Key, list[int]] = {}
        self.change_place = columns.optional(settings.change_column)
        self._settings, self._width = settings, len(header)
        self._types = {name: TypeReader(shape, columns, settings.separator) for name, shape in types.items()}
        self._type_place = columns.optional(settings.type_column)
        self._only = None if settings.type_column else next(iter(self._types.values()))
        self._delete_place = columns.optional(settings.delete_column)
        self._tells_deletes = self._delete_place is not None and is_delta
        self._leaves_out = self._delete_place is not None and not is_delta

    def key(self, row: Row) -> Key | None:
        """Return which object the record describes, or None if the record is not read or does not say it."""
        if len(row) != self._width or (self._leaves_out and self._is_deleted(row)):
            return None
        try:
            reader = self._only or self._reader_of(row)
            return reader.name, as_text(reader.identify(row))
        except Unreadable:
            return None

    def read(self, row: Row, line: int) -> ReadObject | None:
        """Return the object, or None if a full import leaves it out as deleted; raise Unreadable."""
        if len(row) != self._width:
            raise self._ragged(row)
        if self._leaves_out and self._is_deleted(row):
            return None
        reader = self._only or self._reader_of(row)
        value = reader.identify(row)
        external_id, place = as_text(value), f"line {line}"
        if self.repeated and (reader.name, external_id) in self.repeated:
            raise self._repeated(reader, external_id, line)
        if self._tells_deletes and self._is_deleted(row):
            return ReadObject(reader.name, external_id, {}, place, is_deleted=True)
        attributes, bad = reader.attributes(row, value)
        if bad:
            raise Unreadable("bad_value", "; ".join(bad), type_name=reader.name, external_id=external_id)
        return ReadObject(reader.name, external_id, attributes, place)

    def change(self, row: Row) -> str:
        """Return the cell of the change column, or an empty string if it cannot be found in the record."""
        if self.change_place is None or len(row) != self._width:
            return ""
        return row[self.change_place]

    def _is_deleted(self, row: Row) -> bool:
        return (
            self._delete_place is not None and row[self._delete_place].strip() == self._settings.delete_value
        )

    def _reader_of(self, row: Row) -> TypeReader:
        assert self._type_place is not None
        name = row[self._type_place].strip()
        if name in self._types:
            return self._types[name]
        column = self._settings.type_column
        message = f"column “{column}”: “{name}” is not a selected type; select it, or correct the record"
        raise Unreadable("unknown_type", message, type_name=name)

    def _repeated(self, reader: TypeReader, external_id: str, line: int) -> Unreadable:
        other = next(each for each in self.repeated[reader.name, external_id] if each != line)
        message = f"“{external_id}” is also in line {other}; correct or remove one of these records"
        return Unreadable("duplicate_object", message, type_name=reader.name, external_id=external_id)

    def _ragged(self, row: Row) -> Unreadable:
        delimiter = DELIMITER_NAMES[self._settings.delimiter]
        cause = "a missing field or an unquoted line break"
        if len(row) > self._width:
            cause = f"an unquoted {delimiter}"
        message = f"the record has {len(row)} fields, but the header has {self._width}; check for {cause}"
        return Unreadable(
            "bad_record",
            message,
            type_name=self._only.name if self._only else "",
            external_id=self._id_of_ragged(row),
        )

    def _id_of_ragged(self, row: Row) -> str:
        """Return the external id of a record with too many or too few fields, or an empty string.

        Only the first field is surely in its place, and only if no other record has become part of this one.
        """
        if self._only is None or self._only.id_place or any("\n" in cell for cell in row):
            return ""
        try:
            return as_text(self._only.identify(row))
        except Unreadable:
            return ""


def as_text(value: Any) -> str:
    """Return the value of an external id as text."""
    return value if isinstance(value, str) else canonical(value)
