"""Depthwise conv1d with channels on partitions and the taps shared out over the engines.

    y[c, q] = sum over s of w[c, s] * x[c, q * stride + s * dilation - pad_left]

A tile holds 128 rows of x with their halo, each element of x loaded once. Tensor multiplies a tap by a diagonal matrix
of 128 channels' filters, a shifted view of the tile as the moving operand, and accumulates its taps in PSUM; Vector
adds a tap while it reads PSUM out (y = x_s * w_s + psum), so that the read-out costs no pass of its own; Scalar can
head a second chain with a product, and GpSimd add the chains. `schedules.mixed` has the recipes, `schedules.rows` how
rows are tiled. `vector` is the same loop without taps on Tensor.

Engine plan: Sync issues loads, PREFETCH tiles ahead; GpSimd makes diagonals one tile ahead, adds chains, issues stores;
pieces of a tile's columns go through Tensor, Vector, Scalar and GpSimd in phases. The phases of a piece are issued one
step of the pipeline apart, newest piece first, so that neighbours in an engine's queue do not wait for each other. The
first tile of a part is loaded, and the first and last are summed, in narrow pieces, so that sums start early and end
soon. Bound by HBM while the recipe's engines are faster, up to about 4 taps in bf16 and in fp32; beyond by Tensor,
Vector, Scalar and GpSimd together.

Zeros of the diagonals are multiplied: a NaN or Inf in x reaches every channel of its tile at the columns it meets. With
`vector` channels never meet; it is bound by HBM in fp32 with up to 4 taps, else by Vector, about 1.04 ns a tap and
column of 128 channels, and is as fast for short problems as for long ones, as the array's rate does not matter.
"""

from ....schedules.mixed import build, cut_pieces, mixed_settings
from ....schedules.rows import tile_list
from ..call import parts_of_core
from .chains import run_step
from .prepare import HeldTile, MixedRun, prepare


def convolve_rows(operands, geometry, options, config, on_tensor):
    """Write operands.y, for `mixed` (on_tensor) and `vector`: a new piece begins while those before it go on.

    config: settings of `MixedSettings`; recipes without Tensor are accepted beside ones with it.
    """
    plan = build(geometry, options, mixed_settings(geometry, options.epilogue, config, on_tensor))
    for part in parts_of_core():
        tiles = tile_list(geometry, plan.rows, part, 0)
        pieces = cut_pieces(plan, options.epilogue, tiles)
        run = MixedRun(
            operands=operands,
            geometry=geometry,
            options=options,
            plan=plan,
            tiles=tiles,
            held=[HeldTile() for _ in tiles],
            pieces=pieces,
            chains=[(None, None)] * len(pieces),
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
