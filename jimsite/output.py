"""Follow the output of steps line by line."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.text import Text

from activities.models import Activity, OutputLine
from text.clean import REPLACEMENT

LOOK_SECONDS = 0.3
LINES_AT_ONCE = 1_000
# Control sequences such as those that set the title of a window.
TITLES = re.compile(r"\x1b[\]P^_X][^\x07\x1b]*(\x07|\x1b\\)?")


class Tail:
    """The output of an attempt and of its retries, or of all steps of an execution."""

    def __init__(self, activity: Activity) -> None:
        self.last = activity
        self._is_root = activity.parent_id is None and activity.task_key is None
        self._names: dict[int, str] = {}
        self._told: dict[int, int] = defaultdict(int)
        self._done: set[int] = set()

    def lines(self) -> Iterator[OutputLine]:
        """Yield the lines of output as they are written, until the last attempt has ended."""
        while True:
            sources = self._sources()
            for activity in sources:
                yield from self._new_lines(activity)
                if activity.is_final:
                    self._done.add(activity.pk)
            if self.last.is_final and not self._has_next_attempt():
                return
            time.sleep(LOOK_SECONDS)

    def prefix(self, line: OutputLine) -> str:
        return f"{self._names[line.activity_id]} │ " if self._is_root else ""

    def _sources(self) -> Sequence[Activity]:
        """Return the attempts whose output has not been read to the end.

        The attempts are loaded before their lines: an attempt that has ended by then writes no more lines.
        """
        self.last = Activity.objects.get(pk=self.last.pk)
        if not self._is_root:
            return [self.last]
        steps = self.last.children.exclude(pk__in=self._done).filter(executed_at__isnull=False)
        found = list(steps.order_by("pk"))
        self._names |= {step.pk: step.target_name for step in found}
        return found

    def _new_lines(self, activity: Activity) -> Iterator[OutputLine]:
        while True:
            newer = activity.output.filter(number__gt=self._told[activity.pk]).order_by("number")
            lines = list(newer[:LINES_AT_ONCE])
            for line in lines:
                self._told[activity.pk] = line.number
                yield line
            if len(lines) < LINES_AT_ONCE:
                return

    def _has_next_attempt(self) -> bool:
        """Move on to the next attempt; return False if there is none."""
        following = self.last.retries.first()
        if following is None:
            return False
        self.last = following
        return True


def shown(line: OutputLine | str, *, prefix: str = "") -> Text:
    """Format a line of output: keep its colours, and replace other control characters."""
    said = line if isinstance(line, str) else line.text
    text = Text.from_ansi(TITLES.sub("", said)) if "\x1b" in said else Text(said)
    if not text.plain.isprintable():
        # Replace each character by a single one, so that colours keep their place.
        text.plain = "".join(each if each.isprintable() else _harmless(each) for each in text.plain)
    if isinstance(line, OutputLine) and line.stream == "stderr":
        text.stylize("yellow")
    return Text(prefix, style="bright_black").append_text(text) if prefix else text


def _harmless(character: str) -> str:
    return character if character == "\t" else REPLACEMENT
