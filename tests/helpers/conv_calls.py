"""What the tests of images and volumes share: rows of geometry, inputs, calls of the public kernels and traces."""

import re
from typing import Any

import numpy as np
from draws import cores
from tolerances import assert_exact, integer_inputs

import nkiconv
from nkiconv._nki import nl
from nkiconv.bounds import epilogue_bound, products_bound, prologue_bound
from nkiconv.kernels._epilogue import read_epilogue
from nkiconv.kernels.conv import conv2d_implicit_gemm, conv3d_implicit_gemm
from nkiconv.kernels.conv.arguments import read_geometry
from nkiconv.planner.request import X_PERMS, Y_PERMS
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import abs_sum_ref, conv_ref, epilogue_ref, num_terms, prologue_ref
from nkiconv.schedules.conv_algorithms import plan_of
from nkiconv.schedules.options import Options
from nkiconv.simulator.dtypes import canonical as canonical_dtype

#: By the axes of a filter.
KERNELS = {2: conv2d_implicit_gemm, 3: conv3d_implicit_gemm}
NL = {"bf16": nl.bfloat16, "fp16": nl.float16, "fp32": nl.float32}
FLOATS = tuple(NL)


def _row(why: str, **fields: Any) -> tuple[str, ConvProblem]:
    """One geometry, and why it is in the table; an image is 1 x 1 and so is a filter unless said."""
    return why.replace(" ", "_"), ConvProblem(**({"N": 1, "H": 1, "W": 1, "S": 1} | fields))


def _channels(C: int, K: int) -> tuple[str, ConvProblem]:
    return _row(f"C {C} K {K}", C=C, K=K, H=5, W=4, R=2, S=3, padding=((1, 0), (0, 2)))


EDGE = dict([
    _row("one everything", C=1, K=1),
    _row("one tap", N=2, C=5, K=7, H=4, W=9),
    _row("one tap, one pixel", N=3, C=130, K=5),
    _row("one tap, stride", N=2, C=6, K=3, H=7, W=10, stride=(2, 3)),
    _row("one tap, padding", C=3, K=2, H=2, W=3, padding=((1, 2), (3, 0))),
    _row("31 x 31", C=3, K=2, H=6, W=9, R=31, S=31, padding=((15, 15), (14, 16))),
    _row("31 x 31 without padding", C=2, K=3, H=32, W=33, R=31, S=31),
    _row("a row of taps", C=4, K=3, H=3, W=70, S=64, padding=((0, 0), (7, 2))),
    _row("a column of taps", C=4, K=3, H=70, W=3, R=64, padding=((2, 7), (0, 0))),
    _row("filter larger than the image", N=2, C=4, K=3, H=3, W=2, R=7, S=8, padding=((3, 4), (5, 3))),
    _row("filter is the image", N=2, C=20, K=9, H=6, W=7, R=6, S=7),
    _row("stride wider than the filter", N=2, C=5, K=4, H=17, W=23, R=2, S=3, stride=(5, 7)),
    _row("stride beyond the image", C=5, K=4, H=5, W=6, R=2, S=2, stride=(9, 50), padding=((1, 0), (0, 1))),
    _row("patches", C=3, K=9, H=12, W=15, R=4, S=5, stride=(4, 5)),
    _row("dilation", C=5, K=6, H=13, W=17, R=3, S=2, rhs_dilation=(3, 5), padding=((2, 4), (1, 3))),
    _row("dilation wider than the image", C=5, K=6, H=4, W=3, R=3, S=3, rhs_dilation=(7, 5), padding=((9, 7), (6, 6))),
    _row("lhs dilation", N=2, C=5, K=6, H=4, W=6, R=3, S=4, lhs_dilation=(2, 3), padding=((2, 1), (0, 3))),
    _row("transposed convolution", C=6, K=4, H=5, W=7, R=4, S=4, lhs_dilation=(2, 2), padding=((2, 2), (2, 2))),
    _row("a column beyond x", C=2, K=1, S=2, padding=((0, 0), (0, 2)), lhs_dilation=(2, 1)),
    _row("gaps wider than the filter", C=3, K=4, H=3, W=4, R=2, S=1, lhs_dilation=(5, 4)),
    _row("both dilations", N=2, C=3, K=5, H=6, W=5, R=3, S=2, rhs_dilation=(2, 3), lhs_dilation=(3, 2),
     padding=((3, 1), (0, 4))),
    _row("stride and both dilations", N=2, C=3, K=5, H=7, W=9, R=3, S=4, stride=(2, 3), rhs_dilation=(3, 2),
     lhs_dilation=(4, 5), padding=((5, 2), (1, 7))),
    _row("crop all sides", C=4, K=5, H=12, W=11, R=3, S=2, padding=((-2, -1), (-3, -2))),
    _row("crop and pad", C=4, K=5, H=9, W=8, R=3, S=3, stride=(1, 2), padding=((-2, 3), (4, -1))),
    _row("crop inside a gap", C=3, K=2, H=6, W=7, R=2, S=3, lhs_dilation=(3, 4), padding=((-2, -1), (-5, -2))),
    _row("padding far outside", C=3, K=2, H=2, W=3, R=3, S=2, padding=((9, 14), (20, 8))),
    _row("pixels of padding only between", C=3, K=2, H=2, W=2, R=1, S=1, stride=(3, 3), padding=((2, 2), (2, 2))),
    _row("padding alone above a crop", C=1, K=1, padding=((1, -1), (0, 0))),
    _row("padding alone, depthwise", N=5, C=120, W=7, S=2, groups=120, stride=(2, 1), padding=((2, 5), (-3, -2))),
    _row("padding alone behind a crop", N=3, C=4, W=2, groups=4, padding=((0, 0), (-2, 3))),
    _row("padding alone, stride", C=3, W=2, R=3, S=3, groups=3, stride=(4, 1), padding=((3, 0), (0, 1))),
    *[_channels(C, 5) for C in (1, 3, 16, 17, 64, 100, 130)],
    *[_channels(5, K) for K in (1, 3, 16, 17, 64, 100, 130)],
    _channels(130, 130),
    _channels(257, 1),
    _row("groups", N=2, C=12, K=20, H=6, W=7, R=3, S=2, groups=4, padding=((1, 0), (0, 1))),
    _row("groups, odd channels", C=15, K=9, H=6, W=7, R=3, S=2, groups=3, stride=(2, 1)),
    _row("groups share a tile unevenly", C=140, K=60, H=4, W=5, R=2, S=2, groups=20),
    _row("groups of more than 128 inputs", C=260, K=6, H=4, W=3, R=2, S=2, groups=2),
    _row("groups of more than 128 outputs", C=6, K=260, H=4, W=3, R=2, S=2, groups=2),
    _row("depthwise", N=2, C=7, H=8, W=6, R=3, S=5, groups=7, padding=((1, 2), (2, 0))),
    _row("depthwise, over 128 channels", C=131, H=5, W=4, R=3, S=2, groups=131),
    _row("depthwise, stride and dilation", C=9, H=11, W=14, R=3, S=3, groups=9, stride=(2, 3), rhs_dilation=(2, 1)),
    _row("multiplier 2", C=5, K=10, H=6, W=5, R=2, S=3, groups=5),
    _row("multiplier 3, over 128 outputs", C=50, K=150, H=4, W=5, R=2, S=3, groups=50),
    _row("multiplier over 128", C=2, K=280, H=4, W=5, R=2, S=1, groups=2),
    _row("many small images", N=9, C=3, K=4, H=4, W=3, R=2, S=2),
    _row("many images of one pixel", N=700, C=3, K=2),
    _row("Q over 512", C=3, K=4, H=3, W=1030, R=2, S=3, padding=((0, 0), (1, 0))),
    _row("one row, Q over 512", N=2, C=3, K=4, W=1300, S=5, stride=(1, 2)),
    _row("P over 512", C=3, K=4, H=1030, W=2, R=3, S=2, padding=((1, 0), (0, 0))),
    _row("rows too wide for SBUF", C=2, K=2, H=2, W=107_000, R=2, S=3, padding=((0, 0), (0, 1))),
    _row("columns too high for SBUF", C=2, K=2, H=120_000, W=1, R=3, S=1, stride=(2, 1), padding=((1, 0), (0, 0))),
    _row("dilation beyond a load", C=1, K=2, W=10_100, S=3, rhs_dilation=(1, 5000), padding=((0, 0), (5, 0))),
    _row("stride beyond a load", C=2, K=1, H=1, W=90_000, S=2, stride=(1, 40_000)),
    _row("filter of several loads", C=8, K=2, H=11, W=162, R=10, S=160),
    _row("filter of more loads than SBUF holds", C=128, K=2, H=31, W=32, R=31, S=31),
])  # fmt: skip


def volume(shape: Any, dtype: str = "bf16", N: int = 1, last: bool = False) -> ConvProblem:
    """The problem of (C, K, groups, planes, rows, columns), an axis being (size, taps, stride, dilation, lhs_dilation,
    before, after); last: channels side by side in memory."""
    C, K, groups, *axes = shape
    sizes, taps, stride, rhs_dilation, lhs_dilation, *_ = zip(*axes, strict=True)
    return ConvProblem(
        N=N, C=C, K=K, groups=groups, **dict(zip("DHW", sizes, strict=True)), **dict(zip("TRS", taps, strict=True)),
        stride=stride, rhs_dilation=rhs_dilation, lhs_dilation=lhs_dilation, padding=tuple(axis[5:] for axis in axes),
        dtype=dtype, layout="NDHWC" if last else "NCDHW",
    )  # fmt: skip


def integers(rng: np.random.Generator, problem: ConvProblem, w_dtype: str | None = None) -> tuple[Any, Any]:
    """x in the problem's layout and w [K, C / groups, ...] whose sums are exact in fp32."""
    x = integer_inputs(rng, problem.input_shape, problem.dtype)
    return x, integer_inputs(rng, problem.filter_shape, w_dtype or problem.dtype)


def normals(rng: np.random.Generator, problem: ConvProblem, scale: float = 1.0, mean: float = 0.0) -> tuple[Any, Any]:
    """x in the problem's layout and w of random numbers, of which sums are of order `scale`."""
    x = (scale * rng.standard_normal(problem.input_shape) + mean).astype(DTYPES[problem.dtype])
    w = rng.standard_normal(problem.filter_shape) * num_terms(problem) ** -0.5
    return x, w.astype(DTYPES[problem.dtype])


def canonical(problem: ConvProblem) -> ConvProblem:
    """The problem with its channels first."""
    return problem.replace(layout="NCDHW" if problem.is_volume else "NCHW")


def arguments(problem: ConvProblem) -> dict[str, Any]:
    """The public kernel's keyword arguments of a problem."""
    perms = {"in_perm": X_PERMS[problem.layout], "out_perm": Y_PERMS[problem.layout]}
    places = {name: getattr(problem, name) for name in ("padding", "stride", "rhs_dilation", "lhs_dilation")}
    return ({} if problem.channels_first else perms) | places | {"feature_group_count": problem.groups}


def canonical_of(x: Any, problem: ConvProblem) -> Any:
    """x in the problem's layout with its channels first."""
    return x.transpose(X_PERMS[problem.layout])


def in_layout(y: Any, problem: ConvProblem) -> Any:
    """y with its channels first in the problem's layout."""
    return y.transpose(Y_PERMS[problem.layout])


def run(x: Any, w: Any, problem: ConvProblem, lnc: int, **more: Any) -> Any:
    """What the public kernel returns on `lnc` cores."""
    return nkiconv.simulate(KERNELS[len(problem.axes)][lnc])(x, w, **arguments(problem) | named(**more))


def trace(problem: ConvProblem, lnc: int = 2, **more: Any) -> Any:
    """The records of a launch of the public kernel on `lnc` cores, without data."""
    args = nkiconv.spec(problem.input_shape, problem.dtype), nkiconv.spec(problem.filter_shape, problem.dtype)
    kernel = KERNELS[len(problem.axes)][lnc]
    return nkiconv.simulator.execute(kernel, args, arguments(problem) | named(**more), trace_only=True)


def named(config: Any = None, **more: Any) -> dict[str, Any]:
    """The kernel's arguments of a `config_of`, and more."""
    return more | ({} if config is None else {"algorithm": config[0][1], "config": config[1:] or None})


def config_of(algorithm: str, **settings: Any) -> tuple[tuple[str, Any], ...]:
    """A config that names an algorithm and settings of it."""
    return (("algorithm", algorithm), *settings.items())


def geometry_of(problem: ConvProblem, precision: str | None = None) -> Any:
    """The kernel's own description of a problem."""
    dtype = canonical_dtype(problem.dtype)
    x, w = (nkiconv.simulator.ArraySpec(shape, dtype) for shape in (problem.input_shape, problem.filter_shape))
    places = problem.padding, problem.stride, problem.rhs_dilation, problem.lhs_dilation
    perms = X_PERMS[problem.layout], None, Y_PERMS[problem.layout]
    return read_geometry(x, w, places, (problem.groups, 1), perms, precision)[0]


def options_of(
    bias: Any = None, activation: str | None = None, residual: Any = None, beta: float = 1.0,
    residual_position: str = "pre_activation", **changes: Any,
) -> Options:  # fmt: skip
    """The sums with an epilogue, whose tensors are None or anything else, with changes; `beta` changes no option."""
    epilogue = read_epilogue(activation, bias, residual, residual_position, 4)
    plain = {"residual": residual is not None, "strict_nonfinite": False}
    return Options(epilogue, **plain | changes)


def planned(
    problem: ConvProblem, algorithm: str, settings: Any = None, precision: str | None = None, **changes: Any
) -> tuple[Any, str]:
    """(an algorithm's plan of a problem, "") or (None, why not); changes: of what is asked for."""
    options = options_of(**changes)
    return plan_of(algorithm, geometry_of(problem, precision), options, settings)


def numbers(rng: np.random.Generator, problem: ConvProblem, form: str | None, low: int = -2, high: int = 3) -> Any:
    """Integers [C] or [N, C] in fp32, "channel" or "image"; None of None."""
    shape = {"channel": (problem.C,), "image": (problem.N, problem.C)}.get(form or "")
    return None if shape is None else rng.integers(low, high, shape).astype(np.float32)


def check_exact(
    problem: ConvProblem, seed: int = 1, w_dtype: str | None = None, *,
    in_perm: Any = None, kern_perm: Any = None, out_perm: Any = None, out_dtype: str | None = None,
    x_scale: str | None = None, x_shift: str | None = None, **more: Any,
) -> None:  # fmt: skip
    """Integers, in the problem's layout or by perms, on `cores`: equal to the reference rounded once; x and w stay.
    x_scale and x_shift: forms of numbers, shifts far from 0; with x_upsample x has as many fewer rows and columns."""
    rng = np.random.default_rng(seed)
    x, w = integers(rng, canonical(problem), w_dtype)
    times = more.get("x_upsample", 1)
    x = x[..., : x.shape[-2] // times, : x.shape[-1] // times]
    on_x = {"x_scale": numbers(rng, problem, x_scale), "x_shift": numbers(rng, problem, x_shift, 50, 60)}
    on_x |= {name: more.get(name) for name in ("x_activation", "x_upsample")}
    on_x = {name: one for name, one in on_x.items() if one is not None}
    given = {"in_perm": in_perm, "kern_perm": kern_perm, "out_perm": out_perm, "out_dtype": out_dtype and NL[out_dtype]}
    more |= on_x | {name: one for name, one in given.items() if one is not None}
    reads = in_perm or X_PERMS[problem.layout], kern_perm or range(w.ndim)
    stored = [np.ascontiguousarray(one.transpose(np.argsort(perm))) for one, perm in zip((x, w), reads, strict=True)]
    before = [one.tobytes() for one in stored]
    truth = conv_ref(prologue_ref(x, **on_x), w, problem).transpose(out_perm or Y_PERMS[problem.layout])
    for lnc in cores(problem, more.get("config")):
        assert_exact(run(*stored, problem, lnc, **more), truth, out_dtype or problem.out_dtype)
    assert [one.tobytes() for one in stored] == before


#: Epilogues that an algorithm's own tests ask for.
EPILOGUES = {
    "bias": {"bias": True},
    "activation": {"bias": True, "activation": "relu"},
    "residual": {"residual": True, "beta": 2.0},
    "residual before an activation": {"bias": True, "residual": True, "activation": "relu"},
    "residual after an activation": {
        "bias": True, "residual": True, "beta": -1.0, "activation": "relu", "residual_position": "post_activation"},
}  # fmt: skip


def with_epilogue(sums: Any, problem: ConvProblem, residual: Any = None, beta: float = 1.0, **more: Any) -> Any:
    """What the kernel's epilogue makes of sums with their channels first; the residual is in the problem's layout."""
    added = None if residual is None else canonical_of(residual, problem).astype(np.float64) * beta
    return epilogue_ref(sums, residual=added, **more)


def check_epilogue(problem: ConvProblem, asked: str | dict[str, Any], config: Any, dtype: str = "fp32") -> None:
    """Integers: what the reference's sums become by one of EPILOGUES, or such, exactly, on `cores`."""
    problem, more = problem.replace(dtype=dtype), dict(EPILOGUES[asked] if isinstance(asked, str) else asked)
    rng = np.random.default_rng(2)
    x, w = integers(rng, problem)
    if more.get("bias"):
        more["bias"] = rng.integers(-9, 10, problem.K).astype(np.float32)
    if more.get("residual"):
        kind = more["residual"] if isinstance(more["residual"], str) else "fp32"
        more["residual"] = rng.integers(-9, 10, problem.output_shape).astype(DTYPES[kind])
    expected = in_layout(with_epilogue(conv_ref(canonical_of(x, problem), w, problem), problem, **more), problem)
    for lnc in cores(problem, config):
        assert_exact(run(x, w, problem, lnc, config=config, **more), expected, problem.out_dtype)


def bounded(
    x: Any, w: Any, problem: ConvProblem, out_dtype: str, *,
    precision: str | None = None, on_x: dict[str, Any] | None = None, norm: Any = None, **after: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """(sums, what an epilogue makes of them, how far y may be from that) in float64, of tensors with channels first;
    on_x: the prologue, after: the epilogue, as the reference takes them."""
    prepared, off = x, np.zeros(1)
    if any(one is not None for one in (on_x or {}).values()):
        plain = {name: one for name, one in on_x.items() if name != "x_upsample"}
        prepared, off = prologue_ref(x, **on_x), prologue_bound(x, "bf16" if precision == "winograd" else problem.dtype,
                                                                **plain)  # fmt: skip
    off = np.broadcast_to(off, prepared.shape)
    sums, largest = conv_ref(prepared, w, problem), np.abs(np.asarray(prepared, np.float64)) + off
    inexact = products_bound(precision, largest if off.any() else x, w, problem)
    inexact = inexact + (abs_sum_ref(off, w, problem) if off.any() else 0.0)
    of_sums = num_terms(problem), abs_sum_ref(largest, w, problem), sums
    limit = epilogue_bound(*of_sums, out_dtype, inexact=inexact, norm=norm, **after)
    return sums, epilogue_ref(sums, norm=norm, **after), limit


def check_refused(problem: ConvProblem, algorithm: str, message: str, settings: Any = None, **asked: Any) -> None:
    """An algorithm has no plan of a problem, and says why in these words."""
    found, reason = planned(problem, algorithm, tuple(settings.items()) if settings else None, **asked)
    assert found is None
    assert re.search(message, reason), reason


def combined(stats: Any) -> Any:
    """Count, mean and variance of all parts, in float64."""
    count, mean, variance = np.moveaxis(stats.astype(np.float64), -1, 0)
    whole = count.sum(0)
    average = (count * mean).sum(0) / whole
    return whole, average, (count * (variance + (mean - average) ** 2)).sum(0) / whole
