"""What each rule of arguments says, once; `test_rules_applied` holds functions, kernels and problems to them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nkiconv import rules
from nkiconv.axis import Axis

BF16, E4M3FN = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
LISTS = "write a tuple, NKI kernels cannot take lists"
ROW = Axis(7, 3, 1, 0, 0, 1, 1)

# what a rule says of arguments, and the text
SAID = [
    (rules.number("N", 0, " (it counts images)"), "N=0: must be an int of at least 1 (it counts images); pass one"),
    (rules.number("K", "4"), "K='4': must be an int of at least 1; pass one"),
    (rules.number("R", np.bool_(1)), "R=np.True_: must be an int of at least 1; pass one"),
    (rules.number("C", 2**31), "C=2147483648: must be at most 2,147,483,647 (32-bit ints); use less"),
    (rules.number("planes", -1, least=0), "planes=-1: must be an int of at least 0; pass one"),
    (rules.numbers("stride", (0, 1)), "stride=(0, 1): must be at least 1 on every axis; pass such"),
    (rules.places("stride", 1.0, 1), "stride=1.0: must be an int of at least 1; pass one"),
    (
        rules.places("stride", (1, 0), 2),
        "stride=(1, 0): must be an int of at least 1, or (height, width) of such ints; pass one of these",
    ),
    (
        rules.places("stride", [1, 2], 2, alone=False),
        f"stride=[1, 2]: must be a tuple (height, width) of ints of at least 1; {LISTS}",
    ),
    (
        rules.places("stride", 2, 3, alone=False),
        "stride=2: must be a tuple (depth, height, width) of ints of at least 1; write it as (1, 1, 1)",
    ),
    (rules.padding("top", 1), "padding='top': must be an int, or (left, right) of ints; use one of these"),
    (
        rules.padding([1, 2], 1, names=rules.PADDINGS),
        f"padding=[1, 2]: must be an int, (left, right) of ints, or one of same, valid, causal; {LISTS}",
    ),
    (
        rules.padding((1, 2), 2, alone=False),
        "padding=(1, 2): must be ((top, bottom), (left, right)) of ints; write it as ((0, 0), (0, 0))",
    ),
    (
        rules.padding(True, 2, each=True),
        "padding=True: must be an int, (height, width) of ints, or ((top, bottom), (left, right)) of ints; use one of "
        "these",
    ),
    (rules.padding(2**31, 2), "padding=2147483648: must be at most 2,147,483,647 (32-bit ints); pad or crop less"),
    (
        rules.same_padding("same", (1, 2), 2),
        "padding='same': is not defined with lhs_dilation=(1, 2); give ((top, bottom), (left, right))",
    ),
    (
        rules.output_padding((0, 2), (1, 2), 1, 2),
        "output_padding=(0, 2): must be below stride=(1, 2) or dilation=1 on each axis, as in torch; use less",
    ),
    (rules.divides("groups", 4, C=6, K=4), "groups=4: must divide C=6 and K=4; use 1, 2"),
    (rules.divides("groups", 5, C=128, K=128), "groups=5: must divide C=128 and K=128; use 1, 2, 4, ..."),
    (
        rules.filter_channels((4, 3, 5), 3, 6, 1),
        "w.shape=(4, 3, 5): has 3 input channels per group, x has C=6 in groups=1; pass [K, C / groups, ...], or other "
        "groups",
    ),
    (
        rules.filter_channels((3, 4, 5), 3, 6, 2, transposed=True),
        "w.shape=(3, 4, 5): has 3 input channels, x has C=6; pass [C, K / groups, ...], as torch stores filters of "
        "transposed convolutions",
    ),
    (rules.rank("x", (2, 3), "N, C, W"), "x.shape=(2, 3): must have 3 axes, [N, C, W]; reshape it"),
    (rules.shape("bias", (3,), (4,), "[K]"), "bias.shape=(3,): must be [K] = (4,); pass one of that shape"),
    (rules.shape("gy", (3,), (4,), "y's"), "gy.shape=(3,): must be y's, (4,); pass one of that shape"),
    (rules.sizes("size", (4, 0), 2), "size=(4, 0): must be 2 ints of at least 1; pass such a shape"),
    (
        rules.accumulated("into", (3,), "float16", (4,)),
        "into: must be float32 of the filter's shape (4,), is float16 of (3,); pass such an array",
    ),
    (rules.same("w", "dtype", "float16", "x", "float32"), "w.dtype=float16: must be x's, float32; cast one of them"),
    (rules.same("w", "device", "meta", "input", "cpu"), "w.device=meta: must be input's, cpu; move one of them"),
    (rules.array_dtype("x", "int32"), "x.dtype=int32: accepted are bfloat16, float16, float32; cast x"),
    (
        rules.array_dtype("x", np.dtype(">f4")),
        "x.dtype=>f4: accepted are bfloat16, float16, float32, in native byte order; cast x",
    ),
    (
        rules.array_dtype("x", E4M3FN.__name__, rules.CONV2D_DTYPES),
        "x.dtype=float8_e4m3fn: accepted are bfloat16, float16, float32, float8_e4m3, float8_e5m2; NKI's float8_e4m3 "
        f"is another format: {rules.E4M3FN_REMEDY}",
    ),
    (
        rules.dtypes_together("float32", "torch.float16", ("input", "weight")),
        "weight.dtype=torch.float16: must be float32 exactly when input's is (it is float32; the Tensor Engine does "
        "not mix float32 with others); cast weight",
    ),
    (
        rules.dtypes_together("bfloat16", "float8_e5m2"),
        "w.dtype=float8_e5m2: must be float8_e4m3 or float8_e5m2 exactly when x's is (it is bfloat16; the Tensor "
        "Engine doubles its rate only where both are fp8); cast w",
    ),
    (rules.precision_fits("tf32", "bf16"), "precision='tf32': x and w are bf16, whose products are exact; drop it"),
    (
        rules.precision_fits("winograd", "fp32"),
        "precision='winograd': x and w are fp32, must be bf16 or fp16; cast them",
    ),
    (rules.residual_position(3), "residual_position=3: accepted are pre_activation, post_activation; use one of them"),
    (
        rules.activation("swish"),
        "activation='swish': accepted are None, relu, silu, gelu, gelu_tanh, tanh, sigmoid; use one of them, or apply "
        "it to the result",
    ),
    (rules.precision("fp16"), "precision='fp16': accepted are None, bf16, tf32, fp16x3, winograd; use one of them"),
    (rules.layout("order", "CHW", rules.LAYOUTS), "order='CHW': accepted are NCHW, NHWC; transpose to one of these"),
    (rules.accepted("count", True, (1,), "split"), "count=True: accepted are 1; split"),
    (rules.flag("packed", 1), "packed=1: must be True or False; pass one of these"),
    (rules.beta(float("nan")), "beta=nan: must be a finite int or float; scale the residual otherwise"),
    (rules.lnc(True), "lnc=True: must be 1 or 2; use lnc=2"),
    (
        rules.algorithm("toeplitz_rows", ("stacked", "narrow")),
        "algorithm='toeplitz_rows': was removed, stacked takes its problems; accepted are None, stacked, narrow; use "
        "one of them",
    ),
    (
        rules.config_has_owner(None, (("warmup", 2),)),
        "config=(('warmup', 2),): settings belong to an algorithm; name it with algorithm=, as Plan does",
    ),
    (
        rules.permutation("in_perm", (0, 1, 1), 3),
        "in_perm=(0, 1, 1): must be None or a tuple with each of 0, 1, 2 once; pass such",
    ),
    (
        rules.output(Axis(4, 8, 1, 0, 0, 1, 1), "QWS"),
        "Q=-3: output width must be at least 1 (W=4 + pad 0+0, window 8 = dilation 1*(S-1)+1); pad the input or "
        "shorten the filter",
    ),
    (
        rules.output(Axis(7, 3, 1, -13, 0, 1, 2), "PHR"),
        "P=-2: output height must be at least 1 (H=7 spread to 13 by lhs_dilation 2 + pad -13+0, window 3 = dilation "
        "1*(R-1)+1); crop less",
    ),
    (
        rules.state(Axis(7, 3, 2, 2, 0, 1, 1))[0],
        "stride=2, lhs_dilation=1: a state needs 1 and 1; pad by zeros instead",
    ),
    (
        rules.state(ROW)[0],
        "padding left=0: a state stands in for the left padding, which must be (S - 1) * dilation = 2; pass (left, "
        "right) = (2, right)",
    ),
    (
        rules.state(Axis(7, 1, 1, 0, 0, 1, 1))[0],
        "S=1: one tap needs no state; leave out initial_state and return_final_state",
    ),
    (rules.one_row(stride=(2, 1)), "stride=(2, 1): H is 1, so only 1 is accepted on H; use (1, w)"),
    (
        rules.frames((1, 3, 2, 5, 6), (1, 4, 9, 5, 6), 2),
        "initial_frames.shape=(1, 3, 2, 5, 6): must be x's but for the planes, [1, 4, F, 5, 6]; pass such frames",
    ),
    (
        rules.frame_count("all"),
        "return_final_frames='all': must be True, False or an int of at least 0; pass one of these",
    ),
    (
        rules.frame_count(4, 3),
        "return_final_frames=4: initial_frames and x have 3 planes; ask for as many at most",
    ),
    (
        rules.leaves_output("QWS", 3, 2, (9, 9), 0, 1, 2),
        "Q=-12: padding 9+9 takes off all 6 outputs ((W=3 - 1) * stride 2 + dilation 1 * (S=2 - 1) + 1 + "
        "output_padding 0); use less padding",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("said", "text"), SAID, ids=[f"{i}-{row[1][:24]}" for i, row in enumerate(SAID)])
def test_a_rule_says_what_is_wrong(said, text):
    assert said == text


def test_what_rules_accept():
    assert {rules.places("s", one, 2) for one in (1, (1, 2))} == {""}
    assert {rules.padding(one, 2, each=True, names=("same",)) for one in (-1, (1, 2), ((0, -1), (2, 3)), "same")} == {
        ""
    }
    assert {rules.padding(one, 1) for one in (0, (1, -2))} == {""}
    assert (
        rules.permutation("p", (2, 0, 1), 3) == rules.permutation("p", None, 3) == rules.lnc(2) == rules.beta(-2) == ""
    )
    assert {rules.array_dtype("x", f"torch.{name}") for name in ("bfloat16", "float16", "float32")} == {""}
    assert rules.dtypes_together("float16", "bfloat16") == rules.dtypes_together("float8_e4m3", "float8_e5m2") == ""
    assert rules.output(ROW, "QWS") == rules.divides("groups", 3, C=6, K=0) == ""
