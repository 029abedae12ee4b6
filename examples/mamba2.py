"""Mamba-2 (130m) of transformers with random weights, its causal convolutions by nkiconv.

nkiconv plan-model examples/mamba2.py:build_model --input input_ids=1x2048:int64 --dtype bf16

Needs `pip install transformers`.
"""

from torch import nn

from nkiconv import pytorch as nkiconv_torch


def build_model(layers: int = 24) -> nn.Module:
    """The model. Its mixers look for causal-conv1d when transformers imports them, and find nkiconv."""
    nkiconv_torch.install_causal_conv1d()
    from transformers import Mamba2Config, Mamba2Model

    config = Mamba2Config(
        hidden_size=768,
        num_hidden_layers=layers,
        num_heads=24,
        head_dim=64,
        state_size=128,
        n_groups=1,
    )
    made: nn.Module = Mamba2Model(config)
    return made
