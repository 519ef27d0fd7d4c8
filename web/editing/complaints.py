"""What is wrong with a draft, by the names of its fields; parts and sections have names, too."""

from __future__ import annotations


class Complaints:
    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}

    def add(self, name: str, text: str) -> None:
        said, words = self.found.setdefault(name, []), _sentence(text)
        if words not in said:
            said.append(words)


def _sentence(text: str) -> str:
    text = text.strip()
    text = f"{text[:1].upper()}{text[1:]}"
    return text if text.endswith((".", "?", "!")) else f"{text}."
