"""Files that commands read, and a folder of good ones."""

import io
import wave

import numpy as np
from PIL import Image

X, TAPS = np.ones((1, 2, 9), np.float32), np.ones((2, 3), np.float32)
W1, W2 = np.ones((4, 2, 3), np.float32), np.ones((3, 1, 3, 3), np.float32)
RGB, SILENCE = np.zeros((6, 5, 3), np.uint8), np.zeros((20, 2))


def png(pixels, mode=None, **options):
    """The bytes of a PNG."""
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(out, "PNG", **options)
    return out.getvalue()


def wav(samples=SILENCE, width=2):
    """The bytes of a WAV file of integers [W, C]."""
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setparams((samples.shape[1], width, 8000, 0, "NONE", ""))
        sound.writeframes(samples.astype(f"<i{width}").tobytes())
    return out.getvalue()


def good_files(folder):
    """Arrays, a picture, a sound and a kernel that can be read, and files that must stay as they are."""
    packed = np.ones((2, 3, 1, 1, 4), np.float32)
    np.savez(folder / "all.npz", x=X, taps=TAPS, w1=W1, w2=W2, flat=TAPS[0], packed=packed)
    np.save(folder / "rows.npy", X)
    np.save(folder / "two.npy", np.ones((2, 3, 1, 1), np.float32))
    np.save(folder / "tracks.npy", np.ones((2**16, 2, 1), np.float32))
    (folder / "good.png").write_bytes(png(RGB))
    (folder / "good.wav").write_bytes(wav())
    (folder / "old.py").write_text("import neuronxcc.nki as nki\n\n\n@nki.jit\ndef double(x):\n    return x\n")
    for name in ("there.npy", "there.npz", "there.csv"):
        (folder / name).write_text("precious")
    (folder / "folder").mkdir()
    library = folder / "library/src/nkilib_src/nkilib/experimental/conv"
    library.mkdir(parents=True)
    (library / "depthwise_conv1d.py").touch()
