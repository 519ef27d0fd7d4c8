from __future__ import annotations

from execution.steps.executable import ExecutableStep
from execution.steps.http import HttpStep
from execution.steps.powershell import PowerShellStep
from execution.steps.python import PythonStep
from execution.steps.sql import SqlStep
from execution.steps.wait import WaitStep

from .step_type import register


def register_own() -> None:
    register(PythonStep)
    register(ExecutableStep)
    register(PowerShellStep)
    register(HttpStep)
    register(SqlStep)
    register(WaitStep)
