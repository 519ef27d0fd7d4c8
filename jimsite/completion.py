"""Tab completion of commands, verbs, options and schedule names for bash and zsh.

Django's own completion supports only bash, completes neither verbs such as `limit set` nor schedule names,
and starts Python each time Tab is pressed. tests/jimsite/test_completion.py shows the difference.
"""

from __future__ import annotations

import re
import shlex
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from django.apps import apps
from django.conf import settings
from django.core.management import find_commands, load_command_class

# Arguments with this metavar are names of schedules.
SCHEDULE = "NAME"
# Options of every Django command, which are not completed.
COMMON = {
    *("--version", "--verbosity", "--settings", "--pythonpath", "--traceback", "--skip-checks"),
    *("--no-color", "--force-color"),
}
# Django commands that operators need, and the app of each.
OF_DJANGO = {
    "changepassword": "django.contrib.auth",
    "check": "django.core",
    "createsuperuser": "django.contrib.auth",
    "migrate": "django.core",
}

BASH = r"""# Completion of JIM's commands for bash.
_jim_names() {{
    {manage} schedules --names 2>/dev/null
}}
_jim() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" at=1 verb="" verbs="" options wants_name=""
    [[ "${{COMP_WORDS[1]}}" == *manage.py ]] && at=2
    COMPREPLY=()
    if (( COMP_CWORD == at )); then
        COMPREPLY=( $(compgen -W "{commands}" -- "$current") )
        return
    fi
    (( COMP_CWORD > at + 1 )) && verb="${{COMP_WORDS[at+1]}}"
    case "${{COMP_WORDS[at]}} $verb" in
{cases}
        *) return ;;
    esac
    if [[ -n "$verbs" ]]; then
        COMPREPLY=( $(compgen -W "$verbs" -- "$current") )
        return
    fi
    if [[ "${{COMP_WORDS[COMP_CWORD-1]}}" == --schedule ]]; then
        wants_name=1
    elif [[ "$current" == -* ]]; then
        COMPREPLY=( $(compgen -W "$options" -- "$current") )
        return
    fi
    if [[ -n "$wants_name" ]]; then
        local name typed="${{current//\\/}}"
        typed="${{typed#[\"\']}}"
        while IFS= read -r name; do
            COMPREPLY+=( "$(printf '%q' "$name")" )
        done < <(_jim_names | awk -v typed="$typed" 'index(tolower($0), tolower(typed)) == 1')
    fi
}}
_jim_python() {{
    [[ "${{COMP_WORDS[1]}}" == *manage.py ]] && _jim
}}
complete -o default -F _jim manage.py {program}
complete -o default -F _jim_python python python3
"""
# A separate script for zsh: bashcompinit could load the one for bash, but only compadd can ignore case.
ZSH = r"""# Completion of JIM's commands for zsh.
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
_jim_names() {{
    {manage} schedules --names 2>/dev/null
}}
_jim() {{
    local at=2 verb="" verbs="" options wants_name=""
    local -a names
    [[ "$words[2]" == *manage.py ]] && at=3
    if (( CURRENT == at )); then
        compadd -- {commands}
        return
    fi
    (( CURRENT > at + 1 )) && verb="$words[at+1]"
    case "$words[at] $verb" in
{cases}
        *) _default; return ;;
    esac
    if [[ -n "$verbs" ]]; then
        compadd -- ${{=verbs}}
        return
    fi
    if [[ "$words[CURRENT-1]" == --schedule ]]; then
        wants_name=1
    elif [[ "$PREFIX" == -* ]]; then
        compadd -- ${{=options}}
        return
    fi
    if [[ -n "$wants_name" ]]; then
        names=( ${{(f)"$(_jim_names)"}} )
        compadd -M 'm:{{[:lower:][:upper:]}}={{[:upper:][:lower:]}}' -a names && return
    fi
    _default
}}
_jim_python() {{
    if [[ "$words[2]" == *manage.py ]]; then
        _jim
    else
        _python "$@"
    fi
}}
compdef _jim manage.py {program}
compdef _jim_python python python3
"""
SHELLS = {"bash": BASH, "zsh": ZSH}


@dataclass(frozen=True)
class CommandWords:
    """The words that can follow a command or one of its verbs."""

    options: list[str]
    takes_schedule: bool
    verbs: dict[str, CommandWords]


def script(shell: str, *, program: str) -> str:
    known = commands()
    manage = shlex.join([sys.executable, str(settings.BASE_DIR / "manage.py")])
    return SHELLS[shell].format(
        manage=manage,
        commands=" ".join(known),
        cases="\n".join(_cases(known)),
        program=re.sub(r"[^\w.-]", "", program) or "jim",
    )


def commands() -> dict[str, CommandWords]:
    return {name: _known(parser_of(app, name)) for name, app in sorted((own_commands() | OF_DJANGO).items())}


def own_commands() -> dict[str, str]:
    """Return the commands of JIM by name, each with its app."""
    return {
        name: app.name
        for app in apps.get_app_configs()
        if Path(app.path).parent == settings.BASE_DIR
        for name in find_commands(f"{app.path}/management")
    }


def parser_of(app: str, name: str) -> ArgumentParser:
    return load_command_class(app, name).create_parser("manage.py", name)


def verbs_of(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """Return the parsers of a command's verbs by name; empty if it has no verbs."""
    chosen = [each for each in parser._actions if isinstance(each, _SubParsersAction)]
    return dict(chosen[0].choices) if chosen else {}


def options_of(parser: ArgumentParser) -> set[str]:
    """Return the long options of a command and of its verbs."""
    texts = {text for action in parser._actions for text in action.option_strings}
    own = {text for text in texts if text.startswith("--")} - COMMON
    return own.union(*(options_of(each) for each in verbs_of(parser).values()))


def _known(parser: ArgumentParser) -> CommandWords:
    positional = [action.metavar for action in parser._actions if not action.option_strings]
    return CommandWords(
        sorted(options_of(parser)),
        any(_is_schedule(each) for each in positional),
        {name: _known(each) for name, each in verbs_of(parser).items()},
    )


def _is_schedule(metavar: str | tuple[str, ...] | None) -> bool:
    return isinstance(metavar, str) and metavar.startswith(SCHEDULE)


def _cases(known: Mapping[str, CommandWords]) -> Iterator[str]:
    """Yield the branches of the scripts' `case` statement, whose patterns are a command and its verb.

    The verb is empty until it is typed.
    """
    for name, each in known.items():
        if each.verbs:
            yield f'        "{name} ") verbs="{" ".join(each.verbs)}" ;;'
            yield from (_case(f'"{name} {verb}"', of) for verb, of in each.verbs.items())
        else:
            yield _case(f'"{name} "*', each)


def _case(pattern: str, each: CommandWords) -> str:
    wants = " wants_name=1" if each.takes_schedule else ""
    return f'        {pattern}) options="{" ".join(each.options)}"{wants} ;;'
