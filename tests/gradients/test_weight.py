"""Filter gradients of no images, of many groups and of long sums, of transposed convolutions; random ones by random
settings, exact against torch in float64.
"""

import itertools
import re

import hypothesis
import ml_dtypes
import numpy as np
import pytest
import torch
from depthwise import same_bits
from draws import draws
from gradients import INPUT, LAYOUTS, an_axis, check, last, outputs
from hypothesis import strategies as st
from requested import requested

import nkiconv
from nkiconv.bounds import error_bound
from nkiconv.kernels.gradients import conv_weight_gradient
from nkiconv.problem import DTYPES
from nkiconv.schedules import blocks_schedule
from nkiconv.schedules.blocks import line_width
from nkiconv.schedules.blocks_candidates import BlocksBound, candidates
from nkiconv.schedules.blocks_schedule import build
from nkiconv.simulator.hardware import PARTITIONS
from nkiconv.simulator.launch import execute
from nkiconv.simulator.timing import Rates
from nkiconv.simulator.timing.target import Target

#: Filter gradients by name, with the shapes of their filters; a window of 3 and padding=1 keep all extents 5.
OF_FILTERS = {
    "conv1d_weight": (6, 6, 3), "conv2d_weight": (6, 6, 3, 3), "conv3d_weight": (6, 6, 3, 3, 3),
    "conv_transpose1d_weight": (6, 6, 3), "conv_transpose2d_weight": (6, 6, 3, 3),
    "conv_transpose3d_weight": (6, 6, 3, 3, 3), "depthwise_conv1d_weight": (6, 3),
}  # fmt: skip


@pytest.mark.usefixtures("plainly")
@pytest.mark.cover(7)
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("out_dtype", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("name", OF_FILTERS)
def test_gradients_of_no_images_are_those_of_zeros(name, out_dtype, adds):
    """The same dtypes and values, in arrays of their own."""
    size = OF_FILTERS[name]
    axes = 1 if name == "depthwise_conv1d_weight" else len(size) - 2
    into = np.arange(np.prod(size), dtype=np.float32).reshape(size) / 3 if adds else None
    has_bias = "transpose" not in name
    more = {"padding": 1, "out_dtype": out_dtype, "accumulate_into": into, "bias_gradient": has_bias}
    none, two = ([np.zeros((N, 6, *(5,) * axes), np.float32)] * 2 for N in (0, 2))
    found, expected = (getattr(nkiconv, name)(x, size, gy, **more) for x, gy in (none, two))
    for one, other in zip(*((found, expected) if has_bias else ([found], [expected])), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
        assert not adds or not np.shares_memory(one, into)


@pytest.mark.parametrize("axes", INPUT)
def test_input_gradients_of_no_images(axes):
    w, gy = np.zeros((8, 2, *(3,) * axes), np.float32), np.zeros((0, 8, *(5,) * axes), np.float32)
    dx = INPUT[axes]((0, 4, *(5,) * axes), w, gy, padding=1, groups=2, out_dtype="bf16")
    assert (dx.shape, dx.dtype) == ((0, 4, *(5,) * axes), ml_dtypes.bfloat16)
    for shape, message in (((1, 4), "must have y's N=1"), ((0, 3), "must have C=4, by w.shape")):
        with pytest.raises(nkiconv.GeometryError, match=message):
            INPUT[axes]((*shape, *(5,) * axes), w, gy, padding=1, groups=2)


@pytest.mark.parametrize("name", OF_FILTERS)
def test_gradients_of_no_images_are_checked(name):
    size = OF_FILTERS[name]
    x = np.zeros((0, 6, *(5,) * (1 if name == "depthwise_conv1d_weight" else len(size) - 2)), np.float32)
    for more in ({"accumulate_into": np.zeros(size)}, {"out_dtype": "fp8_e4m3"}, {"algorithm": "squares"}):
        with pytest.raises(nkiconv.NkiconvError, match=f"^{next(iter(more))}[=:]"):
            getattr(nkiconv, name)(x, size, x, padding=1, **more)


def test_a_pass_has_as_many_groups_as_fit():
    """Two of four, whose taps are far apart: more were refused, as their x does not fit SBUF together."""
    rng, (W, apart) = np.random.default_rng(3), (20_063, 20_000)
    x, gy = (rng.integers(-3, 4, (1, 4, size)).astype(np.float32) for size in (W, W - apart))
    given = {"dilation": apart, "groups": 4, "algorithm": "blocks"}
    dw = nkiconv.conv1d_weight(x, (4, 1, 2), gy, **given)
    taps = [x[:, :, tap * apart : tap * apart + W - apart] for tap in range(2)]
    np.testing.assert_array_equal(dw, np.stack([(one * gy).sum(axis=(0, 2)) for one in taps], axis=1)[:, None])


def test_rows_of_taps_too_far_apart_in_sbuf_are_refused():
    """Of 12 * 30 columns of 102 channels; estimates chose them for 256 channels of DeepLab's 65 x 65."""
    x, gy = (np.ones((1, channels, 40, 40), ml_dtypes.bfloat16) for channels in (102, 8))
    config = (("rows", 1), ("columns", 6), ("channels", 51), ("outputs", 1), ("inputs", 2), ("pixels", 2))
    given = {"dilation": 12, "padding": 12, "algorithm": "blocks"}
    with pytest.raises(nkiconv.UnsupportedError, match="36720 elements apart in SBUF"):
        nkiconv.conv2d_weight(x, (8, 102, 3, 3), gy, **given, config=config)
    assert nkiconv.conv2d_weight(x, (8, 102, 3, 3), gy, **given).shape == (8, 102, 3, 3)


@pytest.mark.parametrize(("chain", "lost"), [(4, 4), (4096, 64)])
def test_long_sums_lose_little(monkeypatch, chain, lost):
    """Of ones, with a block a row: those of the chain of a large one in front are lost, of others none is."""
    monkeypatch.setattr(blocks_schedule, "CHAIN", chain)
    x, gy = (np.ones((1, 1, 64, PARTITIONS), ml_dtypes.bfloat16) for _ in range(2))
    gy[0, 0, 0, 0] = 2.0**32
    config = (("rows", 1), ("columns", 1), ("split", 0))
    found = float(nkiconv.conv2d_weight(x, (1, 1, 1, 1), gy, algorithm="blocks", config=config)[0, 0, 0, 0])
    truth = 2.0**32 + gy.size - 1
    assert 0 < truth - found <= lost * PARTITIONS
    if chain == 4:
        total = np.float64(truth)
        additions = PARTITIONS + chain + gy.size // (PARTITIONS * chain) + 1
        assert abs(truth - found) <= error_bound(gy.size, total, total, "fp32", additions)
        assert error_bound(gy.size, total, total, "fp32", additions) < error_bound(gy.size, total, total, "fp32")


def on_one_core(problem, config):
    """The instructions of the filter gradient on one core."""
    request, operation, _ = requested(problem.toward("wgrad"))
    args, kwargs = operation.launch(request, "blocks", config)
    return execute(operation.kernel[1], args, kwargs, trace_only=True).programs[0].instructions


def on_tensor_engine(problem, config):
    """What the Tensor Engine does for it."""
    return [one.op for one in on_one_core(problem, config) if one.engine == "tensor"]


def test_rows_of_single_places_are_evacuated_together():
    """Three of 128 channels: one at a time took a fifth longer for 1,152 channels of a volume."""
    problem = nkiconv.ConvProblem(N=1, C=128, K=128, H=12, W=10, S=1, stride=(2, 2))
    config = (("rows", 6), ("columns", 1), ("pixels", 2), ("split", 0))
    ops = [one.op for one in on_one_core(problem, config) if one.reads and one.reads[0].info.dtype == "bfloat16"]
    runs = [(op, len(list(run))) for op, run in itertools.groupby(ops) if op in ("nc_transpose", "tensor_copy")]
    assert runs == [("nc_transpose", 3), ("tensor_copy", 1)] * 4


@pytest.mark.parametrize(("rows", "count"), [(8, 48), (16, 5)])
def test_parts_of_planes_on_row_tiles_are_loaded_by_rows(rows, count):
    """Whole planes, runs of HBM, at once: by tiles a 3x3 of stride 2 with 2 output channels took an eighth longer. Both
    passes share gy."""
    problem = nkiconv.ConvProblem(N=2, C=8, K=2, H=16, W=16, R=3, S=3, padding=((1, 1), (1, 1)))
    config = (("rows", rows), ("columns", 16), ("side", 2), ("pixels", 0), ("split", 0))
    assert sum(one.op == "dma_copy" for one in on_one_core(problem, config)) == count


def test_transposes_of_later_tiles_are_between_matmuls():
    """Few at once, as their evacuations take longer than they do: all 35 of a tile at once took a fifth longer."""
    problem = nkiconv.ConvProblem(N=6, C=384, K=512, H=48, W=48, S=1, stride=(2, 2))
    config = (("rows", 1), ("columns", 5), ("outputs", 4), ("pixels", 2))
    config += (("buffers", 2), ("channels", 384), ("inputs", 1), ("split", 0))
    ops = on_tensor_engine(problem, config)
    runs = [len(list(run)) for op, run in itertools.groupby(ops) if op == "nc_transpose"]
    assert sum(runs) == 6 * 35
    assert max(runs[-20:]) <= 10


@pytest.mark.parametrize("buffers", [1, 2, 8])
@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("planes", [(5, 3, 1, 1, 1, 1), (6, 3, 1, 2, 0, 2), (7, 2, 2, 1, 1, 0), (4, 3, 1, 1, 5, 0)])
def test_neighbouring_planes_share_x(planes, split, buffers):
    """Of two volumes, two places and two passes of output channels."""
    config = (("rows", 1), ("columns", 2), ("outputs", 1), ("pixels", 2), ("split", split), ("buffers", buffers))
    axes = [planes, (24, 1, 1, 1, 0, 0), (16, 2, 1, 1, 1, 0)]
    check((2, 70, 140, 1), axes, config=config)


def test_planes_of_x_are_transposed_once():
    """Not once for each tap; with buffers for all tiles once for both passes."""
    sizes = {"N": 1, "C": 128, "K": 256, "D": 6, "T": 3, "H": 12, "W": 12, "S": 1}
    problem = nkiconv.ConvProblem(**sizes, stride=(1, 1, 1), padding=((1, 1), (0, 0), (0, 0)))
    config = (("rows", 1), ("columns", 1), ("channels", 128), ("outputs", 1), ("inputs", 1), ("pixels", 2))
    for buffers, count in ((1, 2 * (12 + 12)), (12, 12 + 2 * 12)):
        ops = on_tensor_engine(problem, (*config, ("buffers", buffers), ("split", 0)))
        assert ops.count("nc_transpose") == count


# (N, C, K, D, H, T, R) of volumes, whose first and last planes see fewer planes of x, and of images.
@pytest.mark.parametrize(("N", "C", "K", "D", "H", "T", "R"), [
    (2, 64, 64, 16, 112, 3, 1), (1, 24, 160, 6, 40, 3, 3), (2, 4, 9, 4, 24, 3, 3), (8, 40, 80, 1, 28, 1, 3),
])  # fmt: skip
def test_the_bound_counts_what_schedules_have(N, C, K, D, H, T, R):
    """Members of a gang, tiles of a core of candidates of least time."""
    sides = tuple((taps // 2,) * 2 for taps in (T, R, R))
    problem = nkiconv.ConvProblem(N=N, C=C, K=K, D=D, H=H, W=H, T=T, R=R, S=R, stride=(1, 1, 1), padding=sides)
    geometry = requested(problem.toward("wgrad"))[2].geometry
    found = candidates(Target.of(Rates()), geometry, (("pixels", 2),), 4, False)
    bound = BlocksBound(Target.of(Rates()), geometry, 2)
    for _, one in found:
        schedule = build(geometry, one.pairs, False)[0]
        sized = bound.sized({name: np.array([value]) for name, value in one.pairs})
        assert sized["gang"] == schedule.gang
        assert sized["tiles"] == max(one.half if schedule.split else len(one.tiles) for one in schedule.passes)


FUNCTIONS = {
    axes: (getattr(nkiconv, f"conv_transpose{axes}d_weight"), getattr(torch.nn.functional, f"conv_transpose{axes}d"))
    for axes in (1, 2, 3)
}
#: (N, C, K, groups), extents of x, taps, stride, padding, output_padding, dilation.
PROBLEMS = {
    "upsampled": ((2, 12, 7, 1), (6, 5), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    "uneven": ((3, 5, 9, 1), (4, 7), (3, 2), (3, 2), (0, 1), (2, 1), (2, 1)),
    "groups": ((2, 8, 12, 4), (5, 6), (3, 3), (1, 2), (1, 0), (0, 1), (1, 1)),
    "depthwise": ((2, 6, 6, 6), (7, 6), (5, 3), (2, 1), (2, 1), (1, 0), (1, 1)),
    "sequences": ((3, 9, 4, 1), (30,), (8,), (4,), (2,), (3,), (1,)),
    "volumes": ((1, 4, 5, 1), (3, 4, 5), (3, 2, 3), (2, 2, 1), (1, 0, 1), (1, 0, 0), (1, 1, 2)),
}


def drawn(name, dtype):
    """Integers x and w, and gy of torch's shape, with torch's arguments."""
    (N, C, K, groups), extents, taps, stride, padding, output_padding, dilation = PROBLEMS[name]
    rng = np.random.default_rng(len(name))
    places = {"stride": stride, "padding": padding, "dilation": dilation}
    more = {"output_padding": output_padding, "groups": groups}
    x = rng.integers(-3, 4, (N, C, *extents)).astype(DTYPES[dtype])
    w = torch.zeros((C, K // groups, *taps), dtype=torch.float64, requires_grad=True)
    y = FUNCTIONS[len(extents)][1](torch.from_numpy(x.astype(np.float64)), w, **places, **more)
    gy = rng.integers(-3, 4, tuple(y.shape)).astype(DTYPES[dtype])
    (dw,) = torch.autograd.grad(y, w, torch.from_numpy(gy.astype(np.float64)))
    plain = {key: value[0] if len(value) == 1 else value for key, value in places.items()}
    return x, gy, dw.numpy(), {**plain, "groups": groups}


@pytest.mark.cover(6)
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_transposed_ones_are_torchs(name, dtype, is_last):
    x, gy, dw, more = drawn(name, dtype)
    if is_last:
        x, gy = last(x), last(gy)
        more |= {"layout": LAYOUTS[x.ndim - 2][1], "accumulate_into": np.ones(dw.shape, np.float32)}
    found = FUNCTIONS[x.ndim - 2][0](x, dw.shape, gy, **more)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, dw + is_last)


def some(**most):
    """Settings, of each a number from 1 to this one or one of these."""
    values = {name: st.integers(1, one) if isinstance(one, int) else st.sampled_from(one) for name, one in most.items()}
    return st.fixed_dictionaries(values)


@st.composite
def by_diagonals(draw):
    groups, c, k = draw(st.integers(1, 6)), draw(st.sampled_from((1, 1, 2, 5))), draw(st.sampled_from((1, 1, 2, 5)))
    axes = draw(st.tuples(*(an_axis(most) for most in (5, 13, 15)[3 - draw(st.sampled_from((2, 2, 3))) :])))
    config = draw(st.one_of(st.just({}), some(
        rows=5, columns=6, down=3, across=3, groups=4, below=(1, 2, 4), side=(1, 2, 4), split=(0, 1),
        warmup=(0,), strips=(0, 1), beside=(1, 1, 2, 3),
    )))  # fmt: skip
    return (draw(st.integers(1, 3)), groups * c, groups * k, groups), [*axes], config, {"algorithm": "diagonals"}


@st.composite
def by_lines(draw):
    groups, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(("bf16", "fp16")))
    channels = [groups * draw(st.integers(1, 40)) for _ in range(2)]
    sizes = draw(st.lists(st.integers(1, 24), min_size=1, max_size=3))
    line = int(np.prod(sizes[-2:]))
    hypothesis.assume(line > 1 and line_width(line) > 0)
    config = {"pixels": 1, **draw(some(rows=4, outputs=4, buffers=4, inputs=4, split=(0, 1)))}
    return (draw(st.integers(1, 6)), *channels, groups), [(size, 1, 1, 1, 0, 0) for size in sizes], config, {
        "dtype": dtype, "is_last": False}  # fmt: skip


@st.composite
def by_sides(draw):
    """Of whole planes, whose zeros are left out where they can be, and of parts of them."""
    axes, groups = draw(st.tuples(an_axis(8), an_axis(9))), draw(st.sampled_from((1, 1, 3)))
    found = draw(some(side=(2, 4), beside=(1, 2, 4), inputs=12, channels=4, outputs=1, buffers=(8,)))
    whole = {"rows": outputs(axes[0]), "columns": outputs(axes[1])}
    found |= draw(st.sampled_from((whole, {"rows": 2})))
    hypothesis.assume(found["beside"] <= found.get("columns", outputs(axes[1])))
    return (40, 5 * groups, 32 * groups, groups), list(axes), found, {}


@pytest.mark.parametrize("problems", [by_diagonals, by_lines, by_sides])
@draws(20, 150)
@hypothesis.given(st.data())
def test_any_settings(problems, data):
    channels, axes, config, more = data.draw(problems())
    more = {"is_last": data.draw(st.booleans()), "lnc": data.draw(st.integers(1, 2)), **more}
    more["bias_gradient"] = problems is not by_sides and data.draw(st.booleans())
    try:
        check(channels, axes, config=tuple(config.items()) or None, **more)
    except nkiconv.UnsupportedError as error:
        # blocks too large for a bank or SBUF
        hypothesis.assume(not (config and re.match(r"config (rows|beside|channels)=", str(error))))
        raise


@st.composite
def real_images(draw):
    """(x, gy, arguments of conv2d_weight) of real numbers, and settings that cut them into several passes."""
    groups, N = draw(st.sampled_from([1, 6, 12])), draw(st.sampled_from([1, 2, 3, 5, 20]))
    H, R = (draw(st.integers(1, most)) for most in (12, 3))
    C, K = (
        (draw(st.integers(5, 40)), draw(st.sampled_from([1, 2, 5, 9, 150, 151])))
        if groups == 1
        else (groups * draw(st.integers(1, 3)), groups)
    )
    stride, layout = draw(st.integers(1, 2)), draw(st.sampled_from(["NCHW", "NHWC"]))
    Q, rng = (H + 2 - R) // stride + 1, np.random.default_rng(H)
    config = {name: draw(st.sampled_from([1, 2, 3, Q])) for name in ("rows", "columns")}
    config["split"] = draw(st.integers(0, 1))
    if groups == 1:
        config |= draw(some(buffers=3, channels=4, outputs=2, inputs=2, exchanged=(0,)))
        config["pixels"] = draw(st.sampled_from([0, 2])) if layout == "NCHW" else 0
    else:
        config |= {"beside": draw(st.sampled_from([1, 2, 3])), "groups": draw(st.integers(1, 3))}
    x, gy = (rng.standard_normal(size, np.float32) for size in ((N, C, H, H), (N, K, Q, Q)))
    call = {"padding": 1, "stride": stride, "groups": groups, "layout": layout, "config": tuple(config.items())}
    call |= {"weight_size": (K, C // groups, R, R), "algorithm": "blocks" if groups == 1 else "diagonals"}
    call |= {"bias_gradient": draw(st.booleans())}
    if draw(st.booleans()):
        call["accumulate_into"] = rng.standard_normal(call["weight_size"], np.float32)
    return (last(x), last(gy), call) if layout == "NHWC" else (x, gy, call)


@draws(20, 60)
@hypothesis.given(real_images())
def test_cores_do_not_change_bits(images):
    """Sums of real numbers, which round by their order."""
    x, gy, call = images
    try:
        one, two = (nkiconv.conv2d_weight(x, gy=gy, lnc=lnc, **call) for lnc in (1, 2))
    except nkiconv.UnsupportedError as unsupported_reason:
        hypothesis.assume(not str(unsupported_reason).startswith("config "))
        raise
    one, two = (one, two) if call["bias_gradient"] else ((one,), (two,))
    assert all(map(same_bits, one, two))


def test_diagonals_meet_once_a_pass():
    rng = np.random.default_rng(0)
    x, gy = (rng.standard_normal((20, 6, 10, 10)).astype(np.float32) for _ in range(2))
    config = (("rows", 2), ("columns", 5), ("down", 1), ("across", 1), ("side", 1), ("groups", 6), ("split", 1))
    call = {"padding": ((1, 1), (1, 1)), "feature_group_count": 6, "algorithm": "diagonals", "config": config}
    run = execute(conv_weight_gradient[2], (x, gy, (6, 1, 3, 3)), call)
    assert [sum(one.op == "sendrecv" for one in program.instructions) for program in run.programs] == [1, 1]
    assert same_bits(run.outputs, nkiconv.conv2d_weight(x, (6, 1, 3, 3), gy, padding=1, groups=6, lnc=1,
                                                        algorithm="diagonals", config=config))  # fmt: skip
