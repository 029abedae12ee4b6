"""Arrays into kernels and back: kinds, dtypes, layouts, aliases, and updates in place; NKI's dtypes on NumPy: names,
and casts bit by bit.
"""

import inspect
import re
from collections import namedtuple
from enum import Enum

import ml_dtypes
import numpy as np
import pytest
import torch
from isa_tiles import sb
from pairs import run

from nkiconv import simulator as nki
from nkiconv.simulator import ArraySpec, NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.documented import ISA_CALLS, ISA_GEN4, ISA_SCALARS
from nkiconv.simulator.dtypes import DTYPES, canonical, from_fp32
from nkiconv.simulator.ops import Op

NUMPY = [
    np.float32, np.int8, np.uint32, np.bool_, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e8m0fnu,
]  # fmt: skip
TORCH = [
    torch.float32, torch.bfloat16, torch.int8, torch.uint32, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
Pair = namedtuple("Pair", "first second")


def copied(x):
    rows = x if x.ndim > 1 else x.expand_dim(0)
    tile, out = nl.ndarray(rows.shape, x.dtype), nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(tile, rows)
    nisa.dma_copy(out, tile)
    return out


def incremented(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.add, 1.0)
    nisa.dma_copy(x, tile)


def counting(dtype=np.float32, shape=(4, 6)):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", NUMPY, ids=lambda t: np.dtype(t).name)
def test_numpy_round_trip(dtype):
    x = counting(dtype)
    y = nki.jit(copied)(x)
    assert type(y) is np.ndarray
    assert y.dtype == x.dtype
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_torch_round_trip(dtype):
    x = torch.arange(24).reshape(4, 6).to(dtype)
    y = nki.jit(copied)(x)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    assert torch.equal(y.view(torch.uint8), x.view(torch.uint8))
    assert torch.equal(nki.jit(copied)(x.t()).view(torch.uint8), x.t().contiguous().view(torch.uint8))


LAYOUTS = {
    "transposed": lambda x: x.T, "strided": lambda x: x[:, ::2], "rows reversed": lambda x: x[::-1],
    "fortran": np.asfortranarray, "broadcast": lambda x: np.broadcast_to(x[:1], x.shape), "one row": lambda x: x[1],
    "slice": lambda x: x[1:3],
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_that_are_read(layout):
    x = layout(counting())
    np.testing.assert_array_equal(nki.jit(copied)(x), x)


@pytest.mark.parametrize(("name", "kind"), [
    ("transposed", "torch"), ("strided", "numpy"), ("rows reversed", "numpy"), ("fortran", "numpy"), ("slice", "torch"),
])  # fmt: skip
def test_arrays_are_updated_in_place(name, kind):
    base = np.array(counting(), order="F" if name == "fortran" else "C")
    x = LAYOUTS[name](base)
    before = x.copy()
    if kind == "numpy":
        nki.jit(incremented)(x)
    else:
        nki.jit(incremented)(torch.from_numpy(x))
    np.testing.assert_array_equal(x, before + 1)


def test_grad_and_negative_tensors_are_read():
    x = torch.arange(24.0).reshape(4, 6).requires_grad_()
    assert torch.equal(nki.jit(copied)(x), x.detach())
    negative = torch.complex(torch.zeros(4, 6), torch.ones(4, 6)).conj().imag
    assert negative.is_neg()
    assert torch.equal(nki.jit(copied)(negative), -torch.ones(4, 6))


def test_one_array_given_twice_is_one_tensor():
    def kernel(a, b):
        assert a.storage is b.storage
        incremented(a)
        return copied(b)

    x = counting()
    np.testing.assert_array_equal(nki.jit(kernel)(x, x), counting() + 1)
    x = counting().T
    np.testing.assert_array_equal(nki.jit(kernel)(x, x), counting().T + 1)
    np.testing.assert_array_equal(x, counting().T + 1)


def test_an_argument_may_be_returned():
    def kernel(x):
        incremented(x)
        return x[1:3]

    x = counting()
    np.testing.assert_array_equal(nki.jit(kernel)(x), counting()[1:3] + 1)
    np.testing.assert_array_equal(x, counting() + 1)


TABLE = counting()


def test_tuples_defaults_and_stars_hold_tensors():
    def kernel(pair, *more, table=TABLE, **named):
        assert table.shape == (4, 6)
        assert [t.name for t in (pair.first, *more)] == ["pair[0]", "more[0]"]
        return {"table": copied(table), "pair": Pair(copied(pair.first), pair.second), "more": [copied(named["z"])]}

    x = counting()
    out = nki.jit(kernel)(Pair(x, 3), x + 1, z=x + 2)
    np.testing.assert_array_equal(out["table"], TABLE)
    assert type(out["pair"]) is Pair
    np.testing.assert_array_equal(out["pair"].first, x)
    assert out["pair"].second == 3
    np.testing.assert_array_equal(out["more"][0], x + 2)


def test_other_values_pass_unchanged():
    given = (1, 2.5, "text", None, True, nl.float32, {"a": 1}, np.float32(3), (1, (2, 3)))

    def kernel(*values):
        return all(a is b or a == b for a, b in zip(values, given, strict=True))

    assert nki.jit(kernel)(*given)


REFUSED = [
    ("0-d", np.array(1.0, np.float32), "NKI002", r"x has shape \(\)"),
    ("empty", np.zeros((4, 0), np.float32), "NKI002", r"x has shape \(4, 0\)"),
    ("6-d", np.zeros((1,) * 6, np.float32), "NKI004", "x has shape"),
    ("masked", np.ma.masked_array(np.zeros((4, 6), np.float32), True), "NKI025", "x is a masked array"),
    ("torch float64", torch.zeros(4, 6, dtype=torch.float64), "NKI025", "x has dtype torch.float64"),
    ("torch fnuz", torch.zeros(4, 6).to(torch.float8_e4m3fnuz), "NKI025", "x has dtype torch.float8_e4m3fnuz"),
    ("torch meta", torch.zeros(4, 6, device="meta"), "NKI025", "x is on meta"),
    ("torch sparse", torch.zeros(4, 6).to_sparse(), "NKI025", "layout torch.sparse_coo"),
    ("spec without a trace", ArraySpec((4, 6), "float32"), "NKI025", "x is a spec without data; trace with trace_only"),
    ("list in a tuple", (np.zeros((4, 6), np.float32), [1]), "NKI024", r"x\[1\] is a list"),
]


@pytest.mark.parametrize(("value", "rule", "match"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(value, rule, match):
    with pytest.raises(NkiError, match=match) as caught:
        nki.jit(lambda x: None)(value)
    assert caught.value.rule == rule


def test_torch_lacks_a_dtype_of_the_result():
    def kernel(x):
        return nl.zeros((4, 6), nl.float8_e4m3, nl.shared_hbm)

    assert nki.jit(kernel)(counting()).dtype == ml_dtypes.float8_e4m3
    with pytest.raises(NkiError, match=r"NKI025.*torch has no float8_e4m3; return another dtype"):
        nki.jit(kernel)(torch.zeros(4, 6))


def test_specs():
    assert ArraySpec([4, np.int64(6)], "bf16") == ArraySpec((4, 6), "bfloat16")
    assert ArraySpec((4, 6), torch.bfloat16).num_bytes == 48
    assert ArraySpec((4, 6), np.float32).dtype == "float32"
    for shape in ((), (4, 0), (4, -1), (4, 2.0), 4):
        with pytest.raises(NkiError, match="NKI002"):
            ArraySpec(shape, "float32")
    with pytest.raises(NkiError, match=r"NKI001.*dtype='float64'"):
        ArraySpec((4, 6), "float64")


# (given, NKI's name)
@pytest.mark.parametrize(("given_dtype", "name"), [
    *((name, name) for name in DTYPES),
    *((info.short, name) for name, info in DTYPES.items()),
    (np.float32, "float32"), (np.dtype("float16"), "float16"), ("<f4", None), (np.bool_, "bool_"), (bool, "bool_"),
    (ml_dtypes.bfloat16, "bfloat16"), (np.dtype(ml_dtypes.float8_e4m3), "float8_e4m3"),
    (torch.bfloat16, "bfloat16"), (torch.bool, "bool_"), (torch.float8_e5m2, "float8_e5m2"),
    (torch.int64, "int64"), (torch.float8_e4m3fnuz, None), (torch.complex64, None),
    (np.int64, "int64"), (int, "int64"), (np.float64, None), (np.complex64, None), (np.dtype(">f4"), None),
    (float, None),
    ("float64", None), ("", None), (None, None), (3, None), (object, None), ("float8_e5m2_x4", None),
], ids=lambda value: str(value))  # fmt: skip
def test_names(given_dtype, name):
    assert canonical(given_dtype) == name


@pytest.mark.parametrize("dtype", [name for name, info in DTYPES.items() if info.is_float and name != "tfloat32"])
def test_floats_cast_as_ml_dtypes_does(dtype):
    values = np.concatenate([np.linspace(-500, 500, 1001), 2.0 ** np.arange(-40, 40), [np.inf, -np.inf, np.nan]])
    values = values.astype(np.float32)
    with np.errstate(all="ignore"):
        assert from_fp32(values, dtype).tobytes() == values.astype(DTYPES[dtype].numpy).tobytes()


#: Every simulated call with parameters and defaults as AWS documents them (NKI 0.6, 0.7); enum defaults by member name.
#: The document's default of range_select's on_false_value is an ellipsis for the one number that it may be.
SIGNATURES = """
dma_copy(dst, src, priority=None, oob_mode=error, dge_mode=unknown, engine=unknown, name=None)
tensor_copy(dst, src, engine=unknown, name=None)
memset(dst, value, engine=unknown, name=None)
tensor_copy_predicated(dst, src, predicate, reverse_pred=False, name=None)
nc_matmul(dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, is_transpose=False,
    accumulate=None, tile_position=(), tile_size=(), perf_mode=none, name=None)
nc_transpose(dst, data, engine=unknown, name=None)
dma_transpose(dst, src, axes=None, priority=None, dge_mode=unknown, oob_mode=error, name=None)
tensor_tensor(dst, data1, data2, op, engine=unknown, name=None)
tensor_scalar(dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False, engine=unknown,
    name=None)
tensor_reduce(dst, op, data, axis, negate=False, keepdims=False, name=None)
tensor_partition_reduce(dst, op, data, name=None)
activation(dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None, reduce_cmd=idle, name=None)
activation_reduce(dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None)
iota(dst, pattern, offset=0, channel_multiplier=0, name=None)
affine_select(dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=equal, offset=0, name=None)
bn_stats(dst, data, name=None)
bn_aggr(dst, data, name=None)
tensor_tensor_scan(dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False, name=None)
nc_stream_shuffle(dst, src, shuffle_mask, name=None)
reciprocal(dst, data, name=None)
scalar_tensor_tensor(dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, name=None)
tensor_scalar_reduce(dst, data, op0, operand0, reduce_op, reduce_res=None, reverse0=False, reduce_cmd=reset_reduce,
    reduce_init=None, reduce_res_negate=False, name=None)
core_barrier(data, cores, engine=gpsimd, name=None)
dma_compute(dst, srcs, reduce_op, scales=None, unique_indices=True, oob_mode=error, name=None)
select_reduce(dst, predicate, on_true, on_false, reduce_res=None, reduce_cmd=idle, reduce_op=maximum,
    reverse_pred=False, name=None)
sendrecv(src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=dma, name=None)
register_alloc(x=None)
register_move(dst, src)
register_load(dst, src)
register_store(dst, src)
scalar_load(src)
scalar_store(dst, value)
max8(dst, src, name=None)
nc_find_index8(dst, data, vals, name=None)
nc_match_replace8(dst, data, vals, imm, dst_idx=None, name=None)
range_select(dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=reset_reduce, reduce_res=None,
    reduce_op=maximum, range_start=0, on_false_value=-3.4028234663852886e+38, name=None)
tensor_scalar_cumulative(dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reset_reduce, name=None)
local_gather(dst, src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, name=None)
nc_n_gather(dst, data, indices, name=None)
sequence_bounds(dst, segment_ids, name=None)
nonzero_with_count(dst, src, index_offset=0, padding_val=-1, name=None)
topk(val_dst, idx_dst, src, n, name=None)
rng(dst, engine=vector, name=None)
dropout(dst, data, prob, name=None)
set_rng_seed(src_seeds, name=None)
rand_set_state(src_seeds, engine=gpsimd, name=None)
rand_get_state(dst, engine=gpsimd, name=None)
get_nc_version()
get_nc_sub_version()
"""
SIGNATURES = dict(re.findall(r"^(\w+)\((.*)\)$", SIGNATURES.replace(",\n    ", ", "), re.MULTILINE))


def shown(parameter):
    """`name` or `name=default` of a parameter."""
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    default = parameter.default
    return f"{parameter.name}={default.name if isinstance(default, (Enum, Op)) else repr(default)}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_the_documented_ones(name):
    parameters = inspect.signature(getattr(nisa, name)).parameters.values()
    assert ", ".join(map(shown, parameters)) == SIGNATURES[name]


def test_no_documented_call_is_missing():
    assert {*ISA_CALLS, *ISA_SCALARS} - {"NkiScalar"} == set(SIGNATURES)


@pytest.mark.parametrize("name", ISA_GEN4)
def test_calls_of_trn3_are_refused(name):
    with pytest.raises(NkiError, match=rf"nki\.isa\.{name} needs NeuronCore-v4") as caught:
        run(lambda: getattr(nisa, name)(sb(4, 6)))
    error = caught.value
    assert (error.rule, error.op) == ("NKI049", name)
    assert error.location.partition(":")[0] == __file__
    assert error.remedy


@pytest.mark.parametrize("arguments", [lambda: (sb(4, 6),), lambda: (1.0, 2.0), lambda: (sb(4, 6),) * 3])
def test_operators_called_with_the_wrong_arguments(arguments):
    with pytest.raises(NkiError, match=r"nl\.add called with \d arguments") as caught:
        run(lambda: nl.add(*arguments()))
    assert (caught.value.rule, caught.value.op) == ("NKI048", "add")
