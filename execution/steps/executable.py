"""A program from the allow-listed folders: arguments as a list, a clean environment, never a shell."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings

from activities.text import clean_text
from execution.steps.base import Context, StepFailed, StepType
from execution.steps.fields import Field

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that make a program load other code than its own, and the names that JIM gives itself.
FORBIDDEN_ENV = re.compile(
    r"(LD|DYLD|GCONV|BASH|JIM)_.*|PYTHON.*|PERL5?(LIB|OPT|DB)|RUBY(OPT|LIB)|NODE_(OPTIONS|PATH)|ENV|IFS|PS4"
    r"|SHELLOPTS|BASHOPTS|CLASSPATH|_?JAVA_(TOOL_)?OPTIONS|JDK_JAVA_OPTIONS"
)


class ExecutableStep(StepType):
    name = "executable"
    title = "Executable"
    fields = (
        Field(
            "argv",
            "Program and arguments",
            kind="list",
            required=True,
            help="the program's absolute path, then one entry per argument; no shell reads them",
        ),
        Field("cwd", "Working folder", help="an absolute path; the system's temporary folder if empty"),
        Field(
            "env",
            "Environment",
            kind="mapping",
            help="added to PATH, LANG, HOME and the JIM_… variables; nothing else is passed on",
        ),
    )

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        complaints = {
            "argv": _argv_complaint(values["argv"]),
            "cwd": _cwd_complaint(values["cwd"]),
            "env": _env_complaint(values["env"]),
        }
        return {field: complaint for field, complaint in complaints.items() if complaint}

    def run(self, ctx: Context) -> object:
        assert ctx.nursery is not None
        argv, cwd = ctx.config["argv"], ctx.config["cwd"] or tempfile.gettempdir()
        # The path that was checked is the one that is started, wherever its links point by then.
        program = str(Path(argv[0]).resolve())
        env = _environment(ctx, home=cwd) | ctx.config["env"]
        with ctx.nursery.spawn(argv=argv, program=program, env=env, cwd=cwd) as child:
            ctx.started()
            with ctx.on_interrupt(child.stop):
                child.wait(ctx)
        if child.stopped:
            ctx.check()
        if child.returncode:
            raise StepFailed(_ending(child.returncode))
        return {"exit_code": 0}


def _environment(ctx: Context, *, home: str) -> dict[str, str]:
    return {
        "PATH": SEARCH_PATH,
        "LANG": "C.UTF-8",
        "HOME": home,
        "PYTHONUNBUFFERED": "1",  # lines of Python programs appear when they are printed, not at the end
        "JIM_IDEMPOTENCY_KEY": ctx.idempotency_key,
        "JIM_ATTEMPT": str(ctx.attempt),
        "JIM_EXECUTION": "" if ctx.work.execution_id is None else str(ctx.work.execution_id),
        "JIM_SCHEDULE": clean_text(ctx.work.schedule_name),
        "JIM_STEP": clean_text(ctx.work.name),
        "JIM_NOMINAL_TIME": ctx.work.nominal_at or "",
    }


def _ending(returncode: int) -> str:
    if returncode > 0:
        return f"exit code {returncode}"
    try:
        return f"killed by signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"killed by signal {-returncode}"


def _argv_complaint(argv: list[Any]) -> str:
    if not all(isinstance(argument, str) for argument in argv):
        return "every entry must be text: put numbers in quotes"
    program = argv[0]
    if not os.path.isabs(program):  # noqa: PTH117 a Path would hide an empty program and a trailing slash
        return f"{program!r} is not an absolute path; write it from / on"
    try:
        path = Path(program).resolve(strict=True)
    except (OSError, RuntimeError):
        return f"{program} does not exist"
    if path.is_dir():
        return f"{program} is a folder, not a program"
    if not any(path.is_relative_to(Path(folder).resolve()) for folder in settings.JIM_EXECUTABLE_FOLDERS):
        allowed = ", ".join(str(folder) for folder in settings.JIM_EXECUTABLE_FOLDERS) or "none"
        return f"{program} is outside the folders that programs may come from: {allowed}"
    if not path.is_file() or not os.access(path, os.X_OK):
        return f"{program} is not executable; chmod +x would make it so"
    return ""


def _cwd_complaint(cwd: str) -> str:
    if not cwd:
        return ""
    if not Path(cwd).is_absolute():
        return f"{cwd!r} is not an absolute path; write it from / on"
    return "" if Path(cwd).is_dir() else f"{cwd} is not an existing folder"


def _env_complaint(env: dict[str, Any]) -> str:
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name):
            return f"{name!r} is not the name of a variable; use letters, digits and _"
        if FORBIDDEN_ENV.fullmatch(name):
            return f"{name} may not be set: it is JIM's own or changes which code is loaded"
        if not isinstance(value, str):
            return f"the value of {name} must be text: put it in quotes"
        if "\n" in value or "\r" in value:
            return f"the value of {name} must be one line"
    return ""
