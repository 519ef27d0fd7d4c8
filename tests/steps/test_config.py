"""What a step's settings may be. Each refusal names the field and the way out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from execution.steps.fields import Field, Kind
from execution.steps.step_type import get
from schedules import registry
from schedules.registry import ConfigError

NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]


def test_python_is_canonical_after_cleaning_and_nothing_is_imported_for_it() -> None:
    assert get("python").clean({"function": " tests.steps.broken.function "}) == {
        "function": "tests.steps.broken.function",
        "args": [],
        "kwargs": {},
        "isolation": "process",
    }
    whole = {"function": "a.b", "args": [1, {"x": None}], "kwargs": {"k": "ü"}, "isolation": "thread"}
    assert get("python").clean(whole) == whole


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        (None, "config", "must be an object of settings"),
        ({}, "function", "is required"),
        ({"function": 7}, "function", "must be text, not 7"),
        ({"function": "function"}, "function", "must be a dotted path such as package.module.function"),
        ({"function": "a.b()"}, "function", "must be a dotted path"),
        ({"function": "a.class"}, "function", "must be a dotted path"),
        ({"function": "a.b\0"}, "function", "contains NUL"),
        ({"function": "a.b", "args": "x"}, "args", "must be a list"),
        ({"function": "a.b", "args": ["\0"]}, "args", "contains NUL or half a surrogate pair"),
        ({"function": "a.b", "args": [float("nan")]}, "args", "cannot be stored as JSON"),
        ({"function": "a.b", "args": [object()]}, "args", "cannot be stored as JSON"),
        ({"function": "a.b", "args": NESTED}, "args", "cannot be stored as JSON"),
        ({"function": "a.b", "kwargs": ["x"]}, "kwargs", "must be an object of names and values"),
        ({"function": "a.b", "kwargs": {"ctx": 1}}, "kwargs", "ctx is passed by JIM itself"),
        ({"function": "a.b", "isolation": "fork"}, "isolation", "must be one of process, thread, not 'fork'"),
        (
            {"function": "a.b", "fnuction": "c"},
            "fnuction",
            "is not a setting of python steps; known settings:",
        ),
    ],
)
def test_python_refuses(config: object, field: str, words: str) -> None:
    refuses("python", config, field, words)


def test_executable_is_canonical_after_cleaning(script: Callable[..., str], tmp_path: Path) -> None:
    program = script("")
    assert get("executable").clean({"argv": [program, "", "ü"]}) == {
        "argv": [program, "", "ü"],
        "cwd": "",
        "env": {},
    }
    env = {"_A9": "", "NODE_ENV": "x=y", "GIT_AUTHOR_NAME": "JIM", "TZ": "UTC", "MY_PATH": "{{ attempt }}"}
    whole = {"argv": [program], "cwd": str(tmp_path), "env": env}
    assert get("executable").clean(whole) == whole


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "is required: the program's absolute path, then one entry per argument"),
        (["program"], "'program' is not an absolute path; it must begin with /"),
        (["{folder}/missing"], "does not exist"),
        (["{folder}"], "is a folder, not a program"),
        (["{folder}/plain"], "is not executable; run chmod +x on it"),
        (["{folder}/fifo"], "is not executable"),
        (["/bin/sh"], "is outside the folders that programs may come from"),
        (["{folder}/../sibling"], "is outside the folders that programs may come from"),
        (["{folder}/link-out"], "is outside the folders that programs may come from"),
        (["{folder}/loop"], "does not exist"),
        (["{folder}/program", 3], "every entry must be text: put numbers in quotes"),
        (["{folder}/program"], ""),
        (["{folder}/link-in"], ""),
        (["{folder}/./sub/../program"], ""),
    ],
)
def test_executable_takes_programs_of_its_folders_however_they_are_written(
    script: Callable[..., str], tmp_path: Path, argv: list[Any], words: str
) -> None:
    script("")
    (tmp_path / "sub").mkdir()
    (tmp_path / "plain").write_text("no program")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link-out").symlink_to("/bin/sh")
    (tmp_path / "link-in").symlink_to(tmp_path / "program")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path.parent / "sibling").write_text("#!/bin/sh\n")
    (tmp_path.parent / "sibling").chmod(0o755)
    argv = [each.replace("{folder}", str(tmp_path)) if isinstance(each, str) else each for each in argv]
    if words:
        refuses("executable", {"argv": argv}, "argv", words)
    else:
        assert get("executable").clean({"argv": argv})["argv"] == argv


def test_which_folders_are_allowed(script: Callable[..., str], tmp_path: Path) -> None:
    """A name that begins like an allowed one is not enough; a folder may itself be a link."""
    for folder in ("bin", "bin-other"):
        (tmp_path / folder).mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "bin-other", target_is_directory=True)
    config = {"argv": [script("", name="bin-other/program")]}
    with override_settings(JIM_EXECUTABLE_FOLDERS=[tmp_path / "bin"]):
        refuses("executable", config, "argv", "is outside the folders that programs may come from")
    with override_settings(JIM_EXECUTABLE_FOLDERS=[]):
        refuses("executable", config, "argv", "may come from: none")
    with override_settings(JIM_EXECUTABLE_FOLDERS=[tmp_path / "linked"]):
        assert get("executable").clean(config)


FORBIDDEN = """
    LD_PRELOAD DYLD_INSERT_LIBRARIES OPENSSL_CONF OPENSSL_MODULES KRB5_CONFIG XDG_CONFIG_HOME XDG_DATA_HOME
    XDG_CONFIG_DIRS XDG_CACHE_HOME JIM_ATTEMPT BASH_ENV ENV IFS SHELL ZDOTDIR CDPATH EDITOR PAGER SSH_ASKPASS
    PYTHONPATH PYTHONNOUSERSITE PERL5LIB PERL5OPT RUBYOPT GEM_PATH LUA_INIT LUA_PATH_5_4 NODE_OPTIONS
    npm_config_script_shell PHPRC R_PROFILE_USER JAVA_HOME JAVA_TOOL_OPTIONS _JAVA_OPTIONS DOTNET_GCName
    PSModulePath GIT_SSH_COMMAND GIT_EXEC_PATH GIT_CONFIG_GLOBAL GIT_DIR RSYNC_RSH MAKEFLAGS
"""


@pytest.mark.parametrize(
    ("rest", "field", "words"),
    [
        ({"cwd": "somewhere"}, "cwd", "'somewhere' is not an absolute path"),
        ({"cwd": "/does/not/exist"}, "cwd", "/does/not/exist is not an existing folder"),
        ({"cwd": "/dev/null"}, "cwd", "is not an existing folder"),
        ({"env": {"A=B": "x"}}, "env", "'A=B' is not a valid variable name; use letters, digits and _"),
        ({"env": {"1A": "x"}}, "env", "is not a valid variable name"),
        ({"env": {"A\n": "x"}}, "env", "is not a valid variable name"),
        (
            {"env": {"PATH": "/tmp"}},
            "env",
            "PATH cannot be set: JIM sets it itself, or it changes which code",
        ),
        ({"env": {"PATH": "/tmp"}}, "env", "; call programs by their absolute paths"),
        ({"env": {"HOME": "/tmp"}}, "env", "; HOME is the working folder: set cwd"),
        *(({"env": {name: "x"}}, "env", f"{name} cannot be set") for name in FORBIDDEN.split()),
        (
            {"env": "{{ steps.a.result }}"},
            "env",
            "can have placeholders in its values only: write out the names",
        ),
        ({"env": {"A": 3}}, "env", "the value of A must be text: put it in quotes"),
        ({"env": {"A": "two\nlines"}}, "env", "the value of A must be one line"),
    ],
)
def test_executable_refuses_surroundings(
    script: Callable[..., str], rest: dict[str, Any], field: str, words: str
) -> None:
    refuses("executable", {"argv": [script("")], **rest}, field, words)


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        get("executable").clean({"argv": "x", "cwd": 1, "other": 2})
    assert set(raised.value.errors) == {"argv", "cwd", "other"}


@pytest.mark.parametrize("name", sorted(registry.step_types))
def test_a_setting_left_out_has_the_default_that_its_form_shows(name: str) -> None:
    for field in get(name).fields:
        if field.default is not None:
            assert field.clean(None) == field.clean(field.default) == field.default


def test_which_types_there_are_and_who_may_write_them() -> None:
    assert {kind.name: kind.needs_code_permission for kind in registry.offered()} == {
        "python": True,
        "executable": True,
        "powershell": True,
        "sql": True,
        "http": False,
        "wait": False,
        "publish": False,
        "run_profile": False,
        "generate_data": False,
        "clear_system": False,
        "delete_system": False,
    }


@pytest.mark.parametrize(
    ("kind", "good", "bad", "empty"),
    [
        ("text", " a ", 1, ""),
        ("textarea", " a\n", ["a"], ""),
        ("list", [1], (1,), []),
        ("mapping", {"a": 1}, [1], {}),
        ("bool", True, 1, False),
        ("number", 1.5, True, None),
        ("number", 0, float("nan"), None),
        ("number", -1, "3", None),
    ],
)
def test_kinds_of_fields(kind: Kind, good: Any, bad: object, empty: object) -> None:
    field = Field("name", "Label", kind=kind)
    assert field.clean(good) == (good.strip() if kind == "text" else good)
    assert field.clean(None) == empty
    with pytest.raises(ValueError, match="must be "):
        field.clean(bad)


def refuses(step_type: str, config: object, field: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        get(step_type).clean(config)
    assert list(raised.value.errors) == [field]
    assert words in raised.value.errors[field]
