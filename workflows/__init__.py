"""Event-driven work: producers publish events to topics, consumers prepare, mutate and go on."""

from __future__ import annotations

from .definition import Consumer, Mutation, Pending, Prepared, Producer, Workflow
from .errors import AuthRequired, Indeterminate, Internal, PermissionRequired, Transient

__all__ = [
    "AuthRequired",
    "Consumer",
    "Indeterminate",
    "Internal",
    "Mutation",
    "Pending",
    "PermissionRequired",
    "Prepared",
    "Producer",
    "Transient",
    "Workflow",
]
