"""Chains beside separate launches: what their rows rest on, and the page that has them."""

from pathlib import Path

import pytest

from nkiconv import cases
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.estimate import estimate
from nkiconv.planner.request import Asked, Request
from nkiconv.planner.timing import trace
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


def test_the_clock_says_where_bands_of_a_conformers_rows_come_from():
    """From a copy of the filters in HBM it takes 78 us."""
    asked = Asked(chunks="xG", bias=True, activation="silu")
    request = Request(problem=cases.get("conformer").problem, lnc=2, asked=asked)
    found = estimate(request)
    assert trace(request, Candidate(found.algorithm, found.config), Rates({})).us <= 71


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
