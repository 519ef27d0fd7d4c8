"""The python step: a function in a child process or, if it is short and trusted, in a worker's thread."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import keyword
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from typing import Any

from execution.steps.fields import Field

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
            help="dotted path, such as package.module.function; a parameter named ctx receives the context",
        ),
        Field("args", "Arguments", kind="list", help='by position, such as ["north", 3]'),
        Field("kwargs", "Named arguments", kind="mapping", help='such as {"region": "north"}'),
        Field(
            "isolation",
            "Runs in",
            kind="choice",
            default="process",
            choices=(("process", "a child process"), ("thread", "a thread (for short, trusted functions)")),
            help="a child process can be killed, and what it prints is recorded; with a thread, neither is "
            "possible",
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
        """Return a warning if this process cannot find the function. Workers may run a different version."""
        path = config.get("function")
        if not isinstance(path, str) or not is_dotted_path(path) or not (why := missing_here(path)):
            return {}
        return {
            "function": f"“{path}” was not found on this host: {why}. On workers without it, the step fails."
        }

    def run(self, ctx: Context) -> object:
        if self.isolation(ctx.config) == "thread" and ctx.runs_code:
            return call_function(ctx, certain=ctx.await_lease)
        assert ctx.nursery is not None
        return ctx.nursery.run_python(ctx)


def call_function(ctx: Context, *, certain: Callable[[], None]) -> object:
    """Import and call the function, and return its result.

    `certain` is called before the import and before the call, and raises an exception to prevent them.
    """
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
    """Return the position of the parameter `ctx`; `sys.maxsize` if keyword-only, None if there is none."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None  # some built-in functions have no signature
    if "ctx" not in parameters:
        return None
    by_name = parameters["ctx"].kind is inspect.Parameter.KEYWORD_ONLY
    return sys.maxsize if by_name else list(parameters).index("ctx")


def missing_here(path: str) -> str:
    """Return why this process cannot find the function; an empty string if it can, or if that is uncertain.

    Nothing is imported, because imports run code, and the path may be incomplete while the user types it.
    """
    module, _, name = path.rpartition(".")
    if module in sys.modules:
        known = vars(sys.modules[module])
        return "" if name in known or "__getattr__" in known else f"“{module}” has no “{name}”"
    try:
        spec = _spec_of(module)
        names = _names_in(spec) if spec else None
    except Exception:  # finders and loaders of other packages may fail
        return ""
    if spec is None:
        return f"the module “{module}” was not found"
    return f"“{module}” has no “{name}”" if names is not None and name not in names else ""


def _spec_of(module: str) -> ModuleSpec | None:
    """Return the spec of the module, or None, without importing its packages as `find_spec` would."""
    folders: Sequence[str] | None = None
    spec, name = None, ""
    for part in module.split("."):
        if spec is not None and folders is None:
            return None  # the parent is not a package
        name = f"{name}.{part}" if name else part
        found = (finder.find_spec(name, folders) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    return spec


def _names_in(spec: ModuleSpec) -> set[str] | None:
    """Return all names that the source defines anywhere, or None if they are known only at run time."""
    source = spec.loader.get_source(spec.name) if isinstance(spec.loader, InspectLoader) else None
    if source is None:
        return None
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
            case ast.alias():
                names.add(node.asname or node.name.partition(".")[0])
    return None if names & {"*", "__getattr__"} else names
