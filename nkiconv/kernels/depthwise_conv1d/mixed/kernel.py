"""Depthwise conv1d with channels on partitions and the taps shared out over the engines.

    y[c, q] = sum over s of w[c, s] * x[c, q * stride + s * dilation - pad_left]

A tile holds 128 rows of x with their halo, each element of x loaded once. Tensor multiplies a tap by a diagonal matrix
of 128 channels' filters, a shifted view of the tile as the moving operand, and accumulates its taps in PSUM; Vector
adds a tap while it reads PSUM out (y = x_s * w_s + psum), so that the read-out costs no pass of its own; Scalar can
head a second chain with a product, and GpSimd add the chains. `chains` has the recipes, `tiles` how rows lie.

Engine plan: Sync issues loads, PREFETCH tiles ahead; GpSimd makes diagonals one tile ahead, adds chains, issues stores;
pieces of a tile's columns go through Tensor, Vector, Scalar and GpSimd in phases. The phases of a piece are issued one
step of the pipeline apart, newest piece first, so that neighbours in an engine's queue do not wait for each other. The
first tile of a part is loaded, and the first and last are summed, in narrow pieces, so that sums start early and end
soon. Bound by HBM while the recipe's engines are faster, up to about 4 taps in bf16 and in fp32; beyond by Tensor,
Vector, Scalar and GpSimd together.

Zeros of the diagonals are multiplied: a NaN or Inf in x reaches every channel of its tile at the columns it meets.
"""

from ....schedules.tiles import filled
from ..parts import parts_of_core
from .chains import run_step
from .defaults import mixed_settings
from .plan import cut_pieces, mixed_plan, rows_refusal
from .prepare import MixedRun, prepare
from .tiles import tile_list


def mixed_refusal(geometry, extras, config, cores):
    """Why this algorithm does not run a convolution on `cores` cores; "" if it does."""
    if extras.strict_nonfinite:
        return "strict_nonfinite=True: mixed multiplies channels by the zeros of a diagonal matrix; use vector"
    return rows_refusal(geometry, extras, config, cores, True)


def mixed(operands, geometry, extras, config):
    """Write operands.y. config: some of MixedSettings; recipes without Tensor are accepted beside ones with it."""
    convolve_rows(operands, geometry, extras, config, True)


def convolve_rows(operands, geometry, extras, config, on_tensor):
    """Write operands.y, for `mixed` and `vector`: turn by turn a new piece begins and those before it go on."""
    plan = mixed_plan(geometry, extras, mixed_settings(geometry, config, on_tensor))
    for part in parts_of_core():
        tiles = tile_list(geometry, plan.rows, part, 0)
        pieces = cut_pieces(plan, extras.epilogue, tiles)
        run = MixedRun(
            operands=operands,
            geometry=geometry,
            extras=extras,
            plan=plan,
            tiles=tiles,
            pieces=pieces,
            chains=filled(len(pieces), (None, None)),
            filters=[],
            states=[],
            warm=[],
        )
        for turn in range(len(pieces) + plan.phases - 1):
            if turn < len(pieces):
                prepare(run, pieces[turn].tile)
            for step in range(plan.phase_steps):
                for phase in range(min(plan.phases, turn + 1)):
                    place = turn - phase
                    if place < len(pieces):
                        own = pieces[place].phases
                        if phase < len(own) and own[phase][0] + step < own[phase][1]:
                            run_step(run, place, own[phase][0] + step)
