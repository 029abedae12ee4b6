"""What launches cost: by hand from trn2.toml's constants of the host, on which no plan and no kernel's time rests."""

import pytest
import torch
from torch import nn

from nkiconv import launches
from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import plan_model
from nkiconv.pytorch.models.launch_costs import launch_cost

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]

#: us, low and high of 7 launches in 2 graphs.
COSTS = {
    "eager": (7 * 55, 7 * 45, 7 * 65),
    "compiled": (2 * 97.5 + 7 * 5, 2 * 95 + 7 * 2, 2 * 100 + 7 * 8),
    "xla": (7 * 565, 7 * 540, 7 * 590),
}


@pytest.mark.parametrize("mode", launches.MODES)
def test_costs(mode):
    found = launch_cost(mode, 7, 2)
    assert (found.us, found.low, found.high) == COSTS[mode]
    assert ("measured" in found.words, "2 x 97.5" in found.words) == (True, mode == "compiled")


@pytest.fixture(scope="module")
def model():
    """Two equal convolutions and another."""
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 1))


def test_a_plan_counts_its_launches(model):
    x = [torch.zeros(1, 4, 6, 6)]
    plain = plan_model(model, x, quick=True)
    assert (plain.mode, plain.launch_cost, plain.totals, plain.launch_note) == (None, None, (), "")
    assert plain.total_us == plain.modelled_us
    assert not {"mode", "launches_us", "total_us"} & plain.as_dict().keys()
    for mode, us in (("eager", 3 * 55), ("compiled", 97.5 + 3 * 5), ("xla", 3 * 565)):
        found = plan_model(model, x, quick=True, mode=mode)
        assert found.rows == plain.rows
        assert found.total_us == pytest.approx(plain.modelled_us + us)
        plain_data = found.as_dict()
        assert (plain_data["mode"], plain_data["launches"], plain_data["launches_us"]) == (mode, 3, us)
        assert plain_data["total_us"] == found.total_us
        lines = str(found).splitlines()
        [told] = [line for line in lines if line.startswith(f"launches, {mode} ")]
        assert told.split()[2:] == ["3", f"{us:,.1f}"]
        [total] = [line for line in lines if line.startswith("with launches")]
        assert total.split()[-1] == f"{found.total_us:,.1f}"
        assert lines[0] == str(plain).splitlines()[0]


def test_other_modes_are_refused(model):
    with pytest.raises(UnsupportedError, match=r"^mode='graph': accepted are None, eager, compiled, xla; use one"):
        plan_model(model, [torch.zeros(1, 4, 6, 6)], mode="graph")
