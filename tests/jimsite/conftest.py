from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """However wide the window is that the tests run in."""
    monkeypatch.delenv("COLUMNS", raising=False)
