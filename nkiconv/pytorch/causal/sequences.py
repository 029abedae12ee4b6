"""Several sequences in one launch: a row with the state of each sequence, or zeros, in front of its tokens.

    row      s0 s0 s0 a a a a a  s1 s1 s1 b b  s2 s2 s2 c c c      width 4; s: states or zeros
    y                 A A A A A  -  -  -  B B  -  -  -  C C C      results at "-" are dropped

A window of width columns that ends in a sequence reads that sequence and the state before it, nothing else. A mask
cannot do that: NaN and Inf times zero are NaN. For the same reason the kernel runs with `strict_nonfinite`; without it
the kernel may itself multiply neighbouring columns by zeros.

The cost over a row without boundaries: a copy of x into the row and one of y out of it, each with the bytes that the
kernel moves; width - 1 columns for each sequence; and no algorithms that multiply by zeros. Modelled, for the kernel
alone: 8,192 channels of 4,096 tokens in 8 sequences, width 4, bf16, bias and silu take 350 us, as one sequence 207 us.

The kernel computes dL/dw from the row and dL/dz, which is zero at "-"; those zeros would multiply the last tokens of
the sequence before and the states. So the columns that such windows read are zeroed in the row (`Packing.edges`), and
torch adds their products with the windows of tokens: as many columns as a state has, twice for each sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import refuse, shown
from ..computers import dispatch, host
from ..errors import GeometryError, UnsupportedError
from ..operators import filter_gradients, gradients
from ..operators.called import Called
from ..operators.convolution import Convolution, filter_like
from .checks import cumulated
from .states import Call

#: y of a call.
Convolve = Callable[[Called], Any]
#: Rules of a row of seq_idx: of all, and of one with a state in front.
_RISES = (
    "must not fall along a row, but for negative numbers (tokens of no sequence); number the sequences in their order"
)
_BEGINS = (
    "with initial_states must begin with a token of a sequence, which goes on after them; cut the tokens of no "
    "sequence off"
)


@dataclass(frozen=True)
class Packing:
    """Where tokens and states are in the row; tokens are numbered over all rows of x.

    gap: columns of a state, width - 1. total: tokens. tokens: the numbers of those that belong to a sequence, or None
    where all do. sequence: the sequence of each of them, from 0. starts, ends: first token of each sequence, and the
    one after its last. firsts, lasts: of each row of x the first and last sequence, whose states are the row's; None
    where each sequence has states. All are int64, on x's device.
    """

    gap: int
    total: int
    tokens: torch.Tensor | None
    sequence: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    firsts: torch.Tensor | None = None
    lasts: torch.Tensor | None = None

    @property
    def count(self) -> int:
        """Sequences."""
        return self.starts.shape[0]

    @property
    def length(self) -> int:
        """Columns of the row."""
        return self.total + self.gap * self.count

    def outputs(self) -> torch.Tensor:
        """The columns of y that belong to tokens; their inputs are `gap` columns further on."""
        tokens = torch.arange(self.total, device=self.starts.device) if self.tokens is None else self.tokens
        return tokens + self.gap * self.sequence

    def initial(self) -> torch.Tensor:
        """Columns of the row that hold the initial states that a call gives, one after the other."""
        return self._states(self.starts, self.firsts)

    def final(self) -> torch.Tensor:
        """Columns of the row that are the final states that it wants."""
        return self._states(self.ends, self.lasts)

    def _states(self, begins: torch.Tensor, some: torch.Tensor | None) -> torch.Tensor:
        """Columns of the states of all sequences, or of some."""
        order, columns = (torch.arange(size, device=begins.device) for size in (self.count, self.gap))
        found = begins + self.gap * order
        return ((found if some is None else found[some])[:, None] + columns).flatten()

    def edges(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(columns of the row that windows of no token see too; for each tap whether a token's window does: [columns,
        width])."""
        windows = torch.zeros(self.length + self.gap, dtype=torch.bool, device=self.starts.device)
        windows = windows.index_fill(0, self.outputs() + self.gap, True)
        seen = windows.unfold(0, self.gap + 1, 1).flip(1)
        if self.tokens is not None:
            columns = (~seen.all(1)).nonzero()[:, 0]
            return columns, seen.index_select(0, columns)
        # their number does not depend on the offsets; those of sequences shorter than a state are initial ones too
        initial, final = self._states(self.starts, None), self._states(self.ends, None)
        again = final < initial.reshape(self.count, self.gap)[:, :1].add(self.gap).expand(-1, self.gap).flatten()
        seen = torch.cat([seen.index_select(0, initial), seen.index_select(0, final) & ~again[:, None]])
        return torch.cat([initial, final]), seen

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """[C, tokens of sequences] of a tensor [N, C, L]."""
        flat = tensor.transpose(0, 1).flatten(1)
        return flat if self.tokens is None else flat.index_select(1, self.tokens)

    def put(self, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The inverse of `take`; zeros where a token belongs to no sequence."""
        if self.tokens is not None:
            values = values.new_zeros(values.shape[0], self.total).index_copy(1, self.tokens, values)
        return values.reshape(shape[1], shape[0], shape[2]).transpose(0, 1).clone(memory_format=torch.contiguous_format)

    def row(self, x: torch.Tensor, initial_states: torch.Tensor | None) -> torch.Tensor:
        """[C, length] of x [N, C, L] and states [count, C, gap], or of rows [N, C, gap]."""
        row = x.new_zeros(x.shape[1], self.length)
        row.index_copy_(1, self.outputs() + self.gap, self.take(x))
        if initial_states is not None:
            row.index_copy_(1, self.initial(), initial_states.transpose(0, 1).flatten(1))
        return row

    def as_states(self, columns: torch.Tensor) -> torch.Tensor:
        """The states [count, C, gap], or of rows, of columns as `initial` and `final` number them."""
        count = self.count if self.firsts is None else self.firsts.shape[0]
        found = columns.reshape(columns.shape[0], count, self.gap).transpose(0, 1)
        return found.clone(memory_format=torch.contiguous_format)


def packing_of(given: Call) -> Packing:
    """The packing of x [N, C, L] by one of both, whose shapes are right. Raises GeometryError for wrong numbers.

    The numbers are worked out on the host: how long the row is depends on them, and so does which kernel is compiled.
    Where torch.compile traces the launch, shapes alone are known: offsets are then taken as they are, unchecked, and
    seq_idx is refused (UnsupportedError).
    """
    x, seq_idx, gap = given.x, given.seq_idx, given.weight.shape[1] - 1
    if given.cu_seqlens is not None:
        return _by_offsets(given.cu_seqlens, x, gap)
    assert seq_idx is not None
    if type(seq_idx) is not torch.Tensor:  # torch traces with stand-ins of other classes, which have no data
        raise UnsupportedError(
            f"seq_idx.shape={tuple(seq_idx.shape)}: how many sequences it numbers is read from it, which torch.compile "
            f"cannot for a Neuron device; pass cu_seqlens, or call this outside of the compiled function"
        )
    return _by_numbers(seq_idx, x, gap, given.initial_states is not None)


def _by_offsets(cu_seqlens: torch.Tensor, x: torch.Tensor, gap: int) -> Packing:
    offsets, total = cu_seqlens.long(), x.shape[2]
    if type(cu_seqlens) is torch.Tensor:
        offsets = offsets.cpu()
        refuse(GeometryError, cumulated("cu_seqlens", offsets, total))
    sequence = torch.searchsorted(offsets[1:].contiguous(), torch.arange(total, device=offsets.device), right=True)
    return Packing(gap, total, None, *(one.to(x.device) for one in (sequence, offsets[:-1], offsets[1:])))


def _by_numbers(seq_idx: torch.Tensor, x: torch.Tensor, gap: int, with_states: bool) -> Packing:
    seq_idx, total = seq_idx.cpu(), seq_idx.numel()
    belongs = seq_idx >= 0
    current = seq_idx.cummax(1).values.clamp(min=0)  # a token of no sequence keeps its neighbours' distance
    falls, begins_late = (belongs & (seq_idx != current)).any(1), ~belongs[:, 0] & belongs.any(1)
    for rows, rule in ((falls, _RISES), (begins_late & with_states, _BEGINS)):
        for row in rows.nonzero()[:1, 0].tolist():
            raise GeometryError(f"seq_idx[{row}]={shown(seq_idx[row, :13].tolist())}: {rule}")
    begins = torch.ones_like(belongs)
    begins[:, 1:] = current[:, 1:] != current[:, :-1]
    sequence, starts = begins.flatten().cumsum(0) - 1, begins.flatten().nonzero()[:, 0]
    ends = torch.cat([starts[1:], starts.new_tensor([total])])
    by_row = sequence.reshape(belongs.shape)
    tokens = None if bool(belongs.all()) else belongs.flatten().nonzero()[:, 0]
    each = tokens, sequence if tokens is None else sequence[tokens], starts, ends, by_row[:, 0], by_row[:, -1]
    return Packing(gap, total, *(None if one is None else one.to(x.device) for one in each))  # type: ignore[arg-type]


def forward(given: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """(y [N, C, L], final states [count, C, gap], of rows where these have them, or of no columns) of packed rows."""
    packing, x = packing_of(given), given.x
    row = packing.row(x, given.initial_states)
    y = dispatch.convolve(Called(given.asked, row[None], given.w, given.bias))[0]
    if not given.return_final_states:
        final = row.new_empty(packing.count, row.shape[0], 0)
    else:
        final = packing.as_states(row.index_select(1, packing.final()))
    return packing.put(y.index_select(1, packing.outputs()), x.shape), final


def backward(
    given: Call, g: torch.Tensor, g_final: torch.Tensor | None, needs: Sequence[bool], convolve: Convolve
) -> tuple[torch.Tensor | None, ...]:
    """dL/d x, w [C, 1, width], bias and initial states, where `needs` says so, of dL/dy and dL/d final states.

    convolve: `dispatch.convolve`, or one that autograd knows, for derivatives of these.
    """
    packing, asked, x, w, bias = packing_of(given), given.asked, given.x, given.w, given.bias
    row, columns = packing.row(x, given.initial_states), packing.outputs()
    of_z = packing.take(g)
    if asked.activation is not None:
        z = convolve(Called(asked.plain(), row[None], w, bias))[0].index_select(1, columns)
        of_z = gradients.of_argument(asked, of_z, None, z)
    of_x = of_w = of_bias = of_states = None
    spread = of_z.new_zeros(row.shape[0], packing.length - packing.gap).index_copy(1, columns, of_z)
    if needs[0] or needs[3]:
        residual = None
        if g_final is not None:
            residual = spread.new_zeros(1, row.shape[0], packing.length)
            residual = residual.index_copy(2, packing.final(), g_final.transpose(0, 1).flatten(1)[None])
        of, filters = gradients.of_input(asked.plain(), torch.Size([packing.length]), w)
        assert of.padding == ((packing.gap, packing.gap),)
        of_row = convolve(Called(of, spread[None], filters, residual=residual))[0]
        of_x = packing.put(of_row.index_select(1, columns + packing.gap), x.shape)
        of_states = packing.as_states(of_row.index_select(1, packing.initial()))
    if needs[1]:
        of_w, of_bias = _of_filters(packing, asked, spread, row, w, needs[2])
    elif needs[2]:
        of_bias = gradients.of_bias(of_z[None])
    if of_bias is not None and bias is not None:
        of_bias = of_bias.to(bias.dtype)
    return of_x if needs[0] else None, of_w, of_bias, of_states if needs[3] else None


def _of_filters(
    packing: Packing, asked: Convolution, spread: torch.Tensor, row: torch.Tensor, w: torch.Tensor, bias: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(dL/dw, with `bias` dL/dbias): by the kernel, and by torch for the columns that windows of no token read."""
    columns, seen = packing.edges()
    like = filter_like(w, w.shape, host.wide_dtype(w))
    inner = row.index_fill(1, columns, 0)
    of_w, of_bias = filter_gradients.of_filters(asked.plain(), spread[None], inner[None], like, bias)
    edges, wide = host.wide(row.index_select(1, columns)), host.wide(spread)
    outputs = (columns[:, None] - torch.arange(packing.gap + 1, device=columns.device)).clamp(0, wide.shape[1] - 1)
    products = [edges * wide.index_select(1, outputs[:, tap]) for tap in range(packing.gap + 1)]
    sums = [torch.where(seen[:, tap], one, 0.0).sum(1) for tap, one in enumerate(products)]
    return (of_w + torch.stack(sums, 1)[:, None]).to(w.dtype), of_bias
