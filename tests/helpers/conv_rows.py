"""Problems of each algorithm of convolutions, with settings of it: what exact sums, epilogues and bits are asked of."""

from conv_calls import config_of

from nkiconv.problem import ConvProblem

GEMM, PIXELS, K_PACKING, BLOCKS = "implicit_gemm", "activation_stationary", "stacked", "weight_stationary"
SAME, ONE_ROW = ((1, 1), (1, 1)), ((0, 0), (1, 1))


def depthwise(C, **fields):
    """A problem of C channels with a filter each."""
    return ConvProblem(C=C, K=C, groups=C, **fields)


#: Depthwise problems of images that both Toeplitz algorithms are held against.
DEPTHWISE_IMAGES = {
    "same": depthwise(6, N=2, H=14, W=13, R=7, S=7, padding=((3, 3), (3, 3))),
    "stride": depthwise(150, N=3, H=9, W=8, R=3, S=2, stride=(2, 1)),
    "both strides": depthwise(5, N=2, H=20, W=23, R=4, S=5, stride=(3, 4), padding=((1, 3), (2, 0))),
    "dilation": depthwise(7, N=1, H=19, W=38, R=2, S=4, rhs_dilation=(3, 2), padding=((1, 2), (-1, 3))),
    "cropped": depthwise(5, N=2, H=9, W=9, R=3, S=3, padding=((-1, -2), (-2, 1))),
    "padded beyond the filter": depthwise(3, N=1, H=4, W=5, R=2, S=2, padding=((9, 8), (7, 6))),
    "one tap": depthwise(9, N=2, H=6, W=5, R=1, S=1),
    "two channels": depthwise(2, N=1, H=12, W=12, R=3, S=3, padding=((1, 1), (1, 1))),
}


def image(**fields):
    """A small image of 3 x 3 filters, with changes."""
    return ConvProblem(**{"N": 2, "C": 20, "K": 12, "H": 7, "W": 9, "R": 3, "S": 3, "padding": SAME} | fields)


def volume_of(**fields):
    """A small causal volume, with changes."""
    return image(**{"D": 4, "T": 3, "padding": ((2, 0), *SAME)} | fields)


M_TILES = ConvProblem(N=2, C=300, H=9, W=11, K=290, R=3, S=2, padding=((1, 1), (0, 1)))
LINE = ConvProblem(N=1, C=20, H=1, W=2100, K=150, S=3, stride=(1, 2), padding=ONE_ROW)
STRIDED = ConvProblem(N=3, C=140, H=28, W=28, K=40, R=1, S=1, stride=(2, 2))
#: Rows between those that are read are left out (`APART_BYTES`).
ROWS_APART = ConvProblem(N=2, C=5, H=9, W=56, K=6, R=1, S=3, stride=(3, 2), padding=ONE_ROW)
#: What implicit_gemm folds, by why it is here: channels left over beside whole 128s.
FOLDED = {
    "both": ConvProblem(N=2, C=192, H=9, W=11, K=160, R=3, S=3, padding=SAME),
    "few channels": ConvProblem(N=3, C=20, H=8, W=7, K=24, R=3, S=5, padding=((2, 0), (1, 3))),
    "stride": ConvProblem(N=1, C=40, H=13, W=15, K=33, R=3, S=2, stride=(2, 2), padding=((1, 2), (0, 1))),
    "stride and dilation": ConvProblem(
        N=1, C=140, H=14, W=15, K=130, R=4, S=3, stride=(2, 1), rhs_dilation=(2, 3), padding=((3, 2), (4, 1))
    ),
    "cropped": ConvProblem(N=2, C=64, H=11, W=10, K=64, R=3, S=3, padding=((-2, -1), (-3, 1))),
    "padding far outside": ConvProblem(N=1, C=6, H=3, W=4, K=5, R=3, S=3, padding=((6, 5), (7, 4))),
    "wide": ConvProblem(N=1, C=30, H=5, W=1100, K=20, R=2, S=4, padding=((1, 0), (2, 1))),
    "two rows": ConvProblem(N=1, C=64, H=4, W=9, K=40, R=3, S=2),
    "two K tiles": ConvProblem(N=2, C=65, H=9, W=11, K=40, R=3, S=3, padding=SAME),
    "two K tiles beside another": ConvProblem(
        N=1, C=211, H=9, W=23, K=150, R=2, S=5, stride=(1, 2), rhs_dilation=(1, 2), padding=((1, 0), (5, 3))
    ),
}
_GEMM = {
    "M tiles": (M_TILES, {}),
    "M tiles, all filters transposed on the array": (M_TILES, {"moved": 0}),
    "M tiles, filters transposed by DMA": (M_TILES, {"moved": 9, "shard": "channels"}),
    "M tiles, images shared": (M_TILES, {"shard": "images", "x_bytes": 600, "warmup": 0}),
    "M tiles, K tile by K tile": (M_TILES, {"fold": "none", "order": "chunks", "x_bytes": 1500}),
    "M tiles, channels last": (M_TILES.replace(layout="NHWC"), {"shard": "channels", "x_bytes": 1024}),
    "line": (LINE, {"shard": "channels", "x_bytes": 1024}),
    "line, one filter by DMA": (LINE, {"moved": 1}),
    "line, channels last": (LINE.replace(layout="NHWC"), {"shard": "images", "x_bytes": 600}),
    "strided": (STRIDED, {"shard": "images", "x_bytes": 600, "warmup": 0}),
    "rows apart": (ROWS_APART.replace(C=140, padding=((2, 1), (1, 1))), {}),
    "strided, some filters by DMA": (STRIDED, {"moved": 2, "shard": "images"}),
    "wide, channels last": (ConvProblem(N=2, C=20, H=5, W=1100, K=33, R=1, S=1, layout="NHWC"), {}),
    "groups, channels last": (
        ConvProblem(N=2, C=64, H=12, W=14, K=96, R=3, S=3, groups=4, padding=SAME, layout="NHWC"), {}),
    "depthwise, channels last": (
        depthwise(140, N=2, H=12, W=14, R=3, S=3, padding=SAME, layout="NHWC"), {"shard": "channels"}),
    "cropped, channels last": (
        ConvProblem(N=2, C=20, H=11, W=13, K=9, R=1, S=1, stride=(2, 3), padding=((-2, 4), (3, -3)), layout="NHWC"), {}
    ),
    **{f"folded, {why}": (one, {"fold": "both"}) for why, one in FOLDED.items()},
    "folded, groups": (
        ConvProblem(N=2, C=330, H=7, W=9, K=160, R=3, S=3, groups=2, padding=SAME), {"fold": "inputs", "x_bytes": 900}),
    "folded, groups in two K tiles": (
        ConvProblem(N=1, C=140, H=6, W=12, K=150, R=2, S=5, groups=2, padding=((1, 0), (2, 2))), {"fold": "inputs"}),
    "folded, inputs": (FOLDED["both"], {"fold": "inputs", "x_bytes": 900}),
    "folded, outputs": (FOLDED["stride and dilation"], {"fold": "outputs", "x_bytes": 900}),
}  # fmt: skip

_ROWS = ConvProblem(
    N=3, C=10, H=31, W=13, K=33, R=4, S=3, stride=(2, 1), padding=((3, 4), (1, 1)), rhs_dilation=(3, 1), layout="NHWC"
)
_PLAIN_ROWS = _ROWS.replace(stride=(1, 1), rhs_dilation=(1, 2), padding=((1, 2), (0, 2)), H=24)
_PIXELS_ONE_TAP = ConvProblem(N=2, C=30, H=12, W=70, K=20, R=1, S=1, layout="NHWC")
_NO_X = ConvProblem(N=1, C=5, H=3, W=40, K=6, R=3, S=2, padding=((24, 11), (1, 0)), layout="NHWC")
_LONG = ConvProblem(N=1, C=3, H=1, W=20_000, K=4, S=3, padding=ONE_ROW, layout="NHWC")
_MANY_TAPS = ConvProblem(N=1, C=3, H=4, W=5, K=70, R=31, S=31, padding=((15, 15), (15, 15)), layout="NHWC")
TALL = ConvProblem(N=1, C=20, H=70, W=13, K=33, R=3, S=3, padding=SAME, layout="NHWC")


def _gaps(taps, apart, padding, **more):
    """Zeros between pixels along both axes or one."""
    fields = {"N": 2, "C": 9, "H": 6, "W": 8, "K": 5, "lhs_dilation": apart, "padding": padding, "layout": "NHWC"}
    return ConvProblem(**fields | {"R": taps[0], "S": taps[1]} | more)


_PIXELS = {
    "many": (M_TILES.replace(layout="NHWC"), {"shard": "channels"}),
    "many, images shared": (M_TILES.replace(layout="NHWC"), {"shard": "images", "warmup": 0}),
    "several groups of filters": (_MANY_TAPS, {"shard": "images"}),
    "line": (LINE.replace(layout="NHWC"), {"side": 2}),
    "line, 160 pixels a partition": (_LONG, {"side": 160}),
    "strided": (STRIDED.replace(layout="NHWC"), {"side": 2, "shard": "images"}),
    "tall": (TALL, {"side": 1, "warmup": 3}),
    "tall, whole rows": (TALL, {"side": 13}),
    "rows folded, stride and dilation": (_ROWS, {"fold": 3}),
    "rows folded": (_PLAIN_ROWS, {"fold": 2, "side": 11}),
    "six rows folded": (_PLAIN_ROWS, {"fold": 6, "side": 1}),
    "columns shifted": (_PLAIN_ROWS, {"shifts": 2, "side": 11}),
    "rows folded, columns shifted": (_PLAIN_ROWS, {"fold": 2, "shifts": 2, "side": 1}),
    "rows folded, columns shifted, stride and dilation": (_ROWS, {"fold": 3, "shifts": 2}),
    "stem, columns shifted": (
        ConvProblem(N=2, C=3, H=16, W=22, K=5, R=7, S=7, stride=(2, 2), padding=((3, 3), (3, 3)), layout="NHWC"),
        {"fold": 4, "shifts": 4}),
    "few channels of many pixels, which an engine sorts": (
        ConvProblem(N=2, C=2, H=81, W=160, K=5, R=3, S=3, padding=SAME, layout="NHWC"),
        {"fold": 3, "shifts": 3, "side": 16}),
    "columns shifted beyond x": (ConvProblem(
            N=1, C=5, H=11, W=600, K=40, R=2, S=4, rhs_dilation=(2, 3), padding=((1, 0), (11, -2)), layout="NHWC"),
        {"shifts": 3, "shard": "channels"}),
    "rows folded, one tap": (_PIXELS_ONE_TAP, {"fold": 4, "side": 2}),
    # by_k of one output channel is a whole image
    "rows folded, one output channel": (_PLAIN_ROWS.replace(K=1, layout="NCHW"), {"fold": 2, "side": 11}),
    "rows folded, without room for rows of x": (_PLAIN_ROWS.replace(C=100), {"fold": 3, "side": 1}),
    "rows folded without room, columns shifted": (_ROWS.replace(C=40), {"fold": 3, "shifts": 3}),
    "rows folded of several K tiles": (_ROWS.replace(C=150, K=70), {"fold": 3}),
    "a rest": (_PLAIN_ROWS.replace(C=65, K=200), {"rest": 1, "shard": "images"}),
    "a rest beside K tiles, channels shared": (_PLAIN_ROWS.replace(C=300, K=9), {"rest": 44, "shard": "channels"}),
    "a rest, strided": (_ROWS.replace(C=170), {"rest": 42, "side": 1}),
    "a rest of folded rows": (_PLAIN_ROWS.replace(C=50), {"fold": 2, "rest": 7, "side": 1}),
    "a rest of folded rows, strided and dilated": (_ROWS.replace(C=27), {"fold": 3, "rest": 6}),
    "a rest of rows folded without room": (_PLAIN_ROWS.replace(C=100), {"fold": 3, "rest": 20, "side": 11}),
    "rows folded, no x in some": (_NO_X, {"fold": 4, "side": 1}),
    "gaps": (_gaps((4, 4), (2, 2), ((2, 2), (2, 2)), H=7, W=9, K=7), {"side": 18}),
    "gaps, no tap": (_gaps((1, 1), (2, 2), ((0, 1), (0, 1))), {"side": 2}),
    "gaps between rows": (_gaps((4, 3), (3, 1), ((2, 3), (1, 1))), {"side": 1}),
    "gaps between columns": (_gaps((3, 4), (1, 4), ((1, 1), (3, 3))), {"side": 4}),
    "gaps and a stride": (_gaps((4, 4), (4, 2), ((2, 3), (2, 1)), N=1, H=9, stride=(2, 1)), {"side": 1}),
    "gaps and an odd row": (_gaps((3, 3), (2, 2), SAME), {"side": 1}),
}  # fmt: skip

_WINDOW = ConvProblem(N=5, C=3, H=40, W=24, K=140, R=8, S=8, stride=(8, 8), layout="NHWC")
#: Windows of NHWC that do not overlap.
_WINDOWS = {
    "images shared": (_WINDOW, {"shard": "images"}),
    "channels shared": (_WINDOW, {"shard": "channels", "warmup": 0}),
    "rows of two counts": (_WINDOW.replace(N=1, R=7, S=20, stride=(9, 25), H=70, W=100), {}),
    "cropped": (_WINDOW.replace(N=2, C=5, K=3, padding=((-3, -5), (-8, 0))), {}),
    "planes of a volume": (
        ConvProblem(N=2, C=3, D=3, H=16, W=32, K=70, T=1, R=8, S=8, stride=(1, 8, 9), layout="NDHWC"),
        {"shard": "images"},
    ),
    "several banks of a row": (_WINDOW.replace(N=1, C=2, H=8, W=8 * 150, K=530), {}),
}

#: Depthwise, by Toeplitz matrices of all taps; the last seven have zeros between pixels.
IMAGES = {
    **DEPTHWISE_IMAGES,
    "many rows": depthwise(3, N=1, H=140, W=6, R=9, S=3, padding=((4, 4), (1, 1))),
    "many columns": depthwise(3, N=1, H=6, W=600, R=3, S=9, padding=((1, 1), (4, 4))),
    "taller than a block": depthwise(4, N=2, H=40, W=20, R=31, S=31, padding=((15, 15), (15, 15))),
    "many channels": depthwise(1100, N=1, H=6, W=5, R=3, S=3, padding=SAME),
    "several rounds": depthwise(300, N=5, H=20, W=9, R=3, S=5, padding=((1, 1), (2, 2))),
    "gaps": depthwise(6, N=3, H=7, W=6, R=5, S=5, lhs_dilation=(2, 2), padding=((2, 3), (2, 3))),
    "gaps between rows": depthwise(5, N=2, H=9, W=14, R=3, S=4, lhs_dilation=(3, 1), padding=((0, 2), (1, 2))),
    "gaps, cropped": depthwise(5, N=2, H=9, W=8, R=3, S=3, lhs_dilation=(1, 2), padding=((1, 1), (-3, -1))),
    "gaps, stride": depthwise(150, N=2, H=8, W=7, R=3, S=3, lhs_dilation=(2, 3), stride=(3, 2), padding=SAME),
    "begins between columns": depthwise(6, N=3, H=9, W=9, R=3, S=1, lhs_dilation=(1, 2), padding=((1, 1), (-1, 0))),
    "begins before two": depthwise(9, N=3, H=6, W=3, R=2, S=2, lhs_dilation=(1, 3), padding=((-2, -1), (-1, 1))),
    "far outside": depthwise(3, N=1, H=2, W=2, R=2, S=2, lhs_dilation=(2, 2), padding=((9, 8), (7, 6))),
}
#: Images that NCHW, whose windows do not overlap, does not take: outputs that see zeros alone at the begin of a row,
#: taps that no window is as wide as.
NEVER_DISJOINT = (
    "padded beyond the filter", "taller than a block", "begins between columns", "begins before two", "far outside",
)  # fmt: skip
_SEVEN = {"R": 7, "S": 7, "padding": ((3, 3), (3, 3))}
_CUT = depthwise(91, N=13, H=12, W=9, R=5, S=3, padding=((2, 2), (1, 1)), layout="NHWC")
_DEPTHWISE = {
    **{f"{why}, channels last": (one.replace(layout="NHWC"), {}) for why, one in IMAGES.items()},
    **{why: (one, {}) for why, one in IMAGES.items() if why not in (*NEVER_DISJOINT, "many columns")},
    "rows apart": (ROWS_APART.replace(C=6, groups=6), {}),
    "windows of many columns": (IMAGES["many columns"], {"columns": 30, "rows": 1}),
    "part of a window": (depthwise(5, N=3, H=6, W=22, **_SEVEN), {"columns": 7, "rows": 6}),
    "odd windows": (depthwise(5, N=3, H=6, W=21, **_SEVEN), {"columns": 7, "rows": 6}),
    "three banks": (depthwise(4, N=2, H=16, W=90, R=3, S=3, padding=SAME), {"columns": 6, "rows": 14}),
    "strides and bands": (depthwise(9, N=3, H=29, W=41, R=5, S=5, stride=(2, 3), padding=((2, 2), (4, 2))),
        {"columns": 3, "rows": 4, "below": 2}),
    "bands": (_CUT, {"rows": 7, "columns": 4, "below": 1, "images": 3, "channels": 40}),
    "matrices in rotation": (_CUT.replace(layout="NCHW", C=262, K=262, groups=262, N=2),
        {"rows": 4, "columns": 9, "below": 3, "images": 2, "channels": 30}),
    "odd planes": (_CUT, {"rows": 3, "columns": 3, "below": 2, "images": 13, "channels": 9}),
    "windows as wide as cut": (
        depthwise(5, N=2, H=20, W=9, R=3, S=3, padding=SAME, layout="NHWC"), {"columns": 8, "rows": 16}),
    # of 9 channels 14 images go on the partitions together, of 10 twelve, which are fewer partitions
    "buffers of other sizes": (depthwise(38, N=16, H=6, W=7, R=3, S=3, padding=SAME),
        {"rows": 3, "columns": 7, "below": 2, "images": 16, "channels": 10}),
    # seven transposes of fp32 fill a bank
    "odd channels": (
        depthwise(73, N=1, H=26, W=9, R=3, S=3, padding=SAME), {"rows": 2, "columns": 9, "channels": 73, "below": 13}),
    # three items: each core has one, and half of the third's channels
    "an item of both cores": (
        depthwise(131, N=3, H=9, W=8, R=5, S=3, stride=(2, 1), padding=((2, 1), (1, 1)), layout="NHWC"),
        {"rows": 4, "columns": 8, "below": 3, "images": 1, "channels": 131}),
    "packed blocks": (depthwise(6, N=3, H=12, W=29, R=3, S=3, padding=SAME, layout="NHWC"),
        {"rows": 4, "columns": 5, "beside": 4, "below": 3, "images": 2}),
}  # fmt: skip

_K_STRIDED = ConvProblem(
    N=3, C=3, H=17, W=14, K=10, R=5, S=4, stride=(2, 3), padding=((2, 1), (3, 2)), rhs_dilation=(1, 2)
)
_K_DILATED = ConvProblem(N=1, C=5, H=13, W=9, K=7, R=3, S=3, rhs_dilation=(3, 1), padding=((4, 3), (-1, 2)))
_K_WIDE = ConvProblem(N=1, C=2, H=9, W=1100, K=3, R=3, S=2, padding=((1, 1), (0, 1)))
_K_LONG = ConvProblem(N=1, C=3, H=1030, W=2, K=4, R=3, S=2, padding=((1, 0), (0, 0)))
PLAIN = ConvProblem(N=5, C=16, H=15, W=6, K=64, R=3, S=3, padding=((1, 2), (1, 1)))
_K_MANY = ConvProblem(N=5, C=3, H=9, W=7, K=6, R=3, S=3, stride=(2, 1), padding=SAME)
_K_TALL = ConvProblem(N=1, C=2, H=24, W=20, K=4, R=20, S=18, padding=((10, 9), (9, 9)))


def k_packed(B, D, U, V=1, G=None, **more):
    """Rows B, shifts D, outputs U of a block, V rows packed along the columns, G rows from one block to the next."""
    return {"rows": B, "shifts": D, "outputs": U, "beside": V, "apart": U if G is None else G} | more


_K_PACKING = {
    "rows apart": (ROWS_APART, {}),
    "strided, one row": (_K_STRIDED, k_packed(1, 1, 1)),
    "strided, all shifts": (_K_STRIDED, k_packed(8, 4, 8, 1, 8)),
    "strided, rows beside": (_K_STRIDED, k_packed(11, 3, 2, 2, 8)),
    "strided, overlapping": (_K_STRIDED, k_packed(11, 2, 4, 1, 8)),
    "strided, three beside": (_K_STRIDED, k_packed(6, 1, 2, 3, 2)),
    "dilated": (_K_DILATED, k_packed(7, 3, 14, 1, 7)),
    "dilated, overlapping": (_K_DILATED, k_packed(8, 2, 2, 1, 2)),
    "dilated, four beside": (_K_DILATED, k_packed(6, 1, 3, 4, 2)),
    "long": (_K_LONG, k_packed(3, 1, 1)),
    "wide": (_K_WIDE, k_packed(4, 1, 8, 1, 4)),
    "wide, two beside": (_K_WIDE, k_packed(6, 2, 2, 2, 4)),
    "plain": (PLAIN, k_packed(2, 1, 2, 1, 1)),
    "plain, four beside": (PLAIN, k_packed(4, 2, 2, 4, 4)),
    "plain, uneven": (PLAIN, k_packed(8, 1, 2, 3, 6)),
    "a rest, window of rows": (PLAIN.replace(C=17), k_packed(4, 2, 2, 2, 4, rest=1)),
    "a rest, filters straight, dilated": (
        PLAIN.replace(C=70, K=72, rhs_dilation=(2, 1)), k_packed(2, 1, 1, 2, 2, filters="straight", rest=6)),
    "a rest, in each place": (PLAIN.replace(C=65, N=4), k_packed(2, 1, 2, 1, 2, blocks=1, rest=1)),
    "a rest, strided": (_K_STRIDED, k_packed(16, 4, 8, 1, 16, rest=1)),
    "a rest, wide": (_K_WIDE, k_packed(8, 2, 8, 1, 8, rest=1)),
    "a rest, shifted": (PLAIN.replace(C=100), k_packed(1, 2, 1, rest=36)),
    "many images, one block at once": (_K_MANY, {"rows": 8, "shifts": 3, "outputs": 4, "blocks": 1}),
    "tall": (_K_TALL, {"rows": 4, "shifts": 2, "outputs": 2, "beside": 2}),
    "tall, filters apart": (_K_TALL.replace(K=32), k_packed(2, 1, 2, filters="apart")),
    "dilated, filters apart": (PLAIN.replace(K=32, rhs_dilation=(2, 1)), k_packed(2, 1, 2, filters="apart")),
    "filters straight": (PLAIN, k_packed(2, 1, 2, filters="straight")),
    "tall, filters straight": (_K_TALL.replace(K=32), k_packed(2, 1, 2, filters="straight")),
    "patches of few pixels, images together": (
        ConvProblem(N=6, C=3, H=24, W=16, K=300, R=8, S=8, stride=(8, 8)), k_packed(8, 1, 1, filters="straight")),
    **{f"depthwise, {why}": (one, {}) for why, one in DEPTHWISE_IMAGES.items()},
    "depthwise, all rows": (depthwise(3, N=1, H=128, W=6, R=9, S=3, padding=((4, 4), (1, 1))), {}),
    "depthwise, several banks": (depthwise(9, N=20, H=40, W=50, R=5, S=5, padding=((2, 2), (2, 2))), {}),
    "depthwise, wide": (depthwise(3, N=1, H=9, W=523, R=3, S=4, padding=((1, 1), (2, 1))), {}),
    "depthwise, no column sees all": (
        depthwise(5, N=2, H=9, W=2, R=3, S=2, padding=((1, 1), (3, 3)), rhs_dilation=(1, 4)), {}),
    "depthwise, biases of several tiles": (depthwise(270, N=1, H=65, W=3, R=2, S=2), {}),
    "depthwise, several rounds": (depthwise(300, N=1, H=62, W=9, R=3, S=9, padding=((1, 1), (4, 4))), {}),
    "depthwise, channels last": (DEPTHWISE_IMAGES["both strides"].replace(layout="NHWC"), {}),
}  # fmt: skip

RGB = ConvProblem(N=1, C=130, H=23, W=19, K=3, R=3, S=3, padding=SAME)
_M_STRIDED = ConvProblem(
    N=3, C=5, H=21, W=17, K=4, R=4, S=5, stride=(2, 3), padding=((2, 1), (3, 2)), rhs_dilation=(1, 2)
)
#: Rows 0, 3, 6 and 4, 7, 10 of a window: lines of a row of y are not evenly spaced.
_UNEVEN = ConvProblem(N=1, C=7, H=40, W=9, K=2, R=3, S=2, stride=(4, 1), rhs_dilation=(3, 1), padding=((3, 2), (0, 1)))
TRANSPOSED = ConvProblem(N=2, C=6, H=7, W=9, K=3, R=4, S=4, lhs_dilation=(2, 2), padding=((2, 2), (2, 2)))
_BOTH = ConvProblem(
    N=1, C=3, H=9, W=8, K=2, R=3, S=6, rhs_dilation=(2, 3), lhs_dilation=(3, 3), padding=((4, 3), (5, 7))
)
_M_WIDE = ConvProblem(N=1, C=2, H=9, W=1100, K=3, R=3, S=4, padding=((1, 1), (2, 1)))


def m_packed(U, T, **more):
    """U rows of y of a block, T columns of taps packed along the columns."""
    return {"outputs": U, "taps": T} | more


_M_PACKING = {
    "rows apart": (ROWS_APART.replace(stride=(3, 1)), m_packed(2, 3)),
    "one tap at once": (RGB, m_packed(1, 1)),
    "two taps": (RGB, m_packed(20, 2)),
    "all partitions": (RGB, m_packed(23, 1)),
    "one block a bank": (RGB, m_packed(5, 3)),
    "many banks": (RGB.replace(W=90), m_packed(1, 3)),
    "rows of x that fill X_BYTES": (RGB.replace(H=9, W=920), m_packed(2, 3)),
    "many K tiles": (RGB.replace(C=1100, H=9, W=7, R=5, S=5), m_packed(6, 3)),
    "many K tiles, loads of some": (RGB.replace(C=460, H=9, W=7, K=60), m_packed(2, 1)),
    "many K tiles, image by image": (RGB.replace(N=2, C=600, H=54, W=55, K=1), m_packed(27, 3)),
    "strided": (_M_STRIDED, m_packed(3, 4)),
    "strided, image by image": (_M_STRIDED.replace(H=120), m_packed(2, 3, warmup=0)),
    "unlike images on two cores": (ConvProblem(N=3, C=130, H=1, W=1, K=5, R=1, S=1), m_packed(1, 1)),
    "uneven lines": (_UNEVEN, m_packed(2, 2)),
    "transposed": (TRANSPOSED, m_packed(6, 4)),
    "transposed, all taps on one side": (TRANSPOSED, m_packed(2, 2)),
    "both dilations": (_BOTH, m_packed(3, 4)),
    "both dilations, single taps": (_BOTH, m_packed(6, 1)),
    "wide": (_M_WIDE, m_packed(4, 4)),
    "wide, groups of taps": (_M_WIDE, m_packed(10, 3)),
    "lanes": (_M_STRIDED.replace(C=64), m_packed(3, 4, lanes=2)),
    "four lanes, more than a core has": (TRANSPOSED.replace(N=5), m_packed(2, 2, lanes=4)),
    "lanes of wide rows": (_M_WIDE.replace(N=3), m_packed(4, 4, lanes=2)),
    "channels last": (RGB.replace(N=2, layout="NHWC"), m_packed(2, 3)),
    "strided lanes, channels last": (_M_STRIDED.replace(C=64, layout="NHWC"), m_packed(3, 4, lanes=2)),
    "both dilations, channels last": (_BOTH.replace(layout="NHWC"), m_packed(3, 4)),
}


def _of_groups(groups, **fields):
    return ConvProblem(**{"N": 1, "R": 3, "S": 3, "padding": SAME} | fields, groups=groups)


def tiles(rows, height, width):
    """Row tiles, and blocks of outputs on them."""
    return {"rows": rows, "height": height, "width": width}


GROUPS = {
    "eight by eight": _of_groups(32, N=3, C=256, H=14, W=14, K=256),
    "depthwise": depthwise(96, N=2, H=9, W=7, R=3, S=3, padding=SAME),
    "depthwise, large filter": depthwise(33, N=1, H=12, W=11, R=7, S=5, padding=((3, 3), (2, 2))),
    "rows of taps in parts": depthwise(64, N=1, H=3, W=40, R=2, S=11, padding=((1, 0), (5, 5))),
    "multiplier 2": _of_groups(40, N=2, C=40, H=9, W=7, K=80),
    "multiplier 3, stride": ConvProblem(N=2, C=150, H=9, W=11, K=450, R=3, S=2, groups=150, stride=(2, 3)),
    "tiles with gaps": _of_groups(7, N=3, C=35, H=11, W=9, K=21, S=2, stride=(2, 1), padding=((0, 2), (1, 0))),
    "more outputs than inputs": _of_groups(6, C=12, H=6, W=7, K=84, R=2),
    "more inputs than outputs": _of_groups(5, C=180, H=6, W=7, K=15, R=2),
    "dilation": _of_groups(
        4, C=12, H=11, W=13, K=24, R=2, stride=(1, 2), rhs_dilation=(3, 2), padding=((2, 1), (-1, 3))
    ),
    "stride beyond the filter": ConvProblem(N=2, C=8, H=20, W=23, K=8, R=2, S=1, groups=4, stride=(3, 4)),
    "cropped": _of_groups(5, N=2, C=10, H=9, W=9, K=20, padding=((-1, -2), (-2, 1))),
    "padded beyond the filter": _of_groups(3, C=6, H=4, W=5, K=6, R=2, S=2, padding=((9, 8), (7, 6))),
    "one row": _of_groups(4, N=2, C=16, H=1, W=33, K=16, R=1, padding=ONE_ROW),
    "bands of rows": _of_groups(4, C=16, H=90, W=120, K=16),
    "several banks of a row": _of_groups(2, C=4, H=3, W=800, K=4),
    "long rows, of which few fit": _of_groups(2, C=4, H=12, W=4000, K=4, R=2, S=2),
    "two images at once, one left": depthwise(48, N=5, H=9, W=8, R=3, S=3, padding=SAME),
    "several waves, the last of two images": depthwise(224, N=4, H=6, W=5, R=3, S=3, padding=SAME),
    "parts of an image at once": depthwise(32, N=1, H=23, W=9, R=3, S=3, padding=((2, 0), (1, 1))),
    "parts of two images at once": _of_groups(
        20, N=2, C=20, H=50, W=130, K=40, R=5, stride=(2, 1), padding=((2, 2), (1, 1))
    ),
    "more tiles than rows": _of_groups(4, C=16, H=3, W=9, K=16, padding=ONE_ROW),
    "groups of half an array": _of_groups(3, C=192, H=7, W=6, K=192),
    "a group a row tile": _of_groups(6, N=2, C=144, H=7, W=6, K=120),
    "a group a row tile, many taps": _of_groups(3, C=108, H=1, W=50, K=135, R=1, S=45, padding=ONE_ROW),
    "an output that sees no row": depthwise(2, N=1, H=1, W=1, R=1, S=1, padding=((0, 1), (1, 0))),
}
#: Groups whose results are transposed: a bank of pixels, gaps, odd rows, row tiles of two pages, several images.
NHWC_GROUPS = [
    ("eight by eight", (32, 2, 2)), ("bands of rows", (32, 2, 2)), ("tiles with gaps", (64, 2, 1)),
    ("multiplier 3, stride", (32, 4, 1)), ("dilation", (32, 1, 2)), ("several banks of a row", (32, 2, 1)),
    ("two images at once, one left", (32, 2, 2)), ("parts of two images at once", (32, 1, 4)),
    ("a group a row tile", (32, 2, 2)),
]  # fmt: skip
_GROUPS = {
    **{why: (one, {}) for why, one in GROUPS.items()},
    "rows apart": (ROWS_APART.replace(C=12, K=18, groups=6), {}),
    "an output that sees no row, channels last": (GROUPS["an output that sees no row"].replace(layout="NHWC"), {}),
    **{f"{why}, channels last": (GROUPS[why].replace(layout="NHWC"), tiles(*sizes)) for why, sizes in NHWC_GROUPS},
    "blocks of four": (GROUPS["multiplier 2"], tiles(32, 2, 2)),
    "blocks of four rows": (GROUPS["two images at once, one left"], tiles(32, 4, 1)),
    "blocks of four columns": (GROUPS["parts of an image at once"], tiles(64, 1, 4)),
    "64 rows": (GROUPS["rows of taps in parts"], tiles(64, 2, 1)),
    "64 rows, gaps": (GROUPS["tiles with gaps"], tiles(64, 2, 1)),
    "blocks of two columns": (GROUPS["dilation"], tiles(32, 1, 2)),
    "a group a row tile, blocks of four": (GROUPS["a group a row tile"], tiles(32, 2, 2)),
}


def _table(algorithm, kind, rows):
    return {f"{kind}: {why}": (one, config_of(algorithm, **settings)) for why, (one, settings) in rows.items()}


#: Why it is here: a problem, and a config of an algorithm.
EXACT = {
    **_table(GEMM, "implicit_gemm", _GEMM), **_table(PIXELS, "pixels", _PIXELS), **_table(PIXELS, "windows", _WINDOWS),
    **_table(PIXELS, "Toeplitz blocks", _DEPTHWISE), **_table(K_PACKING, "K packing", _K_PACKING),
    **_table(BLOCKS, "M packing", _M_PACKING), **_table(BLOCKS, "groups", _GROUPS),
}  # fmt: skip
