"""A VAE's decoder with its norms, activations and sums in its convolutions and apart, modelled, bf16, two cores.

    pip install diffusers
    python examples/fused_vae.py                # SDXL's at 1024 x 1024
    python examples/fused_vae.py --model flux --size 2048

Convolutions and statistics are planned as `nkiconv plan-model --fuse` plans them. A pass that nkiconv has no kernel
for, norm and activation or a sum, counts as a copy of its bytes, the least that it can take; attention's products are
left out.
"""

import argparse

import torch

from nkiconv.pytorch import convert, plan_model
from nkiconv.tools.suites import chains

#: Channels of the latents, by model; all else is alike.
LATENTS = {"sdxl": 4, "flux": 16}
SCALE = 8  # pixels of a latent, along each axis


def decoder(latents):
    """A decoder without data, in bf16, that is given latents alone."""
    from diffusers import AutoencoderKL

    with torch.device("meta"):
        model = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            latent_channels=latents,
        )
    return torch.nn.Sequential(model.decoder.to(torch.bfloat16)).eval()


def norm_shapes(model, *inputs):
    """Name -> shape of what each norm takes."""
    found = {}

    def note(name):
        def noted(_module, args):
            found[name] = tuple(args[0].shape)

        return noted

    norms = [(name, one) for name, one in model.named_modules() if isinstance(one, torch.nn.GroupNorm)]
    hooks = [one.register_forward_pre_hook(note(name)) for name, one in norms]
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    return found


def statistics_us(shape):
    """Modelled us of the statistics of a GroupNorm's input, and its scale and shift."""
    N, C, *_ = shape
    partial, affine = chains.fp32(chains.LNC, N, C, 3), {"weight": chains.of(C), "bias": chains.of(C)}
    stats = chains.launched("channel_stats", chains.channel_statistics, chains.of(*shape))
    norm = chains.launched("norm_scale_shift", chains.norm_scale_and_shift, (partial,), **affine)
    return stats.us + norm.us


def passed_us(shape, reads=1):
    """Modelled us of a pass over x of a shape."""
    return chains.passed("pass", torch.Size(shape).numel(), reads).us


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=LATENTS, default="sdxl")
    parser.add_argument("--size", type=int, default=1024, help="pixels of an image's side, a multiple of 8")
    given = parser.parse_args()
    model = decoder(LATENTS[given.model])
    x = torch.empty(
        1, LATENTS[given.model], given.size // SCALE, given.size // SCALE, dtype=torch.bfloat16, device="meta"
    )
    shapes, times = norm_shapes(model, x), {}
    by_name = {one.norm: one for one in convert(model, fuse=True).chains}
    sums = [shape for name, shape in shapes.items() if name.endswith("norm2") and "resnets" in name]
    print(f"{given.model}, {given.size} x {given.size}: {len(shapes)} norms, modelled us")
    print(f"{'':8s}{'convolutions':>14s}{'statistics':>12s}{'norms':>10s}{'sums':>10s}{'all':>12s}{'launches':>10s}")
    for fuse in (False, True):
        plan = plan_model(model, (x,), quick=True, fuse=fuse)
        left = [shape for name, shape in shapes.items() if not (fuse and by_name[name].fused)]
        added = [] if fuse else sums
        statistics = plan.statistics_us + sum(map(statistics_us, left))
        parts = plan.modelled_us, statistics, sum(map(passed_us, left)), sum(passed_us(one, 2) for one in added)
        launches = plan.launches + 3 * len(left) + len(added)
        times[fuse] = sum(parts)
        numbers = "".join(
            f"{one:{width},.0f}" for one, width in zip((*parts, sum(parts)), (14, 12, 10, 10, 12), strict=True)
        )
        print(f"{'fused' if fuse else 'apart':8s}{numbers}{launches:10,d}")
    print(f"apart over fused: {times[False] / times[True]:.2f}")


if __name__ == "__main__":
    main()
