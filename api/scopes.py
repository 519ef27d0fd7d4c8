"""How far a token reaches: never beyond its user, and only as far as its scopes say."""

from __future__ import annotations

from collections.abc import Collection

SCOPES = {
    "view": "Read everything that its user may read.",
    "run": "Also run, cancel, retry, pause and resume, publish events, and move what is queued.",
    "define": "Also create and change schedules, templates and calendars.",
    "admin": "Everything that its user may do.",
}
DEFINED = ("schedule", "tasktemplate", "sharedcalendar")
OPERATED = ("schedules.run_schedule", "workflows.operate_workflow", "workflows.publish_event")
# Reading them is part of looking after the installation.
ADMINISTERED = ("secret", "apitoken")


def reach(scopes: Collection[str], permission: str) -> bool:
    needed = scope_of(permission)
    return needed in scopes or "admin" in scopes or (needed == "view" and bool(scopes))


def scope_of(permission: str) -> str:
    """The scope that a Django permission, such as `schedules.view_schedule`, belongs to."""
    verb, _, model = permission.partition(".")[2].partition("_")
    if model in ADMINISTERED:
        return "admin"
    if verb == "view":
        return "view"
    if permission in OPERATED:
        return "run"
    return "define" if model in DEFINED or permission == "schedules.define_code" else "admin"
