"""torch's own tables of convolutions, as torch tests itself by them: values, derivatives, errors, modules, opcheck."""

import pytest
import torch
import torch_samples


def _marks(what, kind, dtype, mode):
    # launches a sample: of second derivatives too many for any dtype
    several = mode == "simulate" and (kind == "second derivatives" or (kind != "values" and dtype != torch.float32))
    long = kind == "opcheck" or several or (mode, dtype) == ("simulate", torch.float16)
    return [pytest.mark.slow] if long else []


RUNS = [
    pytest.param(
        *run, marks=_marks(*run), id="-".join([*map(torch_samples.said, run[:1]), run[1], str(run[2]), run[3]])
    )
    for run in torch_samples.runs()
]


@pytest.mark.cover(1)
@pytest.mark.simulator_only
@pytest.mark.parametrize(("what", "kind", "dtype", "mode"), RUNS)
def test_samples(what, kind, dtype, mode, plans):
    assert torch_samples.supported(what, kind), "torch's own convolution has no such derivatives"
    found = torch_samples.outcomes(what, kind, dtype, mode)
    failed = [f"{call}: {error}" for call, error in found if error]
    assert not failed, "\n".join([f"{len(failed)} of {len(found)} samples fail", *failed])
