"""An export that is ended with `kill -9`, wherever it is, leaves the old file or the new one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from identity.connectors.connector import Change, Export, ReadObject
from identity.connectors.csv_connector import CsvConnector
from identity.shape import AttributeShape, TypeShape

PERSON = TypeShape.of("person", AttributeShape("id"), AttributeShape("name"), external_id="id")
# What an export asks of the operating system, and what may do so for it.
CALLS = {"open", "fdopen", "flock", "write", "flush", "fsync", "fchmod", "replace", "unlink", "close"}
CALLS |= {"ftruncate", "pwrite"}
# Large enough that the draft is written in several parts.
OLD = {str(number): "old" * 2_000 for number in range(5)}
NEW = {str(number): "new" * 3_000 for number in range(4)}


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.JIM_IDENTITY_FOLDERS = [tmp_path]
    return tmp_path


def export(kind: str, names: dict[str, str], watermark: dict[str, Any]) -> dict[str, Any]:
    config = {"path": "ad.csv", "export": kind, "marker": "ad.done", "count_file": "ad.count"}
    objects = [ReadObject("person", key, {"id": key, "name": name}) for key, name in names.items()]
    changes = [Change(1, "update", "person", key, {"name": name}) for key, name in names.items()]
    connector = CsvConnector(CsvConnector.clean(config))
    return connector.export(Export({"person": PERSON}, changes, objects, "run-1", watermark))[1]


def is_killed(call: Callable[[], object], point: int) -> bool:
    """Let another process make the call, and kill it before its `point`-th request if it comes to it."""
    pid = os.fork()
    if pid == 0:
        left = count(point - 1, -1)

        def before_call(frame: FrameType, event: str, function: Any) -> None:
            if event == "c_call" and function.__name__ in CALLS and not next(left):
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(before_call)
        try:
            call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL)
    return status == signal.SIGKILL


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if not path.name.startswith(".")}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_all_objects_are_written_or_none_of_them(folder: Path) -> None:
    before = export("whole", OLD, {})
    old = contents(folder)
    after = export("whole", NEW, before)
    new = contents(folder)
    found = set()
    for point in count(1):
        (folder / "ad.csv").write_text(old["ad.csv"])
        (folder / "ad.count").write_text(old["ad.count"])
        if not is_killed(lambda: export("whole", NEW, before), point):
            break
        assert contents(folder)["ad.csv"] in (old["ad.csv"], new["ad.csv"])
        found.add(contents(folder)["ad.csv"])
        assert export("whole", NEW, before) == after
        assert contents(folder) == new
        assert hidden(folder) == [".ad.csv.lock"]
    assert found == {old["ad.csv"], new["ad.csv"]}
    assert point > 20


def test_a_log_is_written_completely_or_not_at_all(folder: Path) -> None:
    export("log", NEW, {})
    complete = contents(folder)
    found = []
    for point in count(1):
        (folder / "ad.run-1.csv").unlink()
        if not is_killed(lambda: export("log", NEW, {}), point):
            break
        found.append(contents(folder))
        export("log", NEW, {})
        assert contents(folder) == complete
        assert hidden(folder) == [".ad.csv.lock"]
    assert [each for each in found if each not in ({}, complete)] == []
    assert {} in found
    assert complete in found
