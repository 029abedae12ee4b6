"""Each wrong ConvProblem is refused with the right class and a sentence that says what, why and what to do."""

import pickle

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
