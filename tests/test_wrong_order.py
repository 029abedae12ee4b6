"""Arguments in each other's place are refused by name, in short texts, before any work."""

import inspect

import numpy as np
import pytest

import nkiconv
from nkiconv import ConvProblem, DtypeError, GeometryError

#: Arrays of so many elements that no text may hold them.
ROW, IMAGE, VOLUME = (np.ones((2, 8, *[40] * axes), np.float16) for axes in (1, 2, 3))
OF = {1: (ROW, (8, 8, 3)), 2: (IMAGE, (8, 8, 3, 3)), 3: (VOLUME, (8, 8, 3, 3, 3))}
#: Characters of a text, at most.
SHORT = 500

GRADIENTS = [(f"{kind}{axes}d_weight", axes) for kind in ("conv", "conv_transpose") for axes in OF]


@pytest.mark.parametrize(("name", "axes"), GRADIENTS)
def test_filter_gradients_say_their_order(name, axes):
    x, size = OF[axes]
    words = f"weight_size=ndarray {x.shape} float16: must be no array; {name} takes x, weight_size, gy in this order"
    for arguments in ((x, x, x), (x, x, size), (size, x, x)):
        with pytest.raises(DtypeError) as found:
            getattr(nkiconv, name)(*arguments)
        assert words in str(found.value)
        assert len(str(found.value)) < SHORT
    with pytest.raises(DtypeError, match=r"^gy=.*: must be an array; .* in this order"):
        getattr(nkiconv, name)(x, size, size)


@pytest.mark.parametrize("axes", OF)
def test_input_gradients_say_their_order(axes):
    x, size = OF[axes]
    name = f"conv{axes}d_input"
    with pytest.raises(DtypeError, match=f"input_size=ndarray .*; {name} takes input_size, w, gy in this order"):
        getattr(nkiconv, name)(x, size, x)


FUNCTIONS = {
    **{f"conv{axes}d": OF[axes][0] for axes in OF},
    **{f"conv_transpose{axes}d": OF[axes][0] for axes in OF},
    "depthwise_conv1d": ROW,
}
ARGUMENTS = [
    (name, argument)
    for name in FUNCTIONS
    for argument, one in inspect.signature(getattr(nkiconv, name)).parameters.items()
    if "AnyArray" not in str(one.annotation)
]


@pytest.mark.cover(20)
@pytest.mark.parametrize(("name", "argument"), ARGUMENTS)
def test_an_array_is_no_other_argument(name, argument):
    """Of a layout, name or dtype it once ended in NumPy's error about the truth of an array."""
    x = FUNCTIONS[name]
    with pytest.raises(DtypeError, match=f"^{argument}=ndarray .*: must be no array; {name} takes x, w") as found:
        getattr(nkiconv, name)(x, x, **{argument: x})
    assert len(str(found.value)) < SHORT


FIELDS = ("N", "C", "W", "S", "H", "K", "R", "T", "D", "groups", "stride", "padding", "rhs_dilation", "lhs_dilation")


@pytest.mark.parametrize("field", [*FIELDS, "dtype", "layout", "transposed", "direction"])
def test_an_array_is_no_field_of_a_problem(field):
    with pytest.raises(GeometryError, match=f"^{field}=ndarray .* float16: must be no array") as found:
        ConvProblem(**{"N": 1, "C": 2, "W": 9, "S": 3, field: ROW})
    assert len(str(found.value)) < SHORT


@pytest.mark.parametrize("argument", ["lnc", "direction", "activation", "out_dtype", "algorithms", "constants"])
def test_an_array_is_no_argument_of_a_plan(argument):
    problem = ConvProblem(N=1, C=2, W=9, S=3)
    with pytest.raises(DtypeError, match=f"{argument}=ndarray .*: must be no array; plan takes problem, lnc in this"):
        nkiconv.plan(problem, **{argument: ROW})
    with pytest.raises(DtypeError, match="direction=ndarray"):
        problem.toward(ROW)
