"""Templates in files: exported with what uses them, imported before it, with the permissions of the admin."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import call_command

from schedules.models import Schedule, TaskTemplate
from schedules.reconcile import Outcome
from tests.base import NOW, SOMEBODY, make_schedule, step
from tests.schedules.test_as_code import clear, complaints, exported, file, imported, person, stored
from tests.schedules.test_templates import make_template, use

pytestmark = pytest.mark.django_db

WHOLE = """\
version: 1

templates:
  - name: Call
    description: Asks the shop.
    step_type: http
    config:
      url: https://shop.example/
    max_retries: 5
    pool: web

schedules:
  - name: Mine
    steps:
      - index: 0
        name: north
        template: Call
        config:
          url: https://shop.example/north
        max_retries: 3
      - index: 0
        name: south
        template: Call
"""


def test_what_is_written_is_what_is_exported() -> None:
    assert imported(WHOLE).problems == []
    assert exported() == WHOLE
    north, south = Schedule.objects.get().steps.all()
    assert (north.config["url"], north.max_retries) == ("https://shop.example/north", 3)
    assert (south.config["url"], south.max_retries, south.pool) == ("https://shop.example/", 5, "web")
    before = stored()
    assert imported(WHOLE) == Outcome([], 2, 0, [])
    assert stored() == before


def test_an_export_is_imported_elsewhere_as_it_was() -> None:
    make_template(description="d", retry_on=["503"])
    archived = make_template("Old")
    schedule = make_schedule(use("a"), use("b", 1, template="Old", run_if="always"), step("c", 2))
    archived.archive(initiator=SOMEBODY, now=NOW)
    text, before = exported(), schedule.definition()
    clear()
    TaskTemplate.objects.all().delete()
    assert imported(text).problems == []
    assert Schedule.objects.get().definition() == before
    assert exported() == text


def test_an_archived_one_is_exported_only_with_what_uses_it() -> None:
    make_template("Unused").archive(initiator=SOMEBODY, now=NOW)
    make_template("Active")
    make_template()
    assert imported(file("templates: []")).problems == []
    make_schedule(use(), name="Mine")
    assert "Unused" not in exported()
    assert "Active" in exported()
    assert "Active" not in exported("Mine")
    assert "- name: Export" in exported("Mine")


def test_what_has_changed_is_edited_with_all_that_uses_it_but_in_a_dry_run_only_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(WHOLE)
    call_command("importschedules", str(path))
    changed = WHOLE.replace("max_retries: 5", "max_retries: 6").replace("name: south", "name: west")
    path.write_text(changed)
    call_command("importschedules", str(path), "--dry-run")
    said = capsys.readouterr().out
    assert "+ create template “Call”: steps of the type http" in said
    assert "~ change template “Call”\n    max_retries:\n      - 5\n      + 6\n" in said
    assert TaskTemplate.objects.get().max_retries == 5
    outcome = imported(changed)
    changes = [(change.entry.kind, change.entry.name) for change in outcome.changes]
    assert (changes, outcome.problems) == ([("template", "Call"), ("schedule", "Mine")], [])
    assert [each.max_retries for each in Schedule.objects.get().steps.all()] == [3, 6]
    assert (Schedule.objects.get().token, TaskTemplate.objects.get().token) == (3, 2)


CALL = "{name: Call, step_type: http, config: {url: https://shop.example/}}"
STEP_OF = "schedules:\n- name: Mine\n  steps:\n  - name: a\n    template: "
# The file, and what is told of it: with its line.
REFUSED: list[tuple[str, str]] = [
    ("templates: {}", "2: templates: expected a list, found an object"),
    ("templates: [{step_type: http}]", "2: each template must be an object with a name: - name: …"),
    ("templates:\n- {name: A, step_type: http, index: 0}", "3: template “A”: unknown key “index”; "),
    ("templates:\n- {name: A}", "3: template “A”: step_type: "),
    (
        f"templates:\n- {CALL[:-1]}, max_retries: '3'}}",
        "3: template “Call”: max_retries: expected a whole number",
    ),
    (
        f"templates:\n- {CALL}\n- {CALL.replace('Call', 'CALL')}",
        "4: template “CALL”: name: the template at 1.yaml:3",
    ),
    (f"templates:\n- {CALL.replace('Call', 'EXPORT')}", "3: template “EXPORT”: name: the stored name is"),
    (f"{STEP_OF}Exprot", "6: schedule “Mine”: steps: Step 1 (a): template: unknown template “Exprot”"),
    (f"{STEP_OF}7", "6: schedule “Mine”: steps: Step 1: template: expected text in quotes, found 7"),
    (
        f"{STEP_OF}Export\n    step_type: python",
        "7: schedule “Mine”: steps: Step 1 (a): step_type: This field comes",
    ),
    (
        f"templates:\n- {CALL.replace('Call', 'Export')}",
        "3: template “Export”: “Uses it”, step “a”: config: kwargs:",
    ),
]


def test_what_is_wrong_is_told_with_its_line() -> None:
    make_template()
    make_schedule(use("a", config={"kwargs": {"value": 3}}), name="Uses it")
    before = stored()
    told = [([str(each) for each in imported(file(text)).problems], words) for text, words in REFUSED]
    assert [row for row in told if not any(each.startswith(f"1.yaml:{row[1]}") for each in row[0])] == []
    assert stored() == before


def test_what_uses_a_template_that_is_wrong_does_not_complain_as_well() -> None:
    told = complaints(WHOLE.replace("max_retries: 5", "max_retries: -5"))
    assert [words for words in told if "schedule" in words] == []
    assert len(told) == 1


CODE = "{name: T, step_type: python, config: {function: tests.work.noop}}"
ADD = ("schedules.add_schedule", "schedules.add_tasktemplate")
USES = "schedules: [{name: A, steps: [{name: a, template: "
# (the permissions, the file, which one is missing)
PERMISSIONS: list[tuple[tuple[str, ...], str, str]] = [
    (("schedules.change_tasktemplate",), f"templates: [{CALL}]", "schedules.add_tasktemplate"),
    (ADD[1:], f"templates: [{CALL}]", ""),
    (ADD[1:], f"templates: [{CALL.replace('Call', 'Export')}]", "schedules.change_tasktemplate"),
    (ADD[1:], f"templates: [{CODE}]", "schedules.define_code"),
    (ADD, f"templates: [{CALL}]\n{USES}Call}}]}}]", ""),
    (ADD, f"{USES}Export}}]}}]", "“a”. You need the permission schedules.define_code"),
    ((*ADD, "schedules.define_code"), f"templates: [{CODE}]\n{USES}T}}]}}]", ""),
]


@pytest.mark.parametrize(("permitted", "text", "missing"), PERMISSIONS)
def test_it_takes_the_permissions_of_the_admin(permitted: tuple[str, ...], text: str, missing: str) -> None:
    make_template()
    before = stored()
    told = [problem.words for problem in imported(file(text), author=person(*permitted)).problems]
    assert missing in " ".join(told)
    assert bool(told) == bool(missing)
    assert (stored() == before) == bool(missing)


def test_a_step_that_copies_what_it_had_is_no_new_code() -> None:
    make_template()
    make_schedule(use("a"), name="Mine", description="old")
    text = exported("Mine").replace("description: old", "description: new")
    assert imported(text, author=person("schedules.change_schedule")).problems == []
    assert Schedule.objects.get().description == "new"
