"""Pure functions that arrange the steps of a plan as boxes and arrows, with a label in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

BOX_WIDTH, BOX_HEIGHT, BOX_GAP, LANE_GAP, LONGEST_LINE = 200, 44, 8, 28, 23


class Box(NamedTuple):
    x: int
    y: int
    name: str
    kind: str
    words: str
    condition: str


class Arrow(NamedTuple):
    x: int
    y: int
    to_x: int


@dataclass(frozen=True)
class Lanes:
    """A drawn plan: groups from left to right, and the steps of a group from top to bottom."""

    boxes: list[Box]
    arrows: list[Arrow]
    groups: list[list[str]]
    width: int
    height: int
    label: str
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT


class Planned(NamedTuple):
    """The fields of a step that the drawing uses."""

    name: str
    group: int
    kind: str
    condition: str = "success"


def lanes(steps: Iterable[Planned]) -> Lanes:
    groups: Mapping[int, list[Planned]] = defaultdict(list)
    for step in steps:
        groups[step.group].append(step)
    ordered = [groups[index] for index in sorted(groups)]
    highest = max(map(len, ordered), default=0)
    height = max(highest * (BOX_HEIGHT + BOX_GAP) - BOX_GAP, 0)
    boxes: list[Box] = []
    for number, group in enumerate(ordered):
        x = number * (BOX_WIDTH + LANE_GAP)
        top = (height - len(group) * (BOX_HEIGHT + BOX_GAP) + BOX_GAP) // 2
        tops = [top + row * (BOX_HEIGHT + BOX_GAP) for row in range(len(group))]
        boxes += [_box(step, x, y, is_first=number == 0) for step, y in zip(group, tops, strict=True)]
    arrows = [
        Arrow(number * (BOX_WIDTH + LANE_GAP) - LANE_GAP, height // 2, number * (BOX_WIDTH + LANE_GAP))
        for number in range(1, len(ordered))
    ]
    names = [[step.name for step in group] for group in ordered]
    told = ", then ".join(" beside ".join(f"“{name}”" for name in group) for group in names)
    width = max(len(ordered) * (BOX_WIDTH + LANE_GAP) - LANE_GAP, 0)
    return Lanes(boxes, arrows, names, width, height, f"The plan: {told}")


def _box(step: Planned, x: int, y: int, *, is_first: bool) -> Box:
    words = f"{step.name} ({step.kind})"
    # A step of the first group cannot be clean-up, because a cancel stops it.
    always = "always" if is_first else "always (clean-up)"
    condition = {"failure": "if a step failed", "always": always}.get(step.condition, "")
    return Box(x, y, _cut(step.name), _cut(step.kind), words, condition)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"
