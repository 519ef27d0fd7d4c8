from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from activities.models import Activity, OutputLine
from activities.transcript import MOST_LINES, Transcript, read_cursor, with_last_lines
from database import clock
from execution.loops.manual_runs import trigger
from execution.models import Execution
from schedules.models import Secret
from tests.admin_pages import sign_in
from tests.base import NOW, SOMEBODY, claim, end, make_worker, run_until_idle, seconds, start, step, work_on
from tests.web.pages import ask, markup, poll, text_of, version_of

pytestmark = pytest.mark.django_db
TABS = ("steps", "output", "items", "data", "audit")


def failed_one() -> Execution:
    """A step that said something, one that failed twice, one that did not run."""
    flaky = step("flaky", 1, "fail", max_retries=1, retry_seconds=0)
    execution = start(step("first", 0, "talk"), flaky, step("never", 2), name="Nightly")
    run_until_idle()
    return execution


def linked(answer: Any, words: str) -> str:
    found = re.search(rf'href="([^"]+)">{words}', answer.text)
    assert found is not None
    return unescape(found[1])


def cursor_of(answer: Any) -> str:
    found = re.search(r'"after": "([^"]*)"', answer.text)
    assert found is not None
    return found[1]


class TestPage:
    def test_it_says_what_happened_and_why_and_draws_every_attempt(self, client: Client) -> None:
        execution, running = failed_one(), start(step("a"), step("b"), step("c", 1))
        answer = client.get(f"/executions/{execution.pk}")
        text = text_of(answer)
        assert re.search(r"Nightly #\d+ ✕ failed ! partial", text)
        assert "Step “flaky” failed: RuntimeError: it broke" in text
        assert "3 of 3" in text
        assert text.count("Failed permanently after 2 attempts.") == 1
        assert "ada manual" in text
        svg = re.search(r"<svg.*?</svg>", answer.text[answer.text.index("gantt") :], re.DOTALL)
        assert svg is not None
        for activity in Activity.objects.filter(parent=execution.activity_id):
            assert f'id="attempt-{activity.pk}"' in answer.text
            assert activity.get_absolute_url() in svg[0]
        assert svg[0].count('class="bar"') == 4
        other = client.get(f"/executions/{running.pk}")
        assert "Group 1: 2 steps side by side" in text_of(other)
        # Buttons fit the state.
        found = [
            (f"/do/execution/{verb}" in each.text) for each in (answer, other) for verb in ("cancel", "retry")
        ]
        assert found == [False, True, True, False]

    def test_a_step_that_is_tried_again_says_when(
        self, client: Client, django_assert_max_num_queries: Any
    ) -> None:
        now = clock.now()
        execution = start(
            step("flaky", 0, "fail", max_retries=3),
            step("pause", step_type="wait", config={"duration": "1h"}),
            step("then", 1),
            now=now,
        )
        url = f"/executions/{execution.pk}"
        assert "Retries in" not in text_of(client.get(url))
        run_until_idle(now=now)
        answer = client.get(url)
        text = text_of(answer)
        assert (text.count("Retries in "), text.count("Waiting until ")) == (1, 1)
        assert "attempt 2: pending · waiting for" in answer.text
        with django_assert_max_num_queries(5):
            assert "Retries in " in text_of(poll(client, f"{url}/live", "live", tab="steps"))

    def test_a_step_that_is_pending_says_why(
        self, client: Client, django_assert_max_num_queries: Any
    ) -> None:
        """In the words of the queue: what it waits for, and who would serve it."""
        now = clock.now()
        execution = start(step("first", pool="gpu"), step("second"), step("then", 1), now=now)
        url = f"/executions/{execution.pk}"
        assert "No running worker serves pool gpu" in text_of(client.get(url))
        worker = make_worker(now)
        claim(worker, limit=1, now=now)
        with django_assert_max_num_queries(5):
            text = text_of(poll(client, f"{url}/live", "live", tab="steps"))
        assert "Waiting for a free seat: this task is next" in text
        assert "Group 1 of 2 is running: “first”, “second”" in text

    def test_neighbours_are_those_of_the_same_schedule_and_lag_is_told_of_automatic_ones(
        self, client: Client
    ) -> None:
        first, other = start(step("a"), overlap="allow_all"), start(step("a"))
        assert first.schedule is not None
        trigger(first.schedule, initiator=SOMEBODY, now=NOW)
        last = Execution.objects.latest("pk")
        assert first.neighbours() == (None, last.pk)
        assert last.neighbours() == (first.pk, None)
        assert other.neighbours() == (None, None)
        shown = client.get(f"/executions/{first.pk}?tab=audit")
        assert f"/executions/{last.pk}?tab=audit" in shown.text
        assert "after the scheduled time" not in text_of(shown)
        Execution.objects.filter(pk=first.pk).update(source="auto", started_at=NOW + seconds(7))
        assert "7.0 s after the scheduled time" in text_of(client.get(first.get_absolute_url()))

    def test_a_damaged_plan_is_shown_as_far_as_it_goes_and_texts_are_text(self, client: Client) -> None:
        nasty = "<script>alert(1)</script>"
        execution = start(step(nasty, 0, "fail", kwargs={"message": nasty}), name=nasty)
        run_until_idle()
        urls = [f"/executions/{execution.pk}?tab={tab}" for tab in TABS]
        for _ in range(2):
            answers = [client.get(url) for url in urls]
            assert {(each.status_code, nasty in each.text) for each in answers} == {(200, False)}
            Execution.objects.filter(pk=execution.pk).update(plan=[])

    def test_its_cost_does_not_depend_on_its_size(
        self, client: Client, django_assert_max_num_queries: Any
    ) -> None:
        execution = start(*(step(f"step {n}", n % 4, "talk") for n in range(20)))
        run_until_idle()
        for tab in TABS:
            with django_assert_max_num_queries(12):
                client.get(f"/executions/{execution.pk}?tab={tab}")

    def test_what_steps_said_is_for_those_who_may_read_it(self) -> None:
        execution, client = failed_one(), sign_in("nobody")
        may_see = Permission.objects.get(codename="view_execution")
        User.objects.get(username="nobody").user_permissions.add(may_see)
        answer = client.get(f"/executions/{execution.pk}?tab=output")
        assert "line 2" not in answer.text
        assert "?tab=output" not in answer.text
        assert client.get(f"/executions/{execution.pk}/output.txt").status_code == 403


def test_only_what_changed_is_sent_and_at_the_end_the_new_state_and_buttons(
    client: Client, django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Why steps are pending is not asked again meanwhile.
    monkeypatch.setattr("web.views.execution.REASONS_SECONDS", 10**12)
    execution = start(step("a"), step("b", 1), now=clock.now() - seconds(3600))
    url = f"/executions/{execution.pk}/live"
    version = version_of(client.get(f"/executions/{execution.pk}"))
    with django_assert_max_num_queries(3):
        assert poll(client, url, "live", version=version).status_code == 204
    # What the page says about itself is not trusted.
    for usual in ("", "x", "nan", "inf", "-1", "1e300"):
        assert poll(client, url, "live", usual=usual).status_code == 200, usual
    worker, asked = make_worker(), {"version": version, "state": "in_progress", "tab": "steps"}
    end(worker, *claim(worker))
    answer = poll(client, url, "live", **asked)
    assert (answer.status_code, "hx-swap-oob" in answer.text) == (200, False)
    assert "data-poll" in answer.text
    end(worker, *claim(worker))
    with django_assert_max_num_queries(5):
        answer = poll(client, url, "live", **asked)
    assert answer.status_code == 286
    assert 'id="states" class="row" hx-swap-oob="true"' in answer.text
    assert "completed" in answer.text
    assert "Run again" in answer.text
    assert "data-poll" not in answer.text


class TestOutput:
    def test_it_is_merged_by_time_names_the_steps_and_is_filtered(self, client: Client) -> None:
        execution = start(step("left", 0, "talk"), step("right", 0, "talk"))
        run_until_idle()
        page = f"/executions/{execution.pk}"
        text = text_of(client.get(f"{page}?tab=output"))
        assert text.count("line 2") == 2
        assert re.search(r"left line 0 .*right line 0", text)
        left = Activity.objects.get(target_name="left").pk
        for query, count in ((f"of={left}", 3), ("q=line 2", 2), ("stream=stderr", 0), ("stream=log", 6)):
            answer = client.get(f"{page}?tab=output&{query}")
            assert answer.text.count('class="line ') == count, query
            assert client.get(f"{page}/output.txt?{query}").text.count("\n") == count, query
        # A cursor that makes no sense is the beginning.
        for cursor in ("", "x", "1", "1.x", "1.2-", "9999999999999999999999.1", "-1.5"):
            answer = poll(client, f"{page}/output", "more", after=cursor)
            assert answer.text.count('class="line ') == 6, cursor
        # Colours are styles, and markup is text.
        OutputLine.objects.filter(number=1).update(text="\x1b[31m<b>red</b>\x1b[0m")
        assert '<span class="ansi-red">&lt;b&gt;red&lt;/b&gt;</span>' in client.get(f"{page}?tab=output").text
        answer = client.get(f"{page}/output.txt")
        assert answer["Content-Type"] == "text/plain; charset=utf-8"
        assert answer.text.startswith("[left] <b>red</b>\n")

    def test_only_new_lines_are_sent(self, client: Client, django_assert_max_num_queries: Any) -> None:
        execution = start(step("talk", 0, "talk"), step("after", 1, "talk"))
        url = f"/executions/{execution.pk}/output"
        cursor = cursor_of(client.get(f"/executions/{execution.pk}?tab=output"))
        with django_assert_max_num_queries(5):
            assert poll(client, url, "more", after=cursor).status_code == 204
        worker = make_worker()
        work_on(worker, claim(worker))
        with django_assert_max_num_queries(5):
            answer = poll(client, url, "more", after=cursor)
        assert (answer.status_code, answer.text.count('class="line ')) == (200, 3)
        cursor = cursor_of(answer)
        assert poll(client, url, "more", after=cursor).status_code == 204
        work_on(worker, claim(worker))
        answer = poll(client, url, "more", after=cursor)
        assert (answer.status_code, answer.text.count('class="line ')) == (286, 3)
        # The promise of more lines ends with the run.
        assert 'id="follows" class="quiet" hx-swap-oob="true">End of the output.' in markup(answer)
        assert "data-poll" not in answer.text

    def test_of_much_output_the_last_lines_are_shown_and_earlier_ones_are_a_step_away(
        self, client: Client
    ) -> None:
        execution = start(step("chatty", 0, "talk", kwargs={"lines": MOST_LINES + 30}))
        run_until_idle()
        answer = client.get(f"/executions/{execution.pk}?tab=output")
        assert answer.text.count('class="line ') == MOST_LINES
        text = text_of(client.get(linked(answer, "Earlier lines")))
        assert "line 29" in text
        assert "line 30" not in text

    def test_a_transcript_reads_no_further_than_it_looked(self) -> None:
        execution = start(step("a", 0, "talk"))
        run_until_idle()
        [attempt] = with_last_lines(Activity.objects.filter(parent=execution.activity_id))
        attempt.last_line = 2
        transcript = Transcript.of([attempt])
        assert [line.number for line in transcript.lines()] == [1, 2]
        assert read_cursor(transcript.cursor) == {attempt.pk: 2}


class TestOtherTabs:
    def test_items_are_filtered_and_paged(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        execution = start(step("a", 0, "talk"), step("b", 0, "talk"))
        run_until_idle()
        monkeypatch.setattr("web.output.MOST_SHOWN", 4)
        url = f"/executions/{execution.pk}?tab=items"
        answer = client.get(url)
        assert answer.text.count("object ") == 4
        assert client.get(linked(answer, "More items")).text.count("object ") == 2
        assert "No items have this outcome" in text_of(client.get(f"{url}&outcome=failed"))

    def test_inputs_and_results_are_by_step_and_the_audit_says_who_did_what(self, client: Client) -> None:
        execution = start(step("a", 0, "result", kwargs={"value": {"rows": 17}}))
        run_until_idle()
        text = text_of(client.get(f"/executions/{execution.pk}?tab=data"))
        assert '"function": "tests.work.result"' in text
        assert 'Result { "rows": 17 }' in text
        assert "Template" not in text
        given = {"key": "{{ secrets.token }}", "rows": "{{ steps.a.result.rows }}"}
        Secret.objects.define("token", "canary-4711", initiator=SOMEBODY, now=NOW)
        execution = start(
            step("a", 0, "result", kwargs={"value": {"rows": 17}}), step("b", 1, kwargs={"value": given})
        )
        url = f"/executions/{execution.pk}?tab=data"
        early = text_of(client.get(url))
        assert '{ "key": "•••", "rows": "{{ steps.a.result.rows }}" }' in early
        assert "steps.a.result.rows : step “a” has not ended, so it has no result" in early
        run_until_idle()
        text = client.get(url).text
        assert '{ "key": "•••", "rows": 17 }' in text_of(client.get(url))
        assert "Template" in text
        assert "canary" not in text
        execution = start(step("a"))
        execution.cancel(initiator=SOMEBODY, now=NOW, reason="not today")
        text = text_of(client.get(f"/executions/{execution.pk}?tab=audit"))
        assert re.search(r"cancel ada user .* not today start ada", text)


def test_a_retry_leads_to_the_new_execution_and_cancelling_is_seen_while_it_lasts(client: Client) -> None:
    failed = failed_one()
    answer = client.post(ask("execution", "retry", failed.pk), {"key": "once", "overlap": ""})
    again = Execution.objects.get(retry_of=failed)
    assert answer["Location"] == again.get_absolute_url()
    assert f"Retry of #{failed.pk}" in text_of(client.get(answer["Location"]))
    assert f"Retried as #{again.pk}" in text_of(client.get(failed.get_absolute_url()))
    claim(make_worker())
    client.post(ask("execution", "cancel", again.pk), {"reason": "too slow"})
    assert "◔ cancelling" in (text := text_of(client.get(again.get_absolute_url())))
    assert "Cancelling: too slow" in text
    assert "Clean-up steps that" not in text


def test_the_pages_name_the_clean_up_that_a_cancel_leaves_and_how_to_end_it_too(client: Client) -> None:
    execution = start(step("a"), step("b", 1), step("tidy", 2, run_if="always"))
    claim(make_worker())
    asked = text_of(client.get(ask("execution", "cancel", execution.pk)))
    assert "1 task is running, 1 task will not start; clean-up will still run: “tidy”" in asked
    assert "clean-up still" not in text_of(client.get(ask("execution", "terminate", execution.pk)))
    every = text_of(client.get(ask("schedule", "cancel", execution.schedule_id or 0)))
    assert "2 tasks will be cancelled; clean-up will still run: “tidy”" in every
    client.post(ask("execution", "cancel", execution.pk), {"reason": "too slow"})
    text = text_of(client.get(execution.get_absolute_url()))
    assert (
        "Clean-up steps that have not run yet: “tidy”. "
        "To end the execution now, without clean-up, choose “Terminate”." in text
    )
