"""NKI's dtypes on NumPy: names, sizes, and casts bit by bit."""

import ml_dtypes
import numpy as np
import pytest
import torch

from nkiconv.simulator.dtypes import DTYPES, canonical, from_fp32

FLOATS = [name for name, info in DTYPES.items() if info.is_float and name != "tfloat32"]

#: (given, NKI's name)
NAMES = [
    *((name, name) for name in DTYPES),
    *((info.short, name) for name, info in DTYPES.items()),
    (np.float32, "float32"), (np.dtype("float16"), "float16"), ("<f4", None), (np.bool_, "bool_"), (bool, "bool_"),
    (ml_dtypes.bfloat16, "bfloat16"), (np.dtype(ml_dtypes.float8_e4m3), "float8_e4m3"),
    (torch.bfloat16, "bfloat16"), (torch.bool, "bool_"), (torch.float8_e5m2, "float8_e5m2"),
    (torch.int64, "int64"), (torch.float8_e4m3fnuz, None), (torch.complex64, None),
    (np.int64, "int64"), (int, "int64"), (np.float64, None), (np.complex64, None), (np.dtype(">f4"), None),
    (float, None),
    ("float64", None), ("", None), (None, None), (3, None), (object, None), ("float8_e5m2_x4", None),
]  # fmt: skip


@pytest.mark.parametrize(("given_dtype", "name"), NAMES, ids=lambda value: str(value))
def test_names(given_dtype, name):
    assert canonical(given_dtype) == name


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_cast_as_ml_dtypes_does(dtype):
    values = np.concatenate([np.linspace(-500, 500, 1001), 2.0 ** np.arange(-40, 40), [np.inf, -np.inf, np.nan]])
    values = values.astype(np.float32)
    with np.errstate(all="ignore"):
        assert from_fp32(values, dtype).tobytes() == values.astype(DTYPES[dtype].numpy).tobytes()
