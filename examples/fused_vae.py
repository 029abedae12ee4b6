"""A VAE's decoder with its norms, activations, sums and upsamplings in its convolutions and apart, modelled, bf16.

    pip install diffusers
    python examples/fused_vae.py                # SDXL's at 1024 x 1024
    python examples/fused_vae.py --model flux --size 2048

Two cores. Convolutions and statistics are planned as `nkiconv plan-model --fuse` plans them. A pass that nkiconv has no
kernel for, norm and activation, a sum, an upsampling or sums of taps, counts as a copy of its bytes, the least that it
can take; attention's products are left out. "polyphase" rounds these sums, see `polyphase_filter`.
"""

import argparse

import torch

from nkiconv.pytorch import convert, plan_model
from nkiconv.tools.suites import chains

#: Channels of the latents, by model; all else is alike.
LATENTS = {"sdxl": 4, "flux": 16}
SCALE = 8  # pixels of a latent, along each axis
#: Options of `convert`, by row.
ROWS = {"apart": {}, "fused": {"fuse": True}, "polyphase": {"fuse": True, "polyphase": True}}


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


def input_shapes(model, names, *inputs):
    """Name -> shape of what each of these modules takes."""
    found = {}

    def note(name):
        def noted(_module, args):
            found[name] = tuple(args[0].shape)

        return noted

    hooks = [model.get_submodule(name).register_forward_pre_hook(note(name)) for name in names]
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


def passes(*shapes, reads=1.0, times=1.0):
    """(modelled us, bytes) of passes that write `times` the elements of each shape and read `reads` times as many."""
    counts = [round(times * torch.Size(shape).numel()) for shape in shapes]
    return sum(chains.passed("pass", count, reads).us for count in counts), sum(2 * (reads + 1) * one for one in counts)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=LATENTS, default="sdxl")
    parser.add_argument("--size", type=int, default=1024, help="pixels of an image's side, a multiple of 8")
    given = parser.parse_args()
    model = decoder(LATENTS[given.model])
    side = given.size // SCALE
    x = torch.empty(1, LATENTS[given.model], side, side, dtype=torch.bfloat16, device="meta")
    report, times = convert(model, fuse=True), {}
    by_name = {one.norm: one for one in report.chains}
    shapes = input_shapes(model, by_name, x)
    grown = input_shapes(model, [one.name for one in report.doublings if one.fused], x).values()
    sums = [shape for name, shape in shapes.items() if name.endswith("norm2") and "resnets" in name]
    print(f"{given.model}, {given.size} x {given.size}: {len(shapes)} norms, {len(grown)} upsamplings, modelled us")
    headings = "convolutions", "statistics", "norms", "sums", "upsamplings", "all", "MB", "launches"
    print(f"{'':10s}" + "".join(f"{one:>13s}" for one in headings))
    filters = [model.get_submodule(name).weight for one in report.doublings for name in one.convolutions]
    for row, options in ROWS.items():
        plan = plan_model(model, (x,), quick=True, **options)
        left = [shape for name, shape in shapes.items() if not (options and by_name[name].fused)]
        added, doubled = ([], []) if options else (sums, grown)
        summed = [one.shape for one in filters] if "polyphase" in options else []
        of_images = passes(*doubled, reads=1 / 4, times=4)
        of_filters = passes(*summed, reads=9 / 16, times=16 / 9)
        parts = [
            passes(*left),
            passes(*added, reads=2),
            [sum(each) for each in zip(of_images, of_filters, strict=True)],
        ]
        us = plan.modelled_us, plan.statistics_us + sum(map(statistics_us, left)), *(one for one, _ in parts)
        size = plan.hbm_bytes + passes(*left, reads=0)[1] + sum(one for _, one in parts)
        launches = plan.launches + 3 * len(left) + len(added) + len(doubled) + len(summed)
        times[row] = sum(us)
        numbers = "".join(f"{one:13,.0f}" for one in (*us, times[row], size / 1e6, launches))
        print(f"{row:10s}{numbers}", flush=True)
    print(", ".join(f"apart over {row}: {times['apart'] / one:.2f}" for row, one in [*times.items()][1:]))


if __name__ == "__main__":
    main()
