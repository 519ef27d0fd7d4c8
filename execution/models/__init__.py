from __future__ import annotations

from .chore import Chore
from .execution import Execution
from .job import Job
from .limit import Limit
from .reservation import Reservation
from .task import WorkerTask
from .worker import Worker

__all__ = ["Chore", "Execution", "Job", "Limit", "Reservation", "Worker", "WorkerTask"]
