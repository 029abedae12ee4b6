"""Rules of arguments: each fact and each rule once, for problems, NumPy, torch, kernels and the command line.

A rule returns why an argument breaks it, or "": `<argument>=<value>: <rule> (<derivation>); <remedy>`. Callers raise it
as an error of their own class, with their own argument names: x is img_ref in a kernel and input in torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from . import activations
from .axis import BLANK_FROM, BLANK_MOST, EXTENT_MAX, Axis
from .chunks import chunks as chunks
from .chunks import chunks_plain as chunks_plain
from .errors import is_array, shown
from .integers import is_finite, is_int, is_pair

#: Data types by nkiconv's name, and NumPy's, torch's and NKI's name of them; those that every kernel takes and returns.
DTYPE_NAMES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8_e4m3": "float8_e4m3", "fp8_e5m2": "float8_e5m2",
}  # fmt: skip
KERNEL_DTYPES, CONV2D_DTYPES = tuple(DTYPE_NAMES)[:3], tuple(DTYPE_NAMES)
#: The remedy for float8_e4m3fn: its bits equal NKI's float8_e4m3 up to 240; above, that has infinities.
E4M3FN_REMEDY = (
    "scale by a power of 2 so that no magnitude is above 240 (float8_e4m3fn goes up to 448), cast with "
    ".astype(ml_dtypes.float8_e4m3), and scale the result back"
)
#: Orders of the axes of x and y in memory, outermost first, of images and of volumes; the order of y has K for C, Z for
#: D, P for H, Q for W.
LAYOUTS = ("NCHW", "NHWC")
VOLUME_LAYOUTS = ("NCDHW", "NDHWC")
#: Orders of the axes of w in memory: their letters, and the permutation that makes them [K, C / groups, R, S], or [K,
#: C / groups, T, R, S].
FILTER_LAYOUTS = {"KCRS": (0, 1, 2, 3), "RSCK": (3, 2, 0, 1), "KRSC": (0, 3, 1, 2)}
VOLUME_FILTER_LAYOUTS = {"KCTRS": (0, 1, 2, 3, 4), "TRSCK": (4, 3, 0, 1, 2), "KTRSC": (0, 4, 1, 2, 3)}
FILTER_PERMS = FILTER_LAYOUTS | VOLUME_FILTER_LAYOUTS
#: Directions of a convolution: y, the gradient of x, or the gradient of w. See `ConvProblem.toward`.
DIRECTIONS = ("forward", "dgrad", "wgrad")
#: Names of the activations that a kernel takes; positions of a residual.
ACTIVATIONS, RESIDUAL_POSITIONS = tuple(activations.ACTIVATIONS), ("pre_activation", "post_activation")
#: Forms of x_scale and x_shift: by channel, [C], or by image and channel, [N, C]; values of x_upsample.
SCALE_FORMS, UPSAMPLES = ("channel", "image"), (1, 2)
#: Precisions of fp32 products: both factors rounded to bf16, or to tf32 by the Tensor Engine, or as pairs of fp16; and
#: of 16-bit products: sums of frames and of planes of taps, rounded to fp16 (see `pairs_of_planes`).
PRECISIONS = ("bf16", "tf32", "fp16x3", "winograd")
#: LNC degrees of a trn2 launch.
LNC_DEGREES = (1, 2)
#: (algorithm that was removed, the one that takes its problems now).
REMOVED = (
    ("toeplitz_rows", "stacked"), ("taps_on_partition", "vector"), ("swapped", "activation_stationary"),
    ("turned", "activation_stationary"), ("toeplitz_blocks", "activation_stationary"), ("grouped", "weight_stationary"),
    ("phases", "weight_stationary"), ("narrow", "weight_stationary"), ("bands", "stacked"),
    *((name, "implicit_gemm") for name in ("taps", "split", "pairs")),
)  # fmt: skip
#: A number an axis, and a pair of padding, in words, by how many axes there are.
EACH = {2: "(height, width)", 3: "(depth, height, width)"}
SIDES = {
    1: "(left, right)", 2: "((top, bottom), (left, right))", 3: "((front, back), (top, bottom), (left, right))",
}  # fmt: skip
#: Paddings by name; the last is of rows alone.
PADDINGS = ("same", "valid", "causal")
_LISTED = "write a tuple, NKI kernels cannot take lists"


def _has_list(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, tuple) and any(map(_has_list, value)))


def number(name: str, value: Any, what: str = "", least: int = 1, most: int = EXTENT_MAX) -> str:
    """An int from `least` to `most`; what: text after the rule."""
    if not is_int(value) or value < least:
        return f"{name}={shown(value)}: must be an int of at least {least}{what}; pass one"
    return "" if value <= most else f"{name}={value}: must be at most {most:,} (32-bit ints); use less"


def numbers(name: str, value: Any, least: int | None = 1) -> str:
    """An int, or ints of a tuple, that are no less than `least`, and no more than 32-bit ints hold."""
    each = value if isinstance(value, tuple) else (value,)
    if least is not None and any(one < least for one in each):
        return f"{name}={value}: must be at least {least}{' on every axis' * (len(each) > 1)}; pass such"
    if each and max(map(abs, each)) > EXTENT_MAX:  # torch.compile takes no default of max here
        return f"{name}={value}: must be at most {EXTENT_MAX:,} (32-bit ints); use less"
    return ""


def places(name: str, value: Any, axes: int, *, alone: bool = True, least: int = 1) -> str:
    """A tuple of ints from `least` on, one for each axis, or one int where it may stand `alone`."""
    if axes == 1:
        return number(name, value, least=least)
    fits = isinstance(value, tuple) and len(value) == axes
    each = value if fits else (value,)
    if not (fits or alone) or not all(is_int(one) and one >= least for one in each):
        wanted = f"a tuple {EACH[axes]} of ints of at least {least}"
        remedy = f"write it as {(value if is_int(value) and value >= least else least,) * axes}"
        if alone:
            wanted, remedy = f"an int of at least {least}, or {EACH[axes]} of such ints", "pass one of these"
        return f"{name}={shown(value)}: must be {wanted}; {_LISTED if _has_list(value) else remedy}"
    return "" if max(each) <= EXTENT_MAX else f"{name}={value}: must be at most {EXTENT_MAX:,} (32-bit ints); use less"


def padding(
    value: Any, axes: int, *, alone: bool = True, each: bool = False, names: Sequence[str] = (), name: str = "padding"
) -> str:
    """Pairs of ints, one for each axis; one int where it may stand `alone`, an `each` axis, or one of some names."""
    fits = isinstance(value, tuple) and len(value) == axes
    pairs = (value,) if axes == 1 else value if fits else ()
    numbers = [value] if alone else []
    if pairs and all(map(is_pair, pairs)):
        numbers = [one for pair in pairs for one in pair]
    elif each and fits and axes > 1:
        numbers = list(value)
    elif isinstance(value, str) and value in names:
        return ""
    if not numbers or not all(map(is_int, numbers)):
        wanted = ["an int"] * alone + [f"{EACH.get(axes)} of ints"] * (each and axes > 1) + [f"{SIDES[axes]} of ints"]
        wanted += [f"one of {', '.join(names)}"] * (len(names) > 0)
        pair = (value, value) if is_int(value) else (0, 0)
        remedy = "use one of these" if len(wanted) > 1 else f"write it as {(pair,) * axes}"
        text = ", ".join(wanted[:-1]) + (", or " if len(wanted) > 1 else "") + wanted[-1]
        return f"{name}={shown(value)}: must be {text}; {_LISTED if _has_list(value) else remedy}"
    if max(map(abs, numbers)) > EXTENT_MAX:
        return f"{name}={value}: must be at most {EXTENT_MAX:,} (32-bit ints); pad or crop less"
    return ""


def same_padding(value: Any, lhs_dilation: Any, axes: int, name: str = "padding", of: str = "lhs_dilation") -> str:
    """No "same" of x with zeros between."""
    if value == "same" and lhs_dilation != 1 and lhs_dilation != (1,) * axes:
        return f"{name}={value!r}: is not defined with {of}={lhs_dilation}; give {SIDES[axes]}"
    return ""


def output_padding(value: Any, stride: Any, dilation: Any, axes: int) -> str:
    """Ints, for all axes or each, below stride or dilation."""
    each = (one if isinstance(one, tuple) else (one,) * axes for one in (value, stride, dilation))
    if all(more < max(pair) for more, *pair in zip(*each, strict=True)):
        return ""
    text = f"output_padding={value}: must be below stride={stride} or dilation={dilation}"
    return f"{text}{' on each axis' * (axes > 1)}, as in torch; use less"


def divides(name: str, value: int, **counts: int) -> str:
    """A number of groups that divides these counts, which are named by their letters."""
    if not any(count % value for count in counts.values()):
        return ""
    common = math.gcd(*counts.values())
    fitting = [one for one in range(1, common + 1) if common % one == 0]
    some = ", ".join(map(str, fitting[:3])) + ", ..." * (len(fitting) > 3)
    return f"{name}={value}: must divide {' and '.join(f'{one}={count}' for one, count in counts.items())}; use {some}"


def filter_channels(
    shape: Sequence[int],
    inputs: int,
    C: int,
    groups: int = 1,
    *,
    transposed: bool = False,
    names: tuple[str, str, str] = ("x", "w", "groups"),
    order: str = "",
) -> str:
    """A filter of x's channels. inputs: input channels of its shape; names: of x, w and groups; order: of its axes."""
    x, w, of = names
    if transposed:
        if inputs == C:
            return ""
        remedy = "pass [C, K / groups, ...], as torch stores filters of transposed convolutions"
        return f"{w}.shape={tuple(shape)}: has {inputs} input channels, {x} has C={C}; {remedy}"
    if inputs * groups == C:
        return ""
    return (
        f"{w}.shape={tuple(shape)}: has {inputs} input channels per group, {x} has C={C} in {of}={groups}; pass [K, "
        f"C / groups, ...]{order}, or other groups"
    )


def tensor(name: str, value: Any, optional: bool) -> str:
    """A tensor that a kernel reads or writes in HBM; optional: or None."""
    if is_array(value) or (optional and value is None):
        return ""
    return f"{name}={shown(value)}: must be an array with axes{' or None' if optional else ''}; pass one"


def rank(name: str, given: Sequence[int], letters: str, more: str = "") -> str:
    """As many axes as letters, "N, C, W"; more: other forms."""
    count = len(letters.split(", "))
    if len(given) == count:
        return ""
    return f"{name}.shape={tuple(given)}: must have {count} axes, [{letters}]{more}; reshape it"


def shape(name: str, given: Sequence[int], wanted: Sequence[int], words: str) -> str:
    """One shape; words: its axes, as in "[K]", or whose it is, as in "y's"."""
    if tuple(given) == tuple(wanted):
        return ""
    equals = " =" if words.endswith("]") else ","
    return f"{name}.shape={tuple(given)}: must be {words}{equals} {tuple(wanted)}; pass one of that shape"


def sizes(name: str, value: Any, axes: int, of_images: bool = False) -> str:
    """A shape with a number of axes; of_images: the first may be 0."""
    least = (0 if of_images else 1, *[1] * (axes - 1))
    fits = isinstance(value, tuple) and len(value) == axes
    if fits and all(is_int(one) and one >= low for one, low in zip(value, least, strict=True)):
        return ""
    return f"{name}={shown(value)}: must be {axes} ints of at least 1; pass such a shape"


def images_and_channels(name: str, given: Sequence[int], layout: str, N: int, K: int) -> str:
    """As many images and channels as y, where strides leave several extents."""
    if (given[0], given[layout.index("C")]) == (N, K):
        return ""
    return f"{name}.shape={tuple(given)}: must have y's N={N} and K={K}; pass the gradient of its y"


def accumulated(name: str, given: Sequence[int], dtype: Any, size: Sequence[int], words: str = "the filter's") -> str:
    """The tensor to which a gradient of filters is added."""
    if tuple(given) == tuple(size) and short_dtype(dtype) == "fp32":
        return ""
    return f"{name}: must be float32 of {words} shape {tuple(size)}, is {dtype} of {tuple(given)}; pass such an array"


def same(name: str, attribute: str, given: Any, other: str, wanted: Any) -> str:
    """A dtype or device that another argument has."""
    if given == wanted:
        return ""
    remedy = {"dtype": "cast", "device": "move"}[attribute]
    return f"{name}.{attribute}={given}: must be {other}'s, {wanted}; {remedy} one of them"


def short_dtype(dtype: Any) -> str:
    """nkiconv's name of a dtype of NumPy, torch or NKI; "" of others."""
    long = str(dtype).removeprefix("torch.")
    return next((short for short, name in DTYPE_NAMES.items() if name == long), "")


def array_dtype(name: str, dtype: Any, accepted: Sequence[str] = KERNEL_DTYPES) -> str:
    """One of some dtypes; accepted: by nkiconv's names."""
    if short_dtype(dtype) in accepted:
        return ""
    names, remedy = ", ".join(DTYPE_NAMES[one] for one in accepted), f"cast {name}"
    if str(dtype) == "float8_e4m3fn" and "fp8_e4m3" in accepted:
        remedy = f"NKI's float8_e4m3 is another format: {E4M3FN_REMEDY}"
    order = ", in native byte order" * str(dtype).startswith((">", "<"))
    return f"{name}.dtype={dtype}: accepted are {names}{order}; {remedy}"


def dtypes_together(of_x: Any, of_w: Any, names: tuple[str, str] = ("x", "w")) -> str:
    """float32 with float32, fp8 with fp8: the Tensor Engine's rule of both operands of a matmul."""
    x, w = names
    kinds = [short_dtype(dtype) for dtype in (of_x, of_w)]
    if (kinds[0] == "fp32") != (kinds[1] == "fp32"):
        kind, why = "float32", "does not mix float32 with others"
    elif kinds[0].startswith("fp8") != kinds[1].startswith("fp8"):
        kind, why = "float8_e4m3 or float8_e5m2", "doubles its rate only where both are fp8"
    else:
        return ""
    return f"{w}.dtype={of_w}: must be {kind} exactly when {x}'s is (it is {of_x}; the Tensor Engine {why}); cast {w}"


def prologue_fits(dtype: Any, name: str) -> str:
    """A dtype to which values of a prologue are rounded."""
    short = dtype if dtype in DTYPE_NAMES else short_dtype(dtype)
    return accepted(f"{name}.dtype", short, KERNEL_DTYPES, f"cast {name}", of="x_scale, x_shift and x_activation")


def precision_fits(precision: str | None, dtype: Any, names: str = "x and w") -> str:
    """A precision that says something of products of this dtype."""
    short = dtype if dtype in DTYPE_NAMES else short_dtype(dtype)
    if precision == "winograd":
        if short in ("bf16", "fp16"):
            return ""
        return f"precision='winograd': {names} are {dtype}, must be bf16 or fp16; cast them"
    if precision is None or short == "fp32":
        return ""
    return f"precision={precision!r}: {names} are {dtype}, whose products are exact; drop it"


def accepted(
    name: str, value: Any, some: Iterable[Any], remedy: str = "use one of them", *, note: str = "", of: str = ""
) -> str:
    """One of some values; note: text before them; of: the function that takes them."""
    some = tuple(some)
    alike = (one for one in some if isinstance(value, type(one)) and isinstance(value, bool) == isinstance(one, bool))
    if any(value == one for one in alike):
        return ""
    text = f"{note}accepted{f' for {of}' * (of != '')} are {', '.join(map(str, some))}"
    return f"{name}={shown(value)}: {text}; {remedy}"


def activation(value: Any, name: str = "activation", of: str = "the result") -> str:
    """None, or an activation's name."""
    return accepted(name, value, (None, *ACTIVATIONS), f"use one of them, or apply it to {of}")


def of_channels(name: str, given: Sequence[int], N: int, C: int) -> str:
    """A number for each channel of x, or for each of each image."""
    if tuple(given) == ((N, C) if len(given) == 2 else (C,)):  # by axes: no size of a batch is compared with C
        return ""
    return f"{name}.shape={tuple(given)}: must be [C] = {(C,)} or [N, C] = {(N, C)}; pass one of these"


def residual_position(value: Any) -> str:
    """Where a residual is added."""
    return accepted("residual_position", value, RESIDUAL_POSITIONS)


def precision(value: Any) -> str:
    """None, or a way to take products."""
    return accepted("precision", value, (None, *PRECISIONS))


def layout(name: str, value: Any, some: Iterable[str | None]) -> str:
    """An order of axes in memory."""
    return accepted(name, value, some, "transpose to one of these")


def flag(name: str, value: Any) -> str:
    """True or False."""
    return "" if isinstance(value, bool) else f"{name}={shown(value)}: must be True or False; pass one of these"


def beta(value: Any) -> str:
    """A residual's factor."""
    if is_finite(value):
        return ""
    return f"beta={shown(value)}: must be a finite int or float; scale the residual otherwise"


def lnc(value: Any, name: str = "lnc") -> str:
    """How many cores share the work."""
    fits = is_int(value) and value in LNC_DEGREES
    return "" if fits else f"{name}={shown(value)}: must be 1 or 2 (LNC degrees of trn2); use {name}=2"


def removed_note(algorithm: Any, algorithms: Iterable[str]) -> str:
    """The first words of a refusal of a removed algorithm; "" for other names."""
    successor = next((new for old, new in REMOVED if old == algorithm), "")
    return f"was removed, {successor} takes its problems; " if successor in algorithms else ""


def algorithm(
    value: Any, algorithms: Sequence[str], name: str = "algorithm", others: tuple[Any, ...] = (None,), of: str = ""
) -> str:
    """None, or an algorithm's name; others: further accepted values; of: the operation."""
    return accepted(name, value, (*others, *algorithms), note=removed_note(value, algorithms), of=of)


def config_has_owner(algorithm: Any, config: Any) -> str:
    """Settings of an algorithm that is named."""
    if algorithm is not None or config is None:
        return ""
    return f"config={shown(config)}: settings belong to an algorithm; name it with algorithm=, as Plan does"


def permutation(name: str, value: Any, axes: int) -> str:
    """None, or a tuple with each axis once."""
    if value is None or (isinstance(value, tuple) and sorted(map(str, value)) == [str(one) for one in range(axes)]):
        return ""
    order = ", ".join(map(str, range(axes)))
    return f"{name}={shown(value)}: must be None or a tuple with each of {order} once; pass such"


def output(axis: Axis, letters: str, transposed: bool = False) -> str:
    """At least one place of the window, and no more of it, of windows and of padded input than 32-bit ints count.

    letters: of the output, the input and the taps, "QWS".
    """
    out, size, taps = letters[0], letters[1], letters[2]
    direction = {"Z": "depth", "P": "height", "Q": "width"}[out]
    if max(axis.padded, axis.window, axis.dilated) > EXTENT_MAX:
        return _too_long(axis, direction, size, taps, transposed)
    if axis.out >= 1:
        return ""
    spread = "" if axis.lhs_dilation == 1 else f" spread to {axis.dilated} by lhs_dilation {axis.lhs_dilation}"
    fits_uncropped = axis.window <= max(axis.lo, 0) + axis.dilated + max(axis.hi, 0)
    remedy = "crop less" if fits_uncropped else "pad the input or shorten the filter"
    text = (
        f"{out}={axis.out}: output {direction} must be at least 1 ({size}={axis.size}{spread} + pad {axis.lo}+{axis.hi}"
        f", window {axis.window} = dilation {axis.rhs_dilation}*({taps}-1)+1); {remedy}"
    )
    return in_words_of(transposed, text)


def blank(letters: str, axes: Sequence[Axis], transposed: bool) -> list[str]:
    """Axes that together have very many outputs, almost all zeros; letters: of their outputs.

    transposed: use the argument names of a transposed convolution.
    """
    found = [(name, axis) for name, axis in zip(letters, axes, strict=True) if axis.is_blank]
    if math.prod(axis.out for _, axis in found) <= BLANK_FROM:
        return []
    remedy = "use a smaller stride or dilation, or take off more" if transposed else "pad or spread less"
    return [
        f"{name}={axis.out:,}: of so many outputs at most {axis.size * axis.taps:,} see an input ({axis.size} inputs, "
        f"{axis.taps} taps, {_numbers(axis, transposed)}), from {BLANK_FROM:,} on one in {BLANK_MOST:,} must; "
        f"{remedy}, and put zeros around the result"
        for name, axis in found
    ]


def leaves_output(
    letters: str, size: int, stride: int, sides: tuple[int, int], more: int, dilation: int, taps: int
) -> str:
    """Padding of a transposed convolution that takes off less than all; letters: of output, input and taps, "QWS"."""
    whole = (size - 1) * stride + (taps - 1) * dilation + 1 + more
    left = whole - sum(sides)
    if whole < 1 or left >= 1:
        return ""
    return (
        f"{letters[0]}={left}: padding {sides[0]}+{sides[1]} takes off all {whole} outputs (({letters[1]}={size} - 1) "
        f"* stride {stride} + dilation {dilation} * ({letters[2]}={taps} - 1) + 1 + output_padding {more}); use less "
        f"padding"
    )


def state(axis: Axis) -> list[str]:
    """A convolution of rows that takes or returns a state."""
    window, found = axis.window, []
    if (axis.stride, axis.lhs_dilation) != (1, 1):
        text = f"stride={axis.stride}, lhs_dilation={axis.lhs_dilation}"
        found.append(f"{text}: a state needs 1 and 1; pad by zeros instead")
    if window < 2:
        found.append("S=1: one tap needs no state; leave out initial_state and return_final_state")
    elif axis.lo != window - 1:
        found.append(
            f"padding left={axis.lo}: a state stands in for the left padding, which must be (S - 1) * dilation = "
            f"{window - 1}; pass (left, right) = ({window - 1}, right)"
        )
    return found


def frames(given: Sequence[int], of_x: Sequence[int], axis: int, least: int = 0, x: str = "x") -> str:
    """Frames in front of x, of its shape but for `least` or more planes on an axis."""
    alike = len(given) == len(of_x) and all(i == axis or given[i] == size for i, size in enumerate(of_x))
    if alike and given[axis] >= least:
        return ""
    wanted = ", ".join("F" if i == axis else str(size) for i, size in enumerate(of_x))
    return f"initial_frames.shape={tuple(given)}: must be {x}'s but for the planes, [{wanted}]; pass such frames"


def frame_count(value: Any, planes: int | None = None) -> str:
    """Whether final frames are returned, or how many; planes: how many there are, initial_frames and x's."""
    if not isinstance(value, (bool, int)) or value < 0:
        return f"return_final_frames={shown(value)}: must be True, False or an int of at least 0; pass one of these"
    if planes is None or value <= planes:
        return ""
    return f"return_final_frames={value}: initial_frames and x have {planes} planes; ask for as many at most"


def one_row(**numbers: tuple[int, ...]) -> str:
    """Strides and dilations of rows, which are images of height 1."""
    if all(value[0] == 1 for value in numbers.values()):
        return ""
    text = ", ".join(f"{name}={value}" for name, value in numbers.items())
    return f"{text}: H is 1, so only 1 is accepted on H; use (1, w)"


#: Argument names of transposed convolutions for those of their equivalent convolution.
OF_TRANSPOSED = {"lhs_dilation": "stride", "rhs_dilation": "dilation"}


def in_words_of(transposed: bool, text: str) -> str:
    """A convolution's text with the call's argument names: a transposed one has no stride, and `OF_TRANSPOSED` names
    the other arguments."""
    if not transposed:
        return text
    text = re.sub(r"\bstride=(1|\(1(, 1)+\))(, | and )", "", text)
    return re.sub(r"\b(lhs_dilation|rhs_dilation)\b", lambda found: OF_TRANSPOSED[found[0]], text)


def _numbers(axis: Axis, transposed: bool) -> str:
    """Stride, padding and dilation of an axis with the call's argument names: padding of a transposed convolution is
    the elements cut off, less output_padding."""
    if not transposed:
        return (
            f"stride {axis.stride}, padding {axis.lo}+{axis.hi}, dilation {axis.rhs_dilation}, lhs_dilation "
            f"{axis.lhs_dilation}"
        )
    before, after = axis.window - 1 - axis.lo, axis.window - 1 - axis.hi
    less = " less output_padding" if before != after else ""
    return f"stride {axis.lhs_dilation}, padding {before}+{after}{less}, dilation {axis.rhs_dilation}"


def _too_long(axis: Axis, direction: str, size: str, taps: str, transposed: bool) -> str:
    spread = "use a smaller stride" if transposed else "spread it less"
    lengths = {
        f"padded input {direction} {axis.padded:,}": (axis.padded, "take off more" if transposed else "pad less"),
        f"input {direction} {axis.dilated:,} with zeros between {size}={axis.size}": (axis.dilated, spread),
        f"window {axis.window:,} of {taps}={axis.taps}": (axis.window, "dilate the filter less"),
    }
    what, remedy = next((text, remedy) for text, (length, remedy) in lengths.items() if length > EXTENT_MAX)
    return (
        f"{size}={axis.size}, {_numbers(axis, transposed)}: {what} must be at most {EXTENT_MAX:,} (32-bit ints); "
        f"{remedy}"
    )
