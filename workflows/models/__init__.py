from __future__ import annotations

from .event import Event, Topic
from .handler import Handler, Subscription
from .run import Run
from .trigger import EventTrigger
from .workflow import Workflow

__all__ = ["Event", "EventTrigger", "Handler", "Run", "Subscription", "Topic", "Workflow"]
