"""What the objects of a connected system look like: their types and attributes. Uses no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

from .values import Kind, canonical


@dataclass(frozen=True)
class AttributeShape:
    name: str
    kind: Kind = Kind.TEXT
    is_multi: bool = False


@dataclass(frozen=True)
class TypeShape:
    """One type of objects. `external_id` is the attribute that identifies an object for its whole life.

    `secondary_id` is an attribute that locates the object and may change, such as a distinguished name.
    """

    name: str
    attributes: Mapping[str, AttributeShape]
    external_id: str
    secondary_id: str = ""

    @classmethod
    def of(
        cls, name: str, *attributes: AttributeShape, external_id: str, secondary_id: str = ""
    ) -> TypeShape:
        return cls(name, {each.name: each for each in attributes}, external_id, secondary_id)

    @cached_property
    def fingerprint(self) -> bytes:
        """Return bytes that differ if objects of this type would be read differently."""
        told = [self.name, self.external_id, self.secondary_id]
        told += [f"{each.name}:{each.kind}:{each.is_multi}" for each in self.attributes.values()]
        return blake2b(canonical(sorted(told)).encode(), digest_size=8).digest()


@dataclass(frozen=True)
class FoundType:
    """A type of objects that a connector found in its system, with what it proposes for the type."""

    name: str
    attributes: list[AttributeShape]
    external_id: str = ""
    secondary_id: str = ""
    # Remarks by attribute, such as “leading zeros: kept as text”.
    remarks: Mapping[str, str] = field(default_factory=dict)
