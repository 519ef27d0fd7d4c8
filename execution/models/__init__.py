from __future__ import annotations

from .chore import Chore
from .execution import Execution
from .task import WorkerTask
from .worker import Worker

__all__ = ["Chore", "Execution", "Worker", "WorkerTask"]
