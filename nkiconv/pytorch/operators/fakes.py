"""The common first step of all operators' fake kernels, which run on shapes alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..computers import modes
from ..errors import UnsupportedError
from . import sharding


def fake_kernel(name: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """The fake kernel of operator `nkiconv::name`, of one that checks arguments and makes results. Raises
    UnsupportedError where torch.onnx meets the operator."""

    @functools.wraps(fake)
    def run(*args: Any) -> Any:
        if modes.is_onnx():
            raise UnsupportedError(
                f"torch.onnx.export: ONNX has no nkiconv::{name}; pass the model, not a program of torch.export, and "
                f"torch's own convolutions are exported (packed sequences have none)"
            )
        sharding.announce()
        return fake(*args)

    return run
