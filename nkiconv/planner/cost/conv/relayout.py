"""What copies take: of NHWC tensors, for algorithms that read rows of x and write rows of y, and of filters of
transposed convolutions, for those that read taps in order."""

from __future__ import annotations

from typing import Any

from ....kernels.conv.flip import flip_pieces, flips
from ....kernels.conv.relayout import OWN, copies_of
from ....schedules.geometry import num_taps
from ....schedules.tiles import PARTS
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..algorithm import Shape


def relayout_ns(algorithm: str, shape: Shape) -> float:
    """ns of both cores for the copies; of images of one pixel, which are in both layouts, for single elements."""
    geometry, options, target = shape.geometry, shape.options, shape.target
    pixels, outputs = geometry.rows.size * geometry.columns.size, geometry.rows.out * geometry.columns.out
    y_itemsize, found = options.epilogue.y_itemsize, 0.0
    if algorithm not in OWN and pixels == 1:
        found += geometry.planes.size * geometry.C * target.run_ns(geometry.hbm_itemsize) / (PARTS * target.dma_engines)
    if algorithm not in OWN and outputs == 1:
        found += geometry.planes.out * geometry.K * target.run_ns(y_itemsize) / (PARTS * target.dma_engines)
    if flips(algorithm, geometry):
        found += _flip_ns(target, geometry)
    return found + sum(copy_ns(target, part) for part in copies_of(algorithm, geometry, options))


def _flip_ns(target: Target, geometry: Any) -> float:
    """ns of a core for its copy of the filter with taps in order. Of one group the copy has each output channel's taps
    in a run of their own, which its load pays for."""
    taps, item, pieces = num_taps(geometry), geometry.hbm_itemsize, flip_pieces(geometry)
    per_group = geometry.K // geometry.groups
    elements = geometry.C * per_group * taps
    rows = sum(part[1] for part, _ in pieces)
    copied_ns = len(pieces) * taps * target.vector_fixed_ns + elements / rows * len(pieces) * target.vector_16bit_ns
    moved_ns = 2 * elements * item * target.hbm_byte_ns
    short = geometry.C // geometry.groups > 1
    runs_ns = geometry.C * per_group * target.run_ns(taps * item) / target.dma_engines if short else 0.0
    return float(max(copied_ns, moved_ns) + runs_ns / (PARTS if geometry.groups == 1 else 1))


def copy_ns(target: Target, part: Any) -> float:
    """ns of both cores for a copy."""
    A, N, H, B = part.shape
    mine, all_engines = N * A * H * B / PARTS, target.dma_engines
    engines = min(all_engines, -(-A // (PARTITIONS // all_engines)))
    read_ns = mine * part.item * target.byte_ns / (target.transpose_rate * all_engines)
    if part.is_sorted:
        engines, run = all_engines, A * (B if part.source[3] == A else 1)
        read_ns = mine / run * target.run_ns(run * part.item) / engines
    run = B * (A if part.target[0] == B else 1)
    written_ns = mine / run * target.run_ns(run * part.item) / engines
    return float(max(read_ns + written_ns, 2 * mine * part.item * target.hbm_byte_ns))
