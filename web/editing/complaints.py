"""What is wrong with a draft, by the names of its fields; parts and sections have names, too."""

from __future__ import annotations

from collections.abc import Sequence

from .draft import Part
from .settings import PREFIX
from .steps import POLICIES, Templates, is_json, kind_of


class Complaints:
    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    def add(self, name: str, text: str) -> None:
        said, words = self.found.setdefault(name, []), _sentence(text)
        if words not in said:
            said.append(words)


def placed(part: Part, templates: Templates, path: Sequence[str | int], message: str) -> tuple[str, str]:
    """Find the field of a step for an error with this path, and what to say there."""
    prefix = f"step-{part.key}"
    match path:
        case ("config", setting, *_):
            return _setting(part, templates, str(setting), message)
        case ("config",):
            return (f"{prefix}-config" if is_json(part.texts, templates) else prefix), message
        case ("step_type" | "template", *_):
            return f"{prefix}-runs", message if part.texts.get("runs") else "Choose what it runs."
        case (str(field), *_) if field in ("name", *POLICIES):
            return f"{prefix}-{field}", message
    return prefix, message


def _setting(part: Part, templates: Templates, setting: str, message: str) -> tuple[str, str]:
    prefix = f"step-{part.key}"
    if is_json(part.texts, templates):
        return f"{prefix}-config", f"{setting}: {message}"
    kind = kind_of(part.texts, templates)
    known = {field.name for field in kind.fields} if kind else set()
    return (f"{prefix}-{PREFIX}{setting}", message) if setting in known else (prefix, f"{setting}: {message}")


def _sentence(text: str) -> str:
    text = text.strip()
    text = f"{text[:1].upper()}{text[1:]}"
    return text if text.endswith((".", "?", "!")) else f"{text}."
