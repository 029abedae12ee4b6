"""nki.language: constants, tensor creation, loads and stores, printing, loops, and what is missing or refused."""

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import get
from pairs import dropped, run

from nkiconv.simulator import NkiError, execute, jit
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.coverage import coverage
from nkiconv.simulator.documented import LANGUAGE_GEN4, LANGUAGE_REFUSED

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
def test_creation(buffer, dtype):
    def body():
        for tensor, expected in (
            (nl.zeros((4, 3, 5), dtype, buffer), 0),
            (nl.ones((4, 3, 5), dtype, buffer, name="ones"), 1),
            (nl.full((4, 3, 5), 1, dtype, buffer), 1),
            (nl.zeros_like(nl.ndarray((4, 3, 5), dtype, buffer)), 0),
        ):
            assert (tensor.shape, tensor.dtype, tensor.buffer) == ((4, 3, 5), dtype, buffer)
            np.testing.assert_array_equal(get(tensor).astype(np.float32), expected)

    run(body)


def test_like_takes_other_settings():
    def body():
        tile = nl.ndarray((4, 8), F32)
        for make in (nl.empty_like, nl.zeros_like):
            assert (make(tile).dtype, make(tile).buffer) == (F32, nl.sbuf)
            other = make(tile[:, 0:3], dtype=BF16, buffer=nl.psum, name="other")
            assert (other.shape, other.dtype, other.buffer, other.name) == ((4, 3), BF16, nl.psum, "other")
        with pytest.raises(NkiError, match="NKI016"):
            get(nl.empty_like(tile))

    run(body)


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
    def body():
        tile = nl.ones((4, 8), F32)
        nisa.tensor_tensor(tile, tile, tile, getattr(nl, name))

    with pytest.raises(NkiError, match=rf"NKI049.*nl\.{name} needs NeuronCore-v4"):
        run(body)


def test_other_names_do_not_exist():
    assert not hasattr(nl, "does_not_exist")
    assert not hasattr(nisa, "does_not_exist")
    with pytest.raises(AttributeError, match=r"'nki\.language' has no attribute 'flip'"):
        nl.flip  # noqa: B018


def test_coverage():
    by_name = {c.namespace: c for c in coverage()}
    assert set(by_name) == {"nki.isa", "nki.language", "NkiTensor", "nki.compiler"}
    assert [namespace.missing for namespace in by_name.values()] == [()] * 4
    for namespace in by_name.values():
        assert namespace.simulated + len(namespace.missing) == namespace.documented
        assert 0.7 < namespace.simulated / namespace.documented <= 1
