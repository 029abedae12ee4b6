"""The chunks of x's channels of a gated convolution of rows: their kinds and their orders.

`rules.chunks` is the rule.
"""

from __future__ import annotations

import itertools
from typing import Any

from .errors import shown

#: Kinds of chunks: the convolution's input; a factor of it, or one through a sigmoid (GLU); a factor of y.
CHUNKS = ("x", "B", "G", "C")
#: Orders of the chunks of a gated short convolution.
ORDERS = tuple(map("".join, itertools.permutations("BCx")))


def chunks(value: Any, channels: int = 0) -> str:
    """None, or the order of the chunks that x's channels are, all of as many channels."""
    if value is None:
        return ""
    known = isinstance(value, str) and set(value) <= set(CHUNKS) and len(set(value)) == len(value) > 1
    if known and "x" in value and not {"B", "G"} <= set(value):
        if channels % len(value) == 0:
            return ""
        return f"chunks={value!r}: x has {channels} channels, no multiple of {len(value)}; pass {value}"
    return (
        f"chunks={shown(value)}: must have x, the input, once, and once at most a factor of it, B or G (through a "
        f"sigmoid), and C, a factor of y; write one as 'BCx' or 'xG'"
    )


def chunks_plain(value: str | None, asked: str) -> str:
    """Why chunks cannot be combined with a prologue's arguments, `asked`; "" without chunks."""
    if value is None:
        return ""
    return f"chunks={shown(value)}, {asked}: what arrives is a product already; apply them to the chunks, or drop them"
