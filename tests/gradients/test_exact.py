"""Gradients of filters and biases by every algorithm and its settings, against torch in float64, exact on integers."""

import ml_dtypes
import numpy as np
import pytest
from draws import cores
from gradients import INPUT, LAYOUTS, check, expected, last, outputs, places_of, problem_of
from requested import requested

import nkiconv
from nkiconv import ConvProblem
from nkiconv.errors import UnsupportedError
from nkiconv.schedules import blocks_schedule, diagonals

#: (N, C, K, groups), and an axis each (size, taps, stride, dilation, before, after, lhs_dilation).
PLAIN, WIDE, LONG = (9, 3, 1, 1, 1, 1), (11, 3, 1, 1, 1, 1), (14, 3, 1, 1, 1, 1)
BLOCKS = {
    "rows apart": ((2, 5, 7, 1), (9, 1, 3, 1, 1, 0), (56, 3, 2, 1, 1, 1)),
    "same": ((2, 5, 7, 1), PLAIN, WIDE),
    "several tiles, banks and passes": ((3, 70, 260, 1), LONG, LONG),
    "strides, dilations, cropped": ((1, 20, 13, 1), (17, 5, 2, 1, 2, 1), (30, 3, 3, 2, -1, 3)),
    "stem": ((2, 3, 64, 1), (24, 7, 2, 1, 3, 3), (24, 7, 2, 1, 3, 3)),
    "packed columns": ((1, 6, 32, 1), PLAIN, (10, 3, 1, 1, 1, 1)),
    "groups": ((2, 12, 8, 4), PLAIN, WIDE),
    "depthwise": ((2, 6, 12, 6), PLAIN, WIDE),
    "pointwise": ((3, 140, 130, 1), (6, 1, 1, 1, 0, 0), (5, 1, 1, 1, 0, 0)),
    "pointwise, strided": ((3, 14, 13, 1), (7, 1, 2, 1, 0, 0), (9, 1, 2, 1, 0, 0)),
    "window outside x": ((1, 3, 4, 1), (3, 3, 1, 1, 6, 5), (4, 3, 1, 1, 7, 4)),
    "many taps": ((1, 2, 3, 1), (40, 27, 1, 1, 3, 3), (40, 27, 1, 1, 3, 3)),
    "volumes": ((2, 6, 7, 1), (5, 3, 1, 1, 1, 1), PLAIN, WIDE),
    "volumes, strided": ((2, 6, 7, 1), (5, 3, 2, 1, 2, 0), (9, 3, 1, 2, 1, 1), (11, 2, 2, 1, 0, 3)),
    "sequences": ((3, 10, 9, 1), (50, 4, 1, 1, 3, 0)),
    "long filter": ((1, 3, 2, 1), (700, 600, 1, 1, 300, 299)),
    "rows that meet padding alone": ((1, 5, 4, 1), (4, 1, 2, 1, 2, 0), (128, 1, 1, 1, 0, 0)),
    "one row of several that meets x": ((1, 33, 32, 1), (1, 2, 1, 1, 5, 2), (128, 1, 1, 1, 2, 5)),
    "rows apart that meet padding alone": ((1, 13, 40, 1), (3, 1, 3, 1, 2, 0), (128, 1, 1, 1, 0, 0)),
}
MANY_PLANES = (1, 2, 3, 1), (4, 3, 1, 1, 1, 1), (30, 24, 1, 1, 2, 2), (28, 23, 1, 1, 2, 2)
#: Zeros between elements of x, with strides too.
SPREAD = {
    "spread, strides too": ((2, 5, 7, 1), (9, 3, 2, 1, 1, 1, 3), (11, 3, 3, 1, 1, 1, 2)),
    "spread, blocks alike": ((2, 3, 4, 1), (12, 3, 2, 1, 1, 1, 2), (16, 3, 4, 2, 2, 0, 2)),
    "spread, cropped": ((1, 20, 13, 1), (17, 5, 2, 1, -2, 1, 2), (30, 3, 3, 2, -1, -3, 4)),
    "spread groups": ((2, 12, 8, 4), (9, 3, 1, 1, 1, 1, 2), (11, 3, 2, 1, 1, 1, 1)),
    "spread, depthwise": ((2, 6, 12, 6), (9, 3, 2, 1, 1, 1, 3), (11, 3, 1, 1, 1, 1, 2)),
    "spread volumes": ((2, 6, 7, 1), (5, 3, 2, 1, 1, 1, 3), (7, 2, 2, 1, 0, 1, 2), (9, 3, 3, 1, 1, 1, 2)),
    "spread sequences": ((3, 10, 9, 1), (50, 4, 3, 1, 3, 0, 2)),
}
DIAGONALS = {
    "rows apart": ((2, 6, 6, 6), (9, 1, 3, 1, 0, 0), (56, 3, 2, 1, 1, 1)),
    "depthwise": ((2, 6, 6, 6), PLAIN, WIDE),
    "many groups": ((2, 130, 130, 130), (5, 3, 1, 1, 1, 1), (7, 3, 1, 1, 1, 1)),
    "many images": ((70, 3, 3, 3), (7, 3, 1, 1, 1, 1), (7, 3, 1, 1, 1, 1)),
    "several channels out": ((2, 5, 10, 5), PLAIN, WIDE),
    "groups": ((2, 12, 8, 4), PLAIN, WIDE),
    "one group": ((2, 3, 4, 1), PLAIN, WIDE),
    "large filter": ((3, 5, 5, 5), (15, 7, 1, 1, 3, 3), (15, 7, 1, 1, 3, 3)),
    "strided": ((3, 6, 6, 6), (14, 5, 2, 1, 2, 2), (15, 5, 2, 1, 2, 2)),
    "strides, dilations, cropped": ((1, 6, 12, 3), (17, 5, 2, 1, 2, 1), (30, 3, 3, 2, -1, 3)),
    "window outside x": ((1, 3, 3, 3), (3, 3, 1, 1, 6, 5), (4, 3, 1, 1, 7, 4)),
    "sequences": ((3, 10, 10, 10), (50, 31, 1, 1, 30, 0)),
    "volumes": ((2, 4, 4, 4), (5, 3, 1, 1, 1, 1), PLAIN, WIDE),
    "volumes, many taps": ((1, 18, 2, 2), *((1, 4, 1, 1, 0, 3),) * 3),
    "volumes, strided": ((2, 6, 4, 2), (5, 3, 2, 1, 2, 0), (9, 3, 1, 2, 1, 1), (11, 2, 2, 1, 0, 3)),
}
ORDER = ("rows", "columns", "down", "across", "side", "groups", "strips", "split", "below", "beside")
#: Values of ORDER.
OF_DIAGONALS = [
    (2, 4, 2, 2, 4, 1, 0, 0, 1, 1), (2, 4, 1, 1, 2, 3, 1, 1, 1, 1), (3, 5, 3, 3, 1, 2, 0, 0, 1, 1),
    (1, 1, 9, 11, 4, 2, 0, 0, 1, 1), (4, 3, 1, 2, 1, 9, 1, 1, 1, 1), (2, 4, 2, 2, 4, 2, 1, 0, 2, 1),
    (2, 3, 1, 1, 2, 3, 0, 0, 4, 1), (1, 4, 3, 3, 1, 5, 1, 1, 4, 1), (3, 4, 1, 2, 1, 9, 1, 0, 2, 1),
    (4, 4, 1, 1, 1, 4, 1, 0, 4, 1), (2, 4, 2, 2, 1, 9, 0, 0, 1, 2), (1, 3, 1, 2, 2, 1, 1, 1, 2, 2),
    (2, 3, 2, 1, 4, 1, 1, 0, 4, 2),
]  # fmt: skip
#: 1x1 filters whose planes DMA transposes as they come: planes of several lines, of one, of few pixels, several banks.
LINES = {
    "several lines": ((3, 20, 9, 1), (14, 16)), "one line": ((5, 140, 130, 1), (6, 5)),
    "one row of two lines": ((2, 7, 5, 1), (1, 200)), "few pixels": ((150, 3, 4, 1), (2, 2)),
    "groups": ((2, 12, 8, 4), (8, 16)), "banks": ((3, 600, 150, 1), (8, 8)), "sequences": ((3, 10, 9, 1), (300,)),
    "volumes": ((2, 6, 7, 1), (3, 4, 16)),
}  # fmt: skip
#: Few output channels, x and gy in each other's place; where x meets all of gy at no tap there is no bias.
EXCHANGED = {
    "same": ((2, 5, 3, 1), PLAIN, WIDE),
    "padded on one side": ((2, 140, 5, 1), (9, 3, 1, 2, 4, 0), (11, 4, 1, 1, 0, 2)),
    "packed columns": ((2, 32, 5, 1), PLAIN, (10, 3, 1, 1, 1, 1)),
    "volumes": ((2, 7, 6, 1), (5, 3, 1, 1, 2, 0), PLAIN, (11, 2, 1, 1, 1, 0)),
    "sequences": ((3, 10, 9, 1), (50, 4, 1, 1, 3, 0)),
}
NO_BIAS = {
    "cropped": ((2, 9, 3, 1), (9, 3, 1, 1, -1, 1), (12, 2, 1, 3, 2, -2)),
    "window outside x": ((1, 4, 3, 1), (3, 3, 1, 1, 6, 5), (4, 3, 1, 1, 7, 4)),
    "spread": ((2, 10, 3, 1), (5, 3, 1, 1, 1, 1, 2), (6, 2, 1, 1, 0, 1, 3)),
    "many taps": ((1, 3, 2, 1), (40, 27, 1, 1, 3, 3), (40, 27, 1, 1, 3, 3)),
    "long filter": ((1, 3, 2, 1), (700, 600, 1, 1, 300, 299)),
}
#: Whole planes by several tiles of the array's rows, each with channels of its own.
SIDE = {
    "planes": ((5, 20, 7, 1), (7, 3, 1, 1, 1, 1), (6, 3, 1, 1, 1, 1)),
    "several tiles": ((70, 9, 130, 1), (4, 3, 1, 1, 1, 1), (5, 3, 2, 1, 1, 0)),
    "fewer channels than tiles": ((3, 3, 40, 1), (5, 2, 1, 2, 1, 1), (6, 3, 1, 1, 0, 2)),
    "groups": ((3, 12, 6, 3), (5, 3, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1)),
    "no position sees all taps": ((2, 8, 9, 1), (2, 4, 1, 1, 2, 2), (1, 3, 1, 1, 1, 1)),
    "volumes": ((2, 6, 7, 1), (4, 3, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1), (4, 2, 1, 1, 0, 1)),
}
#: Blocks of several places whose few channels are transposed together: axes, and rows and columns of a block.
GANGS = {
    "parts of rows": ((1, 3, 130, 1), [(26, 3, 1, 1, 1, 2), (25, 3, 1, 1, 1, 1)], (1, 1)),
    "parts of rows of some planes": ((3, 24, 5, 1), [(20, 3, 1, 1, 0, 2), (17, 2, 1, 1, 1, 0)], (2, 1)),
    "parts of columns": ((1, 2, 70, 1), [(300, 4, 1, 1, 3, 0)], (1, 1)),
    "parts of both": ((1, 4, 9, 1), [(4, 2, 1, 1, 1, 0), (290, 3, 2, 1, 0, 2)], (1, 1)),
    "patches": ((2, 3, 20, 1), [(36, 4, 4, 1, 0, 0), (80, 4, 4, 1, 0, 0)], (1, 1)),
    "dilated": ((1, 6, 30, 1), [(19, 5, 1, 2, 4, 4), (19, 5, 1, 3, 6, 6)], (1, 1)),
    "dilated, blocks of some rows": ((1, 6, 30, 1), [(21, 3, 2, 4, 4, 4), (30, 3, 1, 2, 2, 2)], (2, 1)),
    "cropped": ((1, 5, 6, 1), [(23, 2, 1, 1, -2, 3), (21, 3, 1, 1, 4, -1)], (1, 1)),
    "groups": ((1, 4, 6, 2), [(20, 3, 1, 1, 1, 1), (19, 3, 1, 1, 1, 1)], (1, 1)),
    "volumes": ((1, 3, 4, 1), [(4, 3, 1, 1, 1, 1), (20, 2, 1, 1, 0, 1), (19, 3, 1, 1, 1, 1)], (1, 1)),
    "rows of windows in several loads": ((2, 5, 7, 1), [(6, 3, 1, 1, 1, 1), (208, 3, 1, 1, 1, 1)], (3, 4)),
}
#: Windows all inside x, which keeps its memory order beside a transposed gy: axes, and rows and columns of a block.
KEPT = {
    "patches": ((2, 3, 20, 1), [(36, 4, 4, 1, 0, 0), (80, 4, 4, 1, 0, 0)], (1, 20)),
    "parts of rows": ((1, 3, 130, 1), [(64, 4, 4, 1, 0, 0), (64, 4, 4, 1, 0, 0)], (1, 1)),
    "overlapping": ((3, 5, 7, 1), [(11, 3, 1, 1, 0, 0), (10, 3, 1, 1, 0, 0)], (3, 2)),
    "cropped": ((2, 6, 9, 1), [(21, 3, 2, 2, -1, 0), (12, 2, 1, 1, 0, -3)], (2, 4)),
    "one tap": ((5, 14, 13, 1), [(7, 1, 2, 1, 0, 0), (9, 1, 2, 1, 0, 0)], (1, 5)),
    "groups": ((2, 12, 8, 4), [(9, 3, 1, 1, 0, 0), (8, 3, 1, 1, -1, 0)], (7, 1)),
    "volumes": ((2, 4, 6, 1), [(5, 3, 1, 1, 0, 0), (9, 3, 2, 1, 0, 0), (8, 2, 2, 1, 0, 0)], (2, 2)),
}
#: Sums of all taps of some channels leave together.
GATHERED = {
    "planes": ((1, 40, 150, 1), (5, 3, 1, 1, 1, 1), (6, 3, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1)),
    "planes alone": ((2, 150, 130, 1), (5, 3, 1, 1, 1, 1), (6, 1, 2, 1, 0, 0), (7, 1, 2, 1, 0, 0)),
    "groups": ((1, 12, 8, 4), (4, 2, 1, 1, 1, 0), (6, 3, 1, 1, 1, 1), (5, 2, 1, 1, 1, 0)),
    "rows": ((1, 3, 5, 1), (40, 27, 1, 1, 3, 3), (40, 27, 1, 1, 3, 3)),
}
#: x and gy with their channels first are transposed on the array.
TURNED, LINE = {"pixels": 2}, {"pixels": 1}
PASSES = {"outputs": 1, "inputs": 1, "channels": 1, "split": 0}
#: Settings of a problem of BLOCKS, in every way that x and gy lie.
SIZES = {
    "same": [{"rows": 3, "columns": 2, "outputs": 1, "inputs": 1, "buffers": 1}],
    "stem": [{"rows": 3, "columns": 2, "outputs": 1, "inputs": 1, "buffers": 1, "split": 1}],
    "groups": [{"rows": 3, "columns": 2, "outputs": 1, "inputs": 1, "buffers": 1, "split": 0}],
    "volumes, strided": [{"rows": 3, "columns": 2, "outputs": 1, "inputs": 1, "buffers": 1, "split": 1}],
}


def _cut():
    """Of blocks cut small: (channels, axes, settings)."""
    seven = [(7, 3, 1, 1, 1, 1), (5, 3, 1, 1, 1, 1)]
    # packed columns of channels beyond 128s; fewer than a quadrant has, of columns whose windows are taps apart
    for K, beside, apart in ((192, 2, 1), (160, 4, 1), (24, 4, 1), (416, 4, 1), (140, 2, 2), (40, 2, 3)):
        axes = [PLAIN, (11, 3, 1, apart, apart, 1)]
        for outs in (1, 4):
            yield (2, 7, K, 1), axes, {"beside": beside, "rows": 3, "columns": 5, "outputs": outs, "split": outs // 4}
    # packed columns of one tap, which skips pixels between them
    for beside, stride, apart in ((2, 2, 1), (4, 3, 1), (2, 3, 2)):
        axes = [(7, 1, 2, 1, 1, 0), (17, 1, stride, apart, 0, 2)]
        yield (3, 7, 9, 1), axes, TURNED | {"beside": beside, "rows": 2, "columns": 5}
    axes = [(7, 1, 2, 1, 0, 0), (17, 1, 2, 1, 0, 2)]  # passes with and without packed columns share x
    yield (2, 7, 160, 1), axes, TURNED | {"beside": 2, "rows": 2, "columns": 5, "outputs": 1, "split": 0}
    # biases of several tiles, of which no more are there together than two
    for outs, inputs, side, pixels in ((1, 8, 1, 0), (1, 8, 4, 0), (2, 4, 1, 0), (2, 3, 1, 0), (1, 5, 1, 2)):
        config = {"outputs": outs, "inputs": inputs, "channels": 3, "side": side, "buffers": 2, "rows": 1, "columns": 5}
        yield (60, 24, 140, 1), seven, config | {"pixels": pixels, "beside": 1, "split": inputs % 2}
    for buffers, pixels in ((3, 0), (4, 2), (6, 0)):  # passes of nine banks over three tiles
        config = {"channels": 2, "outputs": 3, "inputs": 3, "rows": 1, "columns": 2, "buffers": buffers, "split": 0}
        yield (3, 12, 260, 1), [LONG, LONG], config | {"pixels": pixels}
    # the last row comes bank by bank, behind the others: it never writes the sums that they are added to
    config = {"rows": 2, "columns": 4, "channels": 3, "inputs": 1, "split": 1, "pixels": 0}
    yield (4, 6, 5, 1), [(2, 3, 1, 1, 2, 0), (4, 1, 1, 1, 0, 0)], config
    for split in (0, 1):  # of three passes one core has two; of three tiles of each pass one half has two
        config = {"rows": 12, "columns": 10, "buffers": 2, "split": split, "channels": 11, "pixels": 0}
        yield (7, 13, 130, 1), [(11, 1, 1, 1, 1, 0), (20, 2, 2, 1, 0, 1)], config
    for first in ((2, 1, 2, 2, 5, -1), (2, 2, 3, 1, 2, 0), (2, 2, 3, 1, 5, 0)):  # windows of some blocks lie beside x
        for rows in (1, 3):
            yield (1, 2, 3, 1), [first, (9, 2, 1, 1, 0, 0)], TURNED | {"rows": rows, "columns": 2}
    yield (*MANY_PLANES[:1], list(MANY_PLANES[1:]), {"rows": 2, "columns": 4, "outputs": 1, "inputs": 1, "split": 0})


def _table():
    """Name: (channels, axes, algorithm, settings, whether with a bias)."""
    found = {}
    for why, (channels, *axes) in {**BLOCKS, **SPREAD}.items():
        found[why] = channels, axes, None, {}, True
        if why in BLOCKS:
            found[f"{why}, transposed"] = channels, axes, "blocks", TURNED, True
        for place, sizes in enumerate(SIZES.get(why, ())):
            found[f"{why}, cut {place}"] = channels, axes, "blocks", TURNED | sizes, True
    for place, (channels, axes, sizes) in enumerate(_cut()):
        found[f"cut {place}"] = channels, axes, "blocks", sizes, True
    for why, (channels, *axes) in DIAGONALS.items():
        found[f"diagonals: {why}"] = channels, axes, "diagonals", {}, True
    for place, values in enumerate(OF_DIAGONALS):
        channels, *axes = DIAGONALS[("depthwise", "strided", "groups")[place % 3]]
        found[f"diagonals: settings {place}"] = channels, axes, "diagonals", dict(zip(ORDER, values, strict=True)), True
    # the last set, or the last below others, has fewer groups: 33 times 4 have 130, 67 sets of 2 have 133
    for groups, below, beside in ((130, 1, 1), (130, 4, 1), (134, 2, 2), (135, 1, 3), (133, 2, 2), (134, 1, 4)):
        sizes = {"rows": 1, "columns": 2, "down": 2, "across": 1, "side": 1, "groups": 65 if beside > 1 else 130}
        sizes |= {"below": below, "beside": beside, "split": below % 2}
        channels = 2, groups, 2 * groups, groups
        found[f"diagonals: {groups} groups, {below} below"] = channels, [PLAIN, WIDE], "diagonals", sizes, True
    # the second half has fewer units than a tile of rows
    sizes = dict.fromkeys(("rows", "columns", "down", "across", "groups", "split"), 1)
    axes = [(1, 1, 1, 1, 0, 1), (1, 1, 1, 1, 1, 4)]
    found["diagonals: a half of few"] = (3, 1, 1, 1), axes, "diagonals", sizes | {"side": 4, "strips": 0}, True
    # units along two axes, with one pixel a row: row tiles of them share DMAs
    sizes = dict.fromkeys(("columns", "down", "across", "beside", "groups", "below"), 1)
    sizes |= {"rows": 2, "side": 4, "strips": 0, "split": 0}
    axes = [(34, 1, 2, 1, 0, 0), (1, 1, 1, 1, 0, 0)]
    found["diagonals: row tiles of single columns"] = (24, 4, 8, 4), axes, "diagonals", sizes, True
    for place, (why, (channels, sizes)) in enumerate(LINES.items()):
        axes = [(size, 1, 1, 1, 0, 0) for size in sizes]
        found[f"lines: {why}"] = channels, axes, "blocks", LINE | {"split": place % 2}, True
    axes = [(6, 1, 2, 1, 0, 0, 2), (8, 1, 1, 1, 0, 0, 1)]  # as many places apart as lhs_dilation puts pixels
    found["lines: steps over zeros"] = (2, 3, 4, 1), axes, "blocks", LINE, False
    for why, (channels, *axes) in {**EXCHANGED, **NO_BIAS}.items():
        found[f"exchanged: {why}"] = channels, axes, "blocks", {"exchanged": 1, "pixels": 0}, why in EXCHANGED
        found[f"exchanged: {why}, transposed"] = channels, axes, "blocks", TURNED | {"exchanged": 1}, why in EXCHANGED
    channels, *axes = EXCHANGED["padded on one side"]
    for place, sizes in enumerate((
        {"rows": 2, "columns": 4, "split": 1},
        {"rows": 9, "columns": 11, "side": 2, "channels": 2, "inputs": 3, "split": 0},
        {"rows": 2, "columns": 3, "outputs": 2, "inputs": 2, "channels": 3, "split": 0},
    )):  # fmt: skip
        found[f"exchanged: blocks {place}"] = channels, axes, "blocks", {"exchanged": 1, "pixels": 0} | sizes, True
    for place, (why, (channels, *axes)) in enumerate(SIDE.items()):
        sizes = {"channels": 2, "outputs": 2, "inputs": 8, "buffers": 8, "split": place % 2, "pixels": 0}
        for side in (2, 4):
            planes = {"rows": outputs(axes[-2]), "columns": outputs(axes[-1])}  # blocks that are whole planes
            found[f"side {side}: {why}"] = channels, axes, "blocks", planes | sizes | {"side": side}, True
    for place, (why, (channels, axes, (rows, columns))) in enumerate(GANGS.items()):
        sizes = TURNED | {"rows": rows, "columns": columns, "split": place % 2}
        found[f"gangs: {why}"] = channels, axes, "blocks", sizes, True
    for place, (why, (channels, axes, (rows, columns))) in enumerate(KEPT.items()):
        sizes = {"pixels": 3, "rows": rows, "columns": columns, "split": place % 2}
        found[f"kept: {why}"] = channels, axes, "blocks", sizes, True
    axes = [(20, 3, 1, 1, 1, 1), (19, 3, 1, 1, 1, 1)]
    few = TURNED | {"rows": 1, "columns": 1, "exchanged": 1}
    found["gangs: few outputs in the place of inputs"] = (2, 140, 3, 1), axes, "blocks", few, False
    for why, (channels, *axes) in GATHERED.items():
        for how, sizes in {"passes": PASSES, "rounds": PASSES | {"outputs": 2, "inputs": 2}, "whole": {}}.items():
            found[f"gathered: {why}, {how}"] = channels, axes, "blocks" if sizes else None, sizes, False
    return found


TABLE = _table()
#: Rows of which channels last are another way of loading.
LAST = [why for why, (_, _, _, sizes, _) in TABLE.items() if sizes.get("pixels", 0) == 0]
RUNS = [(why, is_last, "bf16") for why in TABLE for is_last in (False, True) if not is_last or why in LAST]
RUNS += [
    (why, False, dtype) for why in TABLE for dtype in ("fp16", "fp32", "fp32 as bf16", "fp32 as tf32")
    if "strides, dilations, cropped" in why or why in ("side 4: planes", "gangs: dilated", "exchanged: same")
]  # fmt: skip


@pytest.mark.cover(64, keep=[
    "strides, dilations, cropped-False-fp32 as bf16", "gangs: rows of windows in several loads-False-bf16",
    "cut 12-False-bf16", "cut 15-False-bf16", "side 4: planes-False-bf16",
    "diagonals: row tiles of single columns-False-bf16", "kept: overlapping-False-bf16",
])  # fmt: skip
@pytest.mark.parametrize(("why", "is_last", "dtype"), RUNS)
def test_every_problem(why, is_last, dtype):
    channels, axes, algorithm, sizes, bias = TABLE[why]
    is_last = is_last or (sizes.get("pixels") == 0 and not why.startswith("exchanged"))
    dtype, _, precision = dtype.partition(" as ")
    for lnc in cores(why, is_last):
        more = {"algorithm": algorithm, "config": tuple(sizes.items()) or None, "adds": lnc == 2}
        check(channels, axes, is_last, dtype, lnc=lnc, bias_gradient=bias, precision=precision or None, **more)


@pytest.mark.parametrize(("groups", "down", "strips", "buffers"), [(6, 30, 0, 1), (17, 10, 1, 1), (9, 10, 1, 2)])
def test_diagonals_hold_as_many_units_as_sbuf_takes(groups, down, strips, buffers):
    channels, axes = (1, 18, 18, 18), [(60, 3, 1, 1, 1, 1)] * 2
    sizes = {"rows": 2, "columns": 30, "down": down, "across": 2, "beside": 1, "side": 1, "groups": groups}
    config = (*sizes.items(), ("strips", strips), ("split", 0))
    check(channels, axes, dtype="fp32", algorithm="diagonals", config=config)
    problem = ConvProblem(N=1, C=18, H=60, W=60, groups=18, R=3, S=3, padding=((1, 1), (1, 1)), dtype="fp32")
    geometry = requested(problem.toward("wgrad"))[2].geometry
    assert diagonals.build(geometry, config, False)[0].buffers == buffers


#: Whose input gradients, of other kernels, take long or have none.
SLOW_BACK = ("many taps", "window outside x")


@pytest.mark.cover(3)
@pytest.mark.parametrize("is_last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("name", [name for name in BLOCKS if name not in SLOW_BACK])
def test_inputs_are_exact(name, is_last):
    channels, *axes = BLOCKS[name]
    x, gy, shape = problem_of(channels, axes)
    _, _, dx, w = expected(x, gy, shape, axes, channels[3])
    layout, size = LAYOUTS[len(axes)][is_last], x.shape
    if is_last:
        gy, size = last(gy), last(x).shape
    found = INPUT[len(axes)](
        size, w.astype(ml_dtypes.bfloat16), gy, groups=channels[3], layout=layout, out_dtype="float32",
        **places_of(axes),
    )  # fmt: skip
    np.testing.assert_array_equal(np.moveaxis(found, -1, 1) if is_last else found, dx)


@pytest.mark.cover(4, keep=["several tiles, banks and passes-1"])
@pytest.mark.parametrize("chain", [1, 5])
@pytest.mark.parametrize("why", [
    "several tiles, banks and passes", "strides, dilations, cropped", "stem, transposed", "groups, transposed",
    "volumes",
])  # fmt: skip
def test_sums_of_chains(monkeypatch, why, chain):
    """Chains of matmuls over many positions, added in SBUF."""
    monkeypatch.setattr(blocks_schedule, "CHAIN", chain)
    channels, axes, algorithm, sizes, bias = TABLE[why]
    for is_last in (False, True) if not sizes else (False,):
        more = {"algorithm": algorithm, "config": tuple(sizes.items()) or None}
        check(channels, axes, is_last, bias_gradient=bias, **more)


ONE = [(6, 1, 1, 1, 0, 0), (8, 1, 1, 1, 0, 0)]
ONE_SIDE = [PLAIN, (11, 3, 1, 1, 3, 0)]
REFUSED = [
    ([(6, 3, 1, 1, 1, 1), ONE[1]], LINE, "bf16", "pixels=1"),
    ([(6, 1, 2, 1, 0, 0), ONE[1]], LINE, "bf16", "pixels=1"),
    ([(3, 1, 2, 1, 0, 2), (32, 1, 1, 1, 0, 0)], LINE, "bf16", "pixels=1"),
    ([(6, 1, 1, 1, 0, -1), ONE[1]], LINE, "bf16", "pixels=1"),
    (ONE, LINE, "fp32", "transposes 16 bits"),
    ([(1, 1, 1, 1, 0, 0), (131, 1, 1, 1, 0, 0)], LINE, "bf16", "1 x 131 pixels"),
    (ONE, LINE | {"columns": 2}, "bf16", "columns=2 pixels=1: a block of lines"),
    ([PLAIN, WIDE], {"pixels": 3}, "bf16", "config pixels=3, padding or lhs_dilation"),
    ([(6, 3, 1, 1, 0, 0), ONE[1]], {"pixels": 3, "rows": 3}, "bf16", "config pixels=3 rows=3 columns=1: must"),
    ([PLAIN, WIDE], {"side": 3}, "bf16", "config side=3 pixels=0: must be 1, 2 or 4, and 1 but for pixels=0"),
    ([PLAIN, WIDE], TURNED | {"side": 2}, "bf16", "config side=2 pixels=2: must be 1, 2 or 4, and 1 but for pixels=0"),
    ([PLAIN, (2, 3, 1, 1, 1, 1)], {"beside": 3}, "bf16", "config beside=3, K=4, stride=1: at most 2"),
    ([PLAIN, (11, 3, 2, 1, 1, 1)], {"exchanged": 1}, "bf16", r"stride=\(1, 1, 2\)"),
]  # fmt: skip


@pytest.mark.parametrize(("axes", "config", "dtype", "message", "channels", "more"), [
    *((*row, (1, 3, 4, 1), {}) for row in REFUSED),
    (ONE_SIDE, {"exchanged": 1}, "bf16", "feature_group_count=2", (1, 4, 8, 2), {"groups": 2}),
    (ONE_SIDE, {"exchanged": 1}, "bf16", "bias_gradient=True", (1, 8, 4, 1), {"bias_gradient": True}),
    ([PLAIN, WIDE], TURNED, "bf16", r"pixels=2: channels of x and gy are neighbours \(NHWC\)", (1, 3, 4, 1),
     {"layout": "NHWC"}),
])  # fmt: skip
def test_settings_that_are_refused(axes, config, dtype, message, channels, more):
    x, gy, shape = problem_of(channels, axes, dtype)
    x, gy = (last(x), last(gy)) if "layout" in more else (x, gy)
    given = places_of(axes) | {"algorithm": "blocks", "config": tuple(config.items())} | more
    with pytest.raises(UnsupportedError, match=message):
        nkiconv.conv2d_weight(x, shape, gy, **given)
