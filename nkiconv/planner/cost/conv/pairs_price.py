"""What Vector and GpSimd take in `implicit_gemm` where pairs of planes of y are made: sums of frames, and read-outs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....schedules.cuts import same_place
from ....schedules.implicit_gemm_outputs import banks_of
from ....schedules.pairs_of_planes import PAIR, PRODUCTS_OF_PAIR, frames_seen
from ....simulator.timing.target import Target

#: ns that the first sums of frames and planes of taps take, and what the array waits for later ones: calibrated.
START_NS = 10_000.0
#: Instructions of Vector that make a plane of y of four banks of sums.
READ_OUTS = 2


def frames_share(geometry: Any, pairs: int) -> float:
    """Frames of so many neighbouring pairs, of each plane that is multiplied for them; 1 of other precisions."""
    return 1.0 if geometry.direct is None else float(frames_seen(pairs)) / (PRODUCTS_OF_PAIR * pairs)


def rows_come(plan: Any, item: Any, before: Any) -> bool:
    """Whether x of an item is not there from the one before it, or None."""
    if before is None or not same_place(item.band, before.band):
        return True
    return bool(plan.chunks[item.batch] != plan.chunks[before.batch])


def pairs_ns(target: Target, geometry: Any, plan: Any, items: Sequence[Any]) -> float:
    """ns of Vector for a core's items, where GpSimd adds as many frames as let both end together; 0 where nothing is
    added."""
    if geometry.direct is None:
        return 0.0
    added = read = 0.0
    before: Any = None
    for item in items:
        jobs, band = plan.batches[item.batch], item.band
        if rows_come(plan, item, before):
            added += PRODUCTS_OF_PAIR * len(plan.chunks[item.batch]) * band.zn * band.hn * band.wn
        for job in jobs:
            fixed_ns = len(banks_of(band, False)) * target.vector_fixed_psum_ns
            one_ns = band.zn * band.pn * band.qn * target.vector_ns + fixed_ns
            read += PAIR * READ_OUTS * one_ns / job.rows
        before = item
    vector_ns, gpsimd_ns = added * target.vector_16bit_ns, added * target.gpsimd_ns
    if read >= gpsimd_ns:
        return read
    return (read + vector_ns) * gpsimd_ns / (vector_ns + gpsimd_ns)
