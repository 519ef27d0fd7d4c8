"""A canary is used as a secret wherever steps take one. Nothing that JIM keeps, shows or starts may sing it.

Beside it goes a marker that is no secret, through the same steps in the same ways. That one is found wherever
the canary is looked for; so the canary would be, too.
"""

from __future__ import annotations

import html
import re
import secrets
import string
import threading
from base64 import b64encode, encodebytes
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client

from activities.models import Activity
from database import clock
from execution.models import WorkerTask
from execution.steps.masking import MASK
from tests.admin_pages import page, sign_in
from tests.base import start
from tests.fleet import Fleet, Member, is_at_rest
from tests.outside import POSTGRESQL, SQLITE, Outside
from tests.waiting import wait_until

# By pool, the settings of the worker that serves it.
POOLS = {"people": {}, "machines": {"JIM_LOG_JSON": "1", "JIM_DEBUG": "1"}}
SEATS = ("--threads", "16", "--processes", "2")
FORMS = {
    "canary": "k\"{}'<&>/+ %\\é={}",
    "canary-lines": "-----BEGIN KEY-----\n{}+/\n{}==\n-----END KEY-----",
    "canary-url": "w-{}",
    "canary-long": "&".join(["{}"] * 8),
}
CANARY, LINES, IN_URL, LONG = (f"{{{{ secrets.{name} }}}}" for name in FORMS)


class Canary:
    """Random parts of texts that outlive every way of writing them, but base64 and hex."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.needles: list[bytes] = []
        for name, form in FORMS.items():
            parts = [random_part() for _ in range(form.count("{}"))]
            self.values[name] = form.format(*parts)
            self.needles += [needle for part in parts for needle in needles_of(part)]

    def is_in(self, place: bytes) -> bool:
        return any(needle in place for needle in self.needles)


def random_part() -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(16))


def needles_of(part: str) -> Iterator[bytes]:
    """Halves, as what was cut short must not be there either; in hex; and in base64, wherever that begins."""
    for half in (part[:8].encode(), part[8:].encode()):
        yield from (half, half.hex().encode(), half.hex().upper().encode())
        for before in range(3):
            encoded = b64encode(b"\0" * before + half)
            yield encoded[-(-before * 4 // 3) : (before + len(half)) * 4 // 3]


def test_a_canary_is_recognised_also_by_a_half_of_it_in_base64_and_hex() -> None:
    canary = Canary()
    for text in canary.values.values():
        assert canary.is_in(html.escape(text).encode())
        for before in ("", "u", "us", "user:"):
            whole = f"{before}{text}".encode()
            assert all(map(canary.is_in, (whole, b64encode(whole), encodebytes(whole), whole.hex().encode())))
    assert canary.is_in(canary.values["canary-url"][:12].encode())
    assert not canary.is_in(Canary().values["canary"].encode())


@dataclass(frozen=True, eq=False)
class Deed:
    """A step that does its worst with what it is told; `repeats` if that can appear in its record at all."""

    step: dict[str, Any]
    status: str = "failed_with_error"
    repeats: bool = True
    meets: bool = False

    @property
    def name(self) -> str:
        return str(self.step["name"])


@pytest.mark.live
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "sqlite", reason="what is kept of a step is the same on PostgreSQL")
def test_nobody_sings(outside: Outside) -> None:
    canary, marker, client = Canary(), random_part(), sign_in()
    pages = type_in(client, canary)
    (outside.data / "marker").write_text(marker)
    deeds = [deed for pool in POOLS for deed in Company(pool, outside, marker).deeds()]
    with ProcessList(canary, marker) as processes, ExitStack() as stack:
        members = {pool: start_worker(pool, outside, stack) for pool in POOLS}
        start(*(deed.step for deed in deeds), now=clock.now())
        wait_until(lambda: len(list(outside.meeting.iterdir())) == sum(deed.meets for deed in deeds))
        processes.look_again()
        pages += [client.get(url).content for url in queue_pages()]
        (outside.meeting / "go").touch()
        wait_until(is_at_rest)
        logs = {f"log for {pool}": stop(member) for pool, member in members.items()}

    ended = {activity.target_name: activity for activity in Activity.objects.exclude(line=None)}
    assert {deed.name: ended[deed.name].status for deed in deeds} == {
        deed.name: deed.status for deed in deeds
    }
    records = {deed: record_of(ended[deed.name]) for deed in deeds}
    assert [deed.name for deed, record in records.items() if canary.is_in(record.encode())] == []
    assert [deed.name for deed, record in records.items() if deed.repeats and MASK not in record] == []
    assert [deed.name for deed, record in records.items() if deed.repeats and marker not in record] == []
    pages += crawl(client)
    places = {
        "tables": tables(),
        "data folder": files_of(outside.data),
        "pages": b"\n".join(pages),
        "database file": database_file(),
        **logs,
    }
    assert [name for name, place in places.items() if canary.is_in(place)] == []
    assert [name for name, place in places.items() if marker.encode() not in place] == []
    assert (processes.leaks, processes.marked) == ([], {"cmdline", "environ"})
    assert processes.entrusted, "programs were given it in their environment"


@dataclass(frozen=True)
class Company:
    """The steps for one worker. Some meet in mid-run, so that all can be looked at together.

    What machines read of it differs in the log and in complaints only.
    """

    pool: str
    outside: Outside
    marker: str

    def deeds(self) -> Iterator[Deed]:
        yield from self.functions()
        yield from self.misplaced()
        if self.pool == "people":
            yield from self.programs()
            yield from self.statements()
            yield from self.requests()

    def functions(self) -> Iterator[Deed]:
        for isolation, ending, status in (
            ("process", "result", "complete"),
            ("process", "raise", "failed_with_error"),
            ("process", "exit", "failed_with_error"),
            ("thread", "result", "complete"),
            ("thread", "raise", "failed_with_error"),
            ("thread", "skip", "skipped"),
            ("thread", "no JSON", "failed_with_error"),
        ):
            meets = ending in ("result", "raise")
            kwargs = {
                "told": {"secret": CANARY, "lines": LINES, "long": LONG, "plain": self.marker},
                "ending": ending,
                "meeting": str(self.outside.meeting) if meets else "",
                "prints": isolation == "process",
            }
            config = {"function": "tests.stories.tattle.tell", "kwargs": kwargs, "isolation": isolation}
            yield self.deed("python", f"{isolation}, {ending}", config, status=status, meets=meets)

    def programs(self) -> Iterator[Deed]:
        for code, status in (("0", "complete"), ("3", "failed_with_error")):
            env = {"TOKEN": CANARY, "LONG": LONG, "PLAIN": self.marker, "CODE": code}
            env["MEETING"] = str(self.outside.meeting)
            tattle = self.outside.script("tattle", PROGRAM)
            config = {"argv": [tattle, self.marker], "env": env}
            yield self.deed("executable", f"exit {code}", config, status=status, meets=True)
            script = self.outside.script(
                f"tattle-{code}.ps1", SCRIPT.format(tattle=tattle) + SCRIPT_ENDS[code]
            )
            config = {"script": script, "arguments": [self.marker], "env": env | {"CODE": "0"}}
            yield self.deed("powershell", f"exit {code}", config, status=status, meets=True)

    def statements(self) -> Iterator[Deed]:
        for connection_name, name, script, status in STATEMENTS:
            known = {"secret": CANARY, "lines": LINES, "long": LONG, "plain": self.marker}
            parameters = {key: value for key, value in known.items() if f":{key}" in script}
            config = {"connection": connection_name, "script": script, "parameters": parameters}
            yield self.deed("sql", f"{connection_name}, {name}", config, status=status)

    def requests(self) -> Iterator[Deed]:
        base, plain = self.outside.web.url, self.marker
        told: dict[str, Any] = {
            "method": "POST",
            "headers": {"X-Token": CANARY, "X-Plain": plain},
            "body": f"{CANARY} {LINES} {LONG} {plain}",
        }
        bearer: dict[str, Any] = {"authentication": "bearer", "credential": CANARY}
        basic: dict[str, Any] = {"authentication": "basic", "username": "user", "credential": CANARY}
        there = f"/echo%3Ftoken={IN_URL}%26plain={plain}"
        yield self.request("bearer", f"{base}/echo", status="complete", **told, **bearer)
        yield self.request("basic", f"{base}/echo", status="complete", **told, **basic)
        yield self.request("reflected", f"{base}/reflect?is=200", status="complete", **told)
        yield self.request("reflected failure", f"{base}/reflect?is=500", **told)
        yield self.request("query", f"{base}/echo?token={IN_URL}&plain={plain}", status="complete")
        yield self.request(
            "followed", f"{base}/redirect?to={there}", status="complete", follow_redirects=True
        )
        yield self.request("found", f"{base}/redirect?to={there}", status="complete", expected_status=[302])
        yield self.request("unreachable", f"http://127.0.0.1:1/{IN_URL}/{plain}", repeats=False)
        yield self.request("forbidden", f"http://10.0.0.1/{IN_URL}/{plain}", repeats=False)
        yield self.request("no URL", f"http://{CANARY}/{plain}", repeats=False)
        yield self.request("unfit header", base, headers={"X-Token": LINES}, repeats=False)
        yield self.request("unfit credential", base, authentication="bearer", credential=LINES, repeats=False)
        yield self.request("unfit status", base, expected_status=[f"{CANARY} {plain}"])

    def misplaced(self) -> Iterator[Deed]:
        """Where such a value makes no sense, and the complaint may repeat it."""
        text = f"{CANARY} {self.marker}"
        tattle = self.outside.script("tattle", PROGRAM)
        select = {"connection": SQLITE, "script": "SELECT 1"}
        yield self.deed("wait", "duration", {"duration": text})
        yield self.deed("wait", "until", {"until": text})
        yield self.deed("executable", "cwd", {"argv": [tattle], "cwd": text})
        yield self.deed("executable", "env", {"argv": [tattle], "env": {"TOKEN": LINES}}, repeats=False)
        yield self.deed("sql", "max_rows", select | {"max_rows": CANARY}, repeats=False)
        yield self.deed("sql", "parameters", select | {"parameters": CANARY}, repeats=False)
        yield self.deed("python", "kwargs", {"function": "tests.work.noop", "kwargs": CANARY}, repeats=False)

    def request(
        self, name: str, url: str, *, status: str = "failed_with_error", repeats: bool = True, **config: Any
    ) -> Deed:
        return self.deed("http", name, {"url": url, **config}, status=status, repeats=repeats)

    def deed(self, step_type: str, name: str, config: Mapping[str, Any], **rest: Any) -> Deed:
        step = {
            "name": f"{step_type}: {name} ({self.pool})",
            "index": 0,
            "step_type": step_type,
            "config": dict(config),
            "max_retries": 0,
            "continue_on_failure": True,
            "pool": self.pool,
        }
        return Deed(step, **rest)


PROGRAM = """
printf '%s\\n' "$TOKEN" "It is $TOKEN, you know" "$PLAIN" "$1"
printf '%s\\n' "$TOKEN" >&2
printf '%s' "$TOKEN" | base64
printf '%s' "user:$TOKEN" | base64
printf '%s' "$LONG" | base64
printf '%s\\n' "user:$LONG" | base64 -w 64
printf '%s' "$TOKEN"
touch "$MEETING/$JIM_IDEMPOTENCY_KEY"
while [ ! -e "$MEETING/go" ]; do sleep 0.05; done
exit "$CODE"
"""
SCRIPT = """
Write-Output "$env:TOKEN"
Write-Output "It is $env:TOKEN, and $env:PLAIN"
Write-Error "$env:TOKEN"
& {tattle}
"""
SCRIPT_ENDS = {"0": "exit 0", "3": 'throw "$env:TOKEN $env:PLAIN"'}
STATEMENTS = (
    (
        POSTGRESQL,
        "rows",
        """
        SELECT CAST(:secret AS text) AS secret, CAST(:plain AS text) AS plain, CAST(:lines AS text) AS lines,
            to_json(CAST(:secret AS text)) AS json, quote_literal(CAST(:secret AS text)) AS quoted,
            encode(convert_to(CAST(:secret AS text), 'UTF8'), 'base64') AS base64;
        SELECT convert_to(CAST(:long AS text), 'UTF8') AS bytes;
        SELECT encode(convert_to(CAST(:long AS text), 'UTF8'), 'base64') AS base64;
        SELECT set_config('my.secret', :secret, true);
        DO $$ BEGIN RAISE NOTICE 'it is %', current_setting('my.secret'); END $$;
        SELECT CAST(:secret AS text) AS secret, CAST(:plain AS text) AS plain
        """,
        "complete",
    ),
    (
        POSTGRESQL,
        "mistake",
        "SELECT CAST(CAST(:secret AS text) || CAST(:plain AS text) AS integer)",
        "failed_with_error",
    ),
    (
        POSTGRESQL,
        "exception",
        """
        SELECT set_config('my.secret', CAST(:secret AS text) || CAST(:plain AS text), true);
        DO $$
        DECLARE it text := current_setting('my.secret');
        BEGIN RAISE EXCEPTION 'it is %', it USING DETAIL = it, HINT = quote_literal(it); END $$
        """,
        "failed_with_error",
    ),
    (
        POSTGRESQL,
        "failing row",
        """
        CREATE TEMPORARY TABLE it (plain text, long text, needed text NOT NULL);
        DO $$ BEGIN RAISE NOTICE 'table %', 'it'; END $$;
        SELECT CAST(:plain AS text) AS plain, CAST(:long AS text) AS long;
        INSERT INTO it VALUES (:plain, :long, NULL)
        """,
        "failed_with_error",
    ),
    (
        POSTGRESQL,
        "long name",
        """
        SELECT CAST(:plain AS text) AS plain, set_config('my.long', :long, true);
        DO $$ BEGIN EXECUTE format('SELECT 1 AS %I', current_setting('my.long')); END $$;
        DO $$ BEGIN EXECUTE format('SELECT %I', current_setting('my.long')); END $$
        """,
        "failed_with_error",
    ),
    (
        SQLITE,
        "bytes",
        "SELECT CAST(:secret AS blob) AS secret, CAST(:long AS blob) AS long, :plain AS plain",
        "complete",
    ),
    (
        SQLITE,
        "rows",
        "SELECT :secret AS secret, :plain AS plain, :lines AS lines, json_quote(:secret) AS json, "
        "quote(:secret) AS quoted",
        "complete",
    ),
    (SQLITE, "mistake", "SELECT json_extract('{}', :secret || :plain)", "failed_with_error"),
)


class ProcessList(threading.Thread):
    """Looks at the arguments and the environment of every process, again and again."""

    def __init__(self, canary: Canary, marker: str) -> None:
        super().__init__()
        self.canary, self.marker = canary, marker.encode()
        self.leaks: list[str] = []
        self.marked: set[str] = set()
        self.entrusted = False
        self.rounds = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.1):
            for folder in Path("/proc").glob("[0-9]*"):
                for kind in ("cmdline", "environ"):
                    with suppress(OSError):  # it has ended, or is not ours
                        self._judge(kind, (folder / kind).read_bytes())
            self.rounds += 1

    def look_again(self) -> None:
        """Returns after a whole round that began later than now."""
        enough = self.rounds + 2
        wait_until(lambda: self.rounds >= enough)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.join()

    def _judge(self, kind: str, text: bytes) -> None:
        if self.marker in text:
            self.marked.add(kind)
        if not self.canary.is_in(text):
            return
        # What runs a step of these types, and whatever that starts itself.
        if kind == "environ" and re.search(rb"(^|\0)JIM_STEP=(executable|powershell): ", text):
            self.entrusted = True
        else:
            self.leaks.append(f"{kind}: {text.decode(errors='replace')}")


def type_in(client: Client, canary: Canary) -> list[bytes]:
    """As people do, who make a mistake in the name first; returns what they see then."""
    url, seen = page("schedules_secret_add"), []
    for name, value in canary.values.items():
        refused, saved = (client.post(url, {"name": each, "value": value}) for each in (f"{name}!", name))
        assert (refused.status_code, saved.status_code) == (200, 302)
        seen.append(refused.content)
    return seen


def start_worker(pool: str, outside: Outside, stack: ExitStack) -> Member:
    env = outside.env | POOLS[pool] | {"JIM_LOG_LEVEL": "DEBUG"}
    fleet = stack.enter_context(Fleet(outside.folder, **env))
    return fleet.start_worker("--pools", pool, *SEATS)


def stop(member: Member) -> bytes:
    assert member.terminate() == 0
    return member.said.encode()


def record_of(activity: Activity) -> str:
    """All that is kept of what it said."""
    said = [line.text for line in activity.output.all()]
    said += [f"{item.name} {item.message}" for item in activity.items.all()]
    return "\n".join([activity.error, activity.traceback, activity.message, str(activity.result), *said])


def tables() -> bytes:
    """Every column of every row."""
    rows: list[Any] = []
    with connection.cursor() as cursor:
        for name in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{name}"')
            rows += cursor.fetchall()
    return "\n".join(str(value) for row in rows for value in row).encode()


def database_file() -> bytes:
    """As it is on the disk, with what was deleted and with its journal."""
    path = Path(str(connection.settings_dict["NAME"]))
    return b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*"))


def files_of(folder: Path) -> bytes:
    """Their names and what is in them."""
    found = list(folder.rglob("*"))
    return b"\n".join(
        [str(path).encode() for path in found] + [path.read_bytes() for path in found if path.is_file()]
    )


def queue_pages() -> list[str]:
    """The pages that exist only while something runs."""
    tasks = [page("execution_workertask_change", task.pk) for task in WorkerTask.objects.all()]
    assert tasks
    return [page("execution_workertask_changelist"), page("execution_execution_changelist"), *tasks]


def crawl(client: Client) -> list[bytes]:
    """Every page of every row, and all that links lead to; of those that differ in their query only, one."""
    pages: dict[str, bytes] = {}
    ahead = [page("index"), *pages_of_rows()]
    while ahead:
        url = ahead.pop()
        path = urlsplit(url).path
        if path in pages or not path.startswith("/admin/") or "/logout/" in path:
            continue
        response: Any = client.get(url, follow=True)
        assert response.status_code == 200, url
        pages[path] = response.getvalue()
        links = re.findall(r'href="([^"]+)"', pages[path].decode())
        ahead += [urljoin(url, html.unescape(link)) for link in links]
    assert {page("schedules_secret_add"), page("schedules_schedule_add")} <= pages.keys()
    return list(pages.values())


def pages_of_rows() -> Iterator[str]:
    for model in admin.site._registry:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        yield page(f"{name}_changelist")
        for pk in model._default_manager.values_list("pk", flat=True):
            yield page(f"{name}_change", pk)
