from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fleet import Fleet
from tests.settings import TEST_DB

IS_SHARED = "PYTEST_XDIST_WORKER" in os.environ
# Who stops the server of PostgreSQL must be alone with it: make test-postgres-long does that by itself.
ALONE = ["test_outage.py", "test_storm.py"] if IS_SHARED else []
collect_ignore = ALONE if TEST_DB == "postgres" else ["test_frozen_in_transaction.py"]
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def family(tmp_path: Path, settings: Any) -> Callable[..., dict[str, Any]]:
    """A step that runs a program with children; `pids` beside the ledger tells who they are."""
    settings.JIM_EXECUTABLE_FOLDERS = [PROGRAMS]

    def build(name: str, index: int = 0, *, kind: str = "") -> dict[str, Any]:
        config = {"argv": [str(PROGRAMS / "family"), str(tmp_path), kind]}
        return {"name": name, "index": index, "step_type": "executable", "config": config, "max_retries": 0}

    return build


@pytest.fixture
def make_fleet(tmp_path: Path) -> Callable[..., Fleet]:
    def build(**env: str) -> Fleet:
        return Fleet(tmp_path, JIM_EXECUTABLE_FOLDERS=str(PROGRAMS), **env)

    return build
