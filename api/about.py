"""What the description of the API says before it comes to its parts; settings read it."""

from __future__ import annotations

DESCRIPTION = """
Schedules, executions, jobs and what became of them.

**Who asks.** Send `Authorization: Bearer jim_…`, an API token, which reaches as far as its scopes and never
beyond its user; or the session of somebody who is signed in, with the CSRF token for changes.

**Versions.** What can be edited has an `ETag`. `PUT`, `PATCH` and `DELETE` name it in `If-Match` (`*` for
whichever there is): without it they are refused with 428, with an old one with 412. `If-None-Match` saves a
transfer.

**Once.** A `POST` with an `Idempotency-Key` is carried out once: within 24 hours, the same request gets the
same answer, with `Idempotent-Replayed: true`; another body with the same key is refused (409). This holds
through crashes: after an error nothing was done; after no answer at all, send the request again.

**Lists** come in pages: follow `next`. Unknown fields, filters and orderings are refused by name.

**Errors** are problem details (RFC 9457, `application/problem+json`): `detail` is for people, `errors` says
what is wrong with which field.
"""

TAGS = {
    "schedules": "What runs, and when; with its ledger, backfills and revisions.",
    "backfills": "Past ranges whose times are started again or at last.",
    "calendars": "Times at which nothing that refers to them runs.",
    "templates": "What steps that are alike have in common.",
    "secrets": "Values that steps refer to by name, and that are never shown.",
    "executions": "Runs of plans, with their steps and attempts.",
    "tasks": "The queue.",
    "direct": "Run one step at once, and wait for its outcome.",
    "activities": "What happened: every attempt and every change.",
    "workflows": "Event-driven work: producers and consumers that share state and topics.",
    "runs": "Each attempt of a producer or consumer.",
    "topics": "Sequences of events; publish to them here.",
    "events": "What was published, and what became of it.",
    "workers": "The processes that do the work.",
    "pools": "Where tasks are queued.",
    "reservations": "Seats of pools that direct requests hold or wait for.",
    "limits": "How many tasks with one key run at once.",
    "webhooks": "Where notifications are sent to.",
    "deliveries": "Each notification, and whether it arrived.",
    "tokens": "Who may call this API.",
    "health": "Whether all is well.",
}
