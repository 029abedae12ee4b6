"""What instructions cost, one row for each row of the published tables: literal ns, at two sizes.

Tables state LAT cold, on an idle engine whose operands have just arrived, and ISSUE warm, right behind another.
"""

from functools import partial
from typing import Any, NamedTuple

import pytest
from pairs import run
from timelines import tile, timed

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.timing import PriceList, Rates

BF16, FP32, FP8, TF32, BYTE = nl.bfloat16, nl.float32, nl.float8_e4m3, nl.tfloat32, nl.uint8
I32, U16, U32 = nl.int32, nl.uint16, nl.uint32
PSUM, HBM = nl.psum, nl.hbm
ENGINE, DGE = nisa.engine, nisa.dge_mode


#: One constant of the model stands for several rows of the tables, which are up to 3.1 % from it.
OF_ROWS = 0.031


def near(expected, rel=OF_ROWS):
    return pytest.approx(expected, rel=rel)


class Side(NamedTuple):
    """An operand of a case: [128, n] (or `columns`), every `step`-th element of its row."""

    dtype: str
    buffer: Any = nl.sbuf
    step: int = 1
    columns: int = 0

    def tile(self, n):
        return nl.ndarray((128, (self.columns or n) * self.step), self.dtype, self.buffer)[:, :: self.step]


def on(call, *sides, **settings):
    """A case: a function of n that makes tiles, dst first, and returns (dst, a function that emits the instruction)."""

    def case(n):
        tiles = [side.tile(n) for side in sides]
        return tiles[0], partial(call, *tiles, **settings)

    return case


def price_of(body):
    """Of the last instruction of a kernel."""
    return PriceList(Rates())(run(body, trace_only=True).programs[0].instructions[-1])


B, F, FP, BP = Side(BF16), Side(FP32), Side(FP32, PSUM), Side(BF16, PSUM)
GAPS, COLUMN = Side(BF16, step=2), Side(FP32, columns=1)

copy = nisa.tensor_copy
scalar_copy = partial(nisa.tensor_copy, engine=ENGINE.scalar)
gpsimd_copy = partial(nisa.tensor_copy, engine=ENGINE.gpsimd)
add = partial(nisa.tensor_tensor, op=nl.add)


def times(dst, data, by=2.0):
    nisa.tensor_scalar(dst, data, nl.multiply, by)


def stt(dst, data, other, by=2.0):
    nisa.scalar_tensor_tensor(dst, data, nl.multiply, by, nl.add, other)


def scan(dst, a, b, seed=0.0):
    nisa.tensor_tensor_scan(dst, a, b, seed, nl.multiply, nl.add)


def act(dst, data, *tiles, bias=True):
    settings = dict(zip(("bias", "scale") if bias else ("scale",), tiles, strict=False))
    nisa.activation(dst, nl.copy, data, **settings)


def act_total(dst, data, res):
    nisa.activation_reduce(dst, nl.copy, data, nl.add, res)


# why                                    case                 ISSUE fixed (None: in no table), LAT fixed, per element
VECTOR = [
    ("bf16 copy, 4x", on(copy, B, B), 60, 156, 0.269),
    ("bf16 copy, gaps in dst, 2x", on(copy, GAPS, B), 60, 155, 0.521),
    ("bf16 copy from PSUM, 2x", on(copy, B, BP), 65, 155, 0.521),
    ("fp32 copy, 2x", on(copy, F, F), 60, 155, 0.521),
    ("bf16 to fp32 copy", on(copy, F, B), 60, 153, 0.803),
    ("copy from fp32 PSUM, 1x", on(copy, F, FP), 65, 157, 1.042),
    ("fp32 tensor_tensor, 1x", on(add, F, F, F), 60, 160, 1.042),
    ("bf16 tensor_tensor, 2x", on(add, B, B, B), 60, 161, 0.517),
    ("bf16 scalar_tensor_tensor, no fast mode documented", on(stt, B, B, B), 60, 157, 1.042),
    ("fp32 scalar_tensor_tensor with a [P, 1] operand", on(stt, F, F, F, COLUMN), 65, 156 + 58, 1.042),
    ("bf16 scalar_tensor_tensor from PSUM with a [P, 1] operand", on(stt, B, FP, B, COLUMN), 65, 157 + 58, 1.042),
    ("fp32 tensor_reduce", on(lambda to, x: nisa.tensor_reduce(to, nl.add, x, axis=1), COLUMN, F), 60, 157, 1.042),
    ("bf16 with a [P, 1] operand", on(times, B, B, COLUMN), 60 + 69, 156 + 58, 0.269),
    ("fp32 with a [P, 1] operand", on(times, F, F, COLUMN), 60 + 69, 155 + 58, 0.521),
    ("fp32 from PSUM with a [P, 1] operand", on(times, B, FP, COLUMN), 65 + 69, 157 + 58, 1.042),
    ("scan from a number", on(scan, F, F, F), 60, 158, 2.083),
    ("scan from a tensor seed", on(scan, F, F, F, COLUMN), 60, 158 + 60, 2.083),
    ("memset", on(nisa.memset, F, value=0.0), 58, 58, 0.832),
    ("reciprocal (85 at N = 4)", on(nisa.reciprocal, F, F), 60, 154, 6.25),
    ("nc_stream_shuffle", on(lambda to, x: nisa.nc_stream_shuffle(to, x, [*range(32)]), F, F), None, 156, 1.046),
    ("tensor_copy_predicated", on(nisa.tensor_copy_predicated, F, F, Side(BYTE)), None, 156, 1.109),
]
SCALAR = [
    ("fp32 copy", on(scalar_copy, F, F), 60, 189, 0.8333),
    ("fp32 copy from PSUM", on(scalar_copy, B, FP), 60, 158, 0.8333),
    ("activation without tiles", on(act, F, F), 60, 189, 0.8333),
    ("activation, bias tile", on(act, F, F, COLUMN), 185, 280, 0.8333),
    ("activation from PSUM, bias tile", on(act, F, FP, COLUMN), 143, 258, 0.8333),
    ("activation, two tiles", on(act, F, F, COLUMN, COLUMN), 185, 280 + 91, 0.8333),
    ("activation from PSUM, two tiles", on(act, F, FP, COLUMN, COLUMN), 143, 258 + 91, 0.8333),
    ("accumulator read-out after a copy", on(act_total, F, F, COLUMN), 60 + 185, 60 + 279, 0.8333),
]
GPSIMD = [
    ("iota, 150 + N cycles", on(lambda to: nisa.iota(to, [[1, to.shape[1]]]), Side(nl.int32)), 125, 125, 0.8333),
    ("affine_select", on(lambda to, x: nisa.affine_select(to, [[1, to.shape[1]]], 1, x, 0.0), F, F), None, 177, 0.846),
    ("elementwise, half of 1.2 GHz (inferred)", on(gpsimd_copy, F, F), None, 177, 1.667),
]


def range_select(n):
    nisa.range_select(tile(n), tile(n, buffer=PSUM), nl.less, nl.less, tile(1), tile(1))


def local_gather(n, width=1, dtype=FP32):
    """n elements a partition: n / width indices a core."""
    index, count = tile(-(-n // width // 16), U16), n // width
    nisa.local_gather(tile(n, dtype), tile(64, dtype), index, width, count)


CYCLE = 1 / 1.2  # of GpSimd, in ns

# why, call, ISSUE fixed, LAT fixed, each element
RARE = [
    ("max8, N cycles", lambda n: nisa.max8(tile(8), tile(n)), 60, 153, 1.042),
    ("max8 of PSUM", lambda n: nisa.max8(tile(8), tile(n, buffer=PSUM)), 65, 157, 1.042),
    ("nc_find_index8", lambda n: nisa.nc_find_index8(tile(8, U32), tile(n), tile(8)), 60, 153, 1.042),
    ("nc_match_replace8", lambda n: nisa.nc_match_replace8(tile(n), tile(n), tile(8), 0.0), 60, 153, 1.042),
    ("range_select with its two columns", range_select, 65 + 69, 157 + 58, 1.042),
    ("tensor_scalar_cumulative (inferred)",
     lambda n: nisa.tensor_scalar_cumulative(tile(n), tile(n), nl.add, nl.add, 1.0), 60, 153, 1.042),
    ("dropout", lambda n: nisa.dropout(tile(n), tile(n), 0.5), 60, 153, 1.042),
    ("rng (inferred)", lambda n: nisa.rng(tile(n, U32)), 60, 153, 1.042),
    ("rng on GpSimd (inferred)", lambda n: nisa.rng(tile(n, U32), ENGINE.gpsimd), 126.9, 176.9, 1.667),
    ("local_gather of 32 each", partial(local_gather, width=32), 125, 125, 156 / 128 * CYCLE),
    ("local_gather of 2 bf16 each", partial(local_gather, width=2, dtype=BF16), 125, 125, 36 / 8 / 2 * CYCLE),
    ("nc_n_gather (inferred)", lambda n: nisa.nc_n_gather(tile(n), tile(9), tile(n, U32)), 126.9, 176.9, 6.667),
    ("sequence_bounds (inferred)",
     lambda n: nisa.sequence_bounds(nl.ndarray((1, 2, n), I32), tile(n, I32, rows=1)), 126.9, 176.9, 2 * 1.667),
    ("tensor_partition_reduce", lambda n: nisa.tensor_partition_reduce(tile(n, rows=1), nl.add, tile(n)), None, 176.9,
     213.3),
    ("13 cycles for a triple of bn_aggr", lambda n: nisa.bn_aggr(tile(2), tile(3 * n)), None, 153, 13 / 0.96),
    ("topk, 4 n + k cycles", lambda n: nisa.topk(tile(8, BF16), tile(8, U32), tile(-(-n // 16), BF16), n),
     126.9 + 8 * CYCLE, 176.9 + 8 * CYCLE, 4 * CYCLE),
]  # fmt: skip
ROWS = [(why, lambda n, case=case: case(n)[1](), *ns, 4, OF_ROWS) for why, case, *ns in (*VECTOR, *SCALAR, *GPSIMD)]
ROWS += [(*row, 32, 0.01) for row in RARE]


@pytest.mark.parametrize(("why", "call", "issue", "lat", "each", "least", "rel"), ROWS, ids=[row[0] for row in ROWS])
def test_fixed_part_and_slope(why, call, issue, lat, each, least, rel):
    for n in (least, 512):
        found = price_of(lambda n=n: call(n))
        assert found.latency_ns == near(lat + each * n, rel)
        if issue is not None:
            assert found.issue_ns == near(issue + each * n, rel)


def test_the_first_activation_after_a_copy_takes_15_more():
    def body():
        for case in (on(act, F, F), on(scalar_copy, F, F), on(act, F, F), on(act, F, F)):
            case(64)[1]()

    line = timed(body)
    after_copy, after_activation = (line.free[i] - line.start[i] for i in (2, 3))
    assert after_copy - after_activation == pytest.approx(15)


def test_transposes_of_32_by_32_pay_for_a_new_quadrant_and_a_register_move():
    def body():
        data, out = nl.ndarray((128, 32), FP32), nl.ndarray((32, 256), FP32)
        for i, q in enumerate((0, 0, 0, 1, 1)):
            nisa.nc_transpose(out[:, 32 * i : 32 * i + 32], data[32 * q : 32 * q + 32], engine=ENGINE.vector)
        nisa.register_move(nisa.register_alloc(), 7)

    line = timed(body)
    assert [line.free[i] - line.start[i] for i in range(6)] == near([234, 93, 93, 234, 93, 68])
    assert line.visible[0] - line.start[0] == near(233)


# why                     functions             ns from the end of the first's ISSUE to the second's start
TABLES = [
    ("exp after silu", nl.silu, nl.exp, 1283), ("sigmoid after softplus", nl.sigmoid, nl.softplus, 1283),
    ("square after exp", nl.exp, nl.square, 1283), ("silu stays", nl.silu, nl.silu, 0),
    ("square and rsqrt share a table", nl.square, nl.rsqrt, 0),
    ("square and copy share a table", nl.square, nl.copy, 0),
]  # fmt: skip


@pytest.mark.parametrize(("why", "first", "second", "ns"), TABLES, ids=[row[0] for row in TABLES])
def test_activation_tables(why, first, second, ns):
    def body():
        for function in (first, second):
            nisa.activation(F.tile(8), function, F.tile(8))

    line = timed(body)
    assert line.start[1] - line.free[0] == near(ns)


def matmul(dtype=BF16, k=128, m=128, rows=(), **settings):
    """nc_matmul of [k, m] with [k, n]; `rows`: dims between partition and free (2 for double_row)."""

    def case(n):
        dst, a, b = nl.ndarray((m, n), FP32, PSUM), nl.ndarray((k, *rows, m), dtype), nl.ndarray((k, *rows, n), dtype)
        return dst, partial(nisa.nc_matmul, dst, a, b, **settings)

    return case


def transpose(dtype):
    def case(n):
        dst, data = nl.ndarray((128, n), dtype, PSUM), nl.ndarray((n, 128), dtype)
        return dst, partial(nisa.nc_transpose, dst, data, engine=ENGINE.tensor)

    return case


FP8_ROWS = matmul(FP8, rows=(2,), perf_mode=nisa.matmul_perf_mode.double_row)

# why                            case             N    interval, stream: ns at full rate; result 164 after the stream
TENSOR = [
    ("tf32", matmul(TF32), 512, 215.8, 213.3),
    ("few rows and columns cost the same", matmul(k=16, m=8), 512, 215.8, 213.3),
    ("a stream shorter than a load", matmul(), 64, 55.8, 26.7),
    ("double_row: K = 256 in the time of 128", FP8_ROWS, 512, 215.8, 213.3),
    ("fp32, two passes", matmul(FP32), 512, 2 * 430, 853.3),
    ("fp32 of zeros and ones", matmul(FP32, is_moving_onezero=True), 512, 430, 426.7),
    ("bf16 transpose", transpose(BF16), 128, 55, 53.3),
    ("fp32 transpose, one pass", transpose(FP32), 128, 109.2, 106.7),
]


@pytest.mark.parametrize(("why", "case", "n", "every", "stream"), TENSOR, ids=[f"{r[0]}, {r[2]}" for r in TENSOR])
def test_matmuls_at_full_rate(why, case, n, every, stream):
    """From idle, and right behind another."""

    def body():
        dst, emit = case(n)
        nisa.tensor_copy(dst[:, 0:1], nl.ndarray((dst.shape[0], 1), dst.dtype))
        emit()
        emit()

    line = timed(body)
    assert line.start[2] == line.free[1]
    assert [line.free[i] - line.start[i] for i in (1, 2)] == near([every, every])
    assert line.visible[2] - line.start[2] == near(stream + 164)


# why             case               N    stream  full rate, half rate: from operands there to the stream's start
LOADS = [
    ("bf16", matmul(), 512, 213.3, 16, -19), ("bf16 transpose", transpose(BF16), 128, 53.3, 16, -19),
    ("fp32 transpose", transpose(FP32), 128, 106.7, 58, 58), ("fp32", matmul(FP32), 512, 853.3, 106, 163),
]  # fmt: skip


@pytest.mark.parametrize(("why", "case", "n", "stream", "full", "half"), LOADS, ids=[row[0] for row in LOADS])
def test_matmuls_from_idle(why, case, n, stream, full, half):
    """Operands that are visible at v reach the array at v + 52; at half rate the stream takes twice as long."""

    def body():
        dst, emit = case(n)
        nisa.tensor_copy(dst[:, 0:1], nl.ndarray((128, 1), dst.dtype))
        emit()

    for throttle, load, busy, completion in ((False, full, stream, 164), (True, half, 2 * stream, 206)):
        line = timed(body, throttle=throttle)
        assert line.start[1] - line.visible[0] - 52 == near(load)
        assert line.visible[1] - line.start[1] == near(busy + completion)


# share of the time that row tiles may overlap, full rate or half, ns from one's start to that of one on other rows
@pytest.mark.parametrize(("overlap", "throttle", "ns"), [
    (1, False, 64 / 2.4 + 2.5), (0.5, False, (64 + 512) / 2 / 2.4 + 2.5), (0, False, 512 / 2.4 + 2.5),
    (0, True, 2 * 512 / 2.4),
])  # fmt: skip
def test_row_tiles_run_side_by_side(overlap, throttle, ns):
    """Two 32-row matmuls on other rows of the array: the second flows 64 rows (inferred) after the first, or later."""

    def body():
        for q in (0, 32):
            dst, a, b = FP.tile(512), B.tile(128)[q : q + 32], B.tile(512)[q : q + 32]
            nisa.nc_matmul(dst, a, b, tile_position=(q, 0), tile_size=(32, 128))

    line = timed(body, constants={"pe.row_tiles_overlap": overlap}, throttle=throttle)
    assert line.start[1] - line.start[0] == near(ns, rel=0.02)


def load(dst, src):
    """A dma_copy of [64, n] tiles, 8 partitions on each of 8 engines; returns ns an engine is busy with a partition."""
    line = timed(lambda: nisa.dma_copy(dst(), src()) and None)
    return (line.visible[0] - line.arrival[0] - 7) / 8


# bytes of one contiguous element, ns on its engine
@pytest.mark.parametrize(("size", "ns"), [
    (32, 10.5), (64, 10.5), (256, 14.2), (512, 23.5), (2048, 80), (4096, 155), (8192, 2 * 155),
])  # fmt: skip
def test_elements(size, ns):
    tiles = partial(nl.ndarray, (64, size), BYTE), partial(nl.ndarray, (64, size), BYTE, HBM)
    assert load(*tiles) == near(ns)
    assert load(*reversed(tiles)) == near(ns), "a store costs the same"


# why                         dst: [64, ...] in SBUF             src: the same elements in HBM        ns a partition
PATTERNS = [
    ("strided 2 bytes", ((64, 10), BF16), (lambda: nl.ndarray((64, 30), BF16, HBM)[:, ::3]), 10 * 55),
    ("runs of 512 bytes", ((64, 4, 128), FP32), (lambda: nl.ndarray((64, 4, 256), FP32, HBM)[:, :, 0:128]), 4 * 23.5),
    ("a cast to bf16: its larger side", ((64, 512), BF16), (lambda: nl.ndarray((64, 512), FP32, HBM)), 80),
    ("a cast to fp32: its larger side", ((64, 512), FP32), (lambda: nl.ndarray((64, 512), BF16, HBM)), 80),
]


@pytest.mark.parametrize(("why", "dst", "src", "ns"), PATTERNS, ids=[row[0] for row in PATTERNS])
def test_patterns(why, dst, src, ns):
    assert load(partial(nl.ndarray, *dst), src) == near(ns)


# why                           mode      store  columns   ISSUE  first packet + skew  preparation (128 elements)
ISSUES = [
    ("a load of the compiler's choice", "unknown", False, (512,), 530, 1330 + 300, 0),
    ("hardware load", "hwdge", False, (512,), 530, 1330 + 300, 0),
    ("hardware load of several runs", "hwdge", False, (4, 128), 580, 1330 + 50 + 300, 0),
    ("hardware store", "hwdge", True, (512,), 530, 1190 + 150, 0),
    ("hardware store of several runs", "hwdge", True, (4, 128), 580, 1190 + 50 + 150, 0),
    ("software load", "swdge", False, (512,), 581, 760 + 540, 1200),
    ("software store", "swdge", True, (512,), 581, 632 + 175, 1030 - 32 + 0.32 * 128),
    ("static load", "none", False, (512,), 58, 775 + 300, 0),
    ("static store", "none", True, (512,), 58, 775 + 150, 0),
]


@pytest.mark.parametrize("row", ISSUES, ids=[row[0] for row in ISSUES])
def test_issue_and_first_packet(row):
    _, mode, store, columns, issue, first, prepare = row

    def body():
        for _ in range(2):
            hbm = nl.ndarray((128, *columns[:-1], 2 * columns[-1]), FP32, HBM)[..., 0 : columns[-1]]
            sides = (nl.ndarray((128, *columns), FP32), hbm)
            engine = ENGINE.sync if mode == "hwdge" else ENGINE.unknown
            nisa.dma_copy(*(sides[::-1] if store else sides), dge_mode=DGE[mode], engine=engine)

    line, prices = timed(body, prices=True)
    assert line.free[0] - line.start[0] == near(issue)
    assert line.arrival[0] - line.start[0] == near(first)
    assert line.start[0] == near(prepare)
    triggers = {"unknown": "sync", "hwdge": "sync", "swdge": "gpsimd"}
    assert prices[0].trigger == triggers.get(mode, "gpsimd" if store else "sync")
    assert line.start[1] - line.start[0] == near(issue)
    assert prices[0].again_ns == (650 - issue if mode in ("unknown", "hwdge") else 0)


def test_a_trigger_follows_7_ns_behind_an_instruction_but_holds_up_the_next():
    def body():
        nisa.tensor_copy(F.tile(512), F.tile(512), engine=ENGINE.scalar)
        nisa.dma_copy(F.tile(512), nl.ndarray((128, 512), FP32, HBM), dge_mode=DGE.hwdge, engine=ENGINE.scalar)
        nisa.tensor_copy(F.tile(512), F.tile(512), engine=ENGINE.scalar)

    line = timed(body)
    assert line.start == near([0, 7, 7 + 530])


def test_four_partitions_of_8_kib_are_one_engine_s_work():
    for first in (0, 8):
        rows = slice(first, first + 4)
        body = partial(lambda rows: nisa.dma_copy(F.tile(2048)[rows], nl.ndarray((4, 2048), FP32, HBM)) and None, rows)
        line, (price,) = timed(body, prices=True)
        assert price.work_ns == near([4 * 2 * 155 if engine == first // 8 else 0 for engine in range(16)])
        assert line.arrival[0] == near(1330, rel=0.01), "a lone engine has no skew"
        assert line.visible[0] - line.arrival[0] == near(7 + 4 * 2 * 155)


# why                         call                  dst, src [partition, free] bf16          ns
WHOLE = [
    ("a core: 395 to 420 GB/s", nisa.dma_copy, (128, 16384), HBM, (128, 16384), 128 * 32768 / 407.5),
    ("transpose from HBM, 90 %", nisa.dma_transpose, (128, 512), HBM, (512, 128), 131072 / (435.2 * 0.9)),
    ("as long for 3 partitions", nisa.dma_transpose, (3, 512), HBM, (512, 3), 131072 / (435.2 * 0.9)),
    ("130 elements, as long as 144", nisa.dma_transpose, (128, 130), HBM, (130, 128), 128 * 144 * 2 / (435.2 * 0.9)),
    ("transpose in SBUF, 50 %", nisa.dma_transpose, (128, 128), nl.sbuf, (128, 128), 32768 / (435.2 * 0.5)),
    ("B += A, 50 %", lambda b, a: nisa.dma_compute(b, [a, b], nl.add), (128, 1024), HBM, (128, 1024), 2 * 8 * 80),
    ("3 sources are read", lambda b, a: nisa.dma_compute(b, [a, a, b], nl.add), (128, 1024), HBM, (128, 1024), 3 * 640),
]


@pytest.mark.parametrize(("why", "call", "dst", "where", "src", "ns"), WHOLE, ids=[row[0] for row in WHOLE])
def test_whole_transfers(why, call, dst, where, src, ns):
    line = timed(lambda: call(nl.ndarray(dst, BF16), nl.ndarray(src, BF16, where)) and None)
    assert line.visible[0] - line.arrival[0] - 7 == near(ns)


@pytest.mark.parametrize("kib", [4, 64])
def test_sendrecv_takes_a_seam_and_354_ns_for_4_kib_and_dma_rate_beyond(kib):
    def body():
        other = 1 - nl.program_id(0)
        nisa.sendrecv(nl.ndarray((4, kib * 64), FP32), nl.ndarray((4, kib * 64), FP32), other, other, 0)

    line = timed(body, lnc=2)
    assert line.visible == near([2000 + 354 + (kib - 4) * 1024 / 415] * 2)


@pytest.mark.parametrize(("call", "issue"), [
    (lambda: nisa.nonzero_with_count(tile(65, I32), tile(64)), 126.9 + 1.667 * 65),
    (lambda: nisa.rand_set_state(tile(6, U32)), 126.9 + 6 * 1.667),
    (lambda: nisa.rand_get_state(tile(6, U32)), 126.9 + 6 * 1.667),
    (lambda: nisa.set_rng_seed(tile(1, U32, rows=1)), 60 + 1.042),
    (lambda: nisa.register_load(nisa.register_alloc(0), nl.ndarray((1,), I32, HBM)), 650),
])  # fmt: skip
def test_issue_of_what_has_one_size(call, issue):
    assert price_of(call).issue_ns == near(issue, 0.01)


def test_a_wide_nc_n_gather_is_several_instructions():
    narrow, wide = (price_of(lambda n=n: nisa.nc_n_gather(tile(n), tile(9), tile(n, U32))) for n in (512, 513))
    assert wide.issue_ns - narrow.issue_ns == near(6.667 + 126.9, 0.01)


def gather(mode=DGE.unknown, indirect=True, store=False):
    """dma_copy between a tile and rows of 512 fp32 that an index names, or that follow each other."""
    data = tile(512, buffer=HBM, rows=1000)
    view = data.ap([[512, 128], [1, 512]], vector_offset=tile(1, U32)) if indirect else data[0:128]
    sides = tile(512), view
    nisa.dma_copy(*(sides[::-1] if store else sides), dge_mode=mode)


def test_rows_cost_what_they_do_at_known_places_of_the_software_queue():
    for mode, store in ((DGE.unknown, False), (DGE.swdge, True)):
        found = price_of(partial(gather, mode=mode, store=store))
        assert found == price_of(partial(gather, mode=DGE.swdge, indirect=False, store=store))
        assert (found.trigger, found.queue, found.payload_bytes) == ("gpsimd", "swdge", 128 * 2048)

    def add_rows():
        data, out, where = tile(512, buffer=HBM), tile(512), tile(1, U32)
        nisa.dma_compute(out, [data.ap([[512, 128], [1, 512]], vector_offset=where), out], nl.add)

    added = price_of(add_rows)
    assert (added.queue, [count for _, count in added.elements]) == ("swdge", [128, 128])


@pytest.mark.parametrize(
    ("engine", "ghz", "register"),
    [(ENGINE.vector, 0.96, False), (ENGINE.scalar, 1.2, True), (ENGINE.gpsimd, 1.2, False)],
)
def test_a_dynamic_copy_takes_600_cycles_or_as_long_as_a_static_one(engine, ghz, register):
    def body(n, dynamic=True):
        src, where = tile(2 * n), nisa.register_alloc() if register else tile(1, U32, rows=1)
        at = {"scalar_offset": where, "indirect_dim": 1} if dynamic else {}
        nisa.tensor_copy(tile(n), src.ap([[2 * n, 128], [1, n]], **at), engine=engine)

    short, static = price_of(lambda: body(8)), price_of(lambda: body(8, dynamic=False))
    assert short.issue_ns == near(600 / ghz, 0.01)
    assert short.latency_ns - short.issue_ns == near(static.latency_ns - static.issue_ns, 0.01)
    long, static = price_of(lambda: body(4096)), price_of(lambda: body(4096, dynamic=False))
    assert (long.issue_ns, long.latency_ns) == (static.issue_ns, static.latency_ns)
