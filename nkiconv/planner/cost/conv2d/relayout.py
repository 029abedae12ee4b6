"""What copies of NHWC tensors take, for algorithms that read rows of x and write rows of y."""

from __future__ import annotations

from ....kernels._tiles import PARTS
from ....kernels.conv2d.relayout import FEW, OWN, turns_x, turns_y
from ....simulator.hardware import PARTITIONS
from ....simulator.timing.target import Target
from ..algorithm import Shape

#: Rate of a DMA that transposes (trn2.toml, dma.dma_transpose_frac_hbm); ns until a copy's first and after its last
#: byte is of use, and of two cores that wait for each other (dma.hwdge_*, dma.done_to_consumer_ns,
#: lnc2.barrier_seam_ns).
TRANSPOSE_RATE = 0.9
START_NS = 4500.0
MEET_NS = 2000.0


def relayout_ns(algorithm: str, shape: Shape) -> float:
    """ns of both cores for the copies; of images of one pixel, which are in both layouts, for single elements."""
    geometry, extras, target = shape.geometry, shape.extras, shape.target
    if algorithm in OWN:
        return 0.0
    pixels, outputs = geometry.rows.size * geometry.columns.size, geometry.rows.out * geometry.columns.out
    y_itemsize, width = extras.epilogue.y_itemsize, geometry.columns.size
    found = 0.0
    if pixels == 1:
        found += geometry.N * geometry.C * target.run_ns(geometry.hbm_itemsize) / (PARTS * target.dma_engines)
    if outputs == 1:
        found += geometry.N * geometry.K * target.run_ns(y_itemsize) / (PARTS * target.dma_engines)
    if turns_x(algorithm, geometry):
        runs = (geometry.C * width if geometry.C <= FEW else 0, width)
        partitions = min(geometry.C, PARTITIONS)
        found += _copy_ns(target, geometry.N * geometry.C * pixels, geometry.hbm_itemsize, runs, partitions)
    if turns_y(algorithm, geometry):
        Q = geometry.columns.out // extras.pool[1]
        runs = (Q, geometry.K * Q) if geometry.K <= FEW else (0, geometry.K)
        elements: int = geometry.N * geometry.K * outputs
        found += _copy_ns(target, elements // (extras.pool[0] * extras.pool[1]), y_itemsize, runs, PARTITIONS)
        if extras.residual:
            found += _copy_ns(target, elements, 4, (0, geometry.columns.out), min(geometry.K, PARTITIONS))
    return found


def _copy_ns(target: Target, elements: int, item: int, runs: tuple[int, int], partitions: int) -> float:
    """ns of both cores for a copy; runs: elements side by side of what it reads (0: DMA transposes it) and writes."""
    mine, all_engines = elements / PARTS, target.dma_engines
    engines = all_engines if runs[0] > 0 else min(all_engines, -(-partitions // (PARTITIONS // all_engines)))
    read_ns = mine * item * target.byte_ns / (TRANSPOSE_RATE * all_engines)
    if runs[0] > 0:
        read_ns = mine / runs[0] * target.run_ns(runs[0] * item) / all_engines
    written_ns = mine / runs[1] * target.run_ns(runs[1] * item) / engines
    return float(START_NS + MEET_NS + max(read_ns + written_ns, 2 * mine * item * target.hbm_byte_ns))
