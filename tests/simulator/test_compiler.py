"""nki.compiler: which configs nki.jit takes, and of kernels that call each other."""

import numpy as np
import pytest

from nkiconv.simulator import NkiError, execute, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.compiler import AddressRotation, CompileConfig, SpecializationConfig

X = np.arange(32, dtype=np.float32).reshape(4, 8)
CHECKED = CompileConfig(barrier_check=True, address_rotation=AddressRotation.DISABLE)


def copied(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out


def test_a_config_changes_no_result():
    for launched in (jit(copied, compile_config=CHECKED), jit(compile_config=CHECKED)(copied)[1]):
        np.testing.assert_array_equal(execute(launched, (X,)).outputs, X)


@pytest.mark.parametrize("name", ["compile_config", "specialization_config"])
def test_other_values_are_refused(name):
    with pytest.raises(TypeError, match=rf"{name}=\{{\}} is no nki\.compiler\."):
        jit(copied, **{name: {}})
    with pytest.raises(TypeError, match="no_such_field"):
        CompileConfig(no_such_field=True)


#: configs of the kernel that is called and of the one that calls it, whether they agree
NESTED = {
    "none inside": (None, CHECKED, True),
    "equal": (CHECKED, CompileConfig(barrier_check=True, address_rotation=AddressRotation.DISABLE), True),
    "only inside": (CHECKED, None, False),
    "other": (CHECKED, CompileConfig(barrier_check=False), False),
}


@pytest.mark.parametrize("name", NESTED)
def test_kernels_that_call_kernels(name):
    inside, outside, agree = NESTED[name]
    inner = jit(copied, compile_config=inside)
    if agree:
        np.testing.assert_array_equal(execute(jit(lambda x: inner(x), compile_config=outside), (X,)).outputs, X)
        return
    with pytest.raises(NkiError, match=r"NKI185: .*barrier_check=True"):
        execute(jit(lambda x: inner(x), compile_config=outside), (X,))
    asked = SpecializationConfig(allow_nested_config_override=True)
    with pytest.warns(UserWarning, match=r"barrier_check=True.*which holds"):
        found = execute(jit(lambda x: inner[1](x), compile_config=outside, specialization_config=asked)[1], (X,))
    np.testing.assert_array_equal(found.outputs, X)
