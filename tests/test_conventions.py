"""What reviewers would otherwise have to look for. Every rule is shown something that breaks it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
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


@pytest.mark.parametrize(
    "source",
    [
        "task.status = 'done'",
        "a.b.status, x = 'done', 1",
        "first = task.status = 'done'",
        "task.status += 'x'",
        "task.status: str = 'done'",
        "setattr(task, 'status', 'done')",
        "Task.objects.filter(pk=1).update(status='done')",
    ],
)
def test_a_moved_status_is_found(source: str) -> None:
    assert moves_status(source) == [1]


@pytest.mark.parametrize(
    "source", ["if task.status == 'done': x = task.status", "tasks[task.status] = 1", "status = 1"]
)
def test_a_status_that_is_only_read_is_not_found(source: str) -> None:
    assert moves_status(source) == []


def test_only_models_move_a_status() -> None:
    found = [
        f"{path}:{line}"
        for path, text in texts()
        if path.suffix == ".py" and not belongs_to_a_model(path)
        for line in moves_status(text)
    ]
    assert found == []


def test_modules_have_telling_names() -> None:
    named = [path.relative_to(ROOT) for path in files() if path.suffix == ".py"]
    assert len(named) > 10
    assert [str(path) for path in named if VAGUE_NAMES & {path.stem, *path.parts}] == []


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


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_a_lock_pins_everything_by_hash_and_names_no_address(name: str) -> None:
    lock = (ROOT / name).read_text()
    assert lock_addresses(lock) == []
    pinned = re.findall(r"^(\S+==\S+)", lock, re.MULTILINE)
    entries = re.split(r"^(?=\S+==)", lock, flags=re.MULTILINE)[1:]
    assert len(pinned) == len(entries) > 10
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
