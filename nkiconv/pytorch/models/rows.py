"""Fused calls around depthwise convolutions of rows in models of sequences, found while their forwards run.

    C * causal_conv1d_fn(B * x), chunks of one tensor             gated_short_conv       LFM2
    act(BatchNorm(convolution(glu(x))))                           glu_conv1d             Conformer
    split(causal_conv1d_fn(x).transpose(1, 2))                    causal_conv1d_split    Qwen3-Next, Kimi Linear, Mamba2

A convolution with zeros on both sides whose first columns alone are read is causal_conv1d_fn of them, with the silu
after it: models have that where the package causal-conv1d is missing.

The module that holds such a convolution runs its own forward under a function mode. There the result of a product, a
GLU or a convolution is a Pending, and the next step is noted on it; any other use computes it first. So caches, masks
and branches on them need not be known. Nothing fuses under torch.compile and torch.autocast.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from ...schedules.split import taps_unsupported
from ..causal import checks
from ..causal.functions import causal_conv1d_fn
from ..causal.split import causal_conv1d_split
from ..computers import host, modes
from ..fused_module import stored_filter
from ..gated import gated_short_conv, glu_conv1d
from .callers import has_hooks_after
from .classes import Changed
from .pending import PRODUCTS, Pending, activation_of, handed_on, is_in_place, tensor_of, version_of

_CHUNKS = (torch.Tensor.chunk, torch.chunk)
_SPLITS = (torch.Tensor.split, torch.split)
#: Names of torch.split's arguments that its method calls otherwise.
_SPLIT_SIZES = {"split_size_or_sections": "split_size"}
_TRANSPOSES = (torch.Tensor.transpose, torch.transpose)
_SIGNATURE, _BATCH_NORM = inspect.signature(causal_conv1d_fn), inspect.signature(F.batch_norm)
#: Arguments that a causal convolution may have as part of another call.
_TENSORS = ("x", "weight", "bias")
_NO_MORE = ("activation", "layout", "layer", "strict_nonfinite")
#: Arguments of forward that keep no tensor that they are given, unlike a cache.
_PLAIN = (Tensor, bool, int, float, str, type(None))


class _Rows(Pending):
    """A pending tensor of rows, [N, C, W], computed from x."""

    def __init__(self, mode: Fusing, x: Tensor, shape: Sequence[int]) -> None:
        self.fusing, self.x, self.sizes = mode, x, torch.Size(shape)
        self.keep(x)

    def value(self) -> Tensor:
        """The tensor; while it is computed nothing becomes pending."""
        before, self.fusing.is_paused = self.fusing.is_paused, True
        try:
            return super().value()
        finally:
            self.fusing.is_paused = before

    def __iadd__(self, other: Any) -> Any:
        """In place, as other names may stand for this."""
        return operator.iadd(self.value(), tensor_of(other))  # type: ignore[no-untyped-call]

    @property
    def shape(self) -> torch.Size:
        """Extents."""
        return self.sizes if self.tensor is None else self.tensor.shape

    @property
    def ndim(self) -> int:
        """Axes."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of x, until computed."""
        return (self.x if self.tensor is None else self.tensor).dtype

    @property
    def device(self) -> torch.device:
        """Of x. A checkpoint asks its arguments for it before its first run, which must not compute what its second run
        would find."""
        if sys._getframe(1).f_globals.get("__name__") == "torch.utils.checkpoint":
            self.value()
        return self.x.device

    def dim(self) -> int:
        """Axes."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """Extents, or one."""
        return self.shape if dim is None else self.shape[dim]


class _Product(_Rows):
    """Two chunks of x multiplied, which stand at these places."""

    def __init__(self, mode: Fusing, x: Tensor, factors: tuple[Tensor, Tensor], places: tuple[int, int]) -> None:
        super().__init__(mode, x, factors[0].shape)
        self.factors, self.places = factors, places

    def compute(self) -> Tensor:
        """By torch."""
        self.input()
        return self.factors[0] * self.factors[1]


class _Glu(_Rows):
    """The gated linear unit of the channels of x."""

    def __init__(self, mode: Fusing, x: Tensor) -> None:
        super().__init__(mode, x, (x.shape[0], x.shape[1] // 2, x.shape[2]))

    def compute(self) -> Tensor:
        """By torch."""
        return F.glu(self.input(), 1)


class _GluConvolved(_Rows):
    """The convolution of a GLU of x, perhaps with a BatchNorm's mean, variance, weight, bias and eps."""

    affine: tuple[Any, ...] | None = None

    def __init__(self, mode: Fusing, x: Tensor, convolution: Any) -> None:
        sides: Any = convolution.padding if isinstance(convolution.padding, str) else convolution.padding[0]
        width, taps = x.shape[2], convolution.kernel_size[0]
        out = width if sides == "same" else width + 2 * (0 if sides == "valid" else sides) - taps + 1
        super().__init__(mode, x, (x.shape[0], x.shape[1] // 2, out))
        self.convolution, self.sides = convolution, sides

    def compute(self) -> Tensor:
        """By one call."""
        return self.activated(None)

    def activated(self, activation: str | None) -> Tensor:
        """By one call with an activation."""
        weight, bias = self.convolution.weight, self.convolution.bias
        if self.affine is not None:
            mean, variance, scale, shift, eps = self.affine
            scale = torch.rsqrt(host.wide(variance) + eps) * (1 if scale is None else scale)
            offset = -mean * scale + (0 if shift is None else shift)
            offset = offset if bias is None else offset + bias * scale
            weight, bias = (weight * scale[:, None, None]).to(weight.dtype), offset.to(weight.dtype)
            self.fusing.norms.append(mean)
        more = {"padding": self.sides, "activation": activation, "layer": self.convolution.layer}
        y: Tensor = glu_conv1d(self.input(), weight, bias, **more)
        steps = " and ".join(filter(None, ["BatchNorm" * (self.affine is not None), activation]))
        self.fusing.calls.append(f"glu_conv1d{' with ' * bool(steps)}{steps}")
        return y

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A BatchNorm with fixed statistics, then an activation."""
        if function is F.batch_norm and self.affine is None:
            bound = _BATCH_NORM.bind(self, *args, **named)
            bound.apply_defaults()
            norm = [bound.arguments[name] for name in ("running_mean", "running_var", "weight", "bias", "eps")]
            taken = bound.arguments["training"] or norm[0] is None or norm[1] is None  # statistics of this batch
            return None if taken else self.but(affine=tuple(norm))
        activation = activation_of(function, named)
        return None if activation is None or is_in_place(function, args, named) else self.activated(activation)


def _stored(x: Tensor) -> tuple[str, Tensor]:
    """(layout, x in it) of rows [N, C, W] as they are in memory."""
    return ("NWC", x.transpose(1, 2)) if x.stride(1) == 1 else ("NCW", x)


def _whole(rows: Tensor) -> tuple[Tensor, int | None]:
    """(the contiguous [N, L, channels] of which rows [N, L, C] are some channels, the place of their first), as of a
    projection's result; else (rows, contiguous, None)."""
    base, (N, L, C), channels = rows._base, rows.shape, rows.stride(1)
    if rows.is_contiguous() or base is None or not base.is_contiguous():
        return rows.contiguous(), None
    # not of a view whose derivative, or dtype, is another
    fits = (base.dtype, base.requires_grad) == (rows.dtype, rows.requires_grad)
    fits &= rows.stride() == (L * channels, channels, 1) and base.numel() == N * L * channels
    first = int(rows.storage_offset() - base.storage_offset())
    return (base.view(N, L, channels), first) if fits and first <= channels - C else (rows.contiguous(), None)


class _Causal(_Rows):
    """A causal convolution of rows; product: where x is two chunks of a tensor; sliced: of a module's result."""

    def __init__(self, mode: Fusing, x: Any, given: dict[str, Any], places: tuple[int, int] | None = None) -> None:
        shape = x.shape if places is None else (x.shape[0], x.shape[1] // 3, x.shape[2])
        super().__init__(mode, x, shape)
        self.given, self.places, self.sliced = given, places, False

    def activated(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> _Causal | None:
        """This with the silu that a function applies; None for other functions."""
        if activation_of(function, named) != "silu" or is_in_place(function, args, named):
            return None
        if self.places is not None or self.given["activation"] is not None:
            return None
        found: _Causal = self.but(given={**self.given, "activation": "silu"})
        return found

    def compute(self) -> Tensor:
        """By the function that was called."""
        self.input()
        if self.sliced:
            self.fusing.calls.append("causal_conv1d_fn")
        y: Tensor = causal_conv1d_fn(**tree_map(tensor_of, self.given))
        return y

    def __getitem__(self, at: Any) -> Any:
        last = at[-1] if isinstance(at, tuple) and len(at) == 3 else None
        whole = slice(None), slice(None), slice(-self.shape[2], None)
        return self if last is not None and at == whole and self.is_open() else self.value()[at]

    def transpose(self, dim0: int, dim1: int) -> Any:
        """With tokens first, still pending."""
        pends = {dim0 % 3, dim1 % 3} == {1, 2} and self.places is None and self.is_open()
        return handed_on(_Tokens, self) if pends else self.value().transpose(dim0, dim1)

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The product with the third chunk; tokens first."""
        if function in PRODUCTS and self.places is not None and len(args) == 1 and not named:
            return self._gated(args[0])
        if (found := self.activated(function, args, named)) is not None:
            return found
        return self.transpose(*args) if function in _TRANSPOSES and not named else None

    def _gated(self, factor: Any) -> Any:
        x, places = self.input(), self.places
        at = self.fusing.chunk_of(factor)
        if places is None or at is None or at[0] is not x or at[1] in places:
            return None
        letters = {places[0]: "B", places[1]: "x", at[1]: "C"}
        weight, bias, layer = (self.given[name] for name in ("weight", "bias", "layer"))
        order = "".join(letters[place] for place in range(3))
        layout, rows = _stored(x)
        y: Tensor = gated_short_conv(rows, weight, bias, order=order, layout=layout, layer=layer)
        self.fusing.calls.append("gated_short_conv")
        return y.transpose(1, 2) if layout == "NWC" else y


class _Tokens(_Rows):
    """A causal convolution's result with tokens first, [N, L, C]."""

    def __init__(self, rows: _Causal) -> None:
        N, C, L = rows.shape
        super().__init__(rows.fusing, rows.x, (N, L, C))
        self.rows = rows

    def compute(self) -> Tensor:
        """By the function that was called."""
        return self.rows.value().transpose(1, 2)

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A silu, a split of the channels."""
        if (found := self.rows.activated(function, args, named)) is not None:
            return handed_on(_Tokens, found)
        named = {_SPLIT_SIZES.get(name, name): one for name, one in named.items()}
        return self.split(*args, **named) if function in _SPLITS else None

    def split(self, split_size: Any, dim: int = 0) -> Any:
        """Parts [N, L, size] by one call, where channels are split."""
        sizes = split_size
        fits = isinstance(sizes, (tuple, list)) and dim % 3 == 2 and sum(sizes) == self.shape[2]
        if not (fits and self.is_open()):
            return self.value().split(sizes, dim)  # type: ignore[no-untyped-call]
        x, given = self.input(), self.rows.given
        layout, rows = _stored(x)
        whole, first = _whole(rows) if layout == "NWC" else (rows.contiguous(), None)
        parts = causal_conv1d_split(
            whole, given["weight"], given["bias"],
            splits=tuple((1, size, False) for size in sizes), activation=given["activation"],
            layout=layout, layer=given["layer"], first_channel=first,
        )  # fmt: skip
        self.fusing.calls.append("causal_conv1d_split")
        return tuple(part.flatten(2) for part in parts)


class _Padded(_Rows):
    """A module's convolution of rows with as many zeros on either side as it has taps, less one.

    plain: the forward of the module's class; rows: what it is given, perhaps a product.
    """

    def __init__(self, mode: Fusing, plain: Any, convolution: Any, rows: Any) -> None:
        self.taps = convolution.kernel_size[0]
        super().__init__(mode, rows.x if isinstance(rows, _Product) else rows, rows.shape)
        self.sizes = torch.Size((*rows.shape[:2], rows.shape[2] + self.taps - 1))
        self.plain, self.convolution, self.rows = plain, convolution, rows

    def compute(self) -> Tensor:
        """By the module."""
        self.input()
        y: Tensor = self.plain(tensor_of(self.rows))
        return y

    def __getitem__(self, at: Any) -> Any:
        columns = self.shape[2] - self.taps + 1
        ends = (slice(None, columns), slice(None, 1 - self.taps))
        firsts = [each for end in ends for each in ((..., end), (slice(None), slice(None), end))]
        found = self.causal() if isinstance(at, tuple) and at in firsts and self.is_open() else None
        return self.value()[at] if found is None else found

    def causal(self) -> _Causal | None:
        """The first columns, pending, or None."""
        self.check()
        weight, own = self.convolution.weight.squeeze(1), self.convolution
        found = self.fusing.convolved((self.rows, weight, own.bias), {"layer": own.layer, "strict_nonfinite": False})
        if found is not None:
            found.sliced = True
        return found

    @staticmethod
    def of(plain: Any, convolution: Any, rows: Any) -> _Padded | None:
        """Of a module's call within the forward that fuses, or None."""
        if torch.compiler.is_compiling():
            return None
        mode = torch.overrides._get_current_function_mode()  # type: ignore[no-untyped-call]
        if not isinstance(mode, Fusing) or mode.is_paused or convolution.activation is not None:
            return None
        pends = isinstance(rows, Pending)
        is_open = isinstance(rows, _Product) and rows.is_open() if pends else isinstance(rows, Tensor)
        (taps,) = convolution.kernel_size
        numbers = convolution.padding, convolution.stride, convolution.dilation, convolution.padding_mode
        fits = numbers == ((taps - 1,), (1,), (1,), "zeros") and 1 < taps and convolution.groups == rows.shape[1]
        fits = fits and convolution.groups == convolution.out_channels and rows.dim() == 3 and rows.shape[2] > 0
        fits = fits and rows.dtype == stored_filter(convolution).dtype and not taps_unsupported(taps)
        is_open = is_open and not has_hooks_after(convolution)
        return handed_on(_Padded, mode, plain, convolution, rows) if is_open and fits else None


class Fusing(TorchFunctionMode):
    """Makes results pending that a fused call may take; calls: those made; norms: running means in them.

    eager: products are computed as well, for a cache may keep them.
    """

    def __init__(self, eager: bool = False) -> None:
        super().__init__()
        self.eager, self.is_paused = eager, False
        self.calls: list[str] = []
        self.norms: list[Tensor] = []
        self._chunks: list[tuple[Tensor, Tensor, int, int | None]] = []  # (chunk, of what, its place, version)
        self._products: list[tuple[Tensor, _Product, int | None]] = []  # (tensor, what it is, version)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch, or of nkiconv, which are given tensors alone."""
        named = kwargs or {}
        found: Any = None
        if self.is_paused:
            return func(*args, **named)
        if func is causal_conv1d_fn:
            found = self.convolved(args, named)
        elif func is F.glu:
            found = self._glu(*args, **named)
        elif func in PRODUCTS and len(args) == 2 and not named:
            found = self._product(*args)
        if found is not None:
            return found
        if str(getattr(func, "__module__", "")).startswith("nkiconv."):
            return func(*tree_map(tensor_of, args), **tree_map(tensor_of, named))
        found = func(*args, **named)
        if func in _CHUNKS and len(found) == 3:
            x = args[0] if args else named["input"]
            if x.dim() == 3 and x.shape[1] == 3 * found[0].shape[1]:
                self._chunks += [(chunk, x, place, version_of(x)) for place, chunk in enumerate(found)]
        return found

    def chunk_of(self, one: Any) -> tuple[Tensor, int] | None:
        """(a tensor, which of its three chunks of channels this is)."""
        found = (own for own in self._chunks if own[0] is one and version_of(own[1]) == own[3])
        # without gradients a chunk has none, whatever it is of
        return next(((x, place) for _, x, place, _ in found if x.requires_grad == one.requires_grad), None)

    def _glu(self, input: Any, dim: int = -1) -> _Glu | None:
        if isinstance(input, Pending) or not isinstance(input, Tensor):
            return None
        takes = input.dim() == 3 and dim % 3 == 1 and input.shape[1] % 2 == 0
        return handed_on(_Glu, self, input) if takes else None

    def _product(self, one: Any, other: Any) -> Any:
        first, second = self.chunk_of(one), self.chunk_of(other)
        if first is None or second is None or first[0] is not second[0] or first[1] == second[1]:
            return None
        found = handed_on(_Product, self, first[0], (one, other), (first[1], second[1]))
        if not self.eager:
            return found
        self._products.append((found.value(), found, version_of(found.value())))
        return found.tensor

    def convolved(self, args: Any, named: Any) -> _Causal | None:
        """A call of causal_conv1d_fn, pending, or None."""
        bound = _SIGNATURE.bind(*args, **named)
        bound.apply_defaults()
        given, weight = bound.arguments, bound.arguments["weight"]
        others = [one for name, one in given.items() if name not in _TENSORS and name not in _NO_MORE]
        if (
            given["layout"] != "NCW"
            or not all(one is None or one is False for one in others)
            or modes.wants_strict_nonfinite(given["strict_nonfinite"])
        ):
            return None
        given["activation"] = checks.activation_of("causal_conv1d_fn", given["activation"])
        product = self._product_of(given["x"])
        x = tensor_of(given["x"]) if product is None or given["activation"] else given["x"]
        if x.dim() != 3 or x.dtype != weight.dtype or taps_unsupported(weight.shape[1]):
            return None
        if product is None or given["activation"] is not None:
            found: _Causal = handed_on(_Causal, self, x, {**given, "x": x})
        else:
            found = handed_on(_Causal, self, product.input(), given, product.places)
        return found

    def _product_of(self, x: Any) -> _Product | None:
        """The product that a tensor is or stands for; None for other tensors."""
        if isinstance(x, _Product):
            return x if x.is_open() else None
        found = (own for tensor, own, version in self._products if tensor is x and version_of(x) == version)
        return next((own for own in found if own.moment.is_now()), None)


class FusesRows(Changed):
    """A module whose forward runs under `Fusing`."""

    def forward(self, *args: Any, **named: Any) -> Any:
        given = tree_leaves((args, named))
        tensor = next((one for one in given if isinstance(one, Tensor)), None)
        if tensor is None or torch.compiler.is_compiling() or modes.is_autocast(tensor.device.type):
            return super().forward(*args, **named)
        with Fusing(not all(isinstance(one, _PLAIN) for one in given)) as mode:
            found = tree_map(tensor_of, super().forward(*args, **named))
        noted = vars(self).get(CALLS)
        if noted is not None:
            noted.append(mode)
        return found


#: Name of the attribute of a module that is a list of its forwards' modes, where a proof reads them.
CALLS = "nkiconv_calls"


class TakesGlu(Changed):
    """A depthwise convolution that takes a pending GLU or product and returns a Pending."""

    def forward(self, input: Any, *args: Any, **named: Any) -> Any:
        fits = isinstance(input, _Glu) and input.is_open() and input.dtype == stored_filter(self).dtype
        if fits and not (args or named or modes.wants_strict_nonfinite(self.strict_nonfinite)):
            found = handed_on(_GluConvolved, input.fusing, input.input(), self)
            return found if self.activation is None else found.activated(self.activation)
        strict = modes.wants_strict_nonfinite(self.strict_nonfinite)
        padded = None if args or named or strict else _Padded.of(super().forward, self, input)
        if padded is not None:
            return padded
        # a pending norm is the class's own to take
        return super().forward(tensor_of(input) if isinstance(input, _Rows) else input, *args, **named)
