"""Every function, kernel and problem applies the rules of all of its arguments, in its own names of them; what rules
say of numbers that they compute.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkiconv
from nkiconv import ConvProblem, norms, pixel_norms, rules
from nkiconv._nki import nl
from nkiconv.axis import Axis
from nkiconv.errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError
from nkiconv.planner.operations import OPERATIONS

BF16 = ml_dtypes.bfloat16
C, K, SIZE, TAPS = 6, 4, 7, 3
OUT, GROWN = SIZE - TAPS + 1, SIZE + TAPS - 1


def ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


@dataclass(frozen=True)
class Entry:
    """A function and arguments that break no rule; what it calls x, w and groups, and which forms it takes."""

    call: Callable[..., Any]
    given: dict[str, Any]
    axes: int
    paddings: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    transposed: bool = False  # and so each axis may have a number of padding
    alone: bool = True  # whether one number stands for all axes
    dtypes: tuple[str, ...] = rules.CONV2D_DTYPES
    names: tuple[str, str, str] = ("x", "w", "groups")
    letters: str = "K"  # of a bias

    @property
    def arguments(self) -> set[str]:
        """Names of the arguments but those of **more, which another function checks."""
        parameters = inspect.signature(getattr(self.call, "function", self.call)).parameters
        return {name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD}


LAYOUTS = {1: ("NCW", "NWC"), 2: rules.LAYOUTS, 3: rules.VOLUME_LAYOUTS}
FILTERS = {1: ("KCS", "SCK", "KSC"), 2: tuple(rules.FILTER_LAYOUTS), 3: tuple(rules.VOLUME_FILTER_LAYOUTS)}


def entries_of(axes: int) -> dict[str, Entry]:
    """Functions of so many axes, of few pixels."""
    size, out, grown = ((one,) * axes for one in (SIZE, OUT, GROWN))
    x, w, back, y = (2, C, *size), (K, C, *[TAPS] * axes), (C, K, *[TAPS] * axes), ones(2, K, *out)
    kind, names = f"conv{max(2, axes)}d", rules.PADDINGS[: 3 if axes == 1 else 2]
    of, back_of = OPERATIONS[kind].algorithms, OPERATIONS[kind.replace("conv", "conv_transpose")].algorithms
    plain = {"x": ones(*x), "w": ones(*w), "bias": ones(K), "residual": y}
    spread = plain | {"w": ones(*back), "residual": ones(2, K, *grown)}
    wgrad, dgrad = {"x": ones(*x), "gy": y, "weight_size": w}, {"w": ones(*w), "gy": y, "input_size": x}
    wgrad_back = {"x": ones(*x), "gy": ones(2, K, *grown), "weight_size": back}
    numbers = {f"conv{axes}d": (plain, names, of), f"conv{axes}d_weight": (wgrad, names, ("blocks", "diagonals"))}
    of_each = {f"conv_transpose{axes}d": (spread, (), back_of), f"conv{axes}d_input": (dgrad, (), ())}
    of_each[f"conv_transpose{axes}d_weight"] = (wgrad_back, (), ())
    return {
        name: Entry(getattr(nkiconv, name), given, axes, paddings, algorithms, transposed=name in of_each)
        for name, (given, paddings, algorithms) in (numbers | of_each).items()
    }


def entries() -> dict[str, Entry]:
    found = entries_of(1) | entries_of(2) | entries_of(3)
    x, w, bias, y = ones(2, C, SIZE), ones(C, TAPS), ones(C), ones(2, C, OUT)
    image = {"x": ones(2, C, SIZE, SIZE), "w": ones(C, 1, TAPS, TAPS), "bias": bias, "residual": ones(2, C, OUT, OUT)}
    for name, given in (
        ("depthwise_conv1d", {"x": x, "w": w, "bias": bias, "residual": y}),
        ("depthwise_conv1d_weight", {"x": x, "gy": y, "weight_size": (C, TAPS)}),
        ("depthwise_conv1d_input", {"w": w, "gy": y, "input_size": (2, C, SIZE)}),
    ):
        algorithms = OPERATIONS[name].algorithms if name in OPERATIONS else ()
        more = {"algorithms": algorithms, "dtypes": rules.KERNEL_DTYPES, "letters": "C"}
        found[name] = Entry(getattr(nkiconv, name), given, 1, rules.PADDINGS, **more)
    images = OPERATIONS["conv2d"].algorithms
    found["depthwise_conv2d"] = Entry(nkiconv.depthwise_conv2d, image, 2, rules.PADDINGS[:2], images)
    return found


def kernels() -> dict[str, Entry]:
    found = {}
    for axes in (2, 3):
        size, out, grown, taps = ((one,) * axes for one in (SIZE, OUT, GROWN, TAPS))
        both = {"img_ref": ones(2, C, *size), "bias": ones(K)}
        plain = both | {"filter_ref": ones(K, C, *taps), "residual": ones(2, K, *out)}
        spread = both | {"filter_ref": ones(C, K, *taps), "residual": ones(2, K, *grown)}
        for name, given in ((f"conv{axes}d", plain), (f"conv_transpose{axes}d", spread)):
            kernel = getattr(nkiconv, f"{name}_implicit_gemm")
            found[f"{name}_implicit_gemm"] = Entry(kernel, given, axes, (), OPERATIONS[name].algorithms, **OF_KERNEL)
    row = {"img_ref": ones(2, C, 1, SIZE), "bias": ones(C), "residual": ones(2, C, 1, OUT)}
    more = OF_KERNEL | {"dtypes": rules.KERNEL_DTYPES, "letters": "C"}
    kernel = nkiconv.depthwise_conv1d_implicit_gemm
    rows = OPERATIONS["depthwise_conv1d"].algorithms
    found["depthwise_conv1d_implicit_gemm"] = Entry(
        kernel, row | {"filter_ref": ones(C, 1, 1, TAPS)}, 2, (), rows, **more
    )
    return found


OF_KERNEL = {"alone": False, "names": ("img_ref", "filter_ref", "feature_group_count")}
ENTRIES, KERNELS = entries(), kernels()
#: A value of an argument, and what its rule says of it in a call.
Wrong = tuple[Any, Callable[[Entry, Any], str]]


def each(values: list[Any], rule: Callable[[Entry, Any], str]) -> list[Wrong]:
    return [(value, rule) for value in values]


def places(name: str) -> list[Wrong]:
    return each(
        [0, -1, True, 1.5, "2", (1, 0, 1, 1), [1, 2], 2**31], lambda e, v: rules.places(name, v, e.axes, alone=e.alone)
    )


def of_choice(name: str, rule: Callable[..., str], values: tuple[Any, ...] = ("nonesuch", 3, ["relu"])) -> list[Wrong]:
    return each(list(values), lambda _, v: rule(v))


def output_padding(e: Entry, value: Any) -> str:
    """What is wrong with a form or a number, of strides and dilations of 1."""
    ones = 1 if e.alone else (1,) * e.axes
    malformed = rules.places("output_padding", value, e.axes, alone=e.alone, least=0)
    return malformed or rules.output_padding(value, ones, ones, e.axes)


def flags(name: str) -> list[Wrong]:
    return each([1, "yes", None], lambda _, v: rules.flag(name, v))


def other_shape(name: str, words: Callable[[Entry], str]) -> list[Wrong]:
    """An array that is longer along its first axis."""
    return [
        (
            lambda e: np.repeat(e.given[name], 2, axis=0),
            lambda e, v: rules.shape(name, v.shape, e.given[name].shape, words(e)),
        )
    ]


def other_dtype(name: str, dtypes: Callable[[Entry], tuple[str, ...]] = lambda e: e.dtypes) -> list[Wrong]:
    return [
        (lambda e, dtype=dtype: e.given[name].astype(dtype), lambda e, v: rules.array_dtype(name, v.dtype, dtypes(e)))
        for dtype in (np.int32, np.float64, ">f4")
    ]


def of_gy(e: Entry, gy: Any) -> str:
    """Of one shape where x's is given and strides are no question."""
    if e.transposed:
        return rules.images_and_channels("gy", gy.shape, "NC", 2, K)
    return rules.shape("gy", gy.shape, e.given["gy"].shape, "y's")


def y_of(e: Entry) -> str:
    if not e.alone:
        return "y's, as stored"
    return "y's, [N, C, Q]" if e.letters == "C" else f"y's in layout {LAYOUTS[e.axes][0]}"


FLOATS, NL_FLOATS = rules.KERNEL_DTYPES, (nl.bfloat16, nl.float16, nl.float32)
#: Each argument of functions of arrays, wrong values, and the rule that they break.
ARGUMENTS: dict[str, list[Wrong]] = {
    "x": [*other_dtype("x"),
     (lambda e: e.given["x"][0], lambda e, v: rules.rank("x", v.shape, ", ".join(LAYOUTS[e.axes][0])))],
    "w": [*other_dtype("w"), (lambda e: e.given["w"].astype(np.float16),
        lambda e, v: "" if "x" not in e.given else rules.dtypes_together("float32", "float16"))],
    "bias": [*other_shape("bias", lambda e: f"[{e.letters}]"), *other_dtype("bias", lambda e: FLOATS)],
    "residual": [*other_shape("residual", y_of), *other_dtype("residual", lambda e: FLOATS)],
    "img_ref": [
        (lambda e: e.given["img_ref"].astype(np.int32), lambda e, v: rules.array_dtype("img_ref", v.dtype, e.dtypes)),
        (lambda e: e.given["img_ref"].astype(BF16),
        lambda e, v: rules.dtypes_together(v.dtype, "float32", ("img_ref", "filter_ref")))],
    "filter_ref": [(lambda e: e.given["filter_ref"].astype(np.int8),
        lambda e, v: rules.array_dtype("filter_ref", v.dtype, e.dtypes)),
        (lambda e: e.given["filter_ref"].astype(np.float16),
        lambda e, v: rules.dtypes_together("float32", v.dtype, ("img_ref", "filter_ref")))],
    **{name: each(
        ["NHWC", (0, 1, 1, 3), (0, 1), (0, 1, 2, 9)], lambda e, v, n=name: rules.permutation(n, v, e.axes + 2))
        for name in ("in_perm", "kern_perm", "out_perm")},
    "feature_group_count": each([0, -2, 2.0, 5], lambda e, v: (
        rules.accepted("feature_group_count", v, (1, C), "this kernel is depthwise, 1 is read as C")
        if e.letters == "C" else rules.number("feature_group_count", v, " that divides C and K")
        or rules.divides("feature_group_count", v, C=C, K=K * (v if "output_padding" in e.arguments else 1)))),
    "gy": [(lambda e: np.repeat(e.given["gy"], 2, axis=0), of_gy)],
    **{name: places(name) for name in ("stride", "dilation", "rhs_dilation", "lhs_dilation")},
    "output_padding": each([-1, 1.5], lambda e, v: rules.places("output_padding", v, e.axes, alone=e.alone, least=0))
    + each([2, (1, 2), (0, 1, 2)], output_padding),
    "padding": each(["top", 1.5, True, None, (1, 2, 3, 4), [1, 1], 2**31], lambda e, v: rules.padding(
        v, e.axes, alone=e.alone, each=e.alone and (e.transposed or "gy" in e.given), names=e.paddings)),
    "groups": each([0, -2, 2.0, True, "2"],
        lambda e, v: rules.number("groups", v, " that divides C" + " and K" * (not e.transposed))),
    "batch_group_count": each([0, 1.5, 3], lambda e, v: (
        (rules.number("batch_group_count", v) or rules.divides("batch_group_count", v, N=2, K=K)) if e.alone
        else rules.accepted("batch_group_count", v, (1,), "split the batch before the call"))),
    "layout": each(["CHWN", ["NCHW"], None], lambda e, v: rules.layout("layout", v, LAYOUTS[e.axes])),
    "filter_layout": each(["CKRS", ["KCRS"], None], lambda e, v: rules.layout("filter_layout", v, FILTERS[e.axes])),
    "activation": of_choice("activation", rules.activation),
    "return_stats": of_choice("return_stats", norms.return_stats, ("group", True, 1)),
    "residual_position": of_choice("residual_position", rules.residual_position, ("before", None, 1)),
    "chunks": of_choice("chunks", rules.chunks, ("BC", "BGx", "x", "yx", 3)),
    "beta": of_choice("beta", rules.beta, ("1", True, None, float("nan"), float("inf"))),
    "out_dtype": each([np.int8, "fp8_e4m3", 3], lambda e, v: rules.accepted(
        "out_dtype", v, (*[None] * ("weight_size" not in e.given), *(FLOATS if e.alone else NL_FLOATS)))),
    "precision": of_choice("precision", rules.precision),
    "lnc": of_choice("lnc", rules.lnc, (0, 3, True, "2", None)),
    **{name: flags(name) for name in ("strict_nonfinite", "flipped", "bias_gradient", "return_final_state", "packed")},
    "algorithm": each(["fft", 3, "toeplitz_rows"], lambda e, v: rules.algorithm(v, e.algorithms)),
    "config": each([(("warmup", 2),)], lambda _, v: rules.config_has_owner(None, v)),
    "weight_size": each([(1,), 3, (1, 2, -3)], lambda e, v: rules.sizes("weight_size", v, len(e.given["weight_size"]))),
    "input_size": each([(1,), 3], lambda e, v: rules.sizes("input_size", v, e.axes + 2, of_images=True)),
    "accumulate_into": [(lambda e, dtype=dtype, more=more: ones(
        *e.given["weight_size"][:-1], e.given["weight_size"][-1] + more, dtype=dtype),
        lambda e, v: rules.accumulated("accumulate_into", v.shape, v.dtype, e.given["weight_size"]))
        for dtype, more in ((np.float32, 1), (np.float16, 0))],
    "initial_state": [(lambda e, dtype=dtype, more=more: ones(2, C, TAPS - 1 + more, dtype=dtype), lambda e, v: (
        "".join([] if e.alone else rules.state(Axis(SIZE, TAPS, 1, 0, 0, 1, 1)))
        or rules.shape("initial_state", v.shape, (2, C, TAPS - 1), "[N, C, window - 1]")
        or rules.same("initial_state", "dtype", v.dtype, "x", "float32")))
        for dtype, more in ((np.float32, 1), (np.float16, 0))],
    "initial_frames": [(lambda e: e.given[e.names[0]][:, 1:],
        lambda e, v: rules.frames(v.shape, (2, C, *[SIZE] * 3), 2, x=e.names[0])),
        (lambda e: e.given[e.names[0]].astype(BF16),
        lambda e, v: rules.same("initial_frames", "dtype", v.dtype, e.names[0], "float32"))],
    **{name: [(lambda e, shape=shape, dtype=dtype: ones(*shape, dtype=dtype),
        lambda e, v, n=name: rules.of_channels(n, v.shape, 2, C) or rules.array_dtype(n, v.dtype, ("fp32",)))
        for shape, dtype in (((C + 1,), np.float32), ((C, 2), np.float32), ((C,), np.float16))]
        for name in ("x_scale", "x_shift")},
    "x_upsample": of_choice(
        "x_upsample", lambda v: rules.accepted("x_upsample", v, rules.UPSAMPLES), (0, 3, "2", True, 2.0, None)),
    "x_activation": of_choice("x_activation", lambda v: rules.activation(v, "x_activation", "x")),
    "y_norm": of_choice("y_norm", pixel_norms.kind),
    "y_norm_eps": each([0.0, -1e-6, math.nan, math.inf, True, "1e-6", None], lambda _, v: pixel_norms.eps(v)),
    **{name: [(lambda _: ones(K), lambda _, v, n=name: pixel_norms.belongs(n, True, None))]
       for name in ("y_norm_weight", "y_norm_bias")},
    "return_before_norm": [
        *flags("return_before_norm"), (True, lambda _, v: pixel_norms.belongs("return_before_norm", v, None))],
    "return_final_frames": each([-1, "all", None, 1.5], lambda _, v: rules.frame_count(v))
    + each([SIZE + 1], lambda _, v: rules.frame_count(v, SIZE)),
}  # fmt: skip
CASES = [pytest.param(e, name, id=f"{of}-{name}") for of, e in ENTRIES.items() for name in sorted(e.arguments)]
OF_KERNELS = [pytest.param(e, name, id=f"{of}-{name}") for of, e in KERNELS.items() for name in sorted(e.arguments)]


def test_every_argument_has_a_rule():
    assert set().union(*(e.arguments for e in (ENTRIES | KERNELS).values())) == set(ARGUMENTS)


NORM = ("y_norm", "y_norm_eps", *pixel_norms.BELONG)
#: The class of an error, by the argument, of those that are no numbers; of arrays by what is wrong with them.
CLASSES = {
    **dict.fromkeys(("layout", "filter_layout", "residual_position", "chunks"), LayoutError),
    **dict.fromkeys(
        ("activation", "x_activation", "x_upsample", "beta", "precision", "lnc", "algorithm", "config", *NORM),
        UnsupportedError,
    ),
    **dict.fromkeys(("strict_nonfinite", "flipped", "bias_gradient", "return_final_state"), UnsupportedError),
    "return_stats": UnsupportedError,
    **dict.fromkeys(("out_dtype", "dtype"), DtypeError),
}


def class_of(name: str, reason: str) -> type[NkiconvError]:
    if ".dtype=" in reason:
        return DtypeError
    return LayoutError if " axes, [" in reason else CLASSES.get(name, GeometryError)


def broken(entry: Entry, name: str) -> Iterator[tuple[Any, str]]:
    """Wrong values of an argument of a function, and what their rule says."""
    for value, rule in ARGUMENTS[name]:
        value = value(entry) if inspect.isfunction(value) else value
        reason = rule(entry, value)
        if reason:
            assert re.fullmatch(r"[\w.]+( left)?(=|: ).*; .*", reason, re.DOTALL), "say argument, value, rule; remedy"
            yield value, reason


@pytest.mark.cover(5)
@pytest.mark.parametrize("name", ENTRIES)
def test_the_call_that_is_changed_is_launched(monkeypatch, plainly, name):
    monkeypatch.setattr("nkiconv.api.calls.simulator.execute", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        ENTRIES[name].call(**ENTRIES[name].given)


@pytest.mark.simulator_only
@pytest.mark.parametrize(("entry", "name"), CASES)
def test_wrong_arguments_are_refused_by_their_rule(monkeypatch, entry, name):
    """Before any work, in the words of the rule, beside others that they break."""
    monkeypatch.setattr("nkiconv.api.calls.simulator.execute", None)
    for value, reason in broken(entry, name):
        with pytest.raises(NkiconvError) as caught:
            entry.call(**entry.given | {name: value})
        assert reason in caught.value.violations
        assert type(caught.value) is class_of(name, reason)


@pytest.mark.parametrize(("entry", "name"), OF_KERNELS)
def test_wrong_arguments_of_kernels_are_refused_by_their_rule(entry, name):
    for value, reason in broken(entry, name):
        # the simulator lets no kernel have lists, nor these dtypes
        if not isinstance(value, list) and str(getattr(value, "dtype", "")) not in ("float64", ">f4"):
            with pytest.raises(AssertionError) as caught:
                nkiconv.simulate(entry.call[1])(**entry.given | {name: value})
            assert reason in str(caught.value)


#: Wrong fields of a problem, and what their rule says.
FIELDS: dict[str, Callable[[str, Any], str]] = {
    **dict.fromkeys(("stride", "rhs_dilation", "lhs_dilation"), lambda n, v: rules.places(n, v, 2, alone=False)),
    "K": lambda n, v: rules.number(n, v, " (it counts output channels)"),
    "groups": lambda n, v: rules.number(n, v, " (it counts channel groups)") or rules.divides(n, v, C=C, K=K),
    "padding": lambda _, v: rules.padding(v, 2, alone=False),
    "dtype": lambda n, v: rules.accepted(n, v, rules.CONV2D_DTYPES, "cast to one of these"),
    "layout": lambda n, v: rules.layout(n, v, rules.LAYOUTS),
    "transposed": rules.flag,
}
VALUES = (0, -3, 7.0, "4", "same", 2**31, 5, (1, 0), (1.0, 1), [1, 2], (1, 1, 1), (2**31, 1), ((0, 0), [1, 2]))


@pytest.mark.parametrize("name", FIELDS)
def test_problems_apply_the_rules_of_their_fields(name):
    good = {"N": 2, "C": C, "H": SIZE, "W": SIZE, "K": K, "R": TAPS, "S": TAPS}
    for value in VALUES:
        reason = FIELDS[name](name, value)
        if reason:
            with pytest.raises(NkiconvError) as caught:
                ConvProblem(**good | {name: value})
            assert reason in caught.value.violations
            assert type(caught.value) is class_of(name, reason)


LISTS = "write a tuple, NKI kernels cannot take lists"
CROPPED = Axis(7, 3, 1, -13, 0, 1, 2)
TENSORS, NAMES = ("input", "weight"), ("img_ref", "filter_ref", "feature_group_count")

# what a rule says of arguments, and the text or a part of it
SAID = [
    (rules.places("s", [1, 2], 2, alone=False), f"a tuple (height, width) of ints of at least 1; {LISTS}"),
    (rules.places("s", 2, 3, alone=False), "(depth, height, width) of ints of at least 1; write it as (2, 2, 2)"),
    (rules.padding(1, 2, alone=False), "must be ((top, bottom), (left, right)) of ints; write it as ((1, 1), (1, 1))"),
    (rules.padding((1, 2), 2, alone=False), "must be ((top, bottom), (left, right)) of ints; write it as ((0, 0), (0,"),
    (rules.output_padding((0, 2), (1, 2), 1, 2), "must be below stride=(1, 2) or dilation=1 on each axis, as in torch"),
    (rules.divides("groups", 5, C=128, K=128), "groups=5: must divide C=128 and K=128; use 1, 2, 4, ..."),
    (rules.filter_channels((4, 3, 5), 3, 6, 1, names=NAMES), "has 3 input channels per group, img_ref has C=6 in feat"),
    (rules.array_dtype("x", np.dtype(">f4")), "bfloat16, float16, float32, in native byte order; cast x"),
    (rules.dtypes_together("float32", "torch.float16", TENSORS), "must be float32 exactly when input's is (it is floa"),
    (rules.precision_fits("winograd", "fp32"), "precision='winograd': x and w are fp32, must be bf16 or fp16; cast th"),
    (rules.output(CROPPED, "PHR"), "P=-2: output height must be at least 1 (H=7 spread to 13 by lhs_dilation 2 + pad "),
    (rules.state(Axis(7, 3, 1, 0, 0, 1, 1))[0], "which must be (S - 1) * dilation = 2; pass (left, right) = (2, rig"),
    (rules.one_row(stride=(2, 1)), "stride=(2, 1): H is 1, so only 1 is accepted on H; use (1, w)"),
    (rules.frames((1, 3, 2, 5), (1, 4, 9, 5), 2), "must be x's but for the planes, [1, 4, F, 5]; pass such frames"),
    (rules.frame_count(4, 3), "return_final_frames=4: initial_frames and x have 3 planes; ask for as many at most"),
    (rules.leaves_output("QWS", 3, 2, (9, 9), 0, 1, 2), "Q=-12: padding 9+9 takes off all 6 outputs ((W=3 - 1) * str"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "text"), SAID, ids=[f"{i}-{row[0][:24]}" for i, row in enumerate(SAID)])
def test_a_rule_says_argument_value_rule_and_remedy(said, text):
    assert text in said
