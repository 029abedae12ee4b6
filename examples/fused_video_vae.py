"""Wan's video VAE decoding 480p with the norms that follow convolutions in these and apart, modelled, bf16, two cores.

    pip install diffusers
    python examples/fused_video_vae.py

A latent after the first becomes four frames. Convolutions are planned as `nkiconv plan-model --quick` plans them; a
norm with its SiLU that no kernel of nkiconv computes counts as a copy of its bytes, the least that it can take.
Attention's products, upsampling and sums are left out, though convolutions of the second upsample on the way in.
"""

import collections
import math

import torch
from diffusers import AutoencoderKLWan

from nkiconv.pytorch import plan_model
from nkiconv.tools.suites import chains

#: A latent of 480 x 832 pixels.
LATENT = (1, 16, 1, 60, 104)


class Decoder(torch.nn.Module):
    """A VAE whose forward decodes."""

    def __init__(self):
        super().__init__()
        with torch.device("meta"):
            self.vae = AutoencoderKLWan().to(torch.bfloat16)

    def forward(self, latents):
        """Frames of latents [1, 16, T, 60, 104]."""
        return self.vae.decode(latents, return_dict=False)[0]


def norms_of(model, latents):
    """Elements of what each call of a norm reads."""
    found = []

    def note(_module, args):
        found.append(args[0].numel())

    kinds = type(model.vae.decoder.norm_out)
    hooks = [one.register_forward_pre_hook(note) for one in model.modules() if isinstance(one, kinds)]
    with torch.no_grad():
        model(latents)
    for hook in hooks:
        hook.remove()
    return found


def decoding(model, latents, fuse):
    """(us of convolutions, us of norms, launches, bytes that norms move) of so many latents."""
    x = torch.empty(1, 16, latents, *LATENT[3:], dtype=torch.bfloat16, device="meta")
    plan = plan_model(model, (x,), quick=True, fuse=fuse)
    left = collections.Counter(norms_of(model, x))
    for row in plan.rows:
        if row.convolved.asked.y_norm is not None:
            left[math.prod(row.convolved.problem.output_shape)] -= row.calls
    left = [*left.elements()]
    passes = sum(chains.passed("norm", elements).us for elements in left)
    return plan.modelled_us, passes, sum(row.calls for row in plan.rows) + len(left), 4 * sum(left)


def main():
    """Print the table."""
    model, totals = Decoder().eval(), {}
    heads = (("convolutions", 14), ("norms", 10), ("all, us", 12), ("launches", 10), ("MB of norms", 14))
    print(f"{'a latent after the first':26s}" + "".join(f"{head:>{width}s}" for head, width in heads))
    for fuse in (False, True):
        two, three = (decoding(model, latents, fuse) for latents in (2, 3))
        convolutions, norms, launches, moved = (more - less for less, more in zip(two, three, strict=True))
        totals[fuse] = convolutions + norms
        numbers = f"{convolutions:14,.0f}{norms:10,.0f}{totals[fuse]:12,.0f}{launches:10,d}{moved / 1e6:14,.0f}"
        print(f"{'fused' if fuse else 'apart':26s}{numbers}")
    print(f"apart over fused: {totals[False] / totals[True]:.2f}")


if __name__ == "__main__":
    main()
