"""The introduction and the section texts of the OpenAPI description."""

from __future__ import annotations

DESCRIPTION = """
Manage schedules, run jobs, and read the history of everything that ran.

**Authentication.** Send an API token: `Authorization: Bearer jim_…`. A token can do what its scopes allow,
but never more than its user. In a browser, you can use the session of a signed-in user instead. Requests that
change something then also need the CSRF token.

**Versions.** Every object that can be edited has an `ETag`. Send it in `If-Match` with each `PUT`, `PATCH`
and `DELETE`, or send `*` to accept any version. Without `If-Match`, the response is 428. If the version is
outdated, the response is 412. To get an empty 304 response if nothing has changed, send the `ETag` in
`If-None-Match` with a `GET`.

**Idempotency.** Many `POST` requests accept an `Idempotency-Key`, which prevents them from being carried out
twice. Repeating the same request with the same key within 24 hours returns the first response again, with the
header `Idempotent-Replayed: true`. Using the key for a different request body returns 409. An error response
means that nothing was changed. If you do not receive a response, send the request again with the same key.

**Lists** are paginated: follow `next` until it is null. Unknown fields, filters and orderings are errors.

**Errors** are problem details (RFC 9457, `application/problem+json`). `detail` explains the problem and what
to do about it, `errors` lists each invalid field, and `type` identifies the kind of problem for programs.
"""

TAGS = {
    "schedules": "What runs and when. Includes occurrences, backfills and revisions.",
    "backfills": "Requests to run a schedule for its scheduled times in a past range.",
    "calendars": "Shared lists of dates and times that schedules leave out, such as public holidays.",
    "templates": "Reusable steps that schedules and jobs refer to by name.",
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
    "reservations": "Seats in pools that direct requests use or wait for.",
    "limits": "Limits on how many tasks with the same key can run at once.",
    "webhooks": "URLs that receive notifications.",
    "deliveries": "Notifications sent to webhooks, and whether they arrived.",
    "tokens": "API tokens.",
    "health": "Health checks for monitoring and load balancers.",
}
