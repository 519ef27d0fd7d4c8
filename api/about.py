"""The introduction and the section texts of the OpenAPI description."""

from __future__ import annotations

DESCRIPTION = """
Manage schedules, run jobs, and read what happened.

**Authentication.** Send an API token: `Authorization: Bearer jim_…`. A token can do what its scopes allow,
and never more than its user. In a browser, the session of a signed-in user works too; changes then need the
CSRF token.

**Versions.** Everything that can be edited has an `ETag`. `PUT`, `PATCH` and `DELETE` need it in `If-Match`
(or `*` for any version). Without `If-Match` they answer 428; if the version is outdated, 412. Send
`If-None-Match` with a `GET` to get an empty 304 answer while nothing has changed.

**Idempotency.** A `POST` with an `Idempotency-Key` is carried out once. The same request within 24 hours gets
the same response, with the header `Idempotent-Replayed: true`. The same key with a different body answers
409. After an error response nothing was done. If no response arrived, send the request again with the same
key.

**Lists** are paginated: follow `next` until it is null. Unknown fields, filters and orderings are errors.

**Errors** are problem details (RFC 9457, `application/problem+json`). `detail` explains the problem and what
to do, `errors` lists each invalid field, and `type` identifies the kind of problem for programs.
"""

TAGS = {
    "schedules": "What runs and when. Includes occurrences, backfills and revisions.",
    "backfills": "Requests to run the times of a past range.",
    "calendars": "Shared lists of dates and times that schedules leave out, such as public holidays.",
    "templates": "Steps that many schedules and jobs refer to.",
    "secrets": "Encrypted values that steps refer to by name. Values are never shown.",
    "executions": "Runs of schedules and of job groups, with their steps and attempts.",
    "tasks": "The queue of steps and jobs.",
    "direct": "Run one step immediately and wait for its result.",
    "activities": "The history: every attempt and every change.",
    "workflows": "Event-driven work: producers and consumers that share topics.",
    "runs": "Runs of producers and consumers.",
    "topics": "Named sequences of events. Publish events here.",
    "events": "Published events and their status.",
    "workers": "Worker processes.",
    "pools": "The pools in which tasks are queued.",
    "reservations": "Seats of pools that direct requests use or wait for.",
    "limits": "The number of tasks with the same key that may run at once.",
    "webhooks": "URLs that receive notifications.",
    "deliveries": "Notifications sent to webhooks, and whether they arrived.",
    "tokens": "API tokens.",
    "health": "Health checks for monitoring and load balancers.",
}
