from __future__ import annotations

from typing import Any

from django.apps import AppConfig


class FlowsConfig(AppConfig):
    name = "tests.flows"

    def ready(self) -> None:
        """No handler is asked between the commit of its run and the end of its task."""
        from workflows.performing import Performance

        from .workflows import stay

        commit = Performance._commit

        def commit_and_stay(performance: Performance, *args: Any) -> dict[str, Any]:
            told = commit(performance, *args)
            stay(performance.run.workflow.slug, "committed")
            return told

        Performance._commit = commit_and_stay  # type: ignore[method-assign, assignment]
