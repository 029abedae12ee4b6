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


#: Models, their inputs, and settings of their config with what these reduce.
_ROWS: tuple[tuple[Any, ...], ...] = (
    # sequence models
    ("MambaModel Mamba2Model FalconMambaModel Zamba2Model FalconH1Model", _TOKENS),
    ("JambaModel", _TOKENS, {"num_hidden_layers": 8, **_EXPERTS}, "8 of 32 layers"),
    ("BambaModel", _TOKENS, {"attn_layer_indices": [9, 18, 27]}),
    ("Qwen3NextModel", _TOKENS, {"num_hidden_layers": 4, **_EXPERTS}, "4 of 48 layers"),
    ("Lfm2Model", _TOKENS, {"num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8, 10, 12, 14]}),
    # speech and sound
    ("Wav2Vec2Model Wav2Vec2ConformerModel HubertModel SEWModel WavLMModel Data2VecAudioModel", _SECONDS),
    ("WhisperModel", {"input_features": (1, 80, 3000), "decoder_input_ids": Ids((1, 8))}),
    ("MoonshineModel SpeechT5ForSpeechToText", {**_SECONDS, "decoder_input_ids": Ids((1, 8))}),
    ("SpeechT5ForTextToSpeech", {"input_ids": Ids((1, 40)), "decoder_input_values": (1, 100, 80),
                                 "speaker_embeddings": (1, 512)}),
    ("SpeechT5HifiGan", {"spectrogram": (1, 200, 80)}),
    ("UnivNetModel", {"input_features": (1, 200, 100), "noise_sequence": (1, 200, 64)}),
    ("VitsModel", {"input_ids": Ids((1, 40))}),
    ("EncodecModel MimiModel", {"input_values": (1, 1, 24_000)}),
    ("DacModel", {"input_values": (1, 1, 44_032)}),
    # pictures
    ("ResNetModel RegNetModel BitModel ConvNextModel ConvNextV2Model MobileNetV1Model MobileNetV2Model PoolFormerModel "
     "FocalNetModel CvtModel LevitModel ViTModel BeitModel SwinModel CLIPVisionModel Dinov2Model", _picture()),
    ("MobileViTModel", _picture(256)),
    ("EfficientNetModel", _picture(600)),
    ("SegformerForSemanticSegmentation UperNetForSemanticSegmentation", _picture(512)),
    ("DPTForDepthEstimation ZoeDepthForDepthEstimation MaskFormerModel Mask2FormerModel", _picture(384)),
    ("DepthAnythingForDepthEstimation", _picture(518)),
    ("GLPNForDepthEstimation SuperPointForKeypointDetection", _picture(480)),
    ("SamModel", _picture(1024, input_points=(1, 1, 2, 2))),
    ("Sam2Model", _picture(1024, input_points=(1, 1, 2, 2), input_labels=Ids((1, 1, 2)))),
    ("DetrForObjectDetection", _picture(800)),
    ("CLIPSegForImageSegmentation", _picture(352, input_ids=Ids((1, 16)))),
    # video
    *((name, {"pixel_values": (1, frames, 3, 224, 224)})
      for name, frames in (("VideoMAEModel", 16), ("VivitModel", 32), ("TimesformerModel", 8))),
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
    for names, inputs, *more in _ROWS:
        settings, reduced = (*more, *({}, "")[len(more) :])
        for name in names.split():
            device = CPU if name in _WITH_DATA else META
            yield Model(name, "transformers", built(name, settings), inputs, device, reduced)
