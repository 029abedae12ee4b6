"""A trn2 NeuronCore (gen3): every size limit that the rules check and every constant that the timing uses.

All figures are per NeuronCore. "arch" is AWS's Trainium2 architecture guide, "inf2 arch" the Trainium/Inferentia2 one
it extends, "isa" the contract of the named nki.isa call. Timing constants, and the memory sizes among them, are read
from trn2.toml next to this file (`constants`): each has a value, a unit, a source and a standing, and no other module
holds a number.
"""

from __future__ import annotations

from .constants import SHIPPED, InUse

#: Every constant in use, by section.name.
CONSTANTS = InUse()


def _size(name: str) -> int:
    return int(SHIPPED[name].value)  # limits are the same under every target


#: Partitions of SBUF and PSUM, and so the largest partition size of a tile (arch; nl.tile_size.pmax).
PARTITIONS = 128

#: SBUF bytes of one partition: 224 KiB (arch, "28 MiB, or 128 partitions of 224 KiB").
SBUF_BYTES_PER_PARTITION = _size("memory.sbuf_bytes_per_partition")

#: SBUF bytes of one partition that a kernel may use (nki-library, mlp_cte_constants: the rest is the runtime's).
SBUF_USABLE_BYTES_PER_PARTITION = _size("memory.sbuf_usable_per_partition")

#: PSUM banks (arch: 16 KiB a partition in 8 banks).
PSUM_BANKS = _size("memory.psum_banks")

#: Bytes of one PSUM bank on one partition (nl.tile_size.psum_bank_fmax_bytes).
PSUM_BANK_BYTES_PER_PARTITION = _size("memory.psum_bank_bytes")

#: PSUM bytes of one partition.
PSUM_BYTES_PER_PARTITION = PSUM_BANKS * PSUM_BANK_BYTES_PER_PARTITION

#: fp32 elements of one PSUM bank on one partition (nl.tile_size.psum_bank_fmax).
PSUM_BANK_FP32_ELEMS = PSUM_BANK_BYTES_PER_PARTITION // 4

#: Byte alignment of a PSUM address on the free axis (nl.tile_size.psum_min_align; value from the KLR compiler's table).
PSUM_MIN_ALIGN_BYTES = 4

#: Byte alignment of an SBUF address on the free axis (nl.tile_size.sbuf_min_align; the same table).
SBUF_MIN_ALIGN_BYTES = 1

#: Columns of the stationary operand (isa nc_matmul; nl.tile_size.gemm_stationary_fmax).
STATIONARY_FREE_MAX = _size("pe.max_stationary_free")

#: Columns of the moving operand (isa nc_matmul on v2/v3; nl.tile_size.gemm_moving_fmax).
MOVING_FREE_MAX = _size("pe.max_moving_free")

#: Elements a partition that one bn_stats reads (isa bn_stats; nl.tile_size.bn_stats_fmax).
BN_STATS_FREE_MAX = 512

#: Values that max8 finds and that nc_find_index8 and nc_match_replace8 look for, a partition (isa max8).
SEARCH_VALUES = 8

#: Elements a partition that a search reads, at most (isa max8, nc_find_index8).
SEARCH_FREE_MAX = 16_384

#: Free dimensions that a search walks: its tiles are at most 3-dimensional (isa max8, nc_find_index8).
FREE_DIMS_SEARCH = 2

#: Partitions that one of GpSimd's 8 cores reads and writes (isa local_gather).
GPSIMD_CORE_PARTITIONS = 16

#: Indices of one GpSimd core in a local_gather (isa local_gather).
LOCAL_GATHER_INDICES_MAX = 4096

#: Elements that topk chooses from: at least, and fewer than; and results, fewer than (isa topk).
TOPK_LEAST = 8
TOPK_LIMIT = 1 << 16
TOPK_RESULTS_LIMIT = 1 << 15

#: Rows and columns of the largest Vector Engine transpose (isa nc_transpose).
VECTOR_TRANSPOSE_MAX = 32

#: Partitions of a quadrant: cross-partition moves and start partitions are counted in these (inf2 arch).
QUADRANT_PARTITIONS = 32

#: Rows, and columns, of the array that a tiled matmul may use (isa nc_matmul, "Tiling mode").
MATMUL_TILES = (32, 64, 128)

#: Rows of the array a double_row matmul contracts at once, per partition (isa nc_matmul, "Layout").
DOUBLE_ROW = 2

#: Dimensions of a view (NKI language guide, "Tensor Values").
VIEW_DIMS_MAX = 5

#: Free dimensions that most instructions can walk (access-pattern guide: 1D/2D/3D in the free dimension).
FREE_DIMS_MAX = 3

#: Free dimensions of the hardware's access pattern, which tensor_reduce, iota and affine_select can use in full.
FREE_DIMS_MAX_WIDE = 4

#: Largest size of one free axis in an instruction, uint16 (inf2 arch).
AXIS_SIZE_MAX = 65_535

#: Largest stride of one free axis in an instruction, in elements, int16 (inf2 arch).
AXIS_STRIDE_MAX = 32_767

#: Sources of one dma_compute (isa dma_compute).
DMA_COMPUTE_SOURCES_MAX = 16

#: Last dimension of a dma_transpose source on the hardware path (isa dma_transpose).
DMA_TRANSPOSE_LAST_DIM_MAX = 128

#: First dimension of a 3-d or 4-d dma_transpose source on the hardware path (isa dma_transpose).
DMA_TRANSPOSE_FIRST_DIMS = (1, 2, 4, 8, 16)

#: First dimension of a 2-d dma_transpose source on the hardware path (isa dma_transpose).
DMA_TRANSPOSE_FIRST_DIM_2D = 16

#: Bytes a partition that sendrecv moves with GpSimd's own DMA, by element size (isa sendrecv).
SENDRECV_GPSIMD_BYTES = {4: 1024, 2: 512, 1: 256}

#: Entries of a nc_stream_shuffle mask, and the entry that leaves a partition alone (isa nc_stream_shuffle).
SHUFFLE_MASK_ENTRIES = 32
SHUFFLE_KEEP = 255

#: Instructions of one core above which the compiler refuses an unrolled kernel (NCC_EBVF030, reported by users).
INSTRUCTIONS_MAX = 5_000_000

#: Physical cores of a logical core: LNC2 is the largest on trn2 (LNC guide).
LNC_DEGREES = (1, 2)
