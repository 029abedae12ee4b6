"""x has a buffer more than gy where it is less and fits."""

import pytest
from gradients import last, problem_of

import nkiconv
from nkiconv.kernels.gradients import conv_weight_gradient
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates

pytestmark = pytest.mark.simulator_only
BLOCKS = {"rows": 2, "columns": 2, "buffers": 2, "split": 0}


def loads_of(channels, H, algorithm, settings):
    """Of a 3x3 filter's gradient on one core: loads of x and of gy in program order, (buffer, start)."""
    x, gy, shape = problem_of(channels, [(H, 3, 1, 1, 1, 1)] * 2)
    x, gy = last(x), last(gy)
    more = {"in_perm": (0, 3, 1, 2), "out_perm": (0, 2, 3, 1), "padding": ((1, 1), (1, 1))}
    more |= {"feature_group_count": channels[3], "algorithm": algorithm, "config": tuple(settings.items())}
    run = nkiconv.simulator.execute(conv_weight_gradient[1], (x, gy, shape), more, trace_only=True)
    line, found = in_time(run, Rates()).line, ([], [])
    for index, one in enumerate(run.programs[0].instructions):
        if one.op == "dma_copy" and one.reads[0].info.shape in (x.shape, gy.shape):
            found[one.reads[0].info.shape == gy.shape].append((one.writes[0].info.id, line.start[index]))
    return found


@pytest.mark.parametrize(("C", "K", "more"), [(64, 128, 1), (64, 32, 0), (150, 256, 0)])
def test_x_has_a_buffer_more_where_it_is_less_and_fits(C, K, more):
    sizes = {"rows": 7, "columns": 14, "outputs": 2, "inputs": 3, "exchanged": 0}
    loads = loads_of((48, C, K, 1), 28, "blocks", {**BLOCKS, **sizes})
    assert [len({buffer for buffer, _ in some}) for some in loads] == [2 + more, 2]
