"""Calls of `causal_conv1d_split`: data, and the truth in float64 with its bounds."""

import numpy as np
from tolerances import assert_within_limit

from nkiconv import ConvProblem
from nkiconv.bounds import epilogue_bound, factor_bound, gated_bound, l2norm_bound
from nkiconv.problem import dtype_name
from nkiconv.reference import abs_sum_ref, chunks_ref, conv_ref, epilogue_ref, split_heads_ref

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
TWO = ((2, 64, True), (1, 90, False))


def data(splits, N, T, S=4, dtype=np.float32, layout="NCW", state=False, seed=0, chunks=None):
    """(x, w, bias, state or None) of normal numbers."""
    rng = np.random.default_rng(seed)
    C = sum(heads * dim for heads, dim, _ in splits)
    shape = (N, len(chunks or "x") * C, T)
    before = rng.standard_normal((N, C, S - 1)).astype(dtype) if state else None
    x = rng.standard_normal(shape if layout == "NCW" else (N, T, shape[1])).astype(dtype)
    return x, rng.standard_normal((C, S)).astype(dtype), rng.standard_normal(C).astype(np.float32), before


def truth(x, w, splits, bias=None, activation="silu", eps=1e-6, layout="NCW", initial_state=None, chunks=None):
    """(parts, bounds) of a call, in float64."""
    rows = np.asarray(x if layout == "NCW" else x.transpose(0, 2, 1), np.float64)
    kind, factor, inexact = dtype_name(x.dtype), None, np.zeros_like(rows)
    if chunks is not None:
        inexact, (rows, factor) = gated_bound(rows, chunks, kind), chunks_ref(rows, chunks)
    (N, C, T), S = rows.shape, w.shape[1]
    before = np.zeros((N, C, S - 1)) if initial_state is None else np.asarray(initial_state, np.float64)
    padded, inexact = (
        np.concatenate([first, one], 2)[:, :, None] for first, one in ((before, rows), (0 * before, inexact))
    )
    problem = ConvProblem(N=N, C=C, W=T + S - 1, S=S, groups=C)
    filters = np.asarray(w, np.float64)[:, None, None]
    sums = conv_ref(padded, filters, problem)
    args, more = (S, abs_sum_ref(padded, filters, problem), sums), (bias, activation)
    z, inexact = epilogue_ref(sums, *more)[:, :, 0], abs_sum_ref(inexact, filters, problem)
    errors = [epilogue_bound(*args, one, *more, inexact=inexact)[:, :, 0] for one in (kind, "fp32")]
    if factor is not None:
        z = factor * z
        errors[0] = factor_bound(errors[1], factor, z, kind)
    rounded, exact, raw = (split_heads_ref(one, [(*split[:2], False) for split in splits]) for one in (*errors, z))
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
