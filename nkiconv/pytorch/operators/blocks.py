"""Operators of blocks that one kernel computes, each declared once: its call, and functions of the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

from torch import Tensor

from ..computers import modes
from ..errors import UnsupportedError
from . import autograd, sharding
from .calls import batched_images
from .registrar import Arguments, Transforms, define, num_tensors


class Block(NamedTuple):
    """An operator; its functions take a call, whose first tensor has the rows.

    arguments: tensors first, the layer last; call: makes a call of them. check: refuses them. made: results without
    values. by_torch, by_kernel: results, tensors that are no views; the latter takes a `kernels.Backend` too.
    compared: takes a call and the simulator's results, returns torch's if these are near enough. again: results by
    operators that autograd knows. flops: of `Transforms`. rows: places of tensors with a row for each of the first's;
    none where batches may not be rows.
    """

    name: str
    arguments: Arguments
    call: Callable[..., Any]
    results: Any
    check: Callable[[Any], None]
    made: Callable[[Any], Sequence[Tensor]]
    by_torch: Callable[[Any], Sequence[Tensor]]
    by_kernel: Callable[[Any, Any], Sequence[Tensor]]
    compared: Callable[[Any, Any], Sequence[Tensor]]
    again: Callable[[Any], Sequence[Tensor]]
    flops: Callable[..., int]
    rows: Callable[[Any], Sequence[int]]


def define_block(block: Block) -> Any:
    """Register its operator."""
    tensors, is_list = num_tensors(block.arguments), block.results == list[Tensor]

    def packed(found: Sequence[Any]) -> Any:
        return found[0] if block.results is Tensor else list(found) if is_list else tuple(found)

    def forward(*args: Any) -> Any:
        given = block.call(*args)
        block.check(given)
        if given[0].shape[0] == 0:
            return packed(block.made(given))
        found = modes.results(
            given[0],
            lambda: block.by_torch(given),
            lambda backend: block.by_kernel(given, backend),
            lambda found: block.compared(given, found),
        )
        return packed(found)

    def fake(*args: Any) -> Any:
        given = block.call(*args)
        block.check(given)
        return packed(block.made(given))

    def batched(info: Any, in_dims: Any, *args: Any) -> Any:
        several = (lambda *given: (operator(*given),)) if block.results is Tensor else operator
        rows = block.rows(block.call(*args))
        if not rows:
            raise UnsupportedError(f"{block.name}: torch.vmap takes no packed sequences; concatenate them in the row")
        found, dims = batched_images(several, info.batch_size, in_dims[:tensors], args, rows)
        return packed(found), packed(dims)

    def by_rows(*args: Any) -> sharding.Split:
        return block.rows(block.call(*args)), [sharding.SHARDED] * (len(get_args(block.results)) or 1)

    derivatives = autograd.running_again(
        lambda *args: block.again(block.call(*args)), tensors, lambda args: args[-1] or block.name
    )
    # torch has no strategies for lists
    transforms = Transforms(batched, block.flops, None if is_list else by_rows)
    operator = define(block.name, block.arguments, block.results, forward, fake, derivatives, transforms)
    return operator
