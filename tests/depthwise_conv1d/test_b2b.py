"""b2b_causal_conv1d of arrays and of tensors: values, states, derivatives and refusals."""

import numpy as np
import pytest
import torch
from chained import made
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tolerances import BF16_NORMS, assert_exact, assert_within_limit, assert_within_share

import nkiconv
from nkiconv import DtypeError, GeometryError, LayoutError, UnsupportedError, pytorch, schedules
from nkiconv.bounds import b2b_bound
from nkiconv.kernels.blocks import b2b_causal_conv1d as blocks
from nkiconv.kernels.blocks.b2b_causal_conv1d import kernel
from nkiconv.problem import DTYPES
from nkiconv.pytorch.computers import device, modes
from nkiconv.pytorch.computers.arrays import from_numpy, to_numpy
from nkiconv.reference import causal_ref
from nkiconv.simulator import KernelAssertionError


def drawn(N, D, W, taps, groups, dtype, seed, whole=False):
    """x, weights_proj, weights_mixer, skip_bias."""
    rng = np.random.default_rng(seed)
    shapes = (N, 3 * D, W), (3 * D, taps[0]), (groups, taps[1]), (D,)
    draw = (lambda shape: rng.integers(-2, 3, shape)) if whole else rng.standard_normal
    return [np.asarray(draw(shape)).astype(DTYPES[dtype]) for shape in shapes]


def truth(x, proj, mixer, skip, dtype, before=(None, None)):
    return b2b_bound(x, proj, np.repeat(mixer, len(skip) // len(mixer), axis=0), skip, dtype, before)


@pytest.fixture
def one_kernel(monkeypatch):
    """One launch whatever the size, of 16 bits and few taps; how often its loop runs."""
    calls, own = [], kernel.run_b2b
    for name in ("FULL_PIECES", "FULL_SHARE", "TOKENS_MIN"):
        monkeypatch.setattr(schedules.b2b, name, 1e-9)
    monkeypatch.setattr(blocks, "run_b2b", lambda *given: calls.append(given) or own(*given))
    return calls


@pytest.mark.cover(8)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("taps", [(3, 7), (2, 2), (4, 20)])
@pytest.mark.parametrize(("N", "D", "W"), [(1, 130, 2600), (3, 5, 1), (2, 45, 515), (1, 1, 3), (5, 128, 12)])
@pytest.mark.parametrize("with_states", [False, True])
def test_one_kernel(N, D, W, taps, dtype, with_states):
    """Within the bound on one core and on two, whose bits are the same; the states are those of the last tokens."""
    x, proj, mixer, skip = drawn(N, D, W, taps, D, dtype, 0)
    rng = np.random.default_rng(1)
    shapes = (N, 3 * D, taps[0] - 1), (N, D, taps[1] - 1)
    before = [rng.standard_normal(shape).astype(DTYPES[dtype]) if with_states else None for shape in shapes]
    given = (x, proj, mixer, *before, True)
    y, of_x, of_gated = nkiconv.simulate(nkiconv.b2b_causal_conv1d_fused[2])(*given)
    wanted, limit = truth(x, proj, mixer, 0 * skip, dtype, before)
    assert_within_limit(y, wanted, limit)
    alone = nkiconv.simulate(nkiconv.b2b_causal_conv1d_fused)(*given)
    assert all(one.tobytes() == other.tobytes() for one, other in zip((y, of_x, of_gated), alone, strict=True))
    held = np.zeros(shapes[0], x.dtype) if before[0] is None else before[0]
    assert of_x.tobytes() == np.ascontiguousarray(np.concatenate([held, x], 2)[:, :, 1 - taps[0] :]).tobytes()


@pytest.mark.parametrize(("D", "W", "taps", "dtype", "one"), [
    (4096, 8192, (3, 7), "bf16", True), (512, 2048, (3, 11), "fp16", True), (4096, 8192, (3, 128), "bf16", False),
    (4096, 8192, (3, 7), "fp32", False), (4096, 1, (3, 7), "bf16", False), (96, 8192, (3, 7), "bf16", False),
    (128, 8192, (3, 7), "bf16", False), (2048, 512, (3, 7), "bf16", False), (4096, 8192, (6, 7), "bf16", False),
])  # fmt: skip
def test_one_kernel_where_it_pays(D, W, taps, dtype, one):
    assert schedules.b2b.pays(schedules.b2b.B2bGeometry(1, D, W, *taps, DTYPES[dtype].itemsize)) is one


@pytest.mark.parametrize(("changed", "words"), [
    ({"proj_ref": np.ones((12, 1), np.float32)}, "must have 2 or more"),
    ({"proj_ref": np.ones((12, 3), np.float16)}, "proj_ref.dtype"),
    ({"x_ref": np.ones((1, 11, 9), np.float32)}, "x_ref.shape"),
    ({"x_state": np.ones((1, 12, 3), np.float32)}, "x_state.shape"),
    ({"mixer_ref": np.ones((4, 3000), np.float32)}, "diagonals must fit SBUF"),
    ({"return_final_states": 1}, "return_final_states=1"),
])  # fmt: skip
def test_kernels_arguments_are_refused(changed, words):
    given = {"x_ref": np.ones((1, 12, 9), np.float32), "proj_ref": np.ones((12, 3), np.float32)}
    given["mixer_ref"] = np.ones((4, 5), np.float32)
    with pytest.raises(KernelAssertionError, match=words):
        nkiconv.simulate(nkiconv.b2b_causal_conv1d_fused)(**(given | changed))


@given(
    N=st.integers(1, 3),
    D=st.sampled_from([1, 6, 45]),
    W=st.integers(1, 150),
    taps=st.tuples(st.integers(2, 5), st.sampled_from([2, 4, 7, 64, 130, 256])),
    shared=st.sampled_from([1, 3]),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    seed=st.integers(0, 99),
)
@draws(8, 12)
def test_within_the_bound(N, D, W, taps, shared, dtype, seed):
    given = drawn(N, D, W, taps, max(1, D // shared), dtype, seed)
    wanted, limit = truth(*given, dtype)
    for lnc in (1, 2):  # whose estimates may be other algorithms, which add in another order
        found = nkiconv.b2b_causal_conv1d(*given, interleaved=False, lnc=lnc)
        assert found.dtype == DTYPES[dtype]
        assert_within_limit(found, wanted, limit)


@pytest.mark.parametrize(("taps", "dtype"), [((3, 7), "fp32"), ((4, 64), "fp32"), ((3, 7), "bf16")])
def test_exact_and_pieces_are_the_whole(taps, dtype, one_kernel):
    x, *filters = drawn(2, 6, 80, taps, 3, dtype, 0, whole=True)
    more = {"interleaved": False, "return_final_states": True}
    whole, final = nkiconv.b2b_causal_conv1d(x, *filters, **more)
    assert bool(one_kernel) is (dtype == "bf16")
    assert_exact(whole, truth(x, *filters, dtype)[0], dtype)
    assert np.array_equal(nkiconv.b2b_causal_conv1d(x, *filters, interleaved=False, lnc=1), whole)
    _, x1, v = np.split(causal_ref(x.astype(np.float64), filters[0].astype(np.float64)), 3, axis=1)
    for state, right in zip(final, (x, x1 * v), strict=True):
        assert np.array_equal(state.astype(np.float64), right[..., -state.shape[2] :].astype(np.float64))
    states, found = None, []
    for piece in np.split(x, [70, 71, 72], axis=2):
        y, states = nkiconv.b2b_causal_conv1d(piece.copy(), *filters, initial_states=states, **more)
        found.append(y)
    assert np.array_equal(np.concatenate(found, axis=2), whole)
    assert all(np.array_equal(one, other) for one, other in zip(states, final, strict=True))
    plain = nkiconv.b2b_causal_conv1d(x, *filters[:2], interleaved=False)
    assert np.array_equal(plain, nkiconv.b2b_causal_conv1d(x, *filters[:2], 0 * filters[2], interleaved=False))
    assert nkiconv.b2b_causal_conv1d(x[:0], *filters, interleaved=False).shape == (0, 6, 80)


@pytest.mark.parametrize("mode", ["simulate", "compare"])
@pytest.mark.parametrize("with_states", [False, True])
def test_torch_in_one_kernel(mode, with_states, monkeypatch, plainly, one_kernel):
    """NumPy's bits; derivatives, of all states too, and batches are those of the two operators."""
    monkeypatch.setenv("NKICONV_CPU", mode)
    arrays = drawn(2, 6, 11, (3, 7), 6, "bf16", 0)
    rng, shapes = np.random.default_rng(2), ((2, 18, 2), (2, 6, 6))
    before = tuple(rng.standard_normal(shape).astype(DTYPES["bf16"]) for shape in shapes) if with_states else None
    more = {"interleaved": False, "return_final_states": True}
    whole, after = nkiconv.b2b_causal_conv1d(*arrays, initial_states=before, **more)
    leaves = [from_numpy(one).requires_grad_() for one in (*arrays, *(before or ()))]
    one_kernel.clear()

    def call(x, proj, mixer, skip, *states):
        return pytorch.b2b_causal_conv1d(x, proj, mixer, skip, initial_states=states or None, **more)

    y, (of_x, of_gated) = call(*leaves)
    assert len(one_kernel) == 2  # cores
    if mode == "simulate":
        for one, right in zip((y, of_x, of_gated), (whole, *after), strict=True):
            assert to_numpy(one).tobytes() == right.tobytes()
    found = torch.autograd.grad(sum(one.float().sum() for one in (y, of_x, of_gated)), leaves)
    monkeypatch.setattr("nkiconv.pytorch.b2b.pays", lambda _: False)
    y2, (of_x2, of_gated2) = call(*leaves)
    wanted = torch.autograd.grad(sum(one.float().sum() for one in (y2, of_x2, of_gated2)), leaves)
    assert all(torch.equal(one, right) for one, right in zip(found, wanted, strict=True))
    monkeypatch.undo()


def hyena():
    proj, mixer = (torch.nn.Parameter(from_numpy(one)) for one in drawn(1, 6, 1, (3, 7), 6, "bf16", 0)[1:3])
    call = pytorch.b2b_causal_conv1d
    return made(lambda model, x: call(x, model.proj, model.mixer, interleaved=False), proj=proj, mixer=mixer)


def test_one_kernel_in_plans_and_batches_and_on_a_device(monkeypatch, one_kernel):
    model, x = hyena(), from_numpy(drawn(2, 6, 11, (3, 7), 6, "bf16", 1)[0])
    (row,) = pytorch.plan_model(model, (x,)).rows
    assert (row.plan.operation, row.plan.symbols, row.calls) == ("b2b_causal_conv1d", {"mixer S": 7}, 1)
    monkeypatch.setenv("NKICONV_CPU", "simulate")
    with torch.no_grad():
        right = model(x)
        assert_within_share([torch.vmap(model)(x[:, None])[:, 0]], [right], BF16_NORMS)
        with pytest.raises(UnsupportedError, match="forward mode"):
            torch.func.jvp(model, (x,), (x,))

        def launcher(kernel, lnc):
            return lambda *given, **named: from_numpy(nkiconv.simulate(kernel[lnc])(*map(to_numpy, given), **named))

        monkeypatch.setattr(device, "launcher", launcher)
        monkeypatch.setattr(modes, "computer", lambda _: "device")
        assert torch.equal(model(x), right)


@pytest.mark.slow
def test_the_operator_of_one_kernel(one_kernel):
    """As torch checks operators, with extents that are not known; and one graph of torch.compile."""
    x, proj, mixer, _ = (from_numpy(one) for one in drawn(2, 6, 11, (3, 7), 6, "bf16", 0))
    states = torch.zeros(2, 18, 2).bfloat16(), torch.zeros(2, 6, 6).bfloat16()
    for before, last in ((states, True), ((None, None), False)):
        found = torch.library.opcheck(
            torch.ops.nkiconv.b2b_causal_conv1d.default, (x.clone().requires_grad_(), proj, mixer, *before, last, None)
        )
        assert set(found.values()) == {"SUCCESS"}
    compiled = torch.compile(hyena(), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), hyena()(x))


X, PROJ, MIXER = np.ones((2, 12, 9), np.float32), np.ones((12, 3), np.float32), np.ones((2, 5), np.float32)
STATES = np.ones((2, 12, 2), np.float32), np.ones((2, 4, 4), np.float32)
PLAIN = {"interleaved": False}


@pytest.mark.parametrize("tensors", [False, True])
@pytest.mark.parametrize(
    ("given", "more", "error", "words"),
    [
        ((X, PROJ, MIXER), {"interleaved": True}, LayoutError, "reorder the rows of the projection"),
        ((X, PROJ, MIXER), {"interleaved": 1}, LayoutError, "interleaved=1"),
        ((X, PROJ, MIXER), PLAIN | {"initial_states": STATES[0]}, LayoutError, "must be a pair"),
        ((X, PROJ, MIXER), PLAIN | {"initial_states": STATES[::-1]}, GeometryError, r"initial_states\[0\].shape"),
        ((X, PROJ, MIXER), PLAIN | {"return_final_states": 1}, UnsupportedError, "return_final_states=1"),
        ((X[:, :11], PROJ, MIXER), PLAIN, GeometryError, "must have 3 \\* D"),
        ((X, PROJ[:4], MIXER), PLAIN, GeometryError, "weights_proj.shape"),
        ((X, PROJ, PROJ[:3]), PLAIN, GeometryError, "a divisor of D=4"),
        ((X, PROJ[:, :1], MIXER), PLAIN, UnsupportedError, "2 taps or more"),
        ((X, PROJ, MIXER, X[0, :3, 0]), PLAIN, GeometryError, "skip_bias.shape"),
        ((X, PROJ, MIXER.astype(np.float16)), PLAIN, DtypeError, "weights_mixer.dtype"),
        ((X, PROJ, MIXER.astype(np.int32)), PLAIN, DtypeError, "weights_mixer"),
        ((X, PROJ[None], MIXER), PLAIN, LayoutError, "weights_proj.shape"),
        ((X, PROJ, [1.0]), PLAIN, DtypeError, "weights_mixer"),
    ],
)
def test_refusals(given, more, error, words, tensors):
    call = nkiconv.b2b_causal_conv1d
    if tensors:
        call = pytorch.b2b_causal_conv1d
        given = [torch.from_numpy(one.copy()) if isinstance(one, np.ndarray) else one for one in given]
        if isinstance(more.get("initial_states"), tuple):
            more = more | {"initial_states": tuple(map(torch.from_numpy, more["initial_states"]))}
    with pytest.raises(error, match=words):
        call(*given, **more)


def test_arrays_are_refused_by_cores():
    with pytest.raises(UnsupportedError, match="lnc=3"):
        nkiconv.b2b_causal_conv1d(X, PROJ, MIXER, interleaved=False, lnc=3)
