"""What test steps do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection

from execution.steps.context import Context, ItemOutcome
from execution.steps.outcome import Interrupted
from schedules import vault
from tests.waiting import PATIENCE_SECONDS


def noop() -> None:
    pass


def fail(message: str = "it broke") -> None:
    raise RuntimeError(message)


def result(value: Any = 42) -> Any:
    return value


def keys() -> dict[str, Any]:
    """What a function finds where it runs: who it is, and which keys of JIM it holds."""
    try:
        secrets = [*vault.current().texts]
    except vault.VaultError:
        secrets = []
    return {
        "pid": os.getpid(),
        "signing": settings.SECRET_KEY,
        "secrets": secrets,
        "databases": sorted(settings.JIM_SQL_CONNECTIONS),
        "environment": dict(os.environ),
    }


def die(code: int = 3) -> None:
    os._exit(code)


def talk(ctx: Context, lines: int = 3) -> None:
    for number in range(lines):
        ctx.write(f"line {number}")
        ctx.item(f"object {number}")
        ctx.progress(number + 1, lines, "talking")


def note(ctx: Context, ledger: str, seconds: float = 0, deaf: bool = False) -> None:
    """Marks its start and its end in a ledger that no transaction of JIM's can take back."""
    mark(ledger, "start", ctx)
    try:
        time.sleep(seconds) if deaf else ctx.wait(seconds)
    except BaseException:
        mark(ledger, "stopped", ctx)
        raise
    mark(ledger, "end", ctx)


def note_until(ctx: Context, ledger: str, path: str) -> None:
    """The same, and in between it waits for somebody to make this file."""
    mark(ledger, "start", ctx)
    while not Path(path).exists():
        ctx.wait(0.02)
    mark(ledger, "end", ctx)


def note_and_fail(ctx: Context, ledger: str, failures: int = 1) -> None:
    """Fails its first attempts."""
    mark(ledger, "start", ctx)
    if ctx.attempt <= failures:
        mark(ledger, "stopped", ctx)
        raise RuntimeError(f"attempt {ctx.attempt} was meant to fail")
    mark(ledger, "end", ctx)


def note_once(ctx: Context, ledger: str) -> None:
    """The first attempt goes on until it is interrupted; a later one has nothing left to do."""
    mark(ledger, "start", ctx)
    try:
        while ctx.attempt == 1:
            ctx.wait(60)
    except BaseException:
        mark(ledger, "stopped", ctx)
        raise
    mark(ledger, "end", ctx)


def mark(ledger: str, event: str, ctx: Context) -> None:
    line = f"{event} {ctx.idempotency_key} {ctx.attempt} {os.getpid()} {time.time()}\n"
    file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def wait_for_ever(ctx: Context) -> None:
    """Says so, and goes on until it is interrupted."""
    ctx.progress(0, message="waiting")
    while True:
        ctx.wait(60)


_meetings: dict[frozenset[str], threading.Barrier] = defaultdict(lambda: threading.Barrier(2))


def meet(ctx: Context, other: str) -> None:
    """Ends when the step of the other name is here as well. Only threads of one process can meet."""
    _meetings[frozenset({ctx.work.name, other})].wait(PATIENCE_SECONDS)


def connection_of(ctx: Context, other: str) -> int:
    """Which database connection this step has, while the other step holds on to its own."""
    connection.ensure_connection()
    mine = id(connection.connection)
    meet(ctx, other)
    return mine


def items(ctx: Context, ok: int = 0, failed: int = 0, warning: int = 0) -> None:
    counts: dict[ItemOutcome, int] = {"ok": ok, "failed": failed, "warning": warning}
    for outcome, count in counts.items():
        for number in range(count):
            ctx.item(f"{outcome} {number}", outcome, f"it was {outcome}")


def skip(ctx: Context) -> None:
    ctx.skip("nothing to do today")


def chatter(ctx: Context, path: str) -> dict[str, str]:
    """Says something in every way there is, waits for a sign, and tells a result."""
    sys.stdout.write("printed\n")
    ctx.write("written")
    ctx.item("first", "ok", "done")
    ctx.progress(1, 2, "halfway")
    while not Path(path).exists():
        ctx.wait(0.02)
    return {"key": ctx.idempotency_key}


def wait_for_file(ctx: Context, path: str, then: str = "") -> str:
    """Ends when somebody has made this file, after making another one itself; heeds an interruption."""
    ctx.progress(0, message="waiting")
    while not Path(path).exists():
        ctx.wait(0.02)
    if then:
        Path(then).touch()
    return "the file is there"


def ignore_everything(ctx: Context, path: str) -> None:
    """A thread that cannot be stopped from outside; ends when the file is there."""
    ctx.progress(0, message="waiting")
    while not Path(path).exists():
        time.sleep(0.02)


def be_deaf(ctx: Context) -> None:
    """Goes on after every interruption, in a child process too; only a kill ends it."""
    message = "waiting"
    while True:
        try:
            ctx.progress(0, message=message)
            time.sleep(3600)
        except Interrupted:
            message = "still waiting"


def run_program(ctx: Context, argv: list[str]) -> None:
    """Waits for a program that is told of the attempt in the way of `executable` steps."""
    told = {"JIM_ATTEMPT": str(ctx.attempt), "JIM_IDEMPOTENCY_KEY": ctx.idempotency_key}
    subprocess.run(argv, env=os.environ | told, check=True)


def have_children(ctx: Context, path: str) -> None:
    """Starts a program that would outlive it, notes both process numbers, and blocks."""
    child = subprocess.Popen(["sleep", "1000"])
    Path(path).write_text(f"{os.getpid()} {child.pid}")
    ctx.progress(0, message="waiting")
    time.sleep(1000)


def fail_unless(path: str) -> None:
    """Until somebody makes this file."""
    if not Path(path).exists():
        raise RuntimeError("the file is missing")


def note_and_talk_until(ctx: Context, ledger: str, path: str) -> None:
    """Says a line, an item and a progress again and again, deaf to all, until the file is there; a later
    attempt says them once."""
    mark(ledger, "start", ctx)
    number = 0
    while True:
        number += 1
        ctx.write(f"line {number} of attempt {ctx.attempt}")
        ctx.item(f"item {number} of attempt {ctx.attempt}")
        ctx.progress(number, None, f"attempt {ctx.attempt}")
        if ctx.attempt > 1 or Path(path).exists():
            break
        time.sleep(0.05)
    mark(ledger, "end", ctx)
