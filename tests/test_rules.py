"""What rules say of numbers that they compute; `test_rules_applied` holds functions, kernels and problems to all."""

import numpy as np
import pytest

from nkiconv import rules
from nkiconv.axis import Axis

LISTS = "write a tuple, NKI kernels cannot take lists"
ROW, CROPPED, SHORT = Axis(7, 3, 1, 0, 0, 1, 1), Axis(7, 3, 1, -13, 0, 1, 2), Axis(4, 8, 1, 0, 0, 1, 1)
STATES = [rules.state(axis)[0] for axis in (Axis(7, 3, 2, 2, 0, 1, 1), ROW, Axis(7, 1, 1, 0, 0, 1, 1))]
TENSORS, NAMES = ("input", "weight"), ("img_ref", "filter_ref", "feature_group_count")

# what a rule says of arguments, and the text or a part of it
SAID = [
    (rules.number("N", 0, " (it counts images)"), "N=0: must be an int of at least 1 (it counts images); pass one"),
    (rules.number("C", 2**31), "C=2147483648: must be at most 2,147,483,647 (32-bit ints); use less"),
    (rules.places("stride", (1, 0), 2), "must be an int of at least 1, or (height, width) of such ints; pass one of"),
    (rules.places("s", [1, 2], 2, alone=False), f"a tuple (height, width) of ints of at least 1; {LISTS}"),
    (rules.padding((1, 2), 2, alone=False), "must be ((top, bottom), (left, right)) of ints; write it as ((0, 0), (0,"),
    (rules.same_padding("same", (1, 2), 2), "padding='same': is not defined with lhs_dilation=(1, 2); give ((top, bot"),
    (rules.output_padding((0, 2), (1, 2), 1, 2), "must be below stride=(1, 2) or dilation=1 on each axis, as in torch"),
    (rules.divides("groups", 4, C=6, K=4), "groups=4: must divide C=6 and K=4; use 1, 2"),
    (rules.divides("groups", 5, C=128, K=128), "groups=5: must divide C=128 and K=128; use 1, 2, 4, ..."),
    (rules.filter_channels((4, 3, 5), 3, 6, 1, names=NAMES), "has 3 input channels per group, img_ref has C=6 in feat"),
    (rules.filter_channels((3, 4, 5), 3, 6, transposed=True), "has 3 input channels, x has C=6; pass [C, K / groups, "),
    (rules.shape("bias", (3,), (4,), "[K]"), "bias.shape=(3,): must be [K] = (4,); pass one of that shape"),
    (rules.same("w", "dtype", "float16", "x", "float32"), "w.dtype=float16: must be x's, float32; cast one of them"),
    (rules.array_dtype("x", np.dtype(">f4")), "bfloat16, float16, float32, in native byte order; cast x"),
    (rules.array_dtype("x", "float8_e4m3fn", rules.CONV2D_DTYPES), f"another format: {rules.E4M3FN_REMEDY}"),
    (rules.dtypes_together("float32", "torch.float16", TENSORS), "must be float32 exactly when input's is (it is floa"),
    (rules.precision_fits("winograd", "fp32"), "precision='winograd': x and w are fp32, must be bf16 or fp16; cast th"),
    (rules.algorithm("toeplitz_rows", ("stacked",)), "was removed, stacked takes its problems; accepted are None, sta"),
    (rules.output(SHORT, "QWS"), "Q=-3: output width must be at least 1 (W=4 + pad 0+0, window 8 = dilation 1*(S-1)+1"),
    (rules.output(CROPPED, "PHR"), "P=-2: output height must be at least 1 (H=7 spread to 13 by lhs_dilation 2 + pad "),
    (STATES[0], "stride=2, lhs_dilation=1: a state needs 1 and 1; pad by zeros instead"),
    (STATES[1], "which must be (S - 1) * dilation = 2; pass (left, right) = (2, right)"),
    (STATES[2], "S=1: one tap needs no state; leave out initial_state and return_final_state"),
    (rules.one_row(stride=(2, 1)), "stride=(2, 1): H is 1, so only 1 is accepted on H; use (1, w)"),
    (rules.frames((1, 3, 2, 5), (1, 4, 9, 5), 2), "must be x's but for the planes, [1, 4, F, 5]; pass such frames"),
    (rules.frame_count(4, 3), "return_final_frames=4: initial_frames and x have 3 planes; ask for as many at most"),
    (rules.leaves_output("QWS", 3, 2, (9, 9), 0, 1, 2), "Q=-12: padding 9+9 takes off all 6 outputs ((W=3 - 1) * str"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "text"), SAID, ids=[f"{i}-{row[0][:24]}" for i, row in enumerate(SAID)])
def test_a_rule_says_argument_value_rule_and_remedy(said, text):
    assert text in said


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
