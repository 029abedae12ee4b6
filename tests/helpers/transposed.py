"""Transposed convolutions: any shape of them, and a check of the public kernels against torch in float64."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
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


@st.composite
def transposed(draw, axes=(2, 3), most_channels=9, groups=(1,)):
    """Any small one that has an output."""
    rank, count = draw(st.sampled_from(axes)), draw(st.sampled_from(groups))
    C, K = (count * draw(st.integers(1, most_channels)) for _ in range(2))

    def every(numbers):
        return tuple(draw(numbers) for _ in range(rank))

    stride, dilation = every(st.integers(1, 4)), every(st.integers(1, 3))
    most = [max(pair) - 1 for pair in zip(stride, dilation, strict=True)]
    call = Transposed(
        N=draw(st.integers(1, 3)), C=C, K=K, groups=count, sizes=every(st.integers(1, 6)),
        taps=every(st.integers(1, 4)), stride=stride, padding=every(st.integers(0, 3)),
        output_padding=tuple(draw(st.integers(0, one)) for one in most), dilation=dilation,
    )  # fmt: skip
    # less padding where it leaves nothing
    return call if min(call.outputs) >= 1 else Transposed(**{**vars(call), "padding": (0,) * rank})
