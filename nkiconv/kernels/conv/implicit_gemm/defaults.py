"""Settings of a kernel that is called without some, or all, and what is wrong with some for a problem."""

from ...._nki import nl
from ....schedules.geometry import num_taps
from ....schedules.implicit_gemm import FOLDS, X_BYTES, ImplicitGemmSettings
from ....schedules.settings import setting
from ....schedules.tiles import PARTS, div_ceil
from ..transposes import is_transposed
from .cuts import TAPS_RAW_BYTES
from .fold import depth_of, rows_of
from .jobs import TAPS_FILTER_BYTES, by_input, can_move
from .last import is_last
from .pairs_fp8 import FP8_PRODUCTS, products_refusal
from .plan import make_plan, taps_sbuf_bytes

#: Matmuls that warm the array up while the first filters are on their way, where they are few: a load of 128 rows of w
#: takes some 2.1 us to the array, a matmul 107 ns at half rate. Of packed filters fewer, as nothing is transposed. Of
#: long ones so many, and one more for so many bytes of a row, up to a limit.
TAPS_WARM_UP = 20
WARM_UP_PACKED = 18
TAPS_WARM_UP_FIRST, TAPS_WARM_UP_BYTES, TAPS_WARM_UP_LONG = 12, 363, 64
#: Outputs of an axis above which channels are folded; products of an element of x from which on the array has more to
#: do with it than DMA.
FOLD_MIN = 8
WORK_MIN = 512
#: Of fp8, elements of a row of x below which rows come in one run; products of one from which on x may come twice.
LONG_ROW, HALVES_WORK_MIN = 128, 8
#: Bytes of a row of x that cost less than another run does.
RUN_BYTES = 127


def taps_config_refusal(geometry, extras, config):
    """What is wrong with settings, whatever they come to; "" if nothing is."""
    reason = ImplicitGemmSettings.refusal(config)
    if reason != "":
        return reason
    product = asked_product(geometry, extras, config)
    reason = products_refusal(geometry, extras, product)
    if reason == "":
        reason = fold_refusal(geometry, extras, setting(config, "fold", FOLDS[0]), product)
    if reason == "" and setting(config, "moved", 0) > 0 and not can_move(geometry):
        reason = (
            f"config moved={setting(config, 'moved', 0)}: DMA transposes plain filters of 16 bits and one group only, "
            f"none of transposed convolutions; use 0"
        )
    if reason == "" and setting(config, "loop", 0) > 0:
        reason = loop_refusal(geometry, extras, setting(config, "loop", 0), product)
    return reason


def loop_refusal(geometry, extras, loop, product):
    """Why bands cannot be worked on in a loop on the device; "" if they can."""
    reason = ""
    if geometry.direct != None:
        reason = "precision=winograd adds frames of a band between the matmuls of another"
    elif product != "single":
        reason = f"product={product} prepares x of a band between the matmuls of another"
    elif is_transposed(geometry) or is_last(geometry):
        reason = "needs rows of x and y in HBM, not channels side by side"
    return reason if reason == "" else f"config loop={loop}: {reason}; use 0"


def fold_refusal(geometry, extras, fold, product):
    """Why these channels cannot be folded; "" if they can."""
    if fold != "none" and extras.strict_nonfinite:
        return f"config fold={fold}: multiplies by zeros, which strict_nonfinite=True forbids; use 'none'"
    if fold in ("inputs", "both") and depth_of(geometry) == 1:
        return (
            f"config fold={fold}: needs C={geometry.C} with 1 to 64 channels beyond a multiple of 128, several "
            f"columns of taps, one group, no lhs_dilation of columns, and rows of x in HBM, not channels side by side; "
            f"use 'none' or 'outputs'"
        )
    if fold in ("outputs", "both") and product in FP8_PRODUCTS:
        return f"config fold={fold}, product={product}: outputs of fp8 pairs are not folded; use 'none' or 'inputs'"
    if fold in ("outputs", "both") and rows_of(geometry) == 1:
        return (
            f"config fold={fold}: needs K={geometry.K} with 1 to 64 channels beyond a multiple of 128, two rows of "
            f"outputs that share rows of x, one group, blocks of a packed filter that divide 128, no lhs_dilation of "
            f"rows, and rows of y in HBM, not channels side by side; use 'none' or 'inputs'"
        )
    return ""


def taps_defaults(geometry, extras, filter_bytes, product):
    """Settings of a kernel that is called without. filter_bytes: given, or 0: as many as there is room for;
    product: how they are taken."""
    found = None
    for shorter in (1, 2, 4, 8):
        if found == None or (filter_bytes == 0 and room_for(geometry, extras, found) < 0):
            wanted_bytes = filter_bytes if filter_bytes > 0 else TAPS_FILTER_BYTES // shorter
            found = read_taps(geometry, extras, None, wanted_bytes, product)
    return found


def read_taps(geometry, extras, config, filter_bytes, product):
    """All settings of a config; what that leaves open is as of a kernel that is called without."""
    shares = "channels" if default_shares_channels(geometry) else "images"
    return ImplicitGemmSettings.read(
        config,
        shard=shares,
        x_bytes=X_BYTES if geometry.direct == None else X_BYTES // 2,
        filter_bytes=filter_bytes,
        warmup=default_warmup(geometry),
        fold=default_fold(geometry, extras, product),
        wide=RUN_BYTES // geometry.itemsize,
        product=product,
    )


def default_shares_channels(geometry):
    """Whether cores share output channels: whole jobs each, of filters that are longer than x or of much work on it."""
    rows, columns = geometry.rows, geometry.columns
    x = geometry.planes.out * rows.size * columns.size
    work = num_taps(geometry) * geometry.K
    outputs = geometry.planes.out * rows.out * columns.out
    long = x * geometry.groups <= work or outputs * work >= WORK_MIN * geometry.groups * x
    return long and div_ceil(geometry.K, nl.tile_size.pmax) % PARTS == 0


def default_warmup(geometry):
    """Matmuls on zeros until the first block of filters is there."""
    if geometry.packed > 0:
        return WARM_UP_PACKED
    if by_input(geometry):
        run_bytes = min(nl.tile_size.pmax, geometry.K) * num_taps(geometry) * geometry.itemsize
        return min(TAPS_WARM_UP_LONG, TAPS_WARM_UP_FIRST + run_bytes // TAPS_WARM_UP_BYTES)
    channels = min(nl.tile_size.pmax, geometry.C // geometry.groups)
    block_bytes = min(TAPS_RAW_BYTES, channels * num_taps(geometry) * geometry.itemsize)
    return min(TAPS_WARM_UP_LONG, max(TAPS_WARM_UP, TAPS_WARM_UP_FIRST + block_bytes // TAPS_WARM_UP_BYTES))


def asked_product(geometry, extras, config):
    """How products are taken by a config, or where it does not say: fp8 that pairs has no folded outputs."""
    usual = usual_product(geometry, extras)
    if usual in FP8_PRODUCTS and setting(config, "fold", "none") in ("outputs", "both"):
        usual = "single"
    return setting(config, "product", usual)


def usual_product(geometry, extras):
    """How products are taken where no setting says."""
    if geometry.precision == "fp16x3":
        return "fp16x3"
    rows, columns = geometry.rows, geometry.columns
    work = rows.taps * columns.taps * rows.out * columns.out * div_ceil(geometry.K, nl.tile_size.pmax)
    if products_refusal(geometry, extras, "fp8_pairs") != "":
        return "single"
    if columns.size < LONG_ROW and columns.taps > 1 and rows.size > 1:
        return "fp8_staged"
    return "fp8_halves" if work >= HALVES_WORK_MIN * rows.size * columns.size else "fp8_pairs"


def default_fold(geometry, extras, product):
    """Folded channels: where they are all, or rows and columns make up for more of x, and for filters twice; not where
    most taps of a row meet zeros, which are skipped if nothing is folded."""
    rows = geometry.rows
    inputs = geometry.columns.out > FOLD_MIN or geometry.C <= nl.tile_size.pmax
    inputs = inputs and geometry.columns.size >= geometry.columns.taps
    inputs = inputs and fold_refusal(geometry, extras, "inputs", product) == ""
    outputs = rows.out > FOLD_MIN and 2 * (rows.taps + rows.stride // rows.dilation) <= 3 * rows.taps
    outputs = outputs and fold_refusal(geometry, extras, "outputs", product) == ""
    if inputs and outputs:
        return "both"
    if inputs or outputs:
        return "inputs" if inputs else "outputs"
    return "none"


def room_for(geometry, extras, config):
    """Bytes a partition of SBUF that settings leave."""
    needed = taps_sbuf_bytes(geometry, make_plan(geometry, extras, config), extras)
    return nl.tile_size.total_available_sbuf_size - needed
