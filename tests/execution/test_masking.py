"""No secret stands in anything that a step says, in whichever of the usual ways it is written."""

from __future__ import annotations

import html
import io
import json
import logging
import logging.config
import shlex
import sys
import textwrap
import threading
import warnings
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from itertools import product
from typing import Any, NoReturn
from urllib.parse import quote, quote_plus

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from execution.children.lines import LONGEST, Lines
from execution.children.nursery import Nursery
from execution.management.commands.runworker import log_stray_messages
from execution.steps import masking
from execution.steps.binding import Binding
from execution.steps.context import Context, Work
from execution.steps.fields import Field
from execution.steps.masking import FRAGMENT, MASK, SHORTEST, Mask, MaskedSink, active, conceal
from execution.steps.outcome import ERROR_CHARS, TRACEBACK_CHARS, Outcome, StepFailed
from execution.steps.performing import perform
from jimsite.logs import logging_config
from tests.steps.stage import Recorder
from text.clean import MAX_LEVELS

HERE = "tests.execution.test_masking"
SECRET = "hunter2&'co\"<é> /+x"
FORMS: list[Callable[[str], str]] = [
    str,
    repr,
    ascii,
    lambda text: repr(text.encode()),
    json.dumps,
    lambda text: json.dumps(text, ensure_ascii=False),
    lambda text: json.dumps(text).replace("/", "\\/"),
    lambda text: json.dumps(json.dumps(text)),
    quote,
    lambda text: quote(text, safe=""),
    lambda text: quote(text, safe="").lower() if text.islower() else quote(text, safe=""),
    quote_plus,
    lambda text: quote(text, safe="!'()*~"),
    html.escape,
    lambda text: html.escape(text, quote=False),
    shlex.quote,
    lambda text: text.replace("'", "''"),
    lambda text: "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'",
    lambda text: text.encode().decode("latin-1"),
    lambda text: json.dumps(text.encode().decode("latin-1")),
    lambda text: repr(f"\"{text}' {text}"),
    lambda text: json.dumps(repr(text)),
    lambda text: json.dumps(html.escape(text, quote=False)),
    lambda text: repr(json.dumps(text)),
    lambda text: json.dumps(shlex.quote(text)),
    # Go and Ruby, PowerShell, PHP, Django, .NET.
    lambda text: unicode_escaped(json.dumps(text, ensure_ascii=False), "&<>"),
    lambda text: unicode_escaped(json.dumps(text, ensure_ascii=False), "&<>'"),
    lambda text: unicode_escaped(json.dumps(text).replace("/", "\\/"), "&<>'"),
    lambda text: unicode_escaped(json.dumps(text), "&<>", "X"),
    lambda text: dotnet_json(text),
    lambda text: json.dumps(unicode_escaped(json.dumps(text), "&<>")),
    # Go, PHP, XML, JavaScript, and whoever writes ASCII only.
    lambda text: html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
    lambda text: html.escape(text).replace("&#x27;", "&#039;"),
    lambda text: html.escape(text).replace("&#x27;", "&apos;"),
    lambda text: html.escape(text).replace("/", "&#x2F;"),
    lambda text: html.escape(text).encode("ascii", "xmlcharrefreplace").decode(),
    lambda text: text.encode().hex(),
    lambda text: f"\\x{text.encode().hex()}",
    lambda text: text.encode().hex().upper(),
]
LONG = "".join(f"{number:03}&" for number in range(100, 160))
secrets = st.text(st.characters(exclude_characters="•", exclude_categories=["Cs"]), min_size=4, max_size=20)


class TestMask:
    @pytest.mark.parametrize("secret", [SECRET, "simple", "it's", "a b c", "pa/ss+wo=rd", "ünïcödé"])
    def test_every_form_is_hidden(self, secret: str) -> None:
        mask, wrong = Mask([secret]), []
        for form in FORMS:
            masked = mask.text(f"before {form(secret)} after")
            is_whole = masked.startswith("before ") and masked.endswith(" after") and MASK in masked
            if not is_whole or secret in masked or form(secret) in masked:
                wrong.append((form(secret), masked))
        assert wrong == []

    @pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
    def test_base64_is_hidden_wherever_it_begins(self, encode: Callable[[bytes], bytes]) -> None:
        wrong = []
        for before in ("", "a", "ab", "user:", "Ümlaut:"):
            for after in ("", "\n", "xy", ":more"):
                for secret in (SECRET, "~~~???>>>", "password"):
                    encoded = encode(f"{before}{secret}{after}".encode()).decode()
                    masked = Mask([secret]).text(f"Basic {encoded}.")
                    left = masked.removeprefix("Basic ").replace(MASK, "").rstrip("=.")
                    most = len(b64encode((before + after).encode()).rstrip(b"=")) + 4
                    if MASK not in masked or len(left) > most:
                        wrong.append((before, after, secret, masked))
        assert wrong == []

    @pytest.mark.parametrize("end", ["\n", "\r\n", "\\n", "↵"])
    @pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
    def test_base64_is_hidden_line_by_line(self, encode: Callable[[bytes], bytes], end: str) -> None:
        wrong = []
        for length, width in product(range(100, 200, 7), (64, 76)):
            mask = Mask([LONG[:length]])
            for before in ("", "a", "user:", "somebody@example.com:"):
                encoded = encode(f"{before}{LONG[:length]}\n".encode()).decode()
                masked = mask.text(end.join(textwrap.wrap(encoded, width)))
                left = masked.replace(MASK, "").replace(end, "").rstrip("=")
                allowed = len(b64encode(before.encode()).rstrip(b"=")) + SHORTEST
                if len(left) > allowed + (FRAGMENT if before else 0):
                    wrong.append((length, width, before, masked))
        assert wrong == []

    def test_words_that_are_no_base64_of_it_stay(self) -> None:
        text = "INSERT 0 1 into /srv/Ada/people_2026.csv by ada-lovelace (3f786850e387550fdab836ed7e6dc881)"
        assert Mask([LONG, SECRET]).text(text) == text

    @pytest.mark.parametrize(
        ("quoted", "masked"),
        [
            (LONG, MASK),
            (f"{LONG[:64]}...", f"{MASK}..."),
            (f"...{LONG[7:40]} and {LONG[100:]}", f"...{MASK} and {MASK}"),
            (LONG[8:16], MASK),
            (LONG[8:15], LONG[8:15]),
            (f"x{LONG[:20]}{LONG[80:90]}y", f"x{MASK}y"),
        ],
    )
    def test_parts_of_it_are_hidden_where_others_cut_what_they_quote(self, quoted: str, masked: str) -> None:
        assert Mask([LONG]).fragments(f'value "{quoted}" is wrong') == f'value "{masked}" is wrong'

    def test_ordinary_words_that_it_has_too_stay_where_only_long_parts_are_hidden(self) -> None:
        mask = Mask(["password-of-the-database-in-Berlin"])
        text = "no password for the database: password-of-the-data…"
        assert mask.text(text) == f"no password for the database: {MASK}…"

    def test_thousands_of_lines_are_not_looked_for_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = [f"line{number}'" for number in range(1_500)]
        mask = Mask(["\n".join(lines)])
        monkeypatch.setattr(masking, "_places", pytest.fail)
        for line in lines[:200]:
            assert mask.text(f"it says {line!r} " * 3) == f'it says "{MASK}" ' * 3

    @hypothesis_settings(max_examples=40)
    @given(secrets, st.sampled_from(FORMS), st.text(max_size=10), st.text(max_size=10))
    def test_no_form_of_any_secret_is_left(
        self, secret: str, form: Callable[[str], str], before: str, after: str
    ) -> None:
        masked = Mask([secret]).text(before + form(secret) + after)
        assert secret not in masked
        assert form(secret) not in masked

    @given(st.lists(secrets, max_size=4), st.lists(st.sampled_from(["", "x", " "]) | secrets, max_size=6))
    def test_with_several_secrets_none_is_left(self, several: list[str], texts: list[str]) -> None:
        text = "".join(texts + several + texts)
        masked = Mask(several).text(text)
        assert not any(secret in masked for secret in several)
        assert Mask([]).text(text) == text

    def test_a_secret_within_another_does_not_uncover_it(self) -> None:
        assert Mask(["pass", "password1"]).text("password1 pass") == f"{MASK} {MASK}"

    def test_each_line_of_a_longer_one_is_hidden(self) -> None:
        key = "-----BEGIN KEY-----\n  MIIEvQ==\nab\n-----END KEY-----\n"
        mask = Mask([key])
        assert mask.text(key) == MASK
        assert [mask.text(line) for line in ("MIIEvQ==", "x MIIEvQ== y", "ab")] == [MASK, f"x {MASK} y", "ab"]
        assert mask.text(json.dumps({"key": key})) == f'{{"key": "{MASK}"}}'

    def test_what_is_too_short_is_left_alone(self) -> None:
        assert Mask(["abc", "", " "]).text("abcabc  ") == "abcabc  "

    def test_json_at_every_depth_names_and_numbers(self) -> None:
        kept = {"b": 12345678, "c": [None, True, 0.5], "1": "1"}
        value = {"a": ["x 1234567 y", {"1234567": 1234567}]} | kept
        assert Mask(["1234567"]).json(value) == {"a": [f"x {MASK} y", {MASK: MASK}]} | kept

    def test_it_does_not_show_what_it_hides(self) -> None:
        binding = Binding({"secrets.x": "hunter2"}, ("hunter2",))
        assert "hunter2" not in repr(Mask(["hunter2"])) + repr(binding)


class TestSink:
    @hypothesis_settings(max_examples=40)
    @given(st.data())
    def test_how_bytes_arrive_and_where_long_lines_are_cut_hides_nothing_of_it(
        self, data: st.DataObject
    ) -> None:
        secret = "correct horse battery staple"
        gaps = st.integers(0, 40) | st.integers(LONGEST - 60, LONGEST + 60)
        end, size = data.draw(st.sampled_from(["", "\n"])), data.draw(st.sampled_from([1_000, 4_096, 65_536]))
        text = "".join("x" * data.draw(gaps) + secret for _ in range(3)) + end
        encoded = text.encode()
        sink, lines, mask = Recorder(), Lines(), Mask([secret])
        masked = MaskedSink(sink, mask)
        for start in range(0, len(encoded), size):
            masked.output("stdout", lines.feed(encoded[start : start + size], mask))
        masked.output("stdout", lines.finish(mask))
        said = "".join(sink.lines("stdout"))
        assert said == text.strip().replace(secret, MASK)
        assert all(len(line) <= LONGEST for line in sink.lines("stdout"))

    def test_an_endless_line_is_passed_on_as_it_comes(self) -> None:
        lines, mask = Lines(), Mask(["hunter2"])
        said = [piece for _ in range(5) for piece in lines.feed(b"x" * LONGEST, mask)]
        assert len("".join(said)) == 4 * LONGEST

    @pytest.mark.parametrize("length", [LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST])
    def test_a_long_line_ends_where_it_ends(self, length: int) -> None:
        lines, mask, sink = Lines(), Mask(["hunter2"]), Recorder()
        masked = MaskedSink(sink, mask)
        masked.output("stdout", lines.feed(b"x" * length + b"\nnext hunter2\n", mask))
        masked.output("log", ["x" * length, "next"])
        *long, following = sink.lines("stdout")
        assert (following, "".join(long)) == (f"next {MASK}", "x" * length)
        assert sink.lines("log") == ["x" * length, "next"]


class TestWordsOfOthers:
    def test_the_log_hides_the_secrets_of_what_runs(self) -> None:
        written, formatter = io.StringIO(), logging_config(json=True, level="INFO")["formatters"]["jim"]
        handler = logging.StreamHandler(written)
        handler.setFormatter(formatter.pop("()")(**formatter))
        logger = logging.getLogger(HERE)
        logger.addHandler(handler)
        error = ValueError(SECRET)
        with active(Mask([SECRET])):
            logger.warning("GET /?key=%s", quote_plus(SECRET))
            logger.error("it broke", exc_info=error)
        logger.removeHandler(handler)
        assert written.getvalue().count(MASK) >= 2
        assert "hunter2" not in written.getvalue()

    def test_warnings_and_exceptions_that_nobody_catches_are_logged(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Clumsy:
            def __del__(self) -> None:
                fail_at_once()

        monkeypatch.setattr(threading, "excepthook", threading.excepthook)
        monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            log_stray_messages()
            warnings.warn(f"a warning about {SECRET}", stacklevel=1)
            for target in (fail_at_once, sys.exit):
                thread = threading.Thread(target=target, name="background")
                thread.start()
                thread.join()
            Clumsy()
            logging.captureWarnings(False)
        warning, end, unraisable = caplog.records
        assert f"a warning about {SECRET}" in warning.getMessage()
        assert end.getMessage() == "thread background ended with an exception"
        assert "__del__" in unraisable.getMessage()
        assert end.exc_info is not None
        assert unraisable.exc_info is not None

    def test_only_while_it_runs(self) -> None:
        mask = Mask(["hunter2"])
        with active(mask), active(mask):
            pass
        assert conceal("hunter2") == "hunter2"
        with active(mask):
            with active(mask):
                pass
            assert conceal("hunter2") == MASK

    def test_a_complaint_about_a_filled_setting_hides_it_before_it_is_cut(self) -> None:
        secret = "s3cret" * 12
        with active(Mask([secret])), pytest.raises(ValueError, match="must be a number") as raised:
            Field("f", "F", kind="number").clean(secret)
        assert "s3cret" not in str(raised.value)


class TestSteps:
    @pytest.mark.parametrize("kind", ["return", "raise", "fail", "skip", "chain"])
    def test_a_function_in_a_thread(self, kind: str) -> None:
        outcome, sink = run(in_thread("tell", kind, "{{ secrets.x }}"))
        assert outcome.status == {"return": "complete", "skip": "skipped"}.get(kind, "failed_with_error")
        assert MASK in everything(outcome, sink)
        assert (sink.lines("log"), len(sink.items)) == ([f"written {MASK}"], 1)

    def test_what_a_function_in_a_thread_prints(self, capsys: pytest.CaptureFixture[str]) -> None:
        streams = sys.stdout, sys.stderr
        outcome, _ = run(in_thread("prints", "{{ secrets.x }}"))
        assert outcome.status == "complete"
        said = capsys.readouterr()
        for text in (said.out, said.err):
            assert (text.count(MASK), "hunter2" in text) == (2, False)
        assert (sys.stdout, sys.stderr) == streams

    @pytest.mark.parametrize("levels", [1, MAX_LEVELS, MAX_LEVELS + 1, *range(110, 500, 40), 5_000])
    def test_a_result_is_masked_as_deep_as_it_may_be(self, levels: int) -> None:
        outcome, _ = run(in_thread("nest", levels, "{{ secrets.x }}"))
        may_be = levels <= MAX_LEVELS
        assert outcome.status == ("complete" if may_be else "failed_with_error")
        assert (MASK in str(outcome.result)) is may_be

    def test_a_mask_that_fails_shows_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> NoReturn:
            raise MemoryError(SECRET)

        monkeypatch.setattr(Mask, "json", fail)
        outcome, sink = run(in_thread("tell", "raise", "{{ secrets.x }}"))
        assert (outcome.status, outcome.result, outcome.traceback) == ("failed_with_error", None, "")
        assert outcome.error == "the outcome of the step cannot be determined (MemoryError)"
        assert everything(outcome, sink)

    @pytest.mark.parametrize("isolation", ["thread", "process"])
    def test_words_that_are_cut_are_masked_before(self, isolation: str) -> None:
        with Nursery() as nursery:
            for spare in range(0, len(SECRET) + 2, 3 if isolation == "thread" else 12):
                length = ERROR_CHARS - spare - len("ValueError: ")
                config = in_thread("fail_at_length", length, "{{ secrets.x }}") | {"isolation": isolation}
                outcome, _ = run(config, nursery=nursery)
                assert len(outcome.error) == ERROR_CHARS
                assert len(outcome.traceback) <= TRACEBACK_CHARS
                assert "hunter" not in outcome.error + outcome.traceback

    def test_words_that_python_has_cut(self) -> None:
        config = in_thread("int", f"{'x' * 170}{{{{ secrets.x }}}}") | {"function": "builtins.int"}
        outcome, sink = run(config, secret=f"hunter2{LONG}")
        assert outcome.error.startswith("ValueError: invalid literal")
        assert everything(outcome, sink)

    def test_a_setting_that_is_wrong_once_filled(self) -> None:
        config = {"argv": [sys.executable], "cwd": "{{ secrets.x }}"}
        with override_settings(JIM_EXECUTABLE_FOLDERS=["/"]):
            outcome, sink = run(config, step_type="executable")
        assert (outcome.status, outcome.can_retry) == ("failed_with_error", False)
        assert f"cwd: '{MASK}' is not an absolute path" in outcome.error
        assert everything(outcome, sink)

    def test_without_secrets_nothing_is_masked(self) -> None:
        by_name = {"kind": "return", "secret": "plain"}
        work = Work("k", 1, "a step", "python", in_thread("tell") | {"kwargs": by_name})
        context = Context(work, sink := Recorder())
        outcome = perform(work, sink, nursery=Nursery(), context=context)
        assert (context.mask, outcome.result) == (None, {"told plain": ["plain"]})

    def test_placeholders_that_nobody_looked_up_are_not_run(self) -> None:
        work = Work("k", 1, "a step", "python", {"function": f"{HERE}.tell"}, refs=["secrets.x"])
        outcome = perform(work, Recorder(), nursery=Nursery())
        assert outcome.error.endswith("the values of the placeholders were not looked up")


def in_thread(function: str, *args: object) -> dict[str, Any]:
    return {"function": f"{HERE}.{function}", "args": [*args], "isolation": "thread"}


def run(
    config: dict[str, Any], *, step_type: str = "python", nursery: Nursery | None = None, secret: str = SECRET
) -> tuple[Outcome, Recorder]:
    work = Work("k", 1, "a step", step_type, config, refs=["secrets.x"])
    binding, sink = Binding({"secrets.x": secret}, (secret,)), Recorder()
    outcome = perform(work, sink, nursery=nursery or Nursery(), binding=binding)
    assert work.config == config
    return outcome, sink


def everything(outcome: Outcome, sink: Recorder) -> str:
    """All that is left of a step, once it is certain that no secret is in it."""
    told = f"{outcome!r} {outcome.error} {outcome.traceback} {sink.said} {sink.items} {sink.progressed}"
    assert "hunter2" not in told
    return told


def fail_at_once() -> NoReturn:
    raise ValueError(SECRET)


def unicode_escaped(dumped: str, chars: str, digits: str = "x") -> str:
    return dumped.translate({ord(char): f"\\u{ord(char):04{digits}}" for char in chars})


def dotnet_json(text: str) -> str:
    units = memoryview(text.encode("utf-16-le")).cast("H")
    return f'"{"".join(map(dotnet_escaped, units))}"'


def dotnet_escaped(unit: int) -> str:
    short = json.dumps(chr(unit))[1:-1]
    needs_number = unit > 126 or chr(unit) in "&<>'\"+`" or short.startswith("\\u")
    return f"\\u{unit:04X}" if needs_number else short


def prints(text: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        print("a line with", text, file=stream)
        stream.writelines([f"{text}\n"])


def tell(kind: str, secret: str, ctx: Context) -> object:
    """What a step of these tests does with its secret."""
    ctx.write(f"written {secret}")
    ctx.item(secret, "ok", f"item {secret}")
    ctx.progress(1, 2, f"progress {secret}")
    if kind == "raise":
        raise ValueError(secret)
    if kind == "fail":
        raise StepFailed(f"failed with {secret}")
    if kind == "skip":
        ctx.skip(f"skipped for {secret}")
    if kind == "chain":
        raise ValueError("nothing to see") from KeyError(secret)
    return {f"told {secret}": [secret]}


def nest(levels: int, secret: str) -> object:
    value: object = secret
    for _ in range(levels):
        value = [value]
    return value


def fail_at_length(length: int, secret: str) -> NoReturn:
    raise ValueError("x" * length + secret + "y" * 100_000)
