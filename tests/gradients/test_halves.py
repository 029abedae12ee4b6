"""Cores that share units: each sums up half of them, both exchange their sums once a round, and each stores a part."""

import numpy as np
import pytest
from depthwise import same_bits

import nkiconv
from nkiconv.kernels.gradients import conv_weight_gradient
from nkiconv.simulator.launch import execute

#: x of (N, C, H, W), K, chunks of output channels a round.
SHAPES = {
    "banks": ((20, 70, 14, 14), 9, 1),
    "rounds": ((40, 5, 12, 12), 150, 1),
    "chunks of one size": ((40, 5, 12, 12), 150, 2),
    "chunks of two sizes": ((40, 5, 12, 12), 151, 2),
    "one": ((40, 6, 12, 12), 1, 1),
}
DIAGONALS = (("rows", 2), ("columns", 5), ("down", 1), ("across", 1), ("side", 1), ("groups", 6))
WAYS = {"channels last": (("rows", 3), ("columns", 4)), "turned": (("pixels", 2), ("rows", 4), ("columns", 4))}


def given(shape, way):
    """(x, gy, filter's shape, what a call takes) of a 3 x 3 filter."""
    (N, C, H, W), K, outputs = SHAPES[shape]
    rng = np.random.default_rng(0)
    x, gy = (rng.standard_normal((N, channels, H, W)).astype(np.float32) for channels in (C, K))
    perms = {}
    if way == "channels last":
        x, gy = (np.ascontiguousarray(one.transpose(0, 2, 3, 1)) for one in (x, gy))
        perms = {"in_perm": (0, 3, 1, 2), "out_perm": (0, 2, 3, 1)}
    config = {
        "algorithm": "blocks",
        "config": (*WAYS[way], ("split", 1), ("outputs", outputs), ("inputs", 2), ("exchanged", 0), ("beside", 1)),
    }
    return x, gy, (K, C, 3, 3), {"padding": ((1, 1), (1, 1)), "bias_gradient": True, **perms, **config}


@pytest.mark.cover(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_real_data_has_the_same_bits_on_one_core_and_two(shape, way):
    x, gy, size, call = given(shape, way)
    added = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    for more in ({}, {"accumulate_into": added}):
        found = [execute(conv_weight_gradient[lnc], (x, gy, size), {**call, **more}).outputs for lnc in (1, 2)]
        assert same_bits(found[0][0], found[1][0])
        assert same_bits(found[0][1], found[1][1])


def test_diagonals_meet_once_a_pass():
    rng = np.random.default_rng(0)
    x, gy = (rng.standard_normal((20, 6, 10, 10)).astype(np.float32) for _ in range(2))
    config = (*DIAGONALS, ("split", 1))
    call = {"padding": ((1, 1), (1, 1)), "feature_group_count": 6, "algorithm": "diagonals", "config": config}
    run = execute(conv_weight_gradient[2], (x, gy, (6, 1, 3, 3)), call)
    assert [sum(one.op == "sendrecv" for one in program.instructions) for program in run.programs] == [1, 1]
    assert same_bits(run.outputs, nkiconv.conv2d_weight(x, (6, 1, 3, 3), gy, padding=1, groups=6, lnc=1,
                                                        algorithm="diagonals", config=config))  # fmt: skip
