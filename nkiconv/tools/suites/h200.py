"""cuDNN's share of the limit on one H200 for some of the cases: measured elsewhere, kept in data/h200_cudnn.csv."""

from __future__ import annotations

import csv
import functools
from importlib import resources

#: nkiconv's cases of the same shape, by the names of that file.
_CASES = {
    "mamba2-prefill": ("mamba2_prefill", "mamba2_prefill_fp32"),
    "kda": ("kda_bf16", "kda_fp32"),
    "qwen3.5-gdn": ("qwen3_next_gdn",),
    "fs-asr": ("nkl_fs_asr",),
    "conformer31": ("conformer",),
    "s64": ("nkl_n1_c256_w512_s64",),
    "s128": ("nkl_n1_c1024_w1024_s128",),
    "s256-w4096": ("nkl_n1_c256_w4096_s256",),
    "s256-c2048": ("nkl_n1_c2048_w2048_s256",),
    "qwen3-4093": ("nkl_qwen3",),
    "hyena-long": ("hyena",),
    "cs149-224": ("c256_224", "c256_224_fp32"),
    "cs149-32x16": ("c256_32x16", "c256_32x16_fp32"),
    "rn50-stem": ("rn50_stem",),
    "rn50-c2": ("rn50_c2",),
    "rn50-c3-s2": ("rn50_c3_s2",),
    "rn50-c4": ("rn50_c4",),
    "rn50-c5": ("rn50_c5",),
    "rn50-1x1": ("rn50_1x1",),
    "vae-512": ("vae_512",),
    "vae-128": ("vae_128",),
    "unet-320": ("unet_320",),
    "vit-patch": ("vit_patch16",),
    "deeplab-d12": ("deeplab_d12",),
    "dw-mobilenet": ("mobilenet_dw",),
    "dw-convnext": ("convnext_dw7",),
    "group-resnext": ("resnext_g32",),
    "wan-384": ("wan_384",),
    "wan-192": ("wan_192",),
    "wan-96": ("wan_96",),
    "wan-in": ("wan_in",),
    "unet3d-32": ("unet3d_32",),
    "r3d-stem": ("r3d_stem",),
    "video-patch": ("video_patch",),
    "unet-up": ("unet_up",),
    "dcgan": ("dcgan",),
    "hifigan-up1": ("hifigan_up1",),
    "hifigan-up2": ("hifigan_up2",),
    "hifigan-up4": ("hifigan_up4",),
    "encodec-up8": ("encodec_up8",),
    "sam-up": ("sam_up",),
    "seg3d-up": ("seg3d_up",),
}
#: Of fp32 arrays cuDNN was timed with products in tf32 where it has such a kernel.
_DTYPES = {"tf32": "fp32"}


@functools.cache
def fractions() -> dict[tuple[str, str], float]:
    """(case, dtype) -> share of the H200's own limit that cuDNN reaches. Measured."""
    text = (resources.files("nkiconv") / "data" / "h200_cudnn.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        (name, _DTYPES.get(row["dtype"], row["dtype"])): float(row["fraction"])
        for row in rows
        for name in _CASES.get(row["name"], ())
    }
