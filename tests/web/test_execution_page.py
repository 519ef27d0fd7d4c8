from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from activities import clock
from activities.models import Activity, OutputLine
from activities.transcript import MOST_LINES, Transcript, read_cursor, with_last_lines
from execution.invoker import trigger
from execution.models import Execution
from tests.admin_pages import sign_in
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    break_down,
    claim,
    end,
    fresh,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
    work_on,
)
from tests.web.pages import ask, poll, text_of, toasts, version_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    return sign_in()


def failed_one() -> Execution:
    """A step that said something, one that failed twice, one that did not run."""
    execution = start(
        step("first", 0, "talk"), step("flaky", 1, "fail", max_retries=1), step("never", 2), name="Nightly"
    )
    run_until_idle()
    run_until_idle(now=NOW + seconds(30))
    return fresh(execution)


class TestPage:
    def test_it_says_what_happened_and_why(self, client: Client) -> None:
        execution = failed_one()
        text = text_of(client.get(f"/executions/{execution.pk}"))
        assert re.search(r"Nightly #\d+ ✕ failed ! partial", text)
        assert "Step “flaky” failed: RuntimeError: it broke" in text
        assert "3 of 3" in text
        assert "ada manual" in text

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
        assert "Tries again" not in text_of(client.get(url))
        run_until_idle(now=now)
        text = text_of(client.get(url))
        assert (text.count("Tries again in "), text.count("Waiting until ")) == (1, 1)
        with django_assert_max_num_queries(5):
            assert "Tries again in " in text_of(poll(client, f"{url}/live", "live", tab="steps"))

    def test_every_attempt_is_in_the_table_and_in_the_drawing(self, client: Client) -> None:
        execution = failed_one()
        answer = client.get(f"/executions/{execution.pk}")
        svg = re.search(r"<svg.*?</svg>", answer.text[answer.text.index("gantt") :], re.DOTALL)
        assert svg is not None
        for activity in Activity.objects.filter(parent=execution.activity_id):
            assert f'id="attempt-{activity.pk}"' in answer.text
            assert activity.get_absolute_url() in svg[0]
        assert svg[0].count('class="bar"') == 4

    def test_steps_side_by_side_are_told_as_such(self, client: Client) -> None:
        execution = start(step("a"), step("b"), step("c", 1))
        assert "Group 1: 2 steps side by side" in text_of(client.get(f"/executions/{execution.pk}"))

    def test_the_usual_duration_says_when_it_should_end(self, client: Client) -> None:
        schedule = start(step("a")).schedule
        assert schedule is not None
        worker = make_worker()
        end(worker, *claim(worker), now=NOW + seconds(90))
        now = clock.now()
        trigger(schedule, initiator=SOMEBODY, now=now)
        running = schedule.executions.order_by("pk").last()
        assert running is not None
        assert "Should end in 1 min" in text_of(client.get(running.get_absolute_url()))

    def test_neighbours_are_those_of_the_same_schedule(self, client: Client) -> None:
        first = start(step("a"), overlap="allow_all")
        other = start(step("a"))
        assert first.schedule is not None
        trigger(first.schedule, initiator=SOMEBODY, now=NOW)
        last = Execution.objects.order_by("pk").last()
        assert last is not None
        assert first.neighbours() == (None, last.pk)
        assert last.neighbours() == (first.pk, None)
        assert other.neighbours() == (None, None)
        assert f"/executions/{last.pk}?tab=audit" in client.get(f"/executions/{first.pk}?tab=audit").text

    def test_lag_is_told_of_automatic_ones(self, client: Client) -> None:
        execution = start(step("a"))
        assert "after its time" not in text_of(client.get(execution.get_absolute_url()))
        Execution.objects.filter(pk=execution.pk).update(source="auto", started_at=NOW + seconds(7))
        assert "7.0 s after its time" in text_of(client.get(execution.get_absolute_url()))

    def test_one_that_is_not_there_is_not_found(self, client: Client) -> None:
        for path in ("", "/live", "/output", "/output.txt"):
            assert client.get(f"/executions/999999999999999999999{path}").status_code == 404

    def test_a_damaged_plan_is_shown_as_far_as_it_goes(self, client: Client) -> None:
        execution = start(step("a"))
        run_until_idle()
        Execution.objects.filter(pk=execution.pk).update(plan=[])
        for tab in ("steps", "output", "items", "data", "audit"):
            assert client.get(f"/executions/{execution.pk}?tab={tab}").status_code == 200

    def test_texts_are_text(self, client: Client) -> None:
        nasty = "<script>alert(1)</script>"
        execution = start(step(nasty, 0, "fail", kwargs={"message": nasty}), name=nasty)
        run_until_idle()
        for tab in ("steps", "output", "items", "data", "audit"):
            assert nasty not in client.get(f"/executions/{execution.pk}?tab={tab}").text

    @pytest.mark.parametrize("tab", ["steps", "output", "items", "data", "audit"])
    def test_its_cost_does_not_depend_on_its_size(
        self, client: Client, tab: str, django_assert_max_num_queries: Any
    ) -> None:
        execution = start(*(step(f"step {n}", n % 4, "talk") for n in range(20)))
        run_until_idle()
        with django_assert_max_num_queries(12):
            client.get(f"/executions/{execution.pk}?tab={tab}")

    def test_what_steps_said_is_for_those_who_may_read_it(self) -> None:
        from tests.execution.test_admin import grant

        execution = failed_one()
        client = sign_in("nobody")
        grant("nobody", "execution.view_execution")
        answer = client.get(f"/executions/{execution.pk}?tab=output")
        assert "line 2" not in answer.text
        assert "?tab=output" not in answer.text
        for path in ("output", "output.txt"):
            assert client.get(f"/executions/{execution.pk}/{path}").status_code == 403


class TestLive:
    def test_nothing_is_sent_while_nothing_changes(
        self, client: Client, django_assert_max_num_queries: Any
    ) -> None:
        now = clock.now()
        execution = start(step("a"), step("b", 1), now=now - seconds(3600))
        answer = client.get(f"/executions/{execution.pk}")
        with django_assert_max_num_queries(3):
            again = poll(client, f"/executions/{execution.pk}/live", "live", version=version_of(answer))
        assert again.status_code == 204

    def test_what_changed_is_sent_with_the_new_state_and_buttons(
        self, client: Client, django_assert_max_num_queries: Any
    ) -> None:
        execution = start(step("a"), step("b", 1))
        url = f"/executions/{execution.pk}/live"
        version = version_of(client.get(f"/executions/{execution.pk}"))
        run_until_idle()
        with django_assert_max_num_queries(5):
            answer = poll(client, url, "live", version=version, state="in_progress", tab="steps")
        assert answer.status_code == 286
        assert 'id="states" class="row" hx-swap-oob="true"' in answer.text
        assert "completed" in answer.text
        assert "Run again" in answer.text
        assert "data-poll" not in answer.text

    def test_the_state_is_left_alone_while_it_stays(self, client: Client) -> None:
        execution = start(step("a"), step("b", 1))
        worker = make_worker()
        end(worker, *claim(worker))
        answer = poll(client, f"/executions/{execution.pk}/live", "live", state="in_progress", tab="steps")
        assert (answer.status_code, "hx-swap-oob" in answer.text) == (200, False)
        assert "data-poll" in answer.text

    @pytest.mark.parametrize("usual", ["", "x", "nan", "inf", "-1", "1e300"])
    def test_what_the_page_says_about_itself_is_not_trusted(self, client: Client, usual: str) -> None:
        execution = start(step("a"))
        assert poll(client, f"/executions/{execution.pk}/live", "live", usual=usual).status_code == 200


class TestOutput:
    def test_it_is_merged_by_time_and_names_the_steps(self, client: Client) -> None:
        execution = start(step("left", 0, "talk"), step("right", 0, "talk"))
        run_until_idle()
        text = text_of(client.get(f"/executions/{execution.pk}?tab=output"))
        assert text.count("line 2") == 2
        assert re.search(r"left line 0 .*right line 0", text)

    def test_it_is_filtered_by_step_stream_and_text(self, client: Client) -> None:
        execution = start(step("left", 0, "talk"), step("right", 0, "talk"))
        run_until_idle()
        left = attempts(execution, "left")[0].pk
        for query, count in ((f"of={left}", 3), ("q=line 2", 2), ("stream=stderr", 0), ("stream=log", 6)):
            answer = client.get(f"/executions/{execution.pk}?tab=output&{query}")
            assert answer.text.count('class="line ') == count, query
            text = client.get(f"/executions/{execution.pk}/output.txt?{query}").text
            assert text.count("\n") == count, query

    def test_only_new_lines_are_sent(self, client: Client, django_assert_max_num_queries: Any) -> None:
        execution = start(step("talk", 0, "talk"), step("after", 1, "talk"))
        url = f"/executions/{execution.pk}/output"
        shown = client.get(f"/executions/{execution.pk}?tab=output")
        cursor = re.search(r'"after": "([^"]*)"', shown.text)
        assert cursor is not None
        with django_assert_max_num_queries(5):
            assert poll(client, url, "more", after=cursor[1]).status_code == 204
        worker = make_worker()
        work_on(worker, claim(worker))
        with django_assert_max_num_queries(5):
            answer = poll(client, url, "more", after=cursor[1])
        assert (answer.status_code, answer.text.count('class="line ')) == (200, 3)
        cursor = re.search(r'"after": "([^"]*)"', answer.text)
        assert cursor is not None
        assert poll(client, url, "more", after=cursor[1]).status_code == 204
        work_on(worker, claim(worker))
        answer = poll(client, url, "more", after=cursor[1])
        assert (answer.status_code, answer.text.count('class="line ')) == (286, 3)
        assert "data-poll" not in answer.text

    def test_of_much_output_the_last_lines_are_shown_and_earlier_ones_are_a_step_away(
        self, client: Client
    ) -> None:
        execution = start(step("chatty", 0, "talk", kwargs={"lines": MOST_LINES + 30}))
        run_until_idle()
        answer = client.get(f"/executions/{execution.pk}?tab=output")
        assert answer.text.count('class="line ') == MOST_LINES
        earlier = re.search(r'href="([^"]+)">Earlier lines', answer.text)
        assert earlier is not None
        text = text_of(client.get(earlier[1].replace("&amp;", "&")))
        assert "line 29" in text
        assert "line 30" not in text

    def test_colours_are_styles_and_markup_is_text(self, client: Client) -> None:
        execution = start(step("a", 0, "talk"))
        run_until_idle()
        OutputLine.objects.filter(number=1).update(text="\x1b[31m<b>red</b>\x1b[0m")
        shown = client.get(f"/executions/{execution.pk}?tab=output").text
        assert '<span class="ansi-red">&lt;b&gt;red&lt;/b&gt;</span>' in shown
        answer = client.get(f"/executions/{execution.pk}/output.txt")
        assert answer["Content-Type"] == "text/plain; charset=utf-8"
        assert answer.text.startswith("<b>red</b>\n")

    @pytest.mark.parametrize("cursor", ["", "x", "1", "1.x", "1.2-", "9999999999999999999999.1", "-1.5"])
    def test_a_cursor_that_makes_no_sense_is_the_beginning(self, client: Client, cursor: str) -> None:
        execution = start(step("a", 0, "talk"))
        run_until_idle()
        answer = poll(client, f"/executions/{execution.pk}/output", "more", after=cursor)
        assert answer.text.count('class="line ') == 3

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
        monkeypatch.setattr("web.items.MOST_SHOWN", 4)
        url = f"/executions/{execution.pk}?tab=items"
        answer = client.get(url)
        assert answer.text.count("object ") == 4
        more = re.search(r'href="([^"]+)">More items', answer.text)
        assert more is not None
        assert client.get(more[1].replace("&amp;", "&")).text.count("object ") == 2
        assert "No item ended so" in text_of(client.get(f"{url}&outcome=failed"))

    def test_inputs_and_results_are_by_step(self, client: Client) -> None:
        execution = start(step("a", 0, "result", kwargs={"value": {"rows": 17}}))
        run_until_idle()
        text = text_of(client.get(f"/executions/{execution.pk}?tab=data"))
        assert '"function": "tests.work.result"' in text
        assert 'Result { "rows": 17 }' in text

    def test_the_audit_says_who_did_what(self, client: Client) -> None:
        execution = start(step("a"))
        execution.cancel(initiator=SOMEBODY, now=NOW, reason="not today")
        text = text_of(client.get(f"/executions/{execution.pk}?tab=audit"))
        assert re.search(r"cancel ada user .* not today start ada", text)


class TestActions:
    def test_buttons_fit_the_state(self, client: Client) -> None:
        failed, running = failed_one(), start(step("a"))
        shown = client.get(f"/executions/{running.pk}").text
        assert ("/do/execution/cancel" in shown, "/do/execution/retry" in shown) == (True, False)
        shown = client.get(f"/executions/{failed.pk}").text
        assert ("/do/execution/cancel" in shown, "/do/execution/retry" in shown) == (False, True)

    def test_a_retry_leads_to_the_new_execution(self, client: Client) -> None:
        failed = failed_one()
        answer = client.post(ask("execution", "retry", failed.pk), {"key": "once", "overlap": ""})
        again = Execution.objects.get(retry_of=failed)
        assert answer["Location"] == again.get_absolute_url()
        assert f"Retry of #{failed.pk}" in text_of(client.get(answer["Location"]))
        assert f"Retried as #{again.pk}" in text_of(client.get(failed.get_absolute_url()))

    def test_cancelling_is_seen_while_it_lasts(self, client: Client) -> None:
        execution = start(step("slow"))
        claim(make_worker())
        url = f"{ask('execution', 'cancel', execution.pk)}&next=/executions/{execution.pk}"
        assert toasts(client, client.post(url, {"reason": "too slow"})) == [
            f"“{execution}” is being cancelled."
        ]
        text = text_of(client.get(f"/executions/{execution.pk}"))
        assert "◔ cancelling" in text
        assert "Asked to stop: too slow" in text

    def test_a_retry_in_backoff_is_a_waiting_bar(self, client: Client) -> None:
        execution = start(step("flaky", max_retries=3), now=clock.now())
        worker = make_worker(clock.now())
        break_down(worker, *claim(worker, now=clock.now()), now=clock.now())
        shown = client.get(f"/executions/{execution.pk}").text
        assert shown.count('class="bar"') == 2
        assert "attempt 2: pending · waits for" in shown
