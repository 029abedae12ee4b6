"""Transposed convolutions: calls of them, and a check of the public kernels against torch in float64."""

from dataclasses import dataclass

import numpy as np
import torch
from tolerances import integer_inputs

import nkiconv
from nkiconv._nki import nl

KERNELS = {2: nkiconv.conv_transpose2d_implicit_gemm, 3: nkiconv.conv_transpose3d_implicit_gemm}


@dataclass(frozen=True)
class Transposed:
    """A call of torch's; numbers an axis."""

    N: int
    C: int
    K: int
    groups: int
    sizes: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def axes(self):
        return len(self.sizes)

    @property
    def outputs(self):
        windows = [(taps - 1) * gap for taps, gap in zip(self.taps, self.dilation, strict=True)]
        rows = zip(self.sizes, self.stride, windows, self.padding, self.output_padding, strict=True)
        return [(size - 1) * step + window + 1 - 2 * side + end for size, step, window, side, end in rows]

    def numbers(self):
        """torch's arguments but groups, and those of arrays."""
        names = ("stride", "padding", "output_padding", "dilation")
        return {name: getattr(self, name) for name in names}

    def inputs(self, dtype):
        rng = np.random.default_rng(7)
        x = integer_inputs(rng, (self.N, self.C, *self.sizes), dtype)
        return x, integer_inputs(rng, (self.C, self.K // self.groups, *self.taps), dtype)

    def truth(self, x, w, bias=None):
        """torch's y in float64."""
        function = getattr(torch.nn.functional, f"conv_transpose{self.axes}d")
        wide = [None if one is None else torch.tensor(np.asarray(one, np.float64)) for one in (x, w, bias)]
        return function(*wide, groups=self.groups, **self.numbers()).numpy()


def check(call, dtype="bf16", lnc=2, last=False, **options):
    """The kernel on integers, exactly; last: channels side by side in memory."""
    x, w = call.inputs(dtype)
    if last:
        ahead = tuple(range(1, call.axes + 1))
        options |= {"in_perm": (0, call.axes + 1, *ahead), "out_perm": (0, *(one + 1 for one in ahead), 1)}
    numbers = call.numbers() | {"padding": tuple((side, side) for side in call.padding)}
    kernel = nkiconv.simulate(KERNELS[call.axes][lnc])
    stored = np.moveaxis(x, 1, -1).copy() if last else x
    y = kernel(stored, w, **numbers, feature_group_count=call.groups, out_dtype=nl.float32, **options)
    np.testing.assert_array_equal(np.moveaxis(y, -1, 1) if last else y, call.truth(x, w))
