"""The powershell step: a script from an allow-listed folder, run with the pwsh that the worker finds."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

from django.conf import settings

from execution.children.alarms import alarms
from execution.steps import programs
from execution.steps.fields import Field

from .context import Context
from .outcome import CannotRun, Interrupted
from .step_type import StepType

OPTIONS = ("-NoLogo", "-NoProfile", "-NonInteractive")
WAY_OUT = "install PowerShell 7, or set JIM_PWSH to its path"
PROBE_SECONDS = 30.0
# Exit codes from this one on, and signals, can mean that PowerShell is broken; scripts use lower codes.
LEAST_BROKEN = 126


class PowerShellStep(StepType):
    name = "powershell"
    title = "PowerShell script"
    fields = (
        Field(
            "script",
            "Script",
            required=True,
            fixed=True,
            help="the absolute path of a .ps1 file",
        ),
        Field(
            "arguments",
            "Arguments",
            kind="list",
            secrets=False,
            text_only=True,
            help='one entry per parameter name or value, such as ["-Region", "north"]',
        ),
        programs.CWD,
        programs.ENV,
    )

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        return programs.complaints(
            values,
            script=_script_complaint(values["script"]),
            arguments=programs.arguments_complaint(values["arguments"]),
        )

    def run(self, ctx: Context) -> object:
        pwsh = _find()
        # Pass the path without links, so that a link that changes later cannot lead to another script.
        script = str(Path(ctx.config["script"]).resolve())
        argv = [pwsh, *OPTIONS, "-File", script, *ctx.config["arguments"]]
        try:
            returncode = programs.run(ctx, argv=argv, program=pwsh, env=_environment())
        except CannotRun as error:
            raise CannotRun(f"{error}; {WAY_OUT}") from None
        if not 0 <= returncode < LEAST_BROKEN and _is_broken(ctx, pwsh):
            told = f"{pwsh} is broken on worker {socket.gethostname()}: it cannot print its version"
            raise CannotRun(f"{told}; see the output of the step; {WAY_OUT}")
        return programs.result_of(returncode)


def _script_complaint(script: str) -> str:
    if complaint := programs.path_complaint(script, what="script"):
        return complaint
    path = Path(script).resolve()
    if not path.is_file() or path.suffix.lower() != ".ps1":
        return f"{script} is not a PowerShell script: the file name must end in .ps1"
    return ""


def _find() -> str:
    found = shutil.which(settings.JIM_PWSH, path=programs.SEARCH_PATH)
    if found is None:
        raise CannotRun(f"{settings.JIM_PWSH} is not installed on worker {socket.gethostname()}; {WAY_OUT}")
    return found


def _environment() -> dict[str, str]:
    """Return variables that turn off colours and telemetry and keep PowerShell's files out of HOME.

    HOME is the working folder of the step.
    """
    own = Path(settings.JIM_DATA_DIR, "powershell")
    return {
        "TERM": "dumb",
        "NO_COLOR": "1",
        "POWERSHELL_TELEMETRY_OPTOUT": "1",
        "POWERSHELL_UPDATECHECK": "Off",
        "XDG_CACHE_HOME": str(own / "cache"),
        "XDG_CONFIG_HOME": str(own / "config"),
        "XDG_DATA_HOME": str(own / "data"),
    }


def _is_broken(ctx: Context, pwsh: str) -> bool:
    probe = Context(ctx.work, DiscardingSink(), lease=ctx.lease)
    probe.config, probe.nursery = ctx.config, ctx.nursery
    alarm = alarms.after(PROBE_SECONDS, lambda: probe.interrupt("timeout"))
    try:
        with ctx.on_interrupt(lambda: probe.interrupt("cancel")):
            return programs.run(probe, argv=[pwsh, "-Version"], program=pwsh, env=_environment()) != 0
    except Interrupted:
        ctx.check()
        return True
    finally:
        alarms.cancel(alarm)


class DiscardingSink:
    """A sink that discards the output of a probe."""

    def output(self, stream: str, lines: list[str]) -> None: ...

    def progress(self, done: int, total: int | None, message: str) -> None: ...

    def item(self, name: str, outcome: str, message: str) -> None: ...
