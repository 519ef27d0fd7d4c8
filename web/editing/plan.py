"""The order of steps: groups run one after the other, and the steps of a group run side by side.

A step is identified by the number of its form. Steps with the same index form a group.
"""

from __future__ import annotations

from collections.abc import Mapping

Groups = list[list[int]]
Indices = Mapping[int, int]


def groups_of(indices: Indices) -> Groups:
    groups: dict[int, list[int]] = {}
    for step, index in sorted(indices.items()):
        groups.setdefault(index, []).append(step)
    return [groups[index] for index in sorted(groups)]


def earlier(indices: Indices, step: int) -> dict[int, int]:
    """Return the indices with the step moved one place earlier, into a group of its own.

    The step moves before the rest of its group. If it was alone, it moves before the previous group.
    """
    groups, at = _located(indices, step)
    rest = _without(groups[at], step)
    if rest:
        return _numbered([*groups[:at], [step], rest, *groups[at + 1 :]], indices)
    others = groups[:at] + groups[at + 1 :]
    before = max(at - 1, 0)
    return _numbered([*others[:before], [step], *others[before:]], indices)


def later(indices: Indices, step: int) -> dict[int, int]:
    groups, at = _located(indices, step)
    rest = _without(groups[at], step)
    if rest:
        return _numbered([*groups[:at], rest, [step], *groups[at + 1 :]], indices)
    others = groups[:at] + groups[at + 1 :]
    return _numbered([*others[: at + 1], [step], *others[at + 1 :]], indices)


def joined(indices: Indices, step: int) -> dict[int, int]:
    """Return the indices with the step moved into the group before its own."""
    groups, at = _located(indices, step)
    if not at:
        return dict(indices)
    rest = _without(groups[at], step)
    return _numbered([*groups[: at - 1], [*groups[at - 1], step], rest, *groups[at + 1 :]], indices)


def put(
    indices: Indices, step: int, *, beside: int | None = None, before: int | None = None
) -> dict[int, int]:
    """Return the indices with the step moved.

    With `beside`, the step joins the group of that step. With `before`, it becomes a group of its own before
    the group of that step. Otherwise, it becomes the last group.
    """
    if step in (beside, before):
        return dict(indices)
    others = [_without(group, step) for group in groups_of(indices)]
    target = next((at for at, group in enumerate(others) if beside in group or before in group), None)
    if target is None:
        return _numbered([*others, [step]], indices)
    moved = [[*others[target], step]] if beside is not None else [[step], others[target]]
    return _numbered([*others[:target], *moved, *others[target + 1 :]], indices)


def _numbered(groups: Groups, indices: Indices) -> dict[int, int]:
    """Return a dict from step to index for these groups; leave out empty groups.

    The groups reuse the existing indices. If there are fewer indices than groups, the groups are numbered
    from 0 instead.
    """
    kept = [group for group in groups if group]
    known = sorted({indices[step] for group in kept for step in group})
    fresh = known[: len(kept)] if len(known) >= len(kept) else list(range(len(kept)))
    return {step: index for index, group in zip(fresh, kept, strict=True) for step in group}


def _located(indices: Indices, step: int) -> tuple[Groups, int]:
    groups = groups_of(indices)
    return groups, next(at for at, group in enumerate(groups) if step in group)


def _without(group: list[int], step: int) -> list[int]:
    return [each for each in group if each != step]
