from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.test import override_settings

from execution import nursery as nursery_module
from execution.nursery import Nursery
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a nursery may take for its start and its end, and when a child of it is no longer needed."""
    for name in ("START_SECONDS", "END_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(nursery_module, name, PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Makes a program in a folder that programs may come from."""

    def make(body: str, *, name: str = "program", interpreter: str = "/bin/sh") -> str:
        path = tmp_path / name
        path.write_text(f"#!{interpreter}\n{body}\n")
        path.chmod(0o755)
        return str(path)

    with override_settings(JIM_EXECUTABLE_FOLDERS=[tmp_path]):
        yield make
