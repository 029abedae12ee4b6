"""Views of NkiTensor: attributes as AWS's documents give them, and what views see against NumPy."""

from math import prod

import numpy as np
import pytest
from isa_tiles import get
from pairs import run

from nkiconv import simulator
from nkiconv.simulator import NkiError, NotSimulatedError
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl
from nkiconv.simulator.documented import TENSOR_MEMBERS

F32, BF16, U8, I32 = nl.float32, nl.bfloat16, nl.uint8, nl.int32


def inside(check):
    def test():
        run(lambda: check() and None)

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


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


#: (shape on chip, index, shape of the result); the first rows are those of AWS's language guide.
INDEXED = [
    ((64, 64, 64), (0, 0, 10), (1, 1)),
    ((64, 64, 64), (slice(0, 64), 0, slice(0, 64)), (64, 64)),
    ((64, 64, 64), (0, ..., slice(None)), (1, 64, 64)),
    ((4, 6), -1, (1, 6)),
    ((4, 6), (slice(-3, -1), slice(-4, None)), (2, 4)),
    ((4, 6), (slice(None), slice(1, 6, 3)), (4, 2)),
    ((4, 6), (nl.ds(1, 2), nl.ds(2, 4)), (2, 4)),
    ((4, 6), (np.int64(2), ..., np.int32(5)), (1, 1)),
    ((4, 6, 5, 2, 3), (slice(1, 3), ..., 1, slice(None)), (2, 6, 5, 3)),
]


@pytest.mark.parametrize(("shape", "key", "expected"), INDEXED)
def test_indexing_on_chip_keeps_the_partition_dim(shape, key, expected):
    def body():
        tile, array = filled(shape, nl.sbuf)
        view = tile[key]
        assert view.shape == expected
        plain = tuple(slice(k.start, k.start + k.size) if hasattr(k, "size") and hasattr(k, "start") else k
                      for k in (key if isinstance(key, tuple) else (key,)))  # fmt: skip
        np.testing.assert_array_equal(get(view).reshape(-1), array[plain].reshape(-1))

    run(body)


@inside
def test_indexing_hbm_drops_dims():
    tensor, array = filled((4, 6, 5), nl.hbm)
    for key in (0, (0, 1), (-1, slice(None), 2), (..., 0), (slice(1, 3), 1)):
        assert tensor[key].shape == array[key].shape
        np.testing.assert_array_equal(get(tensor[key]), array[key])
    assert tensor[1, 2, 3].shape == (1,)
    assert get(tensor[1, 2, 3])[0] == array[1, 2, 3]


# a tensor's shape, a view of it, and the same of NumPy's array
SEEN = [
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
]  # fmt: skip


@pytest.mark.parametrize(("shape", "view", "picture"), SEEN)
def test_what_a_view_sees(shape, view, picture):
    def body():
        tile, array = filled(shape, nl.sbuf)
        np.testing.assert_array_equal(get(view(tile)), picture(array))

    run(body)


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
    with pytest.raises(NkiError, match=r"NKI049.*NkiTensor\.indirect needs NeuronCore-v4"):
        tile.indirect(tile)
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


def test_a_tensor_is_true_with_a_warning():
    seen = []

    def body():
        tensor = nl.ndarray((4, 8), F32, nl.sbuf)
        with pytest.warns(simulator.TensorTruthWarning, match=r"true whatever it holds: \[4, 8\] fp32 in SBUF"):
            seen.append(bool(tensor))

    run(body)
    assert seen == [True]
