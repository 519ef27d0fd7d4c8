from __future__ import annotations

from .chore import Chore
from .execution import Execution
from .limit import Limit
from .reservation import Reservation
from .task import WorkerTask
from .worker import Worker

__all__ = ["Chore", "Execution", "Limit", "Reservation", "Worker", "WorkerTask"]
