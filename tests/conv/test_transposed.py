"""Transposed convolutions in the kernels: phases in every arrangement, filters as torch stores them read in reverse,
other algorithms, orders in memory, cores, refusals."""

import contextlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conv_rows import BLOCKS, GEMM, K_PACKING, PIXELS, k_packed, m_packed, tiles
from depthwise import same_bits
from draws import cores
from tolerances import assert_exact, integer_inputs

import nkiconv
from nkiconv._nki import nl
from nkiconv.planner.operations import operation_of
from nkiconv.planner.request import Request
from nkiconv.problem import ConvProblem
from nkiconv.schedules import block_schedule, weight_stationary
from nkiconv.schedules.weight_stationary import BESIDE
from nkiconv.simulator import KernelAssertionError

KERNELS = {2: nkiconv.conv_transpose2d_implicit_gemm, 3: nkiconv.conv_transpose3d_implicit_gemm}


@dataclass(frozen=True)
class Transposed:
    """A call of torch's; numbers an axis."""

    N: int
    C: int
    K: int
    groups: int
    sizes: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def axes(self):
        return len(self.sizes)

    def numbers(self):
        """torch's arguments but groups, and those of arrays."""
        names = ("stride", "padding", "output_padding", "dilation")
        return {name: getattr(self, name) for name in names}

    def inputs(self, dtype):
        rng = np.random.default_rng(7)
        x = integer_inputs(rng, (self.N, self.C, *self.sizes), dtype)
        return x, integer_inputs(rng, (self.C, self.K // self.groups, *self.taps), dtype)

    def truth(self, x, w, bias=None):
        """torch's y in float64."""
        function = getattr(torch.nn.functional, f"conv_transpose{self.axes}d")
        wide = [None if one is None else torch.tensor(np.asarray(one, np.float64)) for one in (x, w, bias)]
        return function(*wide, groups=self.groups, **self.numbers()).numpy()


def check(call, dtype="bf16", lnc=2, last=False, added=(), activation=None, **options):
    """The kernel on integers, exactly; last: channels side by side in memory; added: "bias", "residual"."""
    (x, w), rng = call.inputs(dtype), np.random.default_rng(8)
    bias = rng.integers(-70, 70, call.K).astype(np.float32) if "bias" in added else None
    truth = call.truth(x, w, bias)
    if "residual" in added:
        residual = rng.integers(-9, 10, truth.shape).astype(np.float32)
        truth = truth + residual
        options["residual"] = np.moveaxis(residual, 1, -1).copy() if last else residual
    truth = truth if activation is None else np.maximum(truth, 0)
    options |= {"bias": bias, "activation": activation}
    if last:
        ahead = tuple(range(1, call.axes + 1))
        options |= {"in_perm": (0, call.axes + 1, *ahead), "out_perm": (0, *(one + 1 for one in ahead), 1)}
    numbers = call.numbers() | {"padding": tuple((side, side) for side in call.padding)}
    kernel = nkiconv.simulate(KERNELS[call.axes][lnc])
    stored = np.moveaxis(x, 1, -1).copy() if last else x
    y = kernel(stored, w, **numbers, feature_group_count=call.groups, out_dtype=nl.float32, **options)
    np.testing.assert_array_equal(np.moveaxis(y, -1, 1) if last else y, truth)


SMALL = Transposed(2, 6, 5, 1, (5, 7), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1))
CALLS = {
    "unet": Transposed(2, 130, 140, 1, (3, 4), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
    "gan": Transposed(3, 20, 12, 1, (4, 4), (4, 4), (2, 2), (1, 1), (0, 0), (1, 1)),
    "vocoder": Transposed(1, 40, 24, 1, (1, 150), (1, 16), (1, 8), (0, 4), (0, 0), (1, 1)),
    "long rows": Transposed(1, 4, 3, 1, (1, 1200), (1, 4), (1, 2), (0, 1), (0, 0), (1, 1)),
    "more taps than phases": Transposed(2, 5, 4, 1, (5, 6), (5, 3), (2, 2), (2, 1), (1, 1), (1, 1)),
    "fewer taps than phases": Transposed(2, 5, 4, 1, (5, 6), (1, 2), (3, 4), (0, 0), (2, 3), (1, 1)),
    "dilated": Transposed(2, 5, 4, 1, (5, 6), (3, 2), (3, 2), (1, 0), (0, 1), (2, 3)),
    "common factors": Transposed(1, 5, 4, 1, (5, 6), (4, 3), (4, 2), (2, 1), (1, 0), (2, 4)),
    "cropped": Transposed(1, 5, 4, 1, (6, 6), (3, 3), (2, 3), (4, 5), (0, 0), (1, 1)),
    "stride 1": Transposed(2, 5, 4, 1, (5, 6), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "volumes": Transposed(2, 6, 5, 1, (3, 4, 5), (2, 3, 2), (2, 3, 2), (0, 1, 0), (1, 0, 1), (1, 2, 3)),
    "one plane": Transposed(2, 6, 5, 1, (1, 4, 5), (2, 1, 3), (2, 3, 1), (0, 0, 0), (0, 2, 0), (1, 1, 1)),
}
GROUPS = {
    "grouped": Transposed(2, 6, 4, 2, (5, 6), (3, 4), (2, 2), (1, 1), (1, 0), (1, 1)),
    "depthwise row": Transposed(1, 9, 9, 9, (1, 20), (1, 3), (1, 2), (0, 1), (0, 1), (1, 1)),
    "many groups": Transposed(1, 140, 140, 140, (1, 11), (1, 4), (1, 2), (0, 1), (0, 0), (1, 1)),
    "multiplier": Transposed(1, 4, 12, 4, (3, 4, 5), (2, 2, 3), (2, 1, 2), (0, 0, 1), (0, 0, 1), (1, 1, 1)),
    "large groups": Transposed(1, 280, 6, 2, (3, 4), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
}
#: Groups without a stride, whose filters are read in reverse.
PLAIN_GROUPS = {
    "depthwise": Transposed(3, 200, 200, 200, (9, 10), (3, 2), (1, 1), (1, 0), (0, 0), (2, 1)),
    "multiplier 2": Transposed(2, 70, 140, 70, (6, 7), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "groups of three": Transposed(2, 48, 32, 16, (7, 6), (2, 3), (1, 1), (0, 1), (0, 0), (1, 1)),
    "groups that fill tiles": Transposed(2, 136, 136, 34, (7, 6), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "a group a row tile": Transposed(2, 144, 120, 6, (6, 5), (3, 4), (1, 1), (1, 1), (0, 0), (1, 1)),
    "volumes in groups": Transposed(1, 12, 12, 6, (3, 4, 5), (2, 3, 2), (1, 1, 1), (1, 1, 0), (0, 0, 0), (1, 1, 1)),
    "depthwise volumes": Transposed(1, 9, 9, 9, (3, 4, 5), (2, 3, 2), (1, 1, 1), (1, 1, 0), (0, 0, 0), (1, 2, 1)),
}
#: Too wide to share an M tile, and with filters of their own, which implicit_gemm takes.
WIDE_GROUPS = {
    "inputs": Transposed(2, 140, 24, 2, (7, 6), (3, 2), (1, 1), (1, 0), (0, 0), (2, 1)),
    "outputs, stride": Transposed(1, 30, 280, 2, (5, 6), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "one input": Transposed(2, 3, 195, 3, (5, 6), (3, 2), (1, 1), (1, 0), (0, 0), (1, 1)),
    "several tiles of both": Transposed(1, 288, 432, 2, (5, 4), (1, 3), (1, 1), (0, 1), (0, 0), (1, 1)),
    "wide volumes": Transposed(1, 140, 24, 2, (3, 4, 5), (2, 3, 2), (1, 1, 1), (1, 1, 0), (0, 0, 0), (1, 1, 1)),
    "depthwise, stride": Transposed(2, 300, 300, 300, (7, 6), (3, 3), (2, 2), (1, 1), (1, 0), (1, 1)),
    "depthwise, long row": Transposed(2, 130, 130, 130, (1, 40), (1, 9), (1, 3), (0, 2), (0, 1), (1, 2)),
    "depthwise": PLAIN_GROUPS["depthwise"],
    "depthwise volumes": PLAIN_GROUPS["depthwise volumes"],
}
#: Groups whose blocks have all phases: taps that do not divide, dilations, crops, multipliers, few groups.
GROUPS_OF_PHASES = {
    "depthwise phases": Transposed(2, 9, 9, 9, (6, 7), (3, 5), (2, 2), (1, 2), (1, 1), (1, 1)),
    "multiplier of phases": Transposed(1, 12, 4, 4, (5, 6), (4, 7), (2, 2), (0, 3), (1, 0), (1, 1)),
    "rows of phases": Transposed(3, 140, 140, 70, (4, 5), (3, 3), (2, 1), (2, 1), (0, 0), (1, 1)),
    "columns of phases": Transposed(1, 40, 20, 20, (3, 30), (1, 6), (1, 4), (0, 1), (0, 2), (1, 1)),
    "dilated phases": Transposed(2, 8, 8, 8, (5, 6), (3, 3), (2, 2), (1, 0), (0, 1), (3, 2)),
}
STRIDED = Transposed(3, 130, 20, 1, (5, 6), (4, 3), (2, 3), (1, 2), (1, 0), (1, 2))
#: Channels beside 128 whose copies begin at no partition that engines address.
ONE_MORE = {C: Transposed(1, C, 150, 1, (7, 12), (3, 4), (1, 1), (1, 1), (0, 0), (1, 2)) for C in (129, 141, 20)}
FOLDED_GROUPS = Transposed(1, 140, 150, 2, (5, 9), (2, 3), (1, 1), (1, 1), (0, 0), (1, 2))
TWO_K_TILES = Transposed(1, 209, 150, 1, (7, 12), (4, 3), (1, 1), (1, 1), (0, 0), (1, 2))
FOLDED = Transposed(1, 160, 150, 1, (11, 12), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1))
ONE_TAP = Transposed(2, 130, 150, 1, (4, 5), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1))
#: Few inputs, K packing of rows.
FEW = {
    "3x3": Transposed(3, 16, 3, 1, (12, 11), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "5x4": Transposed(2, 8, 40, 1, (9, 14), (5, 4), (1, 1), (2, 0), (0, 0), (1, 1)),
    "few inputs, dilated": Transposed(2, 20, 130, 1, (13, 10), (3, 2), (1, 1), (2, 1), (0, 0), (2, 3)),
    "many runs of filters": Transposed(1, 65, 48, 1, (7, 8), (3, 3), (1, 1), (1, 1), (0, 0), (1, 1)),
    "several banks of filters": Transposed(1, 128, 20, 1, (4, 9), (1, 9), (1, 1), (0, 4), (0, 0), (1, 1)),
    "quadrants": Transposed(1, 4, 32, 1, (20, 9), (7, 7), (1, 1), (3, 3), (0, 0), (1, 1)),
    "few inputs, one tap": Transposed(1, 21, 50, 1, (8, 9), (1, 1), (1, 1), (0, 0), (0, 0), (1, 1)),
}
VOLUMES = {
    "many channels": Transposed(1, 96, 20, 1, (3, 5, 6), (3, 3, 3), (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)),
    "all channels": Transposed(2, 192, 40, 1, (4, 3, 7), (2, 3, 3), (1, 1, 1), (0, 1, 0), (0, 0, 0), (1, 1, 1)),
    "few channels": Transposed(1, 3, 40, 1, (3, 7, 9), (3, 3, 2), (1, 1, 1), (2, 1, 0), (0, 0, 0), (1, 1, 1)),
}


def patches(N, C, K, sizes, taps):
    none = (0,) * len(sizes)
    return Transposed(N, C, K, 1, sizes, taps, taps, none, none, (1,) * len(sizes))


#: x's channels, rows and images that do not fill the partitions, or more than do; taps of a bank and of several.
PATCHES = {
    "image": patches(2, 130, 3, (3, 4), (4, 4)), "many rows": patches(3, 20, 2, (70, 2), (2, 3)),
    "tall": patches(1, 4, 1, (150, 3), (3, 2)), "more than a bank": patches(1, 5, 2, (2, 3), (25, 22)),
    "many channels": patches(2, 40, 140, (3, 5), (2, 2)), "row": patches(1, 10, 3, (1, 12), (1, 5)),
    "parts of rows": patches(1, 9, 3, (2, 6), (3, 3)), "uneven parts": patches(2, 9, 3, (14, 9), (2, 3)),
    "volume": patches(1, 130, 3, (3, 2, 5), (2, 3, 4)), "volumes": patches(2, 9, 2, (2, 70, 3), (3, 2, 2)),
    "planes alone": patches(3, 9, 2, (4, 3, 5), (2, 1, 1)), "planes of one tap": patches(2, 9, 2, (4, 3, 5), (1, 2, 2)),
}  # fmt: skip


def _few_outputs(C, **more):
    return Transposed(5, C, 3, 1, (9, 7), (7, 5), (2, 2), (3, 1), (1, 0), (1, 1)), BLOCKS, m_packed(4, 2, **more)


def _blocks(call):
    """Sizes of blocks that have each phase once or several times."""
    sizes = [one for one in weight_stationary.BLOCKS if not (one[0] % call.stride[0] or one[1] % call.stride[1])]
    return {f"{height} x {width}": (call, BLOCKS, tiles(32, height, width)) for height, width in sizes}


#: Why it is here: a call, an algorithm, settings.
EXACT = {
    **{why: (call, None, {}) for why, call in {**CALLS, **GROUPS}.items()},
    **{f"phases: {why}": (call, BLOCKS, {}) for why, call in {**CALLS, **PLAIN_GROUPS}.items()},
    **{f"phases: {why}, {size}": row for why, one in GROUPS_OF_PHASES.items() for size, row in _blocks(one).items()},
    **{f"{GEMM}: {why}": (one, GEMM, {}) for why, one in {**CALLS, **GROUPS, **WIDE_GROUPS, **VOLUMES}.items()},
    **{f"{GEMM}: {why}, channels shared": (one, GEMM, {"shard": "channels"}) for why, one in WIDE_GROUPS.items()},
    **{f"{GEMM}: {why}, images shared": (one, GEMM, {"shard": "images"}) for why, one in WIDE_GROUPS.items()},
    **{f"{GEMM}: folded {fold}": (FOLDED, GEMM, {"fold": fold}) for fold in ("inputs", "outputs", "both")},
    **{f"{GEMM}: folded, {C} channels": (one, GEMM, {"fold": "both"}) for C, one in ONE_MORE.items()},
    f"{GEMM}: folded in two K tiles": (TWO_K_TILES, GEMM, {"fold": "both"}),
    f"{GEMM}: folded groups": (FOLDED_GROUPS, GEMM, {"fold": "inputs"}),
    f"{GEMM}: K tile by K tile": (FOLDED, GEMM, {"fold": "none", "order": "chunks"}),
    f"{GEMM}: M tiles of a few channels": (FOLDED, GEMM, {"shard": "channels"}),
    f"{GEMM}: strided": (STRIDED, GEMM, {}),
    f"{GEMM}: one tap": (ONE_TAP, GEMM, {}),
    **{f"M packing: {C} channels": _few_outputs(C, lanes=1) for C in (64, 130)},
    **{f"M packing: {C} channels, lanes": _few_outputs(C, lanes=2) for C in (40, 64)},
    **{f"K packing: {why}": (one, K_PACKING, {}) for why, one in FEW.items()},
    **{f"K packing: {why}, apart": (one, K_PACKING, k_packed(6, 1, 2, filters="apart"))
       for why, one in FEW.items() if one.C < 64},
    "K packing: many runs, a rest": (FEW["many runs of filters"], K_PACKING, k_packed(2, 1, 2, rest=1)),
    "K packing: four outputs": (FEW["3x3"], K_PACKING, k_packed(4, 1, 4, filters="apart")),
    "K packing: shifted on the chip": (FEW["quadrants"], K_PACKING, k_packed(8, 2, 2, filters="apart")),
    "K packing: a rest": (FEW["quadrants"], K_PACKING, k_packed(8, 2, 2, filters="apart", rest=3)),
    "K packing: depthwise": (PLAIN_GROUPS["depthwise"], K_PACKING, {}),
    "K packing: depthwise volumes": (PLAIN_GROUPS["depthwise volumes"], K_PACKING, {}),
    "K packing: volumes": (VOLUMES["few channels"], K_PACKING, {}),
    "Toeplitz blocks: depthwise": (PLAIN_GROUPS["depthwise"], PIXELS, {}),
    **{f"rows: {why}": (one, PIXELS, {}) for why, one in VOLUMES.items()},
    **{f"patches: {why}": (one, PIXELS, {}) for why, one in PATCHES.items()},
    **{f"patches: {n} neighbours": (PATCHES["parts of rows"], PIXELS, {"side": n}) for n in (1, 3)},
    # channels side by side in memory, where pixels are the stationary operand
    "pixels: strided": (STRIDED, PIXELS, {}),
    "pixels: folded": (FOLDED, PIXELS, {}),
    "pixels: one tap": (ONE_TAP, PIXELS, {}),
    "pixels: patches of many channels": (patches(1, 130, 128, (3, 4), (2, 2)), PIXELS, {"side": 2}),
    "fp8": (STRIDED, None, {}),
    "fp8, phases": (CALLS["gan"], BLOCKS, {}),
    "fp8, K packing": (FEW["3x3"], K_PACKING, {}),
    "fp8, groups": (PLAIN_GROUPS["groups of three"], GEMM, {}),
    "fp8, pairs": (TWO_K_TILES, GEMM, {"product": "fp8_pairs", "fold": "none"}),
    "fp8, folded pairs": (FOLDED, GEMM, {"product": "fp8_pairs", "fold": "inputs"}),
}  # fmt: skip
#: dtype and precision.
DTYPES = {"bf16": None, "fp16": None, "fp32": None, **{f"fp32 as {one}": one for one in ("tf32", "bf16", "fp16x3")}}
RUNS = [(why, "fp8_e4m3") for why in EXACT if why.startswith("fp8")]
RUNS += [
    (why, dtype) for why, (_, algorithm, _) in EXACT.items() for dtype in DTYPES
    if not why.startswith("fp8") and (algorithm == GEMM or not DTYPES[dtype])
]  # fmt: skip


@pytest.mark.cover(54, keep=[
    "rows: all channels-bf16-channels first", "phases: long rows-bf16-channels first",
    "implicit_gemm: folded, 129 channels-bf16-channels first", "K packing: many runs, a rest-bf16-channels first",
])  # fmt: skip
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_every_call(name, dtype, last):
    call, algorithm, settings = EXACT[name]
    if name.startswith("rows") or settings.keys() & {"fold", "planes"}:
        last = False
    more = {"last": last or name.startswith("pixels"), "precision": DTYPES.get(dtype)}
    for lnc in cores(name):
        check(call, dtype.partition(" ")[0], lnc, algorithm=algorithm, config=tuple(settings.items()) or None, **more)


#: Several phases or segments packed together, with channels that take them.
ARRANGED = [
    (beside, segments, sizes, C)
    for beside in BESIDE
    for segments, C in ((1, 20), (2, 64), (4, 32), (4, 64), (2, 128))
    for sizes in (((3, 4, 5), (3, 6, 3), (12, 2, 3)) if segments > 1 else ((3, 4, 5),))
]


@pytest.mark.cover(1)
@pytest.mark.parametrize(("beside", "segments", "sizes", "C"), ARRANGED)
def test_phases_and_segments_beside_each_other(beside, segments, sizes, C):
    K = (16 if beside == "planes" else 32) // segments
    config = (("beside", beside), ("segments", segments), ("y_bytes", 256))
    stride = {"rows": (1, 2, 2), "planes": (2, 1, 2)}.get(beside, (2, 2, 2))
    for padding, taps in (((0, 0, 0), (2, 2, 2)), ((1, 1, 1), (3, 3, 4))):
        call = Transposed(1, C, K, 1, sizes, taps, stride, padding, (0, 0, 0), (1, 1, 1))
        for lnc in cores(config, taps):
            check(call, lnc=lnc, algorithm=BLOCKS, config=config)


@pytest.mark.cover(2)
@pytest.mark.parametrize("config", [
    (("shard", "channels"), ("y_bytes", 256)),
    (("shard", "outputs"),),
    (("warmup", 0),),
], ids=str)  # fmt: skip
def test_settings_change_nothing(config, change):
    change(block_schedule, "X_BYTES", 256)
    change(weight_stationary, "FILTER_BYTES", 256)
    for call in (SMALL, CALLS["volumes"], CALLS["unet"]):
        check(call, algorithm=BLOCKS, config=config)


@pytest.mark.parametrize("shard", ["channels", "outputs"])
def test_both_cores_give_the_bits_of_one(shard):
    rng = np.random.default_rng(2)
    arrays = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 140, 5, 7), (140, 130, 4, 4)))
    x, w = arrays
    options = {"stride": (2, 2), "padding": ((1, 1), (1, 1)), "algorithm": BLOCKS, "config": (("shard", shard),)}
    one, two = (nkiconv.simulate(KERNELS[2][lnc])(x, w, **options) for lnc in (1, 2))
    assert same_bits(one, two)


@pytest.mark.simulator_only
@pytest.mark.parametrize("groups", [1, 2, 4, 96])
def test_filters_are_read_where_they_are(groups):
    same = ((1, 1), (1, 1))
    problem = ConvProblem(N=1, C=288, H=7, W=7, K=288, R=3, S=3, groups=groups, padding=same).toward("dgrad")
    operation, request = operation_of(problem), Request(problem=problem)
    arguments = operation.arguments(request, GEMM, (("fold", "none"),))
    done = nkiconv.simulator.execute(operation.kernel[2], *arguments, trace_only=True)
    written = {view.info.buffer for one in done.instructions for view in one.writes if "hbm" in view.info.buffer.name}
    assert written == {nl.shared_hbm}  # of y; a copy is private


def test_a_convolution_with_filters_stored_the_other_way_round():
    """conv2d takes phases too, where its filter lies as [C, K, ...] and lhs_dilation has zeros to leave out."""
    rng = np.random.default_rng(4)
    w = rng.integers(-2, 3, (5, 6, 3, 3)).astype(np.float32)
    options = {"lhs_dilation": (2, 2), "padding": ((1, 2), (2, 1)), "kern_perm": (1, 0, 2, 3)}
    stored = np.ascontiguousarray(w.transpose(1, 0, 2, 3))
    kernel = nkiconv.simulate(nkiconv.conv2d_implicit_gemm)
    y = kernel(X, stored, algorithm=BLOCKS, **options)
    np.testing.assert_array_equal(y, kernel(X, stored, algorithm=GEMM, **options))


ORDERS = {
    "few outputs": Transposed(2, 8, 5, 1, (3, 4, 5), (1, 3, 2), (1, 2, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
    "one output": Transposed(2, 8, 1, 1, (3, 4, 5), (1, 2, 3), (1, 2, 3), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
    "depthwise": Transposed(2, 6, 6, 6, (3, 4, 5), (1, 3, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
    "groups": Transposed(2, 8, 4, 2, (3, 4, 5), (1, 2, 3), (1, 1, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
    "planes of taps": Transposed(2, 9, 4, 1, (3, 4, 5), (2, 3, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
}
#: With output channels last among them, and those of which axes of one element have strides of their own.
KERN_PERMS = ((0, 1, 2, 3, 4), (0, 4, 1, 2, 3), (0, 3, 4, 2, 1), (1, 0, 3, 2, 4), (2, 1, 4, 0, 3), (3, 4, 1, 0, 2))


@pytest.mark.cover(12, keep=["depthwise-activation_stationary-in_perm1-out_perm0"])
@pytest.mark.parametrize("out_perm", [(0, 1, 2, 3, 4), (0, 2, 3, 4, 1), (0, 4, 1, 2, 3)])
@pytest.mark.parametrize("in_perm", [(0, 1, 2, 3, 4), (0, 4, 1, 2, 3)])
@pytest.mark.parametrize("algorithm", [GEMM, K_PACKING, PIXELS, BLOCKS])
@pytest.mark.parametrize("call", ORDERS.values(), ids=ORDERS)
def test_every_order_in_memory(call, algorithm, in_perm, out_perm):
    """Exact, or refused by name."""
    x, w = call.inputs("bf16")
    numbers = {"stride": call.stride, "padding": ((0, 0),) * 3, "feature_group_count": call.groups}
    for kern_perm in KERN_PERMS:
        perms = {"in_perm": in_perm, "kern_perm": kern_perm, "out_perm": out_perm}
        x_stored, w_stored = (
            np.ascontiguousarray(one.transpose(np.argsort(perm))) for one, perm in ((x, in_perm), (w, kern_perm))
        )
        with contextlib.suppress(KernelAssertionError):
            y = KERNELS[3][1](x_stored, w_stored, algorithm=algorithm, **perms, **numbers)
            assert_exact(y, call.truth(x, w).transpose(out_perm), "bf16")


X, W = SMALL.inputs("fp32")
COLUMNS, ROWS = {"config": (("beside", "columns"),)}, {"config": (("beside", "rows"),)}
#: Filters as conv2d has them.
PLAIN = {"filter_ref": np.zeros((5, 6, 3, 3), np.float32), "config": (("beside", "none"),), "stride": (1, 1)}
REFUSED = [
    ({"filter_ref": W[:4]}, r"filter_ref.shape=.*: has 4 input channels, img_ref has C=6; pass \[C, K / groups, ...\]"),
    ({"filter_ref": W[0]}, r"filter_ref.shape=.*: must have 4 axes, .C, K / groups, R, S"),
    ({"padding": ((9, 9), (0, 0))}, "P=-6: output height must be at least 1"),
    ({"config": (("beside", "all"),)}, "config beside=all: must be one of"),
    ({"config": (("segments", 3),)}, "config beside=none, segments=3.*2 or 4, of C=32, 64 or 128, not 6"),
    (COLUMNS | {"strict_nonfinite": True}, "multiplies by zero, which strict_nonfinite"),
    (COLUMNS | {"residual": np.zeros((2, 5, 12, 16), np.float32)}, "phases that share columns take no residual"),
    (ROWS | {"filter_ref": np.zeros((6, 100, 4, 4), np.float32)}, "4 phases of 50 columns, by quadrants, must fit"),
    (PLAIN | {"lhs_dilation": (2, 1)}, r"filter_ref: weight_stationary takes filters \[C, K, ...\]"),
    (PLAIN | {"lhs_dilation": (1, 1)}, "lhs_dilation=1: weight_stationary has phases of transposed"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED, ids=[case[1][:40] for case in REFUSED])
def test_refusals(changed, message):
    given = {"img_ref": X, "filter_ref": W, "stride": (2, 2), **changed}
    if "config" in changed:
        given["algorithm"] = BLOCKS
    kernel = nkiconv.conv2d_implicit_gemm if "lhs_dilation" in changed else KERNELS[2]
    with pytest.raises(KernelAssertionError, match=message):
        nkiconv.simulate(kernel)(**given)


@pytest.mark.parametrize(("call", "algorithm", "settings", "message"), [
    (GROUPS["grouped"], BLOCKS, tiles(32, 1, 2), "rows=32 height=1 width=2: a block has all phases"),
    (Transposed(1, 6, 6, 6, (4, 5), (1, 2), (2, 4), (0, 0), (1, 1), (1, 1)), BLOCKS, {},
     "of groups takes blocks of at most 4 phases"),
    (FEW["quadrants"], K_PACKING, k_packed(8, 2, 2, filters="straight"), "filters=straight: a rotated filter is rev"),
    (VOLUMES["few channels"], GEMM, {"planes": "channels"}, "planes=channels: needs .*not those of transposed conv"),
    (PATCHES["image"], PIXELS, {"warmup": -1}, "warmup=-1: must be an int from 0"),
    (PATCHES["image"], PIXELS, {"side": 3}, "side=3: must divide W=4; use 1"),
    (PATCHES["image"], PIXELS, {"residual": np.zeros((2, 3, 12, 16), np.float32)},
     "residual, y_norm: patches take none; use implicit_gemm"),
    (PATCHES["image"], PIXELS, {"x_activation": "silu"}, "x_activation: patches take none; use implicit_gemm"),
])  # fmt: skip
def test_settings_that_are_refused(call, algorithm, settings, message):
    more = {name: settings[name] for name in ("residual", "x_activation") if name in settings}
    config = None if more else tuple(settings.items()) or None
    with pytest.raises(KernelAssertionError, match=message):
        check(call, algorithm=algorithm, config=config, **more)


#: Pixels of y that see zeros alone, whose sums begin with the bias that a matmul by ones adds.
APART = Transposed(2, 5, 4, 1, (3, 4), (1, 2), (2, 3), (0, 0), (1, 1), (1, 1))


@pytest.mark.parametrize(("call", "last", "added"), [
    (PATCHES["image"], False, ["bias"]),
    # patches take no residual where channels are neighbours: pixels of y are the columns then
    (PATCHES["image"], True, ["residual"]), (PATCHES["tall"], True, ["residual"]),
    (ONE_TAP, True, ["bias"]), (APART, True, ["bias", "residual"]), (APART, True, ["residual"]),
])  # fmt: skip
@pytest.mark.parametrize("activation", [None, "relu"])
def test_epilogues_of_pixels_and_patches(call, last, added, activation):
    for lnc in cores(added, activation):
        check(call, lnc=lnc, last=last, added=added, activation=activation, algorithm=PIXELS)


@pytest.mark.parametrize("taps", [(2, 2, 2), (3, 1, 2)])
def test_volumes_whose_channels_are_neighbours_in_x_alone(taps):
    call = patches(2, 9, 3, (3, 1, 4), taps)
    x, w = call.inputs("bf16")
    given = {"stride": taps, "padding": ((0, 0),) * 3, "algorithm": "activation_stationary"}
    kernel = nkiconv.conv_transpose3d_implicit_gemm[2]
    y = kernel(np.ascontiguousarray(x.transpose(0, 2, 3, 4, 1)), w, in_perm=(0, 4, 1, 2, 3), **given)
    assert np.array_equal(np.asarray(y, np.float64), call.truth(x, w))
