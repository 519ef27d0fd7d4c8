"""The order of steps: groups one after the other, and the steps of a group side by side."""

from __future__ import annotations

from collections.abc import Sequence

from .draft import Part, index_of

Groups = list[list[Part]]


def groups_of(steps: Sequence[Part]) -> Groups:
    groups: dict[int, list[Part]] = {}
    for step in steps:
        groups.setdefault(index_of(step.texts), []).append(step)
    return [groups[index] for index in sorted(groups)]


def in_order(groups: Groups) -> list[Part]:
    """With indices that say so: those that the steps had, as far as they go."""
    kept = [group for group in groups if group]
    known = sorted({index_of(step.texts) for group in kept for step in group})
    indices = known[: len(kept)] if len(known) >= len(kept) else range(len(kept))
    return [
        Part(step.key, step.texts | {"index": str(index)})
        for index, group in zip(indices, kept, strict=True)
        for step in group
    ]


def earlier(steps: Sequence[Part], key: str) -> list[Part]:
    """Out of its group, and before it; a step that is alone changes places with the group before."""
    groups, place = _found(steps, key)
    if place is None:
        return list(steps)
    step, rest = _taken(groups[place], key)
    if rest:
        return in_order([*groups[:place], [step], rest, *groups[place + 1 :]])
    before = max(place - 1, 0)
    others = groups[:place] + groups[place + 1 :]
    return in_order([*others[:before], [step], *others[before:]])


def later(steps: Sequence[Part], key: str) -> list[Part]:
    groups, place = _found(steps, key)
    if place is None:
        return list(steps)
    step, rest = _taken(groups[place], key)
    if rest:
        return in_order([*groups[:place], rest, [step], *groups[place + 1 :]])
    others = groups[:place] + groups[place + 1 :]
    return in_order([*others[: place + 1], [step], *others[place + 1 :]])


def joined(steps: Sequence[Part], key: str) -> list[Part]:
    """Beside those of the group before."""
    groups, place = _found(steps, key)
    if not place:
        return list(steps)
    step, rest = _taken(groups[place], key)
    return in_order([*groups[: place - 1], [*groups[place - 1], step], rest, *groups[place + 1 :]])


def put(steps: Sequence[Part], key: str, *, beside: str = "", before: str = "") -> list[Part]:
    """Where somebody dropped it: into the group of another step, or before that group; else at the end."""
    groups, place = _found(steps, key)
    if place is None or key in (beside, before):
        return list(steps)
    step, rest = _taken(groups[place], key)
    others: Groups = [*groups[:place], rest, *groups[place + 1 :]]
    target = next((at for at, group in enumerate(others) if _has(group, beside or before)), None)
    if target is None:
        return in_order([*others, [step]])
    if beside:
        return in_order([*others[:target], [*others[target], step], *others[target + 1 :]])
    return in_order([*others[:target], [step], *others[target:]])


def added(steps: Sequence[Part], step: Part, *, beside: str = "") -> list[Part]:
    """At the end, or into the group of another step."""
    groups = groups_of(steps)
    for group in groups:
        if beside and _has(group, beside):
            group.append(step)
            return in_order(groups)
    highest = max((index_of(each.texts) for each in steps), default=-1)
    return [*steps, Part(step.key, step.texts | {"index": str(highest + 1)})]


def _found(steps: Sequence[Part], key: str) -> tuple[Groups, int | None]:
    groups = groups_of(steps)
    return groups, next((place for place, group in enumerate(groups) if _has(group, key)), None)


def _has(group: Sequence[Part], key: str) -> bool:
    return any(step.key == key for step in group)


def _taken(group: Sequence[Part], key: str) -> tuple[Part, list[Part]]:
    step = next(each for each in group if each.key == key)
    return step, [each for each in group if each.key != key]
