from __future__ import annotations

import json
import random
import sys
from html import unescape
from typing import Any

import pytest

from activities.models import Activity
from schedules.models import Occurrence, Schedule, SharedCalendar
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule, make_template, step
from tests.web.editor_form import Form, opened, pressed
from tests.web.pages import toasts

pytestmark = pytest.mark.django_db
NEW = "/schedules/new"
CONFIG = {"url": "https://shop.example/orders", "headers": {"Accept": "text/plain"}}
HTTP = {"name": "fetch", "index": 0, "step_type": "http", "config": CONFIG}
ALL_SORTS: dict[str, Any] = {
    "patterns": [
        {"times": ["09:00"], "weekdays": "1-5"},
        {"every": "25m", "from": "09:00", "until": "17:00"},
    ],
    "cron": ["0 3 * * mon-fri"],
    "every": ["90m", {"every": "1h", "offset": "5m"}],
    "calendars": [{"hour": "9", "day_of_month": "1-7", "day_of_week": "mon", "comment": "first Monday"}],
    "at": ["2999-01-01T09:00:00Z"],
    "exclude": [
        *({"calendar": "Days off"}, {"dates": "2998-12-24/2998-12-26"}, {"holidays": "GB"}),
        {"from": "2998-01-01T22:00:00", "until": "2998-01-02T04:00:00", "comment": "works"},
        {"day_of_week": "sun"},
    ],
    "start_at": "2026-01-01T00:00:00Z",
    "end_at": "2999-12-01T23:59:59Z",
} | {"jitter": "5m", "time_zone": "Europe/London", "dst": "literal"}


def test_a_schedule_is_made_with_the_buttons_of_the_form_alone() -> None:
    client = sign_in()
    form = opened(client, NEW)
    form = pressed(client, form, "add-rule.week", NEW, name="Nightly")
    form = pressed(client, form, "add-step", NEW)
    form = pressed(client, form, "show", NEW, steps__0__name="fetch", steps__0__runs="type:http")
    form = pressed(client, form, "add-step", NEW, steps__0__config__url="https://shop.example/orders")
    form = pressed(client, form, "show", NEW, steps__1__name="load", steps__1__runs="type:wait")
    form = pressed(client, form, "join.1", NEW, steps__1__config__duration="5m")
    saved(client.post(NEW, form.sent("save")))
    schedule = Schedule.objects.get()
    assert schedule.spec == {"patterns": [{"times": ["09:00"], "weekdays": "mon-fri"}]}
    found = [(each.index, each.name, each.step_type) for each in schedule.steps.all()]
    assert found == [(0, "fetch", "http"), (0, "load", "wait")]
    assert schedule.steps.all()[0].config["url"] == "https://shop.example/orders"


@pytest.mark.parametrize(("cookie", "zone"), [("", "UTC"), ("Asia/Kolkata", "Asia/Kolkata"), ("EST", "UTC")])
def test_a_new_schedule_starts_in_the_zone_of_who_makes_it(cookie: str, zone: str) -> None:
    client = sign_in()
    schedule = make_schedule(spec={"every": ["1h"], "time_zone": "Europe/London"})
    client.cookies["jim_time_zone"] = cookie
    assert dict(opened(client, NEW).pairs)["time_zone"] == zone
    copy = opened(client, f"/schedules/{schedule.pk}/duplicate")
    assert dict(copy.pairs)["time_zone"] == "Europe/London"


def test_no_button_but_save_stores_anything() -> None:
    client, schedule = sign_in(), make_schedule(step("a"), step("b", 1))
    form, before = opened(client, edit(schedule)), everything()
    one_of_each = {button.partition(".")[0]: button for button in form.buttons}
    others = ("preview", "chip.0.0 1 * * *", "put.1.before.0", "take.steps", "nonsense", "")
    for do in {*one_of_each.values(), *others} - {"save"}:
        assert client.post(edit(schedule), form.sent(do, name="Other")).status_code == 200
    assert client.post(edit(schedule), {"do": "save"}).status_code == 200
    assert everything() == before


def test_whoever_saves_what_is_there_has_not_edited_it() -> None:
    client = sign_in()
    SharedCalendar.objects.define("Days off", [{"dates": "2998-01-01"}], initiator=SOMEBODY, now=NOW)
    make_template("Export")
    fields: dict[str, Any] = {"memo": {"owner": "Ada"}, "tags": ["x", "y"], "description": " two\nlines\n"}
    fields |= {"remaining": 5, "catch_up_seconds": None, "overlap": "buffer_all", "on_failure": "skip"}
    fields |= {"pause_on_failure": True, "failures_to_pause": 2, "failures_among": 3}
    schedule = make_schedule(
        step("a", 5, retry_on=["Timeout"], resources=["db"], timeout_seconds=90, continue_on_failure=True),
        {"name": "b", "index": 7, "template": "Export", "config": {"kwargs": {"value": 2}}, "max_retries": 3},
        HTTP | {"index": 7},
        spec=ALL_SORTS,
        **fields,
    )
    saved(client.post(edit(schedule), opened(client, edit(schedule)).sent("save")))
    assert fresh(schedule).token == schedule.token
    assert not Activity.objects.filter(operation="edit").exists()


def test_only_what_was_changed_is_changed() -> None:
    client, schedule = sign_in(), make_schedule(step("a"), step("b", 1), spec={"cron": ["0 3 * * *"]})
    form = opened(client, edit(schedule))
    # The preview says which runs that changes.
    for expression, words in (
        ("0 3,15 * * *", ["15:00</span>"]),
        ("0 3 * * sun", ['aria-label="removed"']),
        ("0 3 * * *", []),
    ):
        text = client.post(edit(schedule), form.sent("preview", rules__0__expression=expression)).text
        assert [each for each in ("15:00</span>", 'aria-label="removed"') if each in text] == words
        assert ("Runs that your changes remove or add" in text) == bool(words)
    changes = {"rules__0__expression": "0 4 * * *", "overlap": "allow_all"}
    saved(client.post(edit(schedule), form.sent("save", **changes)))
    after = fresh(schedule)
    assert (after.spec, after.overlap) == ({"cron": ["0 4 * * *"]}, "allow_all")
    [activity] = Activity.objects.filter(operation="edit")
    assert activity.initiator_name == "superuser"
    assert activity.details
    before, now = activity.details["before"], activity.details["after"]
    assert {name for name in now if now[name] != before[name]} == {"spec", "overlap"}


# Each round is sent at once: by field, what is typed and what is said about it.
MISTAKES: list[dict[str, tuple[str, str]]] = [
    {
        "name": ("", "This field is required."),
        "time_zone": ("London", "did you mean Europe/London?"),
        "start_at": ("soon", "'soon' is not a time"),
        "catch_up_seconds": ("x", "Enter a duration"),
        "memo": ("no colon", "has no colon"),
        "steps-0-name": ("", "This field is required."),
        "steps-0-max_retries": ("many", "Enter a whole number."),
    },
    {
        "rules-0-expression": ("61 * * * *", "Minute 61 is outside the range"),
        "failures_to_pause": ("5", "is too high: enter at most 1"),
        "steps-0-timeout_seconds": ("0", "greater than or equal to 1"),
        "steps-0-run_if": ("failure", "No step runs before this one"),
    },
    {
        "end_at": ("2020-01-01", "No scheduled times are left"),
        "steps-0-config-url": ("{{ secrets.no }}", "unknown secret “no”"),
        "steps-0-config-headers": ("no colon", "Must be an object"),
    },
    {"steps-0-runs": ("", "Choose a step type or a task template.")},
    {"name": ("Taken", "A schedule with this name already exists")},
]


def test_mistakes_are_told_at_their_fields_and_nothing_is_saved() -> None:
    client = sign_in()
    make_schedule(name="Taken")
    schedule = make_schedule(HTTP, spec={"cron": ["0 3 * * *"]})
    form, wrong = opened(client, edit(schedule)), []
    for mistakes in MISTAKES:
        typed = {name.replace("-", "__"): value for name, (value, _) in mistakes.items()}
        answer = client.post(edit(schedule), form.sent("save", **typed))
        assert answer.status_code == 200
        text, again = unescape(answer.text), Form(answer.text)
        for name, (value, words) in mistakes.items():
            is_told = words in " ".join(answer.context["reading"].errors.get(name, ()))
            is_shown = f'id="error-{name}"' in text and words in text
            if not (is_told and is_shown and again.value(name) == value):
                wrong.append(f"{name}={value}")
    assert wrong == []
    assert fresh(schedule).token == schedule.token


def test_the_preview_says_it_in_words_with_the_next_times_and_changes_of_the_clocks() -> None:
    client, missing = sign_in(), "This field is required."
    form = opened(client, NEW)
    # Nothing is complained about before somebody has typed it.
    for sent, is_told in (({"touched": "tags"}, False), ({"touched": "name"}, True)):
        assert (missing in client.post(NEW, form.sent("preview", **sent)).text) == is_told
    assert missing in client.post(NEW, form.sent("check")).text
    form = pressed(client, form, "add-rule.cron", NEW)
    text = unescape(client.post(NEW, form.sent("preview", time_zone="Europe/London")).text)
    assert "At 02:00 every day, Europe/London" in text
    assert text.count("02:00</span>") == 10
    typed = {"rules__0__expression": "30 1 * 3,10 sun", "time_zone": "Europe/London"}
    assert "does not exist on" in client.post(NEW, form.sent("preview", **typed)).text
    # What cannot be read yet does not hide the rest.
    form = pressed(client, form, "add-rule.once", NEW)
    text = client.post(NEW, form.sent("preview")).text
    assert "At 02:00 every day" in text
    assert "Rules that are incomplete or have errors are left out of this preview." in text


def test_steps_that_run_code_need_a_permission_and_are_named() -> None:
    client, schedule = sign_in("author"), make_schedule(step("old"), name="Coded")
    form = opened(client, edit(schedule))
    saved(client.post(edit(schedule), form.sent("save", description="Other words")))
    form = pressed(client, opened(client, edit(schedule)), "add-step", edit(schedule))
    form = pressed(client, form, "show", edit(schedule), steps__1__name="new", steps__1__runs="type:python")
    answer = client.post(edit(schedule), form.sent("save", steps__1__config__function="os.getcwd"))
    assert "You may not create or change steps that run code or use a secret: “new”." in answer.text
    assert [each.name for each in schedule.steps.all()] == ["old"]


CHECKED: list[tuple[str, str]] = [
    ("tests.work.noop", "No problems found in the name, times, 1 step and policies."),
    ("tests.work.nop", "“tests.work” has no “nop”"),
    ("tests.wrok.noop", "the module “tests.wrok” was not found"),
    ("tests.flows.never_imported.noop", "the module “tests.flows.never_imported” was not found"),
    ("json.tool.main", "No problems found"),
    ("json.tool.mian", "“json.tool” has no “mian”"),
]


@pytest.mark.parametrize(("function", "words"), CHECKED)
def test_a_check_says_that_all_is_well_or_what_is_not_found_here(function: str, words: str) -> None:
    """Workers may have other code: it is saved all the same, with the same warning."""
    client, schedule = sign_in(), make_schedule(step("a"))
    form = opened(client, edit(schedule))
    loaded = set(sys.modules)
    answer = client.post(edit(schedule), form.sent("check", steps__0__config__function=function))
    assert words in unescape(answer.text)
    assert "json.tool" in loaded or "json.tool" not in sys.modules  # nothing is imported by looking
    answer = client.post(edit(schedule), form.sent("save", steps__0__config__function=function))
    told = toasts(client, answer)
    assert any(words in text for text in told) == (len(told) > 1) == ("No problems" not in words)
    # Who may not write code is not told what is installed here.
    author = sign_in("author")
    assert "was not found here" not in author.post(edit(schedule), form.sent("check")).text


def test_who_may_define_a_missing_secret_is_led_there() -> None:
    schedule = make_schedule(HTTP)
    definer, author = sign_in(), sign_in("author")
    for client, is_led in ((definer, True), (author, False)):
        form = opened(client, edit(schedule))
        sent = form.sent("check", steps__0__config__url="https://shop.example/{{ secrets.till }}")
        text = unescape(client.post(edit(schedule), sent).text)
        assert "The secret <code>till</code> is not defined." in text
        assert ("/admin/schedules/secret/add/?name=till" in text) == is_led
    assert 'value="till"' in definer.get("/admin/schedules/secret/add/?name=till").text


def test_a_step_of_a_template_says_only_what_differs() -> None:
    client = sign_in()
    make_template("Export", max_retries=7)
    schedule = make_schedule({"name": "a", "template": "Export"})
    own = {"index": 0, "name": "a", "template": "Export"}
    form = opened(client, edit(schedule))
    assert (form.value("steps-0-runs"), form.value("steps-0-max_retries")) == ("template:Export", "7")
    changes = {"steps__0__config__kwargs": "value: 2", "steps__0__priority": "5"}
    saved(client.post(edit(schedule), form.sent("save", **changes)))
    written = own | {"config": {"kwargs": {"value": 2}}, "priority": 5}
    assert fresh(schedule).steps.get().written() == written
    form = pressed(client, opened(client, edit(schedule)), "follow.0", edit(schedule))
    saved(client.post(edit(schedule), form.sent("save")))
    assert fresh(schedule).steps.get().written() == own


def test_a_template_that_was_archived_is_told_at_its_step() -> None:
    """While a page was open, or before a schedule that still uses it was copied."""
    client, template = sign_in(), make_template("Export")
    own = {"timeout_seconds": 5, "config": {"kwargs": {"value": 2}}, "max_retries": 3}
    schedule = make_schedule({"name": "a", "template": "Export"} | own)
    copy = f"/schedules/{schedule.pk}/duplicate"
    form = opened(client, copy)
    template.archive(initiator=SOMEBODY, now=NOW)
    answers = [client.get(copy), *(client.post(NEW, form.sent(do)) for do in ("save", "check", "show"))]
    for answer in answers:
        assert "is archived" in " ".join(answer.context["reading"].errors["steps-0-runs"])
        assert Form(answer.text).value("steps-0-runs") == "template:Export"
    # The schedule itself may go on using it.
    saved(client.post(edit(schedule), opened(client, edit(schedule)).sent("save", description="new")))
    # Nothing is lost if the template is restored meanwhile.
    copied = opened(client, copy)
    fresh(template).restore(initiator=SOMEBODY, now=NOW)
    saved(client.post(NEW, copied.sent("save")))
    assert Schedule.objects.latest("pk").steps.get().written() == schedule.steps.get().written()


def test_settings_can_be_written_as_json_and_back_and_a_type_that_was_tried_and_left_loses_nothing() -> None:
    client, schedule = sign_in(), make_schedule(HTTP)
    url = edit(schedule)
    form = pressed(client, opened(client, url), "show", url, steps__0__as_json="on")
    assert '"url": "https://shop.example/orders"' in form.value("steps-0-config")
    other = {"steps__0__config": '{"url": "https://other.example"}', "steps__0__as_json": None}
    form = pressed(client, form, "show", url, **other)
    form = pressed(client, form, "show", url, steps__0__runs="type:wait")
    form = pressed(client, form, "show", url, steps__0__runs="type:http")
    assert form.value("steps-0-config-url") == "https://other.example"
    form = pressed(client, form, "show", url, steps__0__as_json="on")
    answer = client.post(url, form.sent("save", steps__0__config="{"))
    assert "Not JSON" in " ".join(answer.context["reading"].errors["steps-0-config"])


def test_a_copy_is_a_new_schedule_which_starts_paused_or_at_once_if_asked() -> None:
    client = sign_in()
    original = make_schedule(HTTP, name="First", spec={"cron": ["0 3 * * *"]}, remaining=4)
    form = opened(client, f"/schedules/{original.pk}/duplicate")
    assert form.value("name") == "Copy of First"
    saved(client.post(NEW, form.sent("save")))
    copy = Schedule.objects.get(name="Copy of First")
    assert (copy.spec, copy.remaining, copy.token, copy.status) == (original.spec, 4, 1, "active")
    assert [each.as_json() for each in copy.steps.all()] == [each.as_json() for each in original.steps.all()]
    assert not Occurrence.objects.exists()
    asked = form.sent("save", name="Second", paused="on", note="not yet", run_at_once="on")
    saved(client.post(NEW, asked))
    copy = Schedule.objects.get(name="Second")
    assert (copy.status, copy.pause_note) == ("paused", "not yet")
    assert Occurrence.objects.get(schedule=copy).source == "manual"


def test_a_broken_spec_is_shown_so_that_it_can_be_mended() -> None:
    client, schedule = sign_in(), make_schedule(HTTP, spec={"cron": ["0 3 * * *"]})
    Schedule.objects.filter(pk=schedule.pk).update(spec={"cron": ["99 * * * *"], "patterns": [7]})
    answer = client.get(edit(schedule))
    assert {"rules-0", "rules-1-expression"} <= answer.context["reading"].errors.keys()
    form = pressed(client, Form(answer.text), "remove-rule.0", edit(schedule))
    saved(client.post(edit(schedule), form.sent("save", rules__1__expression="9 * * * *")))
    assert fresh(schedule).spec == {"cron": ["9 * * * *"]}
    # What is closed is not edited.
    fresh(schedule).close(initiator=SOMEBODY, now=NOW)
    assert client.get(edit(schedule))["Location"] == schedule.get_absolute_url()
    assert client.post(edit(schedule), {"do": "save"})["Location"] == schedule.get_absolute_url()


def test_steps_of_a_long_plan_are_opened_one_by_one() -> None:
    client = sign_in()
    plan = [HTTP | {"name": f"s{number}", "index": number} for number in range(30)]
    plan[7] |= {"max_retries": 9, "retry_on": ["TimeoutError"]}
    schedule = make_schedule(*plan)
    answer = client.get(edit(schedule))
    # A folded step is read by a form with few fields.
    assert all(form.is_folded for form in answer.context["reading"].formset.step_forms)
    form = Form(answer.text)
    assert len(form.pairs) < 200
    copied = pressed(client, form, "copy-step.2", edit(schedule))
    assert copied.value("steps-30-name") == "s2 2"
    form = pressed(client, form, "open.7", edit(schedule))
    changes = {"steps__7__retry_on": "TimeoutError\nOSError", "steps__7__name": "eighth"}
    saved(client.post(edit(schedule), form.sent("save", **changes)))
    found = [(each.name, each.retry_on) for each in fresh(schedule).steps.all()]
    assert found.pop(7) == ("eighth", ["TimeoutError", "OSError"])
    assert found == [(f"s{number}", []) for number in range(30) if number != 7]


def test_a_page_takes_few_questions(django_assert_max_num_queries: Any) -> None:
    client = sign_in()
    make_template("Export")
    SharedCalendar.objects.define("Days off", [], initiator=SOMEBODY, now=NOW)
    plan = [{"name": f"s{number}", "template": "Export", "index": number} for number in range(20)]
    schedule = make_schedule(*plan, spec={"cron": ["0 3 * * *"], "exclude": [{"calendar": "Days off"}]})
    form = opened(client, edit(schedule))
    with django_assert_max_num_queries(14):
        client.get(edit(schedule))
    with django_assert_max_num_queries(14):
        client.post(edit(schedule), form.sent("preview", rules__0__expression="0 4 * * *"))


HALF = "https://shop.example/\ud800"  # half of a surrogate pair, which JSON can say and UTF-8 cannot
# (a step as only a program sends it, the field that complains)
FORGED: list[tuple[Any, str]] = [
    ([], "steps-0-name"),
    ({"step_type": ["http"]}, "steps-0-runs"),
    ({"template": "Export", "step_type": {}}, "steps-0-runs"),
    ({"template": ["Export"]}, "steps-0-runs"),
    ({"template": "\ud800"}, "steps-0-runs"),
    ({"step_type": "http", "config": CONFIG | {"method": ["GET"]}}, "steps-0-config"),
    ({"step_type": "http", "config": CONFIG | {"method": {}, "body": [1]}}, "steps-0-config"),
    ({"step_type": "http", "config": []}, "steps-0-config"),
]


def test_a_forged_step_is_opened_where_it_is_wrong() -> None:
    client, wrong = sign_in(), []
    make_template("Export")
    form = pressed(client, opened(client, NEW), "add-step", NEW, name="Forged")
    before = everything()
    for sent, field in FORGED:
        folded = json.dumps({"name": "a"} | sent if isinstance(sent, dict) else sent)
        answer = client.post(NEW, form.sent("save", steps__0__folded=folded))
        if field not in answer.context["reading"].errors or f'id="error-{field}"' not in answer.text:
            wrong.append(f"{folded}: {answer.context['reading'].errors}")
    assert wrong == []
    assert everything() == before


def test_settings_that_no_field_can_show_stay_json() -> None:
    client = sign_in()
    form = pressed(client, opened(client, NEW), "add-step", NEW)
    form = pressed(client, form, "show", NEW, steps__0__runs="type:http")
    form = pressed(client, form, "show", NEW, steps__0__as_json="on")
    for config in ({"url": HALF}, {"body": HALF}, {"headers": {"Accept": HALF}}, {"method": ["GET"]}):
        changes = {"steps__0__as_json": None, "steps__0__config": json.dumps(config)}
        again = pressed(client, form, "show", NEW, **changes)
        assert (again.value("steps-0-as_json"), again.value("steps-0-config")) == ("on", json.dumps(config))


@pytest.mark.parametrize(
    ("seed", "rounds"), [(7, 5), pytest.param(8, 40, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_whatever_is_sent_is_answered_in_words(seed: int, rounds: int) -> None:
    client, chance = sign_in(), random.Random(seed)
    schedule = make_schedule(HTTP, step("b", 1), spec=ALL_SORTS | {"exclude": [{"holidays": "GB"}]})
    form = opened(client, edit(schedule))
    names = [name for name, _ in form.pairs] + ["steps-0-as_json", "steps-1-folded", "rules-9-kind"]
    commands = [*form.buttons, "save", "preview", "take.spec", "put.1", "add-step.8", "open.0"]
    for _ in range(rounds):
        sent = form.sent(chance.choice(commands))
        for name in chance.sample(names, chance.randint(1, 12)):
            sent[name] = [chance.choice(NASTY) for _ in range(chance.randint(1, 2))]
        for name in chance.sample(sorted(sent), chance.randint(0, 5)):
            del sent[name]
        assert client.post(edit(schedule), sent).status_code in (200, 302)
        assert client.post(NEW, sent).status_code in (200, 302)


NASTY = [
    *("", " ", "0", "-1", "on", "json", "1", "999999999999999999999999", "1e999", "NaN", "null", "\x00"),
    *("[[[[[[", "{" * 1000, '{"a": 1', "[1]", '"', "{{", "{{ x }}", "{{ steps.a.result }}", "\r\n", "😀"),
    *("template:", "template:x\x00", "type:", "type:http", "type:python", "ä" * 5000, "١٢", "1h", "*/0"),
    *("2026-13-45", "0001-01-01", "9999-12-31T23:59:59Z", "TZ=Mars/Phobos 0 0 * * *", "a\nb\nc", "week"),
]


def saved(answer: Any) -> None:
    assert answer.status_code == 302, answer.context["reading"].errors


def edit(schedule: Schedule) -> str:
    return f"/schedules/{schedule.pk}/edit"
