"""torch's own tables of convolutions, as torch tests itself by them: values, derivatives, errors, modules, opcheck."""

import pytest
import torch_samples

RUNS = list(torch_samples.runs())


@pytest.mark.slow
@pytest.mark.simulator_only
@pytest.mark.parametrize(("what", "kind", "dtype", "mode"), RUNS, ids=str)
def test_samples(what, kind, dtype, mode, plans):
    assert torch_samples.supported(what, kind), "torch's own convolution has no such derivatives"
    found = torch_samples.outcomes(what, kind, dtype, mode)
    failed = [f"{call}: {error}" for call, error in found if error]
    assert not failed, "\n".join([f"{len(failed)} of {len(found)} samples fail", *failed])
