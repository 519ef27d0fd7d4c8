"""The http step: a request to a public web address, or to one that the administrator allows."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from execution.children.lines import Lines
from execution.outgoing.addresses import url_complaint
from execution.steps.fields import Field, shown
from schedules.placeholders import (
    Filled,
    Reference,
    found,
    has_placeholders,
    is_placeholder,
    pieces,
    references,
)

from .context import Context
from .outcome import StepFailed, as_result
from .step_type import StepType

if TYPE_CHECKING:
    from execution.outgoing.calls import Answer, Request

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
RETRIED = (408, 425, 429)
EXCERPT_CHARS = 64 * 1024
SPARE_CHARS = 16 * 1024
HEADER_CHARS = 2_000
SHOWN_HEADERS = ("content-type", "date", "etag", "location", "retry-after")

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
UNFIT_FOR_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
FORBIDDEN_HEADERS = re.compile(
    r"host|connection|content-length|transfer-encoding|keep-alive|te|trailer|upgrade|proxy-.*"
)
SECRET_HEADERS = re.compile(r"authorization|cookie|(x-)?api-?key|x-auth-token")
# In the URL that is matched, NUL stands for a secret, which may contain the host.
WITH_HOST = re.compile(r"(https?://[^/?#]+|\0)[/?#]", re.IGNORECASE)
STATUS = re.compile(r"[1-5](xx|[0-9]{2})", re.IGNORECASE)

TEXT_TYPE = re.compile(r"text/.*|.*[/+](json|xml|yaml|x-yaml|javascript|x-www-form-urlencoded|x-ndjson)")
JSON_TYPE = re.compile(r".*[/+]json")
# Python knows more charsets, some of which are slow or not for text.
CHARSET = re.compile(
    r"""charset="?(utf-?8|utf-16(-?[lb]e)?|us-ascii|iso-8859-[0-9]+|windows-[0-9]+|koi8-[ru]|shift_jis|euc-(jp|kr)"""
    r"""|gbk|gb2312|gb18030|big5)"?\s*(;|$)""",
    re.IGNORECASE,
)


class HttpStep(StepType):
    name = "http"
    title = "HTTP request"
    needs_code_permission = False
    fields = (
        Field(
            "method",
            "Method",
            kind="choice",
            default="GET",
            choices=tuple((method, method) for method in METHODS),
        ),
        Field("url", "URL", required=True, help="such as https://shop.example/api/orders"),
        Field(
            "headers",
            "Headers",
            kind="mapping",
            text_only=True,
            help='such as {"Content-Type": "application/json"}',
        ),
        Field(
            "body", "Body", kind="textarea", help="sent unchanged; set a Content-Type header to describe it"
        ),
        Field(
            "authentication",
            "Authentication",
            kind="choice",
            default="none",
            choices=(("none", "none"), ("bearer", "bearer token"), ("basic", "user name and password")),
        ),
        Field("username", "User name", help="for basic authentication"),
        Field("credential", "Token or password", help="a reference to one secret: {{ secrets.NAME }}"),
        Field(
            "expected_status",
            "Expected status",
            kind="list",
            help='statuses that count as success, such as [200, 204] or ["2xx"]; any 2xx if empty',
        ),
        Field(
            "follow_redirects",
            "Follow redirects",
            kind="bool",
            default=False,
            help="at most five redirects; credentials and bodies are not sent to other sites",
        ),
    )

    def check(self, values: dict[str, Any]) -> dict[str, str]:
        complaints = {
            "url": _url_complaint(values),
            "headers": _headers_complaint(values),
            "body": _body_complaint(values),
            "username": _username_complaint(values),
            "credential": _credential_complaint(values),
            "expected_status": _statuses_complaint(values["expected_status"]),
        }
        return {field: complaint for field, complaint in complaints.items() if complaint}

    def fill(self, config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the filled config, with the values of credentials and headers marked as filled in.

        Without the mark, `check` would refuse them as credentials that were written in plain text.
        """
        filled = super().fill(config, values)
        if has_placeholders(config.get("credential")):
            filled["credential"] = Filled(filled["credential"])
        if has_placeholders(config.get("headers")) and isinstance(filled["headers"], dict):
            filled["headers"] = {name: Filled(value) for name, value in filled["headers"].items()}
        return filled

    def run(self, ctx: Context) -> object:
        answer = _answer(ctx)
        _report(ctx, answer)
        expected = ctx.config["expected_status"] or ["2xx"]
        if not any(_matches(answer.status, each) for each in expected):
            raise StepFailed(
                f"the response was {_named(answer.status)}, not {' or '.join(map(str, expected))}",
                can_retry=answer.status in RETRIED or answer.status >= 500,
            )
        return _result(ctx, answer)


def _answer(ctx: Context) -> Answer:
    # Imported here, so that a worker without http steps saves the memory.
    from execution.outgoing.calls import Call
    from execution.outgoing.network import CallFailed

    timeout = ctx.work.timeout_seconds
    # The call's limits come after the step's timeout, which interrupts the call with a clearer message.
    call = Call() if timeout is None else Call(idle_seconds=timeout + 60, total_seconds=timeout + 60)
    with ctx.on_interrupt(call.hang_up):
        request = _request(ctx)
        ctx.await_lease()
        try:
            return call.send(request, follow_redirects=ctx.config["follow_redirects"])
        except CallFailed as failure:
            if call.was_hung_up:
                ctx.check()
            raise StepFailed(str(failure), can_retry=failure.can_retry) from None


def _request(ctx: Context) -> Request:
    from execution.outgoing.calls import Request

    config = ctx.config
    given = {name.lower() for name in config["headers"]}
    own = {
        "Accept": "*/*",
        "Accept-Encoding": "gzip",
        "User-Agent": "JIM",
        "Idempotency-Key": ctx.idempotency_key,
        **_authorization(config),
    }
    return Request(
        method=config["method"],
        url=config["url"],
        headers={name: value for name, value in own.items() if name.lower() not in given}
        | {name: value.strip() for name, value in config["headers"].items()},
        body=config["body"].encode(),
    )


def _authorization(config: dict[str, Any]) -> dict[str, str]:
    match config["authentication"]:
        case "bearer":
            return {"Authorization": f"Bearer {config['credential']}"}
        case "basic":
            pair = f"{config['username']}:{config['credential']}"
            return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
    return {}


def _result(ctx: Context, answer: Answer) -> object:
    result = {
        "status": answer.status,
        # Without the query, which may contain keys and signatures.
        "url": answer.url.partition("#")[0].partition("?")[0],
        "seconds": round(answer.seconds, 3),
        "bytes": answer.size,
        "headers": {
            name: ctx.masked(answer.headers[name])[:HEADER_CHARS]
            for name in SHOWN_HEADERS
            if name in answer.headers
        },
    }
    if not (answer.body and _is_whole(answer) and JSON_TYPE.fullmatch(_media_type(answer))):
        return result
    try:
        return as_result(result | {"json": json.loads(answer.body)})
    except (ValueError, RecursionError, StepFailed):
        return result  # not JSON, or cannot be stored


def _report(ctx: Context, answer: Answer) -> None:
    ctx.write(f"{_named(answer.status)} after {answer.seconds:.3f} s: {_described(answer)}")
    if not (answer.size and _is_text(answer)):
        return
    text = ctx.masked(_decoded(answer))
    if not _is_whole(answer):
        text = text[:-SPARE_CHARS]  # the end may be half a secret, which would not be recognised
    lines = Lines()
    ctx.output("stdout", [*lines.feed(text[:EXCERPT_CHARS].encode(errors="replace")), *lines.finish()])
    if len(text) > EXCERPT_CHARS or not _is_whole(answer):
        ctx.write("… (the rest is not shown)")


def _described(answer: Answer) -> str:
    if not answer.size:
        return "no content"
    kind = _media_type(answer)
    described = f"{answer.size:,} bytes of {kind}" if kind else f"{answer.size:,} bytes"
    return described if _is_text(answer) else f"{described}, which is not shown"


def _is_text(answer: Answer) -> bool:
    if "content-encoding" in answer.headers:
        return False
    media_type = _media_type(answer)
    return TEXT_TYPE.fullmatch(media_type) is not None if media_type else b"\0" not in answer.body


def _is_whole(answer: Answer) -> bool:
    return answer.size == len(answer.body)


def _decoded(answer: Answer) -> str:
    charset = CHARSET.search(answer.headers.get("content-type", ""))
    try:
        return answer.body.decode(charset[1] if charset else "utf-8", errors="replace")
    except LookupError:  # such as iso-8859-99
        return answer.body.decode(errors="replace")


def _media_type(answer: Answer) -> str:
    return answer.headers.get("content-type", "").partition(";")[0].strip().lower()


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _matches(status: int, expected: int | str) -> bool:
    return re.fullmatch(str(expected).lower().replace("x", "[0-9]"), str(status)) is not None


def _url_complaint(values: dict[str, Any]) -> str:
    url = values["url"]
    if not has_placeholders(url):
        return url_complaint(url)
    if _names_its_host(url) or not any(each.kind == "secret" for each in found(values)):
        return ""
    return (
        "must contain the whole host before the first placeholder, as in https://shop.example/{{ … }}: "
        "otherwise, the value of the placeholder could send the secret to another host"
    )


def _names_its_host(url: str) -> bool:
    """Return whether only literal text and secrets decide to which host the request goes."""
    begin = ""
    for piece in pieces(url):
        if isinstance(piece, Reference) and piece.kind != "secret":
            return WITH_HOST.match(begin) is not None
        begin += piece if isinstance(piece, str) else "\0"
    return True


def _headers_complaint(values: dict[str, Any]) -> str:
    headers = values["headers"]
    if isinstance(headers, str):
        return ""  # one placeholder for all of them
    if unnamed := [name for name in headers if not isinstance(name, str)]:
        return f"{unnamed[0]!r} is not a valid header name; put it in quotes"
    names = [name.lower() for name in headers]
    if values["authentication"] != "none" and "authorization" in names:
        return "remove the Authorization header: the authentication setting already sends it"
    if len(set(names)) < len(names):
        return "a header is given twice; header names are not case-sensitive"
    complaints = (_header_complaint(name, value) for name, value in headers.items())
    return next(filter(None, complaints), "")


def _header_complaint(name: str, value: object) -> str:
    if not HEADER_NAME.fullmatch(name):
        return f"{name!r} is not a valid header name; use letters, digits and -"
    if FORBIDDEN_HEADERS.fullmatch(name.lower()):
        return f"{name} cannot be set: it is derived from the URL, the body and the connection"
    if not isinstance(value, str):
        return f"the value of {name} must be text: put it in quotes"
    if SECRET_HEADERS.fullmatch(name.lower()) and not _is_filled_in(value):
        return f"the value of {name} must not be plain text: refer to a secret, as in {{{{ secrets.NAME }}}}"
    if not has_placeholders(value) and UNFIT_FOR_HEADER.search(value):
        return f"the value of {name} must be one line, without control characters"
    return ""


def _body_complaint(values: dict[str, Any]) -> str:
    if values["body"] and values["method"] in ("GET", "HEAD"):
        return f"{values['method']} requests have no body: leave the body empty, or choose POST, PUT or PATCH"
    return ""


def _username_complaint(values: dict[str, Any]) -> str:
    is_basic, username = values["authentication"] == "basic", values["username"]
    if is_basic and not username:
        return "is required for basic authentication"
    if username and not is_basic:
        return "is for basic authentication only: choose basic authentication, or leave the user name empty"
    if ":" in username and not has_placeholders(username):
        return "must not contain a colon, which separates it from the password"
    return ""


def _credential_complaint(values: dict[str, Any]) -> str:
    credential = values["credential"]
    if values["authentication"] == "none":
        return (
            "is for bearer and basic authentication only: choose one of them, or leave this setting empty"
            if credential
            else ""
        )
    if not isinstance(credential, Filled) and not _is_secret(credential):
        return "must be a reference to one secret: {{ secrets.NAME }}"
    if isinstance(credential, Filled) and not credential:
        return "refers to an empty secret: give the secret a value"
    if isinstance(credential, Filled) and UNFIT_FOR_HEADER.search(credential):
        return "the secret must be one line, without control characters"
    return ""


def _statuses_complaint(statuses: list[Any]) -> str:
    if has_placeholders(statuses):
        return ""
    for status in statuses:
        if isinstance(status, bool) or not STATUS.fullmatch(str(status)):
            return f'{shown(status)} is not an HTTP status; use one from 100 to 599, or a class such as "2xx"'
    return ""


def _is_secret(text: str) -> bool:
    return is_placeholder(text) and references(text)[0].kind == "secret"


def _is_filled_in(text: str) -> bool:
    return isinstance(text, Filled) or bool(references(text))
