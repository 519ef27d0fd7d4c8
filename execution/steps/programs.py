"""Code shared by steps that run a program: allowed paths, environment, running and exit codes."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings

from execution.steps.fields import Field
from schedules.placeholders import has_placeholders
from text.clean import clean_text

from .context import Context
from .outcome import StepFailed

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that make a program load or start other code, and the variables that JIM sets itself.
FORBIDDEN_ENV = re.compile(
    r"""
      JIM_.* | PATH | HOME | XDG_(CONFIG|DATA|CACHE)_(HOME|DIRS)
    | (LD|DYLD|GCONV|OPENSSL)_.* | KRB5_CONFIG | ODBC(INI|INSTINI|SYSINI)  # libraries
    | BASH_.* | ENV | IFS | PS4 | SHELLOPTS | BASHOPTS | CDPATH | FPATH | ZDOTDIR | SHELL  # shells
    | PYTHON.* | PERL5?(LIB|OPT|DB) | RUBY(OPT|LIB) | GEM_(HOME|PATH) | BUNDLE_.* | PHPRC | PHP_INI_SCAN_DIR
    | NODE_(OPTIONS|PATH) | (npm_config|NPM_CONFIG)_.* | LUA_.* | TCLLIBPATH | AWK(LIB)?PATH | JULIA_.*
    | R_(HOME|ENVIRON|PROFILE|LIBS).* | ERL_.*
    | CLASSPATH | JAVA_HOME | _?JAVA_(TOOL_)?OPTIONS | JDK_JAVA_OPTIONS
    | (DOTNET|CORECLR|COMPlus)_.* | PSModule.*
    | GIT_(?!(AUTHOR|COMMITTER)_|TERMINAL_PROMPT).* | (CVS|RSYNC)_RSH | SVN_SSH | RSYNC_CONNECT_PROG
    | (SSH|SUDO)_ASKPASS | EDITOR | VISUAL | (MAN)?PAGER | LESS(OPEN|CLOSE) | BROWSER
    | (GNU)?MAKEFLAGS | MAKEFILES | PSQLRC | WGETRC
    """,
    re.VERBOSE,
)
INSTEAD = {
    "PATH": "; call programs by their absolute paths instead",
    "HOME": "; HOME is the working folder: set cwd instead",
}

CWD = Field("cwd", "Working folder", help="an absolute path; the system's temporary folder if empty")
ENV = Field(
    "env",
    "Environment",
    kind="mapping",
    text_only=True,
    fixed_names=True,
    help="variables besides PATH, LANG, HOME and JIM_…; the worker's own variables are not passed on",
)


def run(ctx: Context, *, argv: Sequence[str], program: str, env: Mapping[str, str] | None = None) -> int:
    """Run the program and return its exit code, or the negative number of the signal that ended it.

    Processes that the program leaves in its process group are killed.
    """
    assert ctx.nursery is not None
    cwd = ctx.config["cwd"] or tempfile.gettempdir()
    surroundings = _environment(ctx, home=cwd) | dict(env or {}) | ctx.config["env"]
    with ctx.nursery.spawn(ctx, argv=argv, program=program, env=surroundings, cwd=cwd) as child:
        ctx.started()
        with ctx.on_interrupt(child.stop):
            child.wait(ctx)
    if child.stopped:
        ctx.check()
    return child.returncode or 0


def result_of(returncode: int) -> object:
    if returncode:
        raise StepFailed(_ending(returncode))
    return {"exit_code": 0}


def complaints(values: Mapping[str, Any], **own: str) -> dict[str, str]:
    """Return errors by setting: `own`, which the step type found, and those of cwd and env."""
    found = own | {"cwd": _cwd_complaint(values["cwd"]), "env": _env_complaint(values["env"])}
    return {field: complaint for field, complaint in found.items() if complaint}


def path_complaint(text: str, *, what: str) -> str:
    """Return why the program or script (`what`) cannot be run, or an empty string if it can.

    Links are followed: the file that they lead to must be in an allowed folder.
    """
    if not os.path.isabs(text):  # noqa: PTH117 a Path would hide an empty path and a trailing slash
        return f"{text!r} is not an absolute path; it must begin with /"
    try:
        path = Path(text).resolve(strict=True)
    except (OSError, RuntimeError):
        return f"{text} does not exist"
    if path.is_dir():
        return f"{text} is a folder, not a {what}"
    if not any(path.is_relative_to(Path(folder).resolve()) for folder in settings.JIM_EXECUTABLE_FOLDERS):
        allowed = ", ".join(str(folder) for folder in settings.JIM_EXECUTABLE_FOLDERS) or "none"
        return f"{text} is outside the folders that {what}s may come from: {allowed}"
    return ""


def arguments_complaint(arguments: Sequence[object]) -> str:
    is_text = all(isinstance(argument, str) for argument in arguments)
    return "" if is_text else "every entry must be text: put numbers in quotes"


def _cwd_complaint(cwd: str) -> str:
    if not cwd or has_placeholders(cwd):
        return ""
    if not Path(cwd).is_absolute():
        return f"{cwd!r} is not an absolute path; it must begin with /"
    return "" if Path(cwd).is_dir() else f"{cwd} is not an existing folder"


def _env_complaint(env: dict[str, Any]) -> str:
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name):
            return f"{name!r} is not a valid variable name; use letters, digits and _"
        if FORBIDDEN_ENV.fullmatch(name):
            instead = INSTEAD.get(name, "")
            return f"{name} cannot be set: JIM sets it itself, or it changes which code is loaded{instead}"
        if not isinstance(value, str):
            return f"the value of {name} must be text: put it in quotes"
        if "\n" in value or "\r" in value:
            return f"the value of {name} must be one line"
    return ""


def _environment(ctx: Context, *, home: str) -> dict[str, str]:
    return {
        "PATH": SEARCH_PATH,
        "LANG": "C.UTF-8",
        "HOME": home,
        "PYTHONNOUSERSITE": "1",  # do not load modules from HOME, which is the working folder
        "PYTHONUNBUFFERED": "1",  # show lines of Python programs when they are printed, not at the end
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
