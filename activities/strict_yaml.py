"""YAML as people write it: 12:30 stays a time, NO stays Norway, and nothing stands for something else."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from .strict_json import MAX_CHARS

CORE = "tag:yaml.org,2002:"
# What plain words may stand for other than text: fewer than YAML 1.1 has them, and none by surprise.
PLAIN = {
    "null": (r"(?:|~|null)\Z", ["", "~", "n"]),
    "bool": (r"(?:true|false)\Z", ["t", "f"]),
    "int": (r"(?:0|[-+]?[1-9][0-9]{0,17})\Z", list("-+0123456789")),
    "float": (r"[-+]?[0-9]{1,15}\.[0-9]{1,15}\Z", list("-+0123456789")),
}


def loads(text: str) -> Any:
    """Raises ValueError in words for what is no YAML, repeats a key, uses aliases or tags, or is too long."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"{len(text):,} characters are too many; at most {MAX_CHARS:,}")
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark, words = error.problem_mark, ", ".join(filter(None, [error.context, error.problem]))
        words = words if isinstance(error, _Unwanted) else f"not YAML: {words}"
        raise ValueError(
            f"{words} (line {mark.line + 1}, column {mark.column + 1})" if mark else words
        ) from None
    except yaml.reader.ReaderError as error:
        raise ValueError(
            f"not YAML: the character {error.character:#x} at {error.position} is not allowed"
        ) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


class _Unwanted(yaml.MarkedYAMLError):
    """It is YAML, but of a kind that surprises."""

    def __init__(self, part: Any, words: str) -> None:
        super().__init__(None, None, words, part.start_mark)


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _Unwanted(event, f"the alias *{event.anchor} cannot be used here; write it out")
        if tag := getattr(event, "tag", None):
            raise _Unwanted(event, f"the tag {tag.replace(CORE, '!!')} cannot be used here; leave it out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _Unwanted(key, f"the key {key.value!r} appears twice")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}
for kind, (pattern, starts) in PLAIN.items():
    _Loader.add_implicit_resolver(f"{CORE}{kind}", re.compile(pattern), starts)
