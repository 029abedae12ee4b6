"""Which tensors the operators take: dtypes, layouts, and orders of axes in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch._prims_common import suggest_memory_format

from ... import rules
from ...errors import refused
from ..computers import modes
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError

#: torch's dtypes that the kernels take, and nkiconv's names of them.
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_ACCEPTED = ", ".join(str(dtype) for dtype in DTYPES)


def tensor_violations(name: str, tensor: object, *, kernels_only: bool = False) -> Iterator[NkiconvError]:
    """Errors of one tensor's kind and dtype; kernels_only: also refuse float64, which only torch takes."""
    if not isinstance(tensor, torch.Tensor):
        yield DtypeError(f"{name}: must be a torch.Tensor, not {type(tensor).__name__}; convert it")
        return
    if tensor.is_nested:
        remedy = "call torch.nested.to_padded_tensor, or convolve its parts"
        yield LayoutError(f"{name}: nested tensors are not supported; {remedy}")
        return
    if tensor.layout != torch.strided:
        yield LayoutError(f"{name}.layout={tensor.layout}: accepted is torch.strided; call .to_dense()")
    if tensor.dtype in DTYPES:
        return
    if tensor.is_quantized:
        yield DtypeError(f"{name}.dtype={tensor.dtype}: quantized tensors are not supported; call .dequantize()")
    elif tensor.is_complex():
        yield DtypeError(f"{name}.dtype={tensor.dtype}: complex tensors are not supported; convolve both parts")
    elif tensor.dtype == torch.float64:
        if kernels_only or not modes.takes_float64(tensor):
            yield DtypeError(
                f"{name}.dtype=torch.float64: accepted are {_ACCEPTED}, as Trainium has no float64; cast it with "
                f".float(), or compute it with torch on cpu, {modes.VARIABLE}=torch"
            )
    elif tensor.dtype == torch.float8_e4m3fn:
        yield DtypeError(
            f"{name}.dtype={tensor.dtype}: accepted are {_ACCEPTED}; cast it with .bfloat16(), which is exact, or call "
            f"nkiconv.conv2d of arrays, which takes NKI's float8_e4m3: {rules.E4M3FN_REMEDY}"
        )
    elif not tensor.dtype.is_floating_point:
        yield DtypeError(
            f"{name}.dtype={tensor.dtype}: accepted are {_ACCEPTED}; kernels have no integer sums; cast {name}"
        )
    else:
        yield DtypeError(f"{name}.dtype={tensor.dtype}: accepted are {_ACCEPTED}; cast {name}")


def channel_violations(
    name: str, one: torch.Tensor | None, channels: int, like: torch.Tensor
) -> Iterator[NkiconvError]:
    """Errors of a number for each channel, beside a tensor that is like x or its statistics."""
    if one is None:
        return
    errors = list(tensor_violations(name, one))
    yield from errors
    if errors:
        return
    yield from refused(GeometryError, rules.shape(name, one.shape, (channels,), "[C]"))
    yield from refused(UnsupportedError, rules.same(name, "device", one.device, "input", like.device))
    yield from float64_violations(name, one, like)


def beside_violations(name: str, one: torch.Tensor, x: torch.Tensor) -> Iterator[NkiconvError]:
    """Errors of a tensor whose dtype or device is not the input's."""
    yield from refused(DtypeError, rules.same(name, "dtype", one.dtype, "input", x.dtype))
    yield from refused(UnsupportedError, rules.same(name, "device", one.device, "input", x.device))


def float64_violations(name: str, one: torch.Tensor, x: torch.Tensor, of: str = "input") -> Iterator[NkiconvError]:
    """Errors of float64 beside other dtypes: torch computes it, and casts nothing. of: x's name."""
    if (one.dtype == torch.float64) != (x.dtype == torch.float64):
        yield DtypeError(
            f"{name}.dtype={one.dtype}: must be torch.float64 exactly when {of}'s is (it is {x.dtype}); cast one of "
            f"them"
        )


def are_positive(extents: Sequence[int]) -> bool:
    """Whether each is at least 1; `min` of torch.export's symbols would guard on which of them is the least."""
    return all(extent >= 1 for extent in extents)


#: torch's formats with channels side by side, by a tensor's axes.
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(x: torch.Tensor, w: torch.Tensor) -> torch.memory_format:
    """Of y: torch's, channels_last where x or w is, but for float64; on a device, whose kernels write rows, always
    contiguous.
    """
    of_images = x.dim() in LAST and x.dtype != torch.float64 and x.device.type not in modes.NEURON
    if of_images and LAST[x.dim()] in (suggest_memory_format(x), suggest_memory_format(w)):
        return LAST[x.dim()]
    return torch.contiguous_format
