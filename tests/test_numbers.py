"""Numbers of any size are run or refused by name quickly, and NumPy's ints are ints; arguments in each other's place
are refused in short texts.
"""

import inspect
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import nkiconv
from nkiconv import ConvProblem, DtypeError, GeometryError, NkiconvError, UnsupportedError, pytorch
from nkiconv.axis import EXTENT_MAX
from nkiconv.planner.operation import Operation
from nkiconv.pytorch.causal.package import causal_conv1d_varlen_states as varlen
from nkiconv.rules import in_words_of

pytestmark = pytest.mark.simulator_only

#: By axes: x, w, and a gradient of one output. Calls are of one output, or see one, with a stride of 7.
ARRAYS = {
    axes: tuple(np.ones(shape, np.float16) for shape in ((1, 8, *size), (8, 8, *taps), (1, 8, *[1] * axes)))
    for axes, size, taps in ((1, (9,), (3,)), (2, (9, 9), (3, 3)), (3, (4, 9, 9), (2, 3, 3)))
}
ROW, W1, ROW_1 = ARRAYS[1]
CALLS = {
    "depthwise_conv1d": partial(nkiconv.depthwise_conv1d, ROW, W1[:, 0]),
    "depthwise_conv2d": partial(nkiconv.depthwise_conv2d, ARRAYS[2][0], ARRAYS[2][1][:, :1]),
    "depthwise_conv1d_input": partial(nkiconv.depthwise_conv1d_input, ROW.shape, W1[:, 0], ROW_1),
    "depthwise_conv1d_weight": partial(nkiconv.depthwise_conv1d_weight, ROW, W1[:, 0].shape, ROW_1),
}
for axes, (x, w, one) in ARRAYS.items():
    given = {
        f"conv{axes}d": (x, w), f"conv_transpose{axes}d": (x, w), f"conv{axes}d_input": (x.shape, w, one),
        f"conv{axes}d_weight": (x, w.shape, one), f"conv_transpose{axes}d_weight": (one, w.shape, x),
    }  # fmt: skip
    CALLS |= {name: partial(getattr(nkiconv, name), *arrays) for name, arrays in given.items()}


HUGE = [2**20, 2**24, 2**27, 2**29, 2**30, EXTENT_MAX, 2**31, 2**33, 2**62, 2**63, 2**70]
#: How a number is refused: it is too long for 32-bit ints or for memory, leaves nothing or next to nothing of an input,
#: or is none of the gradient's y.
REFUSED = (
    r"must be at most 2,147,483,647|must be at least 1|less padding|of so many outputs at most|HBM holds 24|"
    r"shape.*(must be y's|pass the gradient)|takes no padding"
)


NUMBERS = [
    (call, name)
    for call in CALLS
    for name in ("stride", "dilation", "padding", "lhs_dilation")
    if name != "lhs_dilation" or not ("transpose" in call or "_input" in call or call == "depthwise_conv2d")
]


@pytest.mark.cover(6)
@pytest.mark.parametrize(("call", "name"), NUMBERS)
def test_huge_numbers_are_run_or_refused_by_name(quickly, call, name):
    """Strides that leave one window are run, all else is refused."""
    runs = name == "stride" and (call.endswith("_weight") or "transpose" not in call)
    of_one = CALLS[call](stride=7) if runs else None
    for value in HUGE:
        if runs and value <= EXTENT_MAX:
            assert (CALLS[call](stride=value) == of_one).all()
            continue
        with pytest.raises(NkiconvError, match=REFUSED):
            CALLS[call](**{name: value})


def test_outputs_that_see_no_input_are_told():
    with pytest.raises(GeometryError, match=r"Q=2,097,159: of so many outputs at most 27 see an input .*; pad or"):
        CALLS["depthwise_conv1d"](padding=2**20)
    problem = ConvProblem(N=1, C=8, W=9, S=3, groups=8, padding=((0, 0), (2**20, 2**20)))
    with pytest.raises(GeometryError, match=r"Q=2,097,159: of so many outputs"):
        nkiconv.plan(problem)
    assert list(problem.replace(W=2048).launch_violations()) == []


# Transposed calls nearly all of whose outputs are zeros: of one axis, or of two together.
@pytest.mark.parametrize(("call", "numbers", "words"), [
    ("conv_transpose1d", {"stride": 2**27}, "stride 134217728, padding 0[+]0, dilation 1"),
    ("conv_transpose1d", {"stride": 2**27, "output_padding": 5}, "padding 0[+]-5 less output_padding, dilation 1"),
    ("conv_transpose1d", {"dilation": 2**27}, "stride 1, padding 0[+]0, dilation 134217728"),
    ("conv_transpose2d", {"stride": 2**16}, "stride 65536, padding 0[+]0, dilation 1"),
    ("conv_transpose2d", {"padding": -(2**16)}, "stride 1, padding -65536[+]-65536, dilation 1"),
    ("conv_transpose3d", {"stride": 2**14}, "stride 16384, padding 0[+]0, dilation 1"),
])  # fmt: skip
def test_transposed_calls_are_refused_in_their_own_words(monkeypatch, quickly, call, numbers, words):
    """Before any plan is made; no word of the convolution that computes them."""
    monkeypatch.setattr(Operation, "shape", None)
    with pytest.raises(GeometryError, match=f"of so many outputs at most .*{words}") as found:
        CALLS[call](**numbers)
    assert "lhs_dilation" not in str(found.value)


def test_algorithms_refuse_transposed_calls_in_their_own_words():
    with pytest.raises(UnsupportedError, match=r"^stride=\(2, 2\): stacked takes \(1, 1\)"):
        CALLS["conv_transpose2d"](stride=2, algorithm="stacked")
    assert in_words_of(True, "stride=(1, 1), rhs_dilation=2, lhs_dilation=3") == "dilation=2, stride=3"
    assert in_words_of(False, "stride=1, lhs_dilation=3") == "stride=1, lhs_dilation=3"


@pytest.mark.parametrize("padding", [(0, 40_000), (30_000, 0), (20_000, 20_000)])
def test_padding_longer_than_a_tile_of_banded(padding):
    """Tiles, and sums of a bank, that meet no data at all."""
    x, w = np.arange(72, dtype=np.float16).reshape(1, 8, 9) % 7, np.arange(24, dtype=np.float16).reshape(8, 3) % 5
    whole = np.pad(x, ((0, 0), (0, 0), padding))
    expected = sum(w[:, s, None] * whole[..., s : whole.shape[-1] - 2 + s] for s in range(3))
    assert (nkiconv.depthwise_conv1d(x, w, padding=padding, algorithm="banded") == expected).all()


ints = [np.int64, np.int32, np.uint8, np.int16]


@pytest.mark.cover(8)
@pytest.mark.parametrize("kind", ints)
@pytest.mark.parametrize("call", CALLS)
def test_ints_of_numpy_are_ints(call, kind, plainly):
    is_gradient = "_input" in call or "_weight" in call
    more = {"stride": 7} if is_gradient else {"stride": 2, "padding": 1, "dilation": 1}
    assert (CALLS[call](**{name: kind(value) for name, value in more.items()}) == CALLS[call](**more)).all()


def test_a_call_that_no_kernel_runs_is_refused_by_name():
    """FCN-32s: one filter of 64 x 64 for each of 21 channels."""
    x, w = np.ones((1, 21, 16, 16), np.float16), np.ones((21, 1, 64, 64), np.float16)
    with pytest.raises(UnsupportedError, match=r"implicit_gemm needs about \d+ instructions on a core"):
        nkiconv.conv_transpose2d(x, w, stride=32, groups=21, algorithm="implicit_gemm")


@pytest.mark.parametrize("mode", ["torch", "simulate"])
@pytest.mark.parametrize("number", [2**20, 2**27, 2**31, 2**62])
def test_torch_refuses_huge_numbers(quickly, monkeypatch, mode, number):
    """Before torch allocates a result, which ends the process."""
    monkeypatch.setenv("NKICONV_CPU", mode)
    refused = r"of so many outputs at most|must be at most|HBM holds|are possible; pad less|takes off all|smaller than"
    for rank in (1, 2, 3):
        x, w = (torch.ones(n, 8, *(size,) * rank, dtype=torch.bfloat16) for n, size in ((1, 9), (8, 3)))
        conv, back = getattr(pytorch, f"conv{rank}d"), getattr(pytorch, f"conv_transpose{rank}d")
        places = (conv, "padding"), (conv, "dilation"), (back, "stride"), (back, "dilation")
        for (call, name), kind in itertools.product(places, (int, np.int64)):
            with pytest.raises(NkiconvError, match=refused):
                call(x, w, **{name: kind(number)})
        with pytest.raises(NkiconvError, match=refused):
            getattr(pytorch.nn, f"Conv{rank}d")(8, 8, 3, padding=number, dtype=torch.bfloat16)(x)
    row, taps = torch.ones(1, 8, 9), torch.ones(8, 1, 3)
    with pytest.raises(NkiconvError, match=refused):
        pytorch.depthwise_conv1d(row, taps, padding=number)
    with pytest.raises(NkiconvError, match=refused):
        pytorch.nn.Conv1d(8, 8, 3, padding=number, groups=8)(row)


STATS, PIXELS, TAPS = torch.rand(1, 2, 4, 3) + 1, torch.rand(2, 4, 3, 3), torch.rand(4, 4, 1, 1)
CONV, MLP, SPLIT = (PIXELS, TAPS), (PIXELS, *[TAPS[..., 0, 0]] * 2), (torch.rand(1, 4, 5), torch.rand(4, 2))
VOLUMES, TOKENS, TWO = (PIXELS[..., None], TAPS[..., None]), torch.rand(4, 5), torch.tensor([0, 5]).int()
HEADS, SLOTS, RMS, GROUPS = {"splits": ((1, 4, True),)}, torch.zeros(1, 4, 1), {"y_norm": "rms"}, {"num_groups": 2}
serving, NormAct, Gated = pytorch.serving, pytorch.nn.NormActConv2d, pytorch.nn.GatedDeltaConv


def moved(momentum):
    """Running statistics after a batch."""
    running = {"running_mean": torch.ones(4), "running_var": torch.ones(4)}
    pytorch.norm_act_conv2d(*CONV, norm="batch", training=True, momentum=momentum, **running)
    return running


#: Functions and modules with their arguments, a further one that is a number, and, of ints, one that it may be.
OF_BOTH = [  # of tensors and of arrays
    (pytorch.norm_scale_shift, (STATS,), GROUPS, "eps"), (pytorch.conv2d, CONV, RMS, "y_norm_eps"),
    (pytorch.pointwise_mlp, MLP, {"x_norm": "rms"}, "x_norm_eps"), (pytorch.causal_conv1d_split, SPLIT, HEADS, "eps"),
]  # fmt: skip
NUMBERS = [
    *OF_BOTH,
    *((getattr(nkiconv, function.__name__), tuple(one.numpy() for one in given), *more)
      for function, given, *more in OF_BOTH),
    (nkiconv.conv2d, tuple(one.numpy() for one in CONV), {"residual": PIXELS.numpy()}, "beta"),
    (pytorch.norm_act_conv2d, CONV, GROUPS, "eps"), (moved, (), {}, "momentum"),
    (pytorch.conv3d, VOLUMES, RMS, "y_norm_eps"), (Gated, (), {**HEADS, "kernel_size": 2}, "eps"),
    (NormAct, (4, 4, 1), GROUPS, "eps"), (NormAct, (4, 4, 1), {"norm": "batch"}, "momentum"),
    *((function, given, {}, "num_groups", 2) for function, given in (
        (pytorch.norm_scale_shift, (STATS,)), (pytorch.norm_act_conv2d, CONV), (NormAct, (4, 4, 1)))),
    *((pytorch.conv2d, CONV, {"activation": "silu"}, *more) for more in (("stride", 2), ("padding", 1), ("groups", 1))),
    (pytorch.conv_transpose2d, CONV, {"x_scale": torch.rand(4), "stride": 2}, "output_padding", 1),
    (pytorch.norm_act_conv2d, CONV, GROUPS, "padding", 1),
    (pytorch.conv2d, CONV, {}, "x_upsample", 2), (pytorch.nn.Conv2d, (4, 4, 1), {}, "x_upsample", 2),
    (Gated, (), HEADS, "kernel_size", 3), (pytorch.StreamingConv1d, (4, 4, 3), {}, "front", 1),
    (pytorch.conv3d, VOLUMES, {}, "return_final_frames", 1), (varlen, (TOKENS.T, TWO), {}, "state_len", 2),
    (serving.causal_conv1d_fn, (TOKENS, SPLIT[1], None, SLOTS, TWO), {}, "pad_slot_id", -1),
    (serving.causal_conv1d_update, (TOKENS.T, SLOTS, SPLIT[1]), {"query_start_loc": TWO}, "max_query_len", 5),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["torch", "simulate"])
@pytest.mark.parametrize(("function", "given", "more", "name", "of_ints"), [(*row, None)[:5] for row in NUMBERS])
def test_a_number_is_of_python_numpy_or_torch(
    monkeypatch, quickly, plainly, mode, function, given, more, name, of_ints
):
    """An int above 64 bits once ended in torch's OverflowError, NumPy's numbers were refused."""
    monkeypatch.setenv("NKICONV_CPU", mode)

    def found(one):
        SLOTS.zero_()
        y = function(*given, **more, **{name: one})
        return tree_leaves(repr(y) if isinstance(y, torch.nn.Module) else y)

    value, kinds = of_ints or 1e20, [np.int64, torch.tensor]
    if of_ints is None:
        kinds = [int, np.float64, lambda one: torch.tensor(one, dtype=torch.float64)]
    for kind in kinds[: 2 if function.__module__.startswith("nkiconv.api") else 3]:
        assert all(map(np.array_equal, found(value), found(kind(value)))), kind
    for one in (1.5, "x", torch.tensor(True)) if of_ints else (np.nan, np.inf, 1e39, 10**400, True, "x", np.ones(2)):
        with pytest.raises(NkiconvError, match=f"^{name}=.*(must be|accepted are)"):
            found(one)


def test_a_state_of_nothing_but_zeros_is_refused_before_it_is_made(quickly):
    """Dilations near 2^31 once asked for gigabytes."""
    x, w = torch.ones(1, 2, 9), torch.ones(2, 2, 3)
    for dilation in (2**20, 2**29, EXTENT_MAX):
        with pytest.raises(GeometryError, match=f"dilation={dilation:,}: its state has .* inputs"):
            pytorch.conv_transpose1d_chunk(x, None, w, dilation=dilation)
        layer = pytorch.StreamingConv1d(2, 2, 3, dilation=dilation)
        with pytest.raises(GeometryError, match=r"front=.*: its state has"):
            layer(x)
    y, state = pytorch.conv_transpose1d_chunk(x, None, w, dilation=2**12)
    assert (y.shape[2], state.shape[2]) == (9, 2**13)


#: Arrays of so many elements that no text may hold them.
A_ROW, IMAGE, A_VOLUME = (np.ones((2, 8, *[40] * axes), np.float16) for axes in (1, 2, 3))
OF = {1: (A_ROW, (8, 8, 3)), 2: (IMAGE, (8, 8, 3, 3)), 3: (A_VOLUME, (8, 8, 3, 3, 3))}
PROBLEM = {"N": 1, "C": 2, "W": 9, "S": 3}


def misplaced():
    """Names of a case, a call whose arguments are in each other's place, and the text it ends in."""
    functions = {"depthwise_conv1d": A_ROW}
    for axes, (x, size) in OF.items():
        functions |= {f"conv{axes}d": x, f"conv_transpose{axes}d": x}
        for name in (f"conv{axes}d_weight", f"conv_transpose{axes}d_weight"):
            call, order = getattr(nkiconv, name), f"must be no array; {name} takes x, weight_size, gy in this order"
            for number, given in enumerate([(x, x, x), (x, x, size), (size, x, x)]):
                yield f"{name}-{number}", partial(call, *given), f"weight_size=ndarray .* float16: {order}"
            yield f"{name}-gy", partial(call, x, size, size), "^gy=.*: must be an array; .* in this order"
        name = f"conv{axes}d_input"
        order = f"input_size=ndarray .*; {name} takes input_size, w, gy in this order"
        yield f"{name}-size", partial(getattr(nkiconv, name), x, size, x), order
    for name, x in functions.items():
        for argument, one in inspect.signature(getattr(nkiconv, name)).parameters.items():
            if "AnyArray" not in str(one.annotation):
                text = f"^{argument}=ndarray .*: must be no array; {name} takes x, w"
                yield f"{name}-{argument}", partial(getattr(nkiconv, name), x, x, **{argument: x}), text
    for field in inspect.signature(ConvProblem).parameters:
        yield f"problem-{field}", partial(ConvProblem, **PROBLEM | {field: A_ROW}), f"^{field}=ndarray .* must be no a"
    for argument in ("lnc", "direction", "activation", "out_dtype", "algorithms", "constants"):
        text = f"{argument}=ndarray .*: must be no array; plan takes problem, lnc in this"
        yield f"plan-{argument}", partial(nkiconv.plan, ConvProblem(**PROBLEM), **{argument: A_ROW}), text
    yield "toward-direction", partial(ConvProblem(**PROBLEM).toward, A_ROW), "direction=ndarray"


@pytest.mark.cover(50)
@pytest.mark.parametrize(("call", "words"), [pytest.param(call, words, id=name) for name, call, words in misplaced()])
def test_an_array_is_no_other_argument(call, words):
    """Of a layout, name or dtype it once ended in NumPy's error about the truth of an array."""
    with pytest.raises(GeometryError if call.func is ConvProblem else DtypeError, match=words) as found:
        call()
    assert len(str(found.value)) < 500
