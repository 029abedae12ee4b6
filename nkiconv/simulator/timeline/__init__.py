"""A timeline of a traced kernel: tasks with prices and waits, and the engines, memories and queues that they share.

`tasks.build` turns programs into tasks, `schedule.run` puts them in time. Everything here is modelled.
"""

from __future__ import annotations

from .dependencies import written_storages
from .line import NOTHING, QUEUE_FULL, SPACE, Options, Order, Timeline
from .no_effect import unread_matmuls
from .reloads import dropped_loads
from .repeats import repeated_ns, times_run
from .schedule import run
from .tasks import ENGINES, Tasks, build, price_again

__all__ = [
    "ENGINES",
    "NOTHING",
    "QUEUE_FULL",
    "SPACE",
    "Options",
    "Order",
    "Tasks",
    "Timeline",
    "build",
    "dropped_loads",
    "price_again",
    "repeated_ns",
    "run",
    "times_run",
    "unread_matmuls",
    "written_storages",
]
