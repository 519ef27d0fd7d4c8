"""docs/commands.md has every command of JIM, with all of its verbs and options."""

from __future__ import annotations

import re

from django.conf import settings
from django.core.management import load_command_class

from jimsite.completion import options_of, own_commands, verbs_of
from jimsite.terminal import JimCommand

TEXT = (settings.BASE_DIR / "docs" / "commands.md").read_text()
PARTS = re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
SECTIONS = {part.partition("\n")[0].strip(): part for part in PARTS}
COMMANDS = own_commands()


def test_it_has_those_commands_and_no_others() -> None:
    assert set(SECTIONS) == set(COMMANDS)


def test_every_option_and_exit_code_is_documented() -> None:
    wrong = []
    for name, module in COMMANDS.items():
        command = load_command_class(module, name)
        parser = command.create_parser("manage.py", name)
        options = options_of(parser)
        wrong += [(name, verb) for verb in verbs_of(parser) if f"`{verb}" not in SECTIONS[name]]
        told = set(re.findall(r"--[a-z][a-z-]+", SECTIONS[name]))
        wrong += [(name, option) for option in options - {"--help"} - told]
        wrong += [(name, option) for option in told - options - {"--all", "--pools"}]
        if isinstance(command, JimCommand):
            help_text = " ".join(parser.format_help().split())
            for code, words in command.exit_codes.items():
                is_in_table = re.search(rf"^\| {code} \|", TEXT, flags=re.MULTILINE)
                if f"{code} {words}" not in help_text or not is_in_table:
                    wrong.append((name, f"exit code {code}"))
    assert wrong == []
