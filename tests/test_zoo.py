"""The command that measures a zoo of models: its parts, on models of a few layers; `make zoo` runs all."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from commands import module_of, of_command
from torch import nn
from torch.nn import functional as F

import nkiconv
from nkiconv.planner import Request

FOLDER = Path(__file__).resolve().parent / "zoo"
#: 2 flops for each of 8 x 8 outputs, 4 filters and 3 x 3 x 3 taps.
FLOPS = 2 * 64 * 4 * 27
CONVOLVED = Request(problem=nkiconv.ConvProblem(N=1, C=3, H=8, W=8, K=4, R=3, S=3))


class Padding(nn.Conv2d):
    """Pads by itself, as causal ones do."""

    def forward(self, x):
        return super().forward(F.pad(x, (2, 0, 2, 0)))


class Doubled(nn.Module):
    """Convolves in float64, for which there is no kernel."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return F.conv2d(x.double(), self.conv.weight.double()).to(x.dtype)


def built():
    return nn.Sequential(Padding(3, 4, 3), Doubled())


zoo = of_command("zoo", "zoo")


@pytest.fixture
def measure(monkeypatch):
    found = module_of(FOLDER, "measure", monkeypatch)
    yield found
    for name in ("zoo", "measure", "packages", "of_torch", "of_diffusers", "of_transformers"):
        sys.modules.pop(name, None)


@pytest.fixture
def command(measure, monkeypatch):
    return module_of(FOLDER, "__main__", monkeypatch)


@pytest.fixture
def everything(command):
    return sys.modules[command.models.__module__]


def test_a_model_s_rest_is_told_with_its_reason(zoo, measure):
    found = measure.measure(zoo.Model("tiny", "none", built, {"input": (1, 3, 8, 8)}))
    assert (found.error, found.ran_on, found.kernels) == ("", "meta tensors", 1)
    assert found.nkiconv == FLOPS
    ((reason, flops),) = found.rest.items()
    assert flops == 2 * 64 * 4 * 4
    assert "conv2d stays with torch: dtype: torch.float64 must be one of" in reason
    assert found.fraction == FLOPS / (FLOPS + flops)


def problem():
    from nkiconv import ConvProblem

    return ConvProblem(N=1, C=3, H=10, W=10, K=4, R=3, S=3)


def test_models_that_do_not_run_are_told(zoo, measure):
    found = measure.measure(zoo.Model("tiny", "none", built, {"input": (1, 4, 8, 8)}))
    assert "model: raised RuntimeError in layer 0" in found.error
    assert found.fraction == 0
    assert measure.measure(zoo.Model("none", "none", lambda: nn.Conv2d(0, "x", 1), {})).error


@pytest.mark.slow
def test_one_model_by_the_command(command, everything, monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    models = [one for one in everything.of_transformers.models() if one.name == "ViTModel"]
    monkeypatch.setattr(command, "models", lambda _only: models)
    out = tmp_path / "zoo.md"
    monkeypatch.setattr(sys, "argv", ["zoo", "--require", "--out", str(out)])
    with pytest.raises(SystemExit) as stop:
        command.main()
    assert stop.value.code == 0
    assert "| ViTModel | transformers | 0.2 | 100 % | 1 |  |" in out.read_text(encoding="utf-8")


@pytest.fixture
def plans(monkeypatch, tmp_path):
    """`make plans` over one convolution, searched for in this process, to a file of its own."""
    found = module_of(FOLDER, "plans", monkeypatch)
    monkeypatch.setattr(found, "each", lambda work, given, jobs, what: ((one, work(one)) for one in given))
    monkeypatch.setattr(found, "distinct", lambda only: ({found.key_of(CONVOLVED): CONVOLVED}, []))
    monkeypatch.setattr(sys, "argv", ["plans", "--out", str(tmp_path / "shipped.tsv")])
    return found


def searching(plans, monkeypatch, error):
    def answer(request, use_cache):
        raise error

    monkeypatch.setattr(plans, "answer", answer)


def test_plans_of_what_runs_are_written(plans, tmp_path):
    plans.main()
    (found,) = plans.shipped.read(tmp_path / "shipped.tsv").plans()
    assert (found.request.problem, found.us > 0) == (CONVOLVED.problem, True)


def test_what_nothing_runs_is_left_out(plans, monkeypatch, tmp_path):
    searching(plans, monkeypatch, nkiconv.UnsupportedError("no algorithm runs it"))
    plans.main()
    assert plans.shipped.read(tmp_path / "shipped.tsv").plans() == []


def test_a_fault_of_a_search_fails_the_run_when_the_rest_is_written(plans, monkeypatch, tmp_path):
    searching(plans, monkeypatch, KeyError("rows"))
    with pytest.raises(SystemExit, match=r"(?s)1 faults:.*KeyError: 'rows'"):
        plans.main()
    assert (tmp_path / "shipped.tsv").exists()


def test_a_model_that_does_not_run_fails_the_run(zoo, measure, monkeypatch):
    class Raises(torch.nn.Module):
        def forward(self, input):
            raise RuntimeError("no such device")

    found = module_of(FOLDER, "plans", monkeypatch)
    everything = importlib.import_module("everything")
    broken = zoo.Model("broken", "none", Raises, {"input": (1, 3, 8, 8)})
    monkeypatch.setattr(everything, "models", lambda only: [broken])
    monkeypatch.setattr(everything, "importable", lambda wanted: [])
    assert found.distinct([]) == ({}, ["none broken: the model does not run"])


def test_whole_nets_are_summed_beside_cases_of_the_same_shape(zoo, measure, monkeypatch):
    nets = module_of(FOLDER, "nets", monkeypatch)

    def twice():
        conv = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        return nn.Sequential(conv, conv)

    found = nets.planned(zoo.Model("tiny", "none", twice, {"input": (1, 64, 56, 56)}))
    problem = nkiconv.cases.get("rn50_c2").problem.replace(N=1)
    assert [(row.calls, row.convolved.problem) for row in found.rows] == [(2, problem)]
    *_, row, _, missing = nets.page([("tiny", found)], ["timm"])
    name, calls, distinct, _, us, share, cudnn = (cell.strip() for cell in row.strip("|").split("|"))
    assert (name, calls, distinct, us) == ("tiny", "2", "1", f"{2 * found.rows[0].plan.modelled_us:,.1f}")
    assert share == f"{found.roofline_fraction:.0%}"
    assert cudnn == f"rn50_c2 {nets.h200.fractions()['rn50_c2', 'bf16']:.0%}"
    assert missing == "timm is not installed: its nets are left out."


@pytest.mark.parametrize("name", ["ResNet-50, batch 32", "Mamba2-130m, 2,048 tokens"])
def test_a_net_is_of_the_zoo_with_other_inputs(measure, monkeypatch, name):
    nets = module_of(FOLDER, "nets", monkeypatch)
    (row,) = (rest for one, *rest in nets.NETS if one == name)
    found = nets.net(*row)
    assert (found.name, found.inputs) == (row[0], row[1])
