"""What is exported to a CSV file is imported from it unchanged, whatever the values are."""

from __future__ import annotations

import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from identity.connectors.connector import Export, ReadObject
from identity.connectors.csv_connector import CsvConnector
from identity.connectors.csv_objects import as_text
from identity.shape import AttributeShape, TypeShape
from identity.values import LARGEST, Kind, parse, parse_each

# Texts that mean something to a reader of CSV files appear more often.
CHARACTERS = st.sampled_from("\"',;|~\t\r\n \ufeff\u2028é") | st.characters(
    exclude_categories=["Cs"], exclude_characters="\0"
)
TEXT = st.text(CHARACTERS, min_size=1, max_size=8)
SEPARATOR = "~~"
RAW: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.TEXT: TEXT,
    Kind.REFERENCE: TEXT,
    Kind.INTEGER: st.integers(-LARGEST, LARGEST),
    Kind.DECIMAL: st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-1e9, max_value=1e9),
    Kind.BOOLEAN: st.booleans(),
    Kind.DATE: st.dates().map(str),
    Kind.DATETIME: st.datetimes().map(str),
    Kind.UUID: st.uuids().map(str),
    Kind.BINARY: st.binary(min_size=1, max_size=8).map(lambda data: b64encode(data).decode()),
}


def shape(name: str) -> TypeShape:
    attributes = [AttributeShape(str(kind), kind) for kind in Kind]
    attributes += [AttributeShape(f"{kind}s", kind, is_multi=True) for kind in Kind]
    return TypeShape.of(name, AttributeShape("id"), *attributes, external_id="id")


TYPES = {name: shape(name) for name in ("person", "group")}


def _can_be_told_apart(values: list[str]) -> bool:
    return SEPARATOR.join(values).split(SEPARATOR) == values


@st.composite
def attributes(draw: st.DrawFn) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for kind in draw(st.sets(st.sampled_from(list(Kind)))):
        values[str(kind)] = parse(kind, draw(RAW[kind]))
        several = parse_each(kind, draw(st.lists(RAW[kind], min_size=1, max_size=3))) or []
        if _can_be_told_apart([as_text(value) for value in several]):
            values[f"{kind}s"] = several
    return values


KEYS = st.tuples(st.sampled_from(["person", "group"]), TEXT.map(str.strip).filter(bool))
OBJECTS = st.dictionaries(KEYS, attributes(), max_size=5)


@given(
    objects=OBJECTS,
    delimiter=st.sampled_from([",", ";", "tab", "|"]),
    encoding=st.sampled_from(["auto", "utf-8-sig", "utf-16-le"]),
    existing=st.sampled_from(
        [b"", b"text,id\r\n", b"\xff\xfet\0e\0x\0t\0,\0i\0d\0\n\0", b"texts,id,texts\n"]
    ),
)
def test_what_is_exported_is_imported(
    objects: dict[tuple[str, str], dict[str, Any]], delimiter: str, encoding: str, existing: bytes
) -> None:
    if delimiter != "," or encoding != "auto":
        existing = b""
    with tempfile.TemporaryDirectory() as name, override_settings(JIM_IDENTITY_FOLDERS=[Path(name)]):
        (Path(name) / "ad.csv").write_bytes(existing)
        config = {"path": "ad.csv", "export": "whole", "type_column": "type", "separator": SEPARATOR}
        connector = CsvConnector(
            CsvConnector.clean(config | {"delimiter": delimiter, "encoding": encoding, "stable_seconds": 0})
        )
        given_objects = [ReadObject(*key, {"id": key[1], **values}) for key, values in objects.items()]
        _, mark = connector.export(Export(TYPES, [], given_objects, "run-1"))
        with connector.open(TYPES, page_size=2) as reading:
            pages = list(reading.pages())
        assert [problem for page in pages for problem in page.problems] == []
        read = [each for page in pages for each in page.objects]
        assert [(each.type, each.external_id, each.attributes) for each in read] == [
            (each.type, each.external_id, each.attributes) for each in given_objects
        ]
        assert reading.watermark() == mark
