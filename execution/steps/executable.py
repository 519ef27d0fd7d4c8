"""The executable step: a program from an allow-listed folder, run in a clean environment without a shell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from execution.steps import programs
from execution.steps.fields import Field
from schedules.placeholders import has_placeholders

from .context import Context
from .step_type import StepType


class ExecutableStep(StepType):
    name = "executable"
    title = "Executable"
    fields = (
        Field(
            "argv",
            "Program and arguments",
            kind="list",
            required=True,
            secrets=False,
            text_only=True,
            help="the program's absolute path, then one entry per argument; no shell is involved",
        ),
        programs.CWD,
        programs.ENV,
    )

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        return programs.complaints(values, argv=_argv_complaint(values["argv"]))

    def run(self, ctx: Context) -> object:
        argv = ctx.config["argv"]
        # Start the path without links, so that a link that changes later cannot lead to another program.
        return programs.result_of(programs.run(ctx, argv=argv, program=str(Path(argv[0]).resolve())))


def _argv_complaint(argv: list[Any] | str) -> str:
    if isinstance(argv, str) or has_placeholders(argv[0]):
        return "the first entry must be the path of the program, and cannot contain placeholders"
    if complaint := programs.arguments_complaint(argv) or programs.path_complaint(argv[0], what="program"):
        return complaint
    path = Path(argv[0]).resolve()
    if not path.is_file() or not os.access(path, os.X_OK):
        return f"{argv[0]} is not executable; run chmod +x on it"
    return ""
