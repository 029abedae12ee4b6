"""The order of taps' loop over an output tile, and the banks that it stores together: the same sums, or refused by
name."""

import numpy as np
import pytest
from conv_calls import check_refused, config_of, integers, planned, run
from draws import cores
from implicit_gemm_calls import FOLDED, LINE, M_TILES, PROBLEMS


@pytest.mark.cover(2)
@pytest.mark.parametrize("more", [
    {},
    {"strict_nonfinite": True, "activation": "relu"},
    {"bias": True, "residual": True, "beta": 3.0},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", PROBLEMS)
def test_sums_are_made_bank_by_bank_or_k_tile_by_k_tile(name, more):
    problem = PROBLEMS[name].replace(dtype="fp32", H=1 if name == "line" else 9)
    rng = np.random.default_rng(9)
    x, w = integers(rng, problem)
    more = dict(more)
    if more.pop("bias", False):
        more["bias"] = rng.integers(-3, 4, problem.K).astype(np.float32)
        more["residual"] = rng.integers(-3, 4, problem.output_shape).astype(np.float32)
    together = 0
    for settings in ({}, {"x_bytes": 1500}, {"shard": "images"}):
        expected = run(
            x, w, problem, 1, config=config_of("implicit_gemm", fold="none", order="banks", **settings), **more
        )
        settings = {"fold": "none", "order": "chunks", **settings}
        found, reason = planned(problem, "implicit_gemm", config_of("implicit_gemm", **settings)[1:])
        if found is None:
            assert "config order=chunks" in reason
            continue
        together += 1
        assert found.together
        for lnc in cores(settings):
            y = run(x, w, problem, lnc, config=config_of("implicit_gemm", **settings), **more)
            np.testing.assert_array_equal(y, expected)
    assert (together > 0) == (name != "line")


@pytest.mark.parametrize(("problem", "settings", "message"), [
    (M_TILES, {"order": "taps"}, r"config order=taps: must be one of \('banks', 'chunks'\)"),
    (LINE, {"order": "chunks"}, "config order=chunks, C=20, K=150: needs M tiles with the same several K tiles"),
    (FOLDED["both"], {"order": "chunks", "fold": "both"}, "config order=chunks, C=192, K=160: needs M tiles"),
    (M_TILES.replace(layout="NHWC"), {"order": "chunks"}, "not channels side by side; use 'banks'"),
    (M_TILES.replace(H=200, W=40), {"order": "chunks", "fold": "none"},
     r"config order=chunks: sums of an output tile and filters take \d+ banks of PSUM, there are 8; use 'banks', or"),
])  # fmt: skip
def test_orders_that_cannot_be(problem, settings, message):
    check_refused(problem, "implicit_gemm", message, settings)
