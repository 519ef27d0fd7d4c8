"""The scopes of API tokens. A token never allows more than its user can do."""

from __future__ import annotations

from collections.abc import Collection

SCOPES = {
    "view": "Read everything that the user can read.",
    "run": "Everything in “view”, and also run, cancel, retry, pause and resume work, publish events and "
    "reorder the queue.",
    "define": "Everything in “view”, and also create and change schedules, templates and calendars.",
    "admin": "Do everything that the user can do.",
}
DEFINED = ("schedule", "tasktemplate", "sharedcalendar")
OPERATED = (
    *("schedules.run_schedule", "workflows.operate_workflow", "workflows.publish_event"),
    "identity.run_profile",
)
DEFINING = ("schedules.define_code", "identity.define_identity")
# Even reading these needs the scope “admin”.
ADMINISTERED = ("secret", "apitoken")


def reach(scopes: Collection[str], permission: str) -> bool:
    """Return whether the scopes include a Django permission."""
    needed = scope_of(permission)
    return needed in scopes or "admin" in scopes or (needed == "view" and bool(scopes))


def scope_of(permission: str) -> str:
    """Return the scope that includes a Django permission, such as `schedules.view_schedule`."""
    verb, _, model = permission.partition(".")[2].partition("_")
    if model in ADMINISTERED:
        return "admin"
    if verb == "view":
        return "view"
    if permission in OPERATED:
        return "run"
    return "define" if model in DEFINED or permission in DEFINING else "admin"
