"""A function that does its worst with what it is told: says, logs and returns it, or fails with it."""

from __future__ import annotations

import html
import json
import logging
import shlex
import subprocess
import sys
import threading
import warnings
from base64 import b64encode, encodebytes, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, quote_plus

from execution.steps.context import Context

logger = logging.getLogger(__name__)


def tell(ctx: Context, told: dict[str, str], ending: str, meeting: str = "", prints: bool = True) -> object:
    for text in told.values():
        for dressed in dresses(text):
            _say(ctx, dressed)
            _log(dressed)
        ctx.write(json.dumps(json.dumps(text)))
        if prints:
            _print(text)
        _let_python_tell(text)
    if meeting:
        meet(ctx, Path(meeting))
    return _end(ctx, told, ending)


def meet(ctx: Context, folder: Path) -> None:
    """Waits with the others until somebody has looked at all of them."""
    (folder / ctx.idempotency_key).touch()
    while not (folder / "go").exists():
        ctx.wait(0.02)


def dresses(text: str) -> Iterator[str]:
    yield text
    yield f"It is {text}, you know"
    yield from (json.dumps(text), json.dumps(text, ensure_ascii=False))
    yield from (repr(text), repr(text.encode()), html.escape(text), html.escape(text, quote=False))
    yield from (quote(text), quote(text, safe=""), quote_plus(text), shlex.quote(text))
    for before in ("", "user:", "ab"):
        yield b64encode(f"{before}{text} and more".encode()).decode()
        yield urlsafe_b64encode(f"{before}{text}".encode()).decode()
        yield encodebytes(f"{before}{text}".encode()).decode()
    escaped = {ord(char): f"\\u{ord(char):04x}" for char in "&<>'"}
    yield json.dumps(text, ensure_ascii=False).translate(escaped)
    yield html.escape(text).replace("&#x27;", "&apos;")
    yield from (text.encode().hex(), text.encode().hex().upper())


def _log(text: str) -> None:
    logger.debug("debugging %s", text)
    logger.error("an error with %s", text, extra={"more": text})


def _let_python_tell(text: str) -> None:
    """What neither the function nor its logger says, but Python about them."""
    warnings.warn(f"a warning about {text}", stacklevel=1)
    thread = threading.Thread(target=_fail, args=(text,))
    thread.start()
    thread.join()


def _fail(text: str) -> NoReturn:
    raise ValueError(text)


def _print(text: str) -> None:
    """Into streams that are cut where lines are too long, by itself and by a program."""
    for dressed in (*dresses(text), f"{'x' * 8_180}{text}{'y' * 8_180}"):
        sys.stdout.write(f"{dressed}\n")
        sys.stderr.write(f"{dressed}\n")
    sys.stdout.flush()
    subprocess.run(["/bin/cat"], input=text.encode(), check=True)


def _say(ctx: Context, text: str) -> None:
    ctx.write(text)
    ctx.item(text, "ok", text)
    ctx.progress(1, 2, text)


def _end(ctx: Context, told: Mapping[str, str], ending: str) -> object:
    together = " ".join(told.values())
    match ending:
        case "result":
            return {"told": dict(told), together: [together, {"deep": list(dresses(together))}]}
        case "raise":
            try:
                int(together)
            except ValueError as error:
                logger.exception("failed with %s", together)
                error.add_note(together)
                raise RuntimeError(together, told) from error
        case "exit":
            sys.exit(together)
        case "skip":
            ctx.skip(together)
        case "no JSON":
            return {together: {together}}
    raise AssertionError(ending)
