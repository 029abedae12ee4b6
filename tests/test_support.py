"""The support tables say what is so: held against the planner, and against runs of every torch call on data."""

import pytest
import torch

from nkiconv import ConvProblem, simulator
from nkiconv.errors import NkiconvError
from nkiconv.planner import Asked
from nkiconv.planner.operations import OPERATIONS
from nkiconv.tools.tables.support import arrays, tensors
from nkiconv.tools.tables.support.table import ABSENT, KERNEL, PLAIN, REFUSED, TORCH

pytestmark = pytest.mark.simulator_only


ROWS_OF_IMAGES = {"N": 2, "C": 4, "W": 6, "S": 3}
IMAGES = {**ROWS_OF_IMAGES, "H": 6, "R": 3, "K": 16}
PROBLEMS = {
    "depthwise_conv1d": {**ROWS_OF_IMAGES, "groups": 4},
    "conv2d": IMAGES,
    "conv3d": {**IMAGES, "D": 6, "T": 3},
    "conv_transpose2d": {**IMAGES, "padding": ((2, 2), (2, 2)), "lhs_dilation": (1, 1), "transposed": True},
}


@pytest.mark.cover(6)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2"])
# Rows of the table by name and value, and the same in the planner's words.
@pytest.mark.parametrize(("name", "value", "asked"), [
    ("dtype", "", {}),
    ("`bias`", "", {"bias": True}),
    ("`x_scale`", "of channels", {"x_scale": "channel"}),
    ("`residual`", "times `beta`", {"residual": "pre_activation", "scaled": True}),
    ("`precision`", "tf32", {"precision": "tf32"}),
    ("`return_final_state`", "", {"return_final_state": True}),
    ("`strict_nonfinite`", "", {"strict_nonfinite": True}),
    ("w of `pack_filter`", "", {"packed": True}),
], ids=lambda one: str(one))  # fmt: skip
@pytest.mark.parametrize("operation", PROBLEMS)
def test_arrays_agree_with_the_planner(operation, name, value, asked, dtype):
    """What the planner has no violations of, the function runs, and the reverse."""
    (one,) = [column for column in arrays.COLUMNS if column.function.__name__ == operation]
    (row,) = [row for row in (PLAIN, *arrays.ROWS) if (row.name, row.value) == (name, value)]
    causal = {"padding": ((0, 0), (2, 0))} if "final" in name and operation == "depthwise_conv1d" else {}
    problem = ConvProblem(**PROBLEMS[operation], **causal, dtype=dtype)
    refused = list(OPERATIONS[operation].violations(problem, Asked(**asked)))
    assert (one.outcome(row, dtype) == KERNEL) == (refused == [])


def on_data(name, tensor):
    """A tensor of whole numbers instead of one without data; those that count count something."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    numbers = {"cu_seqlens": [0, 2, tensors.SIZE], "conv_state_indices": [1, 0]}.get(name)
    if numbers is not None:
        return torch.tensor(numbers, dtype=tensor.dtype)
    made = torch.zeros if tensor.dtype == torch.int32 else torch.ones
    return made(tensor.shape, dtype=tensor.dtype, requires_grad=tensor.requires_grad)


@pytest.mark.cover(16, keep=[
    "float64-x of one step, [N, C] -`depthwise_conv2d`",
    "float64-several filters a channel -`conv_transpose2d`",
    "fp32-`activation` sigmoid-`depthwise_conv2d`",
])  # fmt: skip
@pytest.mark.parametrize("one", tensors.FUNCTIONS, ids=lambda one: one.name)
@pytest.mark.parametrize("row", [PLAIN, *tensors.ROWS], ids=lambda row: f"{row.name} {row.value}")
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "float64"])
def test_tensors_on_data_end_as_the_table_says(monkeypatch, one, row, dtype):
    """In the simulator: whether the kernel runs in the call or, of a derivative, after it."""
    outcome = one.outcome(row, dtype)
    operands = one.operands(dtype)
    arguments = {**one.plain(operands), **row.arguments(operands)}
    given = {name: on_data(name, value) for name, value in arguments.items()}
    launches = []
    execute = simulator.execute
    monkeypatch.setattr(simulator, "execute", lambda *args, **more: launches.append(1) or execute(*args, **more))
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    if outcome == ABSENT:
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            one.function(**given)
    elif outcome == REFUSED:
        with pytest.raises(NkiconvError):
            one.function(**given)
        assert launches == []
    else:
        y = one.function(**given)
        assert launches
        if row.name == "derivative":
            launches.clear()
            y.backward(torch.ones_like(y))
            assert (KERNEL if launches else TORCH) == outcome


@pytest.mark.parametrize("kind", tensors.MODULES, ids=lambda one: one.name)
def test_modules_are_asked_of_convert(kind):
    assert kind.outcome(PLAIN, "fp32") == KERNEL
    (reflect,) = [row for row in tensors.OF_CONVERTED if row.value == "reflect"]
    assert kind.outcome(reflect, "fp32") == (ABSENT if "Transpose" in kind.name else KERNEL)
