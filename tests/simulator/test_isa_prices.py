"""What the rarer instructions and indirect transfers cost, in literal ns at two sizes, and whom they wait for."""

from functools import partial

import pytest
from pairs import run
from timelines import timed

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.timing import PriceList, Rates

BF16, F32, I32, U16, U32, PSUM, HBM = nl.bfloat16, nl.float32, nl.int32, nl.uint16, nl.uint32, nl.psum, nl.hbm
DGE, E = nisa.dge_mode, nisa.engine


def tile(columns, dtype=F32, buffer=nl.sbuf, partitions=128):
    return nl.ndarray((partitions, columns), dtype, buffer)


def price_of(body):
    return PriceList(Rates())(run(body, trace_only=True).programs[0].instructions[-1])


def near(expected):
    return pytest.approx(expected, rel=0.01)


def range_select(n):
    nisa.range_select(tile(n), tile(n, buffer=PSUM), nl.less, nl.less, tile(1), tile(1))


def local_gather(n, width=1, dtype=F32):
    """n elements a partition: n / width indices a core."""
    index, count = tile(-(-n // width // 16), U16), n // width
    nisa.local_gather(tile(n, dtype), tile(64, dtype), index, width, count)


def running_sum(n):
    nisa.tensor_scalar_cumulative(tile(n), tile(n), nl.add, nl.add, 1.0)


def bounds(n):
    nisa.sequence_bounds(nl.ndarray((1, 2, n), I32), tile(n, I32, partitions=1))


def top_of(n, k):
    nisa.topk(tile(k, BF16), tile(k, U32), tile(-(-n // 16), BF16), n)


CYCLE = 1 / 1.2  # of GpSimd, in ns

# why, call, ISSUE fixed, LAT fixed, each element
ROWS = [
    ("max8, N cycles", lambda n: nisa.max8(tile(8), tile(n)), 60, 153, 1.042),
    ("max8 of PSUM", lambda n: nisa.max8(tile(8), tile(n, buffer=PSUM)), 65, 157, 1.042),
    ("nc_find_index8", lambda n: nisa.nc_find_index8(tile(8, U32), tile(n), tile(8)), 60, 153, 1.042),
    ("nc_match_replace8", lambda n: nisa.nc_match_replace8(tile(n), tile(n), tile(8), 0.0), 60, 153, 1.042),
    ("range_select with its two columns", range_select, 65 + 69, 157 + 58, 1.042),
    ("tensor_scalar_cumulative (inferred)", running_sum, 60, 153, 1.042),
    ("dropout", lambda n: nisa.dropout(tile(n), tile(n), 0.5), 60, 153, 1.042),
    ("rng (inferred)", lambda n: nisa.rng(tile(n, U32)), 60, 153, 1.042),
    ("rng on GpSimd (inferred)", lambda n: nisa.rng(tile(n, U32), E.gpsimd), 126.9, 176.9, 1.667),
    ("local_gather, 8 cycles each", local_gather, 125, 125, 8 * CYCLE),
    ("local_gather of 32 each", partial(local_gather, width=32), 125, 125, 156 / 128 * CYCLE),
    ("local_gather of 2 bf16 each", partial(local_gather, width=2, dtype=BF16), 125, 125, 36 / 8 / 2 * CYCLE),
    ("nc_n_gather (inferred)", lambda n: nisa.nc_n_gather(tile(n), tile(9), tile(n, U32)), 126.9, 176.9, 6.667),
    ("sequence_bounds (inferred)", bounds, 126.9, 176.9, 2 * 1.667),
    ("topk, 4 n + k cycles", lambda n: top_of(n, 8), 126.9 + 8 * CYCLE, 176.9 + 8 * CYCLE, 4 * CYCLE),
]  # fmt: skip


@pytest.mark.parametrize(("why", "call", "issue", "lat", "each"), ROWS, ids=[row[0] for row in ROWS])
@pytest.mark.parametrize("n", [32, 512])
def test_fixed_part_and_slope(why, call, issue, lat, each, n):
    found = price_of(lambda: call(n))
    assert found.issue_ns == near(issue + each * n)
    assert found.latency_ns == near(lat + each * n)


@pytest.mark.parametrize(("call", "issue"), [
    (lambda: nisa.nonzero_with_count(tile(65, I32), tile(64)), 126.9 + 1.667 * 65),
    (lambda: nisa.rand_set_state(tile(6, U32)), 126.9 + 6 * 1.667),
    (lambda: nisa.rand_get_state(tile(6, U32)), 126.9 + 6 * 1.667),
    (lambda: nisa.set_rng_seed(tile(1, U32, partitions=1)), 60 + 1.042),
])  # fmt: skip
def test_issue_of_what_has_one_size(call, issue):
    assert price_of(call).issue_ns == near(issue)


def test_a_wide_nc_n_gather_is_several_instructions():
    narrow, wide = (price_of(lambda n=n: nisa.nc_n_gather(tile(n), tile(9), tile(n, U32))) for n in (512, 513))
    assert wide.issue_ns - narrow.issue_ns == near(6.667 + 126.9)


def gather(mode=DGE.unknown, indirect=True, store=False):
    """dma_copy between a tile and rows of 512 fp32 that an index names, or that follow each other."""
    data = tile(512, buffer=HBM, partitions=1000)
    view = data.ap([[512, 128], [1, 512]], vector_offset=tile(1, U32)) if indirect else data[0:128]
    sides = tile(512), view
    nisa.dma_copy(*(sides[::-1] if store else sides), dge_mode=mode)


@pytest.mark.parametrize(("mode", "store"), [(DGE.unknown, False), (DGE.swdge, True)])
def test_rows_cost_what_they_do_at_known_places_of_the_software_queue(mode, store):
    found = price_of(partial(gather, mode=mode, store=store))
    static = price_of(partial(gather, mode=DGE.swdge, indirect=False, store=store))
    assert (found.trigger, found.queue) == ("gpsimd", "swdge")
    assert found == static
    assert found.payload_bytes == 128 * 2048


def test_a_sum_of_rows_is_the_software_queue_s():
    def body():
        data, out, where = tile(512, buffer=HBM), tile(512), tile(1, U32)
        nisa.dma_compute(out, [data.ap([[512, 128], [1, 512]], vector_offset=where), out], nl.add)

    found = price_of(body)
    assert found.queue == "swdge"
    assert [count for _, count in found.elements] == [128, 128]


@pytest.mark.parametrize(
    ("engine", "ghz", "register"), [(E.vector, 0.96, False), (E.scalar, 1.2, True), (E.gpsimd, 1.2, False)]
)
def test_a_dynamic_copy_takes_600_cycles_or_as_long_as_a_static_one(engine, ghz, register):
    def body(n, dynamic=True):
        src, where = tile(2 * n), nisa.register_alloc() if register else tile(1, U32, partitions=1)
        at = {"scalar_offset": where, "indirect_dim": 1} if dynamic else {}
        nisa.tensor_copy(tile(n), src.ap([[2 * n, 128], [1, n]], **at), engine=engine)

    short, static = price_of(lambda: body(8)), price_of(lambda: body(8, dynamic=False))
    assert short.issue_ns == near(600 / ghz)
    assert short.latency_ns - short.issue_ns == near(static.latency_ns - static.issue_ns)
    long, static = price_of(lambda: body(4096)), price_of(lambda: body(4096, dynamic=False))
    assert (long.issue_ns, long.latency_ns) == (static.issue_ns, static.latency_ns)


def test_a_gather_waits_for_its_indices_and_for_every_row():
    def body(what):
        data, where = tile(512, buffer=HBM, partitions=1000), tile(1, U32)
        if what == "row":
            nisa.dma_copy(data[900:1000], tile(512, partitions=100))
        else:
            nisa.memset(where if what == "index" else tile(1, U32), 0)
        nisa.dma_copy(tile(512), data.ap([[512, 128], [1, 512]], vector_offset=where))

    for what in ("row", "index"):
        line = timed(lambda what=what: body(what))
        assert line.start[1] > line.visible[0]
    assert timed(lambda: body("nothing")).start[1] == pytest.approx(1200), "only the preparation of a software load"


@pytest.mark.parametrize("setting", [lambda at: nisa.register_load(at, tile(1, U32, partitions=1)),
                                     lambda at: nisa.register_move(at, 1)], ids=["load", "move"])  # fmt: skip
def test_a_register_is_set_before_it_indexes(setting):
    def body():
        register, data = nisa.register_alloc(), nl.ndarray((4, 16, 64), BF16, HBM)
        setting(register)
        nisa.dma_copy(tile(64, BF16, partitions=16), data.ap([[64, 16], [1, 64]], scalar_offset=register))

    line = timed(body)
    assert line.start[1] >= line.visible[0] > 0
