"""Wan's video VAE decoding 480p with the norms that follow convolutions in these and apart, modelled, bf16, two cores.

    pip install diffusers
    python examples/fused_video_vae.py
    python examples/fused_video_vae.py --model mochi  # or ltx, cosmos, cogvideox: what norms take that stay apart

A latent after the first becomes four frames. Convolutions are planned as `nkiconv plan-model` plans them; a
norm with its SiLU that no kernel of nkiconv computes counts as a copy of its bytes, the least that it can take.
Attention's products, upsampling and sums are left out, though convolutions of the second upsample on the way in.
"""

import argparse
import collections
import math

import diffusers
import torch

from nkiconv.pytorch import plan_model
from nkiconv.tools.suites import chains

#: A latent of 480 x 832 pixels.
LATENT = (1, 16, 1, 60, 104)
#: Classes of VAEs and of their norms, and shapes of latents.
VAES = {
    "wan": ("AutoencoderKLWan", "WanRMS_norm", LATENT),
    "ltx": ("AutoencoderKLLTXVideo", "RMSNorm", (1, 128, 7, 16, 22)),
    "mochi": ("AutoencoderKLMochi", "MochiChunkedGroupNorm3D", (1, 12, 3, 60, 106)),
    "cosmos": ("AutoencoderKLCosmos", "CosmosCausalGroupNorm", (1, 16, 2, 60, 104)),
    "cogvideox": ("AutoencoderKLCogVideoX", "CogVideoXSpatialNorm3D", (1, 16, 2, 60, 90)),
}


class Decoder(torch.nn.Module):
    """A VAE whose forward decodes."""

    def __init__(self, name):
        super().__init__()
        with torch.device("meta"):
            self.vae = getattr(diffusers, VAES[name][0])().to(torch.bfloat16)
        self.norms = [one for one in self.modules() if type(one).__name__ == VAES[name][1]]

    def forward(self, latents):
        """Frames of latents."""
        return self.vae.decode(latents, return_dict=False)[0]


def norms_of(model, latents):
    """Elements of what each call of a norm reads."""
    found = []

    def note(_module, args):
        found.append(args[0].numel())

    hooks = [one.register_forward_pre_hook(note) for one in model.norms]
    with torch.no_grad():
        model(latents)
    for hook in hooks:
        hook.remove()
    return found


def decoding(model, x, fuse):
    """(us of convolutions, their launches, elements that each norm by itself reads) of latents."""
    plan = plan_model(model, (x,), quick=True, fuse=fuse)
    left = collections.Counter(norms_of(model, x))
    for row in plan.rows:
        if row.convolved.asked.y_norm is not None:
            left[math.prod(row.convolved.problem.output_shape)] -= row.calls
    return plan.modelled_us, sum(row.calls for row in plan.rows), [*left.elements()]


def passes(elements):
    """us of a pass for each norm by itself."""
    return sum(chains.passed("norm", one).us for one in elements)


def latents_of(shape):
    """Latents without data."""
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def apart(name):
    """Print what norms take that stay apart, and all of them."""
    model, x = Decoder(name).eval(), latents_of(VAES[name][2])
    for fuse in (False, True):
        convolutions, _, elements = decoding(model, x, fuse)
        # those of a position, as LTX's, need no read of their own
        statistics = 0 if name == "ltx" else sum(chains.passed("statistics", one, reads=0).us for one in elements)
        norms = passes(elements) + statistics
        print(f"{name}, latents {'x'.join(map(str, x.shape))}, {len(elements)} norms by themselves: ", end="")
        print(f"convolutions {convolutions:,.0f} us, passes {passes(elements):,.0f} us, ", end="")
        print(
            f"statistics {statistics:,.0f} us, {norms / (convolutions + norms):.1%} of {convolutions + norms:,.0f} us"
        )


def decoded():
    """Print the table of Wan's."""
    model, totals = Decoder("wan").eval(), {}
    heads = (("convolutions", 14), ("norms", 10), ("all, us", 12), ("launches", 10), ("MB of norms", 14))
    print(f"{'a latent after the first':26s}" + "".join(f"{head:>{width}s}" for head, width in heads))
    for fuse in (False, True):
        found = []
        for latents in (2, 3):
            us, calls, elements = decoding(model, latents_of((1, 16, latents, *LATENT[3:])), fuse)
            found.append((us, passes(elements), calls + len(elements), 4 * sum(elements)))
        convolutions, norms, launches, moved = (more - less for less, more in zip(*found, strict=True))
        totals[fuse] = convolutions + norms
        numbers = f"{convolutions:14,.0f}{norms:10,.0f}{totals[fuse]:12,.0f}{launches:10,d}{moved / 1e6:14,.0f}"
        print(f"{'fused' if fuse else 'apart':26s}{numbers}")
    print(f"apart over fused: {totals[False] / totals[True]:.2f}")


def main():
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=VAES, default="wan")
    name = parser.parse_args().model
    if name == "wan":
        decoded()
    else:
        apart(name)


if __name__ == "__main__":
    main()
