"""Each wrong ConvProblem is refused with the right class and a sentence that says what, why and what to do."""

import pickle

import numpy as np
import pytest

from nkiconv.errors import (
    ComparisonError,
    DtypeError,
    FileFormatError,
    GeometryError,
    LayoutError,
    NkiconvError,
    UnsupportedError,
    join_violations,
    raise_all,
)
from nkiconv.problem import ConvProblem

GOOD = {"N": 2, "C": 6, "H": 5, "W": 7, "K": 4, "R": 2, "S": 3}

# what is changed in GOOD, class, regular expression
BAD = [
    ({"N": 0}, GeometryError, r"^N=0: must be at least 1 \(it counts images\); pass a positive int$"),
    ({"C": -3}, GeometryError, r"C=-3: must be at least 1"),
    ({"W": 7.0}, GeometryError, r"^W=7\.0: must be an int, not float \(it counts input columns\); pass an int$"),
    ({"H": True}, GeometryError, r"H=True: must be an int, not bool"),
    ({"K": "4"}, GeometryError, r"K='4': must be an int, not str"),
    ({"K": 0}, GeometryError, r"K=0: must be at least 1"),
    ({"R": np.bool_(1)}, GeometryError, r"R=np\.True_: must be an int, not bool"),
    ({"R": 2.0}, GeometryError, r"R=2\.0: must be an int, not float"),
    ({"stride": (2**31, 1)}, GeometryError, r"stride=\(2147483648, 1\): must be at most 2,147,483,647"),
    ({"rhs_dilation": (1, 2**63)}, GeometryError, r"rhs_dilation=\(1, 9223372036854775808\): must be at most"),
    ({"lhs_dilation": (1, 2**40)}, GeometryError, r"lhs_dilation=\(1, 1099511627776\): must be at most"),
    ({"padding": ((0, 0), (2**31, 0))}, GeometryError, r"padding=\(\(0, 0\), \(2147483648, 0\)\): must be at most"),
    ({"padding": ((0, -(2**62)), (0, 0))}, GeometryError, r"padding=.*: must be at most 2,147,483,647"),
    ({"S": None}, GeometryError, r"S=None: must be an int, not NoneType"),
    ({"stride": 2}, GeometryError, r"^stride=2: must be a tuple of 2 ints \(height, width\); write it as \(1, 1\)$"),
    (
        {"stride": [1, 2]},
        GeometryError,
        r"^stride=\[1, 2\]: must be 2 ints \(height, width\); write a tuple, NKI kernels cannot take lists$",
    ),
    ({"stride": (1, 0)}, GeometryError, r"stride=\(1, 0\): both must be at least 1"),
    ({"stride": (1, 2, 3)}, GeometryError, r"stride=\(1, 2, 3\): must be a tuple of 2 ints"),
    ({"rhs_dilation": (1.0, 1)}, GeometryError, r"rhs_dilation=\(1\.0, 1\): must be a tuple of 2 ints"),
    ({"lhs_dilation": (-1, 1)}, GeometryError, r"lhs_dilation=\(-1, 1\): both must be at least 1"),
    ({"padding": "same"}, GeometryError, r"padding='same': must be a tuple of 2 tuples of 2 ints"),
    ({"padding": (1, 2)}, GeometryError, r"padding=\(1, 2\): must be a tuple .*write it as \(\(0, 0\), \(0, 0\)\)"),
    ({"padding": ((0, 0), [1, 2])}, GeometryError, r"padding=.*write a tuple, NKI kernels cannot take lists"),
    (
        {"groups": 3},
        GeometryError,
        r"^groups=3: must divide C=6 and K=4 \(a group has C/groups inputs and K/groups outputs\); use 1, 2$",
    ),
    ({"groups": 5, "C": 128, "K": 128}, GeometryError, r"C=128 and K=128 .*; use 1, 2, 4, \.\.\.$"),
    ({"groups": 4, "K": None}, GeometryError, r"groups=4: must divide C=6 and K=6"),
    (
        {"W": 4, "S": 8},
        GeometryError,
        r"^Q=-3: output width must be at least 1 \(W=4 \+ pad 0\+0, window 8 = dilation 1\*\(S-1\)\+1\); "
        r"pad the input or shorten the filter$",
    ),
    (
        {"rhs_dilation": (7, 1), "padding": ((1, 0), (0, 0))},
        GeometryError,
        r"^P=-1: output height must be at least 1 \(H=5 \+ pad 1\+0, window 8 = dilation 7\*\(R-1\)\+1\); pad the",
    ),
    (
        {"padding": ((0, 0), (-9, 0))},
        GeometryError,
        r"^Q=-4: output width must be at least 1 \(W=7 \+ pad -9\+0, window 3 = .*\); crop less$",
    ),
    (
        {"lhs_dilation": (1, 2), "S": 14},
        GeometryError,
        r"Q=0: .*\(W=7 spread to 13 by lhs_dilation 2 \+ pad 0\+0, window 14",
    ),
    (
        {"dtype": "fp64"},
        DtypeError,
        r"^dtype='fp64': unknown \(accepted are bf16, fp16, fp32, fp8_e4m3, fp8_e5m2\); cast to one of these$",
    ),
    ({"dtype": np.float64}, DtypeError, r"dtype=<class 'numpy\.float64'>: unknown"),
    ({"dtype": None}, DtypeError, r"dtype=None: unknown"),
    ({"dtype": 32}, DtypeError, r"dtype=32: unknown"),
    (
        {"layout": "CNHW"},
        LayoutError,
        r"^layout='CNHW': unknown \(accepted are NCHW, NHWC\); transpose x to one of these$",
    ),
]


@pytest.mark.parametrize(("changes", "error", "pattern"), BAD, ids=[str(row[0]) for row in BAD])
def test_one_violation(changes, error, pattern):
    with pytest.raises(error, match=pattern) as caught:
        ConvProblem(**{**GOOD, **changes})
    assert caught.value.violations == (str(caught.value),)


def test_unchanged_call_is_accepted():
    assert ConvProblem(**GOOD).output_shape == (2, 4, 4, 5)


def test_all_violations_are_listed():
    with pytest.raises(LayoutError) as caught:
        ConvProblem(**{**GOOD, "layout": "HWNC", "groups": 3, "R": 6, "S": 8})
    assert [line.split("=")[0] for line in caught.value.violations] == ["layout", "groups", "P", "Q"]
    assert str(caught.value).startswith("ConvProblem cannot be built; 4 reasons\n  - layout='HWNC'")


def test_a_malformed_field_silences_only_the_rules_that_read_it():
    with pytest.raises(GeometryError) as caught:
        ConvProblem(**{**GOOD, "W": 0, "R": 6})
    assert [line.split(":")[0] for line in caught.value.violations] == ["W=0", "P=0"]


def test_replace_checks_again():
    with pytest.raises(GeometryError, match="Q=-1"):
        ConvProblem(**GOOD).replace(W=1)


def test_a_default_is_not_reported_twice():
    with pytest.raises(GeometryError, match="C=0") as caught:
        ConvProblem(N=1, C=0, W=4, S=2)
    assert len(caught.value.violations) == 1


@pytest.mark.parametrize(
    "error",
    [GeometryError, DtypeError, LayoutError, UnsupportedError, FileFormatError, ComparisonError],
)
def test_every_class_is_a_value_error_and_survives_pickling(error):
    made = error("a and b", ["a", "b"])
    assert isinstance(made, NkiconvError)
    assert isinstance(made, ValueError)
    assert isinstance(made, TypeError) == (error is DtypeError)
    back = pickle.loads(pickle.dumps(made))
    assert (type(back), str(back), back.violations) == (error, "a and b", ("a", "b"))


def test_join_violations():
    assert join_violations("it cannot run", ["x=1: no"]) == "x=1: no"
    joined = join_violations("it cannot run", ["x=1: no", "y=2: no"])
    assert joined == "it cannot run; 2 reasons\n  - x=1: no\n  - y=2: no"


def test_raise_all():
    raise_all("nothing is wrong", [])
    joined = GeometryError("both", ["b", "c"])
    with pytest.raises(DtypeError, match="it cannot run; 3 reasons") as caught:
        raise_all("it cannot run", [DtypeError("a"), joined])
    assert caught.value.violations == ("a", "b", "c")
