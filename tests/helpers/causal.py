"""Causal depthwise convolution by its definition, one output and one tap at a time, in float64; torch derives it."""

import itertools
import os
from contextlib import contextmanager

import torch


def numbered(x, seq_idx, w, bias=None, activation=None, before=None):
    """y [N, C, L] of rows whose tokens see those of their own number only, in front `before` [N, C, width - 1]; tokens
    with a negative number give 0."""
    gap, found = w.shape[1] - 1, torch.zeros(x.shape, dtype=torch.float64)
    for n, numbers in enumerate(seq_idx.tolist()):
        columns = []
        for t, number in enumerate(numbers):
            total = torch.zeros(x.shape[1], dtype=torch.float64)
            for at in range(t - gap, t + 1) if number >= 0 else ():
                if at >= 0 and numbers[at] == number:
                    total = total + w[:, at - t + gap].double() * x[n, :, at].double()
                elif at < 0 and before is not None and numbers[0] == number:
                    total = total + w[:, at - t + gap].double() * before[n, :, at].double()
            total = total if bias is None or number < 0 else total + bias.double()
            columns.append(total / (1 + torch.exp(-total)) if activation else total)
        found = found.index_copy(0, torch.tensor([n]), torch.stack(columns, 1)[None])
    return found


def row(x, w, bias=None, before=None, activation=None):
    """y [C, L] of one row x [C, L] behind `before` [C, width - 1], or behind zeros, which are left out."""
    before = None if before is None else before[None]
    return numbered(x[None], torch.zeros(1, x.shape[1], dtype=torch.int32), w, bias, activation, before)[0]


def sequences(x, offsets, w, bias=None, before=None, activation=None):
    """(y, final states) of the sequences of one row [1, C, total], each on its own."""
    ys, states = [], []
    for k, (start, end) in enumerate(itertools.pairwise(offsets)):
        one, state = x[0, :, start:end], x.new_zeros(x.shape[1], w.shape[1] - 1) if before is None else before[k]
        if end > start:
            ys.append(row(one, w, bias, None if before is None else state, activation))
        states.append(torch.cat([state, one], 1)[:, end - start :])
    return torch.cat(ys, 1)[None], torch.stack(states)


def rows(x, w, bias=None, before=None, activation=None):
    """(y [N, C, L], final states [N, C, width - 1]) of rows one by one."""
    N, C, L = x.shape
    y, states = sequences(x.transpose(0, 1).reshape(1, C, -1), range(0, N * L + 1, L), w, bias, before, activation)
    return y.reshape(C, N, L).transpose(0, 1), states


def steps(x, conv_state, w, bias=None, activation=None, begins=None, rows=None):
    """(y [N, C, L] of decoding, the buffer behind it), step by step; begins, rows: of a ring, and held elsewhere."""
    buffer, ys = conv_state.clone(), torch.zeros(x.shape, dtype=torch.float64)
    gap, size = w.shape[1] - 1, conv_state.shape[2]
    for n in range(x.shape[0]):
        held = n if rows is None else int(rows[n])
        if held < 0:
            continue
        for t in range(x.shape[2]):
            if begins is None:
                before = buffer[held, :, size - gap :].clone()
                shifted = torch.cat([buffer[held], x[n, :, t : t + 1]], 1)[:, 1:]
            else:
                at = int(begins[n]) + t
                before = buffer[held][:, [(at - gap + i) % size for i in range(gap)]]
                shifted = buffer[held].clone()
                if size:
                    shifted[:, at % size] = x[n, :, t]
            ys[n, :, t] = row(x[n, :, t : t + 1], w, bias, before, activation)[:, 0]
            buffer[held] = shifted
    return ys, buffer


def integers(*shape, seed=0, dtype=torch.float32):
    """From -3 to 3: with width at most 9 and at most 28 tokens all sums are exact, in bf16 too."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def lies_as(y, x):
    """Whether y [N, C, L] is contiguous, or has channels next to each other where x has."""
    last = x.dim() == 3 and x.stride(1) == 1 and not x.is_contiguous()
    return (y.transpose(1, 2) if last else y).is_contiguous()


def laid_out(x, layout):
    """The same values in other strides."""
    if layout == "channel last":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "every other":
        wide = x.new_zeros(*x.shape[:2], 2 * x.shape[2])
        wide[..., ::2] = x
        return wide[..., ::2]
    if layout == "rows last":
        return x.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    return x


LAYOUTS = ("contiguous", "channel last", "every other", "rows last")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MODES = ("torch", "simulate", "compare")


@contextmanager
def computing(mode):
    """NKICONV_CPU, as a context: hypothesis and monkeypatch do not go together."""
    before = os.environ.get("NKICONV_CPU")
    os.environ["NKICONV_CPU"] = mode
    try:
        yield
    finally:
        os.environ.pop("NKICONV_CPU")
        if before is not None:
            os.environ["NKICONV_CPU"] = before


def leaves_of(*tensors):
    """Leaves that keep strides, and leaves in double of the same values; None stays."""
    ours = [one if one is None else one.detach().requires_grad_() for one in tensors]
    return ours, [one if one is None else one.detach().double().requires_grad_() for one in tensors]
