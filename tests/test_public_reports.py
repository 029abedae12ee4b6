"""Faults that people reported of convolutions elsewhere, tried here: right values, or a refusal with what to do.

The rows are in `helpers/reports_of_kernels.py` and `helpers/reports_of_models.py`; the reports that other tests prove
are in `ELSEWHERE`.
"""

import itertools
import re
from pathlib import Path

import pytest
import reports_of_kernels  # noqa: F401  # adds its rows
import reports_of_models  # noqa: F401
from public_reports import REPORTS

pytestmark = pytest.mark.simulator_only

#: Reports whose fault is tried by a test of the place that it would be in.
ELSEWHERE = {
    "aws-neuron/aws-neuron-sdk#214": "tests/test_functions.py::test_equals_torch",  # depthwise
    "aws-neuron/aws-neuron-sdk#347": "tests/test_functions.py::test_equals_torch",  # volumes
    "aws-neuron/aws-neuron-sdk#588": "tests/gradients/test_weight.py::test_every_problem_is_exact",  # ResNet's step
    "aws-neuron/aws-neuron-sdk#787": "tests/test_functions.py::test_layouts",  # rows with channels last
    "aws-neuron/aws-neuron-sdk#1202": "tests/pytorch/test_convert.py::test_the_headline_is_the_share_of_flops",
    "Dao-AILab/causal-conv1d#78": "tests/pytorch/test_causal.py::test_tokens_of_no_sequence_are_not_looked_at",
    "fla-org/flash-linear-attention#494": "tests/pytorch/test_causal.py::test_pieces_continue_each_other",
    "fla-org/flash-linear-attention#546": "tests/pytorch/test_fla.py::test_rows_and_sequences",  # rows below W tokens
    "fla-org/flash-linear-attention#774": "tests/pytorch/test_causal_packed.py::test_rows_of_numbered_sequences_in_pieces",  # noqa: E501
    "huggingface/transformers#46084": "tests/pytorch/test_causal_package.py::test_reference_of_rows",  # chunks
    "vllm-project/vllm#24680": "tests/pytorch/test_serving.py::test_steps",  # slots wider than the state
    "vllm-project/vllm#25752": "tests/pytorch/test_serving.py::test_states_at_the_ends_of_blocks",
    "vllm-project/vllm-ascend#8561": "tests/pytorch/test_serving.py::test_prefill",  # sequences shorter than the state
    "sgl-project/sglang#25587": "tests/pytorch/test_serving.py::test_drafts_that_are_taken_back_leave_nothing",
    "sgl-project/sglang#18540": "tests/pytorch/test_semantics.py::test_channels_last_goes_through",
    "Blaizzy/mlx-video#38": "tests/pytorch/test_convert_videos.py::test_published_code_runs_without_copies",
    "Wan-Video/Wan2.1#198": "tests/test_functions.py::test_a_video_in_chunks",  # a decoder that fills the memory
    "pytorch/pytorch#51430": "tests/gradients/test_weight.py::test_every_problem_is_exact",  # groups
    "pytorch/pytorch#13008": "tests/pytorch/test_functional.py::test_derivatives_with_uneven_padding_and_gaps",
    "pytorch/pytorch#3867": "tests/test_functions.py::test_names_of_padding_give_the_extents_that_they_promise",
    "pytorch/pytorch#1972": "tests/pytorch/test_functional.py::test_second_derivatives",
    "pytorch/pytorch#152816": "tests/test_estimates.py::test_estimates_of_big_problems",
    "pytorch/pytorch#146129": "tests/pytorch/test_causal.py::test_compiles_without_graph_breaks",  # a compiled Mamba
    "pytorch/xla#1537": "tests/pytorch/test_train_small.py::test_curves_are_equal",  # depthwise layers in training
    "ROCm/MIOpen#1907": "tests/gradients/test_weight.py::test_every_problem_is_exact",  # not deterministic
}


@pytest.mark.cover(6)
@pytest.mark.parametrize("row", REPORTS.values(), ids=[names[0] for names in REPORTS])
def test_report(row):
    row()


def test_there_are_more_than_33():
    """And each is named once."""
    names = [*itertools.chain(*REPORTS), *ELSEWHERE]
    assert len({*names}) == len(names) >= 33
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", name) for name in names)


@pytest.mark.parametrize("place", sorted({*ELSEWHERE.values()}))
def test_the_others_are_tried(place):
    path, test = place.split("::")
    assert f"\ndef {test}(" in (Path(__file__).parents[1] / path).read_text(encoding="utf-8")
