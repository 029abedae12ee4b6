"""Public reports of causal convolutions, decoders, layouts, dtypes and modules: see `public_reports`."""

import copy
import itertools

import ml_dtypes
import numpy as np
import pytest
import torch
from causal import computing
from public_reports import array, as_torch, causal_by_torch, equal, in_float64, ints, modelled, report
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import nkiconv
from nkiconv import ConvProblem, pytorch
from nkiconv.errors import DtypeError, GeometryError, LayoutError, UnsupportedError
from nkiconv.pytorch import causal_conv1d_fn, causal_conv1d_update, fla, serving


@report("Dao-AILab/causal-conv1d#32")
def many_channels():
    """65,536 channels were more than a grid of blocks holds."""
    x, w = ints(1, 65_536, 4), ints(65_536, 2, seed=1)
    with computing("simulate"):
        equal(causal_conv1d_fn(x, w), causal_by_torch(x, w))


@report("Dao-AILab/causal-conv1d#22")
def shape_of_filters():
    """Filters were refused by a message that did not say which shape they had."""
    with pytest.raises(LayoutError, match=r"weight.shape=\(6, 1, 4\): must have 2 axes, \[C, width\]; call .squeeze"):
        causal_conv1d_fn(ints(1, 6, 9), ints(6, 1, 4))
    with pytest.raises(GeometryError, match=r"weight.shape=\(4, 6\): must be \[C, width\] for x's C=6 channels"):
        causal_conv1d_fn(ints(1, 6, 9), ints(4, 6))


@report("Dao-AILab/causal-conv1d#8", "NVIDIA/cudnn-frontend#465")
def widths():
    """Widths above 4 were refused, those from 138 on crashed; complex numbers and float64 were asked for."""
    x = ints(1, 3, 300)
    for width in (1, 2, 7, 137, 138, 139, 256, 257):
        w = ints(3, width, seed=1)
        with computing("simulate"):
            equal(causal_conv1d_fn(x, w), causal_by_torch(x, w))
    with computing("simulate"):
        with pytest.raises(DtypeError, match=r"x.dtype=torch.complex64: complex tensors are not supported; convolve"):
            causal_conv1d_fn(x.to(torch.complex64), w)
        with pytest.raises(DtypeError, match=r"x.dtype=torch.float64: .* cast it with .float\(\)"):
            causal_conv1d_fn(x.double(), w)


@report("Dao-AILab/causal-conv1d#67", "Dao-AILab/causal-conv1d#117")
def packed_tails():
    """seq_idx was read behind the last token where rows do not fill a block of 64 or 128, and training crashed."""
    for size, kind in itertools.product((63, 64, 65, 127, 128, 129, 257), (torch.int32, torch.int64)):
        cuts = [0, size // 3, size - 1, size]
        numbers = torch.repeat_interleave(torch.arange(3), torch.tensor(cuts).diff())[None].to(kind)

        def by_torch(x, w, cuts=cuts):
            return torch.cat([causal_by_torch(x[..., a:b], w) for a, b in itertools.pairwise(cuts)], 2)

        def by_nkiconv(x, w, numbers=numbers):
            return causal_conv1d_fn(x, w, seq_idx=numbers)

        as_torch(by_nkiconv, by_torch, (ints(1, 3, size), ints(3, 4, seed=1)))


@report("state-spaces/mamba#834", "state-spaces/mamba#362", "state-spaces/mamba#774",
        "fla-org/flash-linear-attention#519")  # fmt: skip
def strides():
    """Rows that are a slice of a wider projection were refused, as their strides are no multiples of 8."""
    whole = ints(2, 9, 13)
    numbers = torch.tensor([[0] * 4 + [1] * 5] * 2).int()

    def by_torch(x, w):
        return torch.cat([causal_by_torch(x[..., a:b], w) for a, b in ((0, 4), (4, 9))], 2)

    x = whole[:, :, 3:9].transpose(1, 2)
    assert x.stride() == (117, 1, 13)
    as_torch(lambda x, w: causal_conv1d_fn(x, w, seq_idx=numbers), by_torch, (x, ints(6, 4, seed=1)))


@report("fla-org/flash-linear-attention#955")
def packed_batches():
    """Sequences packed in several rows gave wrong filter gradients, and nothing said so."""
    with pytest.raises(GeometryError, match=r"x.shape=\(2, 6, 8\): with cu_seqlens all sequences are in one row"):
        fla.causal_conv1d(ints(2, 8, 6), ints(6, 4), cu_seqlens=torch.tensor([0, 3, 8], dtype=torch.int32))


@report("fla-org/flash-linear-attention#1156")
def wide_gradients():
    """Gradients were wrong, and at 10,240 channels the kernel faulted."""

    def by_torch(x, w, bias):
        return causal_by_torch(x.transpose(1, 2), w, bias).transpose(1, 2)

    tensors = ints(1, 6, 10_240), ints(10_240, 4, seed=1), ints(10_240, seed=2)
    as_torch(lambda x, w, bias: fla.causal_conv1d(x, w, bias)[0], by_torch, tensors)


@report("vllm-project/vllm#56196")
def short_chunk_of_a_shared_prefix():
    """A chunk shorter than the state wrote its state to the block of the prefix, which others read."""
    x, w, states = ints(3, 2), ints(3, 4, seed=1), ints(12, 3, 3, seed=2)
    expected, one = states.clone(), torch.tensor([1], dtype=torch.int32)
    seen = torch.cat([states[5], x], 1)
    expected[9] = seen[:, -3:]
    with computing("simulate"):
        y = serving.causal_conv1d_fn(
            x, w, None, states, torch.tensor([0, 2]), torch.tensor([[5, 9, 1]]), torch.tensor([True]), None,
            block_idx_first_scheduled_token=one, block_idx_last_scheduled_token=one, initial_state_idx=one - 1,
            num_computed_tokens=one + 3, block_size_to_align=4,
        )  # fmt: skip
    equal(y, F.conv1d(seen[None], w[:, None], groups=3)[0])
    equal(states, expected)


@report("vllm-project/vllm-ascend#15430")
def pool_in_another_order():
    """States that are a transposed view of a pool were copied whole, or not written back."""
    pool, x, w = ints(12, 3, 6), ints(2, 6, seed=1), ints(6, 4, seed=2)
    expected = pool.clone()
    with computing("simulate"):
        y = causal_conv1d_update(x, pool.transpose(1, 2), w, conv_state_indices=torch.tensor([7, 2]))
    for row, slot in enumerate((7, 2)):
        seen = torch.cat([expected[slot].T, x[row, :, None]], 1)
        equal(y[row], (seen * w).sum(1))
        expected[slot] = seen[:, 1:].T
    equal(pool, expected)


@report("pytorch/pytorch#131192", "pytorch/pytorch#153389")
def state_is_a_view():
    """Compiled code changed a copy where an operator changes a view of its input in place."""
    x, w = ints(2, 6, 1, seed=2), ints(6, 4, seed=1)

    def step(pool, x):
        return causal_conv1d_update(x, pool[1], w)

    eager = ints(3, 2, 6, 3)
    compiled, before = eager.clone(), eager.clone()
    with computing("simulate"):
        equal(torch.compile(step, backend="inductor", fullgraph=True)(compiled, x), step(eager, x))
    equal(compiled, eager)
    assert not torch.equal(compiled[1], before[1])
    equal(compiled[::2], before[::2])


@report("pytorch/pytorch#15297")
def expanded_filters():
    """One filter expanded over all groups, whose elements share memory, gave other numbers from call to call."""
    w = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).expand(8, 1, 3, 3)
    assert w.stride(0) == 0
    as_torch(pytorch.conv2d, F.conv2d, (ints(1, 8, 5, 5), w), groups=8)


@report("pytorch/pytorch#82060", "pytorch/pytorch#63299", "pytorch/pytorch#12013")
def channels_last():
    """A filter of one channel in channels_last was read in another order; batches without images were refused."""
    layer = nn.Conv2d(1, 64, 3, padding=1, bias=False)
    layer.weight.data, x = ints(64, 1, 3, 3), ints(1, 1, 20, 20, seed=1)
    found = pytorch.convert(layer).model.to(memory_format=torch.channels_last)
    with computing("simulate"):
        equal(found(x), layer(x))
        none = torch.ones(0, 1, 10, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
        found(none).sum().backward()
    assert none.grad.shape == none.shape
    assert not found.weight.grad.any()


@report("pytorch/pytorch#68048", "ROCm/rocm-libraries#8029", "ROCm/rocm-libraries#8025")
def sums_in_fp32():
    """Sums of gradients were kept in bf16: a bias's stopped at 256, a 1x1x1 filter's were off by half."""
    layer = pytorch.convert(nn.Conv2d(1, 2, 3, 2, 1).bfloat16()).model
    with computing("simulate"):
        layer(torch.randn(1, 1, 80, 80, dtype=torch.bfloat16)).sum().backward()
    assert layer.bias.grad.tolist() == [1600, 1600]
    x, gy = (array(8, 16, 16, 16, 16, seed=seed, dtype=ml_dtypes.bfloat16) for seed in (0, 1))
    expected = np.einsum("ncdhw,nkdhw->kc", x.astype(np.float64), gy.astype(np.float64))[..., None, None, None]
    for layout in ("NCDHW", "NDHWC"):
        given = (x, gy) if layout == "NCDHW" else [np.moveaxis(one, 1, -1) for one in (x, gy)]
        equal(nkiconv.conv3d_weight(given[0], (16, 16, 1, 1, 1), given[1], layout=layout), expected)


@report("ROCm/rocm-libraries#7024", "ROCm/rocm-libraries#4998")
def winograd_is_asked_for():
    """A 23x23 filter of integers was off by more than 1 by Winograd in fp16; groups were wrong by it."""
    x, w = array(1, 1, 48, 50, dtype=np.float16), array(1, 1, 23, 23, seed=1, dtype=np.float16)
    equal(nkiconv.conv2d(x, w), F.conv2d(*in_float64(x, w)))
    with pytest.raises(UnsupportedError, match="precision=winograd: feature_group_count=2: must be 1; use None"):
        nkiconv.conv3d(
            array(1, 4, 4, 5, 5, dtype=np.float16), array(4, 2, 3, 3, 3, dtype=np.float16), groups=2,
            precision="winograd",
        )  # fmt: skip


@report("pytorch/pytorch#142463", "pytorch/pytorch#83505", "intel/auto-round#1500", "Comfy-Org/ComfyUI#12808")
def dtypes_that_differ():
    """Compiled layers took dtypes that eager ones refuse; integers ended in an assertion; biases have another dtype."""
    x, layer = ints(1, 1, 4, 4, dtype=torch.float16), pytorch.nn.Conv2d(1, 1, 1, bias=False)
    for mode, called in itertools.product(("torch", "simulate"), (layer, torch.compile(layer, backend="aot_eager"))):
        with computing(mode), pytest.raises(DtypeError, match=r"weight.dtype=torch.float32: .*; cast one of them"):
            called(x)
    with pytest.raises(DtypeError, match=r"input.dtype=torch.int32: .*; cast input"):
        pytorch.conv2d(x.int(), layer.weight.int(), torch.ones(1))
    bias, rows = torch.tensor([0.125]), x.bfloat16()
    for mode in ("torch", "simulate"):
        with computing(mode):
            equal(pytorch.conv2d(rows, torch.full((1, 1, 1, 1), 2.0).bfloat16(), bias), rows * 2 + 0.125)


@report("pytorch/pytorch#1606", "pytorch/pytorch#11762", "pytorch/pytorch#56246")
def axes_that_are_missing():
    """Images without channels, and rows with two axes, ended in errors that did not say which axis is missing."""
    with pytest.raises(GeometryError, match=r"input.shape=\(64, 32, 32\) is read as \[C, H, W\] of one image, C=64;"):
        pytorch.conv2d(ints(64, 32, 32), ints(6, 1, 5, 5))
    with pytest.raises(LayoutError, match=r"input.shape=\(2, 3, 10, 11\): must have 3 axes, \[N, C, W\]; reshape it"):
        pytorch.nn.Conv1d(3, 4, [2, 2])(ints(2, 3, 10, 11))


@report("pytorch/pytorch#37844", "pytorch/pytorch#104860", "pytorch/pytorch#134840")
def circular_padding():
    """Circular padding was of the wrong axis, and not of images without a batch; too much of it was not explained."""
    for padding, shape in itertools.product(((0, 1), (2, 0)), ((1, 6, 20, 10), (6, 20, 10))):
        layer, x = nn.Conv2d(6, 1, 3, padding=padding, padding_mode="circular"), ints(*shape)
        layer.weight.data, layer.bias.data = ints(1, 6, 3, 3), ints(1, seed=1)
        with computing("simulate"):
            equal(pytorch.convert(layer).model(x), layer(x))
    with pytest.raises(GeometryError, match=r"cannot be padded by .*; pad less, or give larger images"):
        pytorch.nn.Conv2d(3, 3, 1, padding=50, padding_mode="circular")(ints(1, 3, 24, 24))


@report("pytorch/pytorch#180995", "ultralytics/ultralytics#25364")
def folded_transposed_groups():
    """Batch norms behind transposed convolutions with groups were folded along the wrong axis."""
    for groups in (1, 2, 4):
        layers = nn.Sequential(nn.ConvTranspose2d(4, 8, 3, 2, 1, groups=groups, bias=False), nn.BatchNorm2d(8)).eval()
        for k, one in enumerate((layers[1].running_mean, layers[1].weight.data, layers[1].bias.data)):
            one.copy_(ints(8, seed=k))
        layers[1].running_var.copy_(1 + ints(8, seed=4).abs())
        found, x = pytorch.convert(layers, fold_batchnorm=True).model, ints(2, 4, 5, 6)
        assert isinstance(found[1], nn.Identity)
        with computing("simulate"):
            assert_within_share([found(x)], [layers(x)], FLOAT32_SUMS)


@report("pytorch/pytorch#183313")
def masked_weights():
    """A PixelCNN's layer masks its weight by .data in each forward."""

    class Masked(nn.Conv2d):
        def forward(self, x):
            self.weight.data *= torch.tensor([1.0, 0.0, 0.0])
            return super().forward(x)

    layers = nn.Sequential(Masked(1, 8, 3, padding=1), nn.ReLU(), Masked(8, 8, 3, padding=1))
    for k, one in enumerate(layers.parameters()):
        one.data = ints(*one.shape, seed=k)
    found, x = pytorch.convert(copy.deepcopy(layers)).model, ints(1, 1, 6, 6)
    with computing("simulate"):
        equal(found(x), layers(x))
    assert not found[0].weight[..., 1:].any()


@report("kyutai-labs/moshi#118", "descriptinc/descript-audio-codec#39", "0xShug0/audio.cpp#429", "sonos/tract#512")
def codecs_in_chunks():
    """A codec that was decoded frame by frame without the state of its transposed layers had noise at each cut."""
    down, up = pytorch.StreamingConv1d(1, 8, 7, 4), pytorch.StreamingConvTranspose1d(8, 2, 8, 4, groups=2)
    for k, one in enumerate((*down.parameters(), *up.parameters())):
        one.data = ints(*one.shape, seed=k)
    x = ints(1, 1, 48)
    with computing("simulate"), torch.no_grad():
        whole = up(down(x)[0])[0]
        for size in (4, 16):
            states, pieces = [None, None], []
            for piece in x.split(size, 2):
                frames, states[0] = down(piece, states[0])
                samples, states[1] = up(frames, states[1])
                pieces.append(samples)
            equal(torch.cat(pieces, 2), whole)


@report("Wan-Video/Wan2.1#430")
def checkpointed_chunks():
    """The backward pass of a decoder with a cache ran out of memory; checkpoints around chunks had wrong caches."""
    layer = pytorch.nn.CausalConv3d(2, 3, 3, padding=(1, 1))
    layer.weight.data, layer.bias.data = ints(3, 2, 3, 3, 3), ints(3, seed=1)

    def in_chunks(x, w, bias):
        cache, pieces = None, []
        for piece in x.split(2, 2):
            y, cache = checkpoint(layer, piece, cache, return_final_frames=True, use_reentrant=False)
            pieces.append(y)
        return torch.cat(pieces, 2)

    x, slopes = ints(1, 2, 5, 4, 4, seed=2).requires_grad_(), ints(1, 3, 5, 4, 4, seed=3)
    leaves = x, layer.weight, layer.bias
    with computing("simulate"):
        found = torch.autograd.grad(in_chunks(*leaves), leaves, slopes)
    expected = torch.autograd.grad(F.conv3d(F.pad(x, (1, 1, 1, 1, 2, 0)), *leaves[1:]), leaves, slopes)
    for one, other in zip(found, expected, strict=True):
        equal(one, other)


@report("IAHispano/Applio#1291")
def dilation_is_not_slow():
    """Dilated rows of a vocoder took 62 times as long as others of the same arithmetic."""
    fields = {"N": 8, "C": 512, "W": 2048, "K": 512, "S": 3, "dtype": "bf16"}
    dense = modelled(ConvProblem(**fields, padding=((0, 0), (1, 1))))
    for gap in (3, 5):
        rows = ConvProblem(**fields, rhs_dilation=(1, gap), padding=((0, 0), (gap, gap)))
        assert modelled(rows) <= 1.05 * dense


@report("patrick-kidger/equinox#1259", "jax-ml/jax#31662")
def gradients_of_transposed_ones_are_not_slow():
    """The gradient of a transposed convolution multiplied the zeros between pixels, and took 30 times as long."""
    numbers = {"stride": (2, 2), "padding": ((1, 1), (1, 1)), "output_padding": (0, 0), "dilation": (1, 1)}
    up = ConvProblem.transpose(N=8, C=64, K=64, H=32, W=32, taps=(4, 4), dtype="bf16", **numbers)
    forward = modelled(up)
    for way in ("dgrad", "wgrad"):
        assert modelled(up.toward(way)) <= 2 * forward
