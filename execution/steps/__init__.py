from __future__ import annotations

from execution.steps.base import register
from execution.steps.executable import ExecutableStep
from execution.steps.python import PythonStep


def register_own() -> None:
    register(PythonStep)
    register(ExecutableStep)
