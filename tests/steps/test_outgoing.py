"""Outgoing calls: where they may lead, and that nothing can hold them."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from execution.outgoing.addresses import address_complaint, url_complaint
from execution.outgoing.calls import Answer, Call, Request
from execution.outgoing.network import CallFailed, Network
from jimsite import environment
from jimsite.logs import logging_config
from tests.steps.web_server import WebServer, connections, deaf, mute, serving
from tests.waiting import PATIENCE_SECONDS, wait_until

NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254",
    "168.63.129.16", "169.254.169.254", "172.16.0.1", "192.0.0.1", "192.0.0.9", "192.0.2.1", "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:168.63.129.16", "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1",
    "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "4000::1", "5f00::1", "fc00::1", "fd00::1", "fe80::1",
    "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1",
]  # fmt: skip
PUBLIC = [
    "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "168.63.129.15", "172.32.0.1", "192.169.0.1",
    "223.255.255.254",
    "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1",
]  # fmt: skip


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 127.0.0.1 is: a look-up takes nothing of the time of those who have little."""
    monkeypatch.setattr(Network, "_looked_up", lambda *_: ["127.0.0.1"])


class Names:
    """A resolver that gives its answers one after the other, and the last one for ever."""

    def __init__(self, *answers: list[str] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def get(url: str, *, follow_redirects: bool = True, **rest: Any) -> Answer:
    return Call(**rest).send(Request(method="GET", url=url, headers={}), follow_redirects=follow_redirects)


def refusal(url: str, *, is_for_good: bool = True, **rest: Any) -> str:
    """Why the call fails."""
    with pytest.raises(CallFailed) as raised:
        get(url, **rest)
    assert raised.value.can_retry is not is_for_good
    return str(raised.value)


failure = partial(refusal, is_for_good=False)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_what_is_not_public_is_refused(address: str) -> None:
    """Behind a name, and as it is written."""
    names = Names([address])
    words = refusal("http://innocent.example/", resolve=names)
    assert "contains the host innocent.example, whose address is not public" in words
    assert "JIM_HTTP_ALLOW can allow it" in words
    assert address not in words.replace("innocent.example", ""), "what names lead to is not told"
    assert names.asked == ["innocent.example"]
    host = f"[{address}]" if ":" in address else address
    assert "is not public" in url_complaint(f"http://{host}/")
    assert "is not public" in url_complaint(f"https://{host}:8443/path")


def test_what_may_be_called() -> None:
    for address in PUBLIC:
        host = f"[{address}]" if ":" in address else address
        assert url_complaint(f"http://{host}/") == ""
        assert address_complaint("shop.example", ip_address(address)) == ""
    for url in (
        "HTTPS://Shop.Example:8443/a/b;c?d=e&f#g",
        "http://shop.example:/",
        "http://münchen.example/straße?größe=1",
        "http://under_score.intern.example/",
        "http://8.8.8.8:65535/{x}|y",
    ):
        assert url_complaint(url) == ""


@pytest.mark.parametrize("host", ["127.1", "0x7F.1", "2130706433", "017700000001", "0177.0.0.1", "0"])
def test_unusual_ways_to_write_an_address_are_seen_through(host: str) -> None:
    assert "is not public" in url_complaint(f"http://{host}/")
    assert "refused: " in refusal(f"http://{host}/")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127。0。0。1", "①②⑦.0.0.1"])
def test_names_of_this_host_are_refused(host: str) -> None:
    assert "refused" in refusal(f"http://{host}/")


def test_one_bad_address_among_good_ones_is_enough(server: WebServer) -> None:
    names = Names(["127.0.0.1", "10.0.0.1"])
    assert "is not public" in refusal(f"{server.url_of('two.example')}/echo", resolve=names)
    assert server.seen == []


def test_the_address_that_was_checked_is_the_one_that_is_called(server: WebServer) -> None:
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    answer = get(f"{server.url_of('rebinding.example')}/echo", resolve=names)
    assert answer.status == 200
    assert names.asked == ["rebinding.example"]
    assert server.seen[0]["headers"]["host"] == f"rebinding.example:{server.server_port}"
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    words = refusal(f"{server.url_of('rebinding.example')}/redirect?to=/echo", resolve=names)
    assert "is not public" in words, "each redirect is looked up and checked anew"
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("allowed", "host", "address", "may"),
    [
        ("10.0.0.0/8", "a.example", "10.1.2.3", True),
        ("10.0.0.0/8", "a.example", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "a.example", "64:ff9b::a01:203", True),
        ("10.0.0.0/8", "a.example", "192.168.0.1", False),
        ("fd00::/8", "a.example", "fd12::1", True),
        ("::ffff:10.0.0.1", "a.example", "::ffff:10.0.0.1", True),
        ("intranet.example", "intranet.example", "10.1.2.3", True),
        ("Intranet.Example", "INTRANET.example.", "10.1.2.3", True),
        ("intranet.example", "a.intranet.example", "10.1.2.3", False),
        ("intranet.example", "intranet.example.evil.example", "10.1.2.3", False),
        ("example", "intranet.example", "10.1.2.3", False),
    ],
)
def test_the_administrator_can_allow_places(allowed: str, host: str, address: str, may: bool) -> None:
    with override_settings(JIM_HTTP_ALLOW=[allowed]):
        assert (address_complaint(host, ip_address(address)) == "") is may


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "must be a complete URL that begins with http:// or https://"),
        ("file:///etc/passwd", "must be a complete URL"),
        ("http://:80/", "must be a complete URL"),
        ("http://me@shop.example/", "must not contain a user name or password; use authentication and a"),
        (
            "http://shop.example:0/",
            "contains port 0, which cannot be called; leave the port out, or use one from 1 to 65535",
        ),
        ("http://shop.example:70000/", "Port out of range 0-65535"),
        ("http://shop.example/a b", "contains a space, a control character or a backslash; write it"),
        ("http://shop.example/\x7f", "contains a space"),
        ("http://shop.example\\@127.0.0.1/", "a backslash"),
        ("http://%31%32%37.0.0.1/", "which is neither a host name nor an IP address"),
        ("http://[::1/", "cannot be read"),
        ("http://shop.example/" + "x" * 8_000, "is longer than 8,000 characters; send the data in the body"),
    ],
)
def test_what_is_no_address_to_call(url: str, words: str) -> None:
    assert words in url_complaint(url)


def test_ports_can_be_limited() -> None:
    with override_settings(JIM_HTTP_PORTS=[443, 8443]):
        assert url_complaint("https://shop.example/") == ""
        assert url_complaint("http://shop.example:8443/") == ""
        assert "uses port 80, which is not one of the allowed ports: 443, 8443" in url_complaint(
            "http://shop.example/"
        )
        assert "port 22, which is not one of" in refusal(
            "http://shop.example:22/", resolve=Names(["8.8.8.8"])
        )


@pytest.mark.parametrize(
    ("read", "value", "words"),
    [
        (environment.places, "10.0.0.1/8", "10.0.0.1/8 has host bits set"),
        (
            environment.places,
            "http://intranet.example",
            "is neither a host name, an IP address nor a network",
        ),
        *(
            (environment.ports, value, "is not a port; use whole numbers from 1 to 65535")
            for value in ("0", "65536", "-1", "٨٠")
        ),
        (
            environment.places,
            " 10.0.0.0/8,intranet.example , ::1 ",
            ["10.0.0.0/8", "intranet.example", "::1"],
        ),
        (environment.ports, "1, 65535", [1, 65_535]),
    ],
)
def test_lists_of_places_and_ports_and_that_wrong_ones_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[str], object], value: str, words: str | list[object]
) -> None:
    monkeypatch.setenv("JIM_LIST", value)
    if isinstance(words, list):
        assert read("JIM_LIST") == words
    else:
        with pytest.raises(ImproperlyConfigured, match=f"JIM_LIST: .*{words}"):
            read("JIM_LIST")


class TestLookingUp:
    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (socket.gaierror(socket.EAI_NONAME, "Name or service"), "cannot be found: Name or service"),
            ([], "nowhere.example has no address"),
            (RuntimeError(), "RuntimeError"),
        ],
    )
    def test_a_name_that_cannot_be_found_is_not_called(self, answer: Any, words: str) -> None:
        assert words in failure("http://nowhere.example/", resolve=Names(answer))

    @pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..example", ".example", "nowhere.invalid"])
    def test_a_name_that_cannot_be_is_a_failure_in_words(self, host: str) -> None:
        assert "cannot be found" in failure(f"http://{host}/")

    def test_the_next_address_is_tried_when_one_does_not_answer(self, server: WebServer) -> None:
        url = f"{server.url_of('two.example')}/echo"
        with override_settings(JIM_HTTP_ALLOW=["127.0.0.0/8"]):
            assert get(url, resolve=Names(["127.0.0.2", "127.0.0.1"])).status == 200
            words = failure(url, resolve=Names(["127.0.0.2"]))
        assert words == "cannot connect to two.example: Connection refused"


def test_nothing_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: WebServer
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password word\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    assert get(f"{server.url}/echo").status == 200
    assert "authorization" not in server.seen[0]["headers"]


def test_nothing_is_logged_that_may_hold_a_secret(
    server: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    get(f"{server.url}/echo?key=canary")
    assert "canary" not in caplog.text
    for name in ("httpx2", "httpcore2"):
        assert logging_config(json=False, level="DEBUG")["loggers"][name]["level"] == "WARNING"


class TestRedirects:
    @pytest.mark.parametrize(
        ("status", "method", "then"),
        [
            *((301, "POST", "GET"), (301, "PUT", "PUT"), (302, "POST", "GET"), (302, "DELETE", "DELETE")),
            *((303, "HEAD", "HEAD"), (303, "PUT", "GET"), (307, "POST", "POST"), (308, "PATCH", "PATCH")),
        ],
    )
    def test_the_method_changes_as_in_browsers(
        self, server: WebServer, status: int, method: str, then: str
    ) -> None:
        body = b"" if method in ("GET", "HEAD") else b"words"
        url, headers = f"{server.url}/redirect?to=/echo&is={status}", {"Content-Type": "text/plain", "X": "y"}
        request = Request(method=method, url=url, headers=headers, body=body)
        assert Call().send(request, follow_redirects=True).status == 200
        first, second = server.seen
        assert (first["method"], first["body"]) == (method, body.decode())
        assert (second["method"], second["body"]) == (then, body.decode() if then == method else "")
        assert ("content-type" in second["headers"]) is (then == method)
        assert second["headers"]["x"] == "y", "it is the same site"

    def test_only_what_anybody_may_know_goes_to_another_site(self, server: WebServer) -> None:
        with serving() as other:
            headers = dict.fromkeys(("Authorization", "Cookie", "X-Own", "Idempotency-Key"), "canary")
            headers |= {"Accept": "text/plain", "User-Agent": "JIM"}
            url = f"{server.url}/redirect?to={other.url}/redirect?to={server.url}/echo"
            answer = Call().send(Request(method="GET", url=url, headers=headers), follow_redirects=True)
        assert answer.url == f"{server.url}/echo"
        assert "canary" not in str(other.seen)
        assert other.seen[0]["headers"].keys() == {"host", "accept", "user-agent"}
        assert "canary" not in str(server.seen[1]), "what was dropped on the way does not come back"

    def test_a_body_is_not_sent_on_to_another_site(self, server: WebServer) -> None:
        with serving() as other:
            url = f"{server.url}/redirect?is=307&to={other.url}/echo"
            request = Request(method="POST", url=url, headers={}, body=b"words")
            with pytest.raises(
                CallFailed, match="JIM does not send the body of a request on to another site"
            ) as raised:
                Call().send(request, follow_redirects=True)
        assert raised.value.can_retry is False
        assert other.seen == []

    @pytest.mark.parametrize(
        ("location", "words"),
        [
            ("http://169.254.169.254/latest/meta-data/", "is not public"),
            ("//169.254.169.254/latest/", "is not public"),
            ("file:///etc/passwd", "must be a complete URL"),
            ("http://me:word@127.0.0.1/", "must not contain a user name or password"),
            ("http://[bad/", "which is neither a host name nor an IP address"),
            ("http:////[", "cannot be read"),
            ("/loop", "the request was redirected more than 5 times"),
        ],
    )
    def test_where_a_redirect_must_not_lead(self, server: WebServer, location: str, words: str) -> None:
        assert words in refusal(f"{server.url}/redirect?to={location}")

    def test_a_redirect_that_is_not_followed_is_an_answer_like_others(self, server: WebServer) -> None:
        answer = get(f"{server.url}/redirect?to=http://[bad/", follow_redirects=False)
        assert (answer.status, answer.headers["location"]) == (302, "http://[bad/")
        assert answer.body == b"elsewhere"
        assert get(f"{server.url}/huge-redirect?to=/echo").status == 200, "the body of a redirect is not read"


class TestLimits:
    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("huge", "the response is longer than 1,000,000 bytes (JIM_HTTP_BYTES)"),
            ("bomb", "the response is longer than 1,000,000 bytes (JIM_HTTP_BYTES)"),
            ("endless-gzip", "the response is too long"),
            ("informs", "the response is too long"),
        ],
    )
    def test_too_much_is_a_failure_for_good(self, server: WebServer, path: str, words: str) -> None:
        assert words in refusal(f"{server.url}/{path}")

    def test_crumbs_do_not_keep_a_worker_busy(
        self, server: WebServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("execution.outgoing.calls.MAX_PIECES", 1_000)
        assert "or 1,000 pieces" in refusal(f"{server.url}/crumbs")

    @pytest.mark.parametrize("path", ["sized?bytes=200000", "sized?bytes=200000&pack=yes"])
    def test_the_limit_itself_is_allowed_and_no_more_is_kept_than_needed(
        self, server: WebServer, path: str
    ) -> None:
        with override_settings(JIM_HTTP_BYTES=200_000):
            answer = get(f"{server.url}/{path}")
        assert (answer.size, len(answer.body)) == (200_000, 128 * 1024)

    @pytest.mark.parametrize(
        ("path", "limits", "words"),
        [
            ("silence", {"idle_seconds": 0.1}, "127.0.0.1 sent nothing for 0.1 s"),
            ("slow-body", {"idle_seconds": 0.1}, "127.0.0.1 sent nothing for 0.1 s"),
            ("drip-head", {"total_seconds": 0.2}, "the call did not end within 0.2 s"),
        ],
    )
    def test_too_slow_is_a_failure_for_now(
        self, server: WebServer, known: None, path: str, limits: dict[str, Any], words: str
    ) -> None:
        assert failure(f"{server.url}/{path}", **limits) == words

    @pytest.mark.parametrize(
        ("scheme", "words"),
        [("http", "cannot connect to 127.0.0.1"), ("https", "cannot open a secure connection to 127.0.0.1")],
    )
    def test_a_host_that_does_not_let_in(self, local: None, known: None, scheme: str, words: str) -> None:
        with deaf() if scheme == "http" else mute() as port:
            told = failure(f"{scheme}://127.0.0.1:{port}/", connect_seconds=0.1)
        assert told == f"{words}: no response in time"

    def test_a_host_that_takes_nothing(self, local: None) -> None:
        with mute() as port, pytest.raises(CallFailed, match=r"accepted no data for 0\.1 s"):
            Call(idle_seconds=0.1).send(large(port))

    def test_a_look_up_that_does_not_end(self) -> None:
        with hanging_names() as resolve:
            words = failure("http://slow.example/", resolve=resolve, connect_seconds=0.1)
        assert words == "the address of slow.example cannot be found: no response in time"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("reset", "invalid response from 127.0.0.1|the connection to 127.0.0.1 broke"),
        ("cut", "received 10 bytes, expected 1000"),
        ("cut-gzip", "the response cannot be decompressed: its end is missing"),
        ("false-gzip", "the response cannot be decompressed"),
        ("twice", "conflicting Content-Length headers"),
        ("huge-head", "invalid response"),
    ],
)
def test_a_bad_answer_is_a_failure_for_now(server: WebServer, path: str, words: str) -> None:
    told = failure(f"{server.url}/{path}")
    assert any(each in told for each in words.split("|")), told


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chunked", b"one two three"),
        ("gzip?text=one+two", b"one two"),
        ("gzip", b""),
        ("status?is=500", b"this is 500"),
    ],
)
def test_a_good_answer(server: WebServer, path: str, body: bytes) -> None:
    answer = get(f"{server.url}/{path}")
    assert (answer.body, answer.size) == (body, len(body))
    assert "content-encoding" not in answer.headers


def test_a_server_that_answers_before_it_has_heard_all(server: WebServer) -> None:
    request = Request(method="POST", url=f"{server.url}/hasty", headers={}, body=b"x" * 5_000_000)
    assert Call().send(request).status == 413


class TestHangingUp:
    @pytest.mark.parametrize("path", ["silence", "slow-unmeasured", "drip"])
    def test_while_the_answer_is_awaited(self, server: WebServer, path: str) -> None:
        calling = Calling(f"{server.url}/{path}")
        wait_until(lambda: server.seen)
        assert calling.ended_by_hanging_up() == "the call was interrupted"

    def test_while_connecting(self, local: None) -> None:
        with deaf() as port:
            before = connections(port).count("connecting")
            calling = Calling(f"http://127.0.0.1:{port}/")
            wait_until(lambda: connections(port).count("connecting") > before)
            assert calling.ended_by_hanging_up() == "the call was interrupted"

    @pytest.mark.parametrize("is_handshake", [True, False], ids=["handshake", "sending"])
    def test_when_nothing_comes_back(self, local: None, is_handshake: bool) -> None:
        with mute() as port:
            calling = Calling(f"https://127.0.0.1:{port}/" if is_handshake else large(port))
            wait_until(lambda: "connected" in connections(port))
            assert calling.ended_by_hanging_up() == "the call was interrupted"

    def test_while_a_look_up_hangs(self) -> None:
        with hanging_names() as resolve:
            calling = Calling("http://slow.example/", resolve=resolve)
            wait_until(lambda: any(each.name == "look-up" for each in threading.enumerate()))
            assert calling.ended_by_hanging_up() == "the call was interrupted"

    def test_between_the_look_up_and_the_connection(self, local: None) -> None:
        class Found(list[str]):
            def __iter__(self) -> Iterator[str]:
                calling.call.hang_up()
                return super().__iter__()

        may_go_on = threading.Event()

        def resolve(host: str, port: int) -> list[str]:
            may_go_on.wait(PATIENCE_SECONDS)
            return Found(["127.0.0.1"])

        with deaf() as port:
            calling = Calling(f"http://127.0.0.1:{port}/", resolve=resolve)
            may_go_on.set()
            calling.join(PATIENCE_SECONDS)
            assert calling.words == "the call was interrupted"

    def test_before_it_began_and_after_it_ended(self, server: WebServer) -> None:
        request, call, ended = Request(method="GET", url=f"{server.url}/echo", headers={}), Call(), Call()
        call.hang_up()
        with pytest.raises(CallFailed, match="the call was interrupted"):
            call.send(request)
        assert server.seen == []
        assert ended.send(request).status == 200
        ended.hang_up()
        ended.hang_up()

    def test_at_any_moment(self, server: WebServer) -> None:
        """However the two threads meet: the call ends, with its answer or without."""
        for number in range(60):
            calling = Calling(f"{server.url}/redirect?to=/echo&number={number}")
            time.sleep(number * 50e-6)
            calling.call.hang_up()
            calling.join(PATIENCE_SECONDS)
            assert not calling.is_alive()
            assert calling.answer is not None or calling.words == "the call was interrupted"


def test_no_connection_is_left_open(server: WebServer) -> None:
    before = open_files()
    elsewhere = ("redirect?to=/echo", "redirect?to=http://10.0.0.1/")
    for path in ("echo", "drop", "cut", "huge", "garbage", *elsewhere):
        with suppress(CallFailed):
            get(f"{server.url}/{path}")
    wait_until(lambda: open_files() <= before)


class TestTls:
    def test_name_and_certificate_count_although_the_address_is_called(
        self, local: None, tmp_path: Path
    ) -> None:
        theirs, ours = certified("shop.example", tmp_path)
        names = Names(["127.0.0.1"])
        with serving(theirs) as server:
            assert get(f"{server.url_of('shop.example')}/echo", resolve=names, tls=ours).status == 200
            assert server.seen[0]["headers"]["host"] == f"shop.example:{server.server_port}"
            words = refusal(f"{server.url_of('other.example')}/echo", resolve=names, tls=ours)
            assert "the certificate of other.example is not accepted: Hostname mismatch" in words
            assert len(server.seen) == 1

    def test_a_certificate_of_its_own_making_is_refused(self, local: None, tmp_path: Path) -> None:
        theirs, _ = certified("shop.example", tmp_path)
        with serving(theirs) as server:
            words = refusal(f"{server.url_of('shop.example')}/", resolve=Names(["127.0.0.1"]))
        assert words == "the certificate of shop.example is not accepted: self-signed certificate"

    def test_a_server_without_tls(self, server: WebServer) -> None:
        url = server.url.replace("http:", "https:")
        assert failure(url).startswith("cannot open a secure connection to 127.0.0.1: ")


class Calling(threading.Thread):
    def __init__(self, wanted: str | Request, **rest: Any) -> None:
        super().__init__(daemon=True)
        self.call = Call(connect_seconds=3600, idle_seconds=3600, **rest)
        self.request = Request(method="GET", url=wanted, headers={}) if isinstance(wanted, str) else wanted
        self.answer: Answer | None = None
        self.words = ""
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.call.send(self.request, follow_redirects=True)
        except CallFailed as failure:
            self.words = str(failure)

    def ended_by_hanging_up(self) -> str:
        self.call.hang_up()
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "the call goes on"
        return self.words


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def large(port: int) -> Request:
    """More than the system takes off one's hands."""
    return Request(method="POST", url=f"http://127.0.0.1:{port}/", headers={}, body=bytes(20_000_000))


@contextmanager
def hanging_names() -> Iterator[Callable[[str, int], list[str]]]:
    over = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        over.wait(PATIENCE_SECONDS)
        return []

    try:
        yield resolve
    finally:
        over.set()


def certified(host: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server with that name shows, and what trusts it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1)
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    shown = certificate.public_bytes(pem)
    file = folder / "server.pem"
    file.write_bytes(shown + key.private_bytes(pem, form, serialization.NoEncryption()))
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(file)
    return theirs, ssl.create_default_context(cadata=shown.decode())
