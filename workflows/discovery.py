"""Find the workflows that installed apps define in their `workflows` modules."""

from __future__ import annotations

import importlib
import inspect
import logging
from functools import cache
from importlib.util import find_spec

from django.apps import apps

from .definition import Definitions, Workflow
from .errors import DefinitionError

logger = logging.getLogger(__name__)


def definitions() -> Definitions:
    """Return the workflows in this process's code, except those of apps that `problems` lists."""
    return _discover()[0]


def problems() -> list[str]:
    return _discover()[1]


@cache
def _discover() -> tuple[Definitions, list[str]]:
    problems: list[str] = []
    good: list[type[Workflow]] = []
    for app in apps.get_app_configs():
        try:
            own = _workflows_of(app.name)
            Definitions.of([*good, *own])
        except DefinitionError as error:
            problems.append(f"{app.name}.workflows: {error}")
        except Exception as error:
            problems.append(f"{app.name}.workflows cannot be imported: {type(error).__name__}: {error}")
        else:
            good += own
    for problem in problems:
        logger.error("%s", problem)
    return Definitions.of(good), problems


def _workflows_of(app: str) -> list[type[Workflow]]:
    name = f"{app}.workflows"
    if find_spec(name) is None:
        return []
    module = importlib.import_module(name)
    return [
        each
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, Workflow) and each.__module__ == name and each.enabled
    ]
