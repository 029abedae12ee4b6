"""Models of transformers with few layers and random weights, without nkiconv and with it.

Nothing is downloaded: a model is made from its config. Needs `pip install transformers`.
"""

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

from nkiconv import pytorch as nkiconv_torch

_DECODER = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
_HYBRID = {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4}
_JAMBA = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
}
_ZAMBA2 = {
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "layers_block_type": ["mamba", "hybrid"],
    "num_mem_blocks": 1,
    "n_mamba_heads": 4,
    "mamba_headdim": 16,
    "mamba_d_state": 8,
    "mamba_ngroups": 1,
    "chunk_size": 4,
}
_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
_DELTA = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_ENCODER = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
_SPEECH = {
    **_ENCODER,
    "num_feat_extract_layers": 3,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


@dataclasses.dataclass(frozen=True)
class Model:
    """One model.

    folder: of its file in transformers.models. name: of its class. config: of its config's class.
    settings: of its config. argument, shape: of its input, which is fp32.
    cache: the argument that takes a decoder's cache; decoders call causal_conv1d_fn and causal_conv1d_update, which
        others have modules for.
    idle: how many convolutions it has and never calls.
    """

    folder: str
    name: str
    config: str
    settings: dict[str, Any]
    argument: str
    shape: tuple[int, ...]
    cache: str | None = None
    idle: int = 0

    @property
    def file(self) -> str:
        """The module that it is defined in."""
        return f"transformers.models.{self.folder}.modeling_{self.folder}"

    def build(self, modeling: ModuleType | None = None) -> nn.Module:
        """The model in eval mode, with the same weights each time; modeling: `file`, imported."""
        import transformers

        modeling = importlib.import_module(self.file) if modeling is None else modeling
        torch.manual_seed(0)
        made: nn.Module = getattr(modeling, self.name)(getattr(transformers, self.config)(**self.settings))
        return made.eval()

    def input(self) -> torch.Tensor:
        """An input, the same each time."""
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(0))

    def with_nkiconv(self) -> tuple[nn.Module, int]:
        """(the same model by nkiconv, how many convolutions it calls)."""
        if self.cache is not None:
            with imported_with_nkiconv(self) as modeling:
                made = self.build(modeling)
            return made, sum(isinstance(one, nn.Conv1d) for one in made.modules())
        report = nkiconv_torch.convert(self.build())
        return report.model, sum(entry.swapped for entry in report.entries) - self.idle

    def decode(self, made: nn.Module, x: torch.Tensor, steps: int) -> torch.Tensor:
        """The last hidden state of a decoder at the last `steps` tokens of x, one by one after those before."""
        assert self.cache is not None
        cache, found = None, []
        prefill = x.shape[1] - steps
        for piece in (x[:, :prefill], *x[:, prefill:].split(1, dim=1)):
            output = made(**{self.argument: piece, self.cache: cache, "use_cache": True})
            cache = getattr(output, self.cache)
            found.append(output.last_hidden_state)
        return torch.cat(found[1:], dim=1)

    def run(self, made: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """The last hidden state of input x."""
        found: torch.Tensor = made(**{self.argument: x}).last_hidden_state
        return found


MODELS = {
    "mamba": Model(
        "mamba",
        "MambaModel",
        "MambaConfig",
        {**_DECODER, "state_size": 4},
        "inputs_embeds",
        (2, 7, 32),
        cache="cache_params",
    ),
    "mamba2": Model(
        "mamba2",
        "Mamba2Model",
        "Mamba2Config",
        {**_DECODER, "num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8, "chunk_size": 4},
        "inputs_embeds",
        (2, 7, 32),
        cache="cache_params",
    ),
    "falcon-mamba": Model(
        "falcon_mamba",
        "FalconMambaModel",
        "FalconMambaConfig",
        {**_DECODER, "state_size": 4},
        "inputs_embeds",
        (2, 7, 32),
        cache="cache_params",
    ),
    "jamba": Model(
        "jamba",
        "JambaModel",
        "JambaConfig",
        {**_DECODER, **_HYBRID, **_JAMBA, "mamba_d_state": 4},
        "inputs_embeds",
        (2, 7, 32),
        cache="past_key_values",
    ),
    "bamba": Model(
        "bamba",
        "BambaModel",
        "BambaConfig",
        {**_DECODER, **_HYBRID, **_MAMBA2, "attn_layer_indices": [1], "mamba_d_head": 16},
        "inputs_embeds",
        (2, 7, 32),
        cache="past_key_values",
    ),
    "zamba2": Model(
        "zamba2",
        "Zamba2Model",
        "Zamba2Config",
        {**_DECODER, **_ZAMBA2},
        "inputs_embeds",
        (2, 7, 32),
        cache="past_key_values",
    ),
    "falcon-h1": Model(
        "falcon_h1",
        "FalconH1Model",
        "FalconH1Config",
        {**_DECODER, **_HYBRID, **_MAMBA2, "mamba_d_ssm": 32, "mamba_d_head": 8},
        "inputs_embeds",
        (2, 7, 32),
        cache="past_key_values",
    ),
    "qwen3-next": Model(
        "qwen3_next",
        "Qwen3NextModel",
        "Qwen3NextConfig",
        {
            **_DECODER,
            **_EXPERTS,
            **_HEADS,
            **_DELTA,
            "intermediate_size": 32,
            "shared_expert_intermediate_size": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
        "inputs_embeds",
        (2, 7, 32),
        cache="past_key_values",
    ),
    "wav2vec2": Model("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", _SPEECH, "input_values", (2, 400)),
    "wav2vec2-conformer": Model(
        "wav2vec2_conformer",
        "Wav2Vec2ConformerModel",
        "Wav2Vec2ConformerConfig",
        {**_SPEECH, "conv_depthwise_kernel_size": 7},
        "input_values",
        (2, 400),
        idle=1,
    ),
    "whisper": Model(
        "whisper",
        "WhisperEncoder",
        "WhisperConfig",
        {
            "num_mel_bins": 16,
            "d_model": 32,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "max_source_positions": 30,
        },
        "input_features",
        (2, 16, 60),
    ),
    "resnet": Model(
        "resnet",
        "ResNetModel",
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        "pixel_values",
        (2, 3, 32, 32),
    ),
    "convnext": Model(
        "convnext",
        "ConvNextModel",
        "ConvNextConfig",
        {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_scale_init_value": 1.0},
        "pixel_values",
        (2, 3, 32, 32),
    ),
    "vit": Model(
        "vit", "ViTModel", "ViTConfig", {**_ENCODER, "image_size": 32, "patch_size": 8}, "pixel_values", (2, 3, 32, 32)
    ),
}


@contextmanager
def imported_with_nkiconv(model: Model) -> Iterator[ModuleType]:
    """The file of a decoder, imported once more while `import causal_conv1d` finds nkiconv.

    A program would call install_causal_conv1d() before it imports any model. Here both kinds are wanted, so the file
    that transformers knows is put back.
    """
    importlib.import_module(model.file)
    package, _, name = model.file.rpartition(".")
    early = {name: one for name, one in sys.modules.items() if _looked_for_it(name, one)}
    for file in early:
        del sys.modules[file]
    try:
        with nkiconv_torch.install_causal_conv1d():
            yield importlib.import_module(model.file)
    finally:
        sys.modules.update(early)
        setattr(sys.modules[package], name, early[model.file])


def _looked_for_it(name: str, module: ModuleType) -> bool:
    return name.startswith("transformers.models.") and "causal_conv1d_fn" in vars(module)
