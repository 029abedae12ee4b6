"""Chains of diffusers' blocks and decoders, where that package is installed."""

import importlib
import warnings

import pytest
import torch
from chained import C, drawn, image
from operators_seen import Seen

from nkiconv.pytorch import convert

_BOTH = {"norm1": True, "norm2": True}
_AUTOENCODER = {
    "block_out_channels": (C, C), "layers_per_block": 1, "norm_num_groups": 2, "sample_size": 8,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip
_WIDER = {"in_channels": C, "out_channels": 2 * C, "groups": 2}
#: The file, the class and its arguments; shapes of inputs; which norms are fused, and how many upsamplings.
MODELS = {
    "ResNet": ("models.resnet", "ResnetBlock2D", {**_WIDER, "temb_channels": None}, [(2, C, 6, 5), None], _BOTH, 0),
    "UNet": ("models.resnet", "ResnetBlock2D", {**_WIDER, "temb_channels": 4}, [(2, C, 6, 5), (2, 4)], _BOTH, 0),
    "scale and shift": (
        "models.resnet", "ResnetBlock2D", {**_WIDER, "temb_channels": 4, "time_embedding_norm": "scale_shift"},
        [(2, C, 6, 5), (2, 4)], _BOTH, 0,
    ),
    "HunyuanVideo": (
        "models.autoencoders.autoencoder_kl_hunyuan_video", "HunyuanVideoResnetBlockCausal3D",
        {"in_channels": C, "out_channels": 2 * C, "groups": 2}, [(1, C, 3, 6, 5)], _BOTH, 0,
    ),
    "Upsample2D": ("models.upsampling", "Upsample2D", {"channels": C, "use_conv": True}, [(2, C, 4, 5)], {}, 1),
    "Wan": (
        "models.autoencoders.autoencoder_kl_wan", "WanResample", {"dim": C, "mode": "upsample2d"}, [(1, C, 1, 4, 5)],
        {}, 1,
    ),
    "Qwen-Image": (
        "models.autoencoders.autoencoder_kl_qwenimage", "QwenImageResample", {"dim": C, "mode": "upsample2d"},
        [(1, C, 1, 4, 5)], {}, 1,
    ),
}  # fmt: skip


def built(file, name, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("diffusers", exc_type=Exception)
        return drawn(getattr(importlib.import_module(f"diffusers.{file}"), name)(**arguments)).eval()


@pytest.mark.parametrize("name", MODELS)
def test_blocks(name, calls):
    file, kind, arguments, shapes, fused, doubled = MODELS[name]
    model, inputs = built(file, kind, arguments), [None if one is None else image(*one) for one in shapes]
    report = convert(model, fuse=True)
    assert {chain.norm: chain.fused for chain in report.chains} == fused
    assert [one.fused for one in report.doublings] == [True] * doubled
    with Seen() as seen, torch.no_grad():
        found = report.model(*inputs)
    assert len(calls) == sum(fused.values())
    assert not any("upsample" in name for name in seen.names)
    with torch.no_grad():
        expected = model(*inputs)
    assert (found - expected).abs().max() <= 8 * 3 * 27 * C * 2.0**-24 * expected.abs().max()


@pytest.mark.slow
def test_a_decoder(calls):
    """All norms but those of attention, also in other methods than forward."""
    model = built("models", "AutoencoderKL", _AUTOENCODER)
    report = convert(model, fuse=True)
    assert {chain.norm.rpartition(".")[2] for chain in report.chains if not chain.fused} == {"group_norm"}
    z = image(1, 4, 4, 4)
    with torch.no_grad():
        found, expected = report.model.decode(z).sample, model.decode(z).sample
    assert (found - expected).abs().max() <= 8 * 14 * 9 * C * 2.0**-24 * expected.abs().max()
    of_decoder = [chain for chain in report.chains if chain.fused and chain.norm.startswith("decoder.")]
    assert len(calls) == len(of_decoder) == 13
    # what attention writes has none
    assert [chain.norm for chain in of_decoder if not chain.statistics] == ["decoder.mid_block.resnets.1.norm1"]
