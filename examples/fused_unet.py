"""A diffusion UNet's convolutions with norms, activations, time embeddings and sums in them and apart, modelled, bf16.

    pip install diffusers
    python examples/fused_unet.py               # SDXL's: latents of 128 x 128, two images
    python examples/fused_unet.py --model sd15  # Stable Diffusion 1.5's: 64 x 64

Priced as in `fused_vae`: a pass that nkiconv has no kernel for counts as a copy of its bytes. Attention, and the norms
in front of it, are the same in both and left out.
"""

import argparse

import torch
from fused_vae import input_shapes, passes, statistics_us

from nkiconv.pytorch import convert, plan_model

ATTENTION = {
    "sdxl": {"attention_head_dim": (5, 10, 20), "cross_attention_dim": 2048, "use_linear_projection": True},
    "sd15": {"attention_head_dim": 8, "cross_attention_dim": 768},
}
BLOCKS = {
    "sdxl": {
        "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    },
    "sd15": {"block_out_channels": (320, 640, 1280, 1280)},
}
LATENTS = {"sdxl": 128, "sd15": 64}
IMAGES = 2


class Denoiser(torch.nn.Module):
    """A UNet without data whose forward gives a tensor."""

    def __init__(self, name):
        from diffusers import UNet2DConditionModel

        super().__init__()
        with torch.device("meta"):
            self.unet = UNet2DConditionModel(**BLOCKS[name], **ATTENTION[name]).to(torch.bfloat16)

    def forward(self, latents, times, states):
        """The noise in latents."""
        return self.unet(latents, times, states, return_dict=False)[0]


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=LATENTS, default="sdxl")
    name = parser.parse_args().model
    model, size = Denoiser(name).eval(), LATENTS[name]
    sizes = (IMAGES, 4, size, size), (IMAGES,), (IMAGES, 77, ATTENTION[name]["cross_attention_dim"])
    inputs = [torch.empty(one, dtype=torch.bfloat16, device="meta") for one in sizes]
    report = convert(model, fuse=True)
    chains = [one for one in report.chains if one.fused]
    norms = [name for name, one in model.named_modules() if isinstance(one, torch.nn.GroupNorm)]  # of attention too
    shapes = input_shapes(model, norms, *inputs)
    grown = input_shapes(model, [one.name for one in report.doublings if one.fused], *inputs).values()
    normed = [shapes[one.norm] for one in chains]
    second = [shapes[one.norm] for one in chains if one.offset]  # of a block: a time embedding before, a sum after it
    totals = {}
    print(f"{name}, {IMAGES} of {size} x {size}: {len(chains)} of {len(shapes)} norms fused, modelled us")
    heads = ("convolutions", "statistics", "norms", "sums", "upsamplings", "all", "launches", "MB of passes")
    print(f"{'':8s}" + "".join(f"{head:>14s}" for head in heads))
    for fuse in (False, True):
        plan = plan_model(model, inputs, quick=True, fuse=fuse)
        left, added, doubled = ([], [], []) if fuse else (normed, second, grown)
        statistics = plan.statistics_us + sum(map(statistics_us, left))
        # an embedding's sum reads and writes, the other reads twice and writes
        each = passes(*left), [sum(one) for one in zip(passes(*added), passes(*added, reads=2), strict=True)]
        each = *each, passes(*doubled, reads=1 / 4, times=4)
        parts = plan.modelled_us, statistics, *(us for us, _ in each)
        totals[fuse] = sum(parts)
        # statistics read what the norms after them read
        moved = sum(row.hbm_bytes * row.calls for row in plan.statistics) + passes(*left, reads=0)[1]
        moved += sum(size for _, size in each)
        launches = plan.launches + 3 * len(left) + 2 * len(added) + len(doubled)
        numbers = "".join(f"{one:14,.0f}" for one in (*parts, totals[fuse], launches, moved / 1e6))
        print(f"{'fused' if fuse else 'apart':8s}{numbers}")
    print(f"apart over fused: {totals[False] / totals[True]:.2f}")


if __name__ == "__main__":
    main()
