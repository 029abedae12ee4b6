"""Replays a published hardware trace through the timing model, to compare predicted and measured times.

`read_trace` reads the JSON export of a neuron-profile capture of one NeuronCore, `compare` puts its instructions, with
their sizes and semaphores, on the model's timeline. Figures of a trace decide no price. The cost of an EVENT_SEMAPHORE
by itself is not modelled.
"""

from __future__ import annotations

from .compare import Comparison, Span, Step, compare
from .parse import read_trace
from .records import Record, Trace, TraceError
from .rows import Row
from .tasks import Replay, build

__all__ = [
    "Comparison",
    "Record",
    "Replay",
    "Row",
    "Span",
    "Step",
    "Trace",
    "TraceError",
    "build",
    "compare",
    "read_trace",
]
