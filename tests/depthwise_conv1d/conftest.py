"""Every convolution that a test of this folder runs issues no more instructions than its algorithm counts."""

import pytest

from nkiconv.kernels.depthwise_conv1d import dispatch
from nkiconv.schedules import banded, dot, mixed, update
from nkiconv.simulator.running import running


@pytest.fixture(autouse=True)
def _issues_no_more_than_it_counts(monkeypatch):
    counted, ask, run = {}, dispatch.unsupported_reason, dispatch.run_algorithm

    def asked(algorithm, geometry, options, config, cores):
        with monkeypatch.context() as patch:
            for module in (banded, dot, mixed, update):
                refuse = module.instructions_unsupported

                def count_of(shape, name, count, refuse=refuse):
                    counted[id(running())] = count * shape.times
                    return refuse(shape, name, count)

                patch.setattr(module, "instructions_unsupported", count_of)
            return ask(algorithm, geometry, options, config, cores)

    def issued(*operands):
        core = running()
        before = len(core.instructions)
        run(*operands)
        assert len(core.instructions) - before <= counted.pop(id(core))

    monkeypatch.setattr(dispatch, "unsupported_reason", asked)
    monkeypatch.setattr(dispatch, "run_algorithm", issued)
