"""Kernel bodies of a few instructions on tiles, and their timelines: what tests of timelines share."""

import itertools

import pytest
from pairs import run

from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator import timeline as tl
from nkiconv.simulator.timing import PriceList, Rates

BF16, FP32, HBM, PSUM, SBUF = nl.bfloat16, nl.float32, nl.hbm, nl.psum, nl.sbuf
ENGINE, DGE = nisa.engine, nisa.dge_mode
#: the flow of a [128, 512] fp32 tile
FLOW = 8 * (4.7 + 2048 / 27.2)


def timed(body, lnc=1, *, throttle=False, constants=None, prices=False, tasks=False, **options):
    """The timeline of a kernel body, at full rate unless asked otherwise; with its prices, or its tasks."""
    rates = Rates(constants)
    made, priced = tl.build(run(body, lnc, trace_only=True).programs, PriceList(rates))
    line = tl.run(made, priced, rates, tl.Options(throttle=throttle, **options))
    return (line, priced) if prices else (made, line) if tasks else line


def ns(*expected):
    """Hand-computed times; they are sums of figures with one or two decimals."""
    return pytest.approx([*expected], abs=0.2)


def starts(*expected, **options):
    """Makes of a kernel body the test that its instructions start at these ns."""

    def of(body):
        def test():
            assert timed(body, **options).start == ns(*expected)

        return test

    return of


def touched(region):
    """Every byte that a region meets, one by one."""
    firsts = [region.offset + sum(i * s for i, s in zip(index, region.strides, strict=True))
              for index in itertools.product(*map(range, region.shape))]  # fmt: skip
    return {first * region.itemsize + byte for first in firsts for byte in range(region.itemsize)}


def tile(columns=512, dtype=FP32, buffer=SBUF, rows=128):
    return nl.ndarray((rows, columns), dtype, buffer)


def load(dst, mode=DGE.none, engine=ENGINE.unknown, src=None):
    src = tile(dst.shape[1], dst.dtype, HBM, dst.shape[0]) if src is None else src
    nisa.dma_copy(dst, src, dge_mode=mode, engine=engine)


def store(src, mode=DGE.none, engine=ENGINE.unknown, dst=None):
    dst = tile(src.shape[1], src.dtype, HBM, src.shape[0]) if dst is None else dst
    nisa.dma_copy(dst, src, dge_mode=mode, engine=engine)


def vector(dst, src=None):
    nisa.tensor_copy(dst, tile(dst.shape[1], dst.dtype, SBUF, dst.shape[0]) if src is None else src)


def scalar(dst, src=None):
    src = tile(dst.shape[1], dst.dtype, SBUF, dst.shape[0]) if src is None else src
    nisa.tensor_copy(dst, src, engine=ENGINE.scalar)
