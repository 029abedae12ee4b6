"""Calls of causal_conv1d_split: data, the truth in float64 and its bounds."""

import numpy as np
from tolerances import assert_within_limit

from nkiconv import ConvProblem
from nkiconv.bounds import epilogue_bound, l2norm_bound
from nkiconv.problem import dtype_name
from nkiconv.reference import abs_sum_ref, conv_ref, epilogue_ref, split_heads_ref

#: Parts of several kinds, each with channels that fill no tile evenly.
SPLITS = {
    "gated delta net": ((1, 128, True), (1, 128, True), (2, 128, False)),
    "mamba2": ((3, 64, False), (2, 48, False), (2, 48, False)),
    "many heads of a tile": ((9, 32, True), (5, 16, True), (1, 7, False)),
    "heads over tiles": ((3, 256, True), (1, 512, True)),
    "odd dims": ((3, 129, True), (2, 131, True), (1, 519, False)),
    "two channels": ((1, 2, True),),
    "one channel": ((1, 1, False),),
}


def data(splits, N, T, S=4, dtype=np.float32, layout="NCW", state=False, seed=0):
    """(x, w, bias, state or None) of normal numbers."""
    rng = np.random.default_rng(seed)
    C = sum(heads * dim for heads, dim, _ in splits)
    shape = (N, C, T) if layout == "NCW" else (N, T, C)
    before = rng.standard_normal((N, C, S - 1)).astype(dtype) if state else None
    x, w = rng.standard_normal(shape).astype(dtype), rng.standard_normal((C, S)).astype(dtype)
    return x, w, rng.standard_normal(C).astype(np.float32), before


def truth(x, w, splits, bias=None, activation="silu", eps=1e-6, layout="NCW", initial_state=None):
    """(parts, bounds) of a call, in float64."""
    rows = np.asarray(x if layout == "NCW" else x.transpose(0, 2, 1), np.float64)
    (N, C, T), S = rows.shape, w.shape[1]
    before = np.zeros((N, C, S - 1)) if initial_state is None else np.asarray(initial_state, np.float64)
    padded = np.concatenate([before, rows], 2)[:, :, None]
    problem = ConvProblem(N=N, C=C, W=T + S - 1, S=S, groups=C)
    filters = np.asarray(w, np.float64)[:, None, None]
    sums = conv_ref(padded, filters, problem)
    args = (S, abs_sum_ref(padded, filters, problem), sums)
    z = epilogue_ref(sums, bias, activation)[:, :, 0]
    kind = dtype_name(x.dtype)
    errors = [epilogue_bound(*args, one, bias, activation)[:, :, 0] for one in (kind, "fp32")]
    rounded, exact = ([*split_heads_ref(one, [(*split[:2], False) for split in splits])] for one in errors)
    raw = split_heads_ref(z, [(*split[:2], False) for split in splits])
    limits = [
        l2norm_bound(raw[i], exact[i], eps, kind) if normalised else rounded[i]
        for i, (_, _, normalised) in enumerate(splits)
    ]
    return split_heads_ref(z, splits, eps), limits


def check(found, x, w, splits, **more):
    """Fail unless the parts of a call are within their bounds."""
    parts, limits = truth(x, w, splits, **more)
    assert isinstance(found, tuple)
    for one, right, limit in zip(found, parts, limits, strict=True):
        assert one.dtype == x.dtype
        assert_within_limit(one, right, limit)
