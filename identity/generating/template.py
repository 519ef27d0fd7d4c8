"""A template that has been read: its objects, and a company whose people come, move and leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any

from identity.shape import AttributeShape
from identity.values import Attributes

from .reading import read
from .rules import Choice, Rule
from .turnover import Turnover

NamedRules = list[tuple[str, Rule]]


@dataclass(frozen=True, eq=False)
class Template:
    """Rules by attribute, as they were written. `uses` are the attributes on which each one depends.

    `presence` has a flag for each index if some objects are absent.
    """

    seed: int
    count: int
    rules: Mapping[str, Rule]
    uses: Mapping[str, Sequence[str]]
    presence: Sequence[int] | None = None

    @classmethod
    def parse(cls, data: object) -> Template:
        """Return the template that the JSON value describes; raise TemplateError if it is wrong."""
        said = read(data)
        return cls(said.seed, said.count, said.rules, said.uses)

    def shape(self) -> list[AttributeShape]:
        return [AttributeShape(name, rule.kind, rule.is_multi) for name, rule in self.rules.items()]

    def object(self, index: int) -> Attributes:
        return self._made(index, self._in_order)

    def objects(self, start: int = 0, stop: int | None = None) -> Iterator[Attributes]:
        """Yield the objects from `start` to before `stop`, but none at or beyond `count`."""
        return map(self.object, range(start, self.count if stop is None else min(stop, self.count)))

    def population(
        self,
        day: int,
        *,
        hires_per_day: int,
        leavers_per_day: int,
        movers_per_day: int,
        moving: str = "department",
    ) -> Iterator[Attributes]:
        """Yield all people of a company on a day, in the order in which they were first hired.

        Day 0 has `count` people. Each day, people are hired, others leave, and others get another value of
        the attribute `moving`. Every tenth leaver comes back within a month, with the same values. Managers
        and references are people who are present, so those of a leaver's reports change.
        """
        turnover = Turnover(self.count, self.seed)
        for today in range(1, day + 1):
            turnover.pass_day(today, hires=hires_per_day, leavers=leavers_per_day, movers=movers_per_day)
        rules = dict(self.rules)
        if turnover.moves:
            rules[moving] = self._choice(moving).moved(turnover.moves)
        presence = turnover.presence()
        company = replace(self, rules=rules, presence=presence)
        return (company.object(index) for index, is_present in enumerate(presence) if is_present)

    def has(self, index: int) -> bool:
        return self.presence is None or bool(self.presence[index])

    def id_of(self, index: int, attribute: str) -> Any:
        return self._made(index, self._leading_to[attribute])[attribute]

    def _made(self, index: int, rules: NamedRules) -> Attributes:
        known: Attributes = {}
        for name, rule in rules:
            value = rule.value(index, known, self)
            if value is not None:
                known[name] = value
        return known

    def _choice(self, attribute: str) -> Choice:
        rule = self.rules.get(attribute)
        if isinstance(rule, Choice) and len(set(rule.values)) > 1:
            return rule
        raise ValueError(
            f"people cannot move, because “{attribute}” is not an attribute with a choice of several values; "
            "name one that has “choose” and does not have “fill”"
        )

    @cached_property
    def _in_order(self) -> NamedRules:
        """Return the rules so that each comes after those on which it depends."""
        return [(name, self.rules[name]) for name in TopologicalSorter(self.uses).static_order()]

    @cached_property
    def _leading_to(self) -> dict[str, NamedRules]:
        """Return, for each attribute that identifies objects, the rules that are needed for its value."""
        found = {}
        for name, rule in self.rules.items():
            if rule.is_id:
                needed = self._needed(name)
                found[name] = [each for each in self._in_order if each[0] in needed]
        return found

    def _needed(self, attribute: str) -> set[str]:
        needed = [attribute]
        for name in needed:  # grows during the loop
            needed += [used for used in self.uses[name] if used not in needed]
        return set(needed)
