"""What few kernels use, on the timeline: explicit addresses, depends_on, registers, sendrecv, slow reductions."""

import pytest
from pairs import run
from timelines import BF16, DGE, ENGINE, FP32, HBM, tile, timed

from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator import timeline as tl
from nkiconv.simulator.timing import PriceList, Rates

SHARED = nl.shared_hbm


def filled(engine, address=None):
    made = nl.ndarray((128, 64), FP32, address=address)
    nisa.memset(made, 0.0, engine=engine)
    return made


SECOND = {"same": ((0, 0), True), "overlapping": ((0, 128), True), "beside": ((0, 256), False), "any": (None, False)}


@pytest.mark.parametrize(("second", "waits"), SECOND.values(), ids=SECOND)
def test_tensors_at_overlapping_addresses_share_their_memory(second, waits):
    """The second tensor's first write waits for the last user of the first's memory."""

    def body():
        nisa.tensor_copy(tile(64), filled(ENGINE.gpsimd, (0, 0)), engine=ENGINE.gpsimd)
        filled(ENGINE.vector, second)

    line = timed(body)
    assert line.start[2] == (pytest.approx(line.visible[1] + 38) if waits else 0)


def test_registers_take_what_a_load_from_hbm_takes():
    def body():
        register = nisa.register_alloc(0)
        nisa.register_load(register, nl.ndarray((1,), nl.int32, HBM))
        nisa.register_move(register, 3)

    line = timed(body)
    assert line.start == [0.0, 650.0]
    assert line.visible == [650.0, 718.0]


# what takes long: an instruction behind another, ns from its start to its end
SLOW = {
    "a reduction over partitions": (lambda: nisa.tensor_partition_reduce(tile(16, rows=1), nl.add,
     filled(ENGINE.gpsimd)[:, 0:16]), 176.9 + 16 * 213.3),
    "13 cycles for a triple of bn_aggr": (
        lambda: (nisa.memset(stats := tile(12), 0.0), nisa.bn_aggr(tile(2), stats)), 153 + 4 * 13 / 0.96
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "takes"), SLOW.values(), ids=SLOW)
def test_slow_reductions(body, takes):
    line = timed(body)
    assert line.visible[1] - line.start[1] == pytest.approx(takes)


@pytest.mark.parametrize(("options", "words"), [
    ({"order": "random"}, "order='random': must be one of program, lookahead"),
    ({"phase": 1.0}, r"phase=1\.0: must be at least 0 and below 1"),
    ({"phase": -0.1}, r"phase=-0\.1: must be"),
])  # fmt: skip
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        tl.Options(**options)


def test_an_op_without_a_price_is_named():
    (program,) = run(lambda: nisa.memset(tile(4), 0.0), trace_only=True).programs
    program.instructions[0].engine, program.instructions[0].op = "sync", "teleport"
    with pytest.raises(NotImplementedError, match="no teleport on the sync engine"):
        tl.build([program], PriceList(Rates()))


def crossed_sendrecvs():
    """Core 0's first tile is ready late, core 1's second: in look-ahead order each could begin with another meeting."""
    core = nl.program_id(0)
    tiles = tile(64), tile(64)
    slow, fast = tiles if core == 0 else tiles[::-1]
    nisa.memset(fast, 0.0)
    nisa.dma_copy(slow, tile(64, FP32, HBM))
    for pipe, sent in enumerate(tiles):
        nisa.sendrecv(sent, tile(64), 1 - core, 1 - core, pipe)


def crossed_barriers():
    core, ready = nl.program_id(0), tile(64)
    tensors = [tile(64, FP32, SHARED, 256) for _ in range(2)]
    nisa.memset(ready, 0.0)
    for position, tensor in enumerate(tensors):
        source = tile(64)
        if position == core:
            nisa.dma_copy(source, tile(64, FP32, HBM))
        else:
            nisa.memset(source, 0.0)
        nisa.dma_copy(tensor[128 * core : 128 * core + 128], source)
    for tensor in tensors:
        nisa.core_barrier(tensor, (0, 1), engine=ENGINE.unknown)


def store_behind_a_meeting():
    """Core 0 still has to trigger a store on Scalar while Scalar waits at a barrier for what core 1 makes of it."""
    core = nl.program_id(0)
    given, taken = (tile(64, FP32, SHARED) for _ in range(2))
    result = tile(64)
    if core == 0:
        late = tile(64)
        nisa.memset(late, 0.0)
        nisa.activation(result, nl.exp, late)
        nisa.dma_copy(given, result, dge_mode=DGE.hwdge, engine=ENGINE.scalar)
    nisa.core_barrier(given, (0, 1))
    if core == 1:
        nisa.dma_copy(result, given)
        nisa.dma_copy(taken, result)
    nisa.core_barrier(taken, (0, 1), engine=ENGINE.scalar)


@pytest.mark.parametrize("order", ["program", "lookahead"])
@pytest.mark.parametrize("body", [crossed_sendrecvs, crossed_barriers, store_behind_a_meeting])
def test_meetings_do_not_deadlock(body, order):
    line = timed(body, lnc=2, order=order)
    assert max(line.visible) < 40_000


def waiting(for_whom):
    def body():
        first, second = (nisa.memset(tile(64), 0.0) for _ in range(2))
        first.depends_on({"itself": first, "the next": second}.get(for_whom, for_whom))

    return body


@pytest.mark.parametrize(("for_whom", "words"), [
    ("the next", r"instruction 0 \(memset at .*waits for instruction 1"), ("itself", "NKI173.*itself"),
    (3, "NKI173.*3"),
])  # fmt: skip
def test_depends_on_takes_earlier_instructions_only(for_whom, words):
    with pytest.raises(ValueError if for_whom == "the next" else NkiError, match=words):
        timed(waiting(for_whom))


def test_a_cast_is_not_given_to_hardware_made_descriptors():
    """GpSimd gets it where the kernel leaves the choice: 1200 to prepare a load, 760 + 540 to the last first packet."""
    line = timed(lambda: nisa.dma_copy(tile(64), tile(64, BF16, HBM)))
    assert line.start == [1200.0]
    assert line.arrival[0] == pytest.approx(1200 + 760 + 540)
