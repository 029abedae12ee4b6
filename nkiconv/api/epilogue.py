"""A call's prologue and epilogue: checked, described for the planner, and as a kernel's arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import pixel_norms, rules
from ..errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, refused
from ..planner.request import Asked, asked_violations
from ..problem import dtype_name
from .calls import nl_dtype, one_array, out_dtype_unsupported, shape_of

#: Arguments of a prologue; arguments that a kernel takes unchanged if they are not the default.
OF_X = ("x_scale", "x_shift", "x_activation")
PLAIN = (
    *("activation", "precision", "chunks", "x_activation", "x_upsample", "y_norm", "return_before_norm"),
    *("return_stats", "return_final_frames", "return_final_state"),
)


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """See `conv2d` and, of states and chunks, `depthwise_conv1d`, of frames `conv3d`. Tensors may be `ArraySpec`s."""

    bias: Any = None
    activation: str | None = None
    residual: Any = None
    residual_position: str = "pre_activation"
    beta: float = 1.0
    out_dtype: Any = None
    precision: str | None = None
    initial_state: Any = None
    return_final_state: bool = False
    chunks: str | None = None
    initial_frames: Any = None
    num_frames: int = 0  # planes of initial_frames
    return_final_frames: int = 0
    strict_nonfinite: bool = False
    return_stats: str | None = None
    x_scale: Any = None
    x_shift: Any = None
    x_activation: str | None = None
    y_norm: str | None = None
    y_norm_weight: Any = None
    y_norm_bias: Any = None
    y_norm_eps: float = pixel_norms.NORM_EPS
    x_upsample: int = 1
    return_before_norm: bool = False

    @staticmethod
    def taken_from(arguments: dict[str, Any]) -> tuple[Epilogue, dict[str, Any]]:
        """The epilogue of a call's arguments by name, and the others."""
        names = {one.name for one in dataclasses.fields(Epilogue)}
        own = {name: value for name, value in arguments.items() if name in names}
        return Epilogue(**own), {name: value for name, value in arguments.items() if name not in names}

    def asked(self, packed: bool = False, filter_layout: str | None = None) -> Asked:
        """The same as flags and names, for the planner; packed: whether the filter is, filter_layout: of plain ones."""
        alike = (one.name for one in dataclasses.fields(Asked) if hasattr(self, one.name))
        given = {name: getattr(self, name) is not None for name in ("bias", "initial_state", *pixel_norms.OF_CHANNELS)}
        own = {
            "residual": None if self.residual is None else self.residual_position,
            "out_dtype": None if self.out_dtype is None else dtype_name(self.out_dtype),
            "scaled": self.residual is not None and self.beta != 1.0,
            "initial_frames": self.num_frames,
            **{name: _form_of(getattr(self, name)) for name in OF_X[:2]},
        }
        same = {name: getattr(self, name) for name in alike}
        return Asked(**{**same, **given, **own, "packed": packed, "filter_layout": filter_layout})

    def arguments(self) -> dict[str, Any]:
        """The kernel's arguments, only those that the call asks for."""
        tensors = ("bias", "residual", "initial_state", "initial_frames", *OF_X[:2], *pixel_norms.OF_CHANNELS)
        found = {name: getattr(self, name) for name in tensors if getattr(self, name) is not None}
        for name in PLAIN:
            if getattr(self, name) != getattr(Epilogue, name):
                found[name] = getattr(self, name)
        if self.residual is not None:
            found |= {"residual_position": self.residual_position}
            found |= {"beta": float(self.beta)} if self.beta != 1.0 else {}
        if self.y_norm is not None:
            found["y_norm_eps"] = float(self.y_norm_eps)
        if self.out_dtype is not None:
            found["out_dtype"] = nl_dtype(self.out_dtype)
        return found

    def violations(self, axes: dict[str, str]) -> Iterator[NkiconvError]:
        """Errors of names and numbers, and of kind, rank and dtype of the tensors; axes: of each, as in "N, C, Q"."""
        named = dataclasses.replace(self, residual=None, bias=None, out_dtype=None).asked()
        yield from asked_violations(named)
        yield from refused(LayoutError, rules.residual_position(self.residual_position))
        yield from refused(DtypeError, out_dtype_unsupported(self.out_dtype))
        yield from refused(UnsupportedError, rules.beta(self.beta), pixel_norms.eps(self.y_norm_eps))
        for name, letters in axes.items():
            if getattr(self, name) is not None:
                yield from one_array(name, getattr(self, name), letters)
        for name, numbers in self.numbers.items():
            letters = "C" if _form_of(numbers) == "channel" else "N, C"
            yield from one_array(name, numbers, letters, ("fp32",), "NC")

    @property
    def numbers(self) -> dict[str, Any]:
        """x_scale and x_shift by name."""
        every = {name: getattr(self, name) for name in OF_X[:2]}
        return {name: numbers for name, numbers in every.items() if numbers is not None}

    def number_violations(self, N: int, C: int) -> Iterator[NkiconvError]:
        """Errors of their shapes."""
        reasons = (rules.of_channels(name, numbers.shape, N, C) for name, numbers in self.numbers.items())
        yield from refused(GeometryError, *reasons)

    def of_groups(self, count: int) -> Epilogue:
        """The same of x as `batch_group_count` has it: [N, C] as [N / count, count C]."""

        def shares(numbers: Any) -> Any:
            if numbers.ndim == 1:
                return np.tile(numbers, count)
            N, C = numbers.shape
            return numbers.reshape(count, N // count, C).swapaxes(0, 1).reshape(N // count, count * C)

        return dataclasses.replace(self, **{name: shares(numbers) for name, numbers in self.numbers.items()})

    def shape_violations(self, wanted: dict[str, tuple[str, tuple[int, ...]]]) -> Iterator[NkiconvError]:
        """Errors of the tensors' shapes; wanted: each tensor's axes in words and its required shape."""
        for name, (axes, shape) in wanted.items():
            array = getattr(self, name)
            if array is not None:
                yield from refused(GeometryError, rules.shape(name, array.shape, shape, axes))


def _form_of(numbers: Any) -> str | None:
    """Whether numbers are [C] or [N, C], in `rules.SCALE_FORMS`; None for None."""
    if numbers is None:
        return None
    channel, image = rules.SCALE_FORMS
    return channel if len(shape_of(numbers)) == 1 else image
