"""`nkiconv run` on files: every format in and out, and every operation."""

import json
import wave

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from cli_files import wav
from commands import done
from PIL import Image

import nkiconv
from nkiconv.tools.cli import files
from nkiconv.tools.verify import conv

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plainly")]
BF16 = ml_dtypes.bfloat16


def integers(*shape, seed=0):
    """Small integers, so that sums are exact."""
    return np.random.default_rng((seed, *shape)).integers(-3, 4, shape).astype(np.float32)


def picture(*shape):
    """Random 8-bit pixels, [H, W] or [H, W, C]."""
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


def read_wav(path):
    """(rate, int16 [W, C]) of a WAV file."""
    with wave.open(str(path), "rb") as sound:
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
        return sound.getframerate(), samples.reshape(-1, sound.getnchannels())


#: Arrays by name: rows for depthwise_conv1d and conv1d, images for conv2d.
ARRAYS = {
    "rows": integers(2, 6, 40), "taps": integers(6, 4), "w1": integers(8, 3, 4), "image": integers(2, 4, 9, 8),
    "w2": integers(6, 2, 3, 2), "b6": integers(6), "b8": integers(8),
    "torchs": integers(6, 4)[:, None], "w_dw": integers(8, 1, 3, 2), "r1": integers(2, 8, 37),
    "r2": integers(2, 6, 7, 7), "nhwc": integers(2, 9, 8, 4), "rsck": integers(3, 2, 2, 6),
    "nwc": integers(2, 40, 6), "sck": integers(4, 3, 8),
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory with files of every format."""
    monkeypatch.chdir(tmp_path)
    np.savez("all.npz", **ARRAYS)
    np.savez_compressed("packed.npz", **ARRAYS)
    np.savez("one.npz", ARRAYS["rows"])
    safetensors.numpy.save_file({name: array.astype(BF16) for name, array in ARRAYS.items()}, "all.safetensors")
    for name, array in ARRAYS.items():
        np.save(f"{name}.npy", array)
        np.save(f"{name}_bf16.npy", array.astype(BF16))
    np.save("blur.npy", np.full((1, 1, 3, 3), 1 / 9, np.float32))
    np.save("fir.npy", np.array([[0.25, 0.5, 0.25], [-1, 2, -1]], np.float32))
    Image.fromarray(picture(7, 9)).save("grey.png")
    Image.fromarray(picture(7, 9, 3)).save("rgb.png")
    Image.fromarray(picture(7, 9, 4)).save("rgba.png")
    (tmp_path / "stereo.wav").write_bytes(wav(np.random.default_rng(0).integers(-(2**15), 2**15, (50, 2))))
    return tmp_path


def load(text):
    return files.load(files.source("--input", text), None).array


def right(*arguments):
    """The document of a run on one and two cores that must succeed."""
    result = done("run", *arguments, "--lnc", "both", "--json")
    found = json.loads(result.stdout)
    assert [(one["lnc"], one["verdict"], one["identical"]) for one in found["rows"]] == [
        (1, "pass", None),
        (2, "pass", True),
    ]
    return found


# operation, x, w, options, the same in Python; @ is before names of arrays
CALLS = [
    ("conv2d", "image", "w2", "--groups 2 --stride 2,1 --padding 1,0,2,3 --dilation 1,2",
     {"groups": 2, "stride": (2, 1), "padding": ((1, 0), (2, 3)), "dilation": (1, 2)}),
    ("conv2d", "image", "w2", "--groups 2 --padding 1,2 --lhs-dilation 2,3",
     {"groups": 2, "padding": ((1, 1), (2, 2)), "lhs_dilation": (2, 3)}),
    ("conv2d", "nhwc", "rsck", "--groups 2 --layout NHWC --filter-layout RSCK",
     {"groups": 2, "layout": "NHWC", "filter_layout": "RSCK"}),
    ("conv1d", "nwc", "sck", "--groups 2 --layout NWC --filter-layout SCK",
     {"groups": 2, "layout": "NWC", "filter_layout": "SCK"}),
    ("conv1d", "rows", "w1", "--groups 2 --stride 3 --padding 2,1", {"groups": 2, "stride": 3, "padding": (2, 1)}),
    ("conv1d", "rows", "w1", "--groups 2 --padding causal --dilation 2",
     {"groups": 2, "padding": "causal", "dilation": 2}),
    ("depthwise_conv1d", "rows", "taps", "--padding 3 --stride 2 --lhs-dilation 2",
     {"padding": 3, "stride": 2, "lhs_dilation": 2}),
    ("depthwise_conv1d", "rows", "torchs", "--operation depthwise_conv1d", {}),
    ("depthwise_conv2d", "image", "w_dw", "--operation depthwise_conv2d", {}),
    ("conv2d", "image", "w2",
     "--groups 2 --bias @b6 --residual @r2 --activation relu --residual-position post_activation",
     {"groups": 2, "bias": "@b6", "residual": "@r2", "activation": "relu", "residual_position": "post_activation"}),
    ("conv1d", "rows", "w1", "--groups 2 --bias @b8 --residual @r1 --activation relu",
     {"groups": 2, "bias": "@b8", "residual": "@r1", "activation": "relu"}),
    ("depthwise_conv1d", "rows", "taps", "--residual @rows --padding causal --residual-position pre_activation",
     {"residual": "@rows", "padding": "causal", "residual_position": "pre_activation"}),
]  # fmt: skip
#: FILE or FILE:NAME of an array, what y goes to, and its dtype.
FORMATS = {
    "npy": ("{}.npy", "y.npy", np.float32),
    "npz": ("all.npz:{}", "y.npz", np.float32),
    "npz, compressed": ("packed.npz:{}", "y.npz:out", np.float32),
    "safetensors": ("all.safetensors:{}", "y.safetensors:out", BF16),
}


@pytest.mark.cover(13)
@pytest.mark.parametrize(("named", "out", "dtype"), FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(("operation", "x", "w", "options", "call"), CALLS)
def test_every_operation_on_every_format(here, named, out, dtype, operation, x, w, options, call):

    def file_of(word):
        return named.format(word[1:]) if str(word).startswith("@") else word

    found = right("--input", named.format(x), "--filter", named.format(w), "--out", out, *map(file_of, options.split()))
    assert {one["operation"] for one in found["rows"]} == {operation}
    after = ("relu", "residual") if "post_activation" in call.values() else ("residual", "relu")
    added = [name for name in ("bias", *after) if name in {*call, *call.values()}]
    assert {one["name"] for one in found["rows"]} == {", ".join([named.format(x), *added])}
    assert (found["out"], found["clipped"]) == (out.split(":")[0], 0)
    x, w = (load(named.format(one)) for one in (x, w))
    w = w[:, 0] if operation == "depthwise_conv1d" and w.ndim == 3 else w
    given = {name: load(file_of(value)) if str(value).startswith("@") else value for name, value in call.items()}
    y = load(out)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, getattr(nkiconv, operation)(x, w, **given))


def test_fp8_files(here):
    """Raw bytes that two dtypes could be, and a .safetensors that says which."""
    for kind, option in ((ml_dtypes.float8_e4m3, ["--dtype", "fp8_e4m3"]), (ml_dtypes.float8_e5m2, [])):
        arrays = {"x": ARRAYS["image"].astype(kind), "w": ARRAYS["w2"].astype(kind)}
        for name, array in arrays.items():
            np.save(f"{name}.npy", array.view("V1"))
        safetensors.numpy.save_file({name: array for name, array in arrays.items() if not option}, "8.safetensors")
        x, w = ("x.npy", "w.npy") if option else ("8.safetensors:x", "8.safetensors:w")
        right("--input", x, "--filter", w, *option, "--groups", "2", "--out", "y.npy", "--force")
        np.testing.assert_array_equal(np.load("y.npy").view(BF16), nkiconv.conv2d(**arrays, groups=2))


def test_precision_and_strictness(here):
    call = "--input", "image.npy", "--filter", "w2.npy", "--groups", "2"
    found = right(*call, "--precision", "tf32", "--strict-nonfinite")
    assert {(one["precision"], one["strict_nonfinite"]) for one in found["rows"]} == {("tf32", True)}


#: Files, and their channels.
PICTURES = {"grey.png": 1, "rgb.png": 3, "rgba.png": 4}


@pytest.mark.cover(1, keep=["grey.png-NHWC", "rgba.png-NCHW"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", PICTURES)
def test_pictures(here, name, layout):
    """The middle tap alone gives the picture back, alpha too, times a factor: thrice, negated and as it is."""
    factors = np.array([3, -1, 1, 1], np.float32)[: PICTURES[name]]
    middle = np.zeros((factors.size, 1, 3, 3), np.float32)
    middle[:, 0, 1, 1] = factors
    np.save("middle.npy", middle)
    call = "--input", name, "--groups", factors.size, "--padding", "same", "--layout", layout
    found = right(*call, "--filter", "middle.npy", "--out", "y.png")
    wanted = np.array(Image.open(name)).reshape(7, 9, -1) * factors
    np.testing.assert_array_equal(np.array(Image.open("y.png")).reshape(7, 9, -1), wanted.clip(0, 255))
    assert found["clipped"] == np.count_nonzero(wanted.clip(0, 255) != wanted) > 0


def test_pictures_as_arrays(here):
    """bf16, and another number of channels than a picture has."""
    w = integers(5, 3, 2, 2).astype(BF16)
    np.save("mix_bf16.npy", w)
    x = (picture(7, 9, 3).transpose(2, 0, 1)[None] / np.float32(255)).astype(BF16)
    right("--input", "rgb.png", "--filter", "mix_bf16.npy", "--dtype", "bf16", "--out", "z.npy")
    np.testing.assert_array_equal(np.load("z.npy").view(BF16), nkiconv.conv2d(x, w))


def test_jpeg(here):
    """A grey square survives JPEG to a level; a photograph on its side is turned upright."""
    Image.fromarray(np.full((8, 8), 100, np.uint8)).save("flat.jpg")
    np.save("one.npy", np.ones((1, 1, 1, 1), np.float32))
    right("--input", "flat.jpg", "--filter", "one.npy", "--out", "again.jpeg")
    assert np.abs(np.array(Image.open("again.jpeg")).astype(int) - 100).max() <= 1
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(8, 16)).save("side.jpg", exif=exif)
    right("--input", "side.jpg", "--filter", "one.npy", "--out", "upright.png")
    assert Image.open("upright.png").size == (8, 16)
    np.testing.assert_array_equal(np.array(Image.open("upright.png")), np.rot90(np.array(Image.open("side.jpg")), -1))


@pytest.mark.parametrize("operation", ["depthwise_conv1d", "conv1d", "conv1d, NWC"])
def test_sound(here, operation):
    w = np.load("fir.npy")
    call = ["--input", "stereo.wav", "--padding", "1", "--out", "y.wav"]
    call += ["--layout", "NWC"] if operation.endswith("NWC") else []
    if operation != "depthwise_conv1d":
        w = np.concatenate([np.stack([w[0], 0 * w[0]])[None], np.stack([0 * w[1], w[1]])[None], w[None]])
        np.save("w.npy", w)
    found = right(*call, "--filter", "fir.npy" if w.ndim == 2 else "w.npy")
    _, samples = read_wav("stereo.wav")
    rate, got = read_wav("y.wav")
    x = np.pad(samples.T.astype(np.float64), ((0, 0), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, 1)
    # Quarters of integers: exact in fp32, and halves go to even there as here.
    wanted = np.einsum("cqs,cs->qc" if w.ndim == 2 else "cqs,kcs->qk", windows, w)
    clipped = np.rint(wanted).clip(-(2**15), 2**15 - 1)
    assert rate == 8000
    np.testing.assert_array_equal(got, clipped)
    assert found["clipped"] == np.count_nonzero(clipped != np.rint(wanted)) > 0


def test_what_is_written_is_checked_as_a_whole(here, monkeypatch):
    monkeypatch.setattr(conv, "SAMPLE_ABOVE_FLOPS", 10)
    np.save("wide.npy", integers(40, 4, 1, 1))
    call = "--input", "image.npy", "--filter", "wide.npy"
    assert {one["channels_checked"] for one in right(*call)["rows"]} == {16}
    assert {one["channels_checked"] for one in right(*call, "--out", "y.npy")["rows"]} == {40}
