"""The buffer of a decoder: the last inputs of each row, at the end of the buffer or around a ring."""

from __future__ import annotations

import torch
from torch import Tensor


class ConvState:
    """The rows of a conv_state for the rows of x.

    padding: [N], True for rows of x without a row of conv_state; None if there are none.
    """

    def __init__(self, conv_state: Tensor, cache_seqlens: Tensor | None, indices: Tensor | None) -> None:
        """Take the arguments of causal_conv1d_update."""
        device = conv_state.device
        self.conv_state = conv_state
        self.begins = None if cache_seqlens is None else cache_seqlens.to(device).long()
        self.indices = None if indices is None else indices.to(device).long()
        self.padding = None if self.indices is None else self.indices < 0

    def without_padding(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Tensors [N, ...] with zeros for padding, whose values must not reach other rows through the kernel."""
        if self.padding is None:
            return tensors
        return tuple(torch.where(self.padding.reshape(-1, *[1] * (one.dim() - 1)), 0, one) for one in tensors)

    def before(self, size: int) -> Tensor:
        """[N, C, size]: the inputs before x."""
        if self.begins is not None:
            return self._ring(self._rows(), self._positions(-size, 0)).transpose(1, 2)
        length = self.conv_state.shape[2]
        last = self.conv_state if length == size else self.conv_state[..., length - size :]
        return last if self.indices is None else last.index_select(0, self._rows())

    def advance(self, x: Tensor, final: Tensor | None) -> None:
        """Append x [N, C, L] to the inputs; final: the buffer's new contents, if they are known."""
        length = self.conv_state.shape[2]
        kept = min(x.shape[2], length)
        if self.begins is not None:
            self._write_ring(x[..., x.shape[2] - kept :].detach(), self._positions(x.shape[2] - kept, x.shape[2]))
            return
        held = self.conv_state if self.indices is None else self.conv_state.index_select(0, self._rows())
        if final is None:
            final = torch.cat([held[..., kept:], x[..., x.shape[2] - kept :]], dim=2)
        final = final.detach()  # the buffer has no derivative
        if self.indices is None:
            self.conv_state.copy_(final)
        else:
            write(self.conv_state, final, self.indices)

    def _rows(self) -> Tensor:
        """[N]: rows of conv_state; arbitrary for padding."""
        if self.indices is None:
            return torch.arange(self.conv_state.shape[0], device=self.conv_state.device)
        return self.indices.clamp(min=0)

    def _positions(self, first: int, end: int) -> Tensor:
        """[N, end - first]: where inputs are in the circular buffer, x's first one being number 0."""
        assert self.begins is not None
        numbers = torch.arange(first, end, device=self.conv_state.device)
        return (self.begins[:, None] + numbers).remainder(max(1, self.conv_state.shape[2]))

    def _ring(self, rows: Tensor, positions: Tensor) -> Tensor:
        """[N, positions, C] of the ring."""
        return self.conv_state[rows[:, None], :, positions]

    def _write_ring(self, x: Tensor, positions: Tensor) -> None:
        rows, values = self._rows(), x.transpose(1, 2)
        if self.padding is not None:
            source, some = _writers(self.padding)
            rows, positions = rows[source], positions[source]
            values = torch.where(some, values[source], self._ring(rows, positions))
        self.conv_state[rows[:, None], :, positions] = values


def write(held: Tensor, values: Tensor, rows: Tensor) -> None:
    """Write values [N, ...] to rows [N] of a tensor; a negative number skips one."""
    source, some = _writers(rows < 0)
    target = rows[source].clamp(min=0)
    held.index_copy_(0, target, torch.where(some, values[source], held.index_select(0, target)))


def _writers(skipped: Tensor) -> tuple[Tensor, Tensor]:
    """([N]: the row whose value each row writes; whether any row is not skipped).

    Shapes must not depend on the number of skipped rows: these repeat the first write of another row, or, if all are
    skipped, write the present values.
    """
    rows = torch.arange(skipped.shape[0], device=skipped.device)
    return torch.where(skipped, skipped.int().argmin(), rows), ~skipped.all()
