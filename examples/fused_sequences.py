"""Convolution stages of models of sequences, fused and apart, modelled, bf16, two cores.

    python examples/fused_sequences.py
    python examples/fused_sequences.py --quick    # default plans instead of a search

Modules have the forwards of transformers' and torchaudio's, without caches, projections only where the stage reads what
they give, and no recurrence or scan. A pass that nkiconv has no kernel for, such as a gate or a copy with tokens first,
counts as a copy of its bytes, the least that it can take. Bytes are those of each launch read and written once.
Projections, the same on both sides, are left out.
"""

import argparse
from dataclasses import dataclass

import torch
from torch import nn

from nkiconv.planner.request import least_bytes
from nkiconv.pytorch import causal_conv1d_fn, convert, plan_model
from nkiconv.tools.suites import chains

BF16 = 2


class ShortConv(nn.Module):
    """LFM2's."""

    def __init__(self, hidden, taps=3):
        super().__init__()
        self.conv = nn.Conv1d(hidden, hidden, taps, groups=hidden, padding=taps - 1, bias=False)
        self.in_proj = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, hidden):
        B, C, x = self.in_proj(hidden).transpose(-1, -2).chunk(3, dim=-2)
        y = C * causal_conv1d_fn(B * x, self.conv.weight.squeeze(1), self.conv.bias)
        return self.out_proj(y.transpose(-1, -2).contiguous())


class Delta(nn.Module):
    """The stage of Qwen3-Next, Kimi Linear and Mamba2: q, k and v, or x, B and C, with tokens first."""

    def __init__(self, hidden, sizes, taps=4, bias=False, before=0):
        super().__init__()
        channels = sum(sizes)
        self.in_proj = nn.Linear(hidden, before + channels, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, taps, groups=channels, padding=taps - 1, bias=bias)
        self.sizes, self.before = sizes, before

    def forward(self, hidden):
        mixed = self.in_proj(hidden)[..., self.before :].transpose(1, 2)
        weight, bias = self.conv1d.weight.squeeze(1), self.conv1d.bias
        mixed = causal_conv1d_fn(mixed, weight, bias, activation="silu")
        return torch.split(mixed.transpose(1, 2), self.sizes, dim=-1)


class ConformerModule(nn.Module):
    """Conformer's convolution module, as transformers' wav2vec2-conformer has it."""

    def __init__(self, hidden, taps=31):
        super().__init__()
        self.layer_norm = nn.LayerNorm(hidden)
        self.pointwise_conv1 = nn.Conv1d(hidden, 2 * hidden, 1, bias=False)
        self.glu = nn.GLU(dim=1)
        self.depthwise_conv = nn.Conv1d(hidden, hidden, taps, padding=taps // 2, groups=hidden, bias=False)
        self.batch_norm, self.activation = nn.BatchNorm1d(hidden), nn.SiLU()
        self.pointwise_conv2 = nn.Conv1d(hidden, hidden, 1, bias=False)

    def forward(self, hidden):
        x = self.glu(self.pointwise_conv1(self.layer_norm(hidden).transpose(1, 2)))
        x = self.activation(self.batch_norm(self.depthwise_conv(x)))
        return self.pointwise_conv2(x).transpose(1, 2)


@dataclass
class Stage:
    """A module, its rows [N, tokens, hidden], and the passes around its convolution, (tensors read, written) of its
    channels, apart and fused."""

    name: str
    module: object
    shape: tuple[int, int, int]
    channels: int
    apart: tuple[tuple[int, int], ...]
    fused: tuple[tuple[int, int], ...] = ()


#: Channels in front of a convolution, and those behind it, tokens first: a transposing copy each.
_COPIES = ((1, 1), (1, 1))


def stages():
    """All of them, without data."""
    for tokens in (2048, 4096):
        yield Stage("Qwen3-Next", lambda: Delta(2048, [2048, 2048, 4096]), (1, tokens, 2048), 8192, _COPIES)
        yield Stage("Kimi Linear", lambda: Delta(2304, [4096] * 3), (1, tokens, 2304), 12288, _COPIES)
    mamba2 = lambda: Delta(2560, [5120, 128, 128], bias=True, before=5120)  # noqa: E731
    yield Stage("Mamba2", mamba2, (1, 4096, 2560), 5376, _COPIES)
    gates = ((2, 1), *_COPIES, (2, 1))
    yield Stage("LFM2", lambda: ShortConv(2048), (1, 4096, 2048), 2048, gates)
    yield Stage("Conformer", lambda: ConformerModule(512), (8, 1500, 512), 512, ((2, 1), (1, 1)))


def measured(stage, fuse, quick=False):
    """(modelled us, bytes, launches) of the convolution of a stage and the passes around it."""
    with torch.device("meta"):
        model = stage.module().to(torch.bfloat16).eval()
    x = torch.empty(stage.shape, dtype=torch.bfloat16, device="meta")
    rows = [row for row in plan_model(model, (x,), fuse=fuse, quick=quick).rows if row.plan.problem.groups > 1]
    elements = stage.shape[0] * stage.shape[1] * stage.channels
    passes = stage.fused if fuse else stage.apart
    us = sum(row.us for row in rows)
    us += sum(chains.passed("pass", elements).us * (read + written) / 2 for read, written in passes)
    moved = sum(row.calls * least_bytes(row.plan.problem, row.plan.asked) for row in rows)
    moved += sum(BF16 * elements * (read + written) for read, written in passes)
    return us, moved, sum(row.calls for row in rows) + len(passes)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print("| stage | tokens | calls | apart, us | fused, us | apart over fused | apart, MB | fused, MB | launches |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|")
    for stage in stages():
        with torch.device("meta"):
            block = convert(stage.module().eval(), fuse=True).blocks[0]
        (before, moved, count), (after, less, few) = (measured(stage, fuse, quick) for fuse in (False, True))
        tokens = f"{stage.shape[0]} x {stage.shape[1]}"
        print(
            f"| {stage.name} | {tokens} | `{block}` | {before:,.1f} | {after:,.1f} | {before / after:.2f} "
            f"| {moved / 1e6:,.1f} | {less / 1e6:,.1f} | {count} to {few} |"
        )


if __name__ == "__main__":
    main()
