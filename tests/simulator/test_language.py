"""nki.language: constants, tensor creation, loads and stores, printing, loops, and what is missing or refused; views of
NkiTensor: attributes as AWS's documents give them, and what views see against NumPy.
"""

from math import prod

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import get
from pairs import dropped, inside, run

from nkiconv import simulator
from nkiconv.simulator import NkiError, NotSimulatedError, execute, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.coverage import coverage
from nkiconv.simulator.documented import LANGUAGE_GEN4, LANGUAGE_REFUSED, TENSOR_MEMBERS

F32, BF16, I32, U8 = nl.float32, nl.bfloat16, nl.int32, nl.uint8


def test_tile_sizes_of_trn2():
    expected = {
        "pmax": 128, "psum_fmax": 512, "psum_bank_fmax": 512, "psum_bank_fmax_bytes": 2048, "gemm_stationary_fmax": 128,
        "gemm_moving_fmax": 512, "bn_stats_fmax": 512, "psum_min_align": 4, "sbuf_min_align": 1, "psum_num_banks": 8,
        "sbuf_size_bytes": 28 * 2**20, "sbuf_fmax": 53_182, "sbuf_fmax_bytes": 212_728,
        "total_available_sbuf_size": 212_728,
    }  # fmt: skip
    assert {name: getattr(nl.tile_size, name) for name in expected} == expected
    assert {name for name in dir(nl.tile_size) if not name.startswith("_")} == set(expected)


def test_memories():
    assert nl.hbm is nl.private_hbm
    assert [b.name for b in (nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm)] == ["sbuf", "psum", "private_hbm", "shared_hbm"]
    table = {nl.is_sbuf: "s", nl.is_psum: "p", nl.is_on_chip: "sp", nl.is_hbm: "hx"}
    memories = {"s": nl.sbuf, "p": nl.psum, "h": nl.hbm, "x": nl.shared_hbm}
    for question, yes in table.items():
        assert {key for key, memory in memories.items() if question(memory)} == set(yes)


@pytest.mark.parametrize(("buffer", "dtype"), [
    (nl.sbuf, F32), (nl.psum, BF16), (nl.hbm, I32), (nl.shared_hbm, U8), (nl.hbm, nl.float8_e4m3), (nl.sbuf, nl.bool_),
])  # fmt: skip
@inside
def test_creation(buffer, dtype):
    for tensor, expected in (
        (nl.zeros((4, 3, 5), dtype, buffer), 0),
        (nl.ones((4, 3, 5), dtype, buffer, name="ones"), 1),
        (nl.full((4, 3, 5), 1, dtype, buffer), 1),
        (nl.zeros_like(nl.ndarray((4, 3, 5), dtype, buffer)), 0),
    ):
        assert (tensor.shape, tensor.dtype, tensor.buffer) == ((4, 3, 5), dtype, buffer)
        np.testing.assert_array_equal(get(tensor).astype(np.float32), expected)


@inside
def test_like_takes_other_settings():
    tile = nl.ndarray((4, 8), F32)
    for make in (nl.empty_like, nl.zeros_like):
        assert (make(tile).dtype, make(tile).buffer) == (F32, nl.sbuf)
        other = make(tile[:, 0:3], dtype=BF16, buffer=nl.psum, name="other")
        assert (other.shape, other.dtype, other.buffer, other.name) == ((4, 3), BF16, nl.psum, "other")
    with pytest.raises(NkiError, match="NKI016"):
        get(nl.empty_like(tile))


def test_load_and_store():
    def kernel(x):
        tile = nl.load(x)
        assert (tile.buffer, tile.shape, tile.dtype) == (nl.sbuf, (4, 8), F32)
        out = nl.ndarray((4, 8), BF16, nl.shared_hbm)
        nl.store(out, nl.load(x, dtype=BF16))
        return out, nl.load(x[0]).shape

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    out, shape = jit(kernel)(x)
    np.testing.assert_array_equal(out, x.astype(ml_dtypes.bfloat16))
    assert shape == (8, 1)


@pytest.mark.parametrize("name", ["affine_range", "sequential_range", "static_range"])
def test_ranges(name):
    loop = getattr(nl, name)
    assert list(loop(3)) == [0, 1, 2]
    assert list(loop(1, 4)) == [1, 2, 3]
    assert list(loop(1, stop=8, step=3)) == [1, 4, 7]


@pytest.mark.parametrize("dtype", [F32, nl.float8_e4m3])
def test_identity(dtype):
    def body():
        tile = nl.shared_identity_matrix(128, dtype)
        assert (tile.shape, tile.dtype, tile.buffer) == ((128, 128), dtype, nl.sbuf)
        np.testing.assert_array_equal(get(tile).astype(np.float32), np.eye(128))
        into = nl.ndarray((8, 8), F32)
        assert nl.shared_identity_matrix(8, dst=into) is into
        np.testing.assert_array_equal(get(into), np.eye(8))

    run(body)
    run(body, lnc=2)


CONSTANT = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_constants(tmp_path):
    np.save(tmp_path / "c.npy", CONSTANT)

    def kernel(source):
        constant = nl.shared_constant(source)
        assert (constant.buffer, constant.shape, constant.dtype) == (nl.shared_hbm, (3, 4), F32)
        return constant

    for source in (tmp_path / "c.npy", str(tmp_path / "c.npy")):
        for lnc in (1, 2):
            np.testing.assert_array_equal(jit(kernel)[lnc](source), CONSTANT)
    np.testing.assert_array_equal(jit(lambda: kernel(CONSTANT.T.copy().T))(), CONSTANT)
    traced = execute(jit(kernel), (str(tmp_path / "c.npy"),), trace_only=True)
    assert traced.outputs.shape == (3, 4)
    with pytest.raises(FileNotFoundError):
        jit(kernel)(str(tmp_path / "absent.npy"))


def test_constants_are_the_same_on_both_cores():
    with pytest.raises(NkiError, match=r"NKI027.*different values"):
        run(lambda: dropped(nl.shared_constant(CONSTANT + np.float32(nl.program_id(0)))), lnc=2)


def test_pickled_constants_are_refused(tmp_path):
    np.save(tmp_path / "c.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(NkiError, match=r"NKI025.*c\.npy.*allow_pickle"):
        run(lambda: dropped(nl.shared_constant(tmp_path / "c.npy")))


def test_device_print(capsys):
    def body():
        nl.device_print("my tile", nl.full((2, 3), 7.0, F32, name="seven"))

    run(body)
    printed = capsys.readouterr().out
    assert printed.startswith("my tile [2, 3] fp32 in SBUF, seven allocated at ")
    assert printed.endswith("[[7. 7. 7.]\n [7. 7. 7.]]\n")
    run(body, trace_only=True)
    assert capsys.readouterr().out.startswith("my tile [2, 3] fp32 in SBUF")
    run(lambda: nl.device_print("flat", nl.ones((3,), F32, nl.hbm)))
    assert "[1. 1. 1.]" in capsys.readouterr().out


def zeros(buffer=nl.sbuf):
    return nl.zeros((4, 8), F32, buffer)


def constant(value):
    return lambda: nl.shared_constant(value)


REFUSED = {
    "a store of PSUM": ("NKI040: store", lambda: nl.store(zeros(nl.hbm), zeros(nl.psum))),
    "a load of a tile": ("NKI040", lambda: nl.load(zeros())),
    "a load of a number": ("NKI040", lambda: nl.load(3)),
    "zeros like a number": ("NKI040: zeros_like: x=3 is not a tensor", lambda: nl.zeros_like(3)),
    "a tensor like a list": ("NKI040: empty_like", lambda: nl.empty_like([1.0])),
    "a tensor as a dtype": ("NKI001: ndarray: dtype=NkiTensor", lambda: nl.ndarray((2, 3), zeros())),
    "a store of HBM": ("NKI040", lambda: nl.store(zeros(nl.hbm), zeros(nl.hbm))),
    "a prefix that is no string": ("NKI048.*print_prefix=3", lambda: nl.device_print(3, zeros())),
    "printing what nobody wrote": ("NKI016", lambda: nl.device_print("", nl.ndarray((2, 3), F32))),
    "printing PSUM": ("NKI040.*SBUF or HBM", lambda: nl.device_print("", zeros(nl.psum))),
    "writing a constant": ("NKI033", lambda: nisa.dma_copy(nl.shared_constant(CONSTANT), nl.zeros((3, 4), F32))),
    "a constant of objects": ("NKI025.*dtype object", constant(np.zeros((2, 2), object))),
    "a constant of another fp8": ("NKI025.*dtype float8_e4m3; accepted are float32",
     constant(np.zeros((2, 2), ml_dtypes.float8_e4m3))),
    "a constant that is a list": ("NKI025.*neither a NumPy array nor the path", constant([[1.0]])),
    # known issue of NKI 0.4 and later: the compiler takes no number there
    "an exponent that is a number": (r"NKI048.*nl\.power of a tile and a number", lambda: nl.power(zeros(), 2.0)),
    "a base that is a number": (r"NKI048.*nl\.power of a tile and a number", lambda: nl.power(2.0, zeros())),
    **{name: (rf"NKI048.*nl\.{name}: no engine", lambda name=name: getattr(nl, name)(1, 2))
       for name in LANGUAGE_REFUSED},
}  # fmt: skip


@pytest.mark.parametrize(("match", "call"), REFUSED.values(), ids=REFUSED)
def test_refused(match, call):
    with pytest.raises(NkiError, match=match):
        run(lambda: dropped(call()))


@pytest.mark.parametrize("name", [name for name in LANGUAGE_GEN4 if "_x4" in name])
def test_dtypes_of_trn3_can_be_named_but_not_stored(name):
    assert getattr(nl, name) == name != F32
    with pytest.raises(NkiError, match=rf"NKI049.*{name} needs NeuronCore-v4"):
        run(lambda: dropped(nl.ndarray((4, 8), getattr(nl, name))))


@pytest.mark.parametrize("name", [name for name in LANGUAGE_GEN4 if "_x4" not in name])
def test_operators_of_trn3_are_refused(name):
    op = getattr(nl, name)

    def tile():
        return nl.ones((4, 8), F32)

    for call in (
        lambda: nisa.tensor_tensor(tile(), tile(), tile(), op),
        lambda: op(tile()),
        lambda: op(tile(), tile()),
    ):
        with pytest.raises(NkiError, match=rf"NKI049.*nl\.{name} needs NeuronCore-v4"):
            run(lambda call=call: dropped(call()))


def test_other_names_do_not_exist():
    assert not hasattr(nl, "does_not_exist")
    assert not hasattr(nisa, "does_not_exist")
    with pytest.raises(AttributeError, match=r"'nki\.language' has no attribute 'flip'"):
        nl.flip  # noqa: B018


def test_coverage():
    namespaces = coverage()
    assert {one.namespace for one in namespaces} == {"nki.isa", "nki.language", "NkiTensor", "nki.compiler"}
    assert [(one.missing, one.simulated) for one in namespaces] == [((), one.documented) for one in namespaces]


def filled(shape, buffer, dtype=F32):
    """A tensor that counts 0, 1, 2, ... in its storage, and NumPy's array of the same."""
    array = np.arange(prod(shape)).reshape(shape).astype(dtype)
    tensor = nl.ndarray(shape, dtype, buffer)
    tensor.storage.write(tensor, array)
    return tensor, array


@inside
def test_attributes():
    tile = nl.ndarray((128, 64), F32, nl.sbuf, name="weights")
    assert (tile.shape, tile.strides, tile.offset) == ((128, 64), (64, 1), 0)
    assert (tile.dtype, tile.buffer, tile.name) == (F32, nl.sbuf, "weights")
    assert (tile.ndim, tile.size) == (2, 128 * 64)
    part = tile.slice(dim=1, start=8, end=24)
    assert (part.get_pattern(), part.offset, part.name) == ([[64, 128], [1, 16]], 8, "weights")
    same = tile.ap(pattern=[[64, 128], [1, 16]], offset=8)
    assert (same.get_pattern(), same.offset) == (part.get_pattern(), part.offset)
    assert (tile.is_indirect(), tile.is_contiguous(), tile[:, ::2].is_contiguous()) == (False, True, False)
    assert "weights" in repr(tile)
    assert "[128, 64] fp32 in SBUF" in repr(tile)


# (shape on chip, index, shape of the result); the first rows are those of AWS's language guide.
@pytest.mark.parametrize(("shape", "key", "expected"), [
    ((64, 64, 64), (0, 0, 10), (1, 1)),
    ((64, 64, 64), (slice(0, 64), 0, slice(0, 64)), (64, 64)),
    ((64, 64, 64), (0, ..., slice(None)), (1, 64, 64)),
    ((4, 6), -1, (1, 6)),
    ((4, 6), (slice(-3, -1), slice(-4, None)), (2, 4)),
    ((4, 6), (slice(None), slice(1, 6, 3)), (4, 2)),
    ((4, 6), (nl.ds(1, 2), nl.ds(2, 4)), (2, 4)),
    ((4, 6), (np.int64(2), ..., np.int32(5)), (1, 1)),
    ((4, 6, 5, 2, 3), (slice(1, 3), ..., 1, slice(None)), (2, 6, 5, 3)),
])  # fmt: skip
@inside
def test_indexing_on_chip_keeps_the_partition_dim(shape, key, expected):
    tile, array = filled(shape, nl.sbuf)
    view = tile[key]
    assert view.shape == expected
    plain = tuple(slice(k.start, k.start + k.size) if hasattr(k, "size") and hasattr(k, "start") else k
                  for k in (key if isinstance(key, tuple) else (key,)))  # fmt: skip
    np.testing.assert_array_equal(get(view).reshape(-1), array[plain].reshape(-1))


@inside
def test_indexing_hbm_drops_dims():
    tensor, array = filled((4, 6, 5), nl.hbm)
    for key in (0, (0, 1), (-1, slice(None), 2), (..., 0), (slice(1, 3), 1)):
        assert tensor[key].shape == array[key].shape
        np.testing.assert_array_equal(get(tensor[key]), array[key])
    assert tensor[1, 2, 3].shape == (1,)
    assert get(tensor[1, 2, 3])[0] == array[1, 2, 3]


# a tensor's shape, a view of it, and the same of NumPy's array
@pytest.mark.parametrize(("shape", "view", "picture"), [
    ((4, 6, 5), lambda t: t.select(0, 2), lambda a: a[2:3]),
    ((4, 6, 5), lambda t: t.slice(2, 1, 5, 3), lambda a: a[:, :, 1:5:3]),
    ((4, 6), lambda t: t.select(1, 3), lambda a: a[:, 3:4]),
    ((4, 6), lambda t: t[1:3, 2:5].view(nl.uint16), lambda a: np.ascontiguousarray(a[1:3, 2:5]).view(np.uint16)),
    ((4, 6), lambda t: t.reinterpret_cast(U8), lambda a: a.view(np.uint8)),
    ((4, 6), lambda t: t[:, ::2].view(I32), lambda a: a[:, ::2].view(np.int32)),
    ((4, 12), lambda t: t.ap([[12, 2], [2, 6]], offset=12), lambda a: a[1:3, ::2]),
    ((4, 12), lambda t: t.ap([[12, 4], [3, 4], [1, 2]]), lambda a: a.reshape(4, 4, 3)[:, :, :2]),
    ((4, 12), lambda t: t.ap([(12, 4), (-1, 12)], offset=11), lambda a: a[:, ::-1]),
    ((4, 12), lambda t: t[1:].ap([[24, 2], [1, 2]], dtype=nl.uint16), lambda a: a.view(np.uint16)[1:3, :2]),
    ((4, 24), lambda t: t.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4}),
     lambda a: a.reshape(4, 4, 6).transpose(0, 2, 1)),
    ((4, 3, 1, 5), lambda t: t[..., 2:3].flatten_dims(1, 3), lambda a: a[..., 2].reshape(4, 3)),
    ((4, 3, 1, 5), lambda t: t[2:3, :, :, 0:2].reshape((1, 3, 2)), lambda a: a[2:3, :, 0, 0:2]),
    ((4, 3, 1, 5), lambda t: t.permute((0, 3, 2, 1)).broadcast(2, 4),
     lambda a: np.broadcast_to(a.transpose(0, 3, 2, 1), (4, 5, 4, 3))),
    ((4, 3, 1, 5), lambda t: t[:, ::2].reshape_dim(3, (-1, 1)), lambda a: a[:, ::2].reshape(4, 2, 1, 5, 1)),
    ((4, 3, 1, 5), lambda t: t.expand_dim(1).squeeze_dim(1), lambda a: a),
])  # fmt: skip
@inside
def test_what_a_view_sees(shape, view, picture):
    tile, array = filled(shape, nl.sbuf)
    np.testing.assert_array_equal(get(view(tile)), picture(array))


@inside
def test_views_of_hbm():
    overlapping, flat = filled((20,), nl.hbm)
    windows = np.lib.stride_tricks.sliding_window_view(flat, 8)[::3]
    np.testing.assert_array_equal(get(overlapping.ap([[3, 5], [1, 8]])), windows)
    tensor, array = filled((4, 6, 5), nl.hbm)
    merged = tensor.rearrange((("a", "b"), "c", "d"), ("d", "a", ("b", "c")), {"b": 2})
    expected = array.reshape(2, 2, 6, 5).transpose(3, 0, 1, 2).reshape(5, 2, 12)
    np.testing.assert_array_equal(get(merged), expected)
    assert tensor.rearrange(("a", "b", "c"), ("a", "b", (), "c")).shape == (4, 6, 1, 5)


@inside
def test_view_of_bytes_nobody_wrote():
    tile = nl.ndarray((2, 4), F32)
    halves = tile.view(BF16)
    nisa.memset(halves[:, 0:7], 1.0)
    assert get(halves[:, 0:7]).all()
    get(tile[:, 0:3])
    with pytest.raises(NkiError, match=r"NKI016.*element \(0, 3\) of the view \(and 1 more\)"):
        get(tile)
    with pytest.raises(NkiError, match=r"NKI016.*element \(0, 14\) of the view \(and 3 more\)"):
        get(tile.view(U8))
    nisa.memset(tile[:, 3], 2.0)
    assert get(tile)[1, 3] == 2.0


@inside
def test_what_a_tensor_lacks():
    tile = nl.ndarray((4, 6), F32)
    for member in TENSOR_MEMBERS:
        assert hasattr(tile, member)
    with pytest.raises(NkiError, match=r"^NKI049: indirect: NkiTensor\.indirect needs NeuronCore-v4"):
        tile.indirect(tile)
    with pytest.raises(NkiError, match=r"^NKI048: divide: nl\.divide: no engine divides"):
        nl.divide(tile, tile)
    with pytest.raises(NotSimulatedError, match="dynamic tensor indexing"):
        tile[tile]
    with pytest.raises(AttributeError, match="no attribute 'flatten'"):
        tile.flatten()


@pytest.mark.parametrize("trace_only", [False, True])
def test_views_past_the_end_or_of_nothing_are_refused_where_they_are_used(trace_only):
    def body():
        tensor = nl.ndarray((4, 8), F32, nl.sbuf)
        nothing, outside = tensor[:, 3:3], tensor.ap([[8, 4], [1, 9]])
        assert (nothing.shape, outside.shape) == ((4, 0), (4, 9))
        assert nothing[:, 0:0].shape == (4, 0)
        nisa.memset(outside, 1.0)

    with pytest.raises(NkiError, match=r"NKI012: memset: pattern .* leaves the partition of 8 elements"):
        run(body, trace_only=trace_only)


@inside
def test_a_tensor_is_true_with_a_warning():
    with pytest.warns(simulator.TensorTruthWarning, match=r"true whatever it holds: \[4, 8\] fp32 in SBUF"):
        assert nl.ndarray((4, 8), F32, nl.sbuf)
