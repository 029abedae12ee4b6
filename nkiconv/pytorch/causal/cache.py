"""Slots of a cache that hold the states of sequences: reading and writing them.

Shapes depend on no value of a tensor, so that torch.compile traces all of it: a slot that must not change is written
with its own values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .ring import write


class Slots:
    """Sequences of a call and their slots.

    idle: [sequences], whether a sequence changes nothing: it is padding, or has no tokens.
    """

    def __init__(
        self,
        states: Tensor,
        starts: Tensor | None,
        indices: Tensor | None,
        pad_slot_id: int | None,
        initial: Tensor | None = None,
        count: int = 0,
    ) -> None:
        """Take the arguments of a call; initial: the block of each sequence that is read; count: sequences, where there
        are no starts."""
        device = states.device
        self.held = states
        self.starts: Any = None if starts is None else starts.to(device).long()
        self.count = count if starts is None else starts.shape[0] - 1
        given = torch.arange(self.count, device=device) if indices is None else indices.to(device).long()
        self.table = given.reshape(self.count, -1)
        self.idle = torch.zeros(self.count, dtype=torch.bool, device=device)
        self._initial = initial
        if pad_slot_id is not None and indices is not None:
            self.idle = self.rows(initial) == pad_slot_id
        if self.starts is not None:
            self.idle = self.idle | (self.lengths == 0)

    @property
    def lengths(self) -> Tensor:
        """[sequences]: tokens of each."""
        found: Tensor = self.starts[1:] - self.starts[:-1]
        return found

    def sequence_of(self, tokens: int) -> Tensor:
        """[tokens]: the sequence of each, as many as there are for one of none."""
        numbers = torch.arange(tokens, device=self.held.device)
        return torch.searchsorted(self.starts[1:].contiguous(), numbers, right=True)

    def padding_of(self, tokens: int) -> Tensor:
        """[tokens]: whether a token's sequence is idle, or it is of none."""
        none = torch.ones(1, dtype=torch.bool, device=self.held.device)
        return torch.cat([self.idle, none])[self.sequence_of(tokens)]

    def rows(self, blocks: Tensor | None) -> Tensor:
        """[sequences]: slots, by the numbers of blocks where there are some; -1 of idle sequences."""
        if blocks is None:
            found = self.table[:, 0]
        else:
            found = self.table.gather(1, blocks.to(self.table.device).long()[:, None])[:, 0]
        return torch.where(self.idle, -1, found)

    def states(self, size: int, first: Tensor | None = None) -> Tensor:
        """[sequences, C, size]: a copy of columns of each slot, from `first` on, or 0; of idle sequences any."""
        rows = self.rows(self._initial).clamp(min=0)
        if first is None:
            return self.held[..., :size].index_select(0, rows)
        begins = torch.where(self.idle, 0, first)
        columns = begins[:, None] + torch.arange(size, device=begins.device)
        return self.held[rows[:, None], :, columns].transpose(1, 2)

    def padded(self, x: Tensor, longest: int) -> Tensor:
        """[sequences, C, longest] of tokens [tokens, C], zeros after each sequence."""
        steps = torch.arange(longest, device=x.device)
        tokens = (self.starts[:-1, None] + steps).clamp(max=x.shape[0] - 1)
        own = steps < self.lengths[:, None]
        return torch.where(own[..., None], x[tokens], 0).transpose(1, 2)

    def unpadded(self, y: Tensor, tokens: int) -> Tensor:
        """[tokens, C] of y [sequences, C, longest], zeros for tokens of no sequence."""
        none = self.sequence_of(tokens) == self.count
        sequence = self.sequence_of(tokens).clamp(max=self.count - 1)
        steps = torch.arange(tokens, device=y.device) - self.starts[:-1][sequence]
        steps = steps.clamp(0, y.shape[2] - 1)
        return torch.where(none[:, None], 0, y[sequence, :, steps])

    def advance(self, history: Tensor, size: int, longest: int, keeps: bool, blocks: Tensor | None) -> None:
        """Put to slots, from their first column on, the end of history [sequences, C, size + longest]: `size` columns,
        or where it `keeps` all tokens those, after size - 1 columns."""
        if size == 0:
            return
        device = history.device
        lengths = self.lengths if self.starts is not None else torch.full((self.count,), longest, device=device)
        width = size - 1 + longest if keeps else size
        begins = torch.ones_like(lengths) if keeps else lengths
        columns = begins[:, None] + torch.arange(width, device=device)
        values = history.gather(2, columns.clamp(max=size + longest - 1)[:, None].expand(-1, history.shape[1], -1))
        rows = self.rows(blocks)
        if keeps:  # a shorter sequence keeps the columns after its tokens
            old = self.held[..., :width].index_select(0, rows.clamp(min=0))
            own = columns < size + lengths[:, None]
            values = torch.where(own[:, None], values, old)
        self.write(values[:, None], rows[:, None])

    def ends_of_blocks(self, size: int, first: Tensor, last: Tensor, computed: Tensor) -> tuple[Tensor, Tensor]:
        """([sequences, blocks]: tokens of this call up to the end of each block that is before the last; their slots).

        A slot is -1 where there is no such block.
        """
        first, last, computed = (one.to(self.held.device).long()[:, None] for one in (first, last, computed))
        numbers = torch.arange(self.table.shape[1], device=self.held.device)
        ends = (computed + self.lengths[:, None] - 1).div(size, rounding_mode="floor") * size
        positions = ends - (last - first - 1 - numbers) * size - computed
        wanted = (numbers < last - first) & (positions > 0) & ~self.idle[:, None]
        slots = self.table.gather(1, (first + numbers).clamp(max=self.table.shape[1] - 1))
        return positions, torch.where(wanted, slots, -1)

    def states_at(self, positions: Tensor, x: Tensor, before: Tensor) -> Tensor:
        """[sequences, blocks, C, size]: the inputs before so many tokens of x [C, tokens], of `before` in front."""
        size = before.shape[2]
        columns = positions[..., None] + torch.arange(-size, 0, device=x.device)
        tokens = (self.starts[:-1, None, None] + columns).clamp(0, max(0, x.shape[1] - 1))
        of_x = x[:, tokens].permute(1, 2, 0, 3)
        places = (columns + size).clamp(0, max(0, size - 1)).flatten(1)[:, None].expand(-1, before.shape[1], -1)
        of_state = before.gather(2, places).reshape(*before.shape[:2], positions.shape[1], size).transpose(1, 2)
        return torch.where((columns >= 0)[:, :, None], of_x, of_state)

    def write(self, values: Tensor, rows: Tensor) -> None:
        """Write values [sequences, blocks, C, columns] to the first columns of slots [sequences, blocks]; -1 skips
        one."""
        flat = values.flatten(0, 1)
        if flat.shape[0] > 0 and flat.shape[2] > 0:
            write(self.held[..., : flat.shape[2]], flat, rows.flatten())
