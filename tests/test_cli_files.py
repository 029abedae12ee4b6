"""`nkiconv run` on files: every format in and out, and every operation."""

import json
import wave

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from PIL import Image
from shell import run

from nkiconv.bounds import epilogue_bound, error_bound
from nkiconv.tools.cli import files
from nkiconv.tools.verify import conv

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plainly")]
BF16 = ml_dtypes.bfloat16


def normals(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def picture(*shape):
    """Random 8-bit pixels, [H, W] or [H, W, C]."""
    return np.random.default_rng(shape).integers(0, 256, shape, np.uint8)


def write_wav(path, samples):
    """Integers [W, C] as 16-bit WAV."""
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(samples.shape[1])
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(samples.astype("<i2").tobytes())


def read_wav(path):
    """(rate, int16 [W, C]) of a WAV file."""
    with wave.open(str(path), "rb") as sound:
        samples = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
        return sound.getframerate(), samples.reshape(-1, sound.getnchannels())


#: Arrays by name: rows for depthwise_conv1d and conv1d, images for conv2d.
ARRAYS = {
    "rows": normals(2, 6, 40), "taps": normals(6, 4), "w1": normals(8, 3, 4), "image": normals(2, 4, 9, 8),
    "w2": normals(6, 2, 3, 2), "b6": normals(6), "b8": normals(8),
    "torchs": normals(6, 4)[:, None], "w_dw": normals(8, 1, 3, 2),
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
    write_wav("stereo.wav", np.random.default_rng(0).integers(-(2**15), 2**15, (50, 2)))
    return tmp_path


def load(text):
    """What an option reads, in float64."""
    return files.load(files.source("--input", text), None).array.astype(np.float64)


def right(*arguments):
    """The document of a run on one and two cores that must succeed."""
    result = run("run", *arguments, "--lnc", "both", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(one["lnc"], one["verdict"], one["identical"]) for one in found["rows"]] == [
        (1, "pass", None),
        (2, "pass", True),
    ]
    return found


def definition(x, w, *, groups=1, stride=(1, 1), pads=((0, 0), (0, 0)), dilation=(1, 1), gaps=(1, 1)):
    """float64 sums of x [N, C, H, W] and w [K, C / groups, R, S], window by window."""
    spread = np.zeros((*x.shape[:2], *((size - 1) * gap + 1 for size, gap in zip(x.shape[2:], gaps, strict=True))))
    spread[:, :, :: gaps[0], :: gaps[1]] = x
    padded = np.pad(spread, ((0, 0), (0, 0), *pads))
    window = [(taps - 1) * far + 1 for taps, far in zip(w.shape[2:], dilation, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(padded, window, (2, 3))
    views = views[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    parts = zip(np.split(views, groups, 1), np.split(w, groups, 0), strict=True)
    return np.concatenate([np.einsum("ncpqrs,kcrs->nkpq", x_part, w_part) for x_part, w_part in parts], 1)


def assert_convolved(y, x, w, dtype="fp32", **geometry):
    """y, in float64, is within the bound of the definition's sums of x and w."""
    sums, terms = definition(x, w, **geometry), int(np.prod(w.shape[1:]))
    limit = error_bound(terms, definition(abs(x), abs(w), **geometry), sums, dtype)
    np.testing.assert_array_less(np.abs(y - sums), limit)


# operation, x, w, options, geometry of `definition`
CALLS = [
    ("conv2d", "image", "w2", ["--groups", "2", "--stride", "2,1", "--padding", "1,0,2,3", "--dilation", "1,2"],
     {"groups": 2, "stride": (2, 1), "pads": ((1, 0), (2, 3)), "dilation": (1, 2)}),
    ("conv2d", "image", "w2", ["--groups", "2", "--padding", "1,2", "--lhs-dilation", "2,3"],
     {"groups": 2, "pads": ((1, 1), (2, 2)), "gaps": (2, 3)}),
    ("conv2d", "image", "w2", ["--groups", "2", "--stride", "2"], {"groups": 2, "stride": (2, 2)}),
    ("conv1d", "rows", "w1", ["--groups", "2", "--stride", "3", "--padding", "2,1"],
     {"groups": 2, "stride": (1, 3), "pads": ((0, 0), (2, 1))}),
    ("conv1d", "rows", "w1", ["--groups", "2", "--padding", "causal", "--dilation", "2"],
     {"groups": 2, "pads": ((0, 0), (6, 0)), "dilation": (1, 2)}),
    ("depthwise_conv1d", "rows", "taps", ["--padding", "3", "--stride", "2", "--lhs-dilation", "2"],
     {"groups": 6, "stride": (1, 2), "pads": ((0, 0), (3, 3)), "gaps": (1, 2)}),
    ("depthwise_conv1d", "rows", "torchs", ["--operation", "depthwise_conv1d"], {"groups": 6}),
    ("depthwise_conv2d", "image", "w_dw", ["--operation", "depthwise_conv2d"], {"groups": 4}),
]  # fmt: skip
#: FILE or FILE:NAME of an array, what y goes to, and its dtype.
FORMATS = {
    "npy": ("{}.npy", "y.npy", "fp32"),
    "npz": ("all.npz:{}", "y.npz", "fp32"),
    "npz, compressed": ("packed.npz:{}", "y.npz:out", "fp32"),
    "safetensors": ("all.safetensors:{}", "y.safetensors:out", "bf16"),
}


@pytest.mark.cover(8)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("operation", "x", "w", "options", "geometry"), CALLS)
def test_every_operation_on_every_format(here, kind, operation, x, w, options, geometry):
    named, out, dtype = FORMATS[kind]
    x, w = named.format(x), named.format(w)
    found = right("--input", x, "--filter", w, "--out", out, *options)
    assert {one["operation"] for one in found["rows"]} == {operation}
    assert (found["out"], found["clipped"]) == (out.split(":")[0], 0)
    x, w, y = load(x), load(w), load(out)
    w = w[:, None] if w.ndim == 2 else w
    x, w, y = (array[:, :, None] if array.ndim == 3 else array for array in (x, w, y))
    assert_convolved(y, x, w, dtype, **geometry)


def test_fp8_files(here):
    """Raw bytes that two dtypes could be, and a .safetensors that says which."""
    e5m2, e4m3 = ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3
    np.save("x8.npy", ARRAYS["image"].astype(e4m3).view("V1"))
    np.save("w8.npy", ARRAYS["w2"].astype(e4m3).view("V1"))
    right("--input", "x8.npy", "--filter", "w8.npy", "--dtype", "fp8_e4m3", "--groups", "2", "--out", "y.npy")
    x, w = (ARRAYS[name].astype(e4m3).astype(np.float64) for name in ("image", "w2"))
    assert_convolved(np.load("y.npy").view(BF16).astype(np.float64), x, w, "bf16", groups=2)
    arrays = {"x": ARRAYS["image"].astype(e5m2), "w": ARRAYS["w2"].astype(e5m2)}
    safetensors.numpy.save_file(arrays, "e5m2.safetensors")
    right("--input", "e5m2.safetensors:x", "--filter", "e5m2.safetensors:w", "--groups", "2", "--out", "z.safetensors")
    z = safetensors.numpy.load_file("z.safetensors")["y"].astype(np.float64)
    assert_convolved(z, *(array.astype(np.float64) for array in arrays.values()), "bf16", groups=2)


# w, options, axes of x and w as [N, C, ...] and [K, C / groups, ...] in their files
LAYOUTS = [
    ("w2", ["--layout", "NHWC", "--filter-layout", "RSCK"], (0, 2, 3, 1), (2, 3, 1, 0)),
    ("w1", ["--layout", "NWC", "--filter-layout", "SCK"], (0, 2, 1), (2, 1, 0)),
]


@pytest.mark.parametrize(("w", "options", "x_axes", "w_axes"), LAYOUTS)
def test_layouts(here, w, options, x_axes, w_axes):
    x, w = ARRAYS["image" if w == "w2" else "rows"], ARRAYS[w]
    np.save("x_turned.npy", np.ascontiguousarray(x.transpose(x_axes)))
    np.save("w_turned.npy", np.ascontiguousarray(w.transpose(w_axes)))
    right("--input", "x_turned.npy", "--filter", "w_turned.npy", "--groups", "2", *options, "--out", "y.npy")
    y = np.load("y.npy").astype(np.float64).transpose(np.argsort(x_axes))
    rows = x.ndim == 3
    x, w, y = (array[:, :, None] if rows else array for array in (x.astype(np.float64), w.astype(np.float64), y))
    assert_convolved(y, x, w, groups=2)


# x, w, bias, groups
EPILOGUES = [("image", "w2", "b6", 2), ("rows", "w1", "b8", 2), ("rows", "taps", "b6", None)]


@pytest.mark.cover(2)
@pytest.mark.parametrize(("x", "w", "bias", "groups"), EPILOGUES)
@pytest.mark.parametrize("position", [None, "pre_activation", "post_activation"])
def test_bias_activation_and_residual(here, x, w, bias, groups, position):
    call = ["--input", f"all.npz:{x}", "--filter", f"all.npz:{w}"]
    call += [] if groups is None else ["--groups", groups]
    right(*call, "--out", "sums.npy")
    residual = normals(*np.load("sums.npy").shape, seed=1)
    np.save("residual.npy", residual)
    where = [] if position is None else ["--residual-position", position]
    arrays = ["--bias", f"all.npz:{bias}", "--residual", "residual.npy"]
    found = right(*call, *arrays, "--activation", "relu", *where, "--out", "y.npy")
    after = position == "post_activation"
    words = "bias, relu, residual" if after else "bias, residual, relu"
    assert {one["name"] for one in found["rows"]} == {f"all.npz:{x}, {words}"}
    x, w, bias, residual = (array.astype(np.float64) for array in (ARRAYS[x], ARRAYS[w], ARRAYS[bias], residual))
    w, groups = (w[:, None], len(w)) if groups is None else (w, groups)
    y = np.load("y.npy")
    if x.ndim == 3:
        x, w, residual, y = (array[:, :, None] for array in (x, w, residual, y))
    sums, abs_sum = definition(x, w, groups=groups), definition(abs(x), abs(w), groups=groups)
    z = sums + bias[:, None, None]
    truth = np.maximum(z, 0) + residual if after else np.maximum(z + residual, 0)
    extra = {"bias": bias, "activation": "relu", "residual": residual}
    extra |= {} if position is None else {"residual_position": position}
    limit = epilogue_bound(int(np.prod(w.shape[1:])), abs_sum, sums, "fp32", **extra)
    np.testing.assert_array_less(np.abs(y - truth), limit)


def test_precision_and_strictness(here):
    call = "--input", "image.npy", "--filter", "w2.npy", "--groups", "2"
    found = right(*call, "--precision", "tf32", "--strict-nonfinite")
    assert {(one["precision"], one["strict_nonfinite"]) for one in found["rows"]} == {("tf32", True)}


# file, pixels, channels
PICTURES = [("grey.png", (7, 9), 1), ("rgb.png", (7, 9, 3), 3), ("rgba.png", (7, 9, 4), 4)]


@pytest.mark.cover(1)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("name", "shape", "channels"), PICTURES)
def test_pictures(here, name, shape, channels, layout):
    """All channels, alpha too, are convolved alike; the middle tap alone gives the picture back."""
    middle = np.zeros((channels, 1, 3, 3), np.float32)
    middle[:, :, 1, 1] = 1
    np.save("middle.npy", middle)
    call = "--input", name, "--groups", channels, "--padding", "same", "--layout", layout
    found = right(*call, "--filter", "middle.npy", "--out", "same.png")
    assert found["clipped"] == 0
    np.testing.assert_array_equal(np.array(Image.open("same.png")), picture(*shape))
    for factor in (3, -1):
        np.save("factor.npy", factor * middle)
        found = right(*call, "--filter", "factor.npy", "--out", "factor.png", "--force")
        wanted = factor * picture(*shape).astype(int)
        np.testing.assert_array_equal(np.array(Image.open("factor.png")), wanted.clip(0, 255))
        assert found["clipped"] == np.count_nonzero(wanted.clip(0, 255) != wanted) > 0


def test_pictures_as_arrays(here):
    """bf16, and another number of channels than a picture has."""
    w = normals(5, 3, 2, 2)
    np.save("mix_bf16.npy", w.astype(BF16))
    x = picture(7, 9, 3).transpose(2, 0, 1)[None] / np.float32(255)
    right("--input", "rgb.png", "--filter", "mix_bf16.npy", "--dtype", "bf16", "--out", "z.npy")
    x, w = (array.astype(BF16).astype(np.float64) for array in (x, w))
    assert_convolved(np.load("z.npy").view(BF16).astype(np.float64), x, w, "bf16")


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


def test_names_with_colons(here):
    """A name may have colons, and the name of a file that is there is that file."""
    np.savez("colons.npz", **{"a:b.npz:c": ARRAYS["rows"]})
    assert files.source("--input", "colons.npz:a:b.npz:c").name == "a:b.npz:c"
    np.savez("x.npz:y.npz", ARRAYS["rows"])
    assert files.source("--input", "x.npz:y.npz").name is None


def test_what_is_written_is_checked_as_a_whole(here, monkeypatch):
    monkeypatch.setattr(conv, "SAMPLE_ABOVE_FLOPS", 10)
    np.save("wide.npy", normals(40, 4, 1, 1))
    call = "--input", "image.npy", "--filter", "wide.npy"
    assert {one["channels_checked"] for one in right(*call)["rows"]} == {16}
    assert {one["channels_checked"] for one in right(*call, "--out", "y.npy")["rows"]} == {40}
