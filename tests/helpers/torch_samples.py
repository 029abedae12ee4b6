"""torch's own samples of convolutions, and what comes of nkiconv's functions on them, held against torch in float64.

torch tests its operators by tables (`op_db`, `module_db`) of samples, calls that must raise, and derivatives that must
be there. `outcomes` runs one kind of test on all samples of one operator.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from causal import computing
from tolerances import assert_sums_within
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nkiconv import pytorch

#: torch's name of an operator: nkiconv's function and torch's.
FUNCTIONS = {"nn.functional.conv1d": (pytorch.conv1d, F.conv1d), "nn.functional.conv2d": (pytorch.conv2d, F.conv2d)}
MODULES = (nn.Conv1d, nn.Conv2d)
LAZY = (nn.LazyConv1d, nn.LazyConv2d)
#: On the host whatever torch convolves; in the simulator what the kernels take.
DTYPES = {
    "torch": (torch.float32, torch.bfloat16, torch.float16, torch.float64),
    "simulate": (torch.float32, torch.bfloat16, torch.float16),
}
#: What `Function` asks of a convolution y(x, w, b), each a sum of products of what it takes; and how often its results
#: round: forward-mode and second derivatives add up to three convolutions, each rounded.
ROUNDINGS = {"values": 1, "gradients": 1, "forward AD": 5, "second derivatives": 5}
Tensors = Sequence[torch.Tensor]


@cache
def _table(name: str) -> Any:
    """torch's entry of an operator; only now are torch's tables imported, which takes seconds."""
    from torch.testing._internal.common_methods_invocations import op_db

    (found,) = (one for one in op_db if one.name == name)
    return found


@cache
def module_entry(kind: type) -> Any:
    """torch's entry of a module."""
    from torch.testing._internal.common_modules import module_db

    (found,) = (one for one in module_db if one.module_cls is kind)
    return found


def samples(name: str, dtype: torch.dtype) -> Iterator[tuple[list[torch.Tensor], dict[str, Any]]]:
    """Tensors (input, weight, maybe bias) and the other arguments of each sample."""
    torch.manual_seed(0)
    for one in _table(name).sample_inputs("cpu", dtype):
        yield [one.input, *(each for each in one.args if each is not None)], one.kwargs


def supported(what: Any, kind: str) -> bool:
    """Whether torch's table says that the operator has these derivatives."""
    flag = {"forward AD": "supports_forward_ad", "second derivatives": "supports_gradgrad"}.get(kind)
    return flag is None or getattr(_table(what), flag)


def results(kind: str, function: Callable[..., torch.Tensor], leaves: Tensors, others: Tensors) -> list[torch.Tensor]:
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


def check(kind: str, ours: Callable[..., torch.Tensor], theirs: Callable[..., torch.Tensor], leaves: Tensors) -> None:
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
        assert one.dtype == leaves[0].dtype, f"dtype {one.dtype}, expected {leaves[0].dtype}"
        kept = [each.detach().double().numpy() for each in (one, ref, total)]
        terms = max(int(count.max()), 1) if count.numel() else 1
        assert_sums_within(*kept, terms, str(one.dtype).removeprefix("torch."), ROUNDINGS[kind])


def _sample_tests(name: str, kind: str, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], None]]]:
    ours, theirs = FUNCTIONS[name]
    for tensors, more in samples(name, dtype):
        call = f"{' '.join(str(list(one.shape)) for one in tensors)} {more}"

        def test(tensors: Any = tensors, more: Any = more) -> None:
            check(kind, lambda *leaves: ours(*leaves, **more), lambda *leaves: theirs(*leaves, **more), tensors)

        yield call, test


def _error_tests(name: str, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], None]]]:
    """Each must raise what torch's table names; float64 in it becomes dtype, which the call is to be refused for."""

    def narrowed(value: Any) -> Any:
        is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float64
        return value.to(dtype) if is_wide else value

    for error in _table(name).error_inputs("cpu"):
        one = error.sample_input
        tensors = [narrowed(each) for each in (one.input, *one.args)]
        call = f"{' '.join(f'{list(each.shape)} {each.dtype}' for each in tensors)} {one.kwargs}"

        def test(tensors: Any = tensors, more: Any = one.kwargs, kind: Any = error.error_type) -> None:
            for function in reversed(FUNCTIONS[name]):  # torch's own shows that what was cast is still wrong
                try:
                    function(*tensors, **more)
                except kind:
                    continue
                raise AssertionError(f"did not raise {kind.__name__}")

        yield call, test


class _Recorded(TorchDispatchMode):
    """Keeps the calls of nkiconv's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "nkiconv":
            self.calls.append((function, args))
        return function(*args, **(kwargs or {}))


def _operator_tests(name: str, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], None]]]:
    """`torch.library.opcheck` of each operator that a sample calls, with what it is called with."""
    for tensors, more in samples(name, dtype):
        call = f"{' '.join(str(list(one.shape)) for one in tensors)} {more}"

        def test(tensors: Any = tensors, more: Any = more) -> None:
            with _Recorded() as recorded:
                FUNCTIONS[name][0](*tensors, **more)
            assert recorded.calls, "no operator of nkiconv's was called"
            for operator, args in recorded.calls:
                leaves = [one.detach().requires_grad_() if isinstance(one, torch.Tensor) else one for one in args]
                found = torch.library.opcheck(operator, tuple(leaves))
                assert set(found.values()) == {"SUCCESS"}, found

        yield call, test


def _module_tests(kind: type, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], None]]]:
    """Values and gradients of a converted module; a lazy one stays as it is until it has run once."""
    torch.manual_seed(0)
    entry = module_entry(kind)
    for one in entry.module_inputs_func(entry, "cpu", dtype, requires_grad=False, training=True):
        made, (x,) = one.constructor_input, one.forward_input.args

        def test(made: Any = made, x: Any = x) -> None:
            torch.manual_seed(0)
            module = kind(*made.args, **made.kwargs, dtype=dtype)
            if kind in LAZY:
                assert type(pytorch.convert(module).model) is kind, "swapped before it has parameters"
                module(x)
            converted = pytorch.convert(module).model
            assert type(converted).__module__.startswith("nkiconv"), "stays as it is"
            theirs = MODULES[converted.weight.dim() - 3]
            names = [name for name, _ in converted.named_parameters()]
            wide = theirs(*_geometry(converted), **{**made.kwargs, "dtype": torch.float64})

            def function(which: nn.Module) -> Callable[..., torch.Tensor]:
                return lambda x, *leaves: torch.func.functional_call(which, dict(zip(names, leaves, strict=True)), x)

            leaves = [x, *(leaf.detach() for leaf in converted.parameters())]
            for what in ("values", "gradients"):
                check(what, function(converted), function(wide), leaves)

        yield f"{kind.__name__} {made.args} {made.kwargs} of {list(x.shape)}", test


def _geometry(module: Any) -> tuple[int, int, tuple[int, ...]]:
    return module.in_channels, module.out_channels, module.kernel_size


def _tests(what: Any, kind: str, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], None]]]:
    if kind == "errors":
        return _error_tests(what, dtype)
    if kind == "opcheck":
        return _operator_tests(what, dtype)
    if kind == "module":
        return _module_tests(what, dtype)
    return _sample_tests(what, kind, dtype)


def runs() -> Iterator[tuple[Any, str, torch.dtype, str]]:
    """Arguments of `outcomes`: everything that torch's tables say of these operators and modules, and opcheck."""
    for mode, dtypes in DTYPES.items():
        for dtype in dtypes:
            yield from ((name, kind, dtype, mode) for kind in ROUNDINGS for name in FUNCTIONS)
            if dtype in (torch.float32, torch.float64):
                yield from ((name, "errors", dtype, mode) for name in FUNCTIONS)
                yield from ((kind, "module", dtype, mode) for kind in (*MODULES, *LAZY))
    yield from ((name, "opcheck", torch.float32, "torch") for name in FUNCTIONS)


def said(what: Any) -> str:
    """An operator's or a module's name, short."""
    return what.__name__ if isinstance(what, type) else what.rpartition(".")[2]


def outcomes(what: Any, kind: str, dtype: torch.dtype, mode: str) -> list[tuple[str, str]]:
    """What came of each sample: its description, and "" or how it failed.

    Args:
        what: a key of FUNCTIONS, or with kind="module" one of MODULES or LAZY.
        kind: one of ROUNDINGS, "errors", "opcheck" or "module".
        mode: of NKICONV_CPU.
    """
    found = []
    with computing(mode), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, of padding="same" with even filters
        for call, test in _tests(what, kind, dtype):
            try:
                test()
            except Exception as error:  # also what no test of torch's expects
                found.append((call, f"{type(error).__name__}: {error}"))
            else:
                found.append((call, ""))
    assert found, f"torch has no samples of {what}"
    return found
