"""The memories of a NeuronCore by name, questions about them, and `nl.tile_size`: the limits of one instruction."""

from __future__ import annotations

from typing import Any

from .. import hardware as hw
from ..memory import PRIVATE_HBM, PSUM, SBUF, SHARED_HBM
from ..objects import NKIObject

sbuf, psum = SBUF, PSUM
hbm = private_hbm = PRIVATE_HBM
shared_hbm = SHARED_HBM


def is_sbuf(buffer: Any) -> bool:
    """Whether a memory is SBUF."""
    return buffer is SBUF


def is_psum(buffer: Any) -> bool:
    """Whether a memory is PSUM."""
    return buffer is PSUM


def is_hbm(buffer: Any) -> bool:
    """Whether a memory is any HBM."""
    return buffer is PRIVATE_HBM or buffer is SHARED_HBM


def is_on_chip(buffer: Any) -> bool:
    """Whether a memory is SBUF or PSUM."""
    return buffer is SBUF or buffer is PSUM


class _TileSize(NKIObject):
    """Hardware tile sizes of trn2; sizes in elements of fp32 unless the name says bytes."""

    pmax = hw.PARTITIONS
    psum_fmax = hw.PSUM_BANK_FP32_ELEMS
    psum_bank_fmax = hw.PSUM_BANK_FP32_ELEMS
    psum_bank_fmax_bytes = hw.PSUM_BANK_BYTES_PER_PARTITION
    gemm_stationary_fmax = hw.STATIONARY_FREE_MAX
    gemm_moving_fmax = hw.MOVING_FREE_MAX
    bn_stats_fmax = hw.BN_STATS_FREE_MAX
    psum_min_align = hw.PSUM_MIN_ALIGN_BYTES
    sbuf_min_align = hw.SBUF_MIN_ALIGN_BYTES
    psum_num_banks = hw.PSUM_BANKS
    sbuf_size_bytes = hw.PARTITIONS * hw.SBUF_BYTES_PER_PARTITION
    sbuf_fmax = hw.SBUF_USABLE_BYTES_PER_PARTITION // 4
    sbuf_fmax_bytes = hw.SBUF_USABLE_BYTES_PER_PARTITION
    total_available_sbuf_size = hw.SBUF_USABLE_BYTES_PER_PARTITION


tile_size = _TileSize()
