"""What the convolutions of Wan's video decoder would take on trn2, stage by stage, modelled; nothing is downloaded.

Wan 2.1 and the 14B models of Wan 2.2 share one VAE, the 5B model has another. Both decode one latent frame at a time,
with the last frames of each convolution's input kept for the next. Needs `pip install diffusers`.

    python examples/wan_vae.py                      # 480p and 720p, 21 latent frames
    python examples/wan_vae.py --vae 5b --size 720p
"""

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from torch import nn

from nkiconv.pytorch import plan_model
from nkiconv.pytorch.models.model_plan import ModelPlan

#: By name: the arguments of AutoencoderKLWan, and pixels of a latent.
VAES: dict[str, tuple[dict[str, Any], int]] = {
    "14b": ({}, 8),
    "5b": (
        {
            "base_dim": 160,
            "decoder_base_dim": 256,
            "z_dim": 48,
            "is_residual": True,
            "in_channels": 12,
            "out_channels": 12,
            "patch_size": 2,
            "scale_factor_spatial": 16,
            "latents_mean": [0.0] * 48,
            "latents_std": [1.0] * 48,
        },
        16,
    ),
}
#: Rows and columns of a frame.
SIZES = {"480p": {"14b": (480, 832), "5b": (480, 832)}, "720p": {"14b": (720, 1280), "5b": (704, 1280)}}
#: Stages, by how the names of their layers begin.
STAGES = {
    "in and middle": ("post_quant_conv", "decoder.conv_in", "decoder.mid_block"),
    **{f"up {index}": (f"decoder.up_blocks.{index}",) for index in range(4)},
    "out": ("decoder.conv_out",),
}


class Decoder(nn.Module):
    """The decoder of a VAE over latent frames [1, C, frames, H, W], one after the other, as its `decode` runs it."""

    def __init__(self, vae: AutoencoderKLWan) -> None:
        super().__init__()
        self.post_quant_conv, self.decoder = vae.post_quant_conv, vae.decoder

    def forward(self, z: torch.Tensor, kept: list[Any] | None = None) -> torch.Tensor:
        kept = [None] * len(list(self.modules())) if kept is None else kept
        x, frames = self.post_quant_conv(z), []
        for index in range(z.shape[2]):
            part = x[:, :, index : index + 1]
            frames.append(self.decoder(part, feat_cache=kept, feat_idx=[0], first_chunk=index == 0))
        return torch.cat(frames, 2)


class Kept(list):
    """What the layers of a decoder keep for the next latent frame, and in which stage each was."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__([None] * len(list(decoder.modules())))
        self.stage, self.stages = "", {}
        modules = dict(decoder.named_modules())
        for stage, starts in STAGES.items():
            for start in starts:
                if start in modules:
                    modules[start].register_forward_pre_hook(lambda *_, stage=stage: setattr(self, "stage", stage))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        self.stages[index] = self.stage


#: Latent frames, whose graphs differ.
KINDS = ("first", "second", "later")


@dataclass
class Stage:
    """Modelled us and the hardware's limit in us of all latent frames; instructions of the kernels of the first, of the
    second and of a later one."""

    us: float = 0.0
    limit_us: float = 0.0
    first: int = 0
    second: int = 0
    later: int = 0
    cache_bytes: int = 0


def stage_of(layer: str) -> str:
    """The stage of a layer."""
    return next((stage for stage, starts in STAGES.items() if layer.startswith(starts)), "other")


def add(stages: dict[str, Stage], found: ModelPlan, frames: float, kind: str) -> None:
    """Add each convolution of a run to its stage: us as often as `frames` says, instructions once to `kind`."""
    for row in found.rows:
        if row.plan is None:
            raise SystemExit(f"{row.layers[0]}: has no plan: {row.reason}")
        for layer in row.layers:
            one, calls = stages[stage_of(layer)], row.calls / len(row.layers)
            one.us += frames * calls * row.plan.modelled_us
            one.limit_us += frames * calls * row.plan.roofline_us
            setattr(one, kind, getattr(one, kind) + round(calls * row.plan.instructions))


def stages_of(vae: str, size: str, frames: int, lnc: int) -> dict[str, Stage]:
    """The stages of a decode of so many latent frames: the first one makes one frame, each other one four.

    The second has one frame in front of it, the first's, later ones two. What a run has beside one of a latent frame
    less is its last one's.
    """
    config, pixels = VAES[vae]
    with torch.device("meta"):
        model = AutoencoderKLWan(**config)
    decoder = Decoder(model).to(torch.bfloat16)
    H, W = (extent // pixels for extent in SIZES[size][vae])
    stages = {name: Stage() for name in (*STAGES, "other")}
    runs = [
        plan_model(
            decoder, [torch.zeros(1, model.config.z_dim, count, H, W, dtype=torch.bfloat16, device="meta")], lnc=lnc
        )
        for count in range(1, min(3, frames) + 1)
    ]  # fmt: skip
    beyond = frames - len(runs)
    times = [0, 0, -beyond, 1 + beyond][-len(runs) :]
    for run, often, kind in zip(runs, times, KINDS, strict=False):
        add(stages, run, often, kind)
    for stage in stages.values():
        for kind, before in [*zip(KINDS[1:], KINDS, strict=False)][: len(runs) - 1][::-1]:
            setattr(stage, kind, getattr(stage, kind) - getattr(stage, before))
    kept = Kept(decoder)
    decoder(torch.zeros(1, model.config.z_dim, 3, H, W, dtype=torch.bfloat16, device="meta"), kept)
    for index, stage in kept.stages.items():
        stages[stage].cache_bytes += kept[index].nbytes
    return {name: stage for name, stage in stages.items() if stage.us}


def show(vae: str, size: str, frames: int, lnc: int) -> None:
    """Print the table of a decode."""
    stages = stages_of(vae, size, frames, lnc)
    total = Stage(*(sum(getattr(one, name) for one in stages.values()) for name in Stage.__dataclass_fields__))
    print(f"\nWan VAE ({vae}), {size}, {frames} latent frames, {lnc} cores, bf16: modelled\n")
    print("| stage | us | share | of the limit | instructions: first frame | second | a later frame | cache MB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, one in [*stages.items(), ("all", total)]:
        print(
            f"| {name} | {one.us:,.0f} | {one.us / total.us:.1%} | {one.limit_us / one.us:.1%} | {one.first:,} | "
            f"{one.second:,} | {one.later:,} | {one.cache_bytes / 1e6:,.1f} |"
        )
    once = sum(getattr(total, kind) for kind in KINDS)
    print(f"\na graph for the first frame, the second and each later one: {once:,} instructions to compile")
    print(f"all frames in one graph: {once + max(0, frames - 3) * total.later:,}")


def main() -> None:
    """Print the tables that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vae", choices=VAES, action="append")
    parser.add_argument("--size", choices=SIZES, action="append")
    parser.add_argument("--frames", type=int, default=21)
    parser.add_argument("--lnc", type=int, default=2)
    given = parser.parse_args()
    for vae in given.vae or ["14b"]:
        for size in given.size or SIZES:
            show(vae, size, given.frames, given.lnc)


if __name__ == "__main__":
    main()
