"""2-D convolution as an implicit GEMM on the Tensor Engine.

    y[n, k, p, q] = sum over r, s, c of  w[k, c, r, s] * x[n, c, p * stride + r * dilation - pad, ...]

Input channels lie on the partitions, rows with their halo in SBUF as they lie in HBM; for every tap one matmul per 128
channels takes [c, 128 k] of the filter as the stationary and the window of x that the tap meets, a strided view, as the
moving operand, and adds to the same PSUM bank. Nothing is copied per tap. Padding is never stored: a tap that hangs
over the edge is a matmul on a part of the bank. With a dilated x it is a matmul on every other column of it.

Engine plan: Sync issues loads, GpSimd stores; Tensor turns filters once, then multiplies; Vector and Scalar share the
read-outs of PSUM, with bias, activation and residual, by a ledger. Bound by Tensor: R S ceil(C / 128) matmuls of
P Q columns for each 128 output channels.
"""

from dataclasses import dataclass

from ..._nki import nki, nl
from .._arguments import read_out_dtype
from .._epilogue import read_epilogue
from .._tiles import INSTRUCTIONS_MAX, is_pair, require, share
from .depthwise.loop import run_bands
from .depthwise.plan import fitting_bands
from .geometry import check_bias, check_residual, read_geometry
from .loop import run_items
from .plan import make_plan, sbuf_bytes
from .stacked.loop import run_stack
from .stacked.plan import fitting_stack


@dataclass
class Operands(nl.NKIObject):
    """Tensors in HBM, None where there is none, the residual's factor, and what x and w are on chip."""

    x: object
    w: object
    y: object
    bias: object
    residual: object
    beta: float
    x_dtype: object
    w_dtype: object
    #: whether the array takes fp32 as tf32
    tf32: bool


@nki.jit
def conv2d_implicit_gemm(
    img_ref,
    filter_ref,
    bias=None,
    residual=None,
    padding=((0, 0), (0, 0)),
    stride=(1, 1),
    rhs_dilation=(1, 1),
    lhs_dilation=(1, 1),
    feature_group_count=1,
    batch_group_count=1,
    in_perm=None,
    kern_perm=None,
    out_perm=None,
    activation=None,
    beta=1.0,
    residual_position="pre_activation",
    pool=(1, 1),
    precision=None,
    out_dtype=None,
    config=None,
):
    """Convolve images [N, C, H, W] with filters [K, C / groups, R, S]. Launch on one or two cores: kernel[lnc](...).

    Args:
        img_ref: 4-d in HBM, canonical [N, C, H, W] after in_perm; bf16, fp16 or fp32.
        filter_ref: 4-d in HBM, canonical [K, C / groups, R, S] after kern_perm; fp32 with an fp32 image, else bf16 or
            fp16. Or packed, [K / kn, C, R, S, kn], kn = plan.packed_channels: nothing is turned then; without groups.
        bias: [K] in HBM, fp32, bf16 or fp16, added to every sum of its channel.
        residual: in HBM, shape of y before pooling as stored; times beta, added before or after the activation:
            residual_position "pre_activation", y = act(conv + bias + beta * residual), or "post_activation", y =
            act(conv + bias) + beta * residual.
        padding: ((top, bottom), (left, right)) in elements of the dilated image; negative crops. stride, rhs_dilation
            (between taps), lhs_dilation (zeros between inputs): (height, width).
        feature_group_count: groups; divides C and K. batch_group_count: only 1.
        in_perm, kern_perm: canonical = transpose(storage, perm). out_perm: storage = transpose(canonical, perm).
        activation: None or one of relu, silu, gelu, gelu_tanh, tanh, sigmoid, as torch defines them.
        pool: (height, width) of windows, next to each other, whose maximum is stored; divides (P, Q).
        precision: of fp32 tensors: None, products of fp32; "bf16", x and w rounded to bf16 as they come in, or "tf32",
            to 10 bits of mantissa by the array; both four times as fast. config: only None.
        out_dtype: nl.bfloat16, nl.float16 or nl.float32; None: img_ref's.

    Returns: [N, K, P, Q] in HBM (transposed by out_perm), of out_dtype, P and Q divided by pool. Sums, bias, activation
        and residual are fp32.

    Raises: an assertion that names argument, value, rule and remedy (KernelAssertionError, a ValueError, in the
        simulator) before any instruction.
    """
    require(config == None, f"config={config}: only None; this kernel has no settings")
    perms = (in_perm, kern_perm, out_perm)
    geometry, y_shape = read_geometry(
        img_ref,
        filter_ref,
        padding,
        stride,
        rhs_dilation,
        lhs_dilation,
        feature_group_count,
        batch_group_count,
        perms,
        precision,
    )
    y_dtype = read_out_dtype(out_dtype, img_ref)
    check_bias(bias, geometry)
    check_residual(residual, y_shape)
    require(
        isinstance(beta, (int, float)) and not isinstance(beta, bool) and beta == beta,
        f"beta={beta}: must be a number",
    )
    P, Q = geometry.rows.out, geometry.columns.out
    require(
        is_pair(pool) and pool[0] >= 1 and pool[1] >= 1 and P % pool[0] == 0 and Q % pool[1] == 0,
        f"pool={pool}: must be (height, width) that divide P={P} and Q={Q}; crop by padding, or pool the result",
    )
    require(
        pool == (1, 1) or (out_perm == None and residual == None),
        f"pool={pool}: with out_perm or residual only (1, 1) is supported; pool the result",
    )
    epilogue = read_epilogue(activation, bias, residual, residual_position, 4 if y_dtype == nl.float32 else 2)
    bands = fitting_bands(geometry, pool, residual != None, nl.num_programs())
    stack = fitting_stack(geometry, pool, residual != None, nl.num_programs())
    require(
        stack == None or geometry.packed == 0,
        f"filter_ref.shape={filter_ref.shape}, C={geometry.C}: few channels are stacked, which takes plain filters; "
        f"pass [K, C, R, S]",
    )
    plan = None
    if bands == None and stack == None:
        plan = fitting_plan(geometry, pool, residual != None)
    if pool != (1, 1):
        geometry.y_n, geometry.y_k = geometry.K * P * Q // (pool[0] * pool[1]), P * Q // (pool[0] * pool[1])
        geometry.y_p, geometry.y_q = Q // pool[1], 1
        y_shape = (geometry.N, geometry.K, P // pool[0], Q // pool[1])
    y_hbm = nl.ndarray(y_shape, dtype=y_dtype, buffer=nl.shared_hbm)
    operands = Operands(
        x=img_ref,
        w=filter_ref,
        y=y_hbm,
        bias=bias,
        residual=residual,
        beta=beta,
        x_dtype=nl.bfloat16 if precision == "bf16" else img_ref.dtype,
        w_dtype=nl.bfloat16 if precision == "bf16" else filter_ref.dtype,
        tf32=precision == "tf32",
    )
    if bands != None:
        run_bands(operands, geometry, epilogue, bands)
    elif stack != None:
        run_stack(operands, geometry, epilogue, stack)
    else:
        run_items(operands, geometry, epilogue, pool, plan)
    return y_hbm


def fitting_plan(geometry, pool, has_residual):
    """The Plan of one matmul a tap; refused where memory or instructions do not suffice."""
    plan = make_plan(geometry, pool)
    needed = sbuf_bytes(geometry, plan, has_residual, pool != (1, 1))
    require(
        needed <= nl.tile_size.total_available_sbuf_size,
        f"C={geometry.C}, W={geometry.columns.size}, R={geometry.rows.taps}, S={geometry.columns.taps}: conv2d needs "
        f"{needed} bytes a partition of SBUF for the window of one output and its filters, there are "
        f"{nl.tile_size.total_available_sbuf_size}; split C over several calls and add, or use a smaller filter",
    )
    count = count_instructions(geometry, plan)
    require(
        count <= INSTRUCTIONS_MAX,
        f"N={geometry.N}, C={geometry.C}, K={geometry.K}: conv2d needs up to {count} instructions on a core, the "
        f"compiler takes {INSTRUCTIONS_MAX}; split N or K over several calls",
    )
    return plan


def count_instructions(geometry, plan):
    """Instructions of the busiest core, at most."""
    taps = geometry.rows.taps * geometry.columns.taps
    most = 0
    for core in range(nl.num_programs()):
        mine = share(len(plan.items), nl.num_programs(), core)
        total = 64
        for index in range(mine[0], mine[0] + mine[1]):
            item = plan.items[index]
            batch = plan.batches[item.batch]
            banks = item.band.nn * item.band.pn * item.band.qn // 256 + 2 + item.band.pn
            for job in range(len(batch)):
                total += banks * (taps * len(batch[job].chunks) + 3) + 12
                if index == mine[0] or plan.items[index - 1].batch != item.batch:
                    total += len(batch[job].chunks) * taps * 4 + 8
        most = max(most, total)
    return most
