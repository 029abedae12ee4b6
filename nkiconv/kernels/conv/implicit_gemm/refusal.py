"""Whether one matmul a tap takes a problem under its settings, and the plan of them."""

from ...._nki import nl
from ....schedules.cuts import chunks_of
from ....schedules.geometry import instructions_refusal
from ....schedules.settings import setting
from ....schedules.tiles import INSTRUCTIONS_MAX, PSUM_BANKS
from .defaults import asked_product, loop_refusal, read_taps, taps_config_refusal, taps_defaults
from .fold import chunk_window
from .fp8 import x_elements
from .pairs_fp8 import ALONE, FP8_PRODUCTS, SLOT_MAX, slots_of
from .plan import can_together, count_taps_instructions, make_plan, sums_together, taps_sbuf_bytes


def plan_taps(geometry, extras, config, cores):
    """(Plan, "") of this on `cores` cores, or (None, why not); without fp8 pairs where there is no room for them."""
    reason = taps_config_refusal(geometry, extras, config)
    if reason != "":
        return None, reason
    product = asked_product(geometry, extras, config)
    plan, reason = plan_product(geometry, extras, config, cores, product)
    if reason != "" and product in FP8_PRODUCTS and setting(config, "product", "") == "":
        return plan_product(geometry, extras, config, cores, "single")
    return plan, reason


def plan_product(geometry, extras, config, cores, product):
    """The same of products that are taken so."""
    filter_bytes = taps_defaults(geometry, extras, setting(config, "filter_bytes", 0), product).filter_bytes
    plan = make_plan(geometry, extras, read_taps(geometry, extras, config, filter_bytes, product))
    count = count_taps_instructions(geometry, plan, cores)
    open_loop = setting(config, "loop", -1) < 0 and loop_refusal(geometry, extras, 1, product) == ""
    if count * geometry.times > INSTRUCTIONS_MAX and open_loop:
        looped = (("loop", 1),) if config == None else config + (("loop", 1),)
        plan = make_plan(geometry, extras, read_taps(geometry, extras, looped, filter_bytes, product))
        count = count_taps_instructions(geometry, plan, cores)
    needed, room = taps_sbuf_bytes(geometry, plan, extras), nl.tile_size.total_available_sbuf_size
    if needed > room:
        return None, (
            f"C={geometry.C}, W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: "
            f"implicit_gemm needs {needed} bytes per partition of SBUF for the window of one output and its filters, "
            f"there are {room}; split C over several calls and add, or use a smaller filter"
        )
    if geometry.direct == None:
        plan.first_bytes += room - needed
    else:
        plan.frames_bytes += room - needed
    reason = order_refusal(geometry, plan)
    if reason == "":
        reason = slots_refusal(geometry, plan)
    if reason == "":
        reason = instructions_refusal(geometry, "implicit_gemm", count, loops_most(geometry, plan, cores, count))
    return (plan, "") if reason == "" else (None, reason)


def loops_most(geometry, plan, cores, count):
    """Whether `count` instructions with a loop on the device are less than half of those without, of a part."""
    if geometry.times == 1 or plan.loop == 0:
        return False
    loop = plan.loop
    plan.loop = 0
    unrolled = count_taps_instructions(geometry, plan, cores)
    plan.loop = loop
    return 2 * count < unrolled


def slots_refusal(geometry, plan):
    """Why what pairs lies too far apart; "" if it does not."""
    most = 0
    if geometry.itemsize > 1:  # nothing is paired
        return ""
    for item in plan.items:
        for chunk in chunks_of(plan.batches[item.batch]):
            if slots_of(chunk) > 1:
                most = max(most, x_elements(geometry, chunk, item.band) // slots_of(chunk))
            elif chunk[3] != ALONE:
                columns = chunk_window(geometry, chunk, item.band)[1]
                most = max(most, (geometry.rows.taps - 1) * geometry.rows.dilation * columns)
    if most > SLOT_MAX:
        return (
            f"config product: pairs of fp8 with W={geometry.columns.size}, R={geometry.rows.taps}, "
            f"S={geometry.columns.taps} lie {most} elements apart, at most {SLOT_MAX} are possible; use "
            f"'single', or a smaller x_bytes"
        )
    return ""


def order_refusal(geometry, plan):
    """Why the sums of a plan's batches cannot be made chunk by chunk of x, where they are; "" if they can."""
    for index in range(len(plan.batches)):
        batch = plan.batches[index]
        if plan.together[index] and not can_together(geometry, batch):
            return (
                f"config order=chunks, C={geometry.C}, K={geometry.K}: needs jobs that take the same several chunks of "
                f"128 channels, no folded outputs, and rows of x and y in HBM, not channels side by side; use 'banks'"
            )
        needed = sums_together(geometry, batch, index, plan.items) + 1  # the last bank of all may be cut in two
        if plan.together[index] and needed > PSUM_BANKS:
            return (
                f"config order=chunks: the sums of a band and filters take {needed} banks of PSUM, there are "
                f"{PSUM_BANKS}; use 'banks', or a smaller x_bytes"
            )
    return ""
