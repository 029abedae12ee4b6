"""Tensors that modules of a fused chain return before they are computed: act(norm(x)), and a convolution of it.

A norm returns a `Normed`; the activation is noted on it; the convolution computes all three by one call. If a sum
follows, the convolution returns a `Convolved`, which takes the other term as the call's residual. Any other use of
either computes it first, by the modules' own forwards. If an input was changed in place in the meantime, that raises an
error; so every order of calls gives the same values.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from ...activations import ACTIVATIONS
from ...errors import UnsupportedError, refuse
from ..computers.host import activate
from .moment import Moment, read_by_functions

#: nkiconv's names of torch's functions; where one is several, by its options besides the tensor.
_NAMES: dict[Any, str] = {
    F.relu: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    F.silu: "silu",
    torch.tanh: "tanh",
    torch.sigmoid: "sigmoid",
}
_GELU = {str(own.options.get("approximate", "none")): name for name, own in ACTIVATIONS.items() if "gelu" in name}
#: Modes of F.pad that put copies of pixels around images.
_PADDINGS = ("replicate", "reflect", "circular")
#: The identity in eval mode: (input, p, training, inplace).
_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout)
SUMS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
PRODUCTS = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__)


class Pending:
    """A tensor that is computed on its first use (`value`); from then on this stands for that tensor.

    tensor: the tensor, once it is computed; activation: that its call ends with; x: of which it is; reads: tensors of
    which it is, and how often each had been changed in place; moment: torch's modes then.
    """

    tensor: Tensor | None = None
    activation: str | None = None
    x: Tensor
    reads: tuple[tuple[Tensor, int | None], ...] = ()
    moment: Moment

    def keep(self, *tensors: Tensor) -> None:
        """Note the tensors of which this is, and torch's modes, as they are now."""
        self.reads = tuple((one, version_of(one)) for one in tensors)
        self.moment = Moment.of(tensors[0])

    def check(self) -> None:
        """Raise UnsupportedError if one of them was changed in place since."""
        text = (
            "input: was changed in place between a norm, linear layer or upsampling and what computes its result, "
            "which convert(fuse=True) made one call; convert this model with fuse=False"
        )
        # where the one moment was under torch.compile and the other was not, nothing is known
        known = ((version, version_of(one)) for one, version in self.reads)
        is_as_it_was = all(then == now or None in (then, now) for then, now in known)
        refuse(UnsupportedError, "" if is_as_it_was else text)

    def input(self) -> Tensor:
        """x, as it was given. Raises UnsupportedError: it has changed since then."""
        self.check()
        return self.x

    def value(self) -> Tensor:
        """The tensor."""
        if self.tensor is None and self.moment.is_now():
            self.tensor = self.compute()
        elif self.tensor is None:
            with self.moment.again():
                self.tensor = self.compute()
        return self.tensor

    def is_open(self) -> bool:
        """Whether a step can still be taken without the tensor: it is not computed, and torch's modes are the same."""
        return self.tensor is None and self.moment.is_now()

    def compute(self) -> Tensor:
        """The tensor, as the modules' own forwards give it."""
        raise NotImplementedError

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The result of a torch function without computing this, or None if that cannot be. args: after the first."""
        return None

    def with_activation(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """This with the activation that a function applies, in a copy unless the function changes its input; None for
        other functions and after another activation. args: after the first."""
        activation = activation_of(function, named)
        if activation is None or self.activation is not None:
            return None
        if is_in_place(function, args, named):
            self.activation = activation
            return self
        return self.but(activation=activation)

    def but(self, **noted: Any) -> Any:
        """A copy with other attributes."""
        found = type(self).__new__(type(self))
        vars(found).update(vars(self) | noted)
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        named = kwargs or {}
        at = next((i for i, one in enumerate(args) if isinstance(one, Pending)), -1)
        if at >= 0 and args[at].is_open() and (at == 0 or func in (*SUMS, *PRODUCTS)):
            found = args[at].step(func, (*args[:at], *args[at + 1 :]), named)
            if found is not None:
                return found
        return func(*tree_map(tensor_of, args), **tree_map(tensor_of, named))

    def __getattr__(self, name: str) -> Any:
        """Of the tensor."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value(), name)

    def stepped(self, function: Any, of_tensors: Callable[..., Any], *args: Any) -> Any:
        """The result of a torch function without computing this where that can be; else what `of_tensors` gives."""
        found = self.step(function, args, {}) if self.is_open() else None
        return of_tensors(self.value(), *map(tensor_of, args)) if found is None else found

    def __add__(self, other: Any) -> Any:
        return self.stepped(torch.add, operator.add, other)

    def __mul__(self, other: Any) -> Any:
        return self.stepped(torch.mul, operator.mul, other)

    __iadd__ = __radd__ = __add__  # the graphs show no other reader of what is added to
    __rmul__ = __mul__


def handed_on(kind: Callable[..., Pending], *given: Any, **named: Any) -> Any:
    """A Pending whose instances are Tensors, for other code. torch.compile cannot trace such classes; under it only
    modules see a Pending."""
    return (kind if torch.compiler.is_compiling() else _as_tensors(kind))(*given, **named)


def _without_data(kind: Any, *_: Any, **__: Any) -> Any:
    """A tensor that torch's C++ may hold; it has no memory to read."""
    return Tensor._make_wrapper_subclass(kind, (1,))


def _by_cpp(func: Any, types: Any, args: Any = (), named: Any = None) -> Tensor:
    """A copy without derivatives, as torch.tensor makes it; all else is refused."""
    if func is torch.ops.aten.detach.default:
        return tensor_of(args[0]).detach()  # type: ignore[no-any-return]
    raise UnsupportedError(
        f"{func}: torch's C++ reads a result that convert(fuse=True) computes later; pass on result.clone() here, or "
        f"convert this model with fuse=False"
    )


@functools.cache
def _as_tensors(kind: Any) -> Any:
    more = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__new__": _without_data}
    more |= {"__torch_dispatch__": staticmethod(_by_cpp), "__class__": property(lambda _: Tensor)}
    return types.new_class(kind.__name__, (kind, Tensor), exec_body=lambda body: body.update(more))


def tensor_of(one: Any) -> Any:
    """The tensor in the place of a pending one."""
    return one.value() if isinstance(one, Pending) else one


def _through(name: str) -> Callable[..., Any]:
    def method(self: Pending, *args: Any, **named: Any) -> Any:
        return getattr(self.value(), name)(*map(tensor_of, args), **named)

    return method


for _name in (
    *("sub", "rsub", "isub", "imul", "truediv", "rtruediv", "itruediv", "floordiv", "rfloordiv", "mod", "rmod"),
    *("pow", "rpow", "matmul", "rmatmul", "neg", "pos", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"),
    *("and", "rand", "or", "ror", "xor", "rxor", "getitem", "setitem", "contains", "reversed", "len", "iter"),
    *("ipow", "ifloordiv", "imod", "bool", "float", "int", "complex", "index", "format", "array"),
    *("deepcopy", "reduce_ex"),
):
    setattr(Pending, f"__{_name}__", _through(f"__{_name}__"))
read_by_functions(tensor_of)


class Padding(NamedTuple):
    """Padding by copies of pixels (F.pad's modes but "constant"), which commutes with norms."""

    sides: tuple[int, ...]
    mode: str

    def around(self, x: Tensor) -> Tensor:
        """x with it."""
        return F.pad(x, self.sides, mode=self.mode)

    def sizes(self, shape: Sequence[int]) -> list[int]:
        """The shape of `around` of a tensor of a shape."""
        added = [0] * len(shape)
        added[: len(self.sides) // 2] = map(sum, zip(self.sides[::2], self.sides[1::2], strict=True))
        return [size + more for size, more in zip(shape, reversed(added), strict=True)]


def padding_of(function: Any, args: tuple[Any, ...], named: dict[str, Any], axes: int) -> Padding | None:
    """The Padding of a call of F.pad on images with a number of axes; None for other calls. args: after the first."""
    given = {**dict(zip(("pad", "mode"), args, strict=False)), **named}
    sides, mode = given.get("pad"), given.get("mode")
    if function is not F.pad or mode not in _PADDINGS or not isinstance(sides, Sequence):
        return None
    if len(sides) > 2 * (axes - 2) or not all(isinstance(side, int) for side in sides):
        return None
    return Padding(tuple(sides), mode)


class Shifted(Pending):
    """y + offset, a number for each channel, or each of each image, with as many axes as y: a norm may take both."""

    def __init__(self, y: Tensor, offset: Tensor) -> None:
        self.y, self.offset = y, offset
        self.keep(y, offset)

    def parts(self) -> tuple[Tensor, Tensor]:
        """(y, offset). Raises UnsupportedError: one has changed since their sum."""
        self.check()
        return self.y, self.offset

    def compute(self) -> Tensor:
        """The sum."""
        y, offset = self.parts()
        return y + offset


def _flat(row: Tensor) -> Tensor:
    """[N, C] or [C] of a number for each channel with as many axes as images."""
    flat = row.flatten(1)
    return flat[0] if flat.shape[0] == 1 else flat


class Modulated(Pending):
    """A norm's result, of x's dtype, perhaps times a number for each channel, plus one."""

    rows: dict[Any, Tensor]  # the factor of torch.mul after the norm, and the term of torch.add

    def modulation(self) -> dict[str, Tensor]:
        """The same as [N, C] or [C], by their names in `norm_act_conv2d`."""
        self.check()
        each = {"scale": self.rows.get(torch.mul), "shift": self.rows.get(torch.add)}
        return {name: _flat(one) for name, one in each.items() if one is not None}

    def modulated(self, z: Tensor) -> Tensor:
        """The norm's result z, scaled and shifted by channel."""
        self.check()
        factor, added = self.rows.get(torch.mul), self.rows.get(torch.add)
        z = z if factor is None else z * factor
        return z if added is None else z + added

    def with_row(self, function: Any, args: tuple[Any, ...], named: dict[str, Any], shape: Sequence[int]) -> Any:
        """This with the factor or the term of a product or a sum with numbers for each channel, of one or each image of
        a shape, if at most a product precedes it; None for other calls."""
        function = torch.mul if function in PRODUCTS else torch.add
        other = tensor_of(args[0]) if len(args) == 1 and not named else None
        if not isinstance(other, Tensor) or (other.dtype, other.device) != (self.x.dtype, self.x.device):
            return None
        images, channels, *pixels = shape
        is_row = other.shape[:1] in ((1,), (images,)) and tuple(other.shape[1:]) == (channels, *[1] * len(pixels))
        if not is_row or torch.add in self.rows or function in self.rows:
            return None
        reads = (*self.reads, (other, version_of(other)))
        return self.but(rows={**self.rows, function: other}, reads=reads)


class Normed(Modulated):
    """A norm of x, perhaps times a number for each channel, plus one, activated; norm: a module whose `plain_forward`
    computes it, in the mode, training or not, in which it was called; x: perhaps `Shifted`; own: the activation that
    the norm's forward ends with."""

    def __init__(self, norm: Any, x: Tensor | Shifted, own: str | None = None) -> None:
        self.norm_module, self.training = norm, norm.training
        self.x = x.y if isinstance(x, Shifted) else x
        self.shifted = x if isinstance(x, Shifted) else None
        self.rows = {}
        self.own = self.activation = own
        self.paddings: tuple[Padding, ...] = ()
        self.keep(self.x)
        self.computed: list[bool] = []  # not empty once the norm has run, shared by all of a call

    def is_first(self) -> bool:
        """Whether the norm runs for the first time for this call of it, and moves its running statistics if it has
        any."""
        self.computed.append(True)
        return len(self.computed) == 1

    def input(self) -> Tensor:
        """The norm's input, without the offset that is added to it. Raises UnsupportedError: it has changed since."""
        return super().input() if self.shifted is None else self.shifted.parts()[0]

    def offset(self) -> Tensor | None:
        """The offset that is added to x, [N, C] or [C]."""
        return None if self.shifted is None else _flat(self.shifted.offset)

    def padded(self, x: Tensor) -> Tensor:
        """A tensor of x's size with all paddings."""
        for one in self.paddings:
            x = one.around(x)
        return x

    def is_open(self) -> bool:
        """Not where the norm's mode has changed, either."""
        return super().is_open() and self.norm_module.training is self.training

    def compute(self) -> Tensor:
        """By the norm, then numbers for each channel, the activation, the padding."""
        x = self.input() if self.shifted is None else self.shifted.compute()
        norm, now = self.norm_module, self.norm_module.training
        norm.training = self.training
        try:
            z: Tensor = norm.plain_forward(x) if self.is_first() else norm.forward_again(x)
        finally:
            norm.training = now
        return self.finished(z)

    def finished(self, z: Tensor) -> Tensor:
        """The norm's result z, modulated, activated and padded."""
        z = self.modulated(z)
        if self.activation is not None and self.own is None:
            z = activate(z, self.activation)
        return self.padded(z)

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A product with numbers for each channel, a sum with such, an activation, a padding by pixels, or a dropout
        that drops nothing."""
        if drops_nothing(function, args, named):
            return self
        if function in (*PRODUCTS, *SUMS):
            early = self.activation is None and not self.paddings
            return self.with_row(function, args, named, self.x.shape) if early else None
        padding = padding_of(function, args, named, self.x.dim())
        if padding is not None:
            return self.but(paddings=(*self.paddings, padding))
        return self.with_activation(function, args, named)


def version_of(x: Tensor) -> int | None:
    """How often a tensor was changed in place; None for inference tensors and under torch.compile."""
    return None if torch.compiler.is_compiling() or x.is_inference() else x._version


def drops_nothing(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a call is a dropout that returns its input. args: after the first."""
    given = {**dict(zip(("p", "training", "inplace"), args, strict=False)), **named}
    return function in _DROPOUTS and not (given.get("training", True) and given.get("p", 0.5))


def is_in_place(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a call of an activation changes its input. args: after the first."""
    return function is torch.relu_ or bool(named.get("inplace", args[:1] == (True,)))


def activation_of(function: Any, named: dict[str, Any]) -> str | None:
    """nkiconv's name of torch's activation; None for other functions."""
    if function is F.gelu:
        return _GELU.get(named.get("approximate", "none"))
    return _NAMES.get(function)


class Upsampled(Pending):
    """Images x, each row and column twice."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.keep(x)

    def compute(self) -> Tensor:
        """By torch's own."""
        y: Tensor = torch.ops.aten.upsample_nearest2d.vec(self.input(), None, [2.0, 2.0])
        return y

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A dropout that drops nothing."""
        return self if drops_nothing(function, args, named) else None

    def type_as(self, other: Any) -> Any:
        """The same in another's dtype."""
        return self.value().type_as(other) if not self.is_open() else handed_on(Upsampled, self.input().type_as(other))


class Joined(Pending):
    """A video x behind so many copies of its first plane."""

    def __init__(self, x: Tensor, count: int) -> None:
        self.x, self.count = x, count
        self.keep(x)

    def parts(self) -> tuple[Tensor, Tensor]:
        """(x, the copies). Raises UnsupportedError: x has changed since."""
        x = self.input()
        return x, x[:, :, :1].expand(-1, -1, self.count, -1, -1)

    def compute(self) -> Tensor:
        """By torch."""
        x, copies = self.parts()
        return torch.cat([copies, x], 2)


class Convolved(Pending):
    """A convolution's result; its call may take a residual of its shape and an activation.

    call: takes the residual and the activation, or None for each; shape: the result's, with x's dtype and device; adds,
    activates: whether the graphs show a sum or an activation after it; over_one: whether the sum is divided by 1;
    shifts: whether a norm reads its sum with a value per channel.
    """

    def __init__(
        self,
        call: Callable[..., Tensor],
        shape: tuple[int, ...],
        x: Tensor,
        *,
        adds: bool = True,
        over_one: bool = False,
        activates: bool = False,
        shifts: bool = False,
    ) -> None:
        self.call, self.result, self.x = call, shape, x
        self.adds, self.over_one, self.activates, self.shifts = adds, over_one, activates, shifts
        self.residual: Tensor | None = None
        self.keep(x)

    def compute(self) -> Tensor:
        """By the call without an activation."""
        return self._called(None)

    def _called(self, activation: str | None) -> Tensor:
        self.check()
        return self.call(self.residual, activation)

    def step(self, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A sum with a tensor of the result's shape and dtype, an activation, a dropout that drops nothing."""
        if drops_nothing(function, args, named):
            return self
        activation = activation_of(function, named) if self.activates else None
        if activation is not None:
            y = self._called(activation)
            if is_in_place(function, args, named):
                self.tensor = y
            return y
        if self.residual is not None or function not in SUMS or named or len(args) != 1:
            return None
        other = tensor_of(args[0])
        if not isinstance(other, Tensor) or other.dtype != self.x.dtype or other.device != self.x.device:
            return None
        images, channels, *pixels = self.result
        if self.shifts and tuple(other.shape) in ((count, channels, *[1] * len(pixels)) for count in (1, images)):
            return handed_on(Shifted, self.value(), other)
        if not self.adds or tuple(other.shape) != self.result:
            return None
        total = self.but(residual=other, reads=(*self.reads, (other, version_of(other))))
        if self.activates:
            return total
        y = total.value()
        return handed_on(Divided, y) if self.over_one else y


class Divided(Pending):
    """A sum, all that sees which is a division by 1: it is the sum itself."""

    def __init__(self, y: Tensor) -> None:
        self.tensor = y

    def __truediv__(self, other: Any) -> Any:
        y = self.value()
        return y if type(other) in (int, float) and other == 1 else y / tensor_of(other)
