"""The state machine of a delivery, and what endpoints learn from it; under a given clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connections

from activities.models import Activity
from schedules.models import Refused, Secret
from tests.base import NOW, SOMEBODY, fresh, make_schedule, seconds
from tests.webhooks.base import SECRET, claim, make_delivery, make_endpoint, tried
from webhooks.models import ClaimedDelivery, Delivery, Endpoint
from webhooks.models.delivery import HOLD_SECONDS
from webhooks.retention import prune_deliveries
from webhooks.tries import HOPELESS_FAILURES

pytestmark = pytest.mark.django_db
DAY = 86_400


def test_what_is_delivered_is_done_with() -> None:
    endpoint = make_endpoint()
    delivery = make_delivery(endpoint)
    (claimed,) = claim(endpoint)
    assert (
        Delivery.objects.deliver(claimed, tried(204, answer="thanks", seconds=0.25), now=NOW) == "delivered"
    )
    delivery = fresh(delivery)
    assert (delivery.status, delivery.tries, delivery.ended_at) == ("delivered", 1, NOW)
    log = {"at": NOW.isoformat(), "seconds": 0.25, "status": 204, "answer": "thanks", "error": ""}
    assert (delivery.log, delivery.next_try_at) == ([log], None)
    assert claim(endpoint, now=NOW + seconds(DAY)) == []


def test_the_tries_come_at_once_after_5_s_30_s_5_min_1_h_6_h_then_it_has_failed() -> None:
    endpoint = make_endpoint()
    delivery, now, sent = make_delivery(endpoint), NOW, set[tuple[str, str]]()
    for delay in (5, 30, 300, 3_600, 6 * 3_600, 30 * DAY):
        (claimed,) = claim(endpoint, now=now)
        sent.add((claimed.webhook_id, claimed.body))
        status = Delivery.objects.deliver(claimed, tried(500, now=now), now=now)
        assert status == ("pending" if delay < 30 * DAY else "failed")
        assert claim(endpoint, now=now + seconds(delay - 0.001)) == []
        now += seconds(delay)
    assert sent == {(delivery.webhook_id, delivery.body)}, "every try is the same message"
    delivery = fresh(delivery)
    assert (delivery.status, delivery.tries, len(delivery.log)) == ("failed", 6, 6)


def test_a_try_whose_sender_was_killed_is_made_again() -> None:
    endpoint = make_endpoint()
    make_delivery(endpoint)
    (lost,) = claim(endpoint)
    assert claim(endpoint, now=NOW + seconds(HOLD_SECONDS - 1)) == []
    later = NOW + seconds(HOLD_SECONDS)
    (again,) = claim(endpoint, now=later)
    assert (again.id, again.webhook_id, again.body) == (lost.id, lost.webhook_id, lost.body)
    assert Delivery.objects.deliver(lost, tried(500), now=later) is None, "whoever was late changes nothing"
    assert Delivery.objects.deliver(again, tried(200), now=later) == "delivered"


def test_a_delivery_that_kills_its_senders_fails_in_the_end() -> None:
    endpoint, now = make_endpoint(), NOW
    delivery = make_delivery(endpoint)
    for _ in range(6):
        assert len(claim(endpoint, now=now)) == 1
        now += seconds(HOLD_SECONDS)
    assert claim(endpoint, now=now) == []
    assert Delivery.objects.give_up_hopeless(now=now) == 1
    delivery = fresh(delivery)
    assert (delivery.status, delivery.note) == ("failed", "The worker was lost during the last attempt.")


def test_redelivering_sends_the_same_message_with_all_tries_anew() -> None:
    endpoint = make_endpoint()
    delivery = make_delivery(endpoint)
    with pytest.raises(Refused, match="is already being sent"):
        delivery.redeliver(initiator=SOMEBODY, now=NOW)
    (stale,) = claim(endpoint)
    Delivery.objects.deliver(stale, tried(410), now=NOW)
    assert fresh(delivery).status == "failed"
    delivery.redeliver(initiator=SOMEBODY, now=NOW)
    (again,) = claim(endpoint)
    assert (again.webhook_id, again.body, again.tries_left) == (stale.webhook_id, stale.body, 5)
    assert Delivery.objects.deliver(stale, tried(200), now=NOW) is None
    assert Delivery.objects.deliver(again, tried(200), now=NOW) == "delivered"
    assert [entry["status"] for entry in fresh(delivery).log] == [410, 200]
    assert Activity.objects.filter(operation="redeliver", target_type="delivery").count() == 1


def test_nothing_goes_to_a_disabled_endpoint() -> None:
    endpoint = make_endpoint()
    delivery = make_delivery(endpoint)
    endpoint.disable(initiator=SOMEBODY, now=NOW)
    delivery = fresh(delivery)
    assert (delivery.status, delivery.note) == ("failed", "The webhook was disabled.")
    with pytest.raises(Refused, match="is disabled"):
        delivery.redeliver(initiator=SOMEBODY, now=NOW)
    with pytest.raises(Refused, match="Enable it first"):
        endpoint.test(initiator=SOMEBODY, now=NOW)
    fresh(endpoint).remove(initiator=SOMEBODY, now=NOW)
    with pytest.raises(Refused, match="was deleted"):
        fresh(delivery).redeliver(initiator=SOMEBODY, now=NOW)
    Delivery.objects.update(status="pending", next_try_at=NOW)  # written down at that moment
    assert Delivery.objects.give_up_hopeless(now=NOW) == 1
    assert fresh(delivery).status == "failed"


def fail_for_good(endpoint: Endpoint, times: int) -> None:
    for _ in range(times):
        endpoint.learn(tried(500), has_failed=True, now=NOW)


def test_an_endpoint_that_has_failed_for_days_is_disabled_and_says_so() -> None:
    endpoint = make_endpoint(now=NOW - timedelta(days=3))
    fail_for_good(endpoint, HOPELESS_FAILURES - 1)
    assert fresh(endpoint).is_enabled
    fail_for_good(endpoint, 1)
    endpoint = fresh(endpoint)
    assert (endpoint.status, endpoint.is_disabled_by_itself) == ("disabled", True)
    assert endpoint.status_note == "The last 10 deliveries failed, and none has succeeded for 3 days."
    notice = Activity.objects.get(operation="disable")
    assert (notice.target_type, notice.initiator_name) == ("endpoint", "webhooks")
    assert notice.message == endpoint.status_note


def test_one_success_in_between_is_enough_and_enabling_starts_anew() -> None:
    endpoint = make_endpoint(now=NOW - timedelta(days=3))
    fail_for_good(endpoint, 9)
    endpoint.learn(tried(200), has_failed=False, now=NOW)
    assert fresh(endpoint).failed_in_a_row == 0
    fail_for_good(endpoint, 50)
    assert fresh(endpoint).is_enabled, "it succeeded today"
    Endpoint.objects.update(succeeded_at=NOW - timedelta(days=30))
    fail_for_good(endpoint, 1)
    assert not fresh(endpoint).is_enabled
    assert endpoint.enable(initiator=SOMEBODY, now=NOW)
    assert not endpoint.enable(initiator=SOMEBODY, now=NOW)
    fail_for_good(endpoint, 20)
    assert fresh(endpoint).is_enabled


def test_a_removed_endpoint_leaves_its_record_but_no_secret() -> None:
    endpoint = make_endpoint(name="Ops")
    delivery = make_delivery(endpoint)
    endpoint.remove(initiator=SOMEBODY, now=NOW)
    endpoint = fresh(endpoint)
    assert (endpoint.status, endpoint.token, fresh(delivery).status) == ("removed", "", "failed")
    assert make_endpoint(name="ops"), "the name is free again"
    with pytest.raises(Refused, match="was deleted"):
        endpoint.edit(changes={"name": "x"}, initiator=SOMEBODY, now=NOW)


def test_retention_takes_what_has_ended_long_ago_and_then_removed_endpoints() -> None:
    endpoint, removed = make_endpoint(), make_endpoint()
    old, recent, pending = (make_delivery(endpoint) for _ in range(3))
    make_delivery(removed)
    removed.remove(initiator=SOMEBODY, now=NOW)
    Delivery.objects.filter(pk=old.pk).update(status="failed", next_try_at=None, ended_at=NOW - seconds(DAY))
    Delivery.objects.filter(pk=recent.pk).update(status="delivered", next_try_at=None, ended_at=NOW)
    ninety_days_later = NOW + timedelta(days=90)
    assert prune_deliveries(ninety_days_later) == 1
    assert prune_deliveries(ninety_days_later) == 0
    assert prune_deliveries(ninety_days_later + seconds(1)) == 2
    assert prune_deliveries(ninety_days_later + seconds(1)) == 1
    assert list(Delivery.objects.all()) == [pending], "what is on its way stays"
    assert list(Endpoint.objects.all()) == [endpoint]


def test_a_rotated_secret_signs_beside_the_new_one_for_a_day_and_new_keys_of_the_vault_reach_both() -> None:
    endpoint = make_endpoint()
    new = endpoint.rotate(initiator=SOMEBODY, now=NOW)
    before = fresh(endpoint)
    said = list(Secret.objects.rotate(initiator=SOMEBODY, now=NOW))
    after = fresh(endpoint)
    assert "older key" in said[-1]
    assert after.token != before.token
    assert after.old_token != before.old_token
    assert after.signing(NOW + seconds(DAY - 1)) == [new, SECRET]
    assert after.signing(NOW + seconds(DAY)) == [new]


def test_an_edit_records_what_changed_but_not_the_address() -> None:
    schedule = make_schedule()
    endpoint = make_endpoint(url="https://hooks.example/s3cret-path")
    changes = {"url": "https://hooks.example/other-s3cret", "kinds": ["worker.lost"]}
    endpoint.edit(changes=changes | {"schedules": [schedule.pk]}, initiator=SOMEBODY, now=NOW)
    record = Activity.objects.get(operation="edit")
    assert record.message == "new URL"
    assert record.details is not None
    assert record.details["after"]["kinds"] == ["worker.lost"]
    assert "s3cret" not in str(list(Activity.objects.values()))
    endpoint.edit(changes=changes, initiator=SOMEBODY, now=NOW)
    assert Activity.objects.filter(operation="edit").count() == 1, "nothing changed"


@pytest.mark.django_db(transaction=True)
def test_several_senders_never_take_the_same_try() -> None:
    endpoint = make_endpoint()
    for _ in range(20):
        make_delivery(endpoint)
    taken: list[ClaimedDelivery] = []

    def take() -> None:
        try:
            while some := claim(endpoint, limit=2):
                taken.extend(some)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        for taking in [pool.submit(take) for _ in range(4)]:
            taking.result()
    assert len(taken) == len({claimed.id for claimed in taken}) == 20
    assert set(Delivery.objects.values_list("tries", flat=True)) == {1}
