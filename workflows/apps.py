from __future__ import annotations

from datetime import timedelta

from django.apps import AppConfig


class WorkflowsConfig(AppConfig):
    name = "workflows"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Event-driven work"

    def ready(self) -> None:
        from execution.loops import housekeeping, scheduler
        from execution.steps.step_type import register
        from schedules import registry

        from . import deployment, scheduling, triggering
        from .models import EventTrigger, Workflow
        from .steps import HandlerStep, PublishStep

        register(HandlerStep)
        register(PublishStep)
        scheduler.register(
            scheduling.start_due,
            due=Workflow.objects.due,
            times=lambda: (Workflow.objects.running(), "due_at"),
        )
        scheduler.register(
            EventTrigger.objects.settle_due,
            due=EventTrigger.objects.due,
            times=lambda: (EventTrigger.objects.all(), "due_at"),
        )
        registry.event_sources.append(triggering.Topics())
        scheduler.register_recovery(scheduling.recover)
        scheduler.register_opening(deployment.deploy_at_start)
        for name, once in (("runs", scheduling.prune_runs), ("events", scheduling.prune_events)):
            housekeeping.register(name, every=timedelta(hours=6), once=once)
