"""Public reports of compilers, kernels and geometry: see `public_reports`."""

import copy
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import shell
import torch
from causal import computing
from public_reports import array, as_torch, equal, in_float64, ints, modelled, report
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import nkiconv
from nkiconv import ConvProblem, pytorch
from nkiconv.errors import GeometryError
from nkiconv.lint import lint


@report("aws-neuron/aws-neuron-sdk#1295")
def stem():
    """The backward pass of a 7x7 stem with stride 2 did not compile."""
    as_torch(pytorch.conv2d, F.conv2d, (ints(1, 3, 32, 64), ints(64, 3, 7, 7, seed=1)), stride=2, padding=3)


@report("aws-neuron/aws-neuron-sdk#398")
def upsampling():
    """A transposed 2x2 with stride 2 failed at some sizes and channels."""
    w = ints(256, 128, 2, 2, seed=1)
    as_torch(pytorch.conv_transpose2d, F.conv_transpose2d, (ints(1, 256, 8, 8), w), stride=2)


@report("aws-neuron/aws-neuron-sdk#585", "hexgrad/kokoro#79", "john-rocky/coreai-model-zoo#18")
def vocoders_pool():
    """Transposed ones with groups were refused; one with groups and output_padding had more samples than torch's."""
    for groups, more in itertools.product((1, 5, 70), (0, 1)):
        x, w = ints(1, 70, 11), ints(70, 70 // groups, 3, seed=1)
        numbers = {"stride": 2, "padding": 1, "output_padding": more, "groups": groups}
        as_torch(pytorch.conv_transpose1d, F.conv_transpose1d, (x, w), **numbers)
    layer = weight_norm(nn.ConvTranspose1d(70, 70, 3, 2, groups=70, padding=1, output_padding=1))
    x = torch.randn(1, 70, 11)
    with computing("simulate"):
        assert_within_share([pytorch.convert(layer).model(x)], [layer(x)], FLOAT32_SUMS)


@report("aws-neuron/aws-neuron-sdk#461", "aws-neuron/aws-neuron-sdk#646")
def padding_is_not_slow():
    """A UNet with "same" padding took longer than one without, or did not compile."""
    fields = {"N": 1, "C": 256, "K": 256, "R": 3, "S": 3, "dtype": "bf16"}
    padded = ConvProblem(**fields, H=64, W=64, padding=((1, 1), (1, 1)))
    assert modelled(padded) <= modelled(ConvProblem(**fields, H=66, W=66))


@report("aws-neuron/aws-neuron-sdk#449")
def convnext():
    """A 7x7 depthwise layer with a 1x1 behind did not compile."""
    x = ints(1, 20, 9, 9)
    layers = nn.Sequential(nn.Conv2d(20, 20, 7, padding=3, groups=20), nn.Conv2d(20, 80, 1))
    for k, one in enumerate(layers.parameters()):
        one.data = ints(*one.shape, seed=k)
    with computing("simulate"):
        equal(pytorch.convert(layers).model(x), layers(x))


@report("aws-neuron/aws-neuron-sdk#1323", "aws-neuron/aws-neuron-sdk#256")
def batches():
    """A detector compiled for one image and not for four; its numbers were wrong."""
    layers = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.SiLU(),
        nn.Conv2d(16, 20, 1),
    ).eval()  # fmt: skip
    found = pytorch.convert(layers, fold_batchnorm=True).model
    for count in (1, 4, 8):
        x = torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))
        with computing("simulate"):
            assert_within_share([found(x)], [layers(x)], FLOAT32_SUMS)


@report("aws-neuron/aws-neuron-sdk#1117")
def shifted_windows():
    """A kernel could not load a window of an image that begins behind the first column."""
    x, w = array(1, 4, 6, 7), array(5, 4, 1, 1, seed=1)
    y = nkiconv.conv2d(x, w, padding=((-1, -1), (-2, -1)))
    equal(y, F.conv2d(*in_float64(x[:, :, 1:-1, 2:-1], w)))


@report("aws-neuron/nki-samples#134", "aws-neuron/aws-neuron-sdk#1058", "aws-neuron/aws-neuron-sdk#1282")
def kernels_of_an_older_nki():
    """Kernels returned zeros after an update, and nothing said so; older ones ended in the compiler's own errors."""
    with tempfile.TemporaryDirectory() as folder:
        old, zeros = (Path(folder, name) for name in ("old.py", "zeros.py"))
        old.write_text(_OLD, encoding="utf-8")
        zeros.write_text(_ZEROS, encoding="utf-8")
        found = [(one.rule, one.line) for one in lint([old]).findings]
        assert found == [("NKL210", 1), ("NKL210", 2), ("NKL212", 6), ("NKL207", 7), ("NKL212", 9)]
        given = "--input", "8x6:bf16", "--quiet"
        found = shell.run("run", f"{zeros}:unwritten", *given)
        assert found.exit_code == 1
        assert "NKI023: return: element (0, 0) and 47 more were never written" in found.output
        found = shell.run("run", f"{zeros}:zeros", *given)
        assert found.exit_code == 0
        assert "but every element that it returned is 0" in " ".join(found.output.split())


_OLD = """\
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def kernel(x):
    y = nl.ndarray((4, nl.par_dim(128), 8), dtype=x.dtype, buffer=nl.hbm)
    return y

timed = nki.baremetal(kernel)
"""
_ZEROS = """\
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def unwritten(x):
    return nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)

@nki.jit
def zeros(x):
    tile = nl.zeros(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=y, src=tile)
    return y
"""


@report("aws-neuron/aws-neuron-sdk#709")
def long_rows():
    """An access pattern left its tensor; here its steps are 40,000 elements."""
    x, w = array(1, 2, 3, 40_000), array(2, 2, 2, 1, seed=1)
    equal(nkiconv.conv2d(x, w), F.conv2d(*in_float64(x, w)))


@report("openxla/xla#48713")
def crop_and_pad():
    """A crop on the left with zeros on the right read the next row."""
    x = (100 * np.arange(15)[None, None, :, None] + 10 * np.arange(6) + np.arange(8)[None, :, None, None]) * 1.0
    y = nkiconv.conv2d(x.astype(np.float32), np.eye(8, dtype=np.float32)[:, :, None, None], padding=((0, 0), (-5, 1)))
    expected = np.zeros((1, 8, 15, 2))
    expected[..., 0] = x[..., 5]
    equal(y, expected)


@report("jax-ml/jax#11517", "jax-ml/jax#11544", "pytorch/pytorch#4607")
def crops_of_everything():
    """Padding that takes all of x away ended the process; rows shorter than the filter gave numbers of no meaning."""
    for padding, name in (
        (((5, 16), (-5, 1)), "Q=-2"),
        (((-4, -2), (-3, -4)), "Q=-5"),
        (((-5, 0), (-16, -2)), "Q=-16"),
    ):
        with pytest.raises(GeometryError, match=f"{name}: output width must be at least 1 .*; crop less"):
            nkiconv.conv2d(array(1, 1, 2, 3), array(1, 1, 1, 2), padding=padding)
    with pytest.raises(GeometryError, match=r"smaller than the window of .*; pad it, or shorten the filter"):
        pytorch.conv1d(ints(1, 1, 2), ints(1, 1, 3), stride=2)


@report("tillahoffmann/jax-mps#150")
def gaps_and_crops():
    """Crops of an input with gaps were taken before the gaps were made."""
    x, w = array(1, 3, 6, 7), array(4, 3, 3, 3, seed=1)
    y = nkiconv.conv2d(x, w, lhs_dilation=(3, 2), padding=((-2, 3), (1, -4)))
    spread = np.zeros((1, 3, 16, 13))
    spread[:, :, ::3, ::2] = x
    spread = np.pad(spread[:, :, 2:, :9], ((0, 0), (0, 0), (0, 3), (1, 0)))
    equal(y, F.conv2d(*in_float64(spread, w)))


@report("jax-ml/jax#4216")
def same_with_gaps():
    """ "SAME" of an input with gaps is not defined."""
    with pytest.raises(GeometryError, match=r"padding='same': is not defined with lhs_dilation=.*; give \("):
        nkiconv.conv1d(array(1, 1, 2), array(1, 1, 2), stride=2, lhs_dilation=2, padding="same")


@report("Maratyszcza/NNPACK#103", "pytorch/pytorch#92238")
def padding_beyond_the_filter():
    """Padding as wide as the filter or wider, as FCN's first layer has it."""
    as_torch(pytorch.conv2d, F.conv2d, (ints(1, 2, 5, 4), ints(3, 2, 3, 3, seed=1)), padding=100)


@report("tenstorrent/tt-mlir#9276")
def rows_as_images():
    """A depthwise conv1d that came as conv2d of one row was wrong nearly everywhere."""
    tensors = ints(1, 32, 1, 32), ints(32, 1, 1, 3, seed=1)
    as_torch(pytorch.conv2d, F.conv2d, tensors, padding=(0, 1), groups=32)


@report("facebookincubator/AITemplate#68")
def depthwise_with_channels_last():
    """256 groups of one channel, fp16, channels last: NaN and Inf."""
    x, w = array(1, 12, 12, 256, dtype=np.float16), array(256, 3, 3, 1, seed=1, dtype=np.float16)
    y = nkiconv.conv2d(x, w, padding=1, groups=256, layout="NHWC", filter_layout="KRSC")
    rows, filters = (one.permute(0, 3, 1, 2) for one in in_float64(x, w))
    equal(y, F.conv2d(rows, filters, padding=1, groups=256).permute(0, 2, 3, 1))


@report("modular/modular#6129")
def groups_of_long_filters():
    """16 groups with 128 taps, HuBERT's positions, were wrong; with 3 taps they were right."""
    x, w = ints(1, 96, 60), ints(96, 6, 128, seed=1)
    as_torch(pytorch.conv1d, F.conv1d, (x, w), padding=64, groups=16)


@report("tensorflow/tensorflow#9870", "NervanaSystems/neon#361")
def many_images():
    """Images behind the 65,535th were zero; volumes beyond a multiple of 32 were wrong."""
    with computing("simulate"):
        x, w = ints(65_537, 1, 4), ints(2, 1, 3, seed=1)
        equal(pytorch.conv1d(x, w), F.conv1d(x, w))
        x, w = ints(33, 3, 4, 5, 5), ints(4, 3, 3, 3, 3, seed=1)
        equal(pytorch.conv3d(x, w, padding=1), F.conv3d(x, w, padding=1))


@report("pytorch/pytorch#56328", "pytorch/pytorch#106450", "pytorch/pytorch#8826", "apple/coreai-torch#79")
def bounds_of_output_padding():
    """output_padding is bounded by stride or dilation, whichever is more; other bounds refuse models that are right."""
    x, w = ints(2, 3, 3), ints(3, 4, 3, seed=1)
    for mode in ("torch", "simulate"):
        with computing(mode), pytest.raises(GeometryError, match=r"output_padding=1: .* stride=1 or dilation=1"):
            pytorch.conv_transpose1d(x, w, output_padding=1)
    with pytest.raises(GeometryError, match=r"output_padding=1: must be below stride=1 or dilation=1; use less"):
        nkiconv.conv_transpose1d(x.numpy(), w.numpy(), output_padding=1)
    as_torch(pytorch.conv_transpose1d, F.conv_transpose1d, (x, w), dilation=3, output_padding=2)


@report("pytorch/pytorch#98129")
def shapes_of_transposed_ones():
    """The shape that a compiler was told left output_padding out."""
    layer = pytorch.convert(nn.ConvTranspose2d(3, 4, 3, 2, 1, output_padding=1)).model
    assert copy.deepcopy(layer).to("meta")(torch.zeros(1, 3, 5, 6, device="meta")).shape == (1, 4, 10, 12)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    with computing("simulate"):
        for rows in (5, 7):
            x = ints(1, 3, rows, 6)
            equal(compiled(x), layer(x))


@report("pytorch/pytorch#5112")
def second_derivatives_of_transposed_ones():
    """The backward pass with dilation and output_padding read memory that was not its own."""
    x, w = ints(1, 4, 2, 3).requires_grad_(), ints(4, 1, 3, 3, seed=1).requires_grad_()

    def derivatives(function):
        y = function(x, w, output_padding=1, dilation=2)
        first = torch.autograd.grad(y, (x, w), ints(*y.shape, seed=2), create_graph=True)
        return y, *first, *torch.autograd.grad(first[0].sum(), (w,))

    with computing("simulate"):
        found = derivatives(pytorch.conv_transpose2d)
    for one, other in zip(found, derivatives(F.conv_transpose2d), strict=True):
        equal(one, other)


@report("pytorch/pytorch#15501")
def gradient_by_hand():
    """Someone computed a strided and dilated filter's gradient by hand and got another one; torch's is right."""
    x = torch.tensor([[[7.0, 3.0]], [[3.0, 2.0]]], requires_grad=True)
    w = torch.tensor([[[3.0, 6.0]], [[4.0, 2.0]]], requires_grad=True)
    with computing("simulate"):
        pytorch.conv1d(x, w, padding=1, stride=2, dilation=2).sum().backward()
    assert w.grad.tolist() == [[[0.0, 5.0]], [[0.0, 5.0]]]
    assert x.grad.tolist() == [[[0.0, 8.0]], [[0.0, 8.0]]]


@report("pytorch/pytorch#71080", "pytorch/pytorch#85111", "pytorch/pytorch#49523", "pytorch/pytorch#27598",
        "tensorflow/tensorflow#37024", "tensorflow/tensorflow#59059")  # fmt: skip
def numbers_that_crashed():
    """Groups, strides or taps of 0, the smallest int64, and filters of 2^31 elements ended the process."""
    wrong = ("groups", 0), ("groups", -(2**63)), ("stride", 0), ("dilation", 0), ("stride", -1)
    for kind, rank, (name, value) in itertools.product(("conv", "conv_transpose"), (1, 2, 3), wrong):
        one = np.ones((1, 1) + (1,) * rank, np.float32)
        function = f"{kind}{rank}d"
        with pytest.raises(GeometryError, match=rf"{name}=\(?{value}\b.*: must be "):
            getattr(pytorch, function)(torch.from_numpy(one), torch.from_numpy(one), **{name: value})
        with pytest.raises(GeometryError, match=f"{name}={value}: must be "):
            getattr(nkiconv, function)(one, one, **{name: value})
    with pytest.raises(GeometryError, match=r"w.shape=\(4, 3, 0, 3\): every extent of "):
        nkiconv.conv2d(array(1, 3, 5, 5), np.zeros((4, 3, 0, 3), np.float32))
    with pytest.raises(GeometryError, match=r"gy.shape=\(4, 96, 5, 5\): must be y's, \(4, 1879048192, 5, 5\)"):
        nkiconv.conv2d_weight(array(4, 48, 5, 5), (1_879_048_192, 48, 3, 3), array(4, 96, 5, 5), padding=1)
