"""Every rule of nki.isa (NKI040-NKI137) in pairs: the smallest call that passes, the nearest that breaks that rule."""

import numpy as np
from isa_tiles import hbm, ps, put, sb
from pairs import each_pair, vary

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.ops import OPS

E, CMD, DGE, OOB = nisa.engine, nisa.reduce_cmd, nisa.dge_mode, nisa.oob_mode
BF16, F16, F32, F8, I32, U8 = nl.bfloat16, nl.float16, nl.float32, nl.float8_e4m3, nl.int32, nl.uint8
KEEP = list(range(32))


def mm(k=4, m=3, n=5, dst=None, k2=None, dtype=F32, dtype2=None, out=F32, **settings):
    dst = nl.ndarray((min(m, 128), n), out, nl.psum) if dst is None else dst
    return nisa.nc_matmul(dst, sb(k, m, dtype=dtype), sb(k2 or k, n, dtype=dtype2 or dtype), **settings)


def double_row(dtype=F8, rows=2, out=F32, **settings):
    dst = nl.ndarray((3, 5), out, nl.psum)
    stationary, moving = sb(4, rows, 3, dtype=dtype), sb(4, rows, 5, dtype=dtype)
    return nisa.nc_matmul(dst, stationary, moving, perf_mode=nisa.matmul_perf_mode.double_row, **settings)


def transposing(out=BF16, columns=4, scale=1.0, **settings):
    identity = put((scale * np.eye(4, columns)).astype(np.float32), BF16)
    dst = nl.ndarray((3, columns), out, nl.psum)
    return nisa.nc_matmul(dst, sb(4, 3, dtype=BF16), identity, is_transpose=True, **settings)


def accumulated(first, then, **settings):
    dst = nl.ndarray((3, 5), F32, nl.psum)
    mm(n=first, dst=dst[:, 0:first])
    return mm(n=then, dst=dst[:, 0:then], **settings)


def ts(op0, operand0, dtype=F32, data=None, **settings):
    data = sb(4, 6, dtype=dtype) if data is None else data
    return nisa.tensor_scalar(sb(4, 6, dtype=dtype), data, op0, operand0, **settings)


def tt(op=nl.add, dtype=F32, dst=None, data1=None, data2=None, **settings):
    tiles = [sb(4, 6, dtype=dtype) if t is None else t for t in (dst, data1, data2)]
    return nisa.tensor_tensor(*tiles, op, **settings)


def act(op=nl.exp, data=1.0, **settings):
    return nisa.activation(sb(4, 6), op, nl.full((4, 6), data, F32), **settings)


def tsr(op0=nl.multiply, operand0=2.0, reduce_op=nl.add, rows=4, **settings):
    return nisa.tensor_scalar_reduce(sb(rows, 6), sb(rows, 6), op0, operand0, reduce_op, **settings)


def sel(dtype=F32, predicate=U8, dst=F32, on_false=0.0, reduce_res=None, **settings):
    tiles = sb(4, 6, dtype=dst), sb(4, 6, dtype=predicate), sb(4, 6, dtype=dtype)
    return nisa.select_reduce(*tiles, on_false, reduce_res, **settings)


def tr(op=nl.add, axis=1, dtype=F32, shape=(4, 2, 3), dst=(4, 2), **settings):
    return nisa.tensor_reduce(sb(*dst, dtype=dtype), op, sb(*shape, dtype=dtype), axis, **settings)


def aff(pattern=((1, 6),), on_false=0.0, cmp_op=nl.equal, dst=None, **settings):
    dst = sb(4, 6) if dst is None else dst
    return nisa.affine_select(dst, pattern, 1, sb(4, 6), on_false, cmp_op, **settings)


def shuffle(mask=KEEP, dst=(32, 4), src=(32, 4), dtype=F32, dst_from=0, src_from=0):
    big = sb(128, dst[1], dtype=F32), sb(128, src[1], dtype=dtype)
    return nisa.nc_stream_shuffle(
        big[0][dst_from : dst_from + dst[0]], big[1][src_from : src_from + src[0]], shuffle_mask=mask
    )


def rows(start, count):
    return nisa.reciprocal(sb(count, 4), sb(128, 4)[start : start + count])


def dma(dst=(4, 6), src=(4, 6), dst_type=F32, src_type=F32, make_dst=hbm, make_src=sb, **settings):
    return nisa.dma_copy(make_dst(*dst, dtype=dst_type), make_src(*src, dtype=src_type), **settings)


def dmt(src=(4, 6), dst=None, dtype=BF16, make=sb, **settings):
    order = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}.get(len(src), (0,))
    dst = tuple(src[a] for a in order) if dst is None else dst
    return nisa.dma_transpose(make(*dst, dtype=dtype), hbm(*src, dtype=BF16), **settings)


def dmc(count=2, reduce_op=nl.add, make=sb, size=6, **settings):
    return nisa.dma_compute(sb(4, 6), [make(4, size) for _ in range(count)], reduce_op, **settings)


def flat(step, count):
    data = put(np.ones((1, step * (count - 1) + 1), np.int8))
    return nisa.tensor_copy(nl.ndarray((1, count), nl.int8), data[:, ::step])


def nt(rows_in, columns, engine, make_src=sb, make_dst=ps):
    return nisa.nc_transpose(make_dst(columns, rows_in), make_src(rows_in, columns), engine)


# ruff: noqa: E501  a table with one pair a line
# fmt: off
PAIRS = [
    # Operands.
    vary("NKI040", "not a tensor", lambda v: nisa.reciprocal(sb(4, 6), v() if callable(v) else v), lambda: sb(4, 6), 3, "data=3 is not"),
    vary("NKI040", "dma_compute source", lambda f: dmc(make=f), sb, lambda *shape: 3, r"srcs\[0\]=3 is not a tensor"),
    vary("NKI040", "matmul reads PSUM", lambda f: nisa.nc_matmul(ps(3, 5), f(4, 3), sb(4, 5)), sb, ps, "reads SBUF"),
    vary("NKI040", "matmul writes SBUF", lambda f: nisa.nc_matmul(f(3, 5), sb(4, 3), sb(4, 5)), ps, sb, "writes PSUM"),
    vary("NKI040", "dma_copy of an array", lambda make: nisa.dma_copy(sb(4, 6), make(4, 6)), hbm, np.eye, "is not a tensor"),
    vary("NKI040", "dma_transpose of an array", lambda make: nisa.dma_transpose(sb(6, 4), make(4, 6)), hbm, np.eye, "is not a tensor"),
    vary("NKI041", "memset engine", lambda e: nisa.memset(sb(4, 6), 1.0, e), E.gpsimd, E.scalar, r"engine\.scalar cannot"),
    vary("NKI041", "tensor_copy engine", lambda e: nisa.tensor_copy(sb(4, 6), sb(4, 6), e), E.scalar, E.tensor, r"engine\.tensor"),
    vary("NKI041", "power on vector", lambda op: tt(op, engine=E.vector), nl.multiply, nl.power, r"engine\.gpsimd can"),
    vary("NKI041", "tensor_scalar engine", lambda e: ts(nl.add, 1.0, engine=e), E.scalar, E.dma, r"engine\.dma"),
    vary("NKI041", "nc_transpose engine", lambda e: nt(4, 6, e), E.vector, E.gpsimd, r"engine\.tensor, engine\.vector can"),
    vary("NKI042", "memset", lambda f: nisa.memset(f(4, 6), 1.0, E.gpsimd), sb, ps, "dst is in PSUM"),
    vary("NKI042", "rsqrt data", lambda f: ts(nl.rsqrt, 0.0, data=f(4, 6)), sb, ps, "data is in PSUM"),
    vary("NKI042", "iota", lambda f: nisa.iota(f(4, 6), [[1, 6]]), sb, ps, "dst is in PSUM"),
    vary("NKI043", "33 partitions", lambda p: rows(p, 33), 64, 32, "multiples of 64"),
    vary("NKI043", "65 partitions", lambda p: rows(p, 63 + 2), 0, 32, "multiples of 128"),
    vary("NKI043", "with an address", lambda n: nisa.memset(nl.ndarray((64, 2), F32, nl.sbuf, address=(32, 0))[0:n], 1.0), 32, 33, r"32\.\.64"),
    vary("NKI044", "tensor_reduce", lambda n: tr(axis=2, dst=(n, 2)), 4, 5, "dst has 5 partitions, data 4"),
    vary("NKI044", "bn_stats", lambda n: nisa.bn_stats(sb(n, 6), sb(4, 8)), 4, 3, "dst has 3 partitions"),
    vary("NKI044", "bn_aggr", lambda n: nisa.bn_aggr(sb(n, 2), sb(4, 6)), 4, 3, "dst has 3 partitions"),
    vary("NKI044", "partition reduce", lambda n: nisa.tensor_partition_reduce(sb(n, 6), nl.add, sb(4, 6)), 1, 2, "expected 1"),
    vary("NKI044", "transpose", lambda n: nisa.nc_transpose(ps(n, 4), sb(4, 6)), 6, 5, "dst has 5 partitions, the transpose 6"),
    vary("NKI045", "same size other shape", lambda s: nisa.reciprocal(sb(4, *s), sb(4, 6)), (2, 3), (2, 4), "data 6"),
    vary("NKI045", "tensor_reduce", lambda n: tr(axis=2, dst=(4, n)), 2, 3, "dst has 3 elements a partition, the reduction 2"),
    vary("NKI045", "partition reduce", lambda n: nisa.tensor_partition_reduce(sb(1, n), nl.add, sb(4, 6)), 6, 5, "data 6"),
    vary("NKI045", "transpose", lambda n: nisa.nc_transpose(ps(6, n), sb(4, 6)), 4, 5, "the transpose 4"),
    vary("NKI045", "shuffle", lambda n: shuffle(src=(32, n)), 4, 5, "src 5"),
    vary("NKI046", "contiguous dims merge", lambda make: nisa.tensor_copy(make(), sb(4, 16)), lambda: sb(4, 2, 2, 2, 2), lambda: sb(4, 3, 3, 3, 3)[:, 0:2, 0:2, 0:2, 0:2], "dst walks 4"),
    vary("NKI046", "size 1 does not count", lambda n: nisa.tensor_copy(sb(4, 8 * n), sb(4, 3, 3, 3, 3)[:, 0:2, 0:n, 0:2, 0:2]), 1, 2, "src walks 4"),
    vary("NKI047", "tensor_tensor", lambda f: tt(data1=ps(4, 6), data2=f(4, 6)), sb, ps, "data1 and data2"),
    vary("NKI047", "select_reduce", lambda make: nisa.select_reduce(sb(4, 6), make(4, 6, dtype=U8), ps(4, 6), 0.0), sb, ps, "predicate and on_true"),
    vary("NKI048", "a function is no binary operator", tt, nl.maximum, nl.exp, r"nl\.exp is not a binary"),
    vary("NKI048", "a string is no operator", tt, nl.subtract, "add", "op='add' is not an operator"),
    vary("NKI048", "average is no ALU operator", lambda op: ts(op, 1.0), nl.power, nl.average, "not an ALU operator"),
    vary("NKI048", "affine_select compares", lambda op: aff(cmp_op=op), nl.greater_equal, nl.add, "not a comparison"),
    vary("NKI049", "square in tensor_scalar", lambda op: ts(op, 0), nl.abs, nl.square, r"nl\.square .* NeuronCore-v4"),
    vary("NKI049", "abs_max", tt, nl.maximum, OPS["abs_max"], r"nl\.abs_max needs NeuronCore-v4"),
    vary("NKI049", "DMA priority", lambda p: dma(priority=p), None, 2, "priority=2 needs"),
    vary("NKI050", "bitvec on floats", lambda t: tt(nl.bitwise_and, t), I32, F32, "of dtype float32"),
    vary("NKI050", "kinds mixed", lambda op: ts(nl.left_shift, 2, I32, op1=op, operand1=1), nl.bitwise_or, nl.add, "different kinds"),
    vary("NKI050", "fraction", lambda v: ts(nl.bitwise_and, v, I32), 3, 2.5, "operand0=2.5 is not an integer"),
    vary("NKI050", "scalar_tensor_tensor op0", lambda op: nisa.scalar_tensor_tensor(sb(4, 6, dtype=I32), sb(4, 6, dtype=I32), op, 1, nl.add, sb(4, 6, dtype=I32)), nl.add, nl.bitwise_and, "not supported"),
    vary("NKI050", "scan", lambda op: nisa.tensor_tensor_scan(sb(4, 6, dtype=I32), sb(4, 6, dtype=I32), sb(4, 6, dtype=I32), 0.0, nl.add, op), nl.add, nl.bitwise_or, "not supported"),
    vary("NKI050", "tensor_scalar_reduce", lambda op: nisa.tensor_scalar_reduce(sb(4, 6, dtype=I32), sb(4, 6, dtype=I32), op, 1, nl.add), nl.add, nl.bitwise_or, "not supported"),
    vary("NKI051", "operand dtype", lambda t: ts(nl.add, sb(4, 1, dtype=t)), F32, BF16, "operand0 has dtype bfloat16"),
    vary("NKI051", "operand size", lambda n: ts(nl.add, sb(4, n)), 1, 2, r"operand0 has shape \(4, 2\), expected \(4, 1\)"),
    vary("NKI051", "operand missing", lambda v: ts(nl.add, v), 0, None, "operand0=None is neither"),
    vary("NKI051", "a bool is no number", lambda v: ts(nl.add, v), 1, True, "operand0=True"),
    vary("NKI051", "bitvec operand tile", lambda t: ts(nl.bitwise_and, sb(4, 1, dtype=t), I32), I32, F32, "operand0 has dtype float32"),
    vary("NKI051", "predicated src", lambda v: nisa.tensor_copy_predicated(sb(4, 6), v, sb(4, 6, dtype=U8)), 2.0, "x", "src='x'"),
    vary("NKI052", "transpose", lambda t: nisa.nc_transpose(ps(6, 4, dtype=t), sb(4, 6, dtype=BF16)), BF16, F32, "dst is float32"),
    vary("NKI052", "DMA transpose", lambda t: dmt(dtype=t), BF16, F16, "dst is float16"),
    vary("NKI052", "select_reduce int32", sel, nl.int16, I32, "on_true has dtype int32"),
    vary("NKI052", "shuffle", lambda d: shuffle(dtype=d), F32, BF16, "dst is float32 and src is bfloat16"),
    vary("NKI030", "reduce_cmd", lambda c: act(reduce_cmd=c), CMD.idle, 0, "reduce_cmd=0 is not a member"),
    vary("NKI030", "a reduction's reduce_cmd", lambda c: tsr(reduce_cmd=c), CMD.reset_reduce, "reset_reduce", "reduce_cmd='reset_reduce' is not a member"),
    vary("NKI030", "a selection's reduce_cmd", lambda c: sel(reduce_cmd=c), CMD.idle, 0, "reduce_cmd=0 is not a member"),
    vary("NKI030", "perf_mode", lambda p: mm(perf_mode=p), nisa.matmul_perf_mode.none, "none", "perf_mode='none' is not a member"),
    vary("NKI030", "a transpose's dge_mode", lambda m: dmt(dge_mode=m), DGE.none, 3, "dge_mode=3 is not a member"),
    vary("NKI052", "predicated copy", lambda d: nisa.tensor_copy_predicated(sb(4, 6, dtype=d), sb(4, 6), sb(4, 6, dtype=U8)), F32, BF16, "dst is bfloat16 and src is float32"),
    vary("NKI053", "axis size", lambda n: flat(1, n), 65_535, 65_536, "65536 elements with stride 1"),
    vary("NKI053", "axis stride", lambda s: flat(s, 3), 32_767, 32_768, "3 elements with stride 32768"),
    # Vector, Scalar and GpSimd.
    vary("NKI060", "float into integers", lambda v: nisa.memset(sb(4, 6, dtype=I32), v), 2, 2.0, r"value=2\.0 is not an integer"),
    vary("NKI060", "too large", lambda v: nisa.memset(sb(4, 6, dtype=nl.int8), v), 127, 128, r"int8 \(-128\.\.127\)"),
    vary("NKI060", "bool into a float tile", lambda v: nisa.memset(sb(4, 6), v), 1, True, "value=True is not a number"),
    vary("NKI061", "predicated copy", lambda t: nisa.tensor_copy_predicated(sb(4, 6), 1.0, sb(4, 6, dtype=t)), nl.uint32, nl.int8, "int8"),
    vary("NKI061", "select_reduce", lambda t: sel(predicate=t), nl.int16, nl.uint32, "predicate has dtype uint32"),
    vary("NKI062", "not the last dim", lambda a: tr(axis=a, dst=(4, 3 if a == 1 else 2)), 2, 1, "axis=1 of a 3-d tile"),
    vary("NKI062", "partition dim", lambda a: tr(axis=a, dst=(4, 1)), (1, 2), (0, 1, 2), r"axis=\(0, 1, 2\)"),
    vary("NKI062", "not an int", lambda a: tr(axis=a), 2, "2", "axis='2' is neither"),
    vary("NKI063", "tensor_reduce", lambda op: tr(op, 2), nl.subtract, nl.power, r"nl\.power does not reduce"),
    vary("NKI063", "tensor_scalar_reduce", lambda op: tsr(reduce_op=op), nl.maximum, nl.subtract, "add, multiply, maximum or minimum"),
    vary("NKI063", "select_reduce", lambda op: sel(reduce_op=op), nl.maximum, nl.minimum, r"only nl\.maximum"),
    vary("NKI063", "partition reduce", lambda op: nisa.tensor_partition_reduce(sb(1, 6), op, sb(4, 6)), nl.average, nl.minimum, "one of add, average"),
    vary("NKI064", "negate of bits", lambda n: tr(nl.bitwise_or, 2, I32, negate=n), False, True, r"negate with nl\.bitwise_or"),
    vary("NKI065", "bn_stats reads 512", lambda n: nisa.bn_stats(sb(4, 6), sb(4, n)), 512, 513, "data has 513"),
    vary("NKI065", "bn_stats writes 6", lambda n: nisa.bn_stats(sb(4, n), sb(4, 8)), 6, 3, "dst 3"),
    vary("NKI066", "bn_aggr reads triples", lambda n: nisa.bn_aggr(sb(4, 2), sb(4, n)), 9, 8, "data has 8"),
    vary("NKI066", "bn_aggr writes 2", lambda n: nisa.bn_aggr(sb(4, n), sb(4, 6)), 2, 6, "dst 6"),
    vary("NKI067", "an ALU operator", act, nl.square, nl.add, r"op=nl\.add"),
    vary("NKI068", "activation reduces without op", lambda op: act(reduce_op=op, reduce_cmd=CMD.reset_reduce), nl.add, None, "reduce_op=None"),
    vary("NKI068", "activation reduces by add only", lambda op: act(reduce_op=op, reduce_cmd=CMD.reset_reduce), nl.add, nl.maximum, r"only nl\.add"),
    vary("NKI068", "activation load_reduce", lambda c: act(reduce_op=nl.add, reduce_cmd=c), CMD.reset, CMD.load_reduce, "no reduce_cmd.load_reduce"),
    vary("NKI068", "reduce_res size", lambda n: act(reduce_op=nl.add, reduce_cmd=CMD.reset_reduce, reduce_res=sb(4, n)), 1, 2, "reduce_res has shape"),
    vary("NKI068", "reduce_init without load", lambda c: tsr(reduce_cmd=c, reduce_init=1.0), CMD.load_reduce, CMD.reset_reduce, "reduce_init=1.0"),
    vary("NKI068", "select_reduce idle result", lambda c: sel(reduce_res=sb(4, 1), reduce_cmd=c), CMD.reset_reduce, CMD.idle, "reduce_cmd.idle"),
    vary("NKI068", "select_reduce load", lambda c: sel(reduce_cmd=c), CMD.idle, CMD.load_reduce, "reduce_cmd.load_reduce"),
    vary("NKI068", "select_reduce integer result", lambda t: sel(reduce_res=sb(4, 1, dtype=t), reduce_cmd=CMD.reset_reduce), BF16, I32, "reduce_res has dtype int32, accepted: float16"),
    *(
        vary("NKI069", f"{op} of {bad}", lambda v, op=op: act(op, v), good, bad, words)
        for op, good, bad, words in (
            (nl.log, 2.0**-64, 0.0, r"nl\.log of 0\.0 at \(0, 0\); valid is \[2\^-64"), (nl.log, 2.0**64, 2.0**65, "valid is"),
            (nl.sin, 3.14, 3.15, r"valid is \[-pi, pi\]"), (nl.arctan, 1.57, 1.58, r"\[-pi/2, pi/2\]"),
            (nl.sqrt, 2.0**-116, 2.0**-117, "valid is"), (nl.sqrt, 2.0**118, 2.0**119, "valid is"),
            (nl.rsqrt, 2.0**-87, 2.0**-88, "valid is"), (nl.rsqrt, 2.0**97, 2.0**98, "valid is"),
            (nl.reciprocal, -(2.0**-42), -(2.0**-43), "valid is"), (nl.reciprocal, 2.0**42, 2.0**43, "valid is"),
        )
    ),
    vary("NKI069", "after scale and bias", lambda b: act(nl.log, 1.0, scale=2.0, bias=b), -1.0, -2.0, r"nl\.log of 0\.0"),
    vary("NKI070", "scale dtype", lambda t: act(scale=sb(4, 1, dtype=t)), F32, BF16, "scale has dtype bfloat16"),
    vary("NKI070", "scale size", lambda n: act(scale=sb(4, n)), 1, 6, "scale has shape"),
    vary("NKI070", "bias dtype", lambda t: act(bias=sb(4, 1, dtype=t)), BF16, nl.tfloat32, "bias has dtype tfloat32"),
    vary("NKI070", "bias kind", lambda v: act(bias=v), 0.5, "0.5", "bias='0.5' is neither"),
    vary("NKI071", "pattern covers", lambda n: nisa.iota(sb(4, 6), [[1, n]]), 6, 5, "for 6 elements a partition"),
    vary("NKI071", "pairs", lambda p: nisa.iota(sb(4, 6), p), [[1, 6]], [1, 6], r"pattern=\[1, 6\]"),
    vary("NKI072", "an int", lambda v: aff(on_false=v), 0.0, 0, "on_false_value=0"),
    vary("NKI073", "a list", shuffle, KEEP, 255, "shuffle_mask=255"),
    vary("NKI073", "values", lambda m: shuffle([m, *KEEP[1:]]), 255, 32, r"shuffle_mask=\[32"),
    vary("NKI073", "source outside", lambda m: shuffle([m] * 32, src=(8, 4)), 7, 8, "partition 0 copies from 8, src has 8"),
    vary("NKI074", "scalar add-multiply", lambda op: ts(op, 2.0, op1=nl.add, operand1=1.0, engine=E.scalar), nl.multiply, nl.add, "scalar engine"),
    vary("NKI074", "scalar subtract", lambda op: ts(op, 2.0, engine=E.scalar), nl.add, nl.subtract, "op0=subtract"),
    vary("NKI074", "gpsimd", lambda op: ts(op, 0.0, engine=E.gpsimd), nl.rsqrt, nl.add, "op0=add"),
    vary("NKI074", "vector rsqrt", lambda op: ts(op, 0.0, engine=E.vector), nl.abs, nl.rsqrt, "op0=rsqrt"),
    vary("NKI074", "bitvec off vector", lambda e: ts(nl.bitwise_and, 1, I32, engine=e), E.vector, E.gpsimd, "op0=bitwise_and"),
    vary("NKI075", "operand0", lambda v: ts(nl.abs, v), None, 1.0, r"operand0=1\.0 for the unary nl\.abs"),
    vary("NKI075", "operand1", lambda v: ts(nl.add, 1.0, op1=nl.abs, operand1=v), 0, 2, "operand1=2 for the unary"),
    vary("NKI076", "operand1 alone", lambda op: ts(nl.add, 1.0, op1=op, operand1=2.0), nl.add, None, "without op1"),
    vary("NKI076", "op1 alone", lambda v: ts(nl.add, 1.0, op1=nl.add, operand1=v), 2.0, None, "without operand1"),
    vary("NKI077", "activation continues", lambda c: act(reduce_op=nl.add, reduce_cmd=c), CMD.reset_reduce, CMD.reduce, "reduce_cmd.reduce"),
    vary("NKI077", "nothing to read", lambda c: act(reduce_op=nl.add, reduce_cmd=c, reduce_res=sb(4, 1)), CMD.reset, CMD.idle, "reads registers"),
    vary("NKI077", "other op", lambda op: (tsr(), tsr(reduce_op=op, reduce_cmd=CMD.reduce))[1], nl.add, nl.maximum, r"registers that hold nl\.add"),
    vary("NKI077", "idle select spoils", lambda c: [sel(reduce_cmd=cmd) for cmd in (CMD.reset_reduce, c, CMD.reduce)], CMD.reduce, CMD.idle, "reduce_cmd.reduce"),
    vary("NKI078", "reverse0", lambda r: tsr(nl.subtract, reverse0=r), False, True, "reverse0=True"),
    vary("NKI079", "64 active", lambda p: shuffle(src=(40, 4), dst_from=p, dst=(20, 4)), 64, 32, "dst starts at partition 32 with 64 active"),
    vary("NKI079", "96 active", lambda p: shuffle(dst=(65, 4), src=(32, 4), src_from=p, mask=[255] * 32), 0, 32, "src starts at partition 32 with 96"),
    vary("NKI080", "offset range", lambda v: nisa.iota(sb(4, 6), [[1, 6]], v), 2**31 - 1, 2**31, "offset=2147483648"),
    # Tensor Engine.
    vary("NKI101", "contraction", lambda k: mm(k2=k), 4, 5, "stationary has 4 partitions, moving 5"),
    vary("NKI102", "row tile of 32", lambda k: mm(k=k, tile_position=(0, 0), tile_size=(32, 128)), 32, 33, "33 contraction rows, 3 columns in a tile of 32"),
    vary("NKI102", "column tile of 32", lambda m: mm(m=m, tile_position=(0, 0), tile_size=(128, 32)), 32, 33, "33 columns in a tile of 128, 32"),
    vary("NKI103", "stationary columns", lambda m: mm(m=m), 128, 129, "stationary free size 129 > 128"),
    vary("NKI103", "nl.matmul", lambda n: nl.matmul(sb(4, n), sb(4, 8), transpose_x=True), 128, 129, "129 columns, at most 128"),
    vary("NKI104", "moving columns", lambda n: mm(n=n), 512, 513, "moving free size 513 > 512"),
    vary("NKI105", "dst columns", lambda n: mm(dst=ps(3, n)), 5, 6, r"dst is \[3, 6\], the product \[3, 5\]"),
    vary("NKI106", "dst dtype", lambda t: mm(out=t), F32, BF16, "dst has dtype bfloat16"),
    vary("NKI107", "fp32 with bf16", lambda t: mm(dtype2=t), nl.tfloat32, BF16, "moving bfloat16"),
    vary("NKI107", "bf16 with fp32", lambda t: mm(dtype=BF16, dtype2=t), F8, F32, "stationary is bfloat16, moving float32"),
    vary("NKI107", "integers", lambda t: mm(dtype=t), F16, nl.int8, "stationary is int8"),
    vary("NKI107", "OCP fp8", lambda t: mm(dtype=t), nl.float8_e5m2, nl.float8_e4m3fn, "float8_e4m3fn"),
    vary("NKI108", "two banks", lambda c: mm(n=5, dst=nl.ndarray((3, 1024), F32, nl.psum)[:, c : c + 5]), 507, 508, r"bytes 2032\.\.2051"),
    vary("NKI108", "transpose", lambda c: nisa.nc_transpose(nl.ndarray((6, 1024), F32, nl.psum)[:, c : c + 4], sb(4, 6)), 508, 510, "bank"),
    vary("NKI109", "memset", lambda a: mm(dst=ps(3, 5), accumulate=a), None, True, "no matmul has written 15 of 15"),
    vary("NKI109", "part of it", lambda n: accumulated(n, 5, accumulate=True), 5, 4, "no matmul has written 3 of 15"),
    vary("NKI111", "second dim", lambda n: double_row(rows=n), 2, 3, r"not \[K, 2, M\]"),
    vary("NKI111", "fp8 only", double_row, nl.float8_e5m2, BF16, "double_row takes fp8"),
    vary("NKI112", "both", lambda p: mm(tile_position=(0, 0), tile_size=p), (32, 128), (), "must both be pairs"),
    vary("NKI112", "row size", lambda n: mm(tile_position=(0, 0), tile_size=(n, 128)), 128, 16, "rows are 32, 64 or 128"),
    vary("NKI112", "column size", lambda n: mm(tile_position=(0, 0), tile_size=(32, n)), 64, 16, "columns are 32, 64 or 128"),
    vary("NKI112", "start column", lambda n: mm(tile_position=(0, n), tile_size=(32, 64)), 64, 32, "start column 32"),
    vary("NKI111", "column tile", lambda n: double_row(tile_position=(0, 0), tile_size=(128, n)), 128, 64, "tile of 64 columns"),
    vary("NKI112", "start row multiple", lambda n: mm(tile_position=(n, 0), tile_size=(64, 128)), 64, 32, "start row 32"),
    vary("NKI112", "start row below 128", lambda n: mm(tile_position=(n, 0), tile_size=(32, 128)), 96, 128, "start row 128"),
    vary("NKI113", "dtype kept", transposing, BF16, F32, "dst is float32, the data bfloat16"),
    vary("NKI113", "accumulate", lambda a: transposing(accumulate=a), None, True, "neither accumulates"),
    vary("NKI113", "square", lambda n: transposing(columns=n), 4, 3, r"\[4, 4\] identity, its free size is 3"),
    vary("NKI113", "identity", lambda v: transposing(scale=v), 1.0, 2.0, "not the identity"),
    vary("NKI114", "vector columns", lambda n: nt(32, n, E.vector), 32, 33, r"\[32, 33\] on the vector engine, at most \[32, 32\]"),
    vary("NKI114", "vector rows", lambda n: nt(n, 32, E.vector), 32, 33, r"\[33, 32\] on the vector"),
    vary("NKI114", "tensor writes PSUM", lambda f: nt(4, 6, E.tensor, make_dst=f), ps, sb, "SBUF to PSUM"),
    vary("NKI115", "transpose at 2 bytes", lambda c: nisa.nc_transpose(ps(6, 8, dtype=BF16)[:, c : c + 4], sb(4, 6, dtype=BF16)), 2, 1, "starts at byte 2"),
    # DMA.
    vary("NKI130", "dma_copy src", lambda f: dma(make_src=f), sb, ps, "src is in PSUM"),
    vary("NKI131", "dma_copy", lambda n: dma(src=(n, 2)), 12, 13, "dst has 24 elements, src 26"),
    vary("NKI131", "dma_compute", lambda n: dmc(size=n), 6, 5, r"dst has 24 elements, srcs\[0\] 20"),
    vary("NKI132", "hwdge", lambda t: dma(src_type=t, dge_mode=DGE.hwdge), F32, BF16, "dst is float32, src bfloat16"),
    vary("NKI133", "which engine", lambda e: dma(dge_mode=DGE.hwdge, engine=e), E.scalar, E.gpsimd, r"engine\.gpsimd with dge_mode\.hwdge"),
    vary("NKI133", "which mode", lambda m: dma(dge_mode=m, engine=E.sync), DGE.hwdge, DGE.unknown, r"engine\.sync with dge_mode\.unknown"),
    vary("NKI134", "dma_compute", lambda m: dmc(oob_mode=m), OOB.error, OOB.skip, "static access"),
    vary("NKI135", "16 sources", dmc, 16, 17, "17 sources"),
    vary("NKI135", "a list", lambda wrap: nisa.dma_compute(sb(4, 6), wrap(sb(4, 6)), nl.add), lambda one: [one], lambda one: one, "0 sources in a list"),
    vary("NKI135", "scales in a list", lambda s: dmc(scales=s), [1.0, 1.0], 1.0, r"scales=1\.0; only a list"),
    vary("NKI135", "adds", lambda op: dmc(reduce_op=op), nl.add, nl.multiply, r"only nl\.add"),
    vary("NKI135", "scales are 1", lambda s: dmc(scales=[1.0, s]), 1.0, 0.5, r"scales=\[1\.0, 0\.5\]"),
    vary("NKI135", "unique_indices", lambda u: dmc(unique_indices=u), True, False, "unique_indices=False"),
    vary("NKI136", "axes", lambda a: dmt(axes=a), (1, 0), (0, 1), r"axes=\(0, 1\)"),
    vary("NKI136", "axes in a tuple", lambda a: dmt(axes=a), (1, 0), 1, "axes=1 of a 2-d source"),
    vary("NKI136", "axes of 4-d", lambda a: dmt((2, 3, 4, 5), axes=a), (3, 1, 2, 0), (3, 2, 1, 0), "4-d source"),
    vary("NKI136", "dst shape", lambda s: dmt((4, 6), dst=s), (6, 4), (4, 6), r"dst must be \(6, 4\)"),
    vary("NKI136", "dst in SBUF", lambda f: dmt(make=f), sb, hbm, "in SBUF"),
    vary("NKI137", "mode", lambda m: dmt((16, 8), dge_mode=m), DGE.hwdge, DGE.swdge, r"dge_mode\.swdge transposes"),
    vary("NKI137", "no DGE", lambda m: dmt((48, 30), dge_mode=m), DGE.none, DGE.swdge, r"dge_mode\.swdge transposes"),
    vary("NKI137", "2-d rows", lambda n: dmt((n, 8), dge_mode=DGE.hwdge), 16, 8, "first dim 8"),
    vary("NKI137", "last dim", lambda n: dmt((16, n), dst=(128, 16), dge_mode=DGE.hwdge), 128, 129, "last dim 129"),
    vary("NKI137", "first dim of 3-d", lambda n: dmt((n, 16, 8), dge_mode=DGE.hwdge), 8, 3, "first dim 3"),
    vary("NKI137", "rows in 16s", lambda n: dmt((4, n, 8), dge_mode=DGE.hwdge), 4, 6, "first dim 4"),
    vary("NKI137", "4-d", lambda n: dmt((2, 3, n, 8), dge_mode=DGE.hwdge), 8, 4, "first dim 2"),
    vary("NKI137", "2-byte data", lambda d: nisa.dma_transpose(sb(8, 16, dtype=d), hbm(16, 8, dtype=d), dge_mode=DGE.hwdge), F16, F32, "4-byte data"),
]
# fmt: on

test_pair = each_pair(PAIRS, __file__)
