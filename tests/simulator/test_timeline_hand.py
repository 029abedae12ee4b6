"""Timelines of a few instructions against times worked out by hand, each derived where it is used; then what few
kernels use: explicit addresses, depends_on, registers, sendrecv.

What they are made of (ns): a static DMA issues in 58 and its first packet follows at 775; hwdge 530 and 1330 (load) or
1190 (store); the last of 16 engines starts 300 (load) or 150 (store) later. A [128, 512] fp32 tile gives each engine
8 elements of 2 KiB: 8 * (4.7 + 2048 / 27.2) = 639.9. A semaphore takes 7, and 380 from there to whoever waits. Hops: 32
to a DMA, 35 on one engine, 38 to Vector and GpSimd, 37 to Scalar, 52 to Tensor.
"""

import itertools

import pytest
from pairs import run
from timelines import BF16, DGE, ENGINE, FLOW, FP32, HBM, PSUM, load, ns, scalar, starts, store, tile, timed, vector

from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator import timeline as tl
from nkiconv.simulator.timing import PriceList, Rates

# Chains.


# mode, ns to a load's last first packet, to a store's, to issue either
@pytest.mark.parametrize(("mode", "to_load", "to_store", "issue"), [
    ("none", 775 + 300, 775 + 150, 58), ("hwdge", 1330 + 300, 1190 + 150, 530),
])  # fmt: skip
def test_load_copy_store(mode, to_load, to_store, issue):
    def body():
        x, y = tile(), tile()
        load(x, DGE[mode])
        vector(y, x)
        store(y, DGE[mode])

    line = timed(body)
    loaded = to_load + FLOW + 7  # 1721.9, or 2276.9
    copied = loaded + 380 + 153 + 512 * 0.5208  # the copy starts at 2101.9, LAT 419.6: 2521.6, or 3076.6
    stored = copied + 32 + to_store + FLOW + 7  # the trigger is on GpSimd at 2553.6: 4125.5, or 5095.5
    assert line.start == ns(0, loaded + 380, copied + 32)
    assert line.visible == ns(loaded, copied, stored)
    assert line.free == ns(issue, loaded + 380 + 60 + 512 * 0.5208 + 10.5, copied + 32 + issue)
    assert line.total_ns == pytest.approx({"none": 4125.5, "hwdge": 5095.5}[mode], abs=0.2)


# why, what happens to a [128, 512] memset before a column of it is read: (op, rows, columns); whether it costs anything
FILLS = [
    ("a matmul overwrites all", [("matmul", 128, 0, 512)], False),
    ("a transpose and a matmul overwrite all", [("transpose", 128, 0, 128), ("matmul", 128, 128, 512)], False),
    ("rows that no matmul writes", [("matmul", 64, 0, 512)], True),
    ("columns that no matmul writes", [("matmul", 128, 0, 256)], True),
    ("read between two matmuls", [("matmul", 128, 0, 256), ("read", 128, 256, 257), ("matmul", 128, 256, 512)], True),
    ("Vector writes a column first", [("copy", 128, 511, 512), ("matmul", 128, 0, 512)], True),
]


@pytest.mark.parametrize(("why", "steps", "costs"), FILLS, ids=[row[0] for row in FILLS])
def test_a_fill_that_matmuls_overwrite_costs_nothing(why, steps, costs):
    def body(filled):
        a, b, acc, out = tile(128, BF16), tile(512, BF16), tile(512, FP32, PSUM), tile(1)
        if filled:
            nisa.memset(acc, 0.0)
        for op, rows, begin, end in steps:
            dst = acc[0:rows, begin:end]
            if op == "matmul":
                nisa.nc_matmul(dst, a[:, 0:rows], b[:, begin:end])
            elif op == "transpose":
                nisa.nc_transpose(dst, tile(128), engine=ENGINE.tensor)
            elif op == "copy":
                vector(dst)
            else:
                vector(out, dst)
        vector(out, acc[:, 511:512])

    without, with_it = (timed(lambda filled=filled: body(filled)) for filled in (False, True))
    assert len(with_it.start) - len(without.start) == costs
    if not costs:
        assert with_it.visible == without.visible


def test_a_fill_that_others_name_is_kept():
    def body():
        acc = tile(512, FP32, PSUM)
        fill = nisa.memset(acc, 0.0)
        nisa.nc_matmul(acc, tile(128, BF16), tile(512, BF16)).depends_on(fill)

    assert len(timed(body).start) == 2


# consumer, ns from the producer's end (on Vector) to its start
@pytest.mark.parametrize(("consumer", "hop"), [
    ("scalar", 37), ("gpsimd", 38), ("vector", 35), ("dma", 32), ("tensor", 52 + 16),
])  # fmt: skip
def test_hops_from_vector(consumer, hop):
    def body():
        x, y = tile(128, BF16), tile(128, BF16)
        vector(x)
        if consumer == "dma":
            store(x)
        elif consumer == "tensor":
            nisa.nc_matmul(tile(128, FP32, PSUM), y, x)
        else:
            nisa.tensor_copy(y, x, engine=ENGINE[consumer])

    line = timed(body)
    assert line.start[1] - line.visible[0] == pytest.approx(hop)


# the store waits for 189 + 426.7, then 32; by then Sync issues the load, until 530; it goes on with the store
@starts(0, 647.7, 0)
def test_a_ready_trigger_overtakes_a_waiting_one():
    x = tile()
    scalar(x)
    store(x, DGE.hwdge, ENGINE.sync)
    load(tile(), DGE.hwdge, ENGINE.sync)


@pytest.mark.parametrize(("rows", "each"), [(1, 100), (32, 100 + 550 * 31 / 127), (128, 650)])
def test_triggers_take_as_long_as_their_rows_have_descriptors(rows, each):
    def body():
        for _ in range(4):
            load(tile(rows=rows), DGE.unknown)

    line = timed(body)
    assert [b - a for a, b in itertools.pairwise(line.start)][1:] == ns(each, each)


def test_a_full_hardware_queue_holds_up_its_engine():
    def body():
        x = tile(1200)
        nisa.memset(x, 0.0, engine=ENGINE.gpsimd)
        for _ in range(9):
            load(tile(4096), DGE.hwdge, ENGINE.scalar)
        scalar(tile(1200), x)

    line = timed(body)
    # 2 MiB each at 415 B/ns = 5053.4, the first from 1630 on; the ninth load's issue needs its room. The copy is ready
    # at 176.9 + 1200 * 1.6667 + 37 = 2213.9, while Scalar is held up
    room = 1630 + 5053.4
    triggers = [530 + 650 * i for i in range(8)]
    assert line.start == ns(0, 0, *triggers, room)
    assert line.free[1:10] == ns(*triggers, room)
    # the ninth's first packet follows 1630 - 530 after the end of its issue; it flows when those before it are through
    assert line.arrival[9] == pytest.approx(room + 1630 - 530, abs=0.2)
    assert line.visible[9] == pytest.approx(1630 + 9 * 5053.4 + 7, abs=1)


def test_two_queues_share_the_engines_packet_by_packet():
    def body():
        load(tile(), DGE.hwdge, ENGINE.sync)
        x = nl.ndarray((128, 4, 128), FP32)
        load(x, DGE.hwdge, ENGINE.scalar, nl.ndarray((128, 4, 256), FP32, HBM)[:, :, 0:128])

    line = timed(body)
    # the first flows from 1630, the second, of several elements a partition, 50 later. Packets of 2 KiB take 80.0, of
    # 512 B 23.5: from then on the first has 80 / 103.5 of the time and is through after (FLOW - 50) / 0.7727 = 763.5;
    # the second has 8 * 4 * 23.52 = 752.8 of work, and all is done after the sum
    assert line.visible == ns(1680 + 763.5 + 7, 1630 + FLOW + 752.8 + 7)


# cores, KiB a partition, GB/s: a core's own limit whatever the runs, but what both have of their HBM rises with them
@pytest.mark.parametrize(("cores", "kib", "rate"), [
    (1, 2, 409.6), (1, 32, 415), (2, 2, 613), (2, 8, 662), (2, 32, 675),
])  # fmt: skip
def test_cores_of_a_pair_share_hbm(cores, kib, rate):
    def body():
        if nl.program_id(0) < cores:
            load(tile(256 * kib))

    line = timed(body, lnc=2)
    flow = line.visible[0] - 1075 - 7
    assert line.visible == ns(*[line.visible[0]] * cores)
    assert cores * 128 * 1024 * kib / flow == pytest.approx(rate, rel=2e-3)
    assert line.hbm_bound_ns == pytest.approx(flow if cores == 2 else 0, abs=0.2)


# core 0's GpSimd is busy for 126.9 + 512 * 1.6667 = 980.2; core 1's waits from 0
@starts(0, 980.2, 2980.2, 0, 2980.2, lnc=2)
def test_a_barrier_lets_both_cores_go_2000_after_the_later_one():
    data = nl.ndarray((128, 512), FP32, nl.shared_hbm)
    if nl.program_id(0) == 0:
        nisa.memset(tile(), 0.0, engine=ENGINE.gpsimd)
    nisa.core_barrier(data, (0, 1))
    nisa.memset(tile(4), 0.0, engine=ENGINE.gpsimd)


@starts(0, 1075 + FLOW + 7 + 380)
def test_a_table_is_loaded_while_its_operand_is_on_the_way():
    x = tile()
    load(x)
    nisa.activation(tile(), nl.exp, x)


@pytest.mark.parametrize("order", ["program", "lookahead"])
def test_look_ahead_lets_the_independent_pass(order):
    def body():
        x, y = tile(), tile()
        load(x)
        vector(y, x)
        nisa.memset(tile(), 0.0)

    arrived = 1075 + FLOW + 7 + 380
    # in program order the memset follows the copy's ISSUE, 60 + 512 * 0.5208 + 10.5 of a cold start
    expected = (0, arrived, arrived + 337.2) if order == "program" else (0, arrived, 0)
    assert timed(body, order=order).start == ns(*expected)


def test_look_ahead_keeps_what_overwrites_behind_what_reads():
    def body():
        x, y = tile(), tile()
        load(y)
        nisa.tensor_tensor(tile(), x, y, nl.add)
        nisa.memset(x, 0.0)

    line = timed(body, order="lookahead")
    # the sum reads x and waits for y; ISSUE 60 + 512 * 1.0417 + 10.5
    assert line.start[2] == pytest.approx(line.start[1] + 603.8, abs=0.3)


def test_look_ahead_reaches_32_instructions():
    def body():
        x = tile()
        load(x)
        vector(tile(), x)
        for _ in range(40):
            nisa.memset(tile(4), 0.0)

    line = timed(body, order="lookahead")
    assert sum(start < line.start[1] for start in line.start[2:]) == 31


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


def store_behind_a_meeting():
    """Core 0 still has to trigger a store on Scalar while Scalar waits at a barrier for what core 1 makes of it."""
    core = nl.program_id(0)
    given, taken = (tile(64, FP32, nl.shared_hbm) for _ in range(2))
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


@pytest.mark.parametrize("body", [crossed_sendrecvs, store_behind_a_meeting])
def test_meetings_do_not_deadlock(body):
    """In either order, of which the second has less to wait for."""
    program, ahead = (max(timed(body, lnc=2, order=order).visible) for order in ("program", "lookahead"))
    assert 0 < ahead <= program


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


def test_a_gather_waits_for_its_indices_and_for_every_row():
    def body(what):
        data, where = tile(512, buffer=HBM, rows=1000), tile(1, nl.uint32)
        if what == "row":
            nisa.dma_copy(data[900:1000], tile(512, rows=100))
        else:
            nisa.memset(where if what == "index" else tile(1, nl.uint32), 0)
        nisa.dma_copy(tile(512), data.ap([[512, 128], [1, 512]], vector_offset=where))

    for what in ("row", "index"):
        line = timed(lambda what=what: body(what))
        assert line.start[1] > line.visible[0]
    assert timed(lambda: body("nothing")).start[1] == pytest.approx(1200), "only the preparation of a software load"


@pytest.mark.parametrize("setting", [lambda at: nisa.register_load(at, tile(1, nl.uint32, rows=1)),
                                     lambda at: nisa.register_move(at, 1)], ids=["load", "move"])  # fmt: skip
def test_a_register_is_set_before_it_indexes(setting):
    def body():
        register, data = nisa.register_alloc(), nl.ndarray((4, 16, 64), BF16, HBM)
        setting(register)
        nisa.dma_copy(tile(64, BF16, rows=16), data.ap([[64, 16], [1, 64]], scalar_offset=register))

    line = timed(body)
    assert line.start[1] >= line.visible[0] > 0
