"""What nki.isa offers: documented signatures, calls that are missing or of trn3, and errors that name their caller."""

import inspect
from enum import Enum

import pytest
from isa_tiles import sb
from pairs import run

from nkiconv.simulator import NkiError, NotSimulatedError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.documented import ISA_CALLS, ISA_GEN4, ISA_SCALARS
from nkiconv.simulator.ops import Op

#: Parameters and defaults of every simulated call as AWS documents them (NKI 0.6, 0.7); enum defaults by member name.
SIGNATURES = {
    "dma_copy": "dst, src, priority=None, oob_mode=error, dge_mode=unknown, engine=unknown, name=None",
    "tensor_copy": "dst, src, engine=unknown, name=None",
    "memset": "dst, value, engine=unknown, name=None",
    "tensor_copy_predicated": "dst, src, predicate, reverse_pred=False, name=None",
    "nc_matmul": "dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, is_transpose=False, "
    "accumulate=None, tile_position=(), tile_size=(), perf_mode=none, name=None",
    "nc_transpose": "dst, data, engine=unknown, name=None",
    "dma_transpose": "dst, src, axes=None, priority=None, dge_mode=unknown, oob_mode=error, name=None",
    "tensor_tensor": "dst, data1, data2, op, engine=unknown, name=None",
    "tensor_scalar": "dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False, "
    "engine=unknown, name=None",
    "tensor_reduce": "dst, op, data, axis, negate=False, keepdims=False, name=None",
    "tensor_partition_reduce": "dst, op, data, name=None",
    "activation": "dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None, reduce_cmd=idle, name=None",
    "activation_reduce": "dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None",
    "iota": "dst, pattern, offset=0, channel_multiplier=0, name=None",
    "affine_select": "dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=equal, offset=0, "
    "name=None",
    "bn_stats": "dst, data, name=None",
    "bn_aggr": "dst, data, name=None",
    "tensor_tensor_scan": "dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False, name=None",
    "nc_stream_shuffle": "dst, src, shuffle_mask, name=None",
    "reciprocal": "dst, data, name=None",
    "scalar_tensor_tensor": "dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, name=None",
    "tensor_scalar_reduce": "dst, data, op0, operand0, reduce_op, reduce_res=None, reverse0=False, "
    "reduce_cmd=reset_reduce, reduce_init=None, reduce_res_negate=False, name=None",
    "core_barrier": "data, cores, engine=gpsimd, name=None",
    "dma_compute": "dst, srcs, reduce_op, scales=None, unique_indices=True, oob_mode=error, name=None",
    "select_reduce": "dst, predicate, on_true, on_false, reduce_res=None, reduce_cmd=idle, reduce_op=maximum, "
    "reverse_pred=False, name=None",
    "sendrecv": "src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=dma, name=None",
    "register_alloc": "x=None",
    "register_move": "dst, src",
    "register_load": "dst, src",
    "register_store": "dst, src",
    "scalar_load": "src",
    "scalar_store": "dst, value",
    "max8": "dst, src, name=None",
    "nc_find_index8": "dst, data, vals, name=None",
    "nc_match_replace8": "dst, data, vals, imm, dst_idx=None, name=None",
    # the document's default of on_false_value is an ellipsis for the one number that it may be
    "range_select": "dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=reset_reduce, reduce_res=None, "
    "reduce_op=maximum, range_start=0, on_false_value=-3.4028234663852886e+38, name=None",
    "tensor_scalar_cumulative": "dst, src, op0, op1, imm0, imm1=None, reduce_cmd=reset_reduce, name=None",
    "local_gather": "dst, src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, name=None",
    "nc_n_gather": "dst, data, indices, name=None",
    "sequence_bounds": "dst, segment_ids, name=None",
    "nonzero_with_count": "dst, src, index_offset=0, padding_val=-1, name=None",
    "topk": "val_dst, idx_dst, src, n, name=None",
    "rng": "dst, engine=vector, name=None",
    "dropout": "dst, data, prob, name=None",
    "set_rng_seed": "src_seeds, name=None",
    "rand_set_state": "src_seeds, engine=gpsimd, name=None",
    "rand_get_state": "dst, engine=gpsimd, name=None",
    "get_nc_version": "",
    "get_nc_sub_version": "",
}


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


def test_a_documented_call_that_is_missing_says_so(monkeypatch):
    monkeypatch.delattr(nisa, "max8")
    with pytest.raises(NotSimulatedError, match=r"nki\.isa\.max8 .* it runs: nc_matmul, ") as caught:
        run(lambda: nisa.max8(sb(4, 6)))
    assert caught.value.name == "nki.isa.max8"


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
