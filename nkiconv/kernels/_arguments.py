"""Checks of arguments that the public kernels share, and the formula of an output's extent."""

from .._nki import nl
from ..schedules.tiles import is_permutation, require

IDENTITY = (0, 1, 2, 3)
#: The 8-bit dtypes that the array multiplies; float8_e4m3 is the one with infinities and a largest number of 240.
FP8 = (nl.float8_e4m3, nl.float8_e5m2)
#: (algorithm that was removed, the one that takes its problems now).
REMOVED = (
    ("toeplitz_rows", "stacked"),
    ("taps_on_partition", "vector"),
    ("swapped", "activation_stationary"),
    ("turned", "activation_stationary"),
    ("toeplitz_blocks", "activation_stationary"),
    ("grouped", "weight_stationary"),
    ("phases", "weight_stationary"),
)


def output_extent(size, taps, stride, dilation, lhs_dilation, before, after):
    """Z, P or Q of XLA's convolution: windows of the padded, dilated axis, one every `stride`; below 1 if none fits."""
    padded = (size - 1) * lhs_dilation + 1 + before + after
    window = (taps - 1) * dilation + 1
    if padded < window:
        return padded - window + 1
    return (padded - window) // stride + 1


def check_perm(name, perm, rank):
    """Refuse a layout that is neither None nor a permutation of four axes, or of five."""
    require(
        perm == None or is_permutation(perm, rank),
        f"{name}={perm}: must be None or a tuple with each of 0, 1, 2, 3{', 4' if rank == 5 else ''} once",
    )


def read_out_dtype(out_dtype, img_ref):
    """y's dtype: out_dtype, or the image's for None, bf16 where that is fp8: sums hardly fit its 2 or 3 bits."""
    require(
        out_dtype == None or out_dtype in (nl.bfloat16, nl.float16, nl.float32),
        f"out_dtype={out_dtype}: accepted are None, bfloat16, float16 and float32; use one of them",
    )
    if out_dtype == None:
        return nl.bfloat16 if img_ref.dtype in FP8 else img_ref.dtype
    return out_dtype


def removed_note(algorithm, algorithms):
    """What a refusal says first of an algorithm that was removed; "" of any other name."""
    for index in range(len(REMOVED)):
        name, successor = REMOVED[index]
        if algorithm == name and successor in algorithms:
            return f"was removed, {successor} takes its problems; "
    return ""


def check_choice(algorithm, config, algorithms):
    """Refuse an algorithm that there is not, and settings without one."""
    note = "" if algorithm in algorithms else removed_note(algorithm, algorithms)
    require(
        algorithm == None or algorithm in algorithms,
        f"algorithm={algorithm}: {note}accepted are None and {algorithms}; use one of them",
    )
    require(
        algorithm != None or config == None,
        f"config={config}: settings belong to an algorithm; name it with algorithm=, as Plan does",
    )


def check_flags(flags):
    """Refuse what is neither True nor False; flags: (name, value) of each."""
    for index in range(len(flags)):
        name, value = flags[index]
        require(isinstance(value, bool), f"{name}={value}: must be True or False; use one")


def check_float(name, tensor):
    """Refuse dtypes that no engine adds to fp32 sums here."""
    require(
        tensor.dtype in (nl.bfloat16, nl.float16, nl.float32),
        f"{name}.dtype={tensor.dtype}: accepted are bfloat16, float16 and float32; cast it",
    )


def check_bias(bias, letter, count):
    """Refuse a bias that is not [count] (K, or C of a depthwise kernel) of a float dtype; None is none."""
    if bias != None:
        require(
            tuple(bias.shape) == (count,),
            f"bias.shape={bias.shape}: must be [{letter}] = ({count},); pass one number an output channel",
        )
        check_float("bias", bias)


def check_residual(residual, y_shape):
    """Refuse a residual that is not stored as y is; None is none."""
    if residual != None:
        require(
            tuple(residual.shape) == tuple(y_shape),
            f"residual.shape={residual.shape}: must be y's as stored, {y_shape}; broadcast or permute it",
        )
        check_float("residual", residual)
