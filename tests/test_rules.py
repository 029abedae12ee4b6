"""What rules say of numbers that they compute; `test_rules_applied` holds functions, kernels and problems to all."""

import numpy as np
import pytest

from nkiconv import rules
from nkiconv.axis import Axis

LISTS = "write a tuple, NKI kernels cannot take lists"
CROPPED = Axis(7, 3, 1, -13, 0, 1, 2)
TENSORS, NAMES = ("input", "weight"), ("img_ref", "filter_ref", "feature_group_count")

# what a rule says of arguments, and the text or a part of it
SAID = [
    (rules.places("s", [1, 2], 2, alone=False), f"a tuple (height, width) of ints of at least 1; {LISTS}"),
    (rules.padding((1, 2), 2, alone=False), "must be ((top, bottom), (left, right)) of ints; write it as ((0, 0), (0,"),
    (rules.output_padding((0, 2), (1, 2), 1, 2), "must be below stride=(1, 2) or dilation=1 on each axis, as in torch"),
    (rules.divides("groups", 5, C=128, K=128), "groups=5: must divide C=128 and K=128; use 1, 2, 4, ..."),
    (rules.filter_channels((4, 3, 5), 3, 6, 1, names=NAMES), "has 3 input channels per group, img_ref has C=6 in feat"),
    (rules.array_dtype("x", np.dtype(">f4")), "bfloat16, float16, float32, in native byte order; cast x"),
    (rules.dtypes_together("float32", "torch.float16", TENSORS), "must be float32 exactly when input's is (it is floa"),
    (rules.precision_fits("winograd", "fp32"), "precision='winograd': x and w are fp32, must be bf16 or fp16; cast th"),
    (rules.output(CROPPED, "PHR"), "P=-2: output height must be at least 1 (H=7 spread to 13 by lhs_dilation 2 + pad "),
    (rules.state(Axis(7, 3, 1, 0, 0, 1, 1))[0], "which must be (S - 1) * dilation = 2; pass (left, right) = (2, rig"),
    (rules.one_row(stride=(2, 1)), "stride=(2, 1): H is 1, so only 1 is accepted on H; use (1, w)"),
    (rules.frames((1, 3, 2, 5), (1, 4, 9, 5), 2), "must be x's but for the planes, [1, 4, F, 5]; pass such frames"),
    (rules.frame_count(4, 3), "return_final_frames=4: initial_frames and x have 3 planes; ask for as many at most"),
    (rules.leaves_output("QWS", 3, 2, (9, 9), 0, 1, 2), "Q=-12: padding 9+9 takes off all 6 outputs ((W=3 - 1) * str"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "text"), SAID, ids=[f"{i}-{row[0][:24]}" for i, row in enumerate(SAID)])
def test_a_rule_says_argument_value_rule_and_remedy(said, text):
    assert text in said
