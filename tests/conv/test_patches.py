"""Transposed convolutions whose stride is their filter's size: patches of y, by activation_stationary."""

import re

import numpy as np
import pytest
from draws import cores
from transposed import Transposed, check

import nkiconv
from nkiconv import ConvProblem
from nkiconv.planner.conv import geometry_of, options_of
from nkiconv.planner.request import Asked
from nkiconv.schedules.conv_algorithms import plan_of


def patches(N, C, K, sizes, taps):
    none = (0,) * len(sizes)
    return Transposed(N, C, K, 1, sizes, taps, taps, none, none, (1,) * len(sizes))


#: x's channels, rows and images that do not fill the partitions, or more than do; taps of a bank and of several.
CALLS = {
    "image": patches(2, 130, 3, (3, 4), (4, 4)),
    "many rows": patches(3, 20, 2, (70, 2), (2, 3)),
    "tall": patches(1, 4, 1, (150, 3), (3, 2)),
    "more than a bank": patches(1, 5, 2, (2, 3), (25, 22)),
    "many channels": patches(2, 40, 140, (3, 5), (2, 2)),
    "row": patches(1, 10, 3, (1, 12), (1, 5)),
    "parts of rows": patches(1, 9, 3, (2, 6), (3, 3)),
    "uneven parts": patches(2, 9, 3, (14, 9), (2, 3)),
    "volume": patches(1, 130, 3, (3, 2, 5), (2, 3, 4)),
    "volumes": patches(2, 9, 2, (2, 70, 3), (3, 2, 2)),
    "planes alone": patches(3, 9, 2, (4, 3, 5), (2, 1, 1)),
    "planes of one tap": patches(2, 9, 2, (4, 3, 5), (1, 2, 2)),
}


@pytest.mark.cover(6)
@pytest.mark.parametrize("name", CALLS)
def test_patches_are_exact(name):
    for lnc in cores():
        check(CALLS[name], lnc=lnc, algorithm="activation_stationary")


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_dtypes(dtype):
    check(CALLS["image"], dtype, algorithm="activation_stationary")


@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_bias_of_each_output_channel(activation):
    call, bias = CALLS["image"], np.array([5.0, -70.0, 9.0], np.float32)
    x, w = call.inputs("bf16")
    given = {"bias": bias, "activation": activation, "algorithm": "activation_stationary", "out_dtype": "float32"}
    y = nkiconv.conv_transpose2d(x, w, stride=4, **given)
    truth = call.truth(x, w, bias)
    np.testing.assert_array_equal(y, truth if activation is None else np.maximum(truth, 0))


EMBEDDING = ConvProblem(N=1, C=3, H=32, W=32, K=64, R=8, S=8, stride=(8, 8))


def seen(**changes):
    return geometry_of(EMBEDDING.replace(**changes).toward("dgrad"), Asked())


@pytest.mark.parametrize(
    ("settings", "asked", "message"),
    [
        ({"warmup": -1}, Asked(), "warmup=-1: must be an int from 0"),
        ({}, Asked(residual="pre_activation"), "residual, y_norm: patches take none"),
        ({}, Asked(x_activation="silu"), "x_activation.*: patches take none"),
    ],
)
def test_what_patches_refuse(settings, asked, message):
    problem = EMBEDDING.toward("dgrad")
    config = tuple(settings.items()) or None
    plan, reason = plan_of("activation_stationary", seen(), options_of(problem, asked), config, 2)
    assert plan is None
    assert re.search(message, reason), reason


@pytest.mark.parametrize("taps", [(2, 2, 2), (3, 1, 2)])
def test_volumes_whose_channels_are_neighbours_in_x_alone(taps):
    call = patches(2, 9, 3, (3, 1, 4), taps)
    x, w = call.inputs("bf16")
    given = {"stride": taps, "padding": ((0, 0),) * 3, "algorithm": "activation_stationary"}
    kernel = nkiconv.conv_transpose3d_implicit_gemm[2]
    y = kernel(np.ascontiguousarray(x.transpose(0, 2, 3, 4, 1)), w, in_perm=(0, 4, 1, 2, 3), **given)
    assert np.array_equal(np.asarray(y, np.float64), call.truth(x, w))
