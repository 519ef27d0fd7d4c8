"""Event-driven work: producers publish events to topics; consumers prepare, mutate and publish."""

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
