"""Every algorithm of every operation on random calls, whatever its acceptance leaves free: exact on integers.

Axes of extent or taps 1 that move, images that fill no tile and crops are as likely as what is common. Values are small
integers, so that sums are exact and the truth is the definition's in float64.
"""

import dataclasses
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from conv_calls import canonical_of, in_layout, with_epilogue
from draws import draws
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import nkiconv
from nkiconv.errors import GeometryError
from nkiconv.planner.candidates import Candidate, field_of
from nkiconv.planner.conv import LEAST_BLOCK
from nkiconv.planner.operations import OPERATIONS, violations
from nkiconv.planner.request import Asked, Config, Request
from nkiconv.problem import DTYPES, ConvProblem
from nkiconv.reference import conv_ref, filter_gradient_ref
from nkiconv.rules import FILTER_LAYOUTS, FILTER_PERMS, LAYOUTS, VOLUME_FILTER_LAYOUTS, VOLUME_LAYOUTS
from nkiconv.schedules.implicit_gemm import PRODUCTS, packed_channels
from nkiconv.simulator import ArraySpec
from nkiconv.simulator.dtypes import DTYPES as numpy_of
from nkiconv.simulator.timing import Rates

#: Operations by the rank of their windows, and those that take transposed problems.
RANKS = {"conv2d": 2, "conv3d": 3, "conv_transpose2d": 2, "conv_transpose3d": 3, "conv2d_weight": 2, "conv3d_weight": 3,
         "depthwise_conv1d": 1, "depthwise_conv1d_weight": 1}  # fmt: skip
#: dtypes of filters, or of gy, that go with one of x.
PARTNERS = {"fp32": ["fp32"], "bf16": ["bf16", "fp16"], "fp16": ["bf16", "fp16"],
            "fp8_e4m3": ["fp8_e4m3", "fp8_e5m2"], "fp8_e5m2": ["fp8_e4m3", "fp8_e5m2"]}  # fmt: skip
#: Groups of the channels that algorithms take; the others take one group.
GROUPED = {"weight_stationary": "some"}
#: Draws after which an algorithm is taken to refuse what else was drawn, and settings changed one after another.
TRIES, STEPS = 40, 3


@dataclass(frozen=True)
class Call:
    """A launch."""

    request: Request
    #: None: the kernel's own choice, or its own settings
    algorithm: str | None
    config: Config
    #: dtype of the filter, or of gy
    partner: str
    #: whether a gradient is added to another
    adds: bool

    @property
    def operation(self) -> Any:
        return OPERATIONS[self.request.operation]


def an_axis(rng: random.Random, largest: int, most_taps: int, apart: bool) -> tuple[int, ...]:
    """(size, taps, stride, dilation, before, after, lhs_dilation), each often the plainest that there is."""
    size, taps = rng.randint(1, rng.choice([1, 4, largest, largest])), rng.randint(1, rng.choice([1, most_taps]))
    stride, dilation = rng.choice([1, 1, rng.randint(2, 4)]), rng.choice([1, 1, rng.randint(2, 3)])
    lhs_dilation = rng.choice([1, 1, 1, 2, 3]) if apart else 1
    around = (0, 0)
    if rng.random() < 0.6:
        window = (taps - 1) * dilation
        any_two = rng.randint(-2, 5), rng.randint(-2, 5)
        around = rng.choice([(window // 2, window - window // 2), (window, 0), any_two])
    return (size, taps, stride, dilation, *around, lhs_dilation)


def channels(rng: random.Random, groups: str, most: int) -> tuple[int, int, int]:
    """(C, K, groups), of "one" group, "some" or "each" channel its own."""

    def count_of(least: int) -> int:
        return rng.choice([rng.randint(least, 4), rng.randint(least, 40), rng.randint(least, most), 16, 32, 64, 128])

    if groups == "one":
        return count_of(1), count_of(1), 1
    count = count_of(2)
    if groups == "each":
        return count, count, count
    count = min(count, 40)
    return count * rng.randint(1, 4), count * rng.randint(1, 4), count


def a_problem(rng: random.Random, operation: str, algorithm: str | None, dtypes: Any) -> ConvProblem | None:
    """A problem of an operation whose channels an algorithm may take; None where there is no output, or too much."""
    rank, dtype = RANKS[operation], rng.choice(dtypes)
    rows = rank == 1
    groups = "each" if rows else GROUPED.get(algorithm or "", "one")
    if algorithm in (None, "implicit_gemm", "blocks", "diagonals") and not rows:
        groups = rng.choice(["one", "one", "some", "each"])
    if algorithm in ("stacked", "activation_stationary"):
        groups = rng.choice(["one", "each"])
    if algorithm == "weight_stationary" and operation.startswith("conv_transpose"):
        groups = rng.choice(["one", "some"])
    C, K, count = channels(rng, groups, 150)
    N = rng.randint(1, rng.choice([1, 4, 40] if not rows else [1, 4, 40, 40, 40]))
    transposed, weight = operation.startswith("conv_transpose"), operation.endswith("weight")
    axes = [an_axis(rng, 60 if rows else 14, 20 if rows else 5, not transposed) for _ in range(rank)]
    if not rows and rng.random() < 0.2:
        axes[-2] = (1, 1, 1, 1, 0, 0, 1)
    if rows:
        axes = [(1, 1, 1, 1, 0, 0, 1), *axes]
    names = "DHW"[-len(axes) :], "TRS"[-len(axes) :]
    fields = dict(zip(names[0], (axis[0] for axis in axes), strict=True))
    fields |= {"N": N, "C": C, "K": K, "groups": count, "dtype": dtype}
    layouts = VOLUME_LAYOUTS if rank == 3 else LAYOUTS
    fields["layout"] = layouts[0] if rows else rng.choice(layouts)
    numbers = {name: tuple(axis[at] for axis in axes) for name, at in (("stride", 2), ("dilation", 3), ("lhs", 6))}
    padding = tuple(axis[4:6] for axis in axes)
    try:
        if transposed:
            taps = tuple(axis[1] for axis in axes)
            after = tuple(rng.choice([0, step - 1]) for step in numbers["stride"])
            found = ConvProblem.transpose(
                **fields, taps=taps, stride=numbers["stride"], padding=padding, output_padding=after,
                dilation=numbers["dilation"],
            )  # fmt: skip
        else:
            fields |= zip(names[1], (axis[1] for axis in axes), strict=True)
            found = ConvProblem(
                **fields, stride=numbers["stride"], rhs_dilation=numbers["dilation"], lhs_dilation=numbers["lhs"],
                padding=padding, direction="wgrad" if weight else "forward",
            )  # fmt: skip
    except GeometryError:
        return None
    return found if max(found.flops, np.prod(found.output_shape), np.prod(found.input_shape)) < 4e6 else None


def what_is_asked(rng: random.Random, operation: str, problem: ConvProblem) -> Asked:
    """Options that keep integers whole, most of them left out half of the time."""
    out_dtype = rng.choice([None, None, "fp32", "bf16"])
    if operation.endswith("weight"):
        precision = rng.choice([None, "bf16", "tf32"]) if problem.dtype == "fp32" and RANKS[operation] > 1 else None
        return Asked(bias=rng.random() < 0.5, out_dtype=out_dtype, precision=precision)
    residual = rng.choice([None, None, "pre_activation", "post_activation"])
    found: dict[str, Any] = {"bias": rng.random() < 0.3, "residual": residual, "out_dtype": out_dtype}
    found |= {"activation": rng.choice([None, None, "relu"]), "strict_nonfinite": rng.random() < 0.1}
    if RANKS[operation] == 1:
        return Asked(**found)
    if problem.dtype == "fp32":
        found["precision"] = rng.choice([None, None, "bf16", "tf32", "fp16x3"])
    elif problem.is_volume and problem.T == 3 and problem.dtype in ("bf16", "fp16"):
        found["precision"] = rng.choice([None, None, "winograd"])
    found["scaled"] = residual is not None and rng.random() < 0.5
    if problem.transposed:
        return Asked(**found)
    layouts = VOLUME_FILTER_LAYOUTS if problem.is_volume else FILTER_LAYOUTS
    block = packed_channels(problem.K, problem.C, math.prod(problem.filter_shape[2:]), problem.itemsize)
    packs = problem.groups == 1 and block >= min(problem.K, LEAST_BLOCK)
    found["packed"] = packs and rng.random() < 0.3
    found["filter_layout"] = None if found["packed"] else rng.choice([None, None, *layouts])
    if problem.is_volume and rng.random() < 0.3:
        found["initial_frames"] = rng.randint(0, problem.D - 1)
        found["return_final_frames"] = rng.randint(0, problem.D)
    return Asked(**found)


def a_call(rng: random.Random, operation: str, algorithm: str | None, product: str | None = None) -> Call | None:
    """A call that an algorithm takes with its own settings or the host's; None where it took none of those drawn."""
    own = OPERATIONS[operation]
    dtypes = own.dtypes
    if product is not None:
        dtypes = ["fp32"] if product == "fp16x3" else ["fp8_e4m3", "fp8_e5m2"]
    for _ in range(TRIES):
        problem = a_problem(rng, operation, algorithm, dtypes)
        if problem is None:
            continue
        lnc, settles = rng.choice([1, 2]), rng.random() < 0.5
        partner, adds = rng.choice(PARTNERS[problem.dtype]), problem.direction == "wgrad" and rng.random() < 0.5
        for asked in (what_is_asked(rng, operation, problem), Asked()):
            if adds and RANKS[operation] == 1:
                asked = dataclasses.replace(asked, residual="pre_activation")
            request = Request(problem=problem, lnc=lnc, asked=asked, operation=operation)
            if any(violations(request)):
                continue
            config: Config = None if product is None else (("product", product),)
            if algorithm is not None:
                shape = own.shape(request, Rates())
                if settles and product is None and rng.random() < 0.5:
                    config = some_config(rng, request, algorithm, shape)
                elif settles:
                    config = own.complete(algorithm, shape, config)
                if own.kernel_reason(algorithm, shape, config):
                    continue
            return Call(request, algorithm, config, partner, adds)
    return None


def some_config(rng: random.Random, request: Request, algorithm: str, shape: Any) -> Config:
    """Settings some steps away from those that a wide search starts from, as the host completes them."""
    field = field_of(dataclasses.replace(request, algorithms=(algorithm,)), Rates())
    one = rng.choice([*field.start(wide=True)[0]] or [Candidate(algorithm, None)])
    for _ in range(rng.randint(0, STEPS) if one.config else 0):
        one = rng.choice([*field.near(one)] or [one])
    config: Config = field.operation.complete(algorithm, shape, one.config)
    return config


def drawn(call: Call, seed: int) -> tuple[Any, Any, list[Any], dict[str, Any]]:
    """(x, the canonical filter or gy, what else the kernel is given by place, by name), of integers."""
    problem, asked, rng = call.request.problem, call.request.asked, np.random.default_rng(seed)
    args, kwargs = call.operation.arguments(call.request, call.algorithm, call.config)

    def filled(value: Any) -> Any:
        spec = isinstance(value, ArraySpec)
        return rng.integers(-2, 3, value.shape).astype(numpy_of[value.dtype].numpy) if spec else value

    x, weight = filled(args[0]), problem.direction == "wgrad"
    canonical = rng.integers(-2, 3, problem.output_shape if weight else problem.filter_shape)
    canonical = canonical.astype(DTYPES[call.partner])
    kwargs = {name: filled(value) for name, value in kwargs.items()}
    if call.adds:
        kwargs["accumulate_into"] = rng.integers(-2, 3, problem.filter_shape).astype(np.float32)
    rest = [canonical, args[2]] if weight else [as_stored(canonical, problem, asked, args[1].shape)]
    return x, canonical, rest, kwargs


def launched(call: Call, x: Any, rest: list[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    found = nkiconv.simulate(call.operation.kernel[call.request.lnc])(x, *rest, **kwargs)
    return found if isinstance(found, tuple) else (found,)


def check_call(call: Call, seed: int) -> None:
    """Launch it on integers: equal to the definition, rounded once."""
    problem, asked = call.request.problem, call.request.asked
    x, canonical, rest, kwargs = drawn(call, seed)
    weight = problem.direction == "wgrad"
    if weight:
        gy = canonical_of(canonical, problem)
        dw = filter_gradient_ref(canonical_of(x, problem), gy, problem) + kwargs.get("accumulate_into", 0.0)
        truth = (dw, gy.sum((0, *range(2, gy.ndim)), np.float64)) if asked.bias else (dw,)
    else:
        truth = forward_truth(x, canonical, call, kwargs)
    found = launched(call, x, rest, kwargs)
    for one, expected in zip(found, truth, strict=True):
        rounded = expected.astype(one.dtype).astype(np.float64)
        assert one.shape == rounded.shape, (one.shape, rounded.shape)
        wrong = np.count_nonzero(np.asarray(one, np.float64) != rounded)
        assert wrong == 0, f"{wrong} of {one.size} elements differ"
    assert found[0].dtype == DTYPES[asked.out_dtype or ("fp32" if weight else problem.out_dtype)]


def as_stored(w: Any, problem: ConvProblem, asked: Asked, shape: tuple[int, ...]) -> Any:
    """A canonical filter as the kernel is given it."""
    if asked.packed:
        packed = nkiconv.pack_filter(w)
        return packed.reshape(shape)
    perm = FILTER_PERMS.get(asked.filter_layout or "")
    return w if perm is None else np.ascontiguousarray(np.transpose(w, np.argsort(perm)))


def forward_truth(x: Any, w: Any, call: Call, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """(y,), or (y, the final frames), by the definition."""
    problem, asked = call.request.problem, call.request.asked
    whole, frames = canonical_of(x, problem), kwargs.get("initial_frames")
    if frames is not None:
        whole = np.concatenate([canonical_of(frames, problem), whole], 2)
    after = {name: kwargs[name] for name in ("bias", "activation", "residual", "residual_position") if name in kwargs}
    y = with_epilogue(conv_ref(whole, w, problem), problem, beta=kwargs.get("beta", 1.0), **after)
    final = whole[:, :, whole.shape[2] - (asked.return_final_frames or 0) :].astype(np.float64)
    return tuple(in_layout(one, problem) for one in ((y, final) if asked.return_final_frames else (y,)))


FEW, MANY = 14, 400
#: A smaller number is no simpler call.
AS_DRAWN = {"phases": (Phase.reuse, Phase.generate)}
SEEDS = st.integers(0, 2**32 - 1)
#: (operation, algorithm or None: the kernel's own choice, how implicit_gemm takes products or None: as it chooses).
JOBS = [
    *((operation, algorithm, None) for operation in RANKS for algorithm in (*OPERATIONS[operation].algorithms, None)),
    *((operation, "implicit_gemm", product) for operation in ("conv2d", "conv3d") for product in PRODUCTS[1:]),
]
IDS = ["-".join(str(part) for part in one if part is not None) for one in JOBS]


@pytest.mark.cover(24)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("job", JOBS, ids=IDS)
@settings(draws(FEW, MANY), **AS_DRAWN)
@given(seed=SEEDS)
def test_random_calls(job, seed):
    call = a_call(random.Random(seed), *job)
    assume(call is not None)
    check_call(call, seed)


FORWARD = [(job, name) for job, name in zip(JOBS, IDS, strict=True) if not job[0].endswith("weight")]


@pytest.mark.cover(8)
@pytest.mark.parametrize("job", [job for job, _ in FORWARD], ids=[name for _, name in FORWARD])
@settings(draws(8, 60), **AS_DRAWN)
@given(seed=SEEDS, value=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_what_is_not_finite_in_an_image_reaches_no_other(job, seed, value):
    """Bit by bit, by any algorithm, strictly or not."""
    call = a_call(random.Random(seed), *job)
    assume(call is not None and call.request.problem.N > 1)
    x, _, rest, kwargs = drawn(call, seed)
    spoilt, image = x.copy(), seed % len(x)
    spoilt[image] = value
    with np.errstate(invalid="ignore"):
        clean, other = (launched(call, one, rest, kwargs)[0] for one in (x, spoilt))
    assert np.delete(clean, image, 0).tobytes() == np.delete(other, image, 0).tobytes()
