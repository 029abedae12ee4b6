"""Models of the zoo with few channels and layers, on cpu, small enough for the simulator to run all their kernels."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from zoo import CPU, Ids, Model, attribute, made_by

_KL = {"layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4}
_CODEC = {"num_filters": 4, "codebook_size": 16, "codebook_dim": 8, "upsampling_ratios": [2, 2]}
_HIFIGAN = {"upsample_initial_channel": 16, "resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3]] * 2}
#: Class of diffusers, settings, inputs.
_DIFFUSERS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("AutoencoderKLWan",
     {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2], "num_res_blocks": 1, "temperal_downsample": [True]},
     {"sample": (1, 3, 5, 16, 16)}),
    ("AutoencoderKLHunyuanVideo", {**_KL, "block_out_channels": (8, 8, 16, 16)}, {"sample": (1, 3, 5, 16, 16)}),
    ("AutoencoderKLLTXVideo",
     {"block_out_channels": (8, 16), "down_block_types": ("LTXVideoDownBlock3D",) * 2, "latent_channels": 8,
      "decoder_block_out_channels": (8, 16), "layers_per_block": (1, 1, 1), "decoder_layers_per_block": (1, 1, 1),
      "spatio_temporal_scaling": (True, False), "decoder_spatio_temporal_scaling": (True, False),
      "decoder_inject_noise": (False,) * 3, "downsample_type": ("conv",) * 2, "upsample_residual": (False,) * 2,
      "upsample_factor": (1, 1)},
     {"sample": (1, 3, 5, 32, 32)}),
    ("AutoencoderKLCogVideoX", {**_KL, "block_out_channels": (8, 8, 8, 16)}, {"sample": (1, 3, 5, 16, 16)}),
    ("AutoencoderKLTemporalDecoder", {"block_out_channels": (32, 32), "down_block_types": ("DownEncoderBlock2D",) * 2},
     {"sample": (2, 3, 16, 16), "num_frames": 2}),
    ("UNet3DConditionModel",
     {"block_out_channels": (8, 16), "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"), "layers_per_block": 1,
      "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"), "norm_num_groups": 4, "cross_attention_dim": 8,
      "attention_head_dim": 4},
     {"sample": (1, 4, 3, 8, 8), "timestep": 7, "encoder_hidden_states": (1, 5, 8)}),
)  # fmt: skip
#: Class of transformers, its config's, settings, inputs.
_TRANSFORMERS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("EncodecModel", "EncodecConfig", {**_CODEC, "hidden_size": 8, "num_lstm_layers": 1},
     {"input_values": (1, 1, 100)}),
    ("MimiModel", "MimiConfig",
     {**_CODEC, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
      "head_dim": 8, "intermediate_size": 16, "vector_quantization_hidden_dimension": 8, "num_quantizers": 2,
      "upsample_groups": 16},
     {"input_values": (1, 1, 400)}),
    ("DacModel", "DacConfig",
     {"encoder_hidden_size": 4, "decoder_hidden_size": 16, "downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2],
      "hidden_size": 16, "n_codebooks": 2, "codebook_size": 16, "codebook_dim": 4},
     {"input_values": (1, 1, 64)}),
    ("SpeechT5HifiGan", "SpeechT5HifiGanConfig",
     {**_HIFIGAN, "model_in_dim": 8, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4]},
     {"spectrogram": (1, 6, 8)}),
    ("VitsModel", "VitsConfig",
     {**_HIFIGAN, "hidden_size": 16, "num_hidden_layers": 1, "ffn_dim": 16, "flow_size": 16, "spectrogram_bins": 9,
      "duration_predictor_filter_channels": 16, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4],
      "prior_encoder_num_flows": 1, "prior_encoder_num_wavenet_layers": 2, "posterior_encoder_num_wavenet_layers": 2},
     {"input_ids": Ids((1, 5))}),
    ("models.sam.modeling_sam:SamMaskDecoder", "SamMaskDecoderConfig",
     {"hidden_size": 32, "num_attention_heads": 2, "mlp_dim": 16, "iou_head_hidden_dim": 16, "num_hidden_layers": 1},
     {"image_embeddings": (1, 32, 6, 6), "image_positional_embeddings": (1, 32, 6, 6),
      "sparse_prompt_embeddings": (1, 1, 2, 32), "dense_prompt_embeddings": (1, 32, 6, 6), "multimask_output": True}),
)  # fmt: skip


def _transformers(kind: str, config: str, settings: dict[str, Any]) -> Callable[[], torch.nn.Module]:
    path = f"transformers.{kind}" if ":" in kind else f"transformers:{kind}"
    return lambda: attribute(path)(attribute(f"transformers:{config}")(**settings))


def models() -> Iterator[Model]:
    """All of them."""
    for kind, settings, inputs in _DIFFUSERS:
        yield Model(kind, "diffusers", made_by(f"diffusers:{kind}", **settings), inputs, CPU)
    for kind, config, settings, inputs in _TRANSFORMERS:
        name = kind.rpartition(":")[2]
        yield Model(name, "transformers", _transformers(kind, config, settings), inputs, CPU)
