"""plan_model counts the kernels of statistics that norms in fused chains rest on, and the bytes of all kernels."""

import pytest
from chained import Block, C, drawn, image
from torch import nn

from nkiconv.pytorch import channel_stats, norm_scale_shift, plan_model
from nkiconv.pytorch.models.statistics_plan import Statistics, taken

pytestmark = pytest.mark.usefixtures("estimates")


class Once(nn.Sequential):
    """A convolution, and two chains of which the first takes its statistics."""

    def __init__(self):
        norms = [nn.GroupNorm(2, C) for _ in range(2)]
        first, second, third = (nn.Conv2d(C, C, 3, padding=1) for _ in range(3))
        super().__init__(first, norms[0], nn.SiLU(), second, nn.AvgPool2d(1), norms[1], nn.SiLU(), third)


def planned(model, *shapes, **more):
    return plan_model(drawn(model).eval(), [image(*shape) for shape in shapes], quick=True, **more)


@pytest.mark.cover(1)
@pytest.mark.parametrize("lnc", [1, 2])
def test_launches_and_times(lnc):
    found = planned(Once(), (2, C, 6, 5), fuse=True, lnc=lnc)
    counted = {row.statistics.operator: row.calls for row in found.statistics}
    assert counted == {"channel_stats": 1, "norm_scale_shift": 2}
    assert found.launches == 6
    each = {row.statistics.operator: row for row in found.statistics}
    stats = each["norm_scale_shift"].statistics
    assert stats == Statistics(
        "norm_scale_shift", ((1, 2, C, 3), "fp32"), (((C,), "fp32"), ((C,), "fp32")), ("group", 2, 1e-5)
    )
    assert found.statistics_us == sum(row.calls * taken(row.statistics, lnc)[0] for row in found.statistics)
    assert found.statistics_us > 0
    assert f"{found.statistics_us:,.1f} us more, 3 launches" in str(found)
    document = found.as_dict()
    assert (document["launches"], len(document["statistics"])) == (6, 2)
    assert document["hbm_bytes"] == found.hbm_bytes


def test_bytes():
    """Of x, filters, y, residual and bias-free kernels once; statistics read x once."""
    found = planned(Once(), (2, C, 6, 5), fuse=True)
    x, w = 4 * 2 * C * 30, 4 * C * C * 9
    assert sum(row.hbm_bytes for row in found.rows) == 3 * (2 * x + w)
    (of_x,) = [row for row in found.statistics if row.statistics.operator == "channel_stats"]
    assert x <= of_x.hbm_bytes <= x + 2 * 4 * 2 * 2 * C * 3
    apart = planned(Block(), (2, C, 6, 5), (2, 4))
    fused = planned(Block(), (2, C, 6, 5), (2, 4), fuse=True)
    assert sum(row.hbm_bytes for row in fused.rows) - sum(row.hbm_bytes for row in apart.rows) == x


def test_pieces_of_one_x():
    class Net(nn.Module):
        def forward(self, x):
            return norm_scale_shift([channel_stats(x[:, :, :2]), channel_stats(x[:, :, 2:])], num_groups=2).scale

    found = plan_model(Net(), [image(1, C, 6, 5)])
    (row,) = [one for one in found.statistics if one.statistics.operator == "norm_scale_shift"]
    assert row.statistics.x == ((2, 1, C, 3), "fp32")
