"""A comparison that finds no difference says so, once, when the program ends."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nkiconv.pytorch.computers import agreements

pytestmark = pytest.mark.simulator_only
ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
from nkiconv import pytorch as nkiconv_torch

for _ in range(2):
    nkiconv_torch.conv2d(torch.ones(1, 3, 6, 6), torch.ones(4, 3, 3, 3))
"""


@pytest.mark.slow
def test_a_program_ends_with_what_was_compared():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NKICONV_CPU": "compare"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    said = "held 2 kernels' results against torch: all agree within their error bounds\n"
    assert (done.stdout, done.stderr) == ("", f"nkiconv: NKICONV_CPU=compare {said}")


def test_a_difference_is_said():
    assert agreements.text(Counter({True: 4, False: 1})).endswith("held 5 kernels' results against torch: 1 DIFFER")
    one = agreements.text(Counter({True: 1}))
    assert one.endswith("held 1 kernel's result against torch: all agree within their error bounds")
