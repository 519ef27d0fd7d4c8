"""docs/commands.md has every command of JIM, with all of its options."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.core.management import load_command_class

from jimsite.completion import COMMON, own_commands
from jimsite.terminal import JimCommand

TEXT = (settings.BASE_DIR / "docs" / "commands.md").read_text()
PARTS = re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
SECTIONS = {part.partition("\n")[0].strip(): part for part in PARTS}
COMMANDS = own_commands()


def test_it_has_those_commands_and_no_others() -> None:
    assert set(SECTIONS) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_is_documented(name: str) -> None:
    parser = load_command_class(COMMANDS[name], name).create_parser("manage.py", name)
    options = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    told = set(re.findall(r"--[a-z][a-z-]+", SECTIONS[name]))
    assert options - COMMON - {"--help"} - told == set()
    assert told - options - {"--all", "--pools"} == set()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_exit_codes_are_told_by_the_help_and_by_the_table(name: str) -> None:
    command = load_command_class(COMMANDS[name], name)
    if isinstance(command, JimCommand):
        help_text = " ".join(command.create_parser("manage.py", name).format_help().split())
        for code, words in command.exit_codes.items():
            assert f"{code} {words}" in help_text
            assert re.search(rf"^\| {code} \|", TEXT, flags=re.MULTILINE)
