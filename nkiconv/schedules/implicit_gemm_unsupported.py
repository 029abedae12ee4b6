"""Unsupported reasons of `implicit_gemm`: problems, settings, and schedules that do not fit SBUF or PSUM."""

from __future__ import annotations

import itertools

from .geometry import Geometry, filter_rows, images_unsupported, is_transposed, moves_pairs
from .implicit_gemm import (
    ALONE,
    CHUNKS,
    FOLDS,
    PRODUCTS,
    ImplicitGemmSettings,
    can_move,
    can_together,
    fold_of,
    rows_of,
    stores_channels,
    tap_groups,
)
from .implicit_gemm_products import x_place
from .implicit_gemm_schedule import Schedule
from .options import PROLOGUE_ARGUMENTS, Options
from .settings import Config
from .tiles import P_MAX, PSUM_BANKS, QUADRANT, SBUF_BYTES, STEP_MAX

ROWS_IN_HBM = "rows of x and y in HBM, not channels side by side"


def room_unsupported(schedule: Schedule) -> str:
    """Why a schedule exceeds SBUF, PSUM or access patterns; "" if it fits."""
    geometry = schedule.geometry
    if schedule.spare_bytes < 0:
        return (
            f"C={geometry.C}, W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: "
            f"implicit_gemm needs {schedule.sbuf_bytes} bytes per partition of SBUF for the window of one output and "
            f"its filters, there are {SBUF_BYTES}; split C over several calls and add, or use a smaller filter"
        )
    norm = schedule.options.epilogue.norm
    if norm is not None and len(schedule.batches) > 1:
        return (
            f"y_norm={norm.kind}, K={geometry.K}, config shard={schedule.settings.shard}: implicit_gemm needs filters "
            f"of all output channels in SBUF together; use shard=images, a smaller x_bytes, or normalize y"
        )
    return _order_unsupported(geometry, schedule) or _slots_unsupported(geometry, schedule)


def norm_unsupported(geometry: Geometry, options: Options) -> str:
    """Why no settings normalize sums of a problem; "" if some do."""
    norm = options.epilogue.norm
    if norm is None:
        return ""
    reason = ""
    if geometry.groups > 1:
        reason = f"takes feature_group_count=1, not {geometry.groups}; normalize y"
    elif stores_channels(geometry):
        use = "store y as NCHW" if geometry.itemsize == 1 else "use activation_stationary"
        reason = f"takes rows of y in HBM, not channels side by side; {use}"
    elif geometry.precision in ("fp16x3", "winograd"):
        reason = f"takes no precision={geometry.precision}; normalize y"
    return reason and f"y_norm={norm.kind}: implicit_gemm {reason}"


def _slots_unsupported(geometry: Geometry, schedule: Schedule) -> str:
    """Why the two of a pair lie too far apart; "" if they do not."""
    rows, most = geometry.rows, 0
    for item in schedule.items if geometry.itemsize == 1 else ():
        for k_tile in schedule.k_tiles[item.batch]:
            place = x_place(geometry, k_tile, item.out_tile)
            if k_tile.pairing == CHUNKS:
                most = max(most, place.elements)
            elif k_tile.pairing != ALONE:
                most = max(most, (rows.taps - 1) * rows.dilation * place.columns)
    for m_tile in itertools.chain(*schedule.batches) if geometry.itemsize == 1 else ():
        paired = [k_tile for k_tile in m_tile.k_tiles if k_tile.pairing != ALONE]
        slots = [filter_rows(geometry) * tap_groups(geometry, k_tile) * m_tile.kn for k_tile in paired]
        most = max(most, *slots, 0)
    if most <= STEP_MAX:
        return ""
    return (
        f"config product: pairs of fp8 with W={geometry.columns.size}, R={rows.taps}, S={geometry.columns.taps} lie "
        f"{most} elements apart, at most {STEP_MAX} are possible; use 'single', or a smaller x_bytes"
    )


def _order_unsupported(geometry: Geometry, schedule: Schedule) -> str:
    """Why the sums of groups cannot be made one K tile of x after the other, as settings ask; "" if they can."""
    for index, batch in enumerate(schedule.batches if schedule.together else ()):
        if not can_together(geometry, batch):
            return (
                f"config order=chunks, C={geometry.C}, K={geometry.K}: needs M tiles with the same several K tiles of "
                f"128 channels, no folded outputs, and {ROWS_IN_HBM}; use 'banks'"
            )
        needed = schedule.banks_together(index) + 1  # the last bank of all may be cut in two
        if needed > PSUM_BANKS:
            return (
                f"config order=chunks: sums of an output tile and filters take {needed} banks of PSUM, there are "
                f"{PSUM_BANKS}; use 'banks', or a smaller x_bytes"
            )
    return ""


def config_unsupported(geometry: Geometry, options: Options, config: Config) -> str:
    """The error of a config, or why the problem does not support its settings; "" if it does."""
    reason = ImplicitGemmSettings.unsupported_reason(config)
    reason = reason or norm_unsupported(geometry, options)
    if reason != "":
        return reason
    given = dict(config or ())
    product, moved, loop = given.get("product", ""), given.get("moved", 0), given.get("loop", 0)
    reason = products_unsupported(geometry, options, product) if product else ""
    other = "fp8_pairs" if moves_pairs(geometry) else PRODUCTS[0]
    product = product or ("fp16x3" if geometry.precision == "fp16x3" else other)
    reason = reason or fold_unsupported(geometry, options, given.get("fold", FOLDS[0]), product)
    if reason == "" and moved > 0 and not can_move(geometry):
        reason = (
            f"config moved={moved}: DMA transposes plain filters of 16 bits and one group only, none of transposed "
            f"convolutions; use 0"
        )
    return reason or (loop_unsupported(geometry, options, loop, product) if loop > 0 else "")


def loop_unsupported(geometry: Geometry, options: Options, loop: int, product: str) -> str:
    """Why output tiles cannot run in a device loop; "" if they can."""
    norm, beside = options.epilogue.norm, "of an output tile between the matmuls of another"
    reasons = (
        (options.statistics, "return_stats='channel' adds statistics from one output tile to the next"),
        (geometry.direct is not None, f"precision=winograd adds frames {beside}"),
        (norm is not None, f"y_norm={norm and norm.kind} normalizes y {beside}"),
        (product != "single", f"product={product} prepares x {beside}"),
        (geometry.upsample > 1, f"x_upsample={geometry.upsample} takes rows of x in HBM more than once"),
        (is_transposed(geometry) or stores_channels(geometry), f"needs {ROWS_IN_HBM}"),
    )
    return next((f"config loop={loop}: {reason}; use 0" for applies, reason in reasons if applies), "")


def fold_unsupported(geometry: Geometry, options: Options, fold: str, product: str) -> str:
    """Why these channels cannot be folded; "" if they can."""
    inputs, outputs = fold in ("inputs", "both"), fold in ("outputs", "both")
    (tiles, depth), pairs = fold_of(geometry) if inputs else (1, 1), product == "fp8_pairs"
    cut = geometry.C // geometry.groups % P_MAX % (tiles * QUADRANT) > 0
    one_input, one_output = "use 'none' or 'outputs'", "use 'none' or 'inputs'"
    reasons = (
        (fold != "none" and options.strict_nonfinite,
         ": multiplies by zeros, which strict_nonfinite=True forbids; use 'none'"),
        (inputs and options.prologue.asked and cut,
         f", C={geometry.C}, {PROLOGUE_ARGUMENTS}: engines address copies of x by quadrants of {QUADRANT} channels; "
         f"{one_input}"),
        (inputs and depth == 1,
         f": needs C={geometry.C} with 1 to 64 channels beyond a multiple of 128, or 1 to 84 if S is 3 or above 4, "
         f"several columns of taps, no more than W, one group or groups of more than 64 channels, no lhs_dilation of "
         f"columns, and rows of x in HBM, not channels side by side; {one_input}"),
        (tiles > 1 and pairs, f", product={product}: fp8 pairs have one folded K tile; {one_input}"),
        (outputs and options.epilogue.norm is not None,
         f": y_norm takes a pixel a partition, outputs are not folded; {one_output}"),
        (outputs and pairs, f", product={product}: outputs of fp8 pairs are not folded; {one_output}"),
        (outputs and rows_of(geometry) == 1,
         f": needs K={geometry.K} with 1 to 64 channels beyond a multiple of 128, two rows of outputs that share rows "
         f"of x, one group, blocks of a packed filter that divide 128, no lhs_dilation of rows, and rows of y in HBM, "
         f"not channels side by side; {one_output}"),
    )  # fmt: skip
    return next((f"config fold={fold}{reason}" for applies, reason in reasons if applies), "")


def products_unsupported(geometry: Geometry, options: Options, product: str) -> str:
    """Why this kind of products does not apply; "" if it does."""
    if (product == "fp16x3") != (geometry.precision == "fp16x3"):
        return f"config product={product}: precision={geometry.precision}; use 'fp16x3' with that precision only"
    if moves_pairs(geometry):
        reason = f"config product={product}: DMA transposes channels of fp8 in twos; use 'fp8_pairs'"
        return "" if product == "fp8_pairs" else reason
    if product != "fp8_pairs":
        return ""
    if geometry.itemsize != 1:
        return f"config product={product}: takes float8_e4m3 and float8_e5m2; use 'single'"
    if geometry.groups > 1 or geometry.C == 1:
        return f"config product={product}: needs one group and several channels, not C={geometry.C}; use 'single'"
    if reason := images_unsupported(geometry.planes, f"config product={product}", "'single'"):
        return reason
    if geometry.rows.lhs_dilation > 1 or geometry.columns.lhs_dilation > 1:
        return f"config product={product}: takes lhs_dilation=(1, 1); use 'single'"
    if options.strict_nonfinite:
        return f"config product={product}: multiplies stored zeros, which strict_nonfinite=True forbids; use 'single'"
    return ""
