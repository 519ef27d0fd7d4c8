"""The settings of the CSV connector."""

from __future__ import annotations

import codecs
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from execution.steps.fields import Field
from identity.shape import TypeShape

from .connector import ConnectorError
from .handover import SETTING, name_complaint, path_complaint

AUTO = "auto"
DELIMITERS = {",": ",", ";": ";", "tab": "\t", "|": "|"}
DELIMITER_NAMES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
MOST_STABLE_SECONDS = 86_400
# UTF-16 without a byte order mark; with one, it is recognised by `auto`.
WIDE_ENCODINGS = {"utf-16-le", "utf-16-be"}

FIELDS = (
    Field(
        "path",
        "File",
        required=True,
        fixed=True,
        help=f"the path of the CSV file, absolute or relative to the first folder of {SETTING}",
    ),
    Field("object_type", "Type of objects", default="person", fixed=True, help="what each record describes"),
    Field(
        "type_column",
        "Type column",
        fixed=True,
        help="the column that names the type of each record, if the file has several types",
    ),
    Field(
        "external_id",
        "External id",
        fixed=True,
        help="the column that identifies an object for its whole life; if empty, JIM proposes one",
    ),
    Field(
        "encoding",
        "Encoding",
        default=AUTO,
        fixed=True,
        help="auto reads UTF-8, and UTF-16 with a byte order mark; other encodings by name, such as cp1252",
    ),
    Field(
        "delimiter",
        "Delimiter",
        kind="choice",
        default=",",
        choices=tuple((name, DELIMITER_NAMES[delimiter]) for name, delimiter in DELIMITERS.items()),
    ),
    Field(
        "separator",
        "Separator of values",
        default="|",
        fixed=True,
        help="separates several values in one cell of a multi-valued column",
    ),
    Field(
        "marker",
        "Marker file",
        fixed=True,
        help="the name of a file beside the CSV file that shows that it is complete, such as hr.csv.done",
    ),
    Field(
        "stable_seconds",
        "Stable for seconds",
        kind="number",
        default=5,
        fixed=True,
        help="without a marker: how long the file must not have changed before it is read",
    ),
    Field(
        "count_file",
        "Count file",
        fixed=True,
        help="the name of a file beside the CSV file that contains the number of its records",
    ),
    Field(
        "change_column",
        "Change column",
        fixed=True,
        help="a column with a time or number that grows with each change; delta imports read what is new",
    ),
    Field(
        "delete_column", "Delete column", fixed=True, help="the column that shows that an object is deleted"
    ),
    Field("delete_value", "Delete value", fixed=True, help="the value of this column for deleted objects"),
    Field(
        "export",
        "Export",
        kind="choice",
        default="none",
        choices=(
            ("none", "no exports"),
            ("whole", "replace the file with all objects"),
            ("log", "write the changes of each export to a new file"),
        ),
    ),
)


@dataclass(frozen=True)
class CsvSettings:
    path: str
    object_type: str
    type_column: str
    external_id: str
    encoding: str
    delimiter: str
    separator: str
    marker: str
    stable_seconds: float
    count_file: str
    change_column: str
    delete_column: str
    delete_value: str
    export: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> CsvSettings:
        return cls(**{**config, "delimiter": DELIMITERS[config["delimiter"]]})

    def types_in_file(self, types: Mapping[str, TypeShape]) -> dict[str, TypeShape]:
        """Return the types that records of the file can have; raise ConnectorError if they do not fit."""
        if not self.type_column:
            if self.object_type not in types:
                raise ConnectorError(
                    f"{self.path} contains objects of the type “{self.object_type}”, which is not selected; "
                    "select it, or change object_type"
                )
            types = {self.object_type: types[self.object_type]}
        for shape in types.values():
            self._check_id(shape)
        return dict(types)

    def _check_id(self, shape: TypeShape) -> None:
        if self.external_id and self.external_id != shape.external_id:
            raise ConnectorError(
                f"the setting external_id is “{self.external_id}”, but objects of the type “{shape.name}” "
                f"are identified by “{shape.external_id}”; change the setting, or read the schema again"
            )
        known = shape.attributes.get(shape.external_id)
        if known is not None and known.is_multi:
            raise ConnectorError(
                f"“{shape.external_id}” identifies objects of the type “{shape.name}”, so it cannot be "
                "multi-valued; make it single-valued, or choose another external id"
            )


def complaints(values: Mapping[str, Any]) -> dict[str, str]:
    found = {
        "path": path_complaint(values["path"]),
        "encoding": _encoding_complaint(values["encoding"]),
        "stable_seconds": _seconds_complaint(values["stable_seconds"]),
        "marker": name_complaint(values["marker"]),
        "count_file": name_complaint(values["count_file"]),
    }
    for name in ("marker", "count_file"):
        if values[name] and values[name] == PurePath(values["path"]).name:
            found[name] = "must not be the CSV file itself; name another file beside it"
    if values["marker"] and values["marker"] == values["count_file"]:
        found["count_file"] = "must not be the marker; name another file"
    if bool(values["delete_column"]) != bool(values["delete_value"]):
        found["delete_value"] = "delete_column and delete_value need each other; set both or neither"
    return {name: complaint for name, complaint in found.items() if complaint}


def _encoding_complaint(encoding: str) -> str:
    if encoding == AUTO:
        return ""
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")
        is_plain = string.printable.encode(name) == string.printable.encode()
    except (LookupError, UnicodeError):
        return f"unknown encoding {encoding!r}; use auto, or a name such as cp1252, latin-1 or utf-8"
    if name in WIDE_ENCODINGS or is_plain:
        return ""
    return f"{encoding} cannot be used for CSV files; use auto, cp1252, latin-1, utf-16-le or utf-16-be"


def _seconds_complaint(seconds: float) -> str:
    if 0 <= seconds <= MOST_STABLE_SECONDS:
        return ""
    return f"must be a number from 0 to {MOST_STABLE_SECONDS:,}"
