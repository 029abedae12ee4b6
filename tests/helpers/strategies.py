"""Hypothesis strategies that several test files share: random problems, and random requests that fit a problem."""

from conv_calls import FLOATS
from epilogue import CHUNKS, Request, fitting, reason_to_refuse
from hypothesis import reject
from hypothesis import strategies as st

from nkiconv.errors import GeometryError
from nkiconv.problem import ConvProblem
from nkiconv.rules import ACTIVATIONS, RESIDUAL_POSITIONS


@st.composite
def problems(draw, widest, most_taps, most_channels):
    """A ConvProblem with an output; crops and gaps that leave none are drawn again."""
    geometry = st.builds(
        dict, N=st.integers(1, 3), C=st.integers(1, most_channels), W=st.integers(1, widest),
        S=st.integers(1, most_taps), stride=st.tuples(st.just(1), st.one_of(st.integers(1, 4), st.integers(1, 90))),
        padding=st.tuples(st.just((0, 0)), st.tuples(st.integers(-6, 40), st.integers(-6, 40))),
        rhs_dilation=st.tuples(st.just(1), st.integers(1, 5)), lhs_dilation=st.tuples(st.just(1), st.integers(1, 4)),
        dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    )  # fmt: skip
    return draw(geometry.map(_built).filter(lambda problem: problem is not None))


@st.composite
def images_and_volumes(draw, groups, channels, transposed):
    """Images and volumes of so many groups, with so many channels of a group, some of them transposed or none."""

    def each(low, high):
        return tuple(draw(st.integers(low, high)) for _ in axes)

    axes, count = draw(st.sampled_from(["HW", "DHW"])), draw(st.sampled_from(groups))
    C, K = (count * draw(st.sampled_from(channels)) for _ in range(2))
    back = transposed and draw(st.booleans())
    try:
        return ConvProblem(
            N=draw(st.integers(1, 3)), C=C, K=K, groups=count, rhs_dilation=each(1, 2),
            **dict(zip(axes, each(1, 8 if len(axes) == 2 else 4), strict=True)),
            **dict(zip("TRS"[-len(axes) :], each(1, 3), strict=True)),
            padding=tuple(zip(each(0, 2), each(0, 2), strict=True)),
            **{"lhs_dilation" if back else "stride": each(1, 2), "transposed": back},
            layout=draw(st.sampled_from(["NCHW", "NHWC"] if len(axes) == 2 else ["NCDHW", "NDHWC"])),
            dtype=draw(st.sampled_from(FLOATS)),
        )  # fmt: skip
    except GeometryError:  # no output
        reject()


@st.composite
def problems_for(draw, algorithm, widest, most_taps, most_channels):
    """A ConvProblem, causal or not; most of those that the algorithm refuses are drawn again without dilations."""
    shape = {"widest": widest, "most_taps": most_taps, "most_channels": most_channels}
    problem = draw(st.one_of(problems(**shape), causal_problems(**shape)))
    problem = problem.replace(transposed=problem.stride == (1, 1) and draw(st.integers(0, 3)) == 0)
    if algorithm is None or reason_to_refuse(algorithm, problem) == "" or draw(st.integers(0, 3)) == 0:
        return problem
    stride = (1, draw(st.integers(1, 3)))
    plain = {"rhs_dilation": (1, 1), "lhs_dilation": (1, 1), "stride": stride, "W": problem.W + problem.S + 6}
    plain["transposed"] = False
    return problem.replace(**plain)


@st.composite
def causal_problems(draw, widest, most_taps, most_channels):
    """A ConvProblem that takes a state: stride 1, no gaps, padded on the left by what a window sees before the row."""
    S, dilation = draw(st.integers(2, most_taps)), draw(st.integers(1, 3))
    C = draw(st.integers(1, most_channels))
    return ConvProblem(
        N=draw(st.integers(1, 3)), C=C, W=draw(st.integers(1, widest)), S=S, groups=C, rhs_dilation=(1, dilation),
        padding=((0, 0), ((S - 1) * dilation, draw(st.sampled_from([0, 0, 0, 3])))),
        dtype=draw(st.sampled_from(FLOATS)),
    )  # fmt: skip


@st.composite
def requests(draw, problem):
    """A Request that fits the problem, most of it left out half of the time."""
    tensor, form = (st.one_of(st.none(), st.sampled_from(one)) for one in (FLOATS, ("channel", "image")))
    activation = st.one_of(st.none(), st.sampled_from(ACTIVATIONS))
    chunks = draw(st.sampled_from([None, None, None, None, *CHUNKS]))
    on_x = {}
    if chunks is None and draw(st.booleans()):
        on_x = {"x_scale": draw(form), "x_shift": draw(form), "x_activation": draw(activation)}
    found = Request(
        bias=draw(tensor), activation=draw(activation), residual=None if "C" in (chunks or "") else draw(tensor),
        residual_position=draw(st.sampled_from(RESIDUAL_POSITIONS)), out_dtype=draw(tensor),
        state=draw(st.booleans()), final=draw(st.booleans()), chunks=chunks, **on_x,
    )  # fmt: skip
    return fitting(found, problem) or Request()


def _built(fields):
    try:
        return ConvProblem(**fields, groups=fields["C"])
    except GeometryError:
        return None
