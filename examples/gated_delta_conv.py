"""The convolution stages of Qwen3-Next, Kimi Linear and Mamba2 as one kernel and as two, modelled, bf16, two cores.

    python examples/gated_delta_conv.py              # 512, 2,048 and 4,096 tokens
    python examples/gated_delta_conv.py 8192
    nkiconv profile examples/gated_delta_conv.py:causal_conv1d_split_heads --input 1x8192x2048:bf16 \\
        --input 8192x4:bf16 --arg "splits=((16, 128, True), (16, 128, True), (32, 128, False))"

A decode step of 64 sequences:

    nkiconv profile examples/gated_delta_conv.py:causal_conv1d_split_step --input 64x8192x1:bf16 \\
        --input 64x8192x3:bf16 --input 8192x4:bf16 --arg "splits=((16, 128, True), (16, 128, True), (32, 128, False))"

The two: the fastest plan of `depthwise_conv1d` with SiLU, and a pass that reads its result, transposes, splits and
normalises it: the kernel itself, with one tap of 1 and no activation.
"""

import argparse

import nkiconv
from nkiconv import causal_conv1d_split_heads, causal_conv1d_split_step

#: (heads, dim, normalised) of each part, by model: q, k, v; q, k, v; x, B, C of Mamba2-2.7B.
STAGES = {
    "Qwen3-Next-80B": ((16, 128, True), (16, 128, True), (32, 128, False)),
    "Kimi-Linear-48B": ((32, 128, True), (32, 128, True), (32, 128, False)),
    "Mamba2-2.7B": ((80, 64, False), (1, 128, False), (1, 128, False)),
}
TAPS = 4

__all__ = ["causal_conv1d_split_heads", "causal_conv1d_split_step"]


def one_kernel(splits, tokens, taps=TAPS, activation="silu"):
    """Modelled us of the kernel."""
    channels = sum(heads * dim for heads, dim, _ in splits)
    x, w = nkiconv.spec((1, channels, tokens), "bf16"), nkiconv.spec((channels, taps), "bf16")
    return nkiconv.profile(causal_conv1d_split_heads[2])(x, w, splits, activation=activation).modelled_us


def convolution(splits, tokens):
    """Modelled us of the convolution and SiLU alone."""
    channels = sum(heads * dim for heads, dim, _ in splits)
    problem = nkiconv.ConvProblem(
        N=1, C=channels, W=tokens, S=TAPS, groups=channels, padding=((0, 0), (TAPS - 1, 0)), dtype="bf16"
    )
    return nkiconv.plan(problem, activation="silu").modelled_us


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokens", type=int, nargs="*", default=[512, 2048, 4096])
    given = parser.parse_args()
    print(f"{'':16s}{'tokens':>8s}{'one, us':>10s}{'convolution':>13s}{'pass':>8s}{'two over one':>14s}")
    for name, splits in STAGES.items():
        for tokens in given.tokens:
            one, two = one_kernel(splits, tokens), (convolution(splits, tokens), one_kernel(splits, tokens, 1, None))
            print(f"{name:16s}{tokens:8,d}{one:10.1f}{two[0]:13.1f}{two[1]:8.1f}{sum(two) / one:13.2f}x")


if __name__ == "__main__":
    main()
