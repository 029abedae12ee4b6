"""Chains beside separate launches: what their rows rest on, and the page that has them."""

import csv
import math
from pathlib import Path

import pytest

from nkiconv.problem import ConvProblem
from nkiconv.tools.suites import chains
from nkiconv.tools.tables import chains as pages
from nkiconv.tools.tables.readme import find_between

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "profiles" / "chains_modelled_trn2.csv"


def test_each_chain_has_its_measured_row():
    every = [chain.name for chain in chains.chains()]
    assert len(set(every)) == len(every)
    # of ConvNeXt the norm and the convolution in front of it were measured alone, of Evo 2 nothing
    assert {name for name in every if not name.startswith(("convnext_block", "evo2"))} <= chains.h200().keys()


def test_a_gated_chain_reads_its_chunks_once():
    problem = ConvProblem(N=1, C=128, W=512, S=3, groups=128, padding=((0, 0), (2, 0)), dtype="bf16")
    chain = chains.gated("lfm2", "a model", problem, "BCx")
    assert chain.min_bytes == 4 * math.prod(problem.output_shape) * 2
    row = chains.timed(chain)
    assert len(chain.fused()) == 1
    assert row.alone_us < row.fused_us < row.separate_us
    assert row.separate_us == pytest.approx(sum(one.us for one in chain.separate()))
    assert row.as_dict()["ahead"] == pytest.approx(row.limit_us / row.fused_us / (14 / 145))


def test_a_pass_takes_the_time_of_its_bytes():
    once, twice = (chains.passed("copy", 2**22, reads).us for reads in (1, 2))
    assert twice == pytest.approx(1.5 * once)
    bytes_ns = 2 * 2**22 * 2 / 716
    assert bytes_ns < 1000 * once < 1.3 * bytes_ns


def test_the_page_is_the_csv():
    text, begin, end = find_between(ROOT / "docs" / "fused.md", pages.MARKERS)
    with ROWS.open(encoding="utf-8") as file:
        found = [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert [row["chain"] for row in found] == [chain.name for chain in chains.chains()]
    assert text[begin:end] == pages.page(found)


def _number(value):
    if value == "":
        return None
    try:
        return float(value)
    except ValueError:
        return value
