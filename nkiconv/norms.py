"""Norms by statistics of channels: kinds, and the rules of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import rules
from .errors import is_array, shown
from .integers import is_finite

#: Norms by the elements that share a mean and a variance: the channels of a group in one image; a channel of all
#: images; a channel of one image.
NORMS = ("group", "batch", "instance")
#: Groups of a group norm that names none, as most models with them have.
NUM_GROUPS = 32
#: Numbers of a part of the statistics of a channel: count, mean, biased variance.
STATS = 3
#: Most (count, mean, variance) that share a mean: one partition of SBUF holds all of them, 12 bytes each.
SHARED_MAX = 4096


#: Kinds of statistics of y that a convolution returns.
RETURNED = ("channel",)


def return_stats(value: Any) -> str:
    """Check return_stats: None, or a kind of statistics."""
    return rules.accepted("return_stats", value, (None, *RETURNED))


def norm(value: Any) -> str:
    """Check the kind of a norm."""
    return rules.accepted("norm", value, NORMS)


def eps(value: Any) -> str:
    """Check the number that is added to a variance."""
    if is_finite(value) and value >= 0:
        return ""
    return f"eps={shown(value)}: must be a finite number of at least 0 that fp32 holds; pass one, as 1e-5"


def momentum(value: Any) -> str:
    """Check the share of new statistics in running ones."""
    if is_finite(value):
        return ""
    return f"momentum={shown(value)}: must be a finite number, or a tensor of one; pass one, as 0.1"


def num_groups(value: Any, norm: str, C: int) -> list[str]:
    """None, or a number of groups of a group norm that divides C."""
    if norm != "group":
        text = f"num_groups={shown(value)}: norm={norm!r} has no groups; leave it out, or pass norm='group'"
        return [] if value is None else [text]
    wrong = [] if value is None else [rules.number("num_groups", value)]
    return [one for one in wrong if one] or [
        one for one in [rules.divides("num_groups", value or NUM_GROUPS, C=C)] if one
    ]


def parts(name: str, given: Any) -> str:
    """Statistics of parts of the same x."""
    if isinstance(given, tuple | list) and given and all(is_array(one) and len(one.shape) == 4 for one in given):
        return ""
    return f"{name}={shown(given)}: must be a tuple of arrays [P, N, C, 3]; pass one of each launch"


def stats(name: str, given: Sequence[int], dtype: Any, images_and_channels: Sequence[int]) -> list[str]:
    """Statistics of channels, [P, N, C, 3] in fp32; images_and_channels: (N, C) of those that they go with."""
    wrong = [rules.rank(name, given, "P, N, C, 3"), rules.array_dtype(name, dtype, ("fp32",))]
    if not wrong[0]:
        wrong.append(rules.shape(name, given, (given[0], *images_and_channels, STATS), "[P, N, C, 3]"))
    return [one for one in wrong if one]


def shared(norm: str, parts: int, N: int, C: int, groups: int | None = None) -> tuple[int, int]:
    """(means of all images and channels, (count, mean, variance) that share each), of so many parts."""
    if norm == "group":
        groups = groups or NUM_GROUPS
        return N * groups, parts * (C // groups)
    return (C, parts * N) if norm == "batch" else (N * C, parts)


def too_many(norm: str, parts: int, N: int, C: int, groups: int | None = None) -> str:
    """Check that SBUF holds the triples of the elements that share a mean."""
    _, each = shared(norm, parts, N, C, groups)
    if each <= SHARED_MAX:
        return ""
    return (
        f"stats: {each:,} parts of images and channels share a mean (P={parts}, N={N}, C={C}, norm={norm!r}), at most "
        f"{SHARED_MAX:,} may; pass fewer launches or images at a time"
    )
