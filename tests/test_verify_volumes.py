"""Volumes, transposed convolutions and chunks of a video, held against the reference and against one run."""

import numpy as np
import pytest
from tolerances import integer_inputs

from nkiconv import ConvProblem
from nkiconv.tools.cli.show import report_grid
from nkiconv.tools.verify import chunks, conv, verify_chunks

pytestmark = pytest.mark.simulator_only

RNG = np.random.default_rng(5)
VOLUME = ConvProblem(N=1, C=4, D=9, H=5, W=7, K=4, T=3, R=3, S=2, groups=2, dtype="fp32")
TURNED = {"output_padding": (0, 1, 0), "dilation": (1, 1, 1), "taps": (3, 2, 3), "dtype": "fp32"}
TURNED |= {"N": 1, "C": 4, "D": 3, "H": 5, "W": 7, "K": 6, "stride": (2, 2, 1), "padding": ((1, 1), (0, 0), (1, 0))}
CHECKED = [VOLUME, ConvProblem.transpose(**TURNED, groups=2)]


def arrays(problem):
    """Small ints for a problem."""
    return integer_inputs(RNG, problem.input_shape, "fp32"), integer_inputs(RNG, problem.filter_shape, "fp32")


def spoilt(module, monkeypatch, place, number=0, output=0):
    """Add 1 at a place of y, or of another output, of the launch of this number."""
    launch, count = module.run_conv, iter(range(9))

    def run(*args, **options):
        done = launch(*args, **options)
        if next(count) == number:
            (done.y[output] if isinstance(done.y, tuple) else done.y)[place] += 1
        return done

    monkeypatch.setattr(module, "run_conv", run)


@pytest.mark.parametrize("problem", CHECKED, ids=["volume", "transposed, groups"])
def test_volumes_are_held_against_the_reference(monkeypatch, problem):
    x, w = arrays(problem)
    [one, two], y = conv.verify_conv("it", x, w, problem, degrees=(1, 2))
    assert (one.verdict, two.verdict, two.identical) == ("pass", "pass", True)
    assert one.operation == ("conv_transpose3d" if problem.transposed else "conv3d")
    assert (y.shape, one.comparison.num_elems) == (problem.output_shape, y.size)
    spoilt(conv, monkeypatch, (0, 3, 2, 1, 4))
    [found], _ = conv.verify_conv("it", x, w, problem)
    assert (found.verdict, found.comparison.place) == ("fail", "n=0 k=3 z=2 p=1 q=4")


@pytest.mark.parametrize("what", ["sums", "cache"])
def test_a_chunk_that_differs_is_no_pass(monkeypatch, what):
    x, w = arrays(VOLUME)
    _, whole = conv.verify_conv("it", x, w, VOLUME)
    if what == "sums":
        whole[0, 0, 3] = np.nextafter(whole[0, 0, 3], np.float32(np.inf))
    else:
        spoilt(chunks, monkeypatch, (0, 1, 1, 2, 3), number=1, output=1)
    found = verify_chunks("it", x, w, VOLUME, whole, (3, 4))
    assert [(one.ok, one.verdict) for one in found] == [(True, "pass"), (False, "chunk differs")]
    assert found[1].as_dict()["same_as_whole"] is False
    first, second = report_grid("them", found).rows
    assert "all 4 channels; identical to one run" in first
    assert "all 4 channels; DIFFERS from one run" in second
