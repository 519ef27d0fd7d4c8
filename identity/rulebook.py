"""All sync rules, compiled once for a run into functions on attribute documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .expressions import Expression, ExpressionError, compiled
from .models import (
    Attribute,
    ConnectedSystem,
    Flow,
    IdentityAttribute,
    IdentityType,
    ObjectType,
    SyncRule,
)
from .scope import Scope, ScopeError, scope
from .shape import AttributeShape
from .values import Attributes, BadValue, Kind, Match, as_list, converted, in_order, parse, parse_each


class RuleError(Exception):
    """A rule cannot be used; the message names the rule and says why.

    `path` is the part of its document that is wrong, and `reason` is the message without the rule's name.
    """

    def __init__(self, rule: SyncRule, path: str, reason: str) -> None:
        super().__init__(f"The rule “{rule}” cannot be used: {path}: {reason}")
        self.path, self.reason = path, reason


class FlowError(Exception):
    """A flow has no valid value for one object. The object is left as it is."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


@dataclass(frozen=True)
class Condition:
    """One condition of a join: an attribute of the account equals one of the identity."""

    account: str
    identity: str
    account_attribute: int
    identity_attribute: int


@dataclass(eq=False)
class CompiledFlow:
    """How one target attribute gets its value. `read` gets the attributes of the source object."""

    id: int
    rule: CompiledRule
    target: AttributeShape
    read: Callable[[Attributes], Any]
    priority: int
    null_is_value: bool
    only_on_create: bool
    merges: bool
    # The source attribute, if the flow copies references to other objects.
    reference: str = ""
    # The expression, if the flow makes a value that no other object has.
    unique: Expression | None = None
    # Names the attribute within which such values are unique.
    unique_scope: str = ""
    # The source or expression, as it is written.
    text: str = ""


@dataclass(eq=False)
class CompiledRule:
    id: int
    name: str
    revision: int
    type_id: int
    system_id: int
    identity_type_id: int
    scope: Scope
    joins: list[list[Condition]]
    creates: bool
    keeps: bool
    deprovision: str
    disable_values: dict[str, Any]
    enforces: bool
    recalls: bool
    flows: list[CompiledFlow] = field(default_factory=list)

    @cached_property
    def reference_flows(self) -> list[CompiledFlow]:
        return [flow for flow in self.flows if flow.reference]

    @cached_property
    def unique_flows(self) -> list[CompiledFlow]:
        return [flow for flow in self.flows if flow.unique is not None]

    def holds(self, attributes: Attributes) -> bool:
        """Return whether an object is in the scope of the rule; raise FlowError if this cannot be said."""
        try:
            return self.scope.holds(attributes)
        except ScopeError as error:
            raise FlowError("bad_value", f"scope of the rule “{self.name}”: {error}") from None


@dataclass(eq=False)
class TypeRules:
    """What applies to one type of accounts. Of the attributes, only those matter that rules can use."""

    id: int
    name: str
    system_id: int
    shapes: dict[str, AttributeShape]
    external_id: str
    matches: dict[str, Match]
    writable: dict[str, str]
    inbound: list[CompiledRule] = field(default_factory=list)
    # Attributes by which accounts are found, with their ids.
    keys: dict[str, int] = field(default_factory=dict)

    @cached_property
    def writable_always(self) -> frozenset[str]:
        """Return the attributes that may change. The external id is only written at the creation."""
        is_writable = {name for name, writable in self.writable.items() if writable == Attribute.Writable.YES}
        return frozenset(is_writable - {self.external_id})

    @cached_property
    def writable_at_creation(self) -> frozenset[str]:
        fixed = {name for name, writable in self.writable.items() if writable == Attribute.Writable.CREATE}
        return self.writable_always | fixed | {self.external_id}

    @property
    def refers(self) -> bool:
        """Return whether references of such accounts become references of identities."""
        return any(rule.reference_flows for rule in self.inbound)


@dataclass(eq=False)
class IdentityRules:
    """What applies to one type of identities. `flows` has the contributors to each attribute, best first."""

    id: int
    type: IdentityType
    shapes: dict[str, AttributeShape]
    flows: dict[str, list[CompiledFlow]] = field(default_factory=dict)
    # Outbound rules by type of accounts.
    outbound: dict[int, list[CompiledRule]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    source_ids: frozenset[int] = frozenset()

    @property
    def key_flows(self) -> dict[str, list[CompiledFlow]]:
        return {name: self.flows[name] for name in self.keys if name in self.flows}

    @cached_property
    def references(self) -> list[str]:
        return [name for name, shape in self.shapes.items() if shape.kind is Kind.REFERENCE]

    @cached_property
    def exported_references(self) -> set[str]:
        rules = [rule for rules in self.outbound.values() for rule in rules]
        return {flow.reference for rule in rules for flow in rule.reference_flows}


@dataclass(eq=False)
class Rulebook:
    types: dict[int, TypeRules]
    identity_types: dict[int, IdentityRules]
    rules: dict[int, CompiledRule]
    systems: dict[int, ConnectedSystem]
    has_inbound_references: bool = False
    has_outbound_references: bool = False

    @classmethod
    def load(cls, *, without: int | None = None) -> Rulebook:
        """Compile all enabled rules, but the one with the id `without`; raise RuleError if one is wrong."""
        book = cls(_types(), _identity_types(), {}, ConnectedSystem.objects.in_bulk())
        rules = SyncRule.objects.filter(is_enabled=True).select_related("object_type")
        for rule in rules.prefetch_related("flows"):
            if rule.pk != without:
                book.add(rule, rule.flows.all())
        book.sort_flows()
        return book

    def sort_flows(self) -> None:
        for each in self.identity_types.values():
            for flows in each.flows.values():
                flows.sort(key=lambda flow: (flow.priority, flow.id or math.inf))

    def forget_system(self, system_id: int) -> None:
        """Leave out the rules of a system that is being deleted."""
        for kind in [each for each in self.types.values() if each.system_id == system_id]:
            kind.inbound.clear()
            for identities in self.identity_types.values():
                identities.outbound.pop(kind.id, None)
                for flows in identities.flows.values():
                    flows[:] = [flow for flow in flows if flow.rule.system_id != system_id]

    def add(self, rule: SyncRule, rule_flows: Iterable[Flow]) -> None:
        """Add a rule, which need not be stored; raise RuleError if it cannot be used."""
        accounts, identities = self.types[rule.object_type_id], self.identity_types[rule.identity_type_id]
        is_inbound = rule.direction == SyncRule.Direction.IN
        source, target = (accounts, identities) if is_inbound else (identities, accounts)
        made = _compiled_rule(rule, accounts, identities, source.shapes)
        side = f"{rule.direction}:{target.id}"
        for place, each in enumerate(rule_flows):
            with _part(rule, f"flows.{place}"):
                made.flows.append(_compiled_flow(each, made, source.shapes, target.shapes, side))
        self.rules[rule.pk] = made
        if is_inbound:
            accounts.inbound.append(made)
            for flow in made.flows:
                identities.flows.setdefault(flow.target.name, []).append(flow)
            self.has_inbound_references |= any(flow.reference for flow in made.flows)
        else:
            identities.outbound.setdefault(accounts.id, []).append(made)
            self.has_outbound_references |= any(flow.reference for flow in made.flows)
        for condition in (each for join in made.joins for each in join):
            accounts.keys[condition.account] = condition.account_attribute
            identities.keys[condition.identity] = condition.identity_attribute


def _types() -> dict[int, TypeRules]:
    found = {}
    for each in ObjectType.objects.prefetch_related("attributes"):
        shape, attributes = each.shape, each.attributes.all()
        found[each.pk] = TypeRules(
            each.pk,
            each.name,
            each.system_id,
            dict(shape.attributes),
            each.external_id,
            {attribute.name: Match(attribute.match) for attribute in attributes},
            {attribute.name: attribute.writable for attribute in attributes},
        )
    return found


def _identity_types() -> dict[int, IdentityRules]:
    types = IdentityType.objects.prefetch_related("attributes", "sources")
    return {
        each.pk: IdentityRules(
            each.pk,
            each,
            each.shapes,
            source_ids=frozenset(system.pk for system in each.sources.all()),
        )
        for each in types
    }


def _compiled_rule(
    rule: SyncRule,
    accounts: TypeRules,
    identities: IdentityRules,
    source: Mapping[str, AttributeShape],
) -> CompiledRule:
    with _part(rule, "scope"):
        rule_scope = scope(rule.scope, source)
    with _part(rule, "disable_values"):
        disable_values = {
            name: fitted(_known(accounts.shapes, name), value) for name, value in rule.disable_values.items()
        }
    return CompiledRule(
        id=rule.pk or 0,
        name=rule.name,
        revision=rule.revision,
        type_id=accounts.id,
        system_id=accounts.system_id,
        identity_type_id=identities.id,
        scope=rule_scope,
        joins=_joins(rule, accounts, identities),
        creates=rule.creates,
        keeps=rule.out_of_scope == SyncRule.OutOfScope.KEEP,
        deprovision=rule.deprovision,
        disable_values=disable_values,
        enforces=rule.enforces,
        recalls=rule.recalls,
    )


def _joins(rule: SyncRule, accounts: TypeRules, identities: IdentityRules) -> list[list[Condition]]:
    ids = dict(Attribute.objects.filter(type=accounts.id).values_list("name", "pk"))
    identity_ids = dict(IdentityAttribute.objects.filter(type=identities.id).values_list("name", "pk"))
    joins = []
    for place, conditions in enumerate(rule.joins):
        with _part(rule, f"joins.{place}"):
            found = []
            for own, theirs in _conditions(conditions):
                _known(accounts.shapes, own)
                _known(identities.shapes, theirs)
                found.append(Condition(own, theirs, ids[own], identity_ids[theirs]))
            joins.append(found)
    return joins


def _conditions(join: object) -> list[tuple[str, str]]:
    """Return the attribute of the account and of the identity of each condition of a join."""
    if not isinstance(join, list) or not join:
        raise ValueError('must be a list of conditions, such as [{"account": "id", "identity": "number"}]')
    for each in join:
        if not isinstance(each, dict) or set(each) != {"account", "identity"}:
            raise ValueError(
                f"each condition must have an “account” and an “identity” attribute, not {each!r}"
            )
    return [(str(each["account"]), str(each["identity"])) for each in join]


def _known(shapes: Mapping[str, AttributeShape], name: str) -> AttributeShape:
    if name not in shapes:
        raise ValueError(f"unknown attribute “{name}”; known attributes: {', '.join(sorted(shapes))}")
    return shapes[name]


@contextmanager
def _part(rule: SyncRule, path: str) -> Iterator[None]:
    """Name the part of the rule's document in which an error is."""
    try:
        yield
    except (ScopeError, ExpressionError, FlowError, ValueError) as error:
        raise RuleError(rule, path, str(error)) from None


def _compiled_flow(
    flow: Flow,
    rule: CompiledRule,
    sources: Mapping[str, AttributeShape],
    targets: Mapping[str, AttributeShape],
    side: str,
) -> CompiledFlow:
    target = _known(targets, flow.target)
    made = CompiledFlow(
        flow.pk or 0,
        rule,
        target,
        lambda attributes: None,
        flow.priority,
        flow.null_is_value,
        flow.when == Flow.When.CREATE,
        flow.merges and target.is_multi,
        text=flow.expression or flow.source,
    )
    if flow.expression:
        expression = compiled(flow.expression, sources.keys())
        if expression.is_unique:
            made.unique = expression
            made.unique_scope = f"{side}:{target.name}"
        else:
            made.read = _from_expression(expression, target)
        return made
    source = _known(sources, flow.source)
    if source.kind is Kind.REFERENCE and target.kind is Kind.REFERENCE:
        made.reference = source.name
    made.read = _from_attribute(source, target)
    return made


def _from_expression(expression: Expression, target: AttributeShape) -> Callable[[Attributes], Any]:
    def read(attributes: Attributes) -> Any:
        try:
            return fitted(target, expression.value(attributes))
        except ExpressionError as error:
            raise FlowError("expression_error", f"{target.name}: {error}") from None

    return read


def _from_attribute(source: AttributeShape, target: AttributeShape) -> Callable[[Attributes], Any]:
    name = source.name
    if source.kind == target.kind and source.is_multi == target.is_multi:
        return lambda attributes: attributes.get(name)

    def read(attributes: Attributes) -> Any:
        value = attributes.get(name)
        if value is None:
            return None
        try:
            values = [converted(each, source.kind, target.kind) for each in as_list(value)]
        except BadValue as error:
            raise FlowError("bad_value", f"{target.name}: {error}") from None
        return in_order(values) if target.is_multi else _only(values, target)

    return read


def fitted(target: AttributeShape, value: object) -> Any:
    """Return the value as the target attribute stores it; raise FlowError if it does not fit."""
    try:
        if target.is_multi:
            return parse_each(target.kind, as_list(value))
        return parse(target.kind, _only(value, target) if isinstance(value, list) else value)
    except BadValue as error:
        raise FlowError("bad_value", f"{target.name}: {error}") from None


def _only(values: list[Any], target: AttributeShape) -> Any:
    if len(values) > 1:
        raise FlowError(
            "multi_to_single",
            f"{target.name}: there are {len(values)} values, but the attribute can have only one; "
            "choose one with an expression such as first(…)",
        )
    return values[0] if values else None
