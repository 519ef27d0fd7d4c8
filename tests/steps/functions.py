"""What the Python steps of these tests do. Printing is part of it."""

# ruff: noqa: T201

from __future__ import annotations

import _thread
import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction

from execution.steps.context import Context
from execution.steps.outcome import Interrupted

NOT_A_FUNCTION = 42


def add(a: int, b: int = 0, *, c: int = 0) -> int:
    return a + b + c


async def give_later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def fail_uncleanly() -> NoReturn:
    raise ValueError("NUL \0 and half \ud800")


def fail_unprintably() -> NoReturn:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    raise UnprintableError


def recurse() -> None:
    recurse()


def leave(code: Any = None) -> NoReturn:
    sys.exit(code)


def give_nested(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


def give_unstorable(kind: str) -> Any:
    return {
        "object": object(),
        "nan": float("nan"),
        "huge": "x" * 300_000,
        "digits": 10**5_000,
        "bytes": b"x",
    }[kind]


def give_unclean() -> Any:
    return {"a\0": ("\ud800", {"b": "ok"})}


def know(ctx: Context) -> list[Any]:
    nominal = ctx.nominal_at and ctx.nominal_at.isoformat()
    return [ctx.idempotency_key, ctx.attempt, nominal, ctx.work.schedule_name]


def report(ctx: Context, outcomes: list[Any]) -> str:
    for number, outcome in enumerate(outcomes):
        ctx.item(f"object {number}", outcome, f"was {outcome}")
    return "reported"


def count(ctx: Context, outcomes: list[Any], total: int, **parts: int) -> str:
    ctx.count(total, **parts)
    return report(ctx, outcomes)


def count_and_report_at_once(ctx: Context, threads: int, times: int) -> None:
    """Both from several threads, that begin together."""
    barrier = threading.Barrier(threads)

    def each() -> None:
        barrier.wait(60)
        for _ in range(times):
            ctx.count(3, failed=1, warned=1)
            ctx.item("one of many")

    running = [threading.Thread(target=each) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def complete_badly(ctx: Context, message: str, **rest: Any) -> NoReturn:
    try:
        ctx.item("good")
        ctx.complete_with_error(message, **rest)
    except Exception:
        raise AssertionError("what user code catches is not how a step ends") from None


def report_and_fail(ctx: Context) -> NoReturn:
    ctx.item("good")
    ctx.item("bad", "failed")
    raise ValueError("and then this")


def speak(ctx: Context) -> None:
    print("printed")
    print("complained", file=sys.stderr)
    logging.getLogger("speaker").warning("logged")
    subprocess.run(["/bin/echo", "from a program"], check=True)
    ctypes.CDLL(None).puts(b"from C")
    os.write(1, b"bad \xff byte\nnul \0 byte\n")
    print("half \ud800 a pair")
    ctx.write("written\nin two lines")
    ctx.progress(1, 2, "half way")
    ctx.progress(2)
    print("no end of line", end="")


def say_uncleanly(ctx: Context) -> None:
    ctx.write("half \ud800 a pair, \0")
    ctx.item("na\0me", "ok", "\udfff")
    ctx.progress(1, 1, "\0")


def pid() -> int:
    return os.getpid()


def append(path: str) -> None:
    with Path(path).open("a") as file:
        file.write("once\n")


def wait(ctx: Context, seconds: float = 3600) -> None:
    ctx.write("waiting")
    ctx.wait(seconds)


def sleep(ctx: Context, seconds: float = 3600) -> None:
    try:
        ctx.write("sleeping")
        time.sleep(seconds)
    finally:
        print("cleaned up")


def watch(ctx: Context) -> str:
    """Stops by itself, as a loop that asks does."""
    ctx.write("watching")
    while not ctx.cancelled:
        time.sleep(0.001)
    return "stopped early"


def overlook(ctx: Context, path: str) -> str:
    """Never asks, and so completes."""
    ctx.write("working")
    while not os.path.exists(path):  # noqa: PTH110
        time.sleep(0.001)
    return "all done"


def ignore_everything(ctx: Context) -> None:
    words = f"pid child {os.getpid()}"
    while True:
        try:
            ctx.write(words)
            time.sleep(3600)
        except Interrupted:
            words = "ignored"


def talk_until_stopped(ctx: Context) -> None:
    """An interrupt almost surely comes in the middle of a message."""
    while True:
        ctx.write("x" * 50_000)


def have_offspring(ctx: Context) -> None:
    """A child and a grandchild, both deaf to TERM."""
    deaf = "trap '' TERM; "
    grandchild = f'sh -c "{deaf} echo pid grandchild \\$\\$; sleep 3600; sleep 3600"'
    ctx.write(f"pid self {os.getpid()}")
    subprocess.run(["/bin/sh", "-c", f"{deaf} echo pid child $$; {grandchild}; sleep 3600"], check=False)


def leave_behind(what: str) -> int:
    begun = threading.Event()
    match what:
        case "a thread":
            threading.Thread(target=mutter, args=(begun,), daemon=True).start()
        case "a thread that threading does not know":
            _thread.start_new_thread(mutter, (begun,))
            begun.wait()
        case "a variable":
            os.environ["LEFT_BEHIND"] = "hunter2"
        case "a changed variable":
            os.environ["PATH"] = "/hunter2"
        case "an alarm":
            signal.alarm(3600)
    return os.getpid()


def mutter(begun: threading.Event) -> None:
    begun.set()
    while True:
        print("hunter2")
        time.sleep(0.001)


def work_in_threads() -> int:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(time.sleep, [0.001] * 8))
    return os.getpid()


def look_around(seconds: float = 0.05) -> dict[str, Any]:
    time.sleep(seconds)
    return {"pid": os.getpid(), "environment": dict(os.environ)}


def die(how: str) -> None:
    print("last words", flush=True)
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os.closerange(3, 100)
    time.sleep(3600)


def spoil() -> int:
    """Everything a function can leave behind in its process."""
    os.chdir("/")
    sys.stdout = sys.stderr = None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return os.getpid()


def where() -> dict[str, Any]:
    print("still heard")
    return {"pid": os.getpid(), "cwd": os.getcwd()}  # noqa: PTH109


def take_signal_of_a_stranger(ctx: Context) -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    ctx.check()
    return "unmoved"


def use_database() -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 40 + 2")
        (answer,) = cursor.fetchone()
    return [os.getpid(), answer, ContentType.objects.filter(app_label="execution").exists()]


def leave_transaction_open() -> int:
    transaction.atomic().__enter__()
    return os.getpid()


def say_from_threads(ctx: Context, threads: int, times: int) -> None:
    def say(number: int) -> None:
        for count in range(times):
            ctx.item(f"{number}/{count}")

    started = [threading.Thread(target=say, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
