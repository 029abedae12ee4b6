"""torch's own checks: `opcheck` of every operator, and its tables of convolutions, by which torch tests itself."""

import functools
import warnings

import pytest
import torch
from causal import computing, integers
from layers import FORMS
from tolerances import assert_sums_within
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nkiconv import pytorch


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


# torch's tables (`op_db`, `module_db`) of samples, calls that must raise, and derivatives that must be there.

#: torch's name of an operator: nkiconv's function and torch's.
FUNCTIONS = {"nn.functional.conv1d": (pytorch.conv1d, F.conv1d), "nn.functional.conv2d": (pytorch.conv2d, F.conv2d)}
MODULES, LAZY = (nn.Conv1d, nn.Conv2d), (nn.LazyConv1d, nn.LazyConv2d)
KERNELS = (torch.float32, torch.bfloat16, torch.float16)
#: On the host whatever torch convolves; in the simulator what the kernels take.
DTYPES = {"torch": (*KERNELS, torch.float64), "simulate": KERNELS}
#: What is asked of a convolution y(x, w, b), each a sum of products of what it takes; and how often its results round:
#: forward-mode and second derivatives add up to three convolutions, each rounded.
ROUNDINGS = {"values": 1, "gradients": 1, "forward AD": 5, "second derivatives": 5}


def entry(what):
    """torch's entry of an operator or a module; only now are torch's tables imported, which takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    table = [(one.name, one) for one in op_db] + [(one.module_cls, one) for one in module_db]
    (found,) = (one for name, one in table if name == what)
    return found


def samples(name, dtype):
    """Tensors (input, weight, maybe bias) and the other arguments of each sample."""
    torch.manual_seed(0)
    for one in entry(name).sample_inputs("cpu", dtype):
        yield [one.input, *(each for each in one.args if each is not None)], one.kwargs


def results(kind, function, leaves, others):
    """What a kind of ROUNDINGS says, of a function of leaves; others: dL/dy and one direction for each leaf."""
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    g, *directions = (other.detach().clone() for other in others)
    if kind == "values":
        return [function(*leaves)]
    if kind == "gradients":
        return list(torch.autograd.grad(function(*leaves), leaves, g))
    if kind == "forward AD":
        return list(torch.func.jvp(function, tuple(leaves), tuple(directions)))
    g.requires_grad_()
    first = torch.autograd.grad(function(*leaves), leaves, g, create_graph=True)
    return list(torch.autograd.grad(first, (g, *leaves[:2]), directions))


def check(kind, ours, theirs, leaves):
    """Fail unless both have the same results, within what rounding allows.

    All of them are sums of products: with the numbers' magnitudes in their place the same function sums magnitudes, and
    with ones it counts products.
    """
    generator = torch.Generator().manual_seed(1)
    wide = [leaf.detach().double() for leaf in leaves]
    shapes = [theirs(*wide).shape, *(leaf.shape for leaf in leaves)]
    others = [torch.randn(shape, generator=generator, dtype=torch.float64).to(leaves[0].dtype) for shape in shapes]
    found = results(kind, ours, leaves, others)
    both = wide, [other.double() for other in others]
    expected = results(kind, theirs, *both)
    magnitudes = results(kind, theirs, *([one.abs() for one in part] for part in both))
    counts = results(kind, theirs, *([torch.ones_like(one) for one in part] for part in both))
    for one, ref, total, count in zip(found, expected, magnitudes, counts, strict=True):
        assert one.dtype == leaves[0].dtype
        kept = [each.detach().double().numpy() for each in (one, ref, total)]
        terms = max(int(count.max()), 1) if count.numel() else 1
        assert_sums_within(*kept, terms, str(one.dtype).removeprefix("torch."), ROUNDINGS[kind])


def check_samples(name, kind, dtype):
    ours, theirs = FUNCTIONS[name]
    for tensors, more in samples(name, dtype):
        print([one.shape for one in tensors], more)
        check(kind, functools.partial(ours, **more), functools.partial(theirs, **more), tensors)


def check_errors(name, kind, dtype):
    """What torch's table says must raise does by both; float64 in it becomes dtype."""
    for error in entry(name).error_inputs("cpu"):
        one = error.sample_input
        tensors = [
            each.to(dtype) if isinstance(each, torch.Tensor) and each.dtype == torch.float64 else each
            for each in (one.input, *one.args)
        ]
        print([each.shape for each in tensors], one.kwargs)
        for function in FUNCTIONS[name]:
            with pytest.raises(error.error_type):
                function(*tensors, **one.kwargs)


class Recorded(TorchDispatchMode):
    """Keeps the calls of nkiconv's operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "nkiconv":
            self.calls.append((function, args))
        return function(*args, **(kwargs or {}))


def check_operators(name, kind, dtype):
    """`opcheck` of each operator that a sample calls, with what it is called with."""
    for tensors, more in samples(name, dtype):
        with Recorded() as recorded:
            FUNCTIONS[name][0](*tensors, **more)
        assert recorded.calls
        for operator, args in recorded.calls:
            leaves = [one.detach().requires_grad_() if isinstance(one, torch.Tensor) else one for one in args]
            assert set(torch.library.opcheck(operator, tuple(leaves)).values()) == {"SUCCESS"}


def check_modules(kind, _, dtype):
    """Values and gradients of a converted module; a lazy one stays as it is until it has run once."""
    torch.manual_seed(0)
    for one in entry(kind).module_inputs_func(entry(kind), "cpu", dtype, requires_grad=False, training=True):
        made, (x,) = one.constructor_input, one.forward_input.args
        torch.manual_seed(0)
        module = kind(*made.args, **made.kwargs, dtype=dtype)
        if kind in LAZY:
            assert type(pytorch.convert(module).model) is kind
            module(x)
        converted = pytorch.convert(module).model
        assert type(converted).__module__.startswith("nkiconv")
        geometry = converted.in_channels, converted.out_channels, converted.kernel_size
        wide = MODULES[converted.weight.dim() - 3](*geometry, **{**made.kwargs, "dtype": torch.float64})
        names = [name for name, _ in converted.named_parameters()]

        def function(which, names=names):
            return lambda y, *leaves: torch.func.functional_call(which, dict(zip(names, leaves, strict=True)), y)

        for what in ("values", "gradients"):
            check(what, function(converted), function(wide), [x, *(leaf.detach() for leaf in converted.parameters())])


def runs():
    """Everything that torch's tables say of these operators and modules."""
    for mode, dtypes in DTYPES.items():
        for dtype in dtypes:
            yield from ((check_samples, name, kind, dtype, mode) for kind in ROUNDINGS for name in FUNCTIONS)
            if dtype in (torch.float32, torch.float64):
                yield from ((check_errors, name, "errors", dtype, mode) for name in FUNCTIONS)
                yield from ((check_modules, kind, "module", dtype, mode) for kind in (*MODULES, *LAZY))
    yield from ((check_operators, name, "opcheck", torch.float32, "torch") for name in FUNCTIONS)


@pytest.mark.slow
@pytest.mark.simulator_only
@pytest.mark.parametrize(("checks", "what", "kind", "dtype", "mode"), list(runs()), ids=str)
def test_samples(checks, what, kind, dtype, mode, plans):
    with computing(mode), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, of padding="same" with even filters
        checks(what, kind, dtype)
