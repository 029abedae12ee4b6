"""Sequence by sequence, what vLLM's causal_conv1d_fn and causal_conv1d_update say, in plain torch and float64."""

import itertools

import causal
import torch


def fn(x, w, bias, states, starts, slots=None, has=None, activation="silu", pad=-1, blocks=None, block_size=0):
    """(y [C, tokens], the cache behind the call); blocks: (first, last, initial, computed)."""
    after, y, size = states.clone(), torch.zeros_like(x, dtype=torch.float64), w.shape[1] - 1
    for k, (begin, end) in enumerate(itertools.pairwise(starts)):
        line = [k] if slots is None else [*torch.as_tensor(slots)[k].reshape(-1).tolist()]
        first, last, initial, computed = (0, 0, 0, 0) if blocks is None else (one[k] for one in blocks)
        if line[initial] == pad or begin == end:
            continue
        before = states[line[initial], :, :size] if has is not None and has[k] else states.new_zeros(len(x), size)
        whole = torch.cat([before, x[:, begin:end]], 1)
        y[:, begin:end] = causal.row(x[:, begin:end], w, bias, before, activation)
        edge = (computed + end - begin - 1) // block_size * block_size if blocks is not None else 0
        for j in range(last - first):
            position = edge - (last - first - 1 - j) * block_size - computed
            after[line[first + j], :, :size] = whole[:, position : position + size]
        after[line[last], :, :size] = whole[:, end - begin :]
    return y, after


def update(x, w, bias, states, slots=None, accepted=None, activation=None, pad=-1, blocks=None):
    """([y [C, tokens] of each sequence], the cache behind the call); x: such a list; blocks: (last, initial)."""
    after, found, size = states.clone(), [], w.shape[1] - 1
    for k, tokens in enumerate(x):
        line = [k] if slots is None else [*torch.as_tensor(slots)[k].reshape(-1).tolist()]
        last, initial = (0, 0) if blocks is None else (one[k] for one in blocks)
        count = tokens.shape[1]
        if line[initial] == pad or count == 0:
            found.append(torch.zeros_like(tokens, dtype=torch.float64))
            continue
        begin = 0 if accepted is None else int(accepted[k]) - 1
        before = states[line[initial], :, begin : begin + size]
        found.append(causal.row(tokens, w, bias, before, activation))
        whole = torch.cat([before, tokens], 1)
        kept = whole[:, count:] if accepted is None else whole[:, 1:]
        if size:  # one tap has no state
            after[line[last], :, : kept.shape[1]] = kept
    return found, after
