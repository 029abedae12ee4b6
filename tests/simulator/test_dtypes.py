"""NKI's dtypes on NumPy: names, sizes, and casts bit by bit."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nkiconv.simulator.documented import LANGUAGE_CONSTANTS
from nkiconv.simulator.dtypes import DTYPES, canonical, convert, from_fp32, round_to_tf32, to_fp32

INTS = [name for name, info in DTYPES.items() if not info.is_float and name != "bool_"]
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


def test_sizes():
    sizes = {name: info.itemsize for name, info in DTYPES.items()}
    for name, size in sizes.items():
        bits = "".join(c for c in name.partition("_")[0] if c.isdigit())
        assert size == (int(bits) // 8 if bits else 1)
        assert DTYPES[name].numpy.itemsize == size
    assert set(DTYPES) <= set(LANGUAGE_CONSTANTS)


SATURATED = [
    ("int8", [0.5, 1.5, 2.5, -0.5, -1.5, 127.5], [0, 2, 2, 0, -2, 127]),
    ("int8", [300, -300, np.inf, -np.inf, np.nan], [127, -128, 127, -128, 0]),
    ("uint8", [-1, 254.5, 255.5, 1e9, -np.inf], [0, 254, 255, 255, 0]),
    ("int16", [32766.5, 32768, -32769], [32766, 32767, -32768]),
    ("uint16", [65535.5, 3.5], [65535, 4]),
    ("int32", [2.0**31, -(2.0**31), 2.0**24, 16777217.0], [2**31 - 1, -(2**31), 2**24, 2**24]),
    ("uint32", [2.0**32, -1, 4294967040.0], [2**32 - 1, 0, 4294967040]),
    ("bool_", [0, -0.0, 0.25, -3, np.nan], [0, 0, 1, 1, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "values", "expected"), SATURATED)
def test_integers_round_to_even_and_saturate(dtype, values, expected):
    cast = from_fp32(np.array(values, np.float32), dtype)
    assert cast.dtype == DTYPES[dtype].numpy
    np.testing.assert_array_equal(cast, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_cast_as_ml_dtypes_does(dtype):
    values = np.concatenate([np.linspace(-500, 500, 1001), 2.0 ** np.arange(-40, 40), [np.inf, -np.inf, np.nan]])
    values = values.astype(np.float32)
    with np.errstate(all="ignore"):
        assert from_fp32(values, dtype).tobytes() == values.astype(DTYPES[dtype].numpy).tobytes()


@given(st.floats(width=32))
def test_tf32_keeps_10_bits(value):
    x = np.array([value], np.float32)
    y = round_to_tf32(x)
    if not np.isfinite(value):
        np.testing.assert_array_equal(y, x)
        return
    assert y.view(np.uint32)[0] & 0x1FFF == 0
    down = x.view(np.uint32) & np.uint32(0xFFFFE000)
    neighbours = np.concatenate([down, down + np.uint32(0x2000)]).view(np.float32).astype(np.float64)
    error = np.abs(neighbours - float(x[0]))
    if np.isfinite(y[0]):
        assert abs(float(y[0]) - float(x[0])) == error.min()
        if error[0] == error[1]:  # a tie goes to the even mantissa
            assert (y.view(np.uint32)[0] >> 13) & 1 == 0
    np.testing.assert_array_equal(round_to_tf32(y), y)


def test_equal_dtypes_convert_bit_by_bit():
    bits = np.arange(2**16, dtype=np.uint16)
    for dtype in ("bfloat16", "float16"):
        values = bits.view(DTYPES[dtype].numpy)
        assert convert(values, dtype, dtype).tobytes() == bits.tobytes()
    wide = np.array([2**31 - 1, 2**24 + 1], np.int32)
    np.testing.assert_array_equal(convert(wide, "int32", "int32"), wide)
    np.testing.assert_array_equal(convert(wide, "int32", "uint32"), [2**31, 2**24])  # through fp32


@pytest.mark.parametrize("name", INTS)
def test_small_integers_survive_fp32(name):
    info = np.iinfo(DTYPES[name].numpy)
    values = np.arange(max(info.min, -1000), min(info.max, 1000) + 1).astype(DTYPES[name].numpy)
    np.testing.assert_array_equal(from_fp32(to_fp32(values), name), values)


def test_fp32_is_not_copied():
    values = np.ones(3, np.float32)
    assert to_fp32(values) is values
    assert from_fp32(values, "float32") is values
