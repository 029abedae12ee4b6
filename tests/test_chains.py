"""Chains beside separate launches: what their rows rest on, and the page that has them."""

import math
from pathlib import Path

import numpy as np
import pytest
from tolerances import FLOAT32_MODELS

import nkiconv
from nkiconv import cases
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.estimate import estimate
from nkiconv.planner.request import Asked, Request
from nkiconv.planner.timing import trace
from nkiconv.problem import ConvProblem
from nkiconv.simulator.timing import Rates
from nkiconv.tools.suites import chains
from nkiconv.tools.tables import chains as pages
from nkiconv.tools.tables.readme import find_between

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "profiles" / "chains_modelled_trn2.csv"


def test_each_chain_has_its_measured_row():
    every = [chain.name for chain in chains.chains()]
    assert len(set(every)) == len(every)
    # of ConvNeXt the norm and the convolution in front of it were measured alone, of ResNet single convolutions, of
    # Evo 2 and of Wan's sums nothing
    measured = {name for name in every if not name.startswith(("convnext", "bottleneck", "evo2"))}
    measured -= {name for name in measured if name.endswith("_residual")}
    assert measured <= chains.h200().keys()


@pytest.mark.slow
def test_a_gated_chain_reads_its_chunks_once():
    problem = ConvProblem(N=1, C=128, W=512, S=3, groups=128, padding=((0, 0), (2, 0)), dtype="bf16")
    chain = chains.gated("lfm2", "a model", problem, "BCx")
    assert chain.min_bytes == 4 * math.prod(problem.output_shape) * 2
    row = chains.timed(chain)
    assert len(chain.fused()) == 1
    assert row.alone_us < row.fused_us < row.separate_us
    assert row.separate_us == pytest.approx(sum(one.us for one in chain.separate()))
    assert row.as_dict()["ahead"] == pytest.approx(row.limit_us / row.fused_us / (14 / 145))


def test_the_clock_says_where_bands_of_a_conformers_rows_come_from():
    """From a copy of the filters in HBM it takes 78 us."""
    asked = Asked(chunks="xG", bias=True, activation="silu")
    request = Request(problem=cases.get("conformer").problem, lnc=2, asked=asked)
    found = estimate(request)
    assert trace(request, Candidate(found.algorithm, found.config), Rates({})).us <= 71


@pytest.mark.parametrize("training", [False, True])
def test_a_bottleneck_equals_torchs(training):
    """Statistics, BatchNorm's numbers and prologues from kernel to kernel, or folded; against torch in float64."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    inner, outer = 8, 32
    sizes = ((outer, inner, 1), (inner, inner, 3), (inner, outer, 1))
    convs = [torch.nn.Conv2d(c, k, s, padding=s // 2, bias=False, dtype=torch.float64) for c, k, s in sizes]
    norms = [torch.nn.BatchNorm2d(k, dtype=torch.float64) for _, k, _ in sizes]
    for norm in norms:
        for one in (norm.weight.data, norm.running_var, norm.bias.data, norm.running_mean):
            one.uniform_(0.5, 1.5)
        norm.train(training)
    x = torch.randn(3, outer, 7, 9, dtype=torch.float64)
    with torch.no_grad():
        found = x
        for index, (conv, norm) in enumerate(zip(convs, norms, strict=True)):
            found = torch.relu(norm(conv(found)) + (x if index == 2 else 0))
    filters = [conv.weight.detach().numpy() for conv in convs]
    first = y = x.numpy().astype(np.float32)
    before, more = {}, {}
    for index, (w, norm) in enumerate(zip(filters, norms, strict=True)):
        weight, bias = (one.detach().numpy() for one in (norm.weight, norm.bias))
        if training:
            y, stats = nkiconv.conv2d(
                y, w.astype(np.float32), padding=w.shape[2] // 2, return_stats="channel", **before
            )
            affine = weight.astype(np.float32), bias.astype(np.float32)
            numbers = nkiconv.norm_scale_shift(stats, *affine, norm="batch", eps=norm.eps)
            before = {"x_scale": numbers.scale, "x_shift": numbers.shift, "x_activation": "relu"}
        else:
            scale = weight / np.sqrt(norm.running_var.numpy() + norm.eps)
            folded = w * scale[:, None, None, None], bias - scale * norm.running_mean.numpy()
            more = {"residual": first} if index == 2 else {}
            w, shift = (one.astype(np.float32) for one in folded)
            y = nkiconv.conv2d(y, w, shift, padding=w.shape[2] // 2, activation="relu", **more)
    if training:
        y = np.maximum(y * before["x_scale"][:, None, None] + before["x_shift"][:, None, None] + first, 0)
    truth = found.numpy()
    np.testing.assert_allclose(y, truth, rtol=0, atol=FLOAT32_MODELS * np.abs(truth).max())


def test_a_pass_takes_the_time_of_its_bytes():
    once, twice = (chains.passed("copy", 2**22, reads).us for reads in (1, 2))
    assert twice == pytest.approx(1.5 * once)
    bytes_ns = 2 * 2**22 * 2 / 716
    assert bytes_ns < 1000 * once < 1.3 * bytes_ns


def test_the_page_is_the_csv():
    text, begin, end = find_between(ROOT / "docs" / "fused.md", pages.MARKERS)
    found = list(pages.kept_rows(ROWS).values())
    assert [row["chain"] for row in found] == [chain.name for chain in chains.chains()]
    assert text[begin:end] == pages.page(found)
