"""The operations and target types by which activities can be filtered.

The `operations` module of each app adds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from operations.operation import load_operations

from .models import Activity

_operations: set[str] = {Activity.RUN}
_targets: list[Callable[[], Iterable[str]]] = []


def add(*operations: str, targets: Callable[[], Iterable[str]] = tuple) -> None:
    """Add operations and target types by which activities can be filtered. `targets` returns the types."""
    _operations.update(operations)
    _targets.append(targets)


def operations() -> set[str]:
    load_operations()
    return _operations


def target_types() -> set[str]:
    load_operations()
    return {name for targets in _targets for name in targets()}
