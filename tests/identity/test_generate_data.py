"""Example data, as identities and as the objects of a CSV file; and wrong settings of the step types."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from activities.models import Activity, ActivityItem
from execution.loops.scheduler import tick
from execution.models import Worker, WorkerTask
from execution.steps.step_type import get
from identity.documents import SYSTEM, checked
from identity.generating import Template
from identity.models import ConnectedSystem, Identity, IdentityLink, RunProfile
from identity.runs import generating
from schedules.registry import ConfigError
from tests.base import NOW, SOMEBODY, claim, enqueue, make_schedule, make_worker, run_until_idle, work_on
from tests.killing import kept_state, kill_at

from .world import FULL_IMPORT, FULL_SYNC, System, counts, identities, identity_type, items, perform, rule

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
PEOPLE: dict[str, Any] = {
    "seed": 7,
    "count": 12,
    "attributes": {
        "id": {"sequence": "E001"},
        "first": {"choose": "first_names"},
        "department": {"choose": {"Sales": 5, "IT": 2}},
        "manager": {"manager": "id", "span": 3},
    },
}


def template(**fields: Any) -> dict[str, Any]:
    """Return the template of people with some fields or attributes changed."""
    attributes = fields.pop("attributes", {})
    return {**PEOPLE, **fields, "attributes": {**PEOPLE["attributes"], **attributes}}


def generate(*, now: datetime = NOW, **config: Any) -> Activity:
    return perform("generate_data", now=now, **{"template": PEOPLE} | config)


def rows() -> dict[UUID, Any]:
    return {each.uuid: (each.attrs, each.origin, each.version) for each in Identity.objects.all()}


# Identities


def test_identities_are_made_by_the_template() -> None:
    identity_type()

    run = generate(identity_type="Person")

    assert (run.status, run.items_total, counts(run)) == ("complete", 12, {"generated": 12})
    found = list(Identity.objects.order_by("pk"))
    expected = list(Template.parse(PEOPLE).objects())
    for each, attrs in zip(found, expected, strict=True):
        assert (each.origin, each.display, each.is_dirty) == ("generated", attrs["id"], True)
        assert {**each.attrs, "manager": None} == {**attrs, "manager": None}
        assert each.lineage == {name: {"run": run.pk} for name in each.attrs}


def test_references_mean_other_identities() -> None:
    identity_type()
    generate(identity_type="person")
    ids = {str(each.uuid): each.attrs["id"] for each in Identity.objects.all()}
    managers = {each.attrs["id"]: ids.get(each.attrs.get("manager", "")) for each in Identity.objects.all()}
    expected = {each["id"]: each.get("manager") for each in Template.parse(PEOPLE).objects()}
    assert managers == expected
    links = IdentityLink.objects.values_list("owner__display", "target__display")
    assert dict(links) == {owner: target for owner, target in expected.items() if target}


def test_each_identity_tells_where_it_comes_from() -> None:
    identity_type()
    run = generate(identity_type="person")
    first = identities()["E001"]
    [item] = ActivityItem.objects.of_object(f"identity:{first.pk}")
    assert (item.activity_id, item.name, item.change) == (run.pk, "E001", "generated")
    assert item.data == {name: [None, value] for name, value in first.attrs.items()}


def test_a_repeated_run_creates_nothing_new() -> None:
    identity_type()
    generate(identity_type="person")
    before = rows()
    run = generate(identity_type="person")
    assert (run.status, counts(run), items(run)) == ("complete", {"unchanged": 12}, [])
    assert rows() == before


def test_more_of_the_same_are_added_and_another_seed_makes_others() -> None:
    identity_type()
    generate(identity_type="person")
    before = rows()
    assert counts(generate(identity_type="person", template=template(count=15))) == {
        "generated": 3,
        "unchanged": 12,
    }
    assert before.items() <= rows().items()
    assert counts(generate(identity_type="person", template=template(seed=8))) == {"generated": 12}


def test_values_are_stored_as_the_attributes_want_them() -> None:
    identity_type(("id", "level", "tags*", "since@"))
    made = {"level": {"range": [3, 3]}, "tags": "new", "since": {"date": ["2026-01-05", "2026-01-05"]}}
    generate(identity_type="person", template=template(count=1, attributes=made))
    assert Identity.objects.get().attrs == {
        "id": "E001",
        "level": "3",
        "tags": ["new"],
        "since": "2026-01-05",
    }


def test_values_that_do_not_fit_are_refused_object_by_object() -> None:
    identity_type(("id", "level#"))
    made = {"level": {"choose": {"1": 1, "high": 1}}}
    levels = [each["level"] for each in Template.parse(template(attributes=made)).objects()]

    run = generate(identity_type="person", template=template(attributes=made))

    assert run.status == "complete_with_warning"
    assert counts(run) == {"generated": levels.count("1"), "failed": levels.count("high")}
    failed = run.items.filter(outcome="failed")
    assert {each.error_type for each in failed} == {"bad_value"}
    assert [each.name for each in failed] == [
        f"object {place}" for place, level in enumerate(levels, start=1) if level == "high"
    ]
    assert [each.attrs["level"] for each in Identity.objects.all()] == [1] * levels.count("1")


def test_the_next_synchronisation_gives_them_accounts_and_joins_those_that_they_have() -> None:
    hr, ad = System("HR"), System("AD")
    people = identity_type()
    rule("in", hr, people, {"id": "id", "first": "first"}, join="id")
    rule("out", ad, people, {"id": "id", "first": "first"})
    generate(identity_type="person")
    hr.put("E001", first="Ada")
    hr.run(FULL_IMPORT)

    run = hr.run(FULL_SYNC)

    assert counts(run) == {"joined": 1, "flowed": 1, "provisioned": 12, "staged": 12}
    assert Identity.objects.count() == 12
    assert identities()["E001"].attrs["first"] == "Ada"
    assert ad.pending()["E001"] == ("create", {"id": "E001", "first": "Ada"})


@pytest.mark.parametrize("deletion", ["authoritative", "last_connector"])
def test_they_are_never_deleted_by_a_rule(deletion: str) -> None:
    hr = System("HR")
    people = identity_type(sources=[hr], deletion=deletion)
    rule("in", hr, people, {"first": "first"}, join="id")
    generate(identity_type="person")
    for external_id in ("E001", "E002"):
        hr.put(external_id, first="Ada")
    hr.run(FULL_IMPORT)
    hr.run(FULL_SYNC)
    hr.drop("E001")
    hr.run(FULL_IMPORT)

    run = hr.run(FULL_SYNC)

    assert counts(run)["disconnected"] == 1
    assert Identity.objects.filter(delete_after=None).count() == 12


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_run_that_is_killed_between_slices_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "AT_ONCE", 5)
    identity_type()
    enqueue(generation(identity_type="person"))
    worker = make_worker()
    with kept_state("identity") as restore:
        work(worker)
        expected, links, seen = rows(), IdentityLink.objects.count(), set()
        for place in count(1):
            restore()
            if not kill_at(place, partial(work, worker)).was_killed:
                break
            seen.add(Identity.objects.count())
            Worker.objects.filter(pk=worker.pk).bury(now=NOW)
            WorkerTask.objects.recover(now=NOW)
            work(make_worker())
            assert (rows(), IdentityLink.objects.count()) == (expected, links)
    assert seen == {0, 5, 10, 12}


def work(worker: Worker) -> None:
    work_on(worker, claim(worker))


def generation(**config: Any) -> dict[str, Any]:
    config = {"template": PEOPLE} | config
    return {"name": "generate", "step_type": "generate_data", "config": config, "max_retries": 0}


# A CSV file


class CsvSystem:
    """HR as a file, which a generation replaces and an import reads."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.path = folder / "hr.csv"
        names = ("id", "first", "department", "manager")
        person = {"name": "person", "external_id": "id", "attributes": [{"name": name} for name in names]}
        document = {
            "name": "HR",
            "connector": "csv",
            "config": {"path": "hr.csv", "export": "whole"} | config,
            "types": [person],
        }
        self.row = ConnectedSystem.objects.define(checked(document, SYSTEM), initiator=SOMEBODY, now=NOW)

    def objects(self) -> dict[str, dict[str, str]]:
        with self.path.open(newline="") as file:
            return {row["id"]: row for row in csv.DictReader(file)}

    def state(self) -> tuple[bytes, int, int]:
        found = self.path.stat()
        return self.path.read_bytes(), found.st_ino, found.st_mtime_ns

    def grow_old(self) -> None:
        os.utime(self.path, (0, 0))

    def read(self) -> Activity:
        RunProfile.objects.get_or_create(system=self.row, name="Full import", run_type=FULL_IMPORT)
        return perform("run_profile", system="HR", profile="Full import")


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.JIM_IDENTITY_FOLDERS = [tmp_path]
    return tmp_path


@pytest.fixture
def hr(folder: Path) -> CsvSystem:
    return CsvSystem(folder)


TURNOVER: dict[str, Any] = {"start": NOW.isoformat(), "hires": 3, "leavers": 2, "movers": 1}


def test_a_file_gets_all_objects_and_an_import_reads_them(hr: CsvSystem) -> None:
    run = generate(system="hr")

    assert (run.status, run.items_total, counts(run)) == ("complete", 12, {"generated": 12})
    expected = {each["id"]: {"manager": "", **each} for each in Template.parse(PEOPLE).objects()}
    assert hr.objects() == expected
    assert counts(hr.read()) == {"added": 12}


def test_attributes_that_the_system_does_not_have_only_help_to_make_others(hr: CsvSystem) -> None:
    made = {"last": "Bell", "first": {"pattern": "{last}!"}}
    generate(system="HR", template=template(attributes=made))
    assert {each["first"] for each in hr.objects().values()} == {"Bell!"}


@pytest.mark.parametrize("turnover", [{}, TURNOVER])
def test_a_second_run_at_the_same_time_does_not_replace_the_file(
    turnover: dict[str, Any], hr: CsvSystem
) -> None:
    generate(system="HR", turnover=turnover, now=NOW + 9 * DAY)
    before = hr.state()
    run = generate(system="HR", turnover=turnover, now=NOW + 9 * DAY + timedelta(hours=3))
    assert (run.status, hr.state()) == ("complete", before)


def test_people_are_hired_leave_and_move_from_day_to_day(hr: CsvSystem) -> None:
    generate(system="HR", turnover=TURNOVER, now=NOW - DAY)
    first = hr.objects()
    assert len(first) == 12

    run = generate(system="HR", turnover=TURNOVER, now=NOW + DAY)

    assert (run.status, counts(run)) == ("complete", {"generated": 13})
    second = hr.objects()
    assert (len(first.keys() - second.keys()), len(second.keys() - first.keys())) == (2, 3)
    moved = [key for key in first.keys() & second if first[key]["department"] != second[key]["department"]]
    assert len(moved) == 1


def test_the_imports_after_two_nights_tell_the_difference(hr: CsvSystem) -> None:
    generate(system="HR", turnover=TURNOVER, now=NOW)
    hr.read()
    generate(system="HR", turnover=TURNOVER, now=NOW + DAY)
    found = counts(hr.read())
    assert (found["added"], found["absent"]) == (3, 2)


def test_a_run_that_is_late_makes_what_its_time_asks_for(hr: CsvSystem) -> None:
    config = {"template": PEOPLE, "system": "HR", "turnover": TURNOVER}
    made = {"name": "generate", "index": 0, "step_type": "generate_data", "config": config}
    make_schedule(made, spec={"cron": ["0 3 * * *"]}, now=NOW - timedelta(hours=1))
    tick(NOW)
    run_until_idle(now=NOW + 5 * DAY)
    late = hr.state()

    run = generate(system="HR", turnover=TURNOVER, now=NOW)

    assert (run.status, hr.state()) == ("complete", late)
    assert len(hr.objects()) == 12


def test_a_file_that_somebody_else_has_changed_is_not_replaced(hr: CsvSystem) -> None:
    generate(system="HR", turnover=TURNOVER, now=NOW)
    hr.path.write_text("id,first,department,manager\nX,Xenia,,\n")

    run = generate(system="HR", turnover=TURNOVER, now=NOW + DAY)

    assert (run.status, list(hr.objects())) == ("failed_with_error", ["X"])
    assert "was changed since JIM last read it" in run.error
    hr.grow_old()
    hr.read()
    assert generate(system="HR", turnover=TURNOVER, now=NOW + DAY).status == "complete"


def test_what_was_generated_is_not_taken_for_what_jim_has_imported(hr: CsvSystem) -> None:
    """Otherwise, an export would write the old accounts over the new objects."""
    generate(system="HR", turnover=TURNOVER, now=NOW)
    hr.read()
    imported = ConnectedSystem.objects.get().watermark
    generate(system="HR", turnover=TURNOVER, now=NOW + DAY)
    stored = ConnectedSystem.objects.get().watermark
    assert imported is not None
    assert stored is not None
    assert {**stored, "generated": None} == {**imported, "generated": None}
    assert stored["generated"]["digest"] != imported["digest"]


@pytest.mark.parametrize(
    ("export", "message"),
    [
        ("none", "exports to hr.csv are off; set export to whole or log"),
        (
            "log",
            "“HR” takes changes only, so it cannot be filled with objects. Name a system whose objects are "
            "written as a whole, such as a CSV file.",
        ),
    ],
)
def test_a_system_that_cannot_be_replaced_is_refused(export: str, message: str, folder: Path) -> None:
    hr = CsvSystem(folder, export=export)
    run = generate(system="HR")
    assert (run.status, run.error, hr.path.exists()) == ("failed_with_error", message, False)


# Wrong settings of the four step types

ONLY_HELP = {"count": 1, "attributes": {"nick": "x"}}
SYSTEM_UNKNOWN = {"system": "unknown connected system “Nowhere”"}


def generating_into(where: Mapping[str, str], **config: Any) -> dict[str, Any]:
    return {"template": PEOPLE, **where, **config}


INTO_HR, INTO_PERSON = {"system": "HR"}, {"identity_type": "person"}
WRONG: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("run_profile", {}, {"system": "is required: name of the", "profile": "is required: name of the"}),
    ("run_profile", {"system": "Nowhere", "profile": "Full import"}, SYSTEM_UNKNOWN),
    (
        "run_profile",
        {"system": "HR", "profile": "Import"},
        {"profile": "unknown run profile “Import”; the run profiles of “HR”: Full import"},
    ),
    (
        "run_profile",
        {"system": "AD", "profile": "Import"},
        {"profile": "unknown run profile “Import”; the run profiles of “AD”: none yet"},
    ),
    (
        "run_profile",
        {"system": "HR", "profile": "{{ last_result.x }}"},
        {"profile": "cannot contain placeholders"},
    ),
    (
        "run_profile",
        {"system": "HR", "profile": "Full import", "limit": 3},
        {"limit": "is not a setting of run_profile steps"},
    ),
    ("generate_data", {"identity_type": "person"}, {"template": "is required"}),
    ("generate_data", generating_into({}), {"identity_type": "name either an identity type or a connected"}),
    ("generate_data", generating_into(INTO_HR | INTO_PERSON), {"identity_type": "name either"}),
    ("generate_data", generating_into({"system": "Nowhere"}), SYSTEM_UNKNOWN),
    (
        "generate_data",
        generating_into({"identity_type": "robot"}),
        {"identity_type": "unknown identity type “robot”"},
    ),
    (
        "generate_data",
        generating_into({"system": "Mixed"}),
        {"system": "must have one selected type of objects, but has 2"},
    ),
    (
        "generate_data",
        generating_into(INTO_PERSON, template={"count": 0, "attributes": {"id": {"sequence": 1}}}),
        {"template": "count: must be a whole number from 1 to"},
    ),
    (
        "generate_data",
        generating_into(INTO_PERSON, template=ONLY_HELP),
        {"template": "attributes: none of them belongs to “person”, which has: id, first"},
    ),
    (
        "generate_data",
        generating_into(INTO_PERSON, template=template(attributes={"manager": "Ada"})),
        {"template": "attributes.manager: refers to other identities, so it needs “manager” or “references”"},
    ),
    (
        "generate_data",
        generating_into(INTO_HR, template=ONLY_HELP),
        {"template": "attributes: “id” identifies the objects of “HR”, so it needs a sequence"},
    ),
    (
        "generate_data",
        generating_into(INTO_HR, template=template(attributes={"id": "1", "manager": "Ada"})),
        {"template": "attributes: “id” identifies the objects of “HR”, so it needs a sequence"},
    ),
    (
        "generate_data",
        generating_into({"system": "Nowhere"}, template=7, turnover=8),
        {"template": "must be an object", "turnover": "must be an object"},
    ),
    (
        "generate_data",
        generating_into({"system": "Nowhere"}, template={"attributes": {}}, turnover={"end": "now"}),
        {
            "template": "count: is missing",
            "turnover": "unknown: end; known: start, seconds",
            **SYSTEM_UNKNOWN,
        },
    ),
    ("clear_system", {}, {"system": "is required: name of the"}),
    ("clear_system", {"system": "Nowhere"}, SYSTEM_UNKNOWN),
    ("delete_system", {}, {"system": "is required: name of the"}),
    ("delete_system", {"system": "Nowhere"}, SYSTEM_UNKNOWN),
]


@pytest.fixture
def world() -> None:
    hr = System("HR").row
    System("AD")
    mixed = System("Mixed").row
    mixed.types.create(name="group", external_id="id")
    RunProfile.objects.create(system=hr, name="Full import", run_type=FULL_IMPORT)
    identity_type()


def errors_of(step_type: str, config: dict[str, Any]) -> Mapping[str, str]:
    with pytest.raises(ConfigError) as raised:
        get(step_type).clean(config)
    return raised.value.errors


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(("step_type", "config", "expected"), WRONG)
def test_wrong_settings_are_told_by_field(
    step_type: str, config: dict[str, Any], expected: dict[str, str]
) -> None:
    found = errors_of(step_type, config)
    assert found.keys() == expected.keys()
    for name, message in expected.items():
        assert message in found[name]


WHOLE = "must be a whole number from 0 to 10,000, not"


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("turnover", "message"),
    [
        ({"hires": 1}, "“start” must be a time, such as 2026-01-01T00:00:00Z, not None"),
        ({"start": "today"}, "“start” must be a time, such as 2026-01-01T00:00:00Z, not 'today'"),
        ({"start": "2026-01-01", "seconds": 0}, "“seconds” must be a number, at least 1, not 0"),
        ({"start": "2026-01-01", "seconds": True}, "“seconds” must be a number, at least 1, not True"),
        ({"start": "2026-01-01", "seconds": "1 d"}, "“seconds” must be a number, at least 1, not '1 d'"),
        ({"start": "2026-01-01", "hires": -1}, f"“hires” {WHOLE} -1"),
        ({"start": "2026-01-01", "leavers": 1.5}, f"“leavers” {WHOLE} 1.5"),
        ({"start": "2026-01-01", "movers": 10_001}, f"“movers” {WHOLE} 10001"),
        ({"start": "2026-01-01", "movers": False}, f"“movers” {WHOLE} False"),
        ({"start": "2026-01-01", "moving": 3}, "“moving” must be the name of an attribute, not 3"),
        (
            {"start": "2026-01-01", "moving": "place"},
            "people cannot move, because “place” is not an attribute with a choice of several values",
        ),
    ],
)
def test_a_wrong_turnover_is_told(turnover: dict[str, Any], message: str) -> None:
    [(name, found)] = errors_of("generate_data", generating_into(INTO_HR, turnover=turnover)).items()
    assert (name, found.startswith(message)) == ("turnover", True), found


@pytest.mark.usefixtures("world")
def test_identities_have_no_turnover() -> None:
    config = generating_into(INTO_PERSON, turnover={"start": "2026-01-01"})
    assert errors_of("generate_data", config) == {
        "turnover": "needs a connected system: generated identities neither leave nor move"
    }


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "turnover",
    [
        {"start": "2026-01-01", "movers": 0, "moving": "place"},
        {"start": "2026-01-01", "seconds": 0.5 + 0.5, "moving": "first"},
    ],
)
def test_a_good_turnover_is_accepted(turnover: dict[str, Any]) -> None:
    assert get("generate_data").clean(generating_into(INTO_HR, turnover=turnover))["turnover"] == turnover


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", ["template", "turnover"])
def test_placeholders_are_checked_only_when_they_are_filled_in(name: str) -> None:
    kind = get("generate_data")
    config = generating_into(INTO_HR, **{name: "{{ last_result.x }}"})
    assert kind.clean(config)[name] == "{{ last_result.x }}"


RESOURCES: list[tuple[dict[str, Any], Callable[[ConnectedSystem], set[str]]]] = [
    (generation(system="HR"), lambda hr: {f"resource:{hr.resource}"}),
    (generation(identity_type="person"), lambda hr: {"resource:metaverse"}),
    (
        {"name": "clear", "step_type": "clear_system", "config": {"system": "HR"}},
        lambda hr: {f"resource:{hr.resource}", "resource:metaverse"},
    ),
    (
        {"name": "delete", "step_type": "delete_system", "config": {"system": "HR"}},
        lambda hr: {f"resource:{hr.resource}", "resource:metaverse"},
    ),
    (
        {
            "name": "import",
            "step_type": "run_profile",
            "config": {"system": "HR", "profile": "Full import"},
        },
        lambda hr: {f"resource:{hr.resource}"},
    ),
]


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(("step", "expected"), RESOURCES, ids=[str(step["name"]) for step, _ in RESOURCES])
def test_steps_hold_what_they_work_on(
    step: dict[str, Any], expected: Callable[[ConnectedSystem], set[str]]
) -> None:
    [task] = enqueue(step)
    held = {key for key in task.step["limit_keys"].split("\n") if key.startswith("resource:")}
    assert held == expected(ConnectedSystem.objects.get(name="HR"))
