"""Whether a function is there, without importing anything: imports run code, and whoever asks only types."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec


def missing_here(path: str) -> str:
    """Why this process would not find the function; empty if it would, or if only running code can tell."""
    module, _, name = path.rpartition(".")
    if module in sys.modules:
        known = vars(sys.modules[module])
        return "" if name in known or "__getattr__" in known else f"“{module}” has no “{name}”"
    try:
        spec = _spec_of(module)
        names = _names_in(spec) if spec else None
    except Exception:  # finders and loaders are others' code
        return ""
    if spec is None:
        return f"there is no module “{module}”"
    return f"“{module}” has no “{name}”" if names is not None and name not in names else ""


def _spec_of(module: str) -> ModuleSpec | None:
    """As importlib finds it, but `importlib.util.find_spec` imports the packages that the module is in."""
    folders: Sequence[str] | None = None
    spec, name = None, ""
    for part in module.split("."):
        if spec is not None and folders is None:
            return None  # what it should be in is no package
        name = f"{name}.{part}" if name else part
        found = (finder.find_spec(name, folders) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    return spec


def _names_in(spec: ModuleSpec) -> set[str] | None:
    """All that its source gives a name, wherever that is; None if only running it can tell."""
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
