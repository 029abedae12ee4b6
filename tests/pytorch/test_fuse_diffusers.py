"""Chains of diffusers' blocks and decoders, where that package is installed."""

import warnings

import pytest
import torch
from chained import C, drawn, image
from operators_seen import Seen

from nkiconv.pytorch import convert


@pytest.fixture
def diffusers():
    """The package, which few have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("diffusers", exc_type=Exception)


@pytest.mark.parametrize(("options", "fused"), [
    ({"temb_channels": None}, {"norm1": True, "norm2": True}),
    ({"temb_channels": 4}, {"norm1": True, "norm2": True}),
    ({"temb_channels": 4, "time_embedding_norm": "scale_shift"}, {"norm1": True, "norm2": False}),
    ({"temb_channels": None, "up": True}, {"norm1": False, "norm2": True}),
])  # fmt: skip
def test_resnet_block_of_diffusers(diffusers, options, fused, calls):
    from diffusers.models.resnet import ResnetBlock2D

    model = drawn(ResnetBlock2D(in_channels=C, out_channels=2 * C, groups=2, **options)).eval()
    report = convert(model, fuse=True)
    assert {chain.norm: chain.fused for chain in report.chains} == fused
    assert [chain.offset for chain in report.chains] == [False, options == {"temb_channels": 4}]
    t = None if options["temb_channels"] is None else image(2, 4)
    with torch.no_grad():
        found, expected = report.model(image(2, C, 6, 5), t), model(image(2, C, 6, 5), t)
    assert (found - expected).abs().max() <= 8 * 3 * 9 * C * 2.0**-24 * expected.abs().max()
    assert len(calls) == sum(fused.values())
    assert calls[-1][1] is (fused["norm2"])  # the sum is in the second call


def test_hunyuan_videos_block(diffusers, calls):
    """Norms in front of copies of frames and pixels."""
    from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import HunyuanVideoResnetBlockCausal3D

    model = drawn(HunyuanVideoResnetBlockCausal3D(C, 2 * C, groups=2)).eval()
    report = convert(model, fuse=True)
    assert [(one.fused, one.padding, one.statistics) for one in report.chains] == [
        (True, "replicate", ()),
        (True, "replicate", ("conv1.conv",)),
    ]
    with torch.no_grad():
        found, expected = report.model(image(1, C, 3, 6, 5)), model(image(1, C, 3, 6, 5))
    assert (found - expected).abs().max() <= 8 * 3 * 27 * C * 2.0**-24 * expected.abs().max()
    assert calls == [("silu", False), ("silu", True)]


@pytest.mark.slow
def test_a_decoder_of_diffusers(diffusers, calls):
    """All norms but those of attention, also in other methods than forward."""
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    model = diffusers.AutoencoderKL(
        block_out_channels=(C, C), layers_per_block=1, norm_num_groups=2, sample_size=8, **blocks
    ).eval()
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


def test_upsamplers_of_diffusers(diffusers):
    """Their convolutions read the small images: of AutoencoderKL and UNets, of Wan and of Qwen-Image."""
    from diffusers.models.autoencoders import autoencoder_kl_qwenimage, autoencoder_kl_wan
    from diffusers.models.upsampling import Upsample2D

    image_of, video = image(2, C, 4, 5), image(1, C, 1, 4, 5)
    for model, x in (
        (Upsample2D(C, use_conv=True), image_of),
        (autoencoder_kl_wan.WanResample(C, "upsample2d"), video),
        (autoencoder_kl_qwenimage.QwenImageResample(C, "upsample2d"), video),
    ):
        model = drawn(model).eval()
        report = convert(model, fuse=True)
        assert [one.fused for one in report.doublings] == [True]
        with Seen() as seen, torch.no_grad():
            found = report.model(x)
        assert not any("upsample" in name for name in seen.names)
        with torch.no_grad():
            expected = model(x)
        assert (found - expected).abs().max() <= 8 * 9 * C * 2.0**-24 * expected.abs().max()
