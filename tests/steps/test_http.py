"""HTTP steps against a real server: what they send, what they make of the answer, how they are stopped."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import pytest

from execution.children.nursery import Nursery
from execution.steps.binding import Binding
from execution.steps.context import Work
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from execution.steps.step_type import get
from schedules.registry import ConfigError
from tests.steps.stage import Recorder, Running, work
from tests.steps.web_server import WebServer
from tests.waiting import wait_until

TOKEN = "{{ secrets.token }}"
CANARY = "c4n4ry/+ &? token"


def call(url: str, *, timeout: float | None = None, refs: list[str] | None = None, **rest: Any) -> Work:
    return work("http", {"url": url, **rest}, timeout_seconds=timeout, refs=refs)


def run(nursery: Nursery, url: str, **rest: Any) -> tuple[Outcome, Recorder]:
    sink = Recorder()
    return perform(call(url, **rest), sink, nursery=nursery), sink


def run_with_secret(
    nursery: Nursery, url: str, secret: str = CANARY, **rest: Any
) -> tuple[Outcome, Recorder]:
    sink, binding = Recorder(), Binding(values={"secrets.token": secret}, secrets=(secret,))
    outcome = perform(call(url, refs=["secrets.token"], **rest), sink, nursery=nursery, binding=binding)
    return outcome, sink


def result(outcome: Outcome) -> dict[str, Any]:
    assert (outcome.status, outcome.error) == ("complete", "")
    assert isinstance(outcome.result, dict)
    return outcome.result


class TestSuccess:
    def test_a_request_and_its_answer(self, nursery: Nursery, server: WebServer) -> None:
        outcome, sink = run(
            nursery,
            f"{server.url}/echo?region=north",
            method="POST",
            headers={"Content-Type": "application/json", "X-Trace": " 7 "},
            body='{"count": 3}\n',
        )
        (seen,) = server.seen
        sent = ("POST", "/echo?region=north", '{"count": 3}\n')
        assert (seen["method"], seen["path"], seen["body"]) == sent
        told = result(outcome)
        assert told.pop("seconds") >= 0
        assert told.pop("headers").keys() == {"content-type", "date"}
        size = len(json.dumps(seen))
        assert told == {"status": 200, "url": f"{server.url}/echo", "bytes": size, "json": seen}
        assert sink.lines("stdout") == [json.dumps(seen)]
        (summary,) = sink.lines("log")
        assert summary.startswith("200 OK after 0.")
        assert summary.endswith(" bytes of application/json")

    def test_the_author_has_the_last_word_on_headers(self, nursery: Nursery, server: WebServer) -> None:
        given = call(f"{server.url}/echo")
        perform(given, Recorder(), nursery=nursery)
        run(nursery, f"{server.url}/echo", headers={"idempotency-key": "mine", "USER-AGENT": "me", "X": "ü"})
        own, chosen = (seen["headers"] for seen in server.seen)
        assert own == {
            "host": f"127.0.0.1:{server.server_port}",
            "accept": "*/*",
            "accept-encoding": "gzip",
            "user-agent": "JIM",
            "idempotency-key": given.key,
        }
        assert (chosen["idempotency-key"], chosen["user-agent"]) == ("mine", "me")
        assert chosen["x"].encode("latin-1").decode() == "ü"

    @pytest.mark.parametrize(
        ("status", "expected"),
        [(204, []), (418, [200, "4xx"]), (302, ["3XX"]), (503, ["503"])],
    )
    def test_an_expected_status(
        self, nursery: Nursery, server: WebServer, status: int, expected: list[Any]
    ) -> None:
        outcome, _ = run(nursery, f"{server.url}/status?is={status}", expected_status=expected)
        assert result(outcome)["status"] == status

    def test_redirects_are_followed_if_wanted(self, nursery: Nursery, server: WebServer) -> None:
        url = f"{server.url}/redirect?to=/echo%3Fsignature=x"
        outcome, _ = run(nursery, url, follow_redirects=True)
        assert result(outcome)["url"] == f"{server.url}/echo", "the query may hold keys"
        server.seen.clear()
        outcome, _ = run(nursery, f"{server.url}/redirect?to=/echo", expected_status=[302])
        assert result(outcome)["headers"]["location"] == "/echo"
        assert len(server.seen) == 1


class TestOutput:
    @pytest.mark.parametrize(
        ("body", "type", "lines"),
        [
            (b"one\ntwo\r\n\nfour", "text/plain", ["one", "two", "", "four"]),
            ("größe".encode("latin-1"), "text/html; charset=ISO-8859-1", ["größe"]),
            ("größe".encode("latin-1"), "text/html", ["gr��e"]),
            (b"plain", "text/plain; charset=rot13", ["plain"]),
            (b"a\0b\x1b[31m", "text/plain", ["a�b\x1b[31m"]),
            (b"<a/>", "application/atom+xml", ["<a/>"]),
            (b"no type", "", ["no type"]),
            (b"\x89PNG\r\n\0", "", []),
            (b"%PDF-1.7", "application/pdf", []),
        ],
    )
    def test_text_is_shown_as_text(
        self, nursery: Nursery, server: WebServer, body: bytes, type: str, lines: list[str]
    ) -> None:
        url = f"{server.url}/typed?type={quote(type)}"
        outcome, sink = run(nursery, url, method="POST", body=body.hex())
        assert outcome.status == "complete"
        assert sink.lines("stdout") == lines
        assert sink.lines("log")[0].endswith("which is not shown") is (not lines)

    def test_the_beginning_of_a_long_answer(self, nursery: Nursery, server: WebServer) -> None:
        outcome, sink = run(nursery, f"{server.url}/sized?bytes=900000")
        assert result(outcome)["bytes"] == 900_000
        assert sum(map(len, sink.lines("stdout"))) == 65_536
        assert sink.lines("log")[0].endswith("900,000 bytes of text/plain")
        assert sink.said[-1] == ("log", "… (the rest is not shown)")

    def test_nothing_to_show(self, nursery: Nursery, server: WebServer) -> None:
        for path, words in {"status?is=204": ": no content", "nested-bomb": "which is not shown"}.items():
            _, sink = run(nursery, f"{server.url}/{path}")
            assert [line for _, line in sink.said if line.endswith(words)] == [line for _, line in sink.said]

    @pytest.mark.parametrize(
        ("body", "type", "found"),
        [
            (b'{"a": [1, null, "\xc3\xbc"]}', "application/json", {"a": [1, None, "ü"]}),
            (b"\xef\xbb\xbf[1]", "application/json; charset=utf-8", [1]),
            ('"ü"'.encode("utf-16"), "application/json", "ü"),
            (b'"a\\u0000b\\ud800"', "application/problem+json", "a\ufffdb\ufffd"),
            (b"{not json}", "application/json", "left out"),
            (b"NaN", "application/json", "left out"),
            (b"9" * 5_000, "application/json", "left out"),
            (b"[" * 3_000 + b"]" * 3_000, "application/json", "left out"),
            (b'"\xff"', "application/json", "left out"),
            (b"{}", "text/plain", "left out"),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_json_that_can_be_stored_is_in_the_result(
        self, nursery: Nursery, server: WebServer, body: bytes, type: str, found: object
    ) -> None:
        url = f"{server.url}/typed?type={quote(type)}"
        outcome, _ = run(nursery, url, method="POST", body=body.hex())
        assert result(outcome).get("json", "left out") == found

    def test_large_json_is_left_out_and_long_headers_are_cut(
        self, nursery: Nursery, server: WebServer
    ) -> None:
        for size in (140_000, 100_000):
            outcome, _ = run(nursery, f"{server.url}/numbers?bytes={size}")
            assert (result(outcome)["bytes"], "json" in result(outcome)) == (size, size < 140_000)
        outcome, _ = run(nursery, f"{server.url}/redirect?to=/{'x' * 7_000}", expected_status=[302])
        assert len(result(outcome)["headers"]["location"]) == 2_000


class TestFailure:
    @pytest.mark.parametrize(
        ("status", "can_retry"),
        [
            *((retried, True) for retried in (408, 425, 429, 500, 599)),
            (304, False),
            (404, False),
            (499, False),
        ],
    )
    def test_an_unexpected_status(
        self, nursery: Nursery, server: WebServer, status: int, can_retry: bool
    ) -> None:
        outcome, sink = run(nursery, f"{server.url}/status?is={status}")
        assert (outcome.status, outcome.can_retry, outcome.traceback) == ("failed_with_error", can_retry, "")
        assert outcome.error.startswith(f"the response was {status}")
        assert sink.lines("stdout") == ([] if status == 304 else [f"this is {status}"])
        outcome, _ = run(nursery, f"{server.url}/status?is=200", expected_status=[201, "3xx"])
        assert (outcome.error, outcome.can_retry) == ("the response was 200 OK, not 201 or 3xx", False)

    def test_no_answer(self, nursery: Nursery, server: WebServer) -> None:
        broken, elsewhere = "Server disconnected without", "host 169.254.169.254, whose address is not public"
        for path, words in {"drop": broken, "redirect?to=http://169.254.169.254/": elsewhere}.items():
            outcome, _ = run(nursery, f"{server.url}/{path}", follow_redirects=True)
            assert (outcome.status, outcome.traceback) == ("failed_with_error", "")
            assert outcome.can_retry is (path == "drop")
            assert words in outcome.error

    def test_an_address_that_is_no_longer_allowed(self, nursery: Nursery) -> None:
        outcome, _ = run(nursery, "http://127.0.0.1/")
        assert "url: contains the host 127.0.0.1, whose address is not public" in outcome.error
        assert not outcome.can_retry

    def test_being_stopped_in_the_middle_of_the_answer(self, nursery: Nursery, server: WebServer) -> None:
        outcome, _ = run(nursery, f"{server.url}/drip", timeout=0.2)
        assert (outcome.status, outcome.error) == ("failed_with_error", "timed out after 0.2 s")
        assert (outcome.interrupted, outcome.can_retry) == ("timeout", True)
        server.seen.clear()
        running = Running(nursery, call(f"{server.url}/slow-unmeasured", timeout=3600))
        wait_until(lambda: server.seen)
        running.interrupt("cancel")
        outcome = running.outcome
        assert (outcome.status, outcome.interrupted, outcome.traceback) == ("cancelled", "cancel", "")


class TestSecrets:
    @pytest.mark.parametrize("kind", ["bearer", "basic"])
    def test_as_credential(self, nursery: Nursery, server: WebServer, kind: str) -> None:
        user = {"username": "jö"} if kind == "basic" else {}
        outcome, sink = run_with_secret(
            nursery, f"{server.url}/echo", authentication=kind, credential=TOKEN, **user
        )
        pair = b64encode(f"jö:{CANARY}".encode()).decode()
        sent = f"Basic {pair}" if user else f"Bearer {CANARY}"
        assert server.seen[0]["headers"]["authorization"] == sent
        hidden(outcome, sink)
        assert pair[8:-4] not in str((outcome, sink.said))

    @pytest.mark.parametrize(
        ("length", "encoding"),
        [(65_536, "utf-8"), (128 * 1024, "utf-8"), (64 * 1024, "utf-16-le"), (32 * 1024, "utf-16-le")],
    )
    def test_half_a_one_at_the_end_of_an_excerpt(
        self, nursery: Nursery, server: WebServer, length: int, encoding: str
    ) -> None:
        server.stored = ("." * (length - 6) + CANARY + "." * 100_000).encode(encoding)
        outcome, sink = run_with_secret(
            nursery, f"{server.url}/stored?charset={encoding}", headers={"X-Api-Key": TOKEN}
        )
        hidden(outcome, sink)
        assert sum(map(len, sink.lines("stdout"))) >= 48_000
        assert set("".join(sink.lines("stdout"))) <= {".", "•"}

    def test_in_header_body_and_url(self, nursery: Nursery, server: WebServer) -> None:
        outcome, sink = run_with_secret(
            nursery,
            f"{server.url}/echo?key={TOKEN}",
            "c4n4ry-token",
            method="POST",
            headers={"X-Api-Key": TOKEN, "X-Plain": "x"},
            body=f"key={TOKEN}",
        )
        seen = server.seen[0]
        assert (seen["headers"]["x-api-key"], seen["body"]) == ("c4n4ry-token", "key=c4n4ry-token")
        assert seen["path"] == "/echo?key=c4n4ry-token"
        hidden(outcome, sink)

    def test_a_failure_does_not_tell_it(self, nursery: Nursery, server: WebServer) -> None:
        for path in (f"garbage?{TOKEN}", f"status?is=500&x={TOKEN}"):
            outcome, sink = run_with_secret(nursery, f"{server.url}/{path}", "c4n4ry-token")
            assert outcome.status == "failed_with_error"
            hidden(outcome, sink)

    def test_a_secret_that_no_header_can_carry(self, nursery: Nursery, server: WebServer) -> None:
        for secret in ("two\nlines", "a\x00b", "bell\x07"):
            for rest in ({"authentication": "bearer", "credential": TOKEN}, {"headers": {"X-Key": TOKEN}}):
                outcome, _ = run_with_secret(nursery, f"{server.url}/echo", secret, **rest)
                assert (outcome.status, outcome.can_retry) == ("failed_with_error", False)
                assert secret not in outcome.error
        assert server.seen == []

    @pytest.mark.parametrize(
        ("secret", "sent"), [("tok-123\n", "tok-123"), ("{{ secrets.other }}", "{{ secrets.other }}")]
    )
    def test_only_its_line_end_is_left_out(
        self, nursery: Nursery, server: WebServer, secret: str, sent: str
    ) -> None:
        run_with_secret(nursery, f"{server.url}/echo", secret, authentication="bearer", credential=TOKEN)
        assert server.seen[0]["headers"]["authorization"] == f"Bearer {sent}"


def hidden(outcome: Outcome, sink: Recorder) -> None:
    told = str((outcome, sink.said))
    assert "c4n4ry" not in told
    assert quote(CANARY) not in told
    assert b64encode(CANARY.encode()).decode()[:-3] not in told


GOOD = {"url": "https://shop.example/"}


def test_the_canonical_config() -> None:
    empty = {"headers": {}, "body": "", "authentication": "none", "username": "", "credential": ""}
    canonical = GOOD | empty | {"method": "GET", "expected_status": [], "follow_redirects": False}
    assert get("http").clean({"url": f" {GOOD['url']} "}) == canonical
    filled: dict[str, Any] = {"method": "PATCH", "url": "https://shop.example/a?b=c#d", "body": " as it is\n"}
    filled |= {"headers": {"X-Own": "7", "Authorization-Info": "x"}, "expected_status": [200, "204", "3xx"]}
    filled |= {"authentication": "basic", "username": "jim", "credential": TOKEN, "follow_redirects": True}
    assert get("http").clean(filled) == filled
    assert get("http").isolation(filled) == "thread"


@pytest.mark.parametrize(
    "rest",
    [
        {"url": "http://{{ steps.find.result.host }}:80/a b"},
        {"headers": {"X": "{{ nominal_time }}", "Authorization": "Bearer {{ steps.login.result.token }}"}},
        {"headers": "{{ steps.find.result.headers }}"},
        {"expected_status": ["{{ steps.find.result.status }}"]},
        {"expected_status": "{{ steps.find.result.statuses }}"},
        {"authentication": "basic", "username": "{{ secrets.user }}", "credential": "{{secrets.password}}"},
        {"authentication": "bearer", "credential": ' {{ secrets."a name" }} '},
        {"url": "{{ secrets.base }}/orders/{{ steps.find.result.id }}"},
        {"url": "https://{{ secrets.host }}/orders/{{ steps.find.result.id }}"},
        {"url": "https://hooks.example/{{ steps.find.result.id }}/{{ secrets.token }}"},
        {"url": "HTTPS://shop.example:8443/orders?day={{ nominal_date }}", "headers": {"X": TOKEN}},
        {"url": "https://shop.example?day={{ nominal_date }}", "headers": {"X": TOKEN}},
        {"url": "https://[2606:4700::1111]/{{ steps.find.result.next }}", "headers": {"X": TOKEN}},
    ],
)
def test_placeholders_wait_for_their_values(rest: dict[str, Any]) -> None:
    assert get("http").clean(GOOD | rest)


BEARER = {"authentication": "bearer", "credential": TOKEN}


@pytest.mark.parametrize(
    ("rest", "field", "words"),
    [
        ({"url": ""}, "url", "is required: such as https://shop.example/api/orders"),
        ({"url": "shop.example"}, "url", "must be a complete URL that begins with http:// or https://"),
        ({"url": "http://127.0.0.1/"}, "url", "contains the host 127.0.0.1, whose address is not public"),
        *(
            ({"url": url, **secret}, "url", "must contain the whole host before the first placeholder")
            for url in (
                "https://shop.example{{ steps.a.result.next }}",
                "https://{{ steps.a.result.host }}/orders",
                "https:/{{ steps.a.result }}",
                "{{ last_result }}",
                "{{ secrets.base }}{{ steps.a.result.next }}",
            )
            for secret in (BEARER, {"headers": {"X-Api-Key": TOKEN}}, {"method": "POST", "body": TOKEN})
        ),
        (
            {"url": "https://shop.example{{ steps.a.result }}/{{ secrets.token }}"},
            "url",
            "the secret to anot",
        ),
        (
            {"method": "get"},
            "method",
            "must be one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, not 'get'",
        ),
        ({"method": "{{ steps.a.result }}"}, "method", "must be one of GET"),
        ({"headers": {"": "x"}}, "headers", "'' is not a valid header name; use letters, digits and -"),
        ({"headers": {7: "x"}}, "headers", "7 is not a valid header name; put it in quotes"),
        ({"headers": {"X\r\nY": "x"}}, "headers", "is not a valid header name"),
        ({"headers": {"X": "a\r\nY: b"}}, "headers", "the value of X must be one line, without control char"),
        ({"headers": {"X": "a\x7f"}}, "headers", "the value of X must be one line"),
        ({"headers": {"X": 7}}, "headers", "the value of X must be text: put it in quotes"),
        ({"headers": {"x-a": "1", "X-A": "2"}}, "headers", "a header is given twice"),
        *(
            ({"headers": {name: "x"}}, "headers", f"{name} cannot be set")
            for name in (
                *("Host", "content-length", "Transfer-Encoding", "CONNECTION", "Upgrade", "TE", "Trailer"),
                *("Keep-Alive", "Proxy-Authorization", "Proxy-Connection"),
            )
        ),
        *(
            ({"headers": {name: "hunter2"}}, "headers", f"the value of {name} must not be plain text: refer")
            for name in ("Authorization", "cookie", "X-Api-Key", "ApiKey", "X-Auth-Token")
        ),
        (
            BEARER | {"headers": {"Authorization": TOKEN}},
            "headers",
            "remove the Authorization header: the auth",
        ),
        ({"body": "x"}, "body", "GET requests have no body: leave the body empty, or choose POST, PUT"),
        ({"body": "{{ steps.a.result }}", "method": "HEAD"}, "body", "HEAD requests have no body"),
        *(
            (
                BEARER | {"credential": credential},
                "credential",
                "must be a reference to one secret: {{ secrets",
            )
            for credential in ("", "hunter2", f"x{TOKEN}", TOKEN * 2, "{{ nominal_time }}")
        ),
        (BEARER | {"credential": "{{ secrets.a.b }}"}, "credential", "must have the form secrets.NAME"),
        (BEARER | {"authentication": "basic"}, "username", "is required for basic authentication"),
        (BEARER | {"authentication": "basic", "username": "a:b"}, "username", "must not contain a colon"),
        ({"username": "me"}, "username", "is for basic authentication only: choose basic authentication"),
        (
            {"credential": TOKEN},
            "credential",
            "is for bearer and basic authentication only: choose one of them",
        ),
        *(
            (
                {"expected_status": [status]},
                "expected_status",
                "is not an HTTP status; use one from 100 to 599",
            )
            for status in (99, 600, -200, 200.5, True, "9xx", "2x", " 200")
        ),
        ({"verify": False}, "verify", "is not a setting of http steps; known settings: method, url, headers"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_config(rest: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        get("http").clean(GOOD | rest)
    assert list(raised.value.errors) == [field]
    assert words in raised.value.errors[field]
    assert "hunter2" not in str(raised.value)
