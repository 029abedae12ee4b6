"""What a filter gradient is: the filter that there is none of, and the dtype and shape of the result."""

from types import SimpleNamespace

from ... import rules
from ..._nki import nl
from ...schedules.tiles import require
from .._arguments import refuse


def filter_like(filter_shape, axes, grad_ref, bias_gradient):
    """The filter of this shape with so many axes of its taps; refused are no such shape, and a bias_gradient that is
    neither True nor False."""
    refuse(rules.sizes("filter_shape", filter_shape, axes + 2), rules.flag("bias_gradient", bias_gradient))
    return SimpleNamespace(shape=filter_shape, dtype=grad_ref.dtype)


def result_dtype(grad_ref, y_shape, filter_shape, accumulate_into, out_dtype):
    """dw's dtype; refused are gy of another shape than y's, and what dw cannot be, or cannot be added to."""
    require(
        tuple(grad_ref.shape) == tuple(y_shape),
        f"grad_ref.shape={grad_ref.shape}: must be y's, {y_shape}; pass the gradient of y",
    )
    dtype = nl.float32 if out_dtype == None else out_dtype
    require(
        dtype in (nl.float32, nl.bfloat16, nl.float16),
        f"out_dtype={out_dtype}: accepted are None, float32, bfloat16 and float16; use one of them",
    )
    require(
        accumulate_into == None
        or (tuple(accumulate_into.shape) == tuple(filter_shape) and accumulate_into.dtype == nl.float32),
        f"accumulate_into: must be float32 of filter_shape={filter_shape}; pass such a tensor",
    )
    return dtype
