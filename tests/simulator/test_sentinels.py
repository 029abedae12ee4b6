"""simulate(sentinels=True): kernels may read what nobody wrote, and find what AWS's simulator puts there."""

import numpy as np
import pytest

from nkiconv import simulator
from nkiconv.simulator import NkiError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

FLOATS = ("float32", "bfloat16", "float8_e4m3")
INTEGERS = ("int8", "uint16", "int32")


def half(dtype="float32", buffer=nl.sbuf):
    out, tile = nl.ndarray((4, 8), dtype, nl.shared_hbm), nl.ndarray((4, 8), dtype, buffer)
    nisa.memset(tile[:, 0:4], 1)
    nisa.dma_copy(out, tile)
    return out


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_nan(dtype):
    found = np.asarray(simulator.simulate(half, sentinels=True)(dtype), np.float32)
    assert (found[:, :4] == 1).all()
    assert np.isnan(found[:, 4:]).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_four(dtype):
    found = simulator.simulate(half, sentinels=True)(dtype)
    assert found.tolist() == [[1] * 4 + [4] * 4] * 4


def test_without_sentinels_the_read_is_refused():
    with pytest.raises(NkiError, match=r"NKI016: dma_copy: element \(0, 4\)"):
        simulator.simulate(half)()


def test_results_may_be_unwritten_too():
    def kernel():
        out = nl.ndarray((2, 4), nl.float32, nl.shared_hbm)
        nisa.dma_copy(out[0], nl.ones((1, 4), nl.float32))
        return out

    with pytest.raises(NkiError, match="NKI023"):
        simulator.simulate(kernel)()
    found = simulator.simulate(kernel, sentinels=True)()
    np.testing.assert_array_equal(found, [[1] * 4, [np.nan] * 4])


def test_scrap_of_an_instruction_is_a_sentinel_again():
    """Of several results for one element, activation with a sum leaves none that a document tells."""

    def kernel():
        out, scrap = nl.ndarray((4, 1), nl.float32, nl.shared_hbm), nl.zeros((4, 1), nl.float32)
        sums = nl.ndarray((4, 1), nl.float32, nl.sbuf)
        nisa.activation(
            scrap.broadcast(1, 8), nl.copy, nl.ones((4, 8), nl.float32), reduce_op=nl.add, reduce_res=sums,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        nisa.dma_copy(out, scrap)
        return out

    assert np.isnan(simulator.simulate(kernel, sentinels=True)()).all()
