"""The public kernels' shared checks of arguments, by `nkiconv.rules`."""

from types import SimpleNamespace

from .. import rules
from .._nki import nl
from ..schedules.tiles import require

IDENTITY = (0, 1, 2, 3)
#: The 8-bit dtypes that the Tensor Engine multiplies; float8_e4m3 is the variant with infinities and a maximum of 240.
FP8 = (nl.float8_e4m3, nl.float8_e5m2)
#: The arguments' names of x, w and groups.
NAMES = ("img_ref", "filter_ref", "feature_group_count")

#: Optional tensors of public kernels; required ones are named ..._ref.
OPTIONAL = {"bias", "bias1", "bias2", "weight", "residual", "x_scale", "x_shift", "y_norm_weight", "y_norm_bias"}
OPTIONAL |= {"x_norm_weight", "x_norm_bias", "initial_state", "initial_frames", "state_indices", "x_state"}
OPTIONAL |= {"gated_state", "accumulate_into"}


def refuse(*reasons):
    """Refuse arguments that break a rule; "" is none."""
    for reason in reasons:
        require(reason == "", reason)


def check_given(arguments, flags=()):
    """Refuse tensor arguments that are no tensors, and flags that are neither True nor False; the first call of a
    public kernel, with its arguments by name."""
    for name, value in arguments.items():
        if name in OPTIONAL or name.endswith("_ref"):
            refuse(rules.tensor(name, value, optional=name in OPTIONAL))
    refuse(*(rules.flag(name, arguments[name]) for name in flags))


def read_out_dtype(out_dtype, img_ref):
    """y's dtype: out_dtype, or for None the image's, with bf16 for fp8: sums hardly fit its 2 or 3 bits."""
    refuse(rules.accepted("out_dtype", out_dtype, (None, nl.bfloat16, nl.float16, nl.float32)))
    if out_dtype == None:
        return nl.bfloat16 if img_ref.dtype in FP8 else img_ref.dtype
    return out_dtype


def check_choice(algorithm, config, algorithms):
    """Refuse an unknown algorithm, and settings without an algorithm."""
    refuse(rules.algorithm(algorithm, algorithms), rules.config_has_owner(algorithm, config))


def check_tensors(img_ref, filter_ref, dtypes, perms, axes):
    """Refuse dtypes, and pairs of dtypes, that a kernel does not take, and layouts that are no permutations."""
    of_x, of_w = img_ref.dtype, filter_ref.dtype
    refuse(*(rules.array_dtype(name, dtype, dtypes) for name, dtype in zip(NAMES, (of_x, of_w))))
    refuse(rules.dtypes_together(of_x, of_w, NAMES[:2]))
    refuse(*(rules.permutation(name, perm, axes) for name, perm in zip(("in_perm", "kern_perm", "out_perm"), perms)))


def check_bias(bias, letter, count, name="bias"):
    """Refuse a bias that is not [count] (K, or C of a depthwise kernel) of a float dtype; None passes."""
    if bias != None:
        refuse(rules.shape(name, bias.shape, (count,), f"[{letter}]"), rules.array_dtype(name, bias.dtype))


def check_residual(residual, y_shape):
    """Refuse a residual that is not of y's stored shape and a float dtype; None passes."""
    if residual != None:
        stored = rules.shape("residual", residual.shape, y_shape, "y's, as stored")
        refuse(stored, rules.array_dtype("residual", residual.dtype))


def filter_like(filter_shape, axes, grad_ref, bias_gradient):
    """The filter of this shape with so many axes of its taps; refused are no such shape, and a bias_gradient that is
    neither True nor False."""
    refuse(rules.sizes("filter_shape", filter_shape, axes + 2), rules.flag("bias_gradient", bias_gradient))
    return SimpleNamespace(shape=filter_shape, dtype=grad_ref.dtype)


def result_dtype(grad_ref, y_shape, filter_shape, accumulate_into, out_dtype):
    """dw's dtype; refused are gy of another shape than y's, and what dw cannot be, or cannot be added to."""
    refuse(rules.shape("grad_ref", grad_ref.shape, y_shape, "y's"))
    refuse(rules.accepted("out_dtype", out_dtype, (None, nl.float32, nl.bfloat16, nl.float16)))
    require(
        accumulate_into == None
        or (tuple(accumulate_into.shape) == tuple(filter_shape) and accumulate_into.dtype == nl.float32),
        f"accumulate_into: must be float32 of filter_shape={filter_shape}; pass such a tensor",
    )
    return nl.float32 if out_dtype == None else out_dtype
