"""Wrong arguments of fused blocks are refused by name, by functions and by kernels, and change nothing."""

import functools

import ml_dtypes
import numpy as np
import pytest

import nkiconv
from nkiconv import DtypeError, GeometryError, LayoutError, UnsupportedError, simulator

BF16 = ml_dtypes.bfloat16
ROWS = []


def refused(function, given, rows):
    """Rows (what changes of what is given, the error, its words)."""
    ROWS.extend((functools.partial(function, **(given | changed)), error, words) for changed, error, words in rows)


X, W, TWO = np.ones((1, 8, 5), np.float32), np.ones((8, 4), np.float32), ((2, 2, True), (1, 4, False))
refused(nkiconv.causal_conv1d_split, {"x": X, "w": W, "splits": TWO}, [
    ({"x": X[0]}, LayoutError, "x.shape"),
    ({"layout": "NCT"}, LayoutError, "layout='NCT'"),
    ({"x": X.astype(np.float64)}, DtypeError, "x.dtype=float64"),
    ({"w": W.astype(BF16)}, DtypeError, "w.dtype=bfloat16"),
    ({"x": X[:, :, :0]}, GeometryError, "W"),
    ({"w": W[:7]}, GeometryError, "w.shape"),
    ({"w": np.ones((8, 17), np.float32)}, UnsupportedError, "S=17"),
    ({"bias": np.ones(7, np.float32)}, GeometryError, "bias.shape"),
    ({"splits": [(2, 4, True)]}, GeometryError, "must be a tuple of"),
    ({"splits": ((0, 4, True), (2, 4, True))}, GeometryError, "at least 1"),
    ({"splits": ((2, 3, True),)}, GeometryError, "has 6 channels, x has C=8"),
    ({"splits": ((8, 1, True),)}, GeometryError, "2 to 512 channels"),
    ({"activation": "swish"}, UnsupportedError, "activation='swish'"),
    ({"eps": -1.0}, UnsupportedError, "eps=-1.0"),
    ({"lnc": 4}, UnsupportedError, "lnc=4"),
    ({"return_final_state": 1}, UnsupportedError, "return_final_state=1"),
    ({"initial_state": np.ones((1, 8, 4), np.float32)}, GeometryError, "initial_state.shape"),
    ({"cu_seqlens": [0, 5]}, GeometryError, "must be a tuple of ints"),
    ({"cu_seqlens": (0, 3, 2, 5)}, GeometryError, "never fall"),
    ({"x": X[[0, 0]], "cu_seqlens": (0, 5)}, GeometryError, "x has N=2"),
    ({"state_positions": (6,)}, GeometryError, "from 1 to x's 5 tokens"),
    ({"w": W[:, :1], "state_positions": (1,)}, GeometryError, "S=1"),
    ({"chunks": "xB"}, LayoutError, "chunks='xB', layout='NCW': must be token-major"),
    ({"first_channel": 1}, GeometryError, "first_channel=1: must be an int of at least 0 so that 8 of x's 8 channels"),
    ({"first_channel": 0.5}, GeometryError, "first_channel=0.5"),
    ({"chunks": "xx"}, LayoutError, "chunks='xx'"),
    ({"x": np.ones((1, 5, 8), np.float32), "layout": "NWC", "chunks": "BCx"}, LayoutError, "8 channels, no multiple"),
    ({"x": np.ones((1, 5, 8), np.float32), "layout": "NWC", "chunks": "xB"}, GeometryError, "w.shape"),
    ({"w": W[:, :1], "return_final_state": True}, GeometryError, "S=1"),
])  # fmt: skip
STEP, STATE, SLOTS = np.ones((2, 8), np.float32), np.ones((2, 8, 3), np.float32), np.array([1, 0])
NINE, EIGHT = np.ones((8, 9), np.float32), np.ones((2, 8, 8), np.float32)
refused(nkiconv.causal_conv1d_split_update, {"x": STEP, "state": STATE, "w": W, "splits": ((2, 4, True),)}, [
    ({"x": STEP[0]}, LayoutError, "x.shape"),
    ({"state": STATE[:1]}, GeometryError, r"state.shape=\(1, 8, 3\)"),
    ({"state": STATE.astype(BF16)}, DtypeError, "state.dtype"),
    ({"state": np.asfortranarray(STATE)}, LayoutError, "C-contiguous"),
    ({"w": W[:, :1]}, UnsupportedError, "S=1"),
    ({"x": np.ones((2, 8, 14), np.float32)}, UnsupportedError, "W=14: with S=4 .* 13 tokens"),
    ({"state": EIGHT, "w": NINE}, UnsupportedError, "S=9"),
    ({"state_indices": SLOTS * 1.0}, DtypeError, "int32 or int64"),
    ({"state_indices": SLOTS[:1]}, GeometryError, "state_indices.shape"),
    ({"state_indices": SLOTS + 1}, GeometryError, "2 is no slot of 2"),
    ({"state_indices": SLOTS - 1, "pad_slot": -2}, GeometryError, "-1 is no slot"),
    ({"pad_slot": None}, UnsupportedError, "pad_slot=None"),
    ({"state_indices": SLOTS * 0}, GeometryError, "0 comes twice"),
    ({"lnc": 3}, UnsupportedError, "lnc=3"),
])  # fmt: skip
IMAGE, ONE, OTHER = (np.ones(shape, np.float32) for shape in ((5, 20, 5, 6), (40, 20), (24, 40)))
refused(nkiconv.pointwise_mlp, {"x": IMAGE, "w1": ONE, "w2": OTHER}, [
    ({"x": IMAGE[0, 0]}, LayoutError, "x.shape"),
    ({"x": IMAGE.astype(np.float64)}, DtypeError, "x.dtype=float64"),
    ({"w2": OTHER.astype(np.float16)}, DtypeError, "w2.dtype=float16"),
    ({"w1": ONE[:, 1:]}, GeometryError, r"w1.shape=\(40, 19\)"),
    ({"bias1": OTHER[0][1:]}, GeometryError, "bias1.shape"),
    ({"residual": IMAGE}, GeometryError, "residual.shape"),
    ({"activation": "absent"}, UnsupportedError, "activation='absent'"),
    ({"x_norm": "group"}, UnsupportedError, "x_norm='group': .*or normalize x"),
    ({"x_norm": "rms", "x_norm_eps": 0.0}, UnsupportedError, "x_norm_eps=0.0"),
    ({"x_norm_weight": ONE[0]}, UnsupportedError, "x_norm_weight: .*name x_norm"),
    ({"x_norm": "rms", "x_norm_weight": OTHER[0]}, GeometryError, r"x_norm_weight.shape=\(40,\)"),
    ({"x_norm": "rms", "x_norm_bias": ONE[0].astype(int)}, DtypeError, "x_norm_bias.dtype"),
    ({"lnc": 3}, UnsupportedError, "lnc=3"),
    ({"w1": ONE.tolist()}, DtypeError, "w1: must be a NumPy array"),
])  # fmt: skip
_LARGE = {name: np.empty(shape, ml_dtypes.bfloat16) for name, shape in (
    ("x", (1, 4096, 8, 8)), ("w1", (16384, 4096)), ("w2", (4096, 16384)))}  # fmt: skip
TOO_LARGE = "C=4096, hidden=16384, K=4096: filters and hidden channels of 512"
refused(nkiconv.pointwise_mlp, _LARGE, [({}, UnsupportedError, TOO_LARGE)])
heads, step = (simulator.simulate(getattr(nkiconv, f"causal_conv1d_split_{one}")) for one in ("heads", "step"))
refused(heads, {"x_ref": X, "w_ref": W, "splits": TWO}, [
    ({"w_ref": W[:7]}, AssertionError, "w_ref.shape"),
    ({"bias": np.ones(7, np.float32)}, AssertionError, "bias.shape"),
    ({"initial_state": np.ones((1, 8, 2), np.float32)}, AssertionError, "initial_state.shape"),
    ({"chunks": "BCx", "layout": "NWC"}, AssertionError, "no multiple of 3"),
])  # fmt: skip
refused(step, {"x_ref": STEP[:, :, None], "state_ref": STATE, "w_ref": W, "splits": ((2, 4, True),)}, [
    ({"state_ref": STATE[:1]}, AssertionError, "state_ref.shape"),
    ({"w_ref": W[:, :1], "state_ref": STATE[:, :, :1]}, AssertionError, "S=1"),
    ({"state_indices": np.array([0, 1], np.int16)}, AssertionError, "state_indices.dtype"),
    ({"state_indices": np.array([0], np.int32)}, AssertionError, "state_indices.shape"),
])  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), ROWS, ids=[row[2][:40] for row in ROWS])
def test_refused(call, error, words):
    state = call.keywords.get("state")
    before = None if state is None else state.copy()
    with pytest.raises(error, match=words):
        call()
    assert state is None or np.array_equal(state, before)
