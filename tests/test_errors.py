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
)
from nkiconv.problem import ConvProblem

GOOD = {"N": 2, "C": 6, "H": 5, "W": 7, "K": 4, "R": 2, "S": 3}

# what is changed in GOOD, class, regular expression; `test_rules_applied` has every rule of every field
BAD = [
    ({"N": 0}, GeometryError, r"^N=0: must be an int of at least 1 \(it counts images\); pass one$"),
    ({"R": np.bool_(1)}, GeometryError, r"R=np\.True_: must be an int"),
    ({"S": None}, GeometryError, r"S=None: must be an int"),
    ({"groups": 4, "K": None}, GeometryError, r"groups=4: must divide C=6 and K=6"),
    ({"W": 4, "S": 8}, GeometryError, r"^Q=-3: output width must be at least 1 \(W=4 \+ pad 0\+0, window 8 ="),
    ({"rhs_dilation": (7, 1), "padding": ((1, 0), (0, 0))}, GeometryError, r"^P=-1: output height must be .*; pad the"),
    ({"padding": ((0, 0), (-9, 0))}, GeometryError, r"^Q=-4: output width must be at least 1 .*; crop less$"),
    ({"dtype": np.float64}, DtypeError, r"dtype=<class 'numpy\.float64'>: accepted are bf16"),
    ({"layout": "CNHW"}, LayoutError, r"^layout='CNHW': accepted are NCHW, NHWC; transpose to one of these$"),
]


@pytest.mark.parametrize(("changes", "error", "pattern"), BAD, ids=[str(row[0]) for row in BAD])
def test_one_violation(changes, error, pattern):
    with pytest.raises(error, match=pattern) as caught:
        ConvProblem(**{**GOOD, **changes})
    assert caught.value.violations == (str(caught.value),)


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
