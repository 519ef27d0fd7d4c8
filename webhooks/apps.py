from __future__ import annotations

from datetime import timedelta

from django.apps import AppConfig
from django.core.checks import register


class WebhooksConfig(AppConfig):
    name = "webhooks"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Webhooks"

    def ready(self) -> None:
        from activities.models import RESTRICTED
        from activities.signals import activities_finished, listening, noticed
        from execution.checks import ENGINE
        from execution.loops import companions, housekeeping
        from schedules.models import secret

        from . import heartbeat, outbox, retention, sender
        from .models import Endpoint
        from .models.endpoint import LISTENING

        RESTRICTED["endpoint"] = "webhooks.view_endpoint"
        RESTRICTED["delivery"] = "webhooks.view_delivery"
        activities_finished.connect(outbox.on_activities_finished)
        noticed.connect(outbox.on_events)
        listening.append(f"EXISTS (SELECT 1 FROM {LISTENING})")
        companions.register("webhooks", sender.send_until_stopped, beside="worker")
        companions.register("heartbeat", heartbeat.beat_until_stopped, beside="scheduler")
        housekeeping.register("deliveries", every=timedelta(hours=6), once=retention.prune_deliveries)
        secret.elsewhere += [(Endpoint, "token"), (Endpoint, "old_token")]
        register(heartbeat.check_url, ENGINE)
