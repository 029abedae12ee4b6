"""Derivatives of an operator in both modes, also twice and under torch.func's transforms.

torch.library's `register_autograd` supports neither functorch nor forward mode, whose tangents it drops silently. So
each operator has its own kernel for the dispatcher's Autograd key, like torch's operators: a single-level autograd
function that each level of a transform calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import _C
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from ..errors import UnsupportedError

_LIBRARY = torch.library.Library("nkiconv", "FRAGMENT")  # type: ignore[no-untyped-call]

#: The key that marks views. It is excluded below an operator, whose results may be changed in place.
_VIEWS = _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView)

Gradients = tuple[Any, ...]


class Derivatives(NamedTuple):
    """Derivatives of an operator.

    remember: takes a context, the operator's arguments and its result, and saves values for the others.
    backward: takes the context and gradients of results, some of them None, returns gradients of its first arguments.
    forward_mode: takes the context, its saved tensors and tangents of the arguments, returns tangents of results.
    """

    remember: Callable[[Any, tuple[Any, ...], Any], None]
    backward: Callable[..., Sequence[Any]]
    forward_mode: Callable[[Any, Any, Gradients], Any]


def register(name: str, derivatives: Derivatives) -> None:
    """Give operator `nkiconv::name` derivatives."""
    operator = getattr(torch.ops.nkiconv, name).default
    is_list = len(operator._schema.returns) == 1 and isinstance(operator._schema.returns[0].type, torch.ListType)

    def below(keyset: Any, args: tuple[Any, ...]) -> Any:
        with _C._AutoDispatchBelowAutograd(), _C._ExcludeDispatchKeyGuard(_VIEWS):
            return operator.redispatch(keyset & _C._after_autograd_keyset, *args)

    def forward(ctx: Any, keyset: Any, *args: Any) -> Any:
        with _further_out():
            result = below(keyset, args)
        ctx.set_materialize_grads(False)
        ctx.count = len(args)
        derivatives.remember(ctx, args, result)
        return tuple(result) if isinstance(result, list) else result

    def back(ctx: Any, *g: Any) -> Gradients:
        found = () if all(one is None for one in g) else derivatives.backward(ctx, *g)
        return None, *found, *[None] * (ctx.count - len(found))

    def ahead(ctx: Any, _keyset: Any, *tangents: Any) -> Any:
        saved = ctx.saved_tensors
        if _C._are_functorch_transforms_active():  # primals of this level, which may have tangents further out
            saved = [None if one is None else forward_ad.unpack_dual(one).primal for one in saved]  # type: ignore
        with _further_out():
            return derivatives.forward_mode(ctx, saved, tangents)

    methods = {"forward": forward, "backward": back, "jvp": ahead}
    function: Any = type(f"nkiconv_{name}", (_SingleLevelFunction,), {k: staticmethod(v) for k, v in methods.items()})

    def kernel(keyset: Any, *args: Any) -> Any:
        if is_forward_mode() or (torch.is_grad_enabled() and _C._any_requires_grad(*args)):
            with enable_single_level_autograd_function():
                result = function.apply(keyset, *args)
                return list(result) if is_list else result
        return below(keyset, args)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # of the kernel that this replaces
        _LIBRARY.impl(name, kernel, "Autograd", with_keyset=True)  # type: ignore[no-untyped-call]


def running_again(
    again: Callable[..., Sequence[torch.Tensor]], tensors: int, where: Callable[[tuple[Any, ...]], str]
) -> Derivatives:
    """Of an operator that keeps only its arguments.

    again: computes its results from its arguments by operators that autograd knows; tensors: how many of them come
    first; where: who calls, from its arguments, for messages.
    """

    def remember(ctx: Any, inputs: tuple[Any, ...], _results: Any) -> None:
        ctx.rest = inputs[tensors:]
        save(ctx, *inputs[:tensors])

    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Sequence[Any]:
        return by_running_again(lambda *given: again(*given, *ctx.rest), ctx.saved_tensors, gradients)

    def forward_mode(ctx: Any, *_: Any) -> Any:
        raise UnsupportedError(
            f"{where((None,) * tensors + ctx.rest)}: has no derivatives in forward mode where a kernel computes; use "
            f"reverse mode, or torch on cpu"
        )

    return Derivatives(remember, backward, forward_mode)


def by_running_again(
    results: Callable[..., Sequence[torch.Tensor]], saved: Sequence[Any], gradients: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Gradients of the saved arguments that need them, from gradients of results, by torch's autograd through
    `results`, which computes the results from the arguments by differentiable operations."""
    wanted = [i for i, one in enumerate(saved) if one is not None and one.requires_grad]
    alive, of_results = unwrap_dead_wrappers(tuple(saved)), [one for one in gradients if one is not None]

    def again(*some: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results that have gradients, with others in the place of the wanted arguments."""
        given = list(alive)
        for i, one in zip(wanted, some, strict=True):
            given[i] = one
        return tuple(y for y, of in zip(results(*given), gradients, strict=True) if of is not None)

    found: Sequence[torch.Tensor | None] = (None,) * len(wanted)
    if any(one is not other for one, other in zip(alive, saved, strict=True)):
        # the transform that saved them has ended, as of torch.func.vjp: no graph begins at them, so another tracks them
        found = torch.func.vjp(again, *(alive[i] for i in wanted))[1](tuple(of_results))
    else:
        twice = torch.is_grad_enabled()
        with torch.enable_grad():
            # aliases: a gradient may depend on an argument; what reaches that through it must not count here too
            inputs = [alive[i].view_as(alive[i]) for i in wanted]
            pairs = [(y, of) for y, of in zip(again(*inputs), of_results, strict=True) if y.requires_grad]
            if pairs and wanted:
                outputs, of_outputs = zip(*pairs, strict=True)
                found = torch.autograd.grad(outputs, inputs, of_outputs, create_graph=twice, allow_unused=True)
    each = dict(zip(wanted, found, strict=True))
    return [each.get(i) for i in range(len(saved))]


@contextmanager
def _further_out() -> Iterator[None]:
    """Enable gradients for the outer levels of a transform: torch disables them for all in a function's methods."""
    if not _C._are_functorch_transforms_active():
        yield
        return
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def is_forward_mode() -> bool:
    """Whether derivatives in forward mode may be asked for."""
    return forward_ad._current_level >= 0


def save(ctx: Any, *tensors: Any) -> None:
    """Keep tensors for derivatives in both directions."""
    ctx.save_for_backward(*tensors)
    if is_forward_mode():
        ctx.save_for_forward(*tensors)
