"""What every instruction does with its operands: checks each one, reads each input, writes each output, records all."""

import inspect
from dataclasses import dataclass, field

import pytest
from pairs import run

from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

CMD, U8, U16 = nisa.reduce_cmd, nl.uint8, nl.uint16

#: [P, F] of the elementwise operands; F also splits into 4 free dims of 2
TILE, COLUMN = (4, 16), (4, 1)


@dataclass(frozen=True)
class Case:
    """One call: its operands' shapes, which of them it writes, and what its record says."""

    name: str
    engine: str
    operands: dict[str, tuple[int, ...]]
    settings: dict[str, object] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    psum: tuple[str, ...] = ()
    writes: tuple[str, ...] = ("dst",)

    def tiles(self):
        return {name: self.tile(name) for name in self.operands}

    def tile(self, name):
        return nl.ones(self.operands[name], self.dtypes.get(name, nl.float32), self.buffer(name))

    def buffer(self, name):
        return nl.psum if name in self.psum else nl.sbuf

    def call(self, **changed):
        return getattr(nisa, self.name)(**{**self.tiles(), **changed}, **self.settings)


PAIR = {"dst": TILE, "data": TILE}
SUMS = {"reduce_op": nl.add}
CASES = [
    Case("memset", "vector", {"dst": TILE}, {"value": 2.0}),
    Case("tensor_copy", "vector", {"dst": TILE, "src": TILE}),
    Case("tensor_copy_predicated", "vector", {"dst": TILE, "src": TILE, "predicate": TILE}, dtypes={"predicate": U8}),
    Case("tensor_tensor", "vector", {"dst": TILE, "data1": TILE, "data2": TILE}, {"op": nl.add}),
    Case(
        "tensor_scalar", "vector", {**PAIR, "operand0": COLUMN, "operand1": COLUMN}, {"op0": nl.add, "op1": nl.multiply}
    ),
    Case(
        "scalar_tensor_tensor", "vector", {**PAIR, "operand0": COLUMN, "operand1": TILE}, {"op0": nl.add, "op1": nl.add}
    ),
    Case("tensor_tensor_scan", "vector", {"dst": TILE, "data0": TILE, "data1": TILE, "initial": COLUMN},
     {"op0": nl.multiply, "op1": nl.add}),
    Case("reciprocal", "vector", PAIR),
    Case("tensor_reduce", "vector", {"dst": COLUMN, "data": TILE}, {"op": nl.add, "axis": (1,)}),
    Case("tensor_scalar_reduce", "vector", {**PAIR, "operand0": COLUMN, "reduce_res": COLUMN, "reduce_init": COLUMN},
     {"op0": nl.add, "reduce_cmd": CMD.load_reduce, **SUMS}, writes=("dst", "reduce_res")),
    Case("select_reduce", "vector",
     {"dst": TILE, "predicate": TILE, "on_true": TILE, "on_false": COLUMN, "reduce_res": COLUMN},
     {"reduce_cmd": CMD.reset_reduce}, dtypes={"predicate": U8}, writes=("dst", "reduce_res")),
    Case("bn_stats", "vector", {"dst": (4, 6), "data": TILE}),
    Case("bn_aggr", "vector", {"dst": (4, 2), "data": (4, 12)}),
    Case("nc_stream_shuffle", "vector", {"dst": TILE, "src": TILE}, {"shuffle_mask": [0] * 32}),
    Case("activation", "scalar", {**PAIR, "bias": COLUMN, "scale": COLUMN, "reduce_res": COLUMN},
     {"op": nl.exp, "reduce_cmd": CMD.reset_reduce, **SUMS}, writes=("dst", "reduce_res")),
    Case("activation_reduce", "scalar", {**PAIR, "bias": COLUMN, "scale": COLUMN, "reduce_res": COLUMN},
     {"op": nl.exp, **SUMS}, writes=("dst", "reduce_res")),
    Case("iota", "gpsimd", {"dst": TILE}, {"pattern": [[1, 16]]}),
    Case("affine_select", "gpsimd", {"dst": TILE, "on_true_tile": TILE},
     {"pattern": [[1, 16]], "channel_multiplier": 1, "on_false_value": 0.0}),
    Case("tensor_partition_reduce", "gpsimd", {"dst": (1, 16), "data": TILE}, {"op": nl.add}),
    Case("local_gather", "gpsimd", {"dst": (16, 16), "src_buffer": (16, 6), "index": (16, 1)}, dtypes={"index": U16}),
    Case("nc_n_gather", "gpsimd", {"dst": TILE, "data": (4, 6), "indices": TILE}, dtypes={"indices": nl.uint32}),
    Case("sequence_bounds", "gpsimd", {"dst": (1, 32), "segment_ids": (1, 16)}),
    Case("nonzero_with_count", "gpsimd", {"dst": (4, 17), "src": TILE}, dtypes={"dst": nl.int32}),
    Case("topk", "gpsimd", {"val_dst": (16, 3), "idx_dst": (16, 3), "src": (16, 2)}, {"n": 20},
     {"val_dst": nl.bfloat16, "idx_dst": nl.uint32, "src": nl.bfloat16}, writes=("val_dst", "idx_dst")),
    Case("rand_set_state", "gpsimd", {"src_seeds": (4, 6)}, dtypes={"src_seeds": nl.uint32}, writes=()),
    Case("rand_get_state", "gpsimd", {"dst": (4, 6)}, dtypes={"dst": nl.uint32}),
    Case("set_rng_seed", "vector", {"src_seeds": (1, 1)}, writes=()),
    Case("rng", "vector", {"dst": TILE}, dtypes={"dst": U16}),
    Case("dropout", "vector", {**PAIR, "prob": COLUMN}),
    Case("range_select", "vector", {"dst": TILE, "on_true_tile": TILE, "bound0": COLUMN, "bound1": COLUMN},
     {"comp_op0": nl.greater, "comp_op1": nl.less}),
    Case("tensor_scalar_cumulative", "vector", {"dst": TILE, "src": TILE, "imm0": COLUMN},
     {"op0": nl.multiply, "op1": nl.add}),
    Case("max8", "vector", {"dst": (4, 8), "src": TILE}),
    Case("nc_find_index8", "vector", {"dst": (4, 8), "data": TILE, "vals": (4, 8)}, dtypes={"dst": U16}),
    Case("nc_match_replace8", "vector", {**PAIR, "vals": (4, 8), "dst_idx": (4, 8)}, {"imm": 0.0}, {"dst_idx": U16},
     writes=("dst", "dst_idx")),
    Case("nc_matmul", "tensor", {"dst": (3, 5), "stationary": (4, 3), "moving": (4, 5)}, psum=("dst",)),
    Case("nc_transpose", "tensor", {"dst": (6, 4), "data": (4, 6)}, psum=("dst",)),
    Case("dma_copy", "dma", {"dst": TILE, "src": TILE}),
    Case("dma_transpose", "dma", {"dst": (6, 4), "src": (4, 6)}),
]  # fmt: skip
OPERANDS = [(case, name) for case in CASES for name in case.operands]
COMPUTE = [(case, name) for case, name in OPERANDS if case.engine != "dma"]


def breaks(rule, match, body):
    with pytest.raises(NkiError, match=match) as caught:
        run(body)
    assert caught.value.rule == rule
    assert caught.value.location.partition(":")[0] == __file__


def tile_like(case, name, make=nl.ones, buffer=None, rows=None, columns=None):
    """A tile in place of an operand, of other sizes or in another memory."""
    shape = case.operands[name]
    shape = (rows or shape[0], columns or shape[1])
    return make(shape, case.dtypes.get(name, nl.float32), buffer or case.buffer(name))


INPUTS = [(case, name) for case, name in OPERANDS if name not in case.writes]
#: Those whose results may not be thrown away, as where only the sum is wanted (test_isa_engines).
OUTPUTS = [(case, name) for case, name in OPERANDS if name in case.writes and case.operands[name][1] > 1
           and case.name not in ("activation", "activation_reduce")]  # fmt: skip
ELEMENTWISE = [(case, name) for case, name in COMPUTE if case.operands[name] == TILE
               and [*case.operands.values()].count(TILE) > 1 and case.name != "nc_stream_shuffle"]  # fmt: skip
#: A rule, what it says, whose operands break it, and the operand that does.
BROKEN = {
    "NKI040": ("{} is in private_hbm|Tensor Engine", COMPUTE, lambda *one: tile_like(*one, buffer=nl.hbm)),
    "NKI043": ("{} covers partitions 16", COMPUTE,
     lambda case, name: tile_like(case, name, rows=128)[16 : 16 + case.operands[name][0]]),
    "NKI016": ("never written", INPUTS, lambda *one: tile_like(*one, make=nl.ndarray)),
    "NKI017": ("{} addresses some elements more than once", OUTPUTS,
     lambda case, name: tile_like(case, name, columns=1).broadcast(1, case.operands[name][1])),
    "NKI044": ("partitions", ELEMENTWISE, lambda *one: tile_like(*one, buffer=nl.sbuf, rows=5)),
    "NKI045": ("elements a partition", ELEMENTWISE, lambda *one: tile_like(*one, buffer=nl.sbuf, columns=17)),
}  # fmt: skip
ROWS = [(rule, *row) for rule in BROKEN for row in BROKEN[rule][1]]


@pytest.mark.cover(40)
@pytest.mark.parametrize(
    ("rule", "case", "name"), ROWS, ids=[f"{rule}-{case.name}-{name}" for rule, case, name in ROWS]
)
def test_operands_that_break_a_rule(rule, case, name):
    match, _, make = BROKEN[rule]
    breaks(rule, match.format(name), lambda: case.call(**{name: make(case, name)}))


@pytest.mark.cover(8, keep=["select_reduce", "tensor_scalar_reduce"])
@pytest.mark.parametrize("case", [case for case in CASES if case.name != "topk"], ids=lambda case: case.name)
def test_what_is_recorded(case):
    """A trace without data records what a run with data does; topk writes some columns of its results."""
    made = {}

    def body():
        made.update(case.tiles())
        line = inspect.currentframe().f_lineno + 1
        return getattr(nisa, case.name)(**made, **case.settings, name="mine"), line

    execution = run(body)
    instruction, line = execution.outputs
    assert execution.programs[0].instructions[-1] is instruction
    op = "activation" if case.name == "activation_reduce" else case.name
    assert (instruction.engine, instruction.op) == (case.engine, op)
    assert (instruction.file, instruction.line, instruction.name) == (__file__, line, "mine")
    assert [r.info for r in instruction.writes] == [made[name].storage.info for name in case.writes]
    inputs = [name for name in case.operands if name not in case.writes]
    assert {r.info.id for r in instruction.reads} == {made[name].storage.info.id for name in inputs}
    assert len(instruction.reads) == len(inputs)
    for region in (*instruction.writes, *instruction.reads):
        assert (region.shape, region.offset) == (region.info.shape, 0)
    traced = run(case.call, trace_only=True).instructions[-1]
    assert (traced.op, traced.engine, traced.bytes) == (instruction.op, instruction.engine, instruction.bytes)
    assert [r.shape for r in traced.reads] == [r.shape for r in instruction.reads]
    assert {**traced.params, "accumulate": 0} == {**instruction.params, "accumulate": 0}


@pytest.mark.parametrize(("dtypes", "buffers", "engine"), [
    (("int32", "uint32", "int32"), ("sbuf", "sbuf", "sbuf"), "gpsimd"),
    (("int32", "int32", "int32"), ("sbuf", "psum", "sbuf"), "vector"),
    (("int32", "int32", "int32"), ("psum", "sbuf", "sbuf"), "vector"),
    (("float32", "int32", "int32"), ("sbuf", "sbuf", "sbuf"), "vector"),
    (("int32", "int16", "int32"), ("sbuf", "sbuf", "sbuf"), "vector"),
])  # fmt: skip
def test_who_adds_integers(dtypes, buffers, engine):
    def body():
        tiles = [nl.ones(TILE, dtype, getattr(nl, buffer)) for dtype, buffer in zip(dtypes, buffers, strict=True)]
        return nisa.tensor_tensor(*tiles, nl.add)

    assert run(body).outputs.engine == engine
