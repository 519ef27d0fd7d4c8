"""Which settings a CSV system can have, what it can do with them, and what JIM proposes for a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from identity.connectors.connector import ConnectorError
from identity.connectors.csv_connector import CsvConnector
from identity.shape import AttributeShape, FoundType
from identity.values import Kind
from schedules.registry import ConfigError


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.JIM_IDENTITY_FOLDERS = [tmp_path]
    return tmp_path


def connector(**config: Any) -> CsvConnector:
    return CsvConnector(CsvConnector.clean({"path": "hr.csv", **config}))


def found(folder: Path, content: str, **config: Any) -> FoundType:
    (folder / "hr.csv").write_text(content)
    [proposed] = connector(**config).schema()
    return proposed


# Settings


def test_only_the_path_is_required(folder: Path) -> None:
    config = CsvConnector.clean({"path": "hr.csv"})
    assert (config["object_type"], config["encoding"], config["delimiter"]) == ("person", "auto", ",")
    assert (config["separator"], config["stable_seconds"], config["export"]) == ("|", 5, "none")
    with pytest.raises(ConfigError, match="path: is required"):
        CsvConnector.clean({})


@pytest.mark.parametrize(
    ("config", "field", "message"),
    [
        ({"path": "/elsewhere/hr.csv"}, "path", "JIM_IDENTITY_FOLDERS"),
        ({"path": "../hr.csv"}, "path", "must not contain"),
        ({"encoding": "utf-9"}, "encoding", "unknown encoding"),
        ({"encoding": "base64"}, "encoding", "unknown encoding"),
        ({"encoding": "utf-7"}, "encoding", "cannot be used for CSV files"),
        ({"encoding": "utf-16"}, "encoding", "use auto"),
        ({"encoding": "unicode_escape"}, "encoding", "cannot be used"),
        ({"encoding": "cp037"}, "encoding", "cannot be used"),
        ({"delimiter": "x"}, "delimiter", "must be one of"),
        ({"stable_seconds": -1}, "stable_seconds", "must be a number from 0"),
        ({"stable_seconds": 1e9}, "stable_seconds", "must be a number from 0"),
        ({"stable_seconds": "{{ started_time }}"}, "stable_seconds", "must be a number"),
        ({"marker": "done/hr.csv"}, "marker", "must be a name without a folder"),
        ({"count_file": ".."}, "count_file", "must be a name without a folder"),
        ({"marker": "hr.csv"}, "marker", "must not be the CSV file itself"),
        ({"count_file": "hr.csv"}, "count_file", "must not be the CSV file itself"),
        ({"count_file": "x", "marker": "x"}, "count_file", "must not be the marker"),
        ({"delete_column": "state"}, "delete_value", "need each other"),
        ({"delete_value": "left"}, "delete_value", "need each other"),
        ({"path": "{{ secrets.path }}"}, "path", "cannot contain placeholders"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    folder: Path, config: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        connector(**config)
    assert message in caught.value.errors[field]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "CP1252", "shift_jis", "utf-16-le"])
def test_usual_encodings_are_accepted(folder: Path, encoding: str) -> None:
    assert CsvConnector.clean({"path": "hr.csv", "encoding": encoding})["encoding"] == encoding


@pytest.mark.parametrize(
    ("export", "can"),
    [
        ("none", {"delta"}),
        ("whole", {"delta", "export"}),
        ("log", {"delta", "export", "auto_confirm"}),
    ],
)
def test_what_the_system_can_do_follows_from_its_settings(folder: Path, export: str, can: set[str]) -> None:
    assert connector(export=export).can == can


# Test of the settings


def test_a_test_tells_what_it_found(folder: Path) -> None:
    (folder / "hr.csv").write_bytes(b"\xef\xbb\xbfid;name\n7;Ada\nragged\n")
    assert connector(delimiter=";").test() == [
        "hr.csv has 24 bytes in the encoding utf-8 with a byte order mark",
        "2 columns: id, name",
        "readable records: 1",
    ]


def test_a_test_reads_only_the_first_records(folder: Path) -> None:
    (folder / "hr.csv").write_text("id\n" + "7\n" * 200_000 + '"never closed')
    assert connector().test()[-1] == "readable records: at least 1,000"


def test_a_file_that_an_export_will_create_need_not_exist(folder: Path) -> None:
    assert connector(export="whole").test() == ["hr.csv does not exist yet; an export creates it"]
    with pytest.raises(ConnectorError, match=r"hr\.csv does not exist"):
        connector().test()


# Proposals


@pytest.mark.parametrize(
    ("cells", "kind", "remark"),
    [
        (["1", "-20", "0", ""], Kind.INTEGER, ""),
        (["1", str(2**63)], Kind.TEXT, ""),
        (["1.5", "2", "-0.25"], Kind.DECIMAL, ""),
        (["007", "8"], Kind.TEXT, "leading zeros: kept as text"),
        (["1", "02.5"], Kind.TEXT, "leading zeros: kept as text"),
        (["+48 123", "+1"], Kind.TEXT, "“+” in front of digits: kept as text"),
        (["yes", "NO", "true"], Kind.BOOLEAN, ""),
        (["0", "1"], Kind.INTEGER, ""),
        (["y", "n"], Kind.TEXT, ""),
        (["2026-01-31"], Kind.DATE, ""),
        (["2026-02-31"], Kind.TEXT, ""),
        (["2026-01-31T09:00:00Z", "2026-01-31 09:00"], Kind.DATETIME, ""),
        (["2026-01-31 25:00"], Kind.TEXT, ""),
        (["2026-01-31", "2026-01-31 09:00"], Kind.TEXT, ""),
        (["123E4567-e89b-12d3-a456-426614174000"], Kind.UUID, ""),
        (["Ada", "7"], Kind.TEXT, ""),
        (["", " "], Kind.TEXT, "no values in the first records: taken as text"),
    ],
)
def test_the_kind_of_a_column_is_proposed(folder: Path, cells: list[str], kind: Kind, remark: str) -> None:
    proposed = found(folder, "x,key\n" + "".join(f"{cell},k{n}\n" for n, cell in enumerate(cells)))
    assert proposed.attributes[0] == AttributeShape("x", kind)
    assert proposed.remarks.get("x", "") == remark


def test_a_column_that_occurs_twice_is_multi_valued(folder: Path) -> None:
    proposed = found(folder, "id,mail,phone,mail\n7,a@x,1,b@x\n")
    assert proposed.attributes == [
        AttributeShape("id", Kind.INTEGER),
        AttributeShape("mail", is_multi=True),
        AttributeShape("phone", Kind.INTEGER),
    ]
    assert proposed.remarks == {"mail": "the column occurs 2 times: multi-valued"}


@pytest.mark.parametrize(
    ("header", "rows", "external_id"),
    [
        ("name,employee_id", ["Ada,7", "Bob,8"], "employee_id"),
        ("name,employeeID", ["Ada,7", "Bob,8"], "employeeID"),
        ("name,employeeid", ["Ada,7", "Bob,8"], "employeeid"),
        ("name,EmployeeNumber", ["Ada,7", "Bob,8"], "EmployeeNumber"),
        ("name,Staff no", ["Ada,7", "Bob,8"], "Staff no"),
        ("middle_name,x", ["Ada,7", "Bob,8"], "middle_name"),
        ("department_id,mail", ["1,a@x", "1,b@x"], "mail"),
        ("manager_id,mail", [",a@x", "7,b@x"], "mail"),
        ("id,name", ["7,Ada", " 7,Bob"], "name"),
        ("a,b", ["1,1", "1,1"], ""),
        ("id,id", ["1,2"], ""),
        ("name,id", [], "id"),
    ],
)
def test_an_external_id_is_proposed(folder: Path, header: str, rows: list[str], external_id: str) -> None:
    assert found(folder, "\n".join([header, *rows, ""])).external_id == external_id


def test_an_external_id_that_is_set_is_used(folder: Path) -> None:
    assert found(folder, "id,mail\n7,a@x\n", external_id="mail").external_id == "mail"
    with pytest.raises(ConnectorError, match=r"external_id is “login”, but .* its columns are: id, mail"):
        found(folder, "id,mail\n7,a@x\n", external_id="login")


def test_types_are_searched_for_in_the_whole_file(folder: Path) -> None:
    persons = "".join(f"person,{n},Ada\n" for n in range(1_500))
    (folder / "hr.csv").write_text("kind,id,name\n" + persons + "group,a,Admins\n group ,b,Users\n,c,\n")
    kinds: dict[str, Mapping[str, Kind]] = {
        each.name: {attribute.name: attribute.kind for attribute in each.attributes}
        for each in connector(type_column="kind").schema()
    }
    assert kinds == {
        "person": {"id": Kind.INTEGER, "name": Kind.TEXT},
        "group": {"id": Kind.TEXT, "name": Kind.TEXT},
    }


def test_a_column_with_many_values_does_not_name_types(folder: Path) -> None:
    (folder / "hr.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(200)))
    with pytest.raises(ConnectorError, match="“id” has more than 100 different values"):
        connector(type_column="id").schema()
