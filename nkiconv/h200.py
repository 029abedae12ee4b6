"""What cuDNN reaches on one H200 for some of the cases: measured elsewhere, kept in data/h200_cudnn.csv."""

from __future__ import annotations

import csv
import functools
from importlib import resources

#: Our cases of the same shape, by the names of that file; its other shapes are none of ours.
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
}


@functools.cache
def fractions() -> dict[tuple[str, str], float]:
    """(case, dtype) -> share of the H200's own limit that cuDNN reaches. Measured."""
    text = (resources.files("nkiconv") / "data" / "h200_cudnn.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {(name, row["dtype"]): float(row["fraction"]) for row in rows for name in _CASES.get(row["name"], ())}
