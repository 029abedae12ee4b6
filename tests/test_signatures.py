"""Every argument of a public function has a meaning in some docstring, and functions agree on types and defaults."""

import pytest

from nkiconv.tools.tables.support import signatures

FUNCTIONS = [
    pytest.param(where, one, id=f"{where}.{name}")
    for where in (signatures.ARRAYS, signatures.TENSORS)
    for name, one in signatures.functions(where).items()
]
#: Types that depend on how many axes there are, or on what is computed, and defaults of layouts.
DIFFERENT = {"stride", "padding", "dilation", "lhs_dilation", "output_padding", "layout", "filter_layout", "out_dtype"}


@pytest.mark.parametrize(("where", "function"), FUNCTIONS)
def test_every_argument_has_a_meaning(where, function):
    for one in signatures.arguments(function, where).values():
        assert one.meaning, f"say what {one.name} is, or name a function that does: The rest: as in `conv2d`"


@pytest.mark.parametrize("where", [signatures.ARRAYS, signatures.TENSORS])
def test_functions_agree_on_types_and_defaults(where):
    found = {}
    for function in signatures.functions(where).values():
        for one in signatures.arguments(function, where).values():
            if one.default and one.name not in DIFFERENT:
                found.setdefault(one.name, set()).add((one.kind, one.default))
    assert {name: kinds for name, kinds in found.items() if len(kinds) > 1} == {}
    assert len(found) >= 8


def test_words_of_another_function_are_followed():
    def like(x, lnc, groups, beta=1.0, **more):
        """Convolve.

        Args:
            x: [N, C]. beta: as in `conv2d`; not of rows.
            The rest: as in `conv2d`, for rows.

        Returns: y.
        """

    found = signatures.arguments(like)
    assert list(found) == ["x", "lnc", "groups", "beta"]
    assert (found["x"].meaning, found["lnc"].meaning) == ("[N, C].", "cores that share the work, 1 or 2.")
    assert found["beta"].meaning == "its factor; here not of rows."
    assert found["beta"].default == "1.0"
    text = signatures.in_full(like, signatures.ARRAYS)
    assert "\n    groups: divides C and K.\n" in text
    assert text.endswith("\n\nReturns: y.")
    like.__doc__ = "Convolve.\n\nArgs: x: [N, C].\n"
    assert set(signatures.meanings(like, signatures.ARRAYS)) == {"x"}
    with pytest.raises(KeyError, match="lnc"):
        signatures.arguments(like)
