"""Problems of taps, what it needs of each, and its time on the array."""

from conv_calls import config_of, geometry_of, options_of, planned, trace

from nkiconv.planner.cost.algorithm import Shape
from nkiconv.planner.cost.conv import ALGORITHMS
from nkiconv.problem import ConvProblem
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timeline.tasks import ENGINES
from nkiconv.simulator.timing import Rates

M_TILES = ConvProblem(N=2, C=300, H=9, W=11, K=290, R=3, S=2, padding=((1, 1), (0, 1)))
LINE = ConvProblem(N=1, C=20, H=1, W=2100, K=150, R=1, S=3, stride=(1, 2), padding=((0, 0), (1, 1)))
STRIDED = ConvProblem(N=3, C=140, H=28, W=28, K=40, R=1, S=1, stride=(2, 2))
PROBLEMS = {"jobs": M_TILES, "line": LINE, "strided": STRIDED}
#: What is folded, by why it is here: channels left over beside whole 128s.
FOLDED = {
    "both": ConvProblem(N=2, C=192, H=9, W=11, K=160, R=3, S=3, padding=((1, 1), (1, 1))),
    "few channels": ConvProblem(N=3, C=20, H=8, W=7, K=24, R=3, S=5, padding=((2, 0), (1, 3))),
    "stride": ConvProblem(N=1, C=40, H=13, W=15, K=33, R=3, S=2, stride=(2, 2), padding=((1, 2), (0, 1))),
    "stride and dilation": ConvProblem(
        N=1, C=140, H=14, W=15, K=130, R=4, S=3, stride=(2, 1), rhs_dilation=(2, 3), padding=((3, 2), (4, 1))
    ),
    "cropped": ConvProblem(N=2, C=64, H=11, W=10, K=64, R=3, S=3, padding=((-2, -1), (-3, 1))),
    "padding far outside": ConvProblem(N=1, C=6, H=3, W=4, K=5, R=3, S=3, padding=((6, 5), (7, 4))),
    "wide": ConvProblem(N=1, C=30, H=5, W=1100, K=20, R=2, S=4, padding=((1, 0), (2, 1))),
    "two rows": ConvProblem(N=1, C=64, H=4, W=9, K=40, R=3, S=2),
}


def shape_of(problem, precision=None, **changes):
    """A problem as the host's cost models see it; changes: of what is asked for."""
    options = options_of(**changes)
    return Shape(geometry_of(problem, precision), options, 2, Rates())


def completed(problem, precision=None, asked=None, **settings):
    """The host's settings for a problem, by name; asked: changes of what is asked for."""
    return dict(
        ALGORITHMS["implicit_gemm"].complete(
            shape_of(problem, precision, **(asked or {})), tuple(settings.items()) or None
        )
    )


def chosen(problem, precision=None, **settings):
    """The plan of the host's settings for a problem."""
    config = config_of("implicit_gemm", **completed(problem, precision, **settings))[1:]
    found, reason = planned(problem, "implicit_gemm", config, precision=precision)
    assert reason == ""
    return found


def timeline(problem, lnc, precision=None, **settings):
    """(timed execution, tasks of the array of core 0 in order), by the host's settings but for those given."""
    config = config_of("implicit_gemm", **completed(problem, precision, **settings))
    timed = in_time(trace(problem, lnc, config=config, precision=precision), Rates())
    array = [t for t in range(len(timed.tasks)) if timed.tasks.engine[t] == ENGINES.index("tensor")]
    return timed, sorted(array, key=lambda t: timed.line.start[t])
