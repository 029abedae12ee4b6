"""Filters' gradients over many positions: sums of chains of matmuls, added in SBUF."""

import ml_dtypes
import numpy as np
import pytest
from depthwise import on_cores
from gradients import check

import nkiconv
from nkiconv.bounds import error_bound
from nkiconv.schedules import blocks_schedule
from nkiconv.simulator.hardware import PARTITIONS

PLAIN = (14, 3, 1, 1, 1, 1)
PROBLEMS = {
    "several tiles, banks and passes": ((3, 70, 260, 1), PLAIN, PLAIN),
    "strides, dilations, cropped": ((1, 20, 13, 1), (17, 5, 2, 1, 2, 1), (30, 3, 3, 2, -1, 3)),
    "stem": ((2, 3, 64, 1), (24, 7, 2, 1, 3, 3), (24, 7, 2, 1, 3, 3)),
    "groups": ((2, 12, 8, 4), PLAIN, (11, 3, 1, 1, 1, 1)),
    "volumes": ((2, 6, 7, 1), (5, 3, 1, 1, 1, 1), (9, 3, 1, 1, 1, 1), (11, 3, 1, 1, 1, 1)),
}
TURNED = (("pixels", 2),)
WAYS = {"channels first": (False, None), "channels last": (True, None), "turned": (False, TURNED)}


@pytest.mark.cover(2, keep=["several tiles, banks and passes-channels first-1"])
@pytest.mark.parametrize("chain", [1, 5])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_chains_are_added(monkeypatch, name, way, chain):
    monkeypatch.setattr(blocks_schedule, "CHAIN", chain)
    channels, *axes = PROBLEMS[name]
    is_last, config = WAYS[way]
    on_cores(check, channels, axes, is_last, bias_gradient=True, config=config)


@pytest.mark.parametrize("config", [(("split", 0),), (("split", 1),), (*TURNED, ("split", 0))])
def test_chains_end_with_tiles(monkeypatch, config):
    monkeypatch.setattr(blocks_schedule, "CHAIN", 8)
    sizes = (("rows", 2), ("columns", 2), ("outputs", 1), ("inputs", 1))
    check((5, 20, 140, 1), [(14, 3, 1, 1, 1, 1)] * 2, config=sizes + config, bias_gradient=True, adds=True)


def large_first(positions):
    """x of ones, and gy of ones behind one that swallows them where all are added to it one after the other."""
    x = np.ones((1, 1, positions, PARTITIONS), ml_dtypes.bfloat16)
    gy = x.copy()
    gy[0, 0, 0, 0] = 2.0**32
    return x, gy


@pytest.mark.parametrize(("chain", "lost"), [(4, 4), (4096, 64)])
def test_long_sums_lose_little(monkeypatch, chain, lost):
    """A block a row: those of the large one's chain are lost, of others none is."""
    monkeypatch.setattr(blocks_schedule, "CHAIN", chain)
    x, gy = large_first(64)
    config = (("rows", 1), ("columns", 1), ("split", 0))
    found = float(nkiconv.conv2d_weight(x, (1, 1, 1, 1), gy, algorithm="blocks", config=config)[0, 0, 0, 0])
    truth = 2.0**32 + gy.size - 1
    assert 0 < truth - found <= lost * PARTITIONS
    if chain == 4:
        total = np.float64(truth)
        additions = PARTITIONS + chain + gy.size // (PARTITIONS * chain) + 1
        assert abs(truth - found) <= error_bound(gy.size, total, total, "fp32", additions)
        assert error_bound(gy.size, total, total, "fp32", additions) < error_bound(gy.size, total, total, "fp32")
