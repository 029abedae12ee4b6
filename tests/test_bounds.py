"""Lower bounds, which order candidates, are near the time of their schedules, for the core with more to do."""

import pytest

from nkiconv import ConvProblem
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.operations import operation_for
from nkiconv.planner.request import Request
from nkiconv.planner.timing import trace
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only

#: Algorithm, problem, settings, and the least ratio of their bound to their time.
NEAR = {
    # these took 1.6, 1.2 and 1.2 times as long as other settings or algorithms
    "22 rows and one": ("implicit_gemm", ConvProblem(
        N=1, C=74, H=45, W=45, K=253, R=5, S=5, stride=(2, 2), padding=((2, 2), (2, 2)), dtype="fp32"),
        {"shard": "images", "fold": "inputs"}, 0.85),
    "128 channels and 50, two rows at once": ("implicit_gemm", ConvProblem(
        N=2, C=17, H=46, W=28, K=178, R=7, S=7, padding=((3, 3), (3, 3)), dtype="fp32"),
        {"shard": "channels", "fold": "both"}, 0.85),
    "two images and one": ("weight_stationary", ConvProblem(
        N=3, C=128, K=128, W=1024, S=5, padding=((0, 0), (2, 2))).toward("dgrad"),
        {"y_bytes": 16_384, "shard": "outputs"}, 0.85),
    # took 94 us, 71 by weight_stationary
    "loads of Toeplitz matrices": ("stacked", ConvProblem(
        N=2, C=641, K=641, groups=641, H=56, W=56, R=5, S=5, padding=((2, 2), (2, 2))), {}, 0.95),
    # these took 53 us, 25 with planes of taps as channels
    "loads of filters for 40 rows of y": ("stacked", ConvProblem(
        N=2, C=1, K=37, D=19, H=37, W=63, T=3, R=3, S=3, padding=((1, 1),) * 3, dtype="fp16"),
        {"rows": 42, "shifts": 3, "outputs": 40, "beside": 1, "apart": 40, "blocks": 1, "rest": 0,
         "filters": "straight"}, 0.75),
}  # fmt: skip


def guess_of(request, algorithm, config):
    """The guess with the least bound of those with a config."""
    operation = operation_for(request)
    return operation.known[algorithm].guess(operation.shape(request, Rates()), tuple(config.items()) or None)


@pytest.mark.parametrize("why", NEAR)
def test_bounds_are_near_the_time(why):
    algorithm, problem, config, least = NEAR[why]
    request = Request(problem=problem)
    guess = guess_of(request, algorithm, config)
    us = trace(request, Candidate(algorithm, guess.config), Rates()).us
    assert least * us < guess.ns / 1e3 < 1.1 * us


def test_copies_of_rows_that_are_stored_together_are_priced():
    """Blocks of four rows took 14.0 us, of two 11.9."""
    request = Request(problem=ConvProblem(N=1, C=96, H=48, W=48, K=192, R=3, S=3, padding=((1, 1), (1, 1)), groups=6))
    sizes = [{"rows": 32, "height": rows, "width": 1} for rows in (2, 4)]
    two, four = (guess_of(request, "weight_stationary", one).ns for one in sizes)
    assert 1.02 * two < four
