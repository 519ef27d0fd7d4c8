from __future__ import annotations

from .delivery import Claimed, Delivery
from .endpoint import Endpoint, Listener

__all__ = ["Claimed", "Delivery", "Endpoint", "Listener"]
