"""The back-to-back gated convolution of StripedHyena 2 and Evo 2 in one launch: the public kernel."""

from .... import rules
from ...._nki import nki, nl
from ....schedules.b2b import B2bGeometry, unsupported_reason
from ..._arguments import check_given, refuse
from ..._engines import itemsize_of
from .kernel import Run, run_b2b


@nki.jit
def b2b_causal_conv1d_fused(x_ref, proj_ref, mixer_ref, x_state=None, gated_state=None, return_final_states=False):
    """y = x2 * causal(x1 * v, mixer), with x2, x1, v the chunks of causal(x, proj), one filter a channel.

    Dimensions: N images, D channels of a chunk, T tokens, S taps (proj's and mixer's may differ).

    Args:
        x_ref: [N, 3 * D, T] in HBM, bf16, fp16 or fp32. proj_ref: [3 * D, S], mixer_ref: [D, S] in HBM, x's dtype, S at
            least 2.
        x_state, gated_state: [N, 3 * D, S - 1] and [N, D, S - 1] in HBM, x's dtype: the S - 1 elements before x, and
            before x1 * v; None: zeros.
        return_final_states: also return x_state and gated_state for the next tokens.

    Returns: y [N, D, T] in HBM, x's dtype; with return_final_states (y, x_state, gated_state). Sums are fp32; x1 * v
        and y are rounded once.

    Raises: an assertion with argument, value, rule and remedy, before any instruction; simulated, KernelAssertionError.
    """
    check_given(locals(), ("return_final_states",))
    refuse(rules.rank("x_ref", x_ref.shape, "N, 3 * D, T"), rules.rank("proj_ref", proj_ref.shape, "3 * D, S"))
    refuse(rules.rank("mixer_ref", mixer_ref.shape, "D, S"))
    (N, channels, T), (D, taps), short = x_ref.shape, mixer_ref.shape, proj_ref.shape[1]
    refuse(rules.array_dtype("x_ref", x_ref.dtype), rules.shape("x_ref", x_ref.shape, (N, 3 * D, T), "[N, 3 * D, T]"))
    refuse(rules.shape("proj_ref", proj_ref.shape, (channels, short), "[3 * D, S]"))
    shapes = (N, channels, short - 1), (N, D, taps - 1)
    for name, one, shape in zip(("x_state", "gated_state"), (x_state, gated_state), shapes):
        refuse("" if one == None else rules.shape(name, one.shape, shape, "[N, channels, S - 1]"))
    given = (("proj_ref", proj_ref), ("mixer_ref", mixer_ref), ("x_state", x_state), ("gated_state", gated_state))
    refuse(*(rules.same(name, "dtype", one.dtype, "x_ref", x_ref.dtype) for name, one in given if one != None))
    geometry = B2bGeometry(N, D, T, short, taps, itemsize_of(x_ref.dtype))
    refuse(unsupported_reason(geometry))
    y_hbm, after = nl.ndarray((N, D, T), dtype=x_ref.dtype, buffer=nl.shared_hbm), (None, None)
    if return_final_states:
        after = tuple(nl.ndarray(shape, dtype=x_ref.dtype, buffer=nl.shared_hbm) for shape in shapes)
    run_b2b(Run(geometry, x_ref, proj_ref, mixer_ref, y_hbm, (x_state, gated_state), after))
    return (y_hbm, *after) if return_final_states else y_hbm
