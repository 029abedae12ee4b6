"""Calls of convolutions with a prologue, upsampling or statistics, transposed or not, and the same by torch."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F
from torch_activation import torchs as activation_of

from nkiconv import bounds, pytorch, reference
from nkiconv.problem import ConvProblem
from nkiconv.pytorch.computers.arrays import to_numpy
from nkiconv.pytorch.computers.statistics import Norm, moments
from nkiconv.pytorch.operators.tensor_kinds import DTYPES

SIZES = {1: (9,), 2: (5, 6), 3: (3, 4, 5)}
#: One mean and one variance of each image and channel.
EACH = Norm("instance", None, 0.0)
IN_TORCH = {False: {"padding": 1}, True: {"stride": 2, "padding": 1, "output_padding": 1}}


@dataclass(frozen=True)
class Form:
    """What the calls of one kind have; their results are y, and with `stats` mean and variance of it."""

    transposed: bool = False
    stats: bool = False
    x_upsample: int = 1

    def __str__(self):
        return next(name for name, one in FORMS.items() if one == self)

    @property
    def ranks(self):
        return (1, 2, 3) if self.x_upsample == 1 else (2,)

    def operator_name(self, rank):
        return f"conv{'_transpose' * self.transposed}{rank}d_with_{'stats' if self.stats else 'prologue'}"

    def groups(self, x, w):
        return 4 // w.shape[1] if self.transposed else x.shape[1 - w.ndim] // w.shape[1]

    def tensors(self, rank, form="image", residual=True, dtype=torch.float32, groups=2, channels=6):
        """x, w, bias, residual, x_scale, x_shift of a convolution with 3 taps and padding 1."""
        generator = torch.Generator().manual_seed(rank)
        kind = torch.float64 if dtype == torch.float64 else torch.float32
        of_x = (channels,) if form == "channel" else (2, channels)
        of_y = (2, 4, *((2 if self.transposed else self.x_upsample) * size for size in SIZES[rank]))
        of_w = (channels, 4 // groups) if self.transposed else (4, channels // groups)
        shapes = (2, channels, *SIZES[rank]), (*of_w, *[3] * rank), (4,), of_y, of_x, of_x
        kinds = (dtype,) * 4 + (kind,) * 2
        found = [torch.randn(one, generator=generator).to(each) for one, each in zip(shapes, kinds, strict=True)]
        return found if residual else [*found[:3], None, *found[4:]]

    def call(self, x, w, bias, residual, scale, shift, act="silu", **more):
        """What nkiconv's function returns."""
        function = getattr(pytorch, f"conv{'_transpose' * self.transposed}{w.dim() - 2}d")
        more |= IN_TORCH[self.transposed] | {"groups": self.groups(x, w), "residual": residual}
        more |= {"x_upsample": self.x_upsample} if self.x_upsample > 1 else {}
        more |= {"return_stats": "channel"} if self.stats else {}
        return function(x, w, bias, x_scale=scale, x_shift=shift, x_activation=act, **more)

    def numbers(self, x, w, act="silu", activation=None, residual_position="pre_activation"):
        """The operator's arguments after the tensors."""
        rank = w.dim() - 2
        ones, stride = [1] * rank, [1 + self.transposed] * rank
        pads = [1, 1 + self.transposed] * rank
        more = ones, pads, ones, stride, self.groups(x, w), activation, residual_position, None, None, False, act
        return more if self.x_upsample == 1 else (*more, self.x_upsample)

    def operator(self, x, w, *given, **more):
        found = getattr(torch.ops.nkiconv, self.operator_name(w.dim() - 2))(x, w, *given, *self.numbers(x, w, **more))
        return self.moments(found)

    def ours(self, *given, **more):
        return self.moments(self.call(*given, **more))

    def moments(self, found):
        return (found[0], *moments(found[1], EACH)) if self.stats else found

    def torchs(
        self, x, w, bias, residual, scale, shift, act="silu", activation=None, residual_position="pre_activation"
    ):
        """By torch's functions alone, in the dtype of what they take."""
        rank = w.dim() - 2
        h = x if scale is None else x * scale.reshape(*scale.shape, *[1] * rank)
        h = activation_of(act)(h if shift is None else h + shift.reshape(*shift.shape, *[1] * rank))
        for axis in range(2, 2 + rank):
            h = h.repeat_interleave(self.x_upsample, axis)
        convolve = getattr(F, f"conv{'_transpose' * self.transposed}{rank}d")
        y = convolve(h, w, bias, groups=self.groups(x, w), **IN_TORCH[self.transposed])
        if residual is not None and residual_position == "pre_activation":
            y = y + residual
        y = activation_of(activation)(y)
        if residual is not None and residual_position == "post_activation":
            y = y + residual
        return (y, y.flatten(2).mean(2), y.flatten(2).var(2, correction=0)) if self.stats else y

    def truth(self, given, act, activation=None, out_dtype=None):
        """(y [N, K, ...] in float64, how far the kernel's may be off), y rounded to out_dtype, or x's."""
        x, w, bias, residual, scale, shift = map(to_numpy, given)
        rank, dtype = w.ndim - 2, DTYPES[given[0].dtype]
        convolved = (self.x_upsample * size for size in x.shape[2:])
        sizes = dict(zip("DHW"[-rank:], convolved, strict=True)) | dict(zip("TRS"[-rank:], w.shape[2:], strict=True))
        padding = (((0, 0),) if rank == 1 else ()) + ((1, 1),) * rank
        groups = self.groups(x, w)
        problem = ConvProblem(N=len(x), C=x.shape[1], K=len(w), **sizes, groups=groups, padding=padding, dtype=dtype)
        images, filters = x[:, :, None] if rank == 1 else x, w.reshape(problem.filter_shape)
        off = bounds.prologue_bound(images, dtype, scale, shift, act)
        inexact = reference.abs_sum_ref(reference.prologue_ref(off, x_upsample=self.x_upsample), filters, problem)
        h = reference.prologue_ref(images, scale, shift, act, self.x_upsample)
        sums, most = (one(h, filters, problem) for one in (reference.conv_ref, reference.abs_sum_ref))
        after = bias, activation, residual.reshape(sums.shape)
        limit = bounds.epilogue_bound(
            reference.num_terms(problem), most, sums, out_dtype or dtype, *after, inexact=inexact
        )
        return reference.epilogue_ref(sums, *after), limit


FORMS = {
    "prologue": Form(),
    "upsampled": Form(x_upsample=2),
    "statistics": Form(stats=True),
    "statistics of upsampled": Form(stats=True, x_upsample=2),
    "transposed": Form(transposed=True),
    "statistics of transposed": Form(transposed=True, stats=True),
}
