"""Blocks of diffusers, mixers of transformers and random models give with fuse=True what they gave, and gradients."""

import copy
import importlib
import inspect
import sys
import warnings

import pytest
import torch
from chained import C, calls, close, drawn, image, terms_of
from draws import draws
from fused_models import CONVOLUTIONS
from hypothesis import given
from hypothesis import strategies as st
from tolerances import FLOAT32_SUMS
from torch import nn
from torch.nn import functional as F

from nkiconv.pytorch import convert
from nkiconv.pytorch.models import fusing

_DOWN = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
_AUTOENCODER = {"block_out_channels": (C, C), "layers_per_block": 1, "norm_num_groups": 2, "sample_size": 8, **_DOWN}
_WIDER, _UPSAMPLE = {"in_channels": C, "out_channels": 2 * C, "groups": 2}, {"dim": C, "mode": "upsample2d"}
_VIDEO, _FRAME, _TIMED = [(1, C, 3, 6, 5)], [(1, C, 1, 4, 5)], [(2, C, 6, 5), (2, 4)]
_SHIFTED = {"temb_channels": 4, "time_embedding_norm": "scale_shift"}
_OF_VIDEOS, _BLOCK = {"in_dim": C, "out_dim": 2 * C}, {"in_channels": C, "out_channels": 2 * C}
_CONDITIONED, _LATE = {"in_channels": C, "timestep_conditioning": True}, [*_VIDEO, (1, 4 * C, 1, 1, 1)]
#: The file, the class and its arguments; shapes of inputs; norms that are fused of how many, and upsamplings.
BLOCKS = {
    "ResNet": ("resnet", "ResnetBlock2D", {**_WIDER, "temb_channels": None}, [(2, C, 6, 5), None], 2, 2, 0),
    "UNet": ("resnet", "ResnetBlock2D", {**_WIDER, "temb_channels": 4}, _TIMED, 2, 2, 0),
    "scale and shift": ("resnet", "ResnetBlock2D", {**_WIDER, **_SHIFTED}, _TIMED, 2, 2, 0),
    "HunyuanVideo": (
        "autoencoders.autoencoder_kl_hunyuan_video", "HunyuanVideoResnetBlockCausal3D", _WIDER, _VIDEO, 2, 2, 0),
    "Upsample2D": ("upsampling", "Upsample2D", {"channels": C, "use_conv": True}, [(2, C, 4, 5)], 0, 0, 1),
    "Wan": ("autoencoders.autoencoder_kl_wan", "WanResample", _UPSAMPLE, _FRAME, 0, 0, 1),
    "Qwen-Image": ("autoencoders.autoencoder_kl_qwenimage", "QwenImageResample", _UPSAMPLE, _FRAME, 0, 0, 1),
    "Wan's norms": ("autoencoders.autoencoder_kl_wan", "WanResidualBlock", _OF_VIDEOS, _VIDEO, 1, 2, 0),
    "Qwen's norms": ("autoencoders.autoencoder_kl_qwenimage", "QwenImageResidualBlock", _OF_VIDEOS, _VIDEO, 1, 2, 0),
    "HunyuanVideo 1.5": (
        "autoencoders.autoencoder_kl_hunyuanvideo15", "HunyuanVideo15ResnetBlock", _BLOCK, _VIDEO, 1, 2, 0),
    "LTX": ("autoencoders.autoencoder_kl_ltx", "LTXVideoResnetBlock3d", _BLOCK, _VIDEO, 1, 2, 0),
    "LTX with a time": ("autoencoders.autoencoder_kl_ltx", "LTXVideoResnetBlock3d", _CONDITIONED, _LATE, 1, 2, 0),
    "LTX with weights": ("autoencoders.autoencoder_kl_ltx", "LTXVideoResnetBlock3d",
        {**_CONDITIONED, "elementwise_affine": True}, _LATE, 1, 2, 0),
    "LTX 2": ("autoencoders.autoencoder_kl_ltx2", "LTX2VideoResnetBlock3d", _CONDITIONED, _LATE, 1, 2, 0),
}  # fmt: skip


def built(file, name, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("diffusers", exc_type=Exception)
        return drawn(getattr(importlib.import_module(f"diffusers.{file}"), name)(**arguments)).eval()


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_diffusers(name):
    file, kind, arguments, shapes, fused, norms, doubled = BLOCKS[name]
    model, inputs = built(f"models.{file}", kind, arguments), [None if one is None else image(*one) for one in shapes]
    report = convert(model, fuse=True)
    assert (sum(chain.fused for chain in report.chains), len(report.chains)) == (fused, norms)
    assert [one.fused for one in report.doublings] == [True] * doubled
    ran = calls(report.model, *inputs).split()
    assert sum(ran.count(one) for one in ("norm", "rms", "up")) == fused + doubled
    with torch.no_grad():
        found, expected = report.model(*inputs), model(*inputs)
    assert close(found, expected, terms_of(model))


@pytest.mark.slow
def test_a_decoder_of_diffusers():
    """All norms but those of attention, also in other methods than forward."""
    model = built("models", "AutoencoderKL", _AUTOENCODER)
    report = convert(model, fuse=True)
    assert {chain.norm.rpartition(".")[2] for chain in report.chains if not chain.fused} == {"group_norm"}
    z = image(1, 4, 4, 4)
    with torch.no_grad():
        found, expected = report.model.decode(z).sample, model.decode(z).sample
    assert close(found, expected, 14 * 9 * C)
    of_decoder = [chain for chain in report.chains if chain.fused and chain.norm.startswith("decoder.")]
    assert calls(report.model.decode, z).split().count("norm") == len(of_decoder) == 13
    # what attention writes has none
    assert [chain.norm for chain in of_decoder if not chain.statistics] == ["decoder.mid_block.resnets.1.norm1"]


_DECODER = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "layer_types": ["linear_attention"],
}  # fmt: skip
_DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_MAMBA = {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8, "chunk_size": 4}
_BAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
_KIMI = {"linear_num_heads": 2, "linear_head_dim": 8}
#: Folder of the file, class of the module, its config's, settings, the fused call of its prefill.
MIXERS = {
    "lfm2": ("Lfm2ShortConv", "Lfm2Config", {"layer_types": ["conv"]}, "gated_short_conv"),
    "lfm2_moe": ("Lfm2MoeShortConv", "Lfm2MoeConfig", {"layer_types": ["conv"]}, "gated_short_conv"),
    "qwen3_next": ("Qwen3NextGatedDeltaNet", "Qwen3NextConfig", {**_DELTA, **_EXPERTS}, "causal_conv1d_split"),
    "kimi_linear": ("KimiLinearDeltaAttention", "KimiLinearConfig", _KIMI, "causal_conv1d_split"),
    "mamba2": ("Mamba2Mixer", "Mamba2Config", _MAMBA, "causal_conv1d_split"),
    "bamba": ("BambaMixer", "BambaConfig", _BAMBA, "causal_conv1d_split"),
}


def same_in_fp32(found, expected):
    """Within fp32 sums in another order, in which some modules compute whatever x is."""
    return (found - expected).abs().max() <= FLOAT32_SUMS * expected.abs().max().clamp(min=1)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="transformers needs Python 3.11")
@pytest.mark.cover(3, keep=["lfm2"])
@pytest.mark.parametrize("folder", MIXERS)
def test_mixers_of_transformers(folder, made):
    """Without a cache, with a mask, and with a cache."""
    warnings.simplefilter("ignore")
    name, config, settings, call = MIXERS[folder]
    file = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    kind, config = getattr(file, name), getattr(file, config)
    cache = importlib.import_module("transformers.cache_utils").DynamicCache
    given = {**_DECODER, **settings}
    if "layer_types" not in inspect.signature(config).parameters:  # Mamba's layers are all alike
        del given["layer_types"]
    made_of = config(**given)
    model = drawn(kind(made_of, 0)).eval()
    report = convert(model, fuse=True)
    with report.installation, torch.no_grad():
        assert [str(block) for block in report.blocks if block.fused] == [call]
        x, mask = image(2, 9, 32) - 2, torch.ones(2, 9)
        mask[0, :3] = 0
        for more in ({}, {"attention_mask": mask}):
            made.clear()
            assert same_in_fp32(report.model(x, **more), model(x, **more))
            assert made == [call] or (more and folder in ("mamba2", "bamba") and made == [])
        names = inspect.signature(kind.forward).parameters
        argument = next(one for one in names if one.startswith(("cache", "past")))
        own, theirs = cache(config=made_of), cache(config=made_of)
        for tokens in (9, 1, 1, 4):
            made.clear()
            x = image(2, tokens, 32, seed=tokens) - 2
            assert same_in_fp32(report.model(x, **{argument: own}), model(x, **{argument: theirs}))
            assert made == ([call] if tokens == 9 else [])
            assert same_in_fp32(*(one.get_conv_state(0, state_idx=0) for one in (own, theirs)))


TAPS = 3


def added_in_place(last, other):
    total = last * 1
    total += other
    return total


#: What a model does with the last value and an earlier one.
STEPS = {
    "relu": lambda last, _: F.relu(last),
    "relu in place": lambda last, _: F.relu_(last * 1),
    "silu": lambda last, _: F.silu(last),
    "leaky": lambda last, _: F.leaky_relu(last),
    "sum": lambda last, other: last + other,
    "sum, second": lambda last, other: other + last,
    "sum in place": added_in_place,
    "sum over 1": lambda last, other: (last + other) / 1.0,
    "offset": lambda last, other: last + other,  # of its first pixels
    "product": lambda last, other: last * other,
    "half of both": lambda last, other: torch.cat([last, other], 1)[:, ::2],
}
#: Modules by the rank of images.
MODULES = {
    "convolution": lambda rank: CONVOLUTIONS[rank](C, C, TAPS, padding=1),
    "pointwise": lambda rank: CONVOLUTIONS[rank](C, C, 1, bias=False),
    "groups": lambda rank: CONVOLUTIONS[rank](C, C, TAPS, padding=1, groups=2),
    "depthwise": lambda rank: CONVOLUTIONS[rank](C, C, TAPS, padding=1, groups=C),
    "batch norm": lambda rank: getattr(nn, f"BatchNorm{rank}d")(C),
    "group norm": lambda _: nn.GroupNorm(2, C),
    "instance norm": lambda rank: getattr(nn, f"InstanceNorm{rank}d")(C, affine=True),
    "ReLU": lambda _: nn.ReLU(inplace=False),
    "GELU": lambda _: nn.GELU(),
    "Dropout": lambda _: nn.Dropout(0.5),
}


class Random(nn.Module):
    """Steps (name, which earlier value), each of the last value."""

    def __init__(self, rank, steps):
        super().__init__()
        self.steps, self.first = steps, (slice(None), slice(None), *[slice(1)] * rank)
        self.parts = nn.ModuleList(MODULES.get(name, lambda _: nn.Identity())(rank) for name, _ in steps)

    def forward(self, x):
        values = [x]
        for part, (name, back) in zip(self.parts, self.steps, strict=True):
            last, other = values[-1], values[back % len(values)]
            other = other[self.first] if name == "offset" else other
            values.append(part(last) if name in MODULES else STEPS[name](last, other))
        return values[-1] + values[-2]


def run(model, x):
    """(y, dL/dx) of a model that may move its statistics."""
    own, x = copy.deepcopy(model), x.clone().requires_grad_()
    y = own(x)
    return y.detach(), torch.autograd.grad(y.square().sum(), x)[0]


def check(rank, steps, training, fold):
    model = drawn(Random(rank, steps)).train(training)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.eval()
    x = image(2, C, *(4, 3, 5)[:rank])
    truth, plain = run(model.double(), x.double()), run(model.float(), x)
    found = run(convert(model, fuse=True, fold_batchnorm=fold and not training).model, x)
    for one, other, right in zip(found, plain, truth, strict=True):
        scale = right.abs().max().clamp(min=1)
        # the model's own rounding errors, and as much again for sums in another order, by some factor
        limit = 20 * (other - right).abs().max() + 4 * TAPS**rank * C * len(steps) * 2.0**-24 * scale
        assert (one - right).abs().max() <= limit


MODELS = (
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from([*MODULES] * 2 + [*STEPS]), st.integers(0, 6)), min_size=2, max_size=9),
    st.booleans(),
    st.booleans(),
)


@draws(96, 2000)
@given(*MODELS, st.tuples(*[st.booleans()] * 3))
def test_random_models(rank, steps, training, fold, pays):
    with pytest.MonkeyPatch.context() as patch:
        for name, one in zip(("prologue_pays", "statistics_pay", "sum_pays"), pays, strict=True):
            patch.setattr(fusing, name, lambda *_, one=one: one)
        check(rank, steps, training, fold)
