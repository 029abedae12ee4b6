"""What a call may ask for beside the convolution: checked, described for the planner, and as a kernel's arguments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import GeometryError, NkiconvError, UnsupportedError
from ..planner.request import Asked, asked_violations
from ..problem import dtype_name
from .calls import nl_dtype, one_array, out_dtype_violations


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """See `conv2d` and, of states, `depthwise_conv1d`, of frames `conv3d`. Tensors may be `ArraySpec`s."""

    bias: Any = None
    activation: str | None = None
    residual: Any = None
    residual_position: str = "pre_activation"
    beta: float = 1.0
    out_dtype: Any = None
    precision: str | None = None
    initial_state: Any = None
    return_final_state: bool = False
    initial_frames: Any = None
    num_frames: int = 0  # planes of initial_frames
    return_final_frames: int = 0
    strict_nonfinite: bool = False

    def asked(self, packed: bool = False, filter_layout: str | None = None) -> Asked:
        """The same as flags and names, for the planner; packed: whether the filter is, filter_layout: of plain ones."""
        return Asked(
            bias=self.bias is not None,
            activation=self.activation,
            residual=None if self.residual is None else self.residual_position,
            out_dtype=None if self.out_dtype is None else dtype_name(self.out_dtype),
            initial_state=self.initial_state is not None,
            return_final_state=self.return_final_state,
            strict_nonfinite=self.strict_nonfinite,
            scaled=self.residual is not None and self.beta != 1.0,
            precision=self.precision,
            packed=packed,
            filter_layout=filter_layout,
            initial_frames=self.num_frames,
            return_final_frames=self.return_final_frames,
        )

    def arguments(self) -> dict[str, Any]:
        """The kernel's arguments; nothing for what is not asked for."""
        names = ("bias", "activation", "residual", "precision", "initial_state", "initial_frames")
        found = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.residual is not None:
            found["residual_position"] = self.residual_position
            if self.beta != 1.0:
                found["beta"] = float(self.beta)
        if self.out_dtype is not None:
            found["out_dtype"] = nl_dtype(self.out_dtype)
        if self.return_final_frames:
            found["return_final_frames"] = self.return_final_frames
        return found | ({"return_final_state": True} if self.return_final_state else {})

    def violations(self, axes: dict[str, str]) -> Iterator[NkiconvError]:
        """Errors of names and numbers, and of kind, rank and dtype of the tensors; axes: of each, as in "N, C, Q"."""
        beta = self.beta
        # the position is checked also where there is no residual
        named = dataclasses.replace(self, residual=None, bias=None, out_dtype=None).asked()
        yield from asked_violations(dataclasses.replace(named, residual=self.residual_position))
        yield from out_dtype_violations(self.out_dtype)
        if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not math.isfinite(beta):
            yield UnsupportedError(f"beta={beta!r}: must be a finite int or float; scale the residual otherwise")
        for name, letters in axes.items():
            if getattr(self, name) is not None:
                yield from one_array(name, getattr(self, name), letters)

    def shape_violations(self, wanted: dict[str, tuple[str, tuple[int, ...]]]) -> Iterator[NkiconvError]:
        """Errors of the tensors' shapes; wanted: of each, its axes in words and what they must be."""
        for name, (axes, shape) in wanted.items():
            array = getattr(self, name)
            if array is not None and tuple(array.shape) != shape:
                yield GeometryError(
                    f"{name}.shape={tuple(array.shape)}: must be {axes} = {shape}; pass one of that shape"
                )
