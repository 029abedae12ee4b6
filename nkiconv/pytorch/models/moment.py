"""torch's modes at the moment of a call whose result is computed later: that runs in the same modes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._functorch import utils

from ..computers.modes import is_autocast


class Moment(NamedTuple):
    """Whether gradients, and inference mode, were on; torch.autocast was off on these devices."""

    grad: bool
    inference: bool
    kind: str

    @classmethod
    def of(cls, x: torch.Tensor) -> Moment:
        """The present one, for a call with x."""
        return cls(torch.is_grad_enabled(), _is_inference(), x.device.type)

    def is_now(self) -> bool:
        """Whether a call now has the same derivatives and dtypes as one then."""
        return (torch.is_grad_enabled(), _is_inference()) == self[:2] and not is_autocast(self.kind)

    @contextmanager
    def again(self) -> Iterator[None]:
        """The modes of then, which are not these."""
        with torch.inference_mode(self.inference), torch.set_grad_enabled(self.grad):
            if not is_autocast(self.kind):
                yield
                return
            with torch.autocast(self.kind, enabled=False):
                yield


def _is_inference() -> bool:
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()  # dynamo traces no question of it


def read_by_functions(tensor_of: Callable[[Any], Any]) -> None:
    """Give torch.autograd.Function tensors, by tensor_of, in the place of what is computed later.

    Its `apply` asks no __torch_function__: torch's C++ would see no tensor, so that its gradient were lost, or read the
    memory of one.
    """
    unwrap = utils.unwrap_dead_wrappers

    @functools.wraps(unwrap)
    def unwrapped(args: tuple[Any, ...]) -> tuple[Any, ...]:
        return unwrap(tuple(map(tensor_of, args)))

    utils.unwrap_dead_wrappers = unwrapped
