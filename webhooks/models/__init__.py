from __future__ import annotations

from .delivery import ClaimedDelivery, Delivery
from .endpoint import Endpoint, Listener

__all__ = ["ClaimedDelivery", "Delivery", "Endpoint", "Listener"]
