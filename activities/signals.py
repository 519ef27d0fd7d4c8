"""What other apps may hear of. Receivers are inside the transaction, and only insert."""

from __future__ import annotations

from django.dispatch import Signal

# ids: the activities that have just ended, of runs and of administrative changes alike.
activities_finished = Signal()

# events: a sequence of `Event`, for what happens without an activity that ends.
noticed = Signal()
