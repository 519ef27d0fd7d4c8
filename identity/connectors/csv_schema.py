"""Proposes types of objects and their attributes from the header and the first records of a CSV file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from identity.shape import AttributeShape, FoundType
from identity.values import BadValue, Kind, parse

from .connector import ConnectorError
from .csv_objects import Columns, Row
from .csv_records import Records
from .csv_settings import CsvSettings

SAMPLE = 1_000
MOST_TYPES = 100
BOOLEANS = {"true", "false", "yes", "no"}
ID_WORDS = {"id", "uid", "guid", "uuid", "number", "no", "nr", "key"}

# In this order; the first pattern that all cells have decides.
PATTERNS = (
    (Kind.INTEGER, re.compile(r"-?(?:0|[1-9][0-9]*)")),
    (Kind.DECIMAL, re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")),
    (Kind.UUID, re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")),
    (Kind.DATE, re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")),
    (Kind.DATETIME, re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*")),
)
DIGITS = re.compile(r"[+-]?[0-9]+(?:[ ./-][0-9]+)*")
LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def found_types(records: Records, settings: CsvSettings) -> list[FoundType]:
    samples = _samples(records, settings)
    return [_found_type(name, records.header, rows, settings) for name, rows in samples.items()]


def sample_of(records: Records) -> list[Row]:
    """Return the first records that have as many fields as the header."""
    return list(islice(_regular(records), SAMPLE))


def _samples(records: Records, settings: CsvSettings) -> dict[str, list[Row]]:
    """Return the first records of each type. The types are searched for in the whole file."""
    if not settings.type_column:
        return {settings.object_type: sample_of(records)}
    place = Columns(settings.path, records.header).one(settings.type_column)
    samples: dict[str, list[Row]] = {}
    for row in _regular(records):
        if (name := row[place].strip()) and len(rows := samples.setdefault(name, [])) < SAMPLE:
            rows.append(row)
        if len(samples) > MOST_TYPES:
            raise ConnectorError(
                f"the column “{settings.type_column}” has more than {MOST_TYPES} different values, so it "
                "does not name types; choose another type_column"
            )
    return samples


def _regular(records: Records) -> Iterator[Row]:
    return (row for _, row in records if len(row) == len(records.header))


def _found_type(name: str, header: Sequence[str], rows: list[Row], settings: CsvSettings) -> FoundType:
    attributes, remarks = [], {}
    columns = Columns(settings.path, header)
    for column in dict.fromkeys(header):
        if column == settings.type_column:
            continue
        places = columns.all(column)
        kind, remark = _proposed([row[place] for row in rows for place in places])
        attributes.append(AttributeShape(column, kind, is_multi=len(places) > 1))
        several = f"the column occurs {len(places)} times: multi-valued" if len(places) > 1 else ""
        if remark or several:
            remarks[column] = "; ".join(filter(None, (remark, several)))
    single = {each.name: columns.one(each.name) for each in attributes if not each.is_multi}
    return FoundType(name, attributes, _external_id(single, rows, settings), remarks=remarks)


def _proposed(cells: Iterable[str]) -> tuple[Kind, str]:
    """Return the kind for a column with these cells, and a remark if it needs one."""
    values = {cell.strip() for cell in cells} - {""}
    if not values:
        return Kind.TEXT, "no values in the first records: taken as text"
    if all(map(DIGITS.fullmatch, values)):
        if any(map(LEADING_ZERO.match, values)):
            return Kind.TEXT, "leading zeros: kept as text"
        if any(value.startswith("+") for value in values):
            return Kind.TEXT, "“+” in front of digits: kept as text"
    if {value.lower() for value in values} <= BOOLEANS:
        return Kind.BOOLEAN, ""
    for kind, pattern in PATTERNS:
        if all(map(pattern.fullmatch, values)):
            return (kind if _fit(kind, values) else Kind.TEXT), ""
    return Kind.TEXT, ""


def _fit(kind: Kind, values: Iterable[str]) -> bool:
    try:
        for value in values:
            parse(kind, value)
    except BadValue:
        return False
    return True


def _external_id(single: dict[str, int], rows: list[Row], settings: CsvSettings) -> str:
    """Return the set external id, or propose the first column that can be one, or an empty string."""
    if settings.external_id:
        if settings.external_id not in single:
            raise ConnectorError(
                f"external_id is “{settings.external_id}”, but {settings.path} has no such column that "
                f"occurs once; its columns are: {', '.join(single)}"
            )
        return settings.external_id
    unique = [name for name, place in single.items() if _is_unique([row[place].strip() for row in rows])]
    return next(filter(_sounds_like_an_id, unique), unique[0] if unique else "")


def _is_unique(cells: list[str]) -> bool:
    return all(cells) and len(set(cells)) == len(cells)


def _sounds_like_an_id(name: str) -> bool:
    words = {word.lower() for word in WORD.findall(name)}
    return bool(words & ID_WORDS) or name.lower().endswith("id")
