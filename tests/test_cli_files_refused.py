"""`nkiconv run` on files: every bad file and option has its name, runs nothing and leaves nothing behind."""

import bz2
import importlib.util
import io
import json
import os
import re
import struct
import sys
import zipfile
import zlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from cli_files import RGB, SILENCE, TAPS, X, good_files, png, wav
from commands import run
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nkiconv.errors import NkiconvError
from nkiconv.tools.cli import files
from nkiconv.tools.cli.file_work import Work

pytestmark = pytest.mark.simulator_only


def npy(array, *, start=None, **fields):
    """The bytes of a .npy file; fields: header entries instead of the array's own."""
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape, **fields}
    text = repr(header).encode() + b"\n" if start is None else start
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + array.tobytes()


def zipped(*members, packing=zipfile.ZIP_STORED):
    """The bytes of a zip archive of (name, bytes) members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packing) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


def lying_zip():
    """An archive whose directory and .npy header promise twice the data that are there."""
    inside = npy(X, shape=(2, *X.shape[1:]))
    data = bytearray(zipped(("x.npy", inside)))
    size_at = data.index(b"PK\x01\x02") + 24
    data[size_at : size_at + 4] = struct.pack("<I", len(inside) + X.nbytes)
    return bytes(data)


def damaged_zip():
    """An archive of another packing, damaged inside it."""
    packed = bz2.compress(npy(X))
    return zipped(("x.npy", npy(X)), packing=zipfile.ZIP_BZIP2).replace(packed, packed[:20] + bytes(len(packed) - 20))


def tensors(header, data=b""):
    """The bytes of a .safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype="F32", shape=(2, 3), offsets=(0, 24)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


WHOLE_PNG, WHOLE_WAV, WHOLE_ZIP = png(RGB), wav(), zipped(("x.npy", npy(X)), packing=zipfile.ZIP_DEFLATED)
WHOLE_TENSORS = safetensors.numpy.save({"x": X, "w": TAPS})
DUPLICATE = b'{"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"x":' + json.dumps(tensor()).encode() + b"}"


def deep_png():
    """The bytes of a PNG of one pixel in RGB, 16 bits a sample, of which Pillow would drop half without a word."""
    found = b"\x89PNG\r\n\x1a\n"
    for kind, data in (
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" + bytes(range(6)))),
        (b"IEND", b""),
    ):
        found += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return found


# why, file, its bytes, :NAME, pattern in stderr
BAD_FILES = [
    ("suffix", "x.txt", b"1", "", r"UnsupportedError: --input=x\.txt: must end in \.npy, \.npz, \.safetensors, \.png"),
    ("npy by name", "x.npy", npy(X), ":x", r"UnsupportedError: --input=x\.npy:x: a \.npy file has no arrays by name"),
    ("not npy", "x.npy", b"precious", "", r"--input=x\.npy: does not start as \.npy files do"),
    ("npz as npy", "x.npy", WHOLE_ZIP, "", r"--input=x\.npy: is a \.npz or zip archive"),
    ("truncated npy", "x.npy", npy(X)[:-9], "", r"--input=x\.npy: is truncated or damaged"),
    ("other byte order", "x.npy", npy(X.astype(">f4")), "", r"has dtype >f4, the other byte order"),
    ("no data", "x.npy", npy(X[:0]), "", r"FileFormatError: --input=x\.npy: holds no elements \(shape \(0, 2, 9\)"),
    ("long header", "x.npy", npy(X, start=b"{" + b" " * 20_000 + b"}"), "", r"--input=x\.npy: .*damaged.*is large"),
    ("deep header", "x.npy", npy(X, start=b"(" * 5_000), "", r"FileFormatError: --input=x\.npy: is truncated or dam"),
    ("huge extent", "x.npy", npy(X, shape=(1, 2, 10**15)), "", r"--input=x\.npy: is truncated .*takes 8,000,000,000,0"),
    ("a shape of bools", "x.npy", npy(X, shape=(True, 2, 9)), "", r"is damaged \(shape \(True, 2, 9\)\)"),
    ("records", "x.npy", npy(X, descr=[("a", "<f4")]), "",
     r"--input=x\.npy: holds records of dtype \[\('a', '<f4'\)\]"),
    ("pickle", "x.npy", npy(X, descr="|O"), "", r"--input=x\.npy: holds Python objects, which are not loaded"),
    ("strange bytes", "x.npy", npy(X, descr="|V4"), "", r"DtypeError: --input=x\.npy: has dtype \|V4, raw bytes that"),
    ("version 3", "x.npy", b"\x93NUMPY\x03\x00" + npy(X)[8:], "", r"--input=x\.npy: .*version 3\.0 of the format"),
    ("no zip", "x.npz", npy(X), "", r"FileFormatError: --input=x\.npz: is truncated or damaged \(File is not a zip"),
    ("nothing of ours in a zip", "x.npz", zipped(("x.txt", b"1")), "", r"--input=x\.npz: holds no arrays"),
    ("another name", "x.npz", WHOLE_ZIP, ":y",
     r"UnsupportedError: --input=x\.npz:y: has no array of that name; use .* x"),
    ("way out", "x.npz", zipped(("../x.npy", npy(X))), ":../x", r"a member named \.\./x\.npy, which points out of"),
    ("raw in a zip", "x.npz", zipped(("x.npy", npy(X.astype(ml_dtypes.bfloat16)))), "", r"\|V2.*add --dtype bf16"),
    ("less in a zip than promised", "x.npz", lying_zip(), "", r"is truncated or damaged \(72 of 144 bytes of data"),
    ("checksum", "x.npz", zipped(("x.npy", npy(X))).replace(X.tobytes(), (2 * X).tobytes()), "", r"Bad CRC-32"),
    ("damaged inside", "x.npz", damaged_zip(), "", r"FileFormatError: --input=x\.npz: "),
    ("no tensors", "x.safetensors", tensors({}), "", r"FileFormatError: --input=x\.safetensors: holds no arrays"),
    ("truncated", "x.safetensors", WHOLE_TENSORS[:-1], ":x", r"--input=x\.safetensors:x: is truncated or damaged"),
    ("huge header", "x.safetensors", struct.pack("<Q", 2**60) + b"{}", "", r"is truncated or damaged \(.*too large"),
    ("overlap", "x.safetensors", tensors({"a": tensor(), "b": tensor()}, bytes(24)), ":a", r"is truncated or damaged"),
    ("twice", "x.safetensors", tensors(DUPLICATE, bytes(24)), "", r"has two arrays named x"),
    ("fp64", "x.safetensors", safetensors.numpy.save({"x": X.astype(np.float64)}), "",
     r"DtypeError: .* x has dtype F64"),
    ("other fp8", "x.safetensors", tensors({"x": tensor("F8_E4M3", (2, 3), (0, 6))}, bytes(6)), "",
     r"dtype F8_E4M3: ac.* above 240 .*ml_dtypes.float8_e4m3"),
    ("PNG as JPEG", "x.jpg", WHOLE_PNG, "", r"FileFormatError: --input=x\.jpg: does not start as such pictures do"),
    ("palette", "x.png", png(RGB, "P"), "",
     r"DtypeError: --input=x\.png: has mode P: accepted are grey \(L\), RGB or RG"),
    ("16 bits grey", "x.png", png(np.zeros((6, 5), np.uint16)), "", r"DtypeError: --input=x\.png: has mode I;16"),
    ("16 bits RGB", "x.png", deep_png(), "", r"DtypeError: --input=x\.png: has 16 bits a sample: accepted are grey"),
    ("transparent", "x.png", png(RGB, transparency=(0, 0, 0)), "", r"has a transparent colour, and no channel for it"),
    ("two pictures", "x.png", png(RGB, save_all=True, append_images=[Image.fromarray(RGB + 9)]), "",
     r"FileFormatError: --input=x\.png: holds 2 pictures; save one"),
    ("picture by name", "x.png", WHOLE_PNG, ":red", r"a PNG or JPEG picture has no arrays by name; drop :red"),
    ("8 bits", "x.wav", wav(width=1), "", r"DtypeError: --input=x\.wav: has 8 bits a sample: accepted are 16"),
    ("floating point", "x.wav", WHOLE_WAV[:20] + b"\x03\x00" + WHOLE_WAV[22:], "",
     r"FileFormatError: --input=x\.wav: is no uncompressed WAV file \(unk"),
    ("silence", "x.wav", wav(SILENCE[:0]), "", r"FileFormatError: --input=x\.wav: holds no samples"),
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory with good files, and one that must stay."""
    monkeypatch.chdir(tmp_path)
    good_files(tmp_path)
    return tmp_path


def assert_refused(here, arguments, pattern):
    """`nkiconv run` says why in red, prints nothing else, runs nothing, touches no file, and exits with 2."""
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Work, "verify")
        result = run("run", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.search(pattern, result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    assert {path: path.read_bytes() for path in here.iterdir() if path.is_file()} == before


#: Rows that alone run a line.
ALONE = ["not npy", "npz as npy", "truncated npy", "other byte order", "no data", "strange bytes", "16 bits RGB",
         "two pictures", "transparent", "other fp8", "silence"]  # fmt: skip


@pytest.mark.cover(30, keep=[*ALONE, "raw in a zip"])
@pytest.mark.parametrize(
    ("name", "data", "array", "pattern"), [row[1:] for row in BAD_FILES], ids=[row[0] for row in BAD_FILES]
)
def test_bad_files_have_a_name(here, name, data, array, pattern):
    (here / name).write_bytes(data)
    w = {".png": "w2", ".jpg": "w2", ".wav": "taps"}.get(name[-4:], "taps")
    assert_refused(here, ["--input", name + array, "--filter", f"all.npz:{w}", "--out", "y.npy"], pattern)


ROWS = ("--input", "all.npz:x", "--filter", "all.npz:taps")
PICTURE = ("--input", "good.png", "--filter", "all.npz:w2", "--groups", "3")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_not_waited_for(here):
    os.mkfifo("x.npy")
    assert_refused(here, ["--input", "x.npy", "--filter", "all.npz:taps"], r"--input=x\.npy: is no regular file")


def test_two_members_of_one_name(here):
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zipped(("x.npy", npy(X)), ("x.npy", npy(2 * X)))
    (here / "x.npz").write_bytes(data)
    assert_refused(here, ["--input", "x.npz:x", "--filter", "all.npz:taps"], r"has two arrays named x; save it again")


def test_a_picture_of_too_many_pixels(here, monkeypatch):
    for most in (20, 10):  # Pillow warns above this, and refuses above twice as many
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        assert_refused(here, PICTURE, rf"FileFormatError: --input=good\.png: has more than {most} pixels; crop it")


# module, arguments
@pytest.mark.parametrize(("package", "arguments", "pattern"), [
    ("safetensors", ["--input", "x.safetensors", "--filter", "all.npz:taps"],
     "--input=x.safetensors: needs safetensors"),
    ("safetensors", [*ROWS, "--out", "y.safetensors"], "--out=y.safetensors: needs safetensors"),
    ("PIL", PICTURE, "--input=good.png: needs pillow"),
])  # fmt: skip
def test_packages_that_are_not_installed(here, monkeypatch, package, arguments, pattern):
    (here / "x.safetensors").write_bytes(WHOLE_TENSORS)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    assert_refused(here, arguments, f"MissingPackageError: {pattern}, which is not installed; run pip install")


@pytest.mark.parametrize("words", ["profile short", "bench --suite conv2d"])
def test_pictures_without_matplotlib(here, monkeypatch, words):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    result = run(*words.split(), "--plot", "p.png")
    assert result.exit_code == 2
    assert re.search(r"MissingPackageError: --plot\S*: needs matplotlib, which is not installed; run", result.stderr)


@pytest.mark.parametrize(("out", "broken"), [
    ("y.npz", "os.fsync"), ("y.png", "os.fsync"), ("y.npy", "os.replace"),
])  # fmt: skip
def test_a_broken_write_leaves_nothing(here, monkeypatch, out, broken):
    def refuse(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    before = sorted(here.iterdir())
    monkeypatch.setattr(broken, refuse)
    call = PICTURE if out == "y.png" else ROWS
    result = run("run", *call, "--out", out)
    assert result.exit_code == 2
    assert f"UnsupportedError: --out={out}: cannot be written (No space left on device)" in result.stderr
    assert sorted(here.iterdir()) == before


def test_nan_has_no_pixel(here):
    np.save("nan.npy", np.full((3, 1, 1, 1), np.nan, np.float32))
    before = sorted(here.iterdir())
    call = "--input", "good.png", "--filter", "nan.npy", "--operation", "depthwise_conv2d", "--strict-nonfinite"
    result = run("run", *call, "--out", "y.png")
    assert result.exit_code == 2
    assert "UnsupportedError: --out=y.png: y has NaN, which has no place there; write y to a .npy file" in result.stderr
    assert sorted(here.iterdir()) == before


DAMAGED = {
    "x.npy": npy(X), "x.npz": WHOLE_ZIP, "x.safetensors": WHOLE_TENSORS, "x.png": WHOLE_PNG, "x.wav": WHOLE_WAV,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Reading")  # NumPy, of headers that Python 2 may have written
@pytest.mark.parametrize("name", DAMAGED)
@draws(150)
@given(data=st.data())
def test_damage_is_an_error_with_a_name_or_none(tmp_path_factory, name, data):
    """Bytes changed and the end cut off: an array with data, or one of our errors."""
    whole = bytearray(DAMAGED[name])
    places = st.integers(0, len(whole) - 1)
    for at, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=4)):
        whole[at] = value
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(whole[: data.draw(st.one_of(st.none(), places))])
    source = files.Source("--input", path, "x" if name in ("x.npz", "x.safetensors") else None)
    try:
        sound = files.load(source, None).array.size > 0
    except NkiconvError as error:
        sound = str(error).startswith(f"--input={source.path}")
    assert sound


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_files_are_asked_how_much_they_hold(here, name, monkeypatch):
    monkeypatch.setattr("nkiconv.tools.cli.files.npy.ARRAY_MAX", 1000)
    x = np.zeros((1, 2, 126), np.float32)
    np.savez_compressed("x.npz", x)
    np.save("x.npy", x)
    words = r"holds 1,008 bytes unpacked, shape \(1, 2, 126\); at most 1,000 are taken here"
    assert_refused(here, ["--input", name, "--filter", "all.npz:taps"], words)
