"""The introduction and the section texts of the OpenAPI description."""

from __future__ import annotations

DESCRIPTION = """
Manage schedules, run jobs, and read the history of everything that ran.

**Authentication.** Send an API token: `Authorization: Bearer jim_…`. A token can do what its scopes allow,
but never more than its user. In a browser, you can use the session of a signed-in user instead. Requests that
make changes then also need the CSRF token.

**Versions.** Every object that can be edited has an `ETag`. Send it in `If-Match` with each `PUT`, `PATCH`
and `DELETE`, or send `*` to accept any version. Without `If-Match`, the response is 428. If the version is
outdated, the response is 412. To get an empty 304 response if nothing has changed, send the `ETag` in
`If-None-Match` with a `GET`.

**Idempotency.** Many `POST` requests accept an `Idempotency-Key`, which prevents them from being carried out
twice. Repeating the same request with the same key within 24 hours returns the first response again, with the
header `Idempotent-Replayed: true`. Using the key for a different request body returns 409. An error response
means that nothing was changed. If you do not receive a response, send the request again with the same key.

**Lists** are paginated: follow `next` until it is null. Requests with unknown fields, filters or orderings
are refused (400).

**Errors** are problem details (RFC 9457, `application/problem+json`). `detail` explains the problem and what
to do about it, `errors` lists each invalid field, and `type` identifies the kind of problem for programs.
"""

TAGS = {
    "schedules": "Schedules say what to run and when. This section also has their occurrences, backfills and "
    "revisions.",
    "backfills": "Requests to run a schedule for scheduled times in the past.",
    "calendars": "Shared lists of dates and times at which schedules do not run, such as public holidays.",
    "templates": "Reusable steps that schedules and jobs refer to by name.",
    "secrets": "Encrypted values, such as passwords, that steps refer to by name. The values are never "
    "shown.",
    "executions": "Records of the runs of schedules and job groups, with their steps and attempts.",
    "tasks": "The queue: steps and jobs that are waiting or running.",
    "direct": "Run one step immediately and wait for its result.",
    "activities": "The history: every attempt to run a step or job, and every change that a user or program "
    "made.",
    "workflows": "Groups of handlers: producers run on a schedule and publish events, and consumers process "
    "the events.",
    "runs": "Runs of the producers and consumers of workflows.",
    "topics": "Named sequences of events. Events are published to a topic.",
    "events": "Events that were published to topics, with their status.",
    "workers": "Worker processes.",
    "pools": "Pools divide the queue: each task is in one pool, and each worker serves all or some pools.",
    "reservations": "Seats that direct requests use or wait for. A seat is room for one task in a pool.",
    "limits": "Limits on how many tasks with the same key can run at once.",
    "webhooks": "URLs to which notifications are sent.",
    "deliveries": "Notifications that were sent to webhooks, with the results.",
    "tokens": "API tokens.",
    "health": "Health checks for monitoring and load balancers.",
}
