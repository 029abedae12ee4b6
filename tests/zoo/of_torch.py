"""Models of timm, torchvision and torchaudio, by their names there."""

from collections.abc import Iterator
from typing import Any

import torch
from zoo import CPU, META, Ids, Model, made_by

#: Name and extent of the picture.
_TIMM = (
    ("resnet50", 224), ("convnext_tiny", 224), ("efficientnet_b0", 224), ("tf_efficientnet_b0", 224),
    ("mobilenetv3_large_100", 224), ("nfnet_f0", 256), ("dm_nfnet_f0", 256), ("regnety_016", 224),
    ("densenet121", 224), ("hrnet_w18", 224), ("ghostnet_100", 224), ("xception41", 299), ("inception_v3", 299),
    ("resnetv2_50x1_bit", 448), ("resnest50d", 224), ("skresnet50", 224), ("dla60", 224), ("cspdarknet53", 256),
    ("mixnet_s", 224), ("edgenext_small", 256), ("coatnet_0_rw_224", 224), ("maxvit_tiny_rw_224", 224),
    ("halonet50ts", 256), ("repvgg_a0", 224), ("fastvit_t8", 256), ("vgg16", 224),
    ("vit_base_patch16_224", 224), ("repvit_m0_9", 224), ("shvit_s1", 224), ("iformer_t", 224),
)  # fmt: skip
_PICTURE = (1, 3, 224, 224)
_CLIP = (1, 3, 16, 112, 112)
_TORCHVISION = (
    ("resnet18", _PICTURE), ("mobilenet_v2", _PICTURE), ("shufflenet_v2_x1_0", _PICTURE), ("googlenet", _PICTURE),
    ("squeezenet1_0", _PICTURE), ("mnasnet1_0", _PICTURE), ("alexnet", _PICTURE), ("resnext50_32x4d", _PICTURE),
    ("fcn_resnet50", (1, 3, 520, 520)), ("deeplabv3_resnet50", (1, 3, 520, 520)),
    ("lraspp_mobilenet_v3_large", (1, 3, 520, 520)), ("r3d_18", _CLIP), ("mc3_18", _CLIP), ("r2plus1d_18", _CLIP),
    ("s3d", (1, 3, 16, 224, 224)), ("mvit_v2_s", (1, 3, 16, 224, 224)), ("swin3d_t", (1, 3, 16, 224, 224)),
)  # fmt: skip
#: Segmentation models ask for weights of their own unless told.
_NO_WEIGHTS = {"weights": None, "weights_backbone": None}
_MEL = {"waveform": (1, 1, 275 * 4), "specgram": (1, 1, 128, 8)}
_FULL = torch.tensor([400])
#: Function of torchaudio.models, its arguments, inputs and device.
_TORCHAUDIO: tuple[tuple[str, dict[str, Any], dict[str, Any], str], ...] = (
    ("Conformer", {"input_dim": 80, "num_heads": 4, "ffn_dim": 128, "num_layers": 4,
                   "depthwise_conv_kernel_size": 31}, {"input": (1, 400, 80), "lengths": _FULL}, CPU),
    ("WaveRNN", {"upsample_scales": [5, 5, 11], "n_classes": 512, "hop_length": 275}, _MEL, META),
    ("Tacotron2", {}, {"tokens": Ids((1, 400)), "token_lengths": _FULL, "mel_specgram": (1, 80, 400),
                       "mel_specgram_lengths": _FULL}, CPU),
    ("conv_tasnet_base", {}, {"input": (1, 1, 32_000)}, META),
    ("hdemucs_high", {"sources": ["drums", "bass", "other", "vocals"]}, {"input": (1, 2, 44_100 * 2)}, CPU),
    ("wav2vec2_base", {}, {"waveforms": (1, 80_000)}, META),
    ("squim_objective_base", {}, {"x": (1, 16_000 * 2)}, META),
)  # fmt: skip


def models() -> Iterator[Model]:
    """All of them."""
    for name, extent in _TIMM:
        yield Model(name, "timm", made_by("timm:create_model", name), {"x": (1, 3, extent, extent)})
    for name, shape in _TORCHVISION:
        argument = "input" if name.startswith("lraspp") else "x"
        weights = _NO_WEIGHTS if name.startswith(("fcn", "deeplab", "lraspp")) else {}
        build = made_by("torchvision.models:get_model", name, **weights)
        yield Model(name, "torchvision", build, {argument: shape})
    for name, arguments, inputs, device in _TORCHAUDIO:
        yield Model(name, "torchaudio", made_by(f"torchaudio.models:{name}", **arguments), inputs, device)
