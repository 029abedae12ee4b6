"""Launches through `nkiconv.pytorch`: exactly the plan's algorithm and settings, from the cache or by one search."""

import warnings

import pytest
import torch
import torch_neuronx
from causal import integers as ints
from chained import made
from launched import follows_plan, problem_of
from torch.nn import functional as F

from nkiconv import LaunchWarning, PlanWarning, pytorch
from nkiconv.errors import UnsupportedError
from nkiconv.launches import advise_target
from nkiconv.planner import Request, cache, child
from nkiconv.pytorch.computers import device


def causal(x, w, bias, initial_states=None, return_final_states=False):
    return pytorch.causal_conv1d_fn(
        x, w, bias, initial_states=initial_states, return_final_states=return_final_states, activation=None
    )


def causal_reference(x, w, bias, initial_states=None, return_final_states=False):
    size = w.shape[1] - 1
    rows = F.pad(x, (size, 0)) if initial_states is None else torch.cat([initial_states, x], 2)
    y = F.conv1d(rows, w[:, None], bias, groups=len(w))
    return (y, rows[..., -size:]) if return_final_states else y


X2, X1 = ints(2, 6, 7, 8), ints(2, 6, 9)
# name: call, its arguments, the same in torch
CALLS = {
    "conv1d": (pytorch.conv1d, (X1, ints(4, 6, 3), ints(4), 2, 1), F.conv1d),
    "conv2d": (pytorch.conv2d, (X2, ints(4, 6, 3, 3), ints(4), 1, 1), F.conv2d),
    "groups": (pytorch.conv2d, (X2, ints(4, 3, 3, 3), None, (2, 1), 1, 1, 2), F.conv2d),
    "depthwise_conv1d": (pytorch.depthwise_conv1d, (X1, ints(6, 1, 3), ints(6), 1, 1), lambda *a: F.conv1d(*a, 1, 6)),
    "depthwise_conv2d": (pytorch.depthwise_conv2d, (X2, ints(6, 1, 3, 3), None, 1, 1), lambda *a: F.conv2d(*a, 1, 6)),
    "residual": (lambda x, w, b, r: pytorch.conv2d(x, w, b, padding=1, residual=r, activation="relu"),
     (X2, ints(4, 6, 3, 3), ints(4), ints(2, 4, 7, 8)), lambda x, w, b, r: F.relu(F.conv2d(x, w, b, padding=1) + r)),
    "packed": (lambda x, w: pytorch.conv2d(x, w, padding=1, packed=pytorch.pack_filter(w)),
     (ints(1, 70, 5, 5), ints(128, 70, 3, 3)), lambda x, w: F.conv2d(x, w, padding=1)),
    "causal": (causal, (X1, ints(6, 4), ints(6)), causal_reference),
    "initial states": (causal, (X1, ints(6, 4), ints(6), ints(2, 6, 3)), causal_reference),
    "final states": (causal, (X1, ints(6, 4), None, None, True), causal_reference),
    "states": (causal, (X1, ints(6, 4), ints(6), ints(2, 6, 3), True), causal_reference),
}  # fmt: skip
#: What `make test` launches: each is a search of the planner's process.
SOME = ["conv2d", "packed", "initial states"]


@pytest.mark.cover(0, keep=SOME)
@pytest.mark.parametrize(("call", "arguments", "reference"), CALLS.values(), ids=CALLS)
def test_a_launch_follows_the_plan_of_one_search(call, arguments, reference, launches, searched):
    expected = reference(*arguments)
    for _ in range(2):
        found = call(*arguments)
        both = (found, expected) if isinstance(found, tuple) else ((found,), (expected,))
        assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))
    assert len(launches) == 2
    assert launches[0] == launches[1]
    assert launches[0].lnc == 2
    assert len(searched) == 1
    assert searched[0].problem == problem_of(launches[0])
    assert follows_plan(launches[0])
    assert len(searched) == 1


def test_a_plan_in_the_cache_needs_no_search_and_no_process(launches, searched, monkeypatch):
    call, arguments, _ = CALLS["conv2d"]
    call(*arguments)
    [request] = searched
    kept = cache.load(request, cache.Plan)
    # not the plan that is found where any algorithm may be
    narrowed = Request(**{**vars(request), "algorithms": ("implicit_gemm",)})
    other = child.search(narrowed, wide=False, advance=lambda *told: None)
    found = cache.dataclasses.replace(kept, algorithm=other.algorithm, config=other.config)
    cache.store(request, found)
    cache.forget()
    device._arguments.cache_clear()
    child.stop()
    monkeypatch.setattr(child, "search", None)
    call(*arguments)
    assert child._process is None
    assert (launches[1].constants["algorithm"], launches[1].constants["config"]) == (other.algorithm, other.config)
    assert launches[1] != launches[0]


def test_plan_model_leaves_the_plans_that_launches_take(launches, searched):
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 1)).eval()
    x = ints(1, 4, 6, 6)
    planned = pytorch.plan_model(model, [x])
    assert len(searched) == 2
    pytorch.convert(model).model(x)
    assert len(launches) == len(searched) == 2
    told = {one.constants["algorithm"] for one in launches}
    assert told == {row.plan.algorithm for row in planned.rows}


@pytest.mark.cover(0, keep=["initial states"])
@pytest.mark.parametrize("name", ["causal", "initial states", "final states", "states"])
def test_plan_model_sees_states_as_launches_have_them(name, launches, searched):
    _, arguments, _ = CALLS[name]
    tensors = [one for one in arguments if not isinstance(one, bool)]
    flags = [one for one in arguments if isinstance(one, bool)]
    mixer = made(lambda _model, *tensors: causal(*tensors, *flags))
    pytorch.plan_model(mixer, tensors)
    mixer(*tensors)
    assert len(launches) == len(searched) == 1


@pytest.mark.cover(0, keep=SOME)
@pytest.mark.parametrize("name", CALLS)
def test_without_being_asked_for_a_plan_launches_take_estimates_or_known_plans(name, launches, searched, monkeypatch):
    monkeypatch.delenv("NKICONV_PLAN")
    call, arguments, _ = CALLS[name]
    call(*arguments)
    assert searched == []
    assert launches[0].constants["config"] is not None
    monkeypatch.setenv("NKICONV_PLAN", "timed")
    call(*arguments)
    monkeypatch.delenv("NKICONV_PLAN")
    device._arguments.cache_clear()
    call(*arguments)
    assert launches[2] == launches[1]
    assert len(searched) == 1


# what the planner's process does, what the warning says of it
FAILURES = {
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by signal 9"),
    "dependency": ("import no_such_module", r"status 1 \(ModuleNotFoundError: No module named 'no_such_module'\)"),
    "half a reply": ("import sys; sys.stdin.readline(); print('{\"pl', end='')",
     r"ended with status 0 \(without a word\)"),
    "stuck": ("import time; time.sleep(60)", "has said nothing for 0.5 s"),
}  # fmt: skip


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", FAILURES)
def test_a_search_that_fails_is_a_warning_a_shape(name, launches, searched, monkeypatch, tmp_path):
    code, words = FAILURES[name]
    (tmp_path / "failing_planner.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(child, "MODULE", "failing_planner")
    monkeypatch.setattr(child, "SILENCE_S", 0.5 if name == "stuck" else 60.0)
    child.stop()
    call, arguments, reference = CALLS["conv2d"]
    with pytest.warns(PlanWarning, match=rf"(?s)^conv2d of x \(2, 6, 7, 8\) and w \(4, 6, 3, 3\), fp32: .*{words}"):
        y = call(*arguments)
    assert torch.equal(y, reference(*arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(*arguments)
    assert [one.constants.get("config") for one in launches] == [None, None]
    assert len(searched) == 1
    with pytest.warns(PlanWarning):
        call(arguments[0][:1], *arguments[1:])  # another shape
    assert len(searched) == 2


def test_a_problem_without_a_plan_is_a_warning_and_the_kernel_says_the_rest(launches, searched, monkeypatch):
    """Settings that the planner refuses are told with its reason."""
    answered = child.search

    def only_of_pixels(request, **more):
        narrowed = Request(**{**vars(request), "algorithms": ("activation_stationary",)})
        return answered(narrowed, **more)

    monkeypatch.setattr(child, "search", only_of_pixels)
    call, arguments, _ = CALLS["conv2d"]
    with pytest.warns(
        PlanWarning, match=r"the kernel takes the algorithm of the least bound \(.*activation_stationary: "
    ):
        call(*arguments)
    assert "config" not in launches[0].constants


def test_results_are_tensors_of_their_own(launches):
    for call, arguments, _ in CALLS.values():
        found = call(*arguments)
        for one in found if isinstance(found, tuple) else (found,):
            assert one._base is None
            assert one.is_contiguous()


def test_nothing_is_launched_for_no_images(launches, searched):
    assert pytorch.conv2d(X2[:0], ints(4, 6, 3, 3), padding=1).shape == (0, 4, 7, 8)
    assert (launches, searched) == ([], [])


@pytest.fixture
def under_torch_xla(monkeypatch):
    """As torch_xla's backend has it: kernels are called as they are, and nothing wraps them."""
    monkeypatch.delattr(torch_neuronx, "wrap_nki")
    device.LAUNCHERS.clear()
    advise_target.cache_clear()
    yield
    device.LAUNCHERS.clear()
    advise_target.cache_clear()


@pytest.mark.usefixtures("under_torch_xla")
def test_a_slow_launch_under_torch_xla_is_told_once(launches, searched, monkeypatch):
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    call, arguments, reference = CALLS["conv2d"]
    with pytest.warns(LaunchWarning, match="set it to trn2"):
        assert torch.equal(call(*arguments), reference(*arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(*arguments)
        pytorch.conv1d(*CALLS["conv1d"][1])
    assert [one.lnc for one in launches] == [2, 2, 2]


def test_kernels_without_a_grid(launches, searched, monkeypatch):
    """The bracket grid is deprecated in NKI 0.7: where it is gone, the variable says the degree."""
    monkeypatch.delattr(torch_neuronx.Wrapped, "__getitem__")
    device.LAUNCHERS.clear()
    call, arguments, reference = CALLS["conv2d"]
    with pytest.raises(UnsupportedError, match=r"NEURON_LOGICAL_NC_CONFIG is unset, .* must be 2, .* take no grid"):
        call(*arguments)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert torch.equal(call(*arguments), reference(*arguments))
    assert len(launches) == 1
    device.LAUNCHERS.clear()
