"""What is wrong with a draft, by the names of its fields; parts and sections have names, too."""

from __future__ import annotations

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


def placed(part: Part, templates: Templates, complaint: str) -> tuple[str, str]:
    """The field of a step that a complaint of the model is about, and what it says there."""
    prefix = f"step-{part.key}"
    field, colon, text = complaint.partition(": ")
    if not colon:
        return prefix, complaint
    if field == "config":
        return _setting(part, templates, text)
    if field in ("step_type", "template"):
        return f"{prefix}-runs", text if part.texts.get("runs") else "Choose what it runs."
    return (f"{prefix}-{field}" if field in ("name", *POLICIES) else prefix), text


def _setting(part: Part, templates: Templates, complaint: str) -> tuple[str, str]:
    prefix = f"step-{part.key}"
    if is_json(part.texts, templates):
        return f"{prefix}-config", complaint
    kind = kind_of(part.texts, templates)
    setting, _, text = complaint.partition(": ")
    known = {field.name for field in kind.fields} if kind else set()
    return (f"{prefix}-{PREFIX}{setting}", text) if setting in known else (prefix, complaint)


def _sentence(text: str) -> str:
    text = text.strip()
    text = f"{text[:1].upper()}{text[1:]}"
    return text if text.endswith((".", "?", "!")) else f"{text}."
