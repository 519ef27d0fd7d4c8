"""A Python function, in a child process or, if it is short and trusted, in a thread of the worker."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import keyword
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from execution.steps.base import CannotRun, Context, Isolation, StepType
from execution.steps.fields import Field


class PythonStep(StepType):
    name = "python"
    title = "Python function"
    fields = (
        Field(
            "function",
            "Function",
            required=True,
            help="its dotted path, such as package.module.function; a parameter named ctx gets the context",
        ),
        Field("args", "Arguments", kind="list"),
        Field("kwargs", "Named arguments", kind="mapping"),
        Field(
            "isolation",
            "Runs in",
            kind="choice",
            default="process",
            choices=(("process", "a child process"), ("thread", "a thread (short, trusted functions)")),
            help="only a child process has its output captured and can be stopped against its will",
        ),
    )

    def isolation(self, config: dict[str, Any]) -> Isolation:
        return "thread" if config.get("isolation") == "thread" else "process"

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        errors = {}
        parts = values["function"].split(".")
        if len(parts) < 2 or not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
            errors["function"] = "must be a dotted path such as package.module.function"
        if "ctx" in values["kwargs"]:
            errors["kwargs"] = "ctx is passed by JIM itself; give the argument another name"
        return errors

    def run(self, ctx: Context) -> object:
        if self.isolation(ctx.config) == "thread":
            return call_function(ctx)
        assert ctx.nursery is not None
        return ctx.nursery.run_python(ctx)


def call_function(ctx: Context) -> object:
    function = load(ctx.config["function"])
    kwargs = dict(ctx.config["kwargs"], ctx=ctx) if takes_context(function) else ctx.config["kwargs"]
    value = function(*ctx.config["args"], **kwargs)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def load(path: str) -> Callable[..., object]:
    module, _, name = path.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise CannotRun(f"cannot import {path!r} on this worker: {error}") from error
    if not callable(function):
        raise CannotRun(f"cannot run {path!r}: it is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


@lru_cache(maxsize=1024)
def takes_context(function: Callable[..., object]) -> bool:
    try:
        return "ctx" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False  # some built-in functions have no signature
