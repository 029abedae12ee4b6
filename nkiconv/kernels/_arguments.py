"""Checks of arguments that the public kernels share, by `nkiconv.rules`."""

from .. import rules
from .._nki import nl
from ..schedules.tiles import require

IDENTITY = (0, 1, 2, 3)
#: The 8-bit dtypes that the array multiplies; float8_e4m3 is the one with infinities and a largest number of 240.
FP8 = (nl.float8_e4m3, nl.float8_e5m2)
#: What x, w and groups are called.
NAMES = ("img_ref", "filter_ref", "feature_group_count")

#: Tensors that a public kernel may go without; those that it needs are called ..._ref.
OPTIONAL = {"bias", "bias1", "bias2", "weight", "residual", "x_scale", "x_shift", "y_norm_weight", "y_norm_bias"}
OPTIONAL |= {"x_norm_weight", "x_norm_bias", "initial_state", "initial_frames", "state_indices", "x_state"}
OPTIONAL |= {"gated_state", "accumulate_into"}


def refuse(*reasons):
    """Refuse arguments that break a rule; "" is none."""
    for reason in reasons:
        require(reason == "", reason)


def check_given(arguments, flags=()):
    """Refuse what is no tensor, and flags that are neither True nor False, of a public kernel's arguments by name: the
    first thing that it does."""
    for name, value in arguments.items():
        if name in OPTIONAL or name.endswith("_ref"):
            refuse(rules.tensor(name, value, optional=name in OPTIONAL))
    refuse(*(rules.flag(name, arguments[name]) for name in flags))


def read_out_dtype(out_dtype, img_ref):
    """y's dtype: out_dtype, or the image's for None, bf16 where that is fp8: sums hardly fit its 2 or 3 bits."""
    refuse(rules.accepted("out_dtype", out_dtype, (None, nl.bfloat16, nl.float16, nl.float32)))
    if out_dtype == None:
        return nl.bfloat16 if img_ref.dtype in FP8 else img_ref.dtype
    return out_dtype


def check_choice(algorithm, config, algorithms):
    """Refuse an algorithm that there is not, and settings without one."""
    refuse(rules.algorithm(algorithm, algorithms), rules.config_has_owner(algorithm, config))


def check_tensors(img_ref, filter_ref, dtypes, perms, axes):
    """Refuse dtypes that a kernel does not take, or not together, and layouts that are no permutations."""
    of_x, of_w = img_ref.dtype, filter_ref.dtype
    refuse(*(rules.array_dtype(name, dtype, dtypes) for name, dtype in zip(NAMES, (of_x, of_w))))
    refuse(rules.dtypes_together(of_x, of_w, NAMES[:2]))
    refuse(*(rules.permutation(name, perm, axes) for name, perm in zip(("in_perm", "kern_perm", "out_perm"), perms)))


def check_bias(bias, letter, count, name="bias"):
    """Refuse a bias that is not [count] (K, or C of a depthwise kernel) of a float dtype; None is none."""
    if bias != None:
        refuse(rules.shape(name, bias.shape, (count,), f"[{letter}]"), rules.array_dtype(name, bias.dtype))


def check_residual(residual, y_shape):
    """Refuse a residual that is not stored as y is; None is none."""
    if residual != None:
        stored = rules.shape("residual", residual.shape, y_shape, "y's, as stored")
        refuse(stored, rules.array_dtype("residual", residual.dtype))
