"""torch's own checks: `opcheck` of every operator, and its tables of convolutions, by which torch tests itself."""

import pytest
import torch
import torch_samples
from causal import integers
from layers import FORMS

RUNS = list(torch_samples.runs())


def of_functions(name, activation):
    rank, per_group = int(name[-2]), 1 if name.startswith("depthwise") else 2
    x, w, bias = integers(2, 4, *[7] * rank), integers(4, per_group, *[3] * rank), integers(4)
    padding = [1, 1 + ("transpose" not in name)] * rank
    numbers = [1] * rank, padding, [1] * rank, [1] * rank, 4 // per_group, activation, "pre_activation", None
    return name, (x, w, bias, None, *numbers)


def of_causal(count, states=None, offsets=None, numbers=None, final=False, activation=None):
    tensors = integers(count, 3, 7), integers(3, 4, seed=1), integers(3, seed=2), states
    return "causal_conv1d", (*tensors, offsets, numbers, final, activation, None)


def of_filters(rank, bias):
    x, g = integers(2, 4, *[4] * rank), integers(2, 6, *[3] * rank)
    numbers = (6, 2, *[2] * rank), [1] * rank, [0] * 2 * rank, [1] * rank, 2, bias, torch.float32, "layer"
    return f"conv{rank}d_weight", (x, g, *numbers)


def of_forms(form, rank, of_x):
    given = form.tensors(rank, of_x)
    return form.operator_name(rank), (*given, *form.numbers(*given[:2], activation="relu"))


NAMES = [*(f"conv{'_transpose' * back}{rank}d" for rank in (1, 2, 3) for back in (0, 1)), *["depthwise_conv1d"]]
#: The name of an operator, and its arguments.
OPERATORS = {
    **{f"{name}, {act}": of_functions(name, act) for name in NAMES for act in (None, "gelu")},
    "causal": of_causal(2),
    "states": of_causal(2, integers(2, 3, 3, seed=3), final=True, activation="silu"),
    "offsets": of_causal(1, offsets=torch.tensor([0, 2, 7]), final=True),
    "numbers": of_causal(2, numbers=torch.tensor([[0, 0, 1, 1, 1, -1, -1]] * 2), activation="silu"),
    **{f"filters, {rank}d, {bias}": of_filters(rank, bias) for rank in (1, 2, 3) for bias in (True, False)},
    **{f"{name}, {of_x}": of_forms(form, form.ranks[at], of_x)
       for name, form in FORMS.items() for at, of_x in ((0, "image"), (-1, "channel"))},
}  # fmt: skip


@pytest.mark.cover(0, keep=["states", "filters, 2d, True"])
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name):
    operator, given = OPERATORS[name]
    leaves = [one.clone() if isinstance(one, torch.Tensor) else one for one in given]
    for one in leaves:
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            one.requires_grad_()
    found = torch.library.opcheck(getattr(torch.ops.nkiconv, operator).default, tuple(leaves))
    assert set(found.values()) == {"SUCCESS"}, found


@pytest.mark.slow
@pytest.mark.simulator_only
@pytest.mark.parametrize(("what", "kind", "dtype", "mode"), RUNS, ids=str)
def test_samples(what, kind, dtype, mode, plans):
    assert torch_samples.supported(what, kind), "torch's own convolution has no such derivatives"
    found = torch_samples.outcomes(what, kind, dtype, mode)
    failed = [f"{call}: {error}" for call, error in found if error]
    assert not failed, "\n".join([f"{len(failed)} of {len(found)} samples fail", *failed])
