"""Models of diffusers; where a class's defaults are a toy's, by the config of the model that it is known for."""

from collections.abc import Iterator
from typing import Any

from zoo import Model, made_by

_DOWN, _UP = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
_WIDE = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2}
_KL = {**_WIDE, "down_block_types": _DOWN, "up_block_types": _UP}
_FLUX = {**_KL, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}
_SVD = {**_WIDE, "down_block_types": _DOWN}
_SDXL = {
    "sample_size": 128,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}


def _clip(frames: int) -> dict[str, Any]:
    """480p."""
    return {"sample": (1, 3, frames, 480, 832)}


def _noisy(sample: tuple[int, ...], words: int, width: int, name: str = "sample", **more: Any) -> dict[str, Any]:
    return {name: sample, "timestep": (1,), "encoder_hidden_states": (1, words, width), **more}


_XL_TEXT = {"added_cond_kwargs": {"text_embeds": (1, 1280), "time_ids": (1, 6)}}
#: Name, class, settings, inputs.
_ROWS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("SD 1.5 UNet", "UNet2DConditionModel", {"cross_attention_dim": 768}, _noisy((1, 4, 64, 64), 77, 768)),
    ("SDXL UNet", "UNet2DConditionModel", _SDXL, _noisy((1, 4, 128, 128), 77, 2048, **_XL_TEXT)),
    ("SD 1.5 ControlNet", "ControlNetModel", {"cross_attention_dim": 768},
     _noisy((1, 4, 64, 64), 77, 768, controlnet_cond=(1, 3, 512, 512))),
    ("SD VAE", "AutoencoderKL", _KL, {"sample": (1, 3, 512, 512)}),
    ("Flux VAE", "AutoencoderKL", _FLUX, {"sample": (1, 3, 1024, 1024)}),
    ("TAESD", "AutoencoderTiny", {}, {"sample": (1, 3, 512, 512)}),
    ("DC-AE", "AutoencoderDC", {}, {"sample": (1, 3, 512, 512)}),
    ("Stable Audio VAE", "AutoencoderOobleck", {}, {"sample": (1, 2, 2048 * 32)}),
    ("Wan 2.1 VAE", "AutoencoderKLWan", {}, _clip(5)),
    ("Qwen-Image VAE", "AutoencoderKLQwenImage", {}, _clip(1)),
    ("HunyuanVideo VAE", "AutoencoderKLHunyuanVideo", {}, _clip(5)),
    ("LTX-Video VAE", "AutoencoderKLLTXVideo", {}, _clip(9)),
    ("CogVideoX VAE", "AutoencoderKLCogVideoX", {}, {"sample": (1, 3, 5, 480, 720)}),
    ("Mochi VAE", "AutoencoderKLMochi", {}, _clip(7)),
    ("Cosmos VAE", "AutoencoderKLCosmos", {}, _clip(9)),
    ("EasyAnimate VAE", "AutoencoderKLMagvit", {}, {"sample": (1, 3, 9, 384, 672)}),
    ("SVD VAE", "AutoencoderKLTemporalDecoder", _SVD, {"sample": (5, 3, 576, 1024), "num_frames": 5}),
    ("SVD UNet", "UNetSpatioTemporalConditionModel", {}, _noisy((1, 14, 8, 72, 128), 1, 1024, added_time_ids=(1, 3))),
    ("ModelScope UNet", "UNet3DConditionModel", {}, _noisy((1, 4, 16, 32, 32), 77, 1024)),
    ("Wan 2.1 transformer", "WanTransformer3DModel", {}, _noisy((1, 16, 2, 60, 104), 512, 4096, "hidden_states")),
    ("CogVideoX transformer", "CogVideoXTransformer3DModel", {},
     _noisy((1, 2, 16, 60, 90), 226, 4096, "hidden_states")),
    ("HunyuanVideo transformer", "HunyuanVideoTransformer3DModel", {},
     _noisy((1, 16, 2, 60, 104), 256, 4096, "hidden_states", encoder_attention_mask=(1, 256),
            pooled_projections=(1, 768), guidance=(1,))),
    ("SD 3 transformer", "SD3Transformer2DModel", {},
     _noisy((1, 16, 128, 128), 154, 4096, "hidden_states", pooled_projections=(1, 2048))),
    ("Kandinsky VQ", "VQModel", _KL, {"sample": (1, 3, 256, 256)}),
)  # fmt: skip


def models() -> Iterator[Model]:
    """All of them."""
    for name, kind, settings, inputs in _ROWS:
        yield Model(name, "diffusers", made_by(f"diffusers:{kind}", **settings), inputs)
