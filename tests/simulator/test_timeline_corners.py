"""What few kernels use, on the timeline: explicit addresses, depends_on, registers, sendrecv, slow reductions."""

import pytest
from pairs import run

from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator import timeline as tl
from nkiconv.simulator.timing import PriceList, Rates

FP32, HBM, SBUF, SHARED = nl.float32, nl.hbm, nl.sbuf, nl.shared_hbm
ENGINE, DGE = nisa.engine, nisa.dge_mode


def timed(body, lnc=1, **options):
    rates = Rates()
    tasks, prices = tl.build(run(body, lnc, trace_only=True).programs, PriceList(rates))
    return tl.run(tasks, prices, rates, tl.Options(**options))


def filled(engine, address=None):
    tile = nl.ndarray((128, 64), FP32, SBUF, address=address)
    nisa.memset(tile, 0.0, engine=engine)
    return tile


@pytest.mark.parametrize(
    ("second", "waits"),
    [((0, 0), True), ((0, 128), True), ((0, 256), False), (None, False)],
    ids=["same", "overlapping", "beside", "anywhere"],
)
def test_tensors_at_overlapping_addresses_share_their_memory(second, waits):
    """The second tensor's first write waits for the last user of the first's memory."""

    def body():
        first = filled(ENGINE.gpsimd, (0, 0))
        copy = nl.ndarray((128, 64), FP32, SBUF)
        nisa.tensor_copy(copy, first, engine=ENGINE.gpsimd)
        filled(ENGINE.vector, second)

    line = timed(body)
    if waits:
        assert line.start[2] == pytest.approx(line.visible[1] + 38)
    else:
        assert line.start[2] == 0


def test_depends_on_orders_what_no_data_orders():
    def body():
        slow = nl.ndarray((128, 2048), FP32, SBUF)
        first = nisa.memset(slow, 0.0, engine=ENGINE.gpsimd)
        quick = nl.ndarray((128, 4), FP32, SBUF)
        nisa.memset(quick, 0.0, engine=ENGINE.vector).depends_on(first)

    line = timed(body)
    assert line.start[1] == pytest.approx(line.visible[0] + 38)


def test_registers_take_what_a_load_from_hbm_takes():
    def body():
        register = nisa.register_alloc(0)
        nisa.register_load(register, nl.ndarray((1,), nl.int32, HBM))
        nisa.register_move(register, 3)

    line = timed(body)
    assert line.start == [0.0, 650.0]
    assert line.visible == [650.0, 718.0]


def test_sendrecv_ends_a_seam_and_a_transfer_after_the_later_core():
    def body():
        mine, theirs = (nl.ndarray((128, 8), FP32, SBUF) for _ in range(2))
        for _ in range(1 + nl.program_id(0)):
            nisa.memset(mine, 0.0, engine=ENGINE.vector)
        other = 1 - nl.program_id(0)
        nisa.sendrecv(mine, theirs, other, other, 0)
        nisa.memset(mine, 0.0, engine=ENGINE.vector)

    line = timed(body, lnc=2)
    first, second = 1, 5  # the meetings, of core 0 (3 tasks) and core 1 (4 tasks)
    assert line.start[second] > line.start[first]
    end = line.start[second] + 2000 + 354 * 128 * 8 * 4 / 4096
    assert line.visible[first] == line.visible[second] == pytest.approx(end)
    assert line.start[2] == line.start[6] == pytest.approx(end + 38), "mine is overwritten after it has been sent"


def test_reductions_over_partitions_are_slow():
    def body():
        row = nl.ndarray((1, 16), FP32, SBUF)
        nisa.tensor_partition_reduce(row, nl.add, filled(ENGINE.gpsimd)[:, 0:16])

    line = timed(body)
    assert line.visible[1] - line.start[1] == pytest.approx(176.9 + 16 * 213.3)


def test_bn_aggr_takes_13_cycles_a_triple():
    def body():
        stats = nl.ndarray((128, 12), FP32, SBUF)
        nisa.memset(stats, 0.0)
        nisa.bn_aggr(nl.ndarray((128, 2), FP32, SBUF), stats)

    line = timed(body)
    assert line.visible[1] - line.start[1] == pytest.approx(153 + 4 * 13 / 0.96)


@pytest.mark.parametrize(("options", "words"), [
    ({"order": "random"}, "order='random': must be one of program, lookahead"),
    ({"phase": 1.0}, r"phase=1\.0: must be at least 0 and below 1"),
    ({"phase": -0.1}, r"phase=-0\.1: must be"),
])  # fmt: skip
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        tl.Options(**options)


def test_an_op_without_a_price_is_named():
    (program,) = run(lambda: nisa.memset(nl.ndarray((128, 4), FP32, SBUF), 0.0), trace_only=True).programs
    program.instructions[0].engine, program.instructions[0].op = "sync", "teleport"
    with pytest.raises(NotImplementedError, match="no teleport on the sync engine"):
        tl.build([program], PriceList(Rates()))


def test_a_write_waits_for_reads_of_its_own_bytes_only_and_once():
    """Column writes into a tile that was read whole: each waits for the read, a second write of a column does not."""

    def body():
        table = filled(ENGINE.vector)
        for _ in range(2):
            wide = nl.ndarray((128, 64), FP32, SBUF)
            nisa.tensor_copy(wide, table, engine=ENGINE.gpsimd)
        for _ in range(2):
            for column in (3, 5):
                nisa.memset(table[:, column : column + 1], 1.0)
        nisa.memset(table[:, 2:5], 2.0)

    rates = Rates()
    tasks, _ = tl.build(run(body, trace_only=True).programs, PriceList(rates))
    waits_for = [sorted(i for i in range(8) if task in tasks.followers[i]) for task in range(8)]
    reads, columns = [1, 2], [3, 4, 5, 6]
    assert [waits_for[task] for task in columns] == [reads, reads, [], []]
    assert waits_for[7] == reads, "columns 2 and 4 of the tile are overwritten for the first time"


def tile():
    return nl.ndarray((128, 64), FP32, SBUF)


def crossed_sendrecvs():
    """Core 0's first tile is ready late, core 1's second: in look-ahead order each could begin with another meeting."""
    core = nl.program_id(0)
    tiles = tile(), tile()
    slow, fast = tiles if core == 0 else tiles[::-1]
    nisa.memset(fast, 0.0)
    nisa.dma_copy(slow, nl.ndarray((128, 64), FP32, HBM))
    for pipe, sent in enumerate(tiles):
        nisa.sendrecv(sent, tile(), 1 - core, 1 - core, pipe)


def crossed_barriers():
    core, ready = nl.program_id(0), tile()
    tensors = [nl.ndarray((256, 64), FP32, SHARED) for _ in range(2)]
    nisa.memset(ready, 0.0)
    for position, tensor in enumerate(tensors):
        source = tile()
        if position == core:
            nisa.dma_copy(source, nl.ndarray((128, 64), FP32, HBM))
        else:
            nisa.memset(source, 0.0)
        nisa.dma_copy(tensor[128 * core : 128 * core + 128], source)
    for tensor in tensors:
        nisa.core_barrier(tensor, (0, 1), engine=ENGINE.unknown)


def store_behind_a_meeting():
    """Core 0 still has to trigger a store on Scalar while Scalar waits at a barrier for what core 1 makes of it."""
    core = nl.program_id(0)
    given, taken = (nl.ndarray((128, 64), FP32, SHARED) for _ in range(2))
    result = tile()
    if core == 0:
        late = tile()
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


def test_depends_on_takes_earlier_instructions_only():
    def body():
        first, second = (nisa.memset(tile(), 0.0) for _ in range(2))
        first.depends_on(second)

    with pytest.raises(ValueError, match=r"instruction 0 \(memset at .*waits for instruction 1"):
        timed(body)


@pytest.mark.parametrize("other", [3, None, "memset"])
def test_depends_on_takes_instructions(other):
    with pytest.raises(NkiError, match=f"NKI173.*{other}"):
        timed(lambda: nisa.memset(tile(), 0.0).depends_on(other))


def test_an_instruction_does_not_wait_for_itself():
    def body():
        one = nisa.memset(tile(), 0.0)
        one.depends_on(one)

    with pytest.raises(NkiError, match=r"NKI173.*itself"):
        timed(body)


def test_a_cast_is_not_given_to_hardware_made_descriptors():
    """GpSimd gets it where the kernel leaves the choice: 1200 to prepare a load, 760 + 540 to the last first packet."""
    line = timed(lambda: nisa.dma_copy(tile(), nl.ndarray((128, 64), nl.bfloat16, HBM)))
    assert line.start == [1200.0]
    assert line.arrival[0] == pytest.approx(1200 + 760 + 540)
