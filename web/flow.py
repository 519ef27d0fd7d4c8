"""Pure functions that arrange handlers and topics as the boxes and arrows of an event flow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

BOX_WIDTH, BOX_HEIGHT, BOX_GAP, COLUMN_GAP, LONGEST_LINE = 144, 44, 16, 28, 17
DETOUR = 20


class Node(NamedTuple):
    """A handler or topic; `kind` is “producer”, “consumer” or “topic”."""

    key: str
    kind: str
    name: str
    note: str = ""
    url: str = ""
    is_foreign: bool = False
    is_open: bool = False


class Box(NamedTuple):
    x: int
    y: int
    node: Node
    name: str
    note: str


@dataclass(frozen=True)
class Flow:
    """A drawn event flow: producers on the left, and every other node to the right of its sources."""

    boxes: list[Box]
    arrows: list[str]
    width: int
    height: int
    label: str
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT


def flow(nodes: Sequence[Node], links: Sequence[tuple[str, str]]) -> Flow:
    """Draw nodes and links; a link is a pair of node keys: (publisher, topic) or (topic, consumer)."""
    known = {node.key: node for node in nodes}
    links = [(a, b) for a, b in dict.fromkeys(links) if a in known and b in known]
    column = _columns(list(known), links)
    boxes = _placed(known, links, column)
    height = max((box.y + BOX_HEIGHT for box in boxes.values()), default=0)
    goes_back = any(column[a] >= column[b] for a, b in links)
    width = (max(column.values(), default=-1) + 1) * (BOX_WIDTH + COLUMN_GAP) - COLUMN_GAP
    arrows = [_arrow(boxes[a], boxes[b], height) for a, b in links]
    label = _label(known, links)
    return Flow(list(boxes.values()), arrows, max(width, 0), height + DETOUR * goes_back, label)


def _columns(keys: Sequence[str], links: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Place each node one column to the right of its farthest source; ignore links that close a cycle."""
    forward = _without_circles(keys, links)
    column = dict.fromkeys(keys, 0)
    for _ in keys:
        for a, b in forward:
            column[b] = max(column[b], column[a] + 1)
    return column


def _without_circles(keys: Sequence[str], links: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    kept: list[tuple[str, str]] = []
    after: dict[str, list[str]] = defaultdict(list)
    for a, b in links:
        if a != b and not _leads(after, b, a):
            after[a].append(b)
            kept.append((a, b))
    return kept


def _leads(after: dict[str, list[str]], start: str, end: str) -> bool:
    seen, left = {start}, [start]
    while left:
        key = left.pop()
        if key == end:
            return True
        left += [each for each in after[key] if each not in seen]
        seen.update(after[key])
    return False


def _placed(
    known: dict[str, Node], links: Sequence[tuple[str, str]], column: dict[str, int]
) -> dict[str, Box]:
    """Place the boxes of each column, ordered by the heights of their sources and centred vertically."""
    members: dict[int, list[str]] = defaultdict(list)
    for key in known:
        members[column[key]].append(key)
    highest = max(map(len, members.values()), default=0) * (BOX_HEIGHT + BOX_GAP) - BOX_GAP
    boxes: dict[str, Box] = {}
    for number in sorted(members):
        before = {key: [boxes[a].y for a, b in links if b == key and a in boxes] for key in members[number]}
        ordered = sorted(members[number], key=lambda key: _middle(before[key]))
        top = (highest - len(ordered) * (BOX_HEIGHT + BOX_GAP) + BOX_GAP) // 2
        for row, key in enumerate(ordered):
            node, x, y = known[key], number * (BOX_WIDTH + COLUMN_GAP), top + row * (BOX_HEIGHT + BOX_GAP)
            boxes[key] = Box(x, y, node, _cut(node.name), _cut(node.note))
    return boxes


def _middle(heights: Sequence[int]) -> float:
    return sum(heights) / len(heights) if heights else 0.0


def _arrow(source: Box, target: Box, height: int) -> str:
    """Draw an arrow from `source` to `target`; `height` is the height of all boxes together.

    The arrow leads from the right edge of the source to the left edge of the target. If the target is not
    further right, the arrow leads from bottom edge to bottom edge and passes below all boxes.
    """
    x, y = source.x + BOX_WIDTH + 2, source.y + BOX_HEIGHT // 2
    to_x, to_y = target.x - 3, target.y + BOX_HEIGHT // 2
    head = "m-5 -4l5 4l-5 4"
    if to_x > x:
        half = (to_x - x) // 2
        return f"M{x} {y}C{x + half} {y} {to_x - half} {to_y} {to_x} {to_y}{head}"
    down, up = source.x + BOX_WIDTH // 2, target.x + BOX_WIDTH // 2
    low, from_y, to_y = height + DETOUR - 4, source.y + BOX_HEIGHT + 2, target.y + BOX_HEIGHT + 3
    return f"M{down} {from_y}V{low}H{up}V{to_y}m-4 5l4 -5l4 5"


def _label(known: dict[str, Node], links: Sequence[tuple[str, str]]) -> str:
    sentences = []
    for node in known.values():
        if node.kind == "topic":
            continue
        takes = " and ".join(known[a].name for a, b in links if b == node.key)
        gives = " and ".join(known[b].name for a, b in links if a == node.key)
        parts = [f"consumes {takes}"] * bool(takes) + [f"publishes to {gives}"] * bool(gives)
        sentences.append(f"{node.name} {' and '.join(parts) or 'publishes nothing'}")
    return f"Event flow: {'; '.join(sentences)}." if sentences else "This workflow has no handlers."


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"
