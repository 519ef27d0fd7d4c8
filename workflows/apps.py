from __future__ import annotations

from datetime import timedelta

from django.apps import AppConfig


class WorkflowsConfig(AppConfig):
    name = "workflows"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Workflows"

    def ready(self) -> None:
        from execution.loops import housekeeping, scheduler
        from execution.steps.step_type import register
        from schedules import registry

        from . import deployment, scheduling, triggering
        from .models import EventTrigger
        from .steps import HandlerStep, PublishStep

        register(HandlerStep)
        register(PublishStep)
        scheduler.register(
            scheduling.start_due,
            due=scheduling.IS_DUE,
            next_at=scheduling.NEXT_AT,
        )
        scheduler.register(
            EventTrigger.objects.settle_due,
            due="SELECT 1 FROM workflows_eventtrigger WHERE due_at <= %(now)s",
            next_at="SELECT min(due_at) FROM workflows_eventtrigger WHERE due_at > %(now)s",
        )
        registry.event_sources.append(triggering.TopicEventSource())
        scheduler.register_recovery(scheduling.recover)
        scheduler.register_opening(deployment.deploy_at_start)
        for name, once in (("runs", scheduling.prune_runs), ("events", scheduling.prune_events)):
            housekeeping.register(name, every=timedelta(hours=6), once=once)
