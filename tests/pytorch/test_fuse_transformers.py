"""Sequence models of transformers with fused blocks give what their own forwards give: without a cache, with one."""

import importlib
import inspect
import sys
import warnings

import pytest
import torch
from chained import drawn, image
from tolerances import FLOAT32_SUMS

from nkiconv.pytorch import convert

if sys.version_info < (3, 11):  # elsewhere the extra `dev` has it, and a missing one is a failure
    pytest.skip("transformers needs Python 3.11", allow_module_level=True)

_DECODER = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "layer_types": ["linear_attention"],
}  # fmt: skip
_DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_MAMBA = {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8, "chunk_size": 4}
_BAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4}
_EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
_KIMI = {"linear_num_heads": 2, "linear_head_dim": 8}
#: folder of the file, class of the module, settings of its config, the fused call of its prefill.
MIXERS = [
    ("lfm2", "Lfm2ShortConv", {"layer_types": ["conv"]}, "gated_short_conv"),
    ("lfm2_moe", "Lfm2MoeShortConv", {"layer_types": ["conv"]}, "gated_short_conv"),
    ("qwen3_next", "Qwen3NextGatedDeltaNet", {**_DELTA, **_EXPERTS}, "causal_conv1d_split"),
    ("kimi_linear", "KimiLinearDeltaAttention", _KIMI, "causal_conv1d_split"),
    ("mamba2", "Mamba2Mixer", _MAMBA, "causal_conv1d_split"),
    ("bamba", "BambaMixer", _BAMBA, "causal_conv1d_split"),
]


def close(found, expected):
    """Within fp32 sums in another order, in which some modules compute whatever x is."""
    return (found - expected).abs().max() <= FLOAT32_SUMS * expected.abs().max().clamp(min=1)


def told(report):
    return {block.name: str(block) if block.fused else block.reason for block in report.blocks}


def of(folder, name):
    file = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    return file, getattr(file, name)


@pytest.mark.cover(3)
@pytest.mark.parametrize(("folder", "name", "settings", "call"), MIXERS, ids=[one[0] for one in MIXERS])
def test_mixers(folder, name, settings, call, made):
    warnings.simplefilter("ignore")
    file, kind = of(folder, name)
    prefix = name.removesuffix("ShortConv").removesuffix("GatedDeltaNet").removesuffix("DeltaAttention")
    config = getattr(file, f"{prefix.removesuffix('Mixer')}Config")
    cache = importlib.import_module("transformers.cache_utils").DynamicCache
    given = {**_DECODER, **settings}
    if "layer_types" not in inspect.signature(config).parameters:  # Mamba's layers are all alike
        del given["layer_types"]
    made_of = config(**given)
    model = drawn(kind(made_of, 0)).eval()
    report = convert(model, fuse=True)
    with report.installation, torch.no_grad():
        assert told(report) == {"": call}
        x, mask = image(2, 9, 32) - 2, torch.ones(2, 9)
        mask[0, :3] = 0
        for more, calls in (({}, [call]), ({"attention_mask": mask}, [call])):
            made.clear()
            assert close(report.model(x, **more), model(x, **more))
            assert made == calls or (more and folder in ("mamba2", "bamba") and made == [])
        names = inspect.signature(kind.forward).parameters
        argument = next(one for one in names if one.startswith(("cache", "past")))
        own, theirs = cache(config=made_of), cache(config=made_of)
        for tokens in (9, 1, 1, 4):
            made.clear()
            x = image(2, tokens, 32, seed=tokens) - 2
            assert close(report.model(x, **{argument: own}), model(x, **{argument: theirs}))
            assert made == ([call] if tokens == 9 else [])
            states = (one.get_conv_state(0, state_idx=0) for one in (own, theirs))
            assert close(*states)
