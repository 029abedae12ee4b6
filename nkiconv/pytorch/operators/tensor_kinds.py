"""Which tensors the operators take: dtypes and layouts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...errors import DtypeError, LayoutError, NkiconvError

#: torch's dtypes that the kernels take, and nkiconv's names of them.
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_ACCEPTED = ", ".join(str(dtype) for dtype in DTYPES)


def tensor_violations(name: str, tensor: object) -> Iterator[NkiconvError]:
    """Errors of one tensor's kind and dtype."""
    if not isinstance(tensor, torch.Tensor):
        yield DtypeError(f"{name}: must be a torch.Tensor, not {type(tensor).__name__}; convert it")
        return
    if tensor.layout != torch.strided:
        yield LayoutError(f"{name}.layout={tensor.layout}: accepted is torch.strided; call .to_dense()")
    if tensor.is_quantized:
        yield DtypeError(f"{name}.dtype={tensor.dtype}: quantized tensors are not supported; call .dequantize()")
    elif tensor.is_complex():
        yield DtypeError(f"{name}.dtype={tensor.dtype}: complex tensors are not supported; convolve both parts")
    elif tensor.dtype not in DTYPES:
        yield DtypeError(f"{name}.dtype={tensor.dtype}: accepted are {_ACCEPTED}; cast {name}")
