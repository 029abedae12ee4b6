"""Statistics of channels, and a norm's scale and shift from them.

    stats[p, n, c] = (count, mean, variance) of part p of x[n, c]
    scale = weight / sqrt(variance + eps)     shift = bias - mean * scale     norm(x) = x * scale + shift

Parts are of cores, launches or pieces of x. Chan's formula combines them, so that no large squares are subtracted.
Convolutions apply scale and shift to x, and return statistics of y, without another pass.
"""

from ... import norms, rules
from ..._nki import nki, nl
from .._arguments import check_bias, check_given, refuse
from .channels import stats_of_pixels, stats_of_rows
from .norm import write_norm


@nki.jit
def channel_statistics(img_ref, channels_last=False):
    """Count, mean and variance of x for each image and channel, one part a core. Launch on one or two cores.

    Args:
        img_ref: x in HBM, [N, C, ...], or [N, ..., C] with channels_last; bf16, fp16 or fp32; at least three axes.
        channels_last: whether channels are the last axis.

    Returns: [P, N, C, 3] in HBM, fp32, with P the number of cores: count, mean and biased variance of the elements that
    core p read. All three are 0 if it read none.

    Raises: an assertion that names argument, value, rule and remedy, before any instruction.
    """
    check_given(locals(), ("channels_last",))
    few = len(img_ref.shape) < 3
    refuse(
        rules.array_dtype("img_ref", img_ref.dtype),
        f"img_ref.shape={img_ref.shape}: must have three axes or more, [N, C, ...]; reshape it" if few else "",
    )
    C = img_ref.shape[-1 if channels_last else 1]
    stats_hbm = nl.ndarray((nl.num_programs(), img_ref.shape[0], C, 3), dtype=nl.float32, buffer=nl.shared_hbm)
    if channels_last:
        stats_of_pixels(img_ref, stats_hbm)
    else:
        stats_of_rows(img_ref, stats_hbm)
    return stats_hbm


@nki.jit
def norm_scale_and_shift(stats, weight=None, bias=None, norm="group", num_groups=None, eps=1e-5):
    """A norm's scale and shift for each channel, from statistics. Launch on one or two cores.

    Args:
        stats: tuple of tensors in HBM, [P, N, C, 3] fp32 with the same N and C, of parts of the same x.
        weight, bias: [C] in HBM, bf16, fp16 or fp32; None: 1 and 0.
        norm: the elements that share a mean: "group", a group of an image's channels; "batch", a channel of all images;
            "instance", a channel of an image.
        num_groups: groups of norm "group", a divisor of C; None: 32. eps: added to the variance, at least 0.

    Returns: (scale, shift, mean, biased variance) in HBM, fp32. Scale and shift are [N, C], or [C] for "batch"; mean
    and variance are [N, num_groups] for "group", [C] for "batch", [N, C] for "instance".

    Raises: an assertion that names argument, value, rule and remedy, before any instruction.
    """
    check_given(locals())
    refuse(norms.parts("stats", stats))
    N, C = stats[0].shape[1:3]
    for one in stats:
        refuse(*norms.stats("stats", one.shape, one.dtype, (N, C)))
    refuse(norms.norm(norm), norms.eps(eps), *norms.num_groups(num_groups, norm, C))
    parts = sum(one.shape[0] for one in stats)
    refuse(norms.too_many(norm, parts, N, C, num_groups))
    check_bias(weight, "C", C, "weight")
    check_bias(bias, "C", C)
    number, _ = norms.shared(norm, parts, N, C, num_groups)
    of_image = number if norm == "batch" else number // N
    each, shared = ((C,), (C,)) if norm == "batch" else ((N, C), (N, of_image))
    outputs = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm) for shape in (each, each, shared, shared)]
    write_norm(stats, (number, C // of_image), of_image, eps, weight, bias, outputs)
    return tuple(outputs)
