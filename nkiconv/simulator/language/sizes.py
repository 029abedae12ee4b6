"""`nl.tile_size`: the hardware's limits of one instruction."""

from __future__ import annotations

from .. import hardware as hw
from ..objects import NKIObject


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
