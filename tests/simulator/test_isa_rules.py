"""Rules of searches, ranges, gathers, random numbers and indirect views in pairs: what passes, what does not."""

# ruff: noqa: E501  a table with one pair a line

import numpy as np
from isa_tiles import column, hbm, one, ps, put, rows_of, sb
from pairs import each_pair, run, vary

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

E, CMD = nisa.engine, nisa.reduce_cmd
DGE = nisa.dge_mode
BF16, F32, I32, U8, U16, U32 = nl.bfloat16, nl.float32, nl.int32, nl.uint8, nl.uint16, nl.uint32


def top(columns=9, eights=8, rows=4, src=None):
    return nisa.max8(sb(rows, eights), sb(4, columns) if src is None else src())


def select(dtype=F32, op=nl.less, bound=lambda: sb(4, 1), **settings):
    data = sb(4, 6, dtype=dtype)
    return nisa.range_select(sb(4, 6, dtype=F32), data, nl.greater_equal, op, bound(), sb(4, 1), **settings)


def cumulate(op0=nl.multiply, op1=nl.add, dtype=F32, out=F32, **settings):
    """tensor_scalar_cumulative of a [4, 6] tile, after one that resets the registers to sums."""
    nisa.tensor_scalar_cumulative(sb(4, 6), sb(4, 6), nl.multiply, nl.add, 1.0)
    return nisa.tensor_scalar_cumulative(sb(4, 6, dtype=out), sb(4, 6, dtype=dtype), op0, op1, 1.0, **settings)


def local(rows=16, index=0, dtype=U16, out=16, width=1, count=None, index_rows=None):
    indices = put(np.full((index_rows or rows, 1), index), dtype)
    return nisa.local_gather(sb(rows, out), sb(rows, 6), indices, width, count)


def gather(dtype=U32, out=3):
    return nisa.nc_n_gather(sb(4, out), sb(4, 6), put(np.zeros((4, 3)), dtype))


def bounds(ids=1, dtype=F32, out=I32, rows=1, columns=10):
    return nisa.sequence_bounds(sb(1, columns, dtype=out), put(np.full((rows, 5), ids), dtype))


def nonzero(src=F32, dst=I32, columns=7, **settings):
    return nisa.nonzero_with_count(sb(4, columns, dtype=dst), sb(4, 6, dtype=src), **settings)


def best(n=20, k=3, rows=16, values=BF16, places=U32, data=BF16, columns=2, psum=False, wide=None):
    out = nl.ndarray((rows, k), values, nl.psum if psum else nl.sbuf)
    src = sb(wide or rows, columns, dtype=data)
    return nisa.topk(out, sb(rows, k, dtype=places), src, n)


def best_read(columns, k=20):
    """Reads columns of topk's results as its page has them, [P, k]."""
    values, places = nl.ndarray((16, k), BF16, nl.sbuf), nl.ndarray((16, k), U32, nl.sbuf)
    nisa.topk(values, places, put(np.arange(32, dtype=np.float32).reshape(16, 2), BF16), 32)
    return nisa.tensor_copy(nl.ndarray((4, columns), U32, nl.sbuf), places[0:4, 0:columns])


def noise(dtype=U8, engine=E.vector, buffer=nl.sbuf):
    return nisa.rng(nl.ndarray((4, 6), dtype, buffer), engine)


def drop(prob=0.5, dtype=F32, out=F32):
    prob = prob() if callable(prob) else prob
    return nisa.dropout(sb(4, 6, dtype=out), sb(4, 6, dtype=dtype), prob)


def state(columns=6, engine=E.gpsimd):
    return nisa.rand_set_state(sb(4, columns, dtype=U32), engine)


def rows_by(picked=(1, 0), index=None, data=None, scalar_offset=None, **settings):
    index = column(picked) if index is None else index()
    data = hbm(3, 4) if data is None else data()
    view = data.ap([[4, 2], [1, 4]], vector_offset=index, scalar_offset=scalar_offset)
    return nisa.dma_copy(sb(2, 4), view, **settings)


def at(index=1, data=None, dim=0, dtype=None, **settings):
    """dma_copy of two rows of a [3, 4] tensor from row `index`."""
    data = hbm(3, 4) if data is None else data()
    index = one(index) if isinstance(index, int) else index()
    view = data.ap([[4, 2], [1, 4]], scalar_offset=index, indirect_dim=dim, dtype=dtype)
    return nisa.dma_copy(sb(2, 4, dtype=dtype or F32), view, **settings)


def rows(view):
    changed = view(hbm(3, 4, 4).vector_select(0, column([1, 0])))
    return nisa.dma_copy(nl.ndarray(changed.shape, changed.dtype), changed)


def add(sources=2, scalar=False, twice=False, same_index=True, chip=nl.sbuf, scatter=True):
    """dma_compute of a [2, 4] tile and rows of a [3, 4] tensor."""
    data, tile, where = hbm(3, 4), nl.ones((2, 4), F32, chip), column((1, 1) if twice else (1, 0))
    side = data.ap([[4, 2], [1, 4]], scalar_offset=one(1)) if scalar else rows_of(data, where)
    again = side if same_index else rows_of(data, column([1, 0]))
    dst = side if scatter else tile
    return nisa.dma_compute(dst, [again, tile, tile][:sources], nl.add)


def turn(indices=(16, 1), rows=16, last=8, dtype=BF16, index=U32, shape=None, **settings):
    middle = shape or ()
    table = nl.full(indices, 1, index, nl.sbuf)
    size = int(np.prod((*middle, last)))
    steps = [[size // int(np.prod((*middle, last)[: i + 1])), n] for i, n in enumerate((*middle, last))]
    src = hbm(20, size, dtype=dtype).ap([[size, rows], *steps], vector_offset=table)
    return nisa.dma_transpose(sb(min(last, 128), *middle, rows, dtype=dtype), src, **settings)


def copied(view, partitions=4):
    return nisa.tensor_copy(sb(partitions, 2), view(sb(4, 6)))


def window(index, partitions=4):
    """A view of two columns of a [4, 6] tile from column `index`."""
    return lambda tile: tile.ap([[6, partitions], [1, 2]], scalar_offset=one(index), indirect_dim=1)


# fmt: off
PAIRS = [
    # What rules of all instructions mean for these.
    vary("NKI041", "rng on scalar", lambda e: noise(engine=e), E.gpsimd, E.scalar, r"engine\.scalar cannot run it; engine\.vector, engine\.gpsimd"),
    vary("NKI040", "rng to HBM", lambda b: noise(buffer=b), nl.sbuf, nl.hbm, "dst is in "),
    vary("NKI030", "oob_mode", lambda m: at(oob_mode=m), nisa.oob_mode.error, 1, "oob_mode=1 is not a member"),
    vary("NKI030", "oob_mode of a transpose", lambda m: turn(oob_mode=m), nisa.oob_mode.error, 0, "oob_mode=0 is not a member"),
    vary("NKI041", "a state on scalar", lambda e: state(engine=e), E.unknown, E.scalar, r"engine\.gpsimd can"),
    vary("NKI042", "rng on gpsimd to PSUM", lambda e: noise(U32, e, nl.psum), E.vector, E.gpsimd, "dst is in PSUM"),
    vary("NKI042", "best in PSUM", lambda p: best(psum=p), False, True, "in PSUM"),
    vary("NKI044", "max8 of other partitions", lambda p: top(rows=p), 4, 5, "src has 4 partitions, dst 5"),
    vary("NKI044", "local_gather's index", lambda p: local(index_rows=p), 16, 32, "src_buffer has 16 partitions, index 32"),
    vary("NKI044", "segments of two partitions", lambda p: bounds(rows=p), 1, 2, "segment_ids has 2 partitions, expected 1"),
    vary("NKI044", "topk's source", lambda p: best(wide=p), 16, 32, "src has 32 partitions, val_dst 16"),
    vary("NKI045", "local_gather's size", lambda n: local(out=n), 16, 15, "15 elements a partition, 16 indices of 1 elements are 16"),
    vary("NKI045", "nc_n_gather's size", lambda n: gather(out=n), 3, 4, "indices 3"),
    vary("NKI045", "segment bounds", lambda n: bounds(columns=n), 10, 9, "two for each id are 10"),
    vary("NKI045", "no room for the count", lambda n: nonzero(columns=n), 7, 6, "their count are 7"),
    vary("NKI046", "a search over three dims", lambda make: top(src=make), lambda: sb(4, 4, 4, 4)[:, :, 0:3, 0], lambda: sb(4, 4, 4, 4)[:, 0:3, 0:3, 0:3], "walks 3 free dims, at most 2"),
    vary("NKI048", "range_select's tests", lambda op: select(op=op), nl.equal, nl.not_equal, "comp_op1=nl.not_equal"),
    vary("NKI049", "Vector's state", lambda e: state(engine=e), E.gpsimd, E.vector, "NeuronCore-v4"),
    vary("NKI050", "cumulating bits", lambda op: cumulate(op0=op), nl.add, nl.bitwise_and, "op0=nl.bitwise_and"),
    vary("NKI051", "a bound that is a number", lambda b: select(bound=b), lambda: sb(4, 1), lambda: 3.0, "bound0=3.0 is not a tile"),
    vary("NKI051", "replace by a tile", lambda b: nisa.nc_match_replace8(sb(4, 9), sb(4, 9), sb(4, 8), b, sb(4, 8, dtype=U32)), 1.5, None, "imm=None is not a number"),
    vary("NKI051", "bf16 probabilities of integers", lambda d: drop(lambda: sb(4, 1, dtype=BF16), d, d), BF16, I32, "accepted: float32"),
    vary("NKI052", "range_select of integers", lambda d: select(dtype=d), BF16, I32, "on_true_tile has dtype int32"),
    vary("NKI052", "cumulating int32", lambda d: cumulate(dtype=d), nl.int16, I32, "src has dtype int32"),
    vary("NKI052", "cumulating to uint32", lambda d: cumulate(out=d), U16, U32, "dst has dtype uint32"),
    vary("NKI052", "local_gather by uint32", lambda d: local(dtype=d), U16, U32, "index has dtype uint32, accepted: uint16"),
    vary("NKI052", "nc_n_gather by int32", lambda d: gather(dtype=d), U32, I32, "indices has dtype int32, accepted: uint32"),
    vary("NKI052", "local_gather that casts", lambda d: nisa.local_gather(sb(16, 16, dtype=d), sb(16, 6), put(np.zeros((16, 1)), U16), 1), F32, BF16, "dst is bfloat16 and src_buffer is float32"),
    vary("NKI052", "nc_n_gather that casts", lambda d: nisa.nc_n_gather(sb(4, 3, dtype=d), sb(4, 6), put(np.zeros((4, 3)), U32)), F32, BF16, "dst is bfloat16 and data is float32"),
    vary("NKI052", "segments in bf16", lambda d: bounds(dtype=d), I32, BF16, "segment_ids has dtype"),
    vary("NKI052", "segment bounds in uint32", lambda d: bounds(out=d), F32, U32, "dst has dtype"),
    vary("NKI052", "nonzero places in fp32", lambda d: nonzero(dst=d), I32, F32, "dst has dtype float32, accepted: int32"),
    vary("NKI052", "what is not zero in bf16", lambda d: nonzero(src=d), I32, BF16, "src has dtype bfloat16"),
    vary("NKI052", "topk of fp32", lambda d: best(data=d), BF16, F32, "src has dtype float32"),
    vary("NKI052", "topk to fp32", lambda d: best(values=d), BF16, F32, "val_dst has dtype float32"),
    vary("NKI052", "places in int32", lambda d: best(places=d), U32, I32, "idx_dst has dtype int32"),
    vary("NKI052", "dropout that casts", lambda d: drop(out=d), F32, BF16, "dst is bfloat16"),
    vary("NKI063", "range_select's sum", lambda op: select(reduce_op=op), nl.maximum, nl.add, "only nl.maximum"),
    vary("NKI063", "cumulative powers", lambda op: cumulate(op1=op), nl.subtract, nl.power, "op1=nl.power"),
    vary("NKI068", "range_select that loads", lambda c: select(reduce_cmd=c), CMD.idle, CMD.load_reduce, "load_reduce"),
    vary("NKI068", "imm1 without loading", lambda c: cumulate(imm1=1.0, reduce_cmd=c), CMD.load_reduce, CMD.reduce, "reduce with imm1=1.0"),
    # Rules of these alone.
    vary("NKI081", "max8 of 7", lambda n: top(columns=n), 8, 7, "src has 7 elements a partition, expected 8 to 16384"),
    vary("NKI081", "max8 of 16385", lambda n: top(columns=n), 16384, 16385, "16385"),
    vary("NKI081", "9 results", lambda n: top(eights=n), 8, 9, "dst has 9 elements"),
    vary("NKI081", "max8 of 4 dims", lambda s: nisa.max8(ps(8, 8), sb(8, *s)), (2, 8), (2, 2, 4), "src has 4 dims"),
    vary("NKI082", "places in int32", lambda d: nisa.nc_find_index8(sb(4, 8, dtype=d), sb(4, 9), sb(4, 8)), U16, I32, "dst has dtype int32"),
    vary("NKI082", "places of what is replaced in int32", lambda d: nisa.nc_match_replace8(sb(4, 9), sb(4, 9), sb(4, 8), 0.0, sb(4, 8, dtype=d)), U16, I32, "dst_idx has dtype int32"),
    vary("NKI083", "max8 of a NaN", lambda x: top(src=lambda: put(np.full((4, 9), x, np.float32))), 1.0, np.nan, r"src holds a NaN at \(0, 0\)"),
    vary("NKI084", "indices beyond 2^24", lambda s: select(range_start=s), 2**24 - 6, 2**24 - 5, "range_start=16777211"),
    vary("NKI085", "another fill", lambda x: select(on_false_value=x), -3.4028235e38, -1e30, "on_false_value"),
    vary("NKI086", "15 partitions", lambda p: local(rows=p), 16, 15, "multiple of 16"),
    vary("NKI086", "17 of 16 indices", lambda n: local(count=n, out=n), 16, 17, "17 indices a core, expected 1 to 16"),
    vary("NKI086", "3 elements an index", lambda w: local(width=w, out=16 * w), 4, 3, "num_elem_per_idx=3"),
    vary("NKI087", "local_gather outside", lambda i: local(index=i), 5, 6, "index 6 at .* gathers 1 of 6"),
    vary("NKI087", "local_gather that runs out", lambda i: local(index=i, width=4, out=64), 2, 3, "gathers 4 of 6"),
    vary("NKI088", "negative segments", lambda i: bounds(ids=i), 0, -1, "negative"),
    vary("NKI088", "half a segment", lambda i: bounds(ids=i), 2, 1.5, "broken"),
    vary("NKI180", "topk's results as its page has them", lambda n: best_read(n), 2, 20, "was never written"),
    vary("NKI180", "topk's results after the last", lambda k: best_read(2, k), 20, 17, "was never written"),
    vary("NKI089", "topk of 7", lambda n: best(n=n), 8, 7, "n=7"),
    vary("NKI089", "topk of 2^16", lambda n: best(n=n, columns=4096), 2**16 - 1, 2**16, "n=65536 of 65536"),
    vary("NKI089", "results of 2^15", lambda k: best(n=2**15, k=k, columns=2048), 2**15 - 1, 2**15, "the 32768 largest"),
    vary("NKI089", "more than there is", lambda n: best(n=n), 32, 33, "n=33 of 32"),
    vary("NKI089", "more results than elements", lambda n: best(n=8, k=n), 8, 9, "the 9 largest of 8"),
    vary("NKI089", "8 partitions", lambda p: best(rows=p), 16, 8, "val_dst has shape"),
    vary("NKI090", "random floats", lambda d: noise(d), U16, F32, "dst has dtype float32"),
    vary("NKI090", "two seeds", lambda n: nisa.set_rng_seed(sb(1, n)), 1, 2, r"src_seeds is \[1, 2\]"),
    vary("NKI090", "a state of 24 words", lambda n: state(columns=n), 6, 24, r"expected \[P, 6\] of uint32"),
    vary("NKI091", "a chance above 1", drop, 1, 1.01, "1.01"),
    vary("NKI091", "negative chances", drop, lambda: sb(4, 1), lambda: nl.full((4, 1), -0.5, F32, nl.sbuf), "-0.5"),
    # Indirect views.
    vary("NKI036", "bf16 indices", lambda d: rows_by(index=lambda: sb(2, 1, dtype=d)), U32, BF16, "bfloat16 in sbuf"),
    vary("NKI036", "a list of indices", lambda make: rows_by(index=make), lambda: column([1, 0]), lambda: [1, 0], "is not a static tensor"),
    vary("NKI036", "two scalars", lambda n: at(index=lambda: sb(1, n, dtype=I32)), 1, 2, r"shape \[1, 2\], expected \[1, 1\]"),
    vary("NKI036", "too few indices", lambda p: rows_by(index=lambda: sb(p, 1, dtype=I32)), 2, 1, "1 indices for 2 rows"),
    vary("NKI036", "vector_select of a row", lambda n: nisa.dma_copy(sb(2, 4), hbm(3, 4).vector_select(0, sb(2, n, dtype=I32))), 1, 2, r"expected \[P, 1\]"),
    vary("NKI037", "ap of an indirect view", rows, lambda v: v, lambda v: v.ap([[4, 2], [1, 4]]), r"\.ap of an indirect view"),
    vary("NKI054", "bytes of an indirect view", lambda view: (v := view()).storage.array(v), lambda: hbm(3, 4), lambda: rows_of(hbm(3, 4), column([0, 1])), "an indirect view"),
    vary("NKI037", "select twice", rows, lambda v: v.select(1, 1), lambda v: v.select(1, one(1)), "second run-time index"),
    vary("NKI037", "another dtype", rows, lambda v: v, lambda v: v.view(I32), "view"),
    vary("NKI037", "rows cut", rows, lambda v: v[:, 0], lambda v: v[0:1], "cuts the indexed dim 0"),
    vary("NKI037", "rows moved", rows, lambda v: v.permute((0, 2, 1)), lambda v: v.permute((1, 0, 2)), "moves the indexed dim 0"),
    vary("NKI037", "rows merged", rows, lambda v: v.flatten_dims(1, 2), lambda v: v.flatten_dims(0, 1), "flatten_dims"),
    vary("NKI037", "rows reshaped", rows, lambda v: v.reshape((2, 16)), lambda v: v.reshape((4, 8)), "reshape"),
    vary("NKI012", "an indirect pattern", lambda n: hbm(3, 4).ap([[4, 1], [1, n]], scalar_offset=one(0)), 12, 13, r"elements 0\.\.12 of a storage of 12"),
    vary("NKI037", "two offsets", lambda scalar: rows_by(scalar_offset=scalar()), lambda: None, lambda: one(0), "together"),
    vary("NKI037", "two registers", lambda i: hbm(3, 4)[nisa.register_alloc(0), i()], lambda: 1, lambda: nisa.register_alloc(1), r"registers index dims \[0, 1\]"),
    vary("NKI038", "a register of the partition dim", lambda i: sb(3, 4)[i(), :], lambda: 1, lambda: nisa.register_alloc(1), "of the partition dim"),
    vary("NKI006", "more from a register than there is", lambda n: hbm(3, 4)[nl.ds(nisa.register_alloc(0), n)], 3, 4, "slice 0:4 is outside dim 0 of size 3"),
    vary("NKI038", "a vector on chip", lambda make: rows_by(data=make), lambda: hbm(3, 4), lambda: sb(3, 4), "a vector of indices for dim 0 of a tensor in sbuf"),
    vary("NKI038", "a vector for dim 1", lambda d: nisa.dma_copy(sb(2, 4), hbm(3, 4).vector_select(d, column([1, 0]))), 0, 1, "a vector of indices for dim 1"),
    vary("NKI038", "the partition dim", copied, lambda t: t.ap([[6, 4], [1, 2]], scalar_offset=one(0), indirect_dim=1), lambda t: t.ap([[6, 4], [1, 2]], scalar_offset=one(0)), "partition dim"),
    vary("NKI038", "no such dim", lambda d: at(0, dim=d), 1, 2, "indirect_dim=2 of 2 dims"),
    vary("NKI039", "a strided tensor", lambda make: at(data=make), lambda: hbm(3, 4), lambda: hbm(3, 8)[:, 0:4], "indirect_dim=0 of strides"),
    vary("NKI039", "another element size", lambda d: at(dtype=d), I32, BF16, "read as bfloat16"),
    vary("NKI054", "an indirect operand", lambda view: nisa.tensor_scalar(sb(4, 2), view(sb(4, 6)), nl.add, 1.0), lambda t: t[:, 1:3], window(1), "data is an indirect view"),
    vary("NKI054", "a register from an indirect view", lambda view: nisa.register_load(nisa.register_alloc(0), view(hbm(3, 1))), lambda t: t[0:1], lambda t: t.select(0, one(0)), "src is an indirect view"),
    vary("NKI054", "a transpose to an indirect view", lambda view: nisa.dma_transpose(view(sb(2, 4)), hbm(4, 2)), lambda t: t, lambda t: t.ap([[4, 2], [1, 4]], scalar_offset=one(0), indirect_dim=1), "dst is an indirect view"),
    vary("NKI138", "a row outside", lambda i: rows_by((0, i)), 2, 3, "index 1, 3, leaves the 3"),
    vary("NKI138", "an access that leaves the tensor", at, 1, 2, "index 2 leaves the 3 of its dim or the tensor"),
    vary("NKI138", "beyond its dim, but inside the tensor", lambda i: nisa.dma_copy(sb(1, 1), hbm(3, 4).ap([[4, 1], [1, 1]], offset=4, scalar_offset=one(i), indirect_dim=1)), 3, 4, "index 4 leaves the 4"),
    vary("NKI138", "a copy of few partitions that leaves theirs", lambda i: copied(window(i, 2), 2), 4, 5, "index 5 leaves the 6"),
    vary("NKI139", "hwdge follows no vector", lambda m: rows_by(dge_mode=m), DGE.swdge, DGE.hwdge, r"dge_mode\.hwdge with an indirect src"),
    vary("NKI139", "static descriptors follow no scalar", lambda m: at(dge_mode=m), DGE.hwdge, DGE.none, r"dge_mode\.none"),
    vary("NKI139", "vectors on both sides", lambda both: nisa.dma_copy(rows_of(hbm(3, 4), column([0, 1])) if both else sb(2, 4), rows_of(hbm(3, 4), column([1, 2]))), False, True, "dst and src"),
    vary("NKI139", "more indices than rows", lambda n: rows_by(index=lambda: column([1] * n)), 2, 3, "src has 2 rows"),
    vary("NKI140", "three sources", lambda n: add(sources=n), 2, 3, "3 sources"),
    vary("NKI140", "a scalar index in a sum", lambda x: add(scalar=x), False, True, "a scalar index"),
    vary("NKI140", "a row added to twice", lambda x: add(twice=x), False, True, "row 1 is added to twice"),
    vary("NKI140", "indices that may differ", lambda x: add(same_index=x), True, False, "no source is dst"),
    vary("NKI140", "a sum in HBM", lambda b: add(chip=b, scatter=False), nl.sbuf, nl.hbm, "is in private_hbm"),
    vary("NKI141", "int32 indices", lambda d: turn(index=d), U32, I32, "of int32"),
    vary("NKI141", "two columns of 64", lambda p: turn(indices=(p, 2), rows=128), 128, 64, r"\[64, 2\]"),
    vary("NKI141", "fp32 rows", lambda d: turn(dtype=d), nl.float16, F32, "4-byte data"),
    vary("NKI141", "129 columns", lambda n: turn(last=n), 128, 129, "last dim 129"),
    vary("NKI141", "8 rows", lambda n: turn(rows=n), 16, 8, "8 rows, expected a multiple of 16"),
    vary("NKI141", "two middle dims", lambda s: turn(shape=s), (1, 2), (2, 2), r"\[16, 2, 2, 8\] is 1"),
    vary("NKI160", "a register without a value", lambda v: at(lambda: nisa.register_alloc(v)), 1, None, "never given a value"),
]
# fmt: on

test_pair = each_pair(PAIRS, __file__)


def test_a_probability_tile_is_read_when_it_runs_only():
    run(lambda: drop(lambda: nl.full((4, 1), -0.5, F32, nl.sbuf)), trace_only=True)


def test_a_seed_may_lie_in_psum():
    run(lambda: nisa.set_rng_seed(ps(1, 1)))
