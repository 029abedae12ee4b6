"""Models of transformers, by their config's class with its defaults, unless a row says what is reduced."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from zoo import CPU, META, Ids, Model, attribute

_TOKENS = {"input_ids": Ids((1, 128))}
#: Experts by products of matrices of any dtype.
_EXPERTS = {"experts_implementation": "batched_mm"}
_SECONDS = {"input_values": (1, 5 * 16_000)}


def _picture(extent: int = 224, **more: Any) -> dict[str, Any]:
    return {"pixel_values": (1, 3, extent, extent), **more}


def _video(frames: int = 16) -> dict[str, Any]:
    return {"pixel_values": (1, frames, 3, 224, 224)}


#: Model, its inputs, and settings of its config.
_ROWS: tuple[tuple[Any, ...], ...] = (
    # sequence models
    ("MambaModel", _TOKENS),
    ("Mamba2Model", _TOKENS),
    ("FalconMambaModel", _TOKENS),
    ("JambaModel", _TOKENS, {"num_hidden_layers": 8, **_EXPERTS}, "8 of 32 layers"),
    ("Zamba2Model", _TOKENS),
    ("BambaModel", _TOKENS, {"attn_layer_indices": [9, 18, 27]}),
    ("FalconH1Model", _TOKENS),
    ("Qwen3NextModel", _TOKENS, {"num_hidden_layers": 4, **_EXPERTS}, "4 of 48 layers"),
    ("Lfm2Model", _TOKENS, {"num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8, 10, 12, 14]}),
    # speech and sound
    ("WhisperModel", {"input_features": (1, 80, 3000), "decoder_input_ids": Ids((1, 8))}),
    ("MoonshineModel", {**_SECONDS, "decoder_input_ids": Ids((1, 8))}),
    ("Wav2Vec2Model", _SECONDS),
    ("Wav2Vec2ConformerModel", _SECONDS),
    ("HubertModel", _SECONDS),
    ("SEWModel", _SECONDS),
    ("WavLMModel", _SECONDS),
    ("Data2VecAudioModel", _SECONDS),
    ("SpeechT5ForTextToSpeech", {"input_ids": Ids((1, 40)), "decoder_input_values": (1, 100, 80),
                                 "speaker_embeddings": (1, 512)}),
    ("SpeechT5ForSpeechToText", {**_SECONDS, "decoder_input_ids": Ids((1, 8))}),
    ("SpeechT5HifiGan", {"spectrogram": (1, 200, 80)}),
    ("UnivNetModel", {"input_features": (1, 200, 100), "noise_sequence": (1, 200, 64)}),
    ("VitsModel", {"input_ids": Ids((1, 40))}),
    ("EncodecModel", {"input_values": (1, 1, 24_000)}),
    ("MimiModel", {"input_values": (1, 1, 24_000)}),
    ("DacModel", {"input_values": (1, 1, 44_032)}),
    # pictures
    ("ResNetModel", _picture()),
    ("RegNetModel", _picture()),
    ("BitModel", _picture()),
    ("ConvNextModel", _picture()),
    ("ConvNextV2Model", _picture()),
    ("MobileNetV1Model", _picture()),
    ("MobileNetV2Model", _picture()),
    ("MobileViTModel", _picture(256)),
    ("EfficientNetModel", _picture(600)),
    ("PoolFormerModel", _picture()),
    ("FocalNetModel", _picture()),
    ("CvtModel", _picture()),
    ("LevitModel", _picture()),
    ("ViTModel", _picture()),
    ("BeitModel", _picture()),
    ("SwinModel", _picture()),
    ("CLIPVisionModel", _picture()),
    ("Dinov2Model", _picture()),
    ("SegformerForSemanticSegmentation", _picture(512)),
    ("UperNetForSemanticSegmentation", _picture(512)),
    ("DPTForDepthEstimation", _picture(384)),
    ("DepthAnythingForDepthEstimation", _picture(518)),
    ("ZoeDepthForDepthEstimation", _picture(384)),
    ("GLPNForDepthEstimation", _picture(480)),
    ("SamModel", _picture(1024, input_points=(1, 1, 2, 2))),
    ("Sam2Model", _picture(1024, input_points=(1, 1, 2, 2), input_labels=Ids((1, 1, 2)))),
    ("DetrForObjectDetection", _picture(800)),
    ("MaskFormerModel", _picture(384)),
    ("Mask2FormerModel", _picture(384)),
    ("SuperPointForKeypointDetection", _picture(480)),
    ("CLIPSegForImageSegmentation", _picture(352, input_ids=Ids((1, 16)))),
    # video
    ("VideoMAEModel", _video()),
    ("VivitModel", _video(32)),
    ("TimesformerModel", _video(8)),
    ("VJEPA2Model", {"pixel_values_videos": (1, 16, 3, 256, 256), "skip_predictor": True}),
)  # fmt: skip
#: Whose ways depend on numbers that they compute.
_WITH_DATA = ("VitsModel", "EncodecModel", "MimiModel", "DetrForObjectDetection", "SuperPointForKeypointDetection")


def built(name: str, settings: dict[str, Any]) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        kind = attribute(f"transformers:{name}")
        return kind(kind.config_class(**settings))

    return build


def models() -> Iterator[Model]:
    """All of them."""
    for name, inputs, *more in _ROWS:
        settings, reduced = (*more, {}, "")[:2] if len(more) != 1 else (more[0], "")
        device = CPU if name in _WITH_DATA else META
        yield Model(name, "transformers", built(name, settings), inputs, device, reduced)
