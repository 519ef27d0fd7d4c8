"""A Python function, in a child process or, if it is short and trusted, in a thread of the worker."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import keyword
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from execution.steps.fields import Field
from execution.steps.lookup import missing_here

from .context import Context
from .outcome import CannotRun
from .step_type import Isolation, StepType


class PythonStep(StepType):
    name = "python"
    title = "Python function"
    fields = (
        Field(
            "function",
            "Function",
            required=True,
            fixed=True,
            help="its dotted path, such as package.module.function; a parameter named ctx gets the context",
        ),
        Field("args", "Arguments", kind="list", help='by position, such as ["north", 3]'),
        Field("kwargs", "Named arguments", kind="mapping", help='such as {"region": "north"}'),
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
        if not is_dotted_path(values["function"]):
            errors["function"] = "must be a dotted path such as package.module.function"
        if isinstance(values["kwargs"], dict) and "ctx" in values["kwargs"]:
            errors["kwargs"] = "ctx is passed by JIM itself; give the argument another name"
        return errors

    def warnings(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        """Workers may have other code than the process that asks, which is why this is no error."""
        path = config.get("function")
        if not isinstance(path, str) or not is_dotted_path(path) or not (why := missing_here(path)):
            return {}
        return {"function": f"“{path}” was not found here: {why}. The step fails unless its workers have it."}

    def run(self, ctx: Context) -> object:
        if self.isolation(ctx.config) == "thread" and ctx.runs_code:
            return call_function(ctx, certain=ctx.await_lease)
        assert ctx.nursery is not None
        return ctx.nursery.run_python(ctx)


def call_function(ctx: Context, *, certain: Callable[[], None]) -> object:
    """`certain` raises unless the function may start now."""
    certain()
    function = load(ctx.config["function"])
    args, kwargs = ctx.config["args"], ctx.config["kwargs"]
    place = place_of_context(function)
    if place is not None and place <= len(args):
        args = [*args[:place], ctx, *args[place:]]
    elif place is not None:
        kwargs = kwargs | {"ctx": ctx}
    certain()
    value = function(*args, **kwargs)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


@lru_cache(maxsize=1024)
def is_dotted_path(text: str) -> bool:
    parts = text.split(".")
    return len(parts) > 1 and all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)


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
def place_of_context(function: Callable[..., object]) -> int | None:
    """Where among the positional arguments it belongs; past all of them if it can be given by name only."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None  # some built-in functions have no signature
    if "ctx" not in parameters:
        return None
    by_name = parameters["ctx"].kind is inspect.Parameter.KEYWORD_ONLY
    return sys.maxsize if by_name else list(parameters).index("ctx")
