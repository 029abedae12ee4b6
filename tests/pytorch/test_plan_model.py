"""`plan_model` sees what a model runs, under the names of its modules, and leaves the model as it was."""

import copy
import dataclasses
from collections import OrderedDict

import pytest
import torch
from chained import made
from torch import nn
from torch.nn import functional as F
from torch_models import build

from nkiconv import ConvProblem, DtypeError, NkiconvError, launches, pytorch
from nkiconv.planner import Asked
from nkiconv.pytorch import plan_model
from nkiconv.pytorch.models.advice import _reasons
from nkiconv.pytorch.models.launch_costs import launch_cost
from nkiconv.pytorch.models.recording import DATA, FAKE, META, record

pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans")]


def test_every_convolution_is_recorded_with_its_shape():
    model, x = build("conformer")
    found = record(model, [x], {})
    assert (found.ran_on, found.others) == (FAKE, {})
    problems = {layer: one.problem for one, layers in found.convolved.items() for layer in layers}
    assert {layer: (one.input_shape, one.filter_shape, one.output_shape) for layer, one in problems.items()} == {
        "pointwise1": ((2, 6, 1, 14), (12, 6, 1, 1), (2, 12, 1, 14)),
        "depthwise": ((2, 6, 1, 14), (6, 1, 1, 5), (2, 6, 1, 14)),
        "pointwise2": ((2, 6, 1, 14), (6, 6, 1, 1), (2, 6, 1, 14)),
    }
    assert all(one.asked.bias for one in found.convolved)


def mixer(more):
    """Calls causal convolutions as Mamba's mixers do."""

    def forward(self, x):
        if "steps" in more:
            return pytorch.causal_conv1d_update(x, torch.zeros(2, 6, 3), self.weight, self.bias, "silu")
        found = pytorch.causal_conv1d_fn(x, self.weight, self.bias, activation="silu", **more)
        return found[0] if more.get("return_final_states") else found

    return made(forward, weight=nn.Parameter(torch.randn(6, 4)), bias=nn.Parameter(torch.randn(6)))


#: of a causal call: its arguments, the columns and left padding of the launch, what else the planner is asked for
CAUSAL = [
    ({}, (2, 9, 3), {}),
    ({"initial_states": torch.zeros(2, 6, 3)}, (2, 9, 3), {"initial_state": True}),
    ({"return_final_states": True}, (2, 9, 3), {"return_final_state": True}),
    ({"seq_idx": torch.zeros(2, 9, dtype=torch.int32)}, (1, 18 + 2 * 3, 0), {"strict_nonfinite": True}),
    ({"cu_seqlens": torch.tensor([0, 2, 5, 9])}, (1, 9 + 3 * 3, 0), {"strict_nonfinite": True}),
    ({"steps": 1}, (2, 9, 3), {"initial_state": True, "return_final_state": True}),
]


@pytest.mark.cover(3, keep=["--"])
@pytest.mark.parametrize(
    ("more", "sizes", "asked"), CAUSAL, ids=lambda one: "-".join(one) if isinstance(one, dict) else ""
)
def test_causal_convolutions_are_planned(more, sizes, asked):
    x = torch.randn(1 if "cu_seqlens" in more else 2, 6, 9)
    found = plan_model(mixer(more), [x], quick=True)
    [row] = found.rows
    N, W, zeros = sizes
    problem = ConvProblem(N=N, C=6, W=W, K=6, groups=6, S=4, padding=((0, 0), (zeros, 0)), dtype="fp32")
    assert (row.convolved.operation, row.convolved.problem) == ("depthwise_conv1d", problem)
    assert row.convolved.asked == Asked(bias=True, activation="silu", **asked)
    assert row.plan.modelled_us > 0


def test_the_model_stays_as_it_was():
    model, x = build("resnet")
    model.train()
    state = {name: (one, one.clone()) for name, one in model.state_dict(keep_vars=True).items()}
    kinds = [type(module) for module in model.modules()]
    found = plan_model(model, [x], fold_batchnorm=True, quick=True)
    assert [type(module) for module in model.modules()] == kinds
    assert model.training
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    for name, one in model.state_dict(keep_vars=True).items():
        assert one is state[name][0]
        assert torch.equal(one, state[name][1])
    assert all(row.convolved.asked.bias for row in found.rows)
    assert {fold.folded for fold in found.report.folds} == {True}


def test_data_decides_where_it_must():
    layers = nn.ModuleList(nn.Conv1d(3, size, 1) for size in (4, 5))
    model = made(lambda m, x: m.layers[int(m.norm(x).argmax())](x), layers=layers, norm=nn.BatchNorm1d(3)).train()
    x = torch.zeros(1, 3, 2)
    x[0, 0, 1] = 1
    found = record(model, [x], {})
    assert found.ran_on == DATA
    assert list(found.convolved.values()) == [["layers.1"]]
    assert model.norm.num_batches_tracked == 0


def padding(self, x, mask):
    """Reads zeros to pad with from integers: a buffer, an input, and what it computes of them."""
    frames = torch.ceil((x.shape[-1] - self.taps + 1) / 2).to(torch.int64)
    extra = frames.item() % 2
    more = int(mask.sum()) if bool((mask == 1).all()) else 0
    self.taps += 0
    return self.conv(F.pad(x, (int(self.taps), extra + more)))


def test_integers_keep_their_values_where_a_model_runs_on_shapes_alone():
    model, x, mask = made(padding, conv=nn.Conv1d(3, 4, 3, stride=2)), torch.zeros(1, 3, 10), torch.ones(1, 2).long()
    model.register_buffer("taps", torch.tensor(3))
    found = record(model, [x, mask], {})
    assert (found.ran_on, found.because) == (FAKE, "")
    [(convolved, _layers)] = found.convolved.items()
    assert convolved.problem.input_shape[-1] == 10 + 3 + 2
    assert model.taps == 3


class Cutting(nn.Module):
    def forward(self, x):
        return pytorch.conv1d(x[..., : int(x.sum())], torch.ones(4, 3, 1))


def test_what_was_raised_on_shapes_alone_is_told():
    found = record(Cutting(), [torch.full((1, 3, 9), 0.25)], {})
    assert found.ran_on == DATA
    assert found.because.startswith("raised ")
    assert "in its own forward" in found.because
    [(convolved, _layers)] = found.convolved.items()
    assert convolved.problem.input_shape[-1] == 6


def test_a_tensor_for_inputs_is_refused():
    """Its images would be arguments."""
    with pytest.raises(DtypeError, match=r"^inputs: must be a list or tuple of .*, not Tensor; pass \[x\]"):
        plan_model(nn.Conv1d(3, 4, 1), torch.zeros(1, 3, 9))


class OfADict(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 1, device="meta")

    def forward(self, given):
        return self.conv(given["x"])


def test_models_without_data_take_tensors_in_containers():
    found = record(OfADict(), [{"x": torch.zeros(1, 3, 9)}], {})
    assert found.ran_on == META
    assert list(found.convolved.values()) == [["conv"]]


@pytest.mark.parametrize(("model", "more", "message"), [
    (nn.Conv1d, {}, "model: must be a torch.nn.Module, not type; pass the module itself"),
    *((nn.Conv1d(3, 4, 1), {"named": one}, "named=.*: must be a dict of forward's arguments by name")
      for one in ([1], {1: 2}, "x")),
    (nn.Conv1d(3, 4, 1), {"lnc": True}, "lnc=True: must be 1 or 2"),
    (nn.Conv1d(3, 4, 1), {"layout": "HWCN"}, "layout='HWCN': accepted are None, NCHW, NHWC"),
    (nn.Conv1d(3, 4, 1), {"quick": True, "wide": True}, "drop one"),
    (nn.Conv1d(3, 4, 1), {"training": "no"}, "training='no': must be True or False"),
    (nn.Conv1d(3, 4, 1), {"mode": "graph"}, r"^mode='graph': accepted are None, eager, compiled, xla; use one"),
    (nn.Conv1d(3, 4, 1), {"training": True, "fold_batchnorm": True}, "fold_batchnorm=True: what is folded is not"),
    (nn.Sequential(Cutting(), nn.Linear(2, 2, device="meta")), {}, "give its parameters data, which on meta they"),
    (nn.Sequential(nn.Sequential(nn.Linear(4, 4))), {}, r"raised RuntimeError in layer 0.0, given 1x3x9 float32: "),
    (nn.Conv1d(5, 4, 1), {}, r"raised GeometryError in its own forward, given 1x3x9 float32: weight.shape"),
    (nn.Conv1d(3, 4, 1), {"named": {"y": 3}}, r"raised TypeError in its own forward, given 1x3x9 float32, y=int"),
])  # fmt: skip
def test_refusals(model, more, message):
    with pytest.raises(NkiconvError, match=message):
        plan_model(model, [torch.zeros(1, 3, 9)], **more)


def test_volumes_are_planned_and_their_instructions_counted():
    time, space = nn.Conv3d(8, 16, 3, padding=(0, 1, 1)), nn.Conv3d(16, 16, (1, 3, 3), padding=(0, 1, 1))
    clip = made(lambda m, x: m.space(m.space(m.time(F.pad(x, (0, 0, 0, 0, 2, 0))))), time=time, space=space)
    found = plan_model(clip, [torch.zeros(1, 8, 4, 12, 14)], quick=True)
    one, two = sorted(found.rows, key=lambda row: row.layers)
    assert [(row.convolved.operation, row.calls) for row in (one, two)] == [("conv3d", 2), ("conv3d", 1)]
    assert two.convolved.problem.input_shape == (1, 8, 6, 12, 14)
    assert found.instructions == 2 * one.plan.instructions + two.plan.instructions > 0
    assert (found.graphs, found.flops.fraction) == (1, 1)
    # two frames of 8 x 12 x 14 fp32 in front of `time`; `space` sees one plane
    assert (one.cache_bytes, found.cache_bytes) == (0, 2 * 8 * 12 * 14 * 4)
    assert found.calls == (("time", two.plan.instructions), *[("space", one.plan.instructions)] * 2)
    # what a strided convolution of a plain network sees does not overlap
    pooled = nn.Sequential(nn.Conv3d(4, 8, 3, padding=1), nn.Conv3d(8, 8, 2, stride=2))
    assert plan_model(pooled, [torch.zeros(1, 4, 4, 6, 6)], quick=True).cache_bytes == 0


@pytest.mark.parametrize(("most", "cuts"), [
    (10, ()), (5, (("b", 2),)), (3, (("a", 2), ("b", 2))), (2, (("b", 1), ("a", 2), ("b", 2))),
    (1, (("b", 1), ("a", 2), ("b", 2))),
])  # fmt: skip
def test_graphs_are_cut_where_a_compiler_takes_no_more(most, cuts):
    """Instructions of both cores; a call alone is never cut."""
    found = plan_model(nn.Identity(), [torch.zeros(1)])
    calls = (("a", 4), ("b", 2), ("a", 3), ("b", 5))
    few = dataclasses.replace(found, calls=calls, most_instructions=most)
    assert (few.cuts, few.graphs) == (cuts, len(cuts) + 1)
    assert few.as_dict()["cuts"] == [list(one) for one in cuts]


@pytest.mark.usefixtures("estimates")
def test_a_step_of_training_has_gradients_too():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 4, 1), nn.ConvTranspose2d(4, 2, 2, 2), nn.Conv2d(2, 2, 1),
    )  # fmt: skip
    for one in model[4].parameters():
        one.requires_grad = False
    before = copy.deepcopy(model.state_dict())
    found = plan_model(model, [torch.zeros(2, 3, 9, 9)], training=True, quick=True)
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())
    layers = {one: "".join(sorted(row.layers[0] for row in found.toward(one).rows)) for one in found.directions}
    # nobody wants the gradient of the model's input, nor that of frozen filters
    assert layers == {"forward": "03456", "dgrad": "3456", "wgrad": "0356"}
    (first,) = (row for row in found.toward("wgrad").rows if row.layers == ("0",))
    assert first.convolved.asked == Asked(bias=True, out_dtype="fp32")
    assert first.plan.operation == "conv2d_weight"
    assert found.modelled_us == pytest.approx(sum(found.toward(one).modelled_us for one in found.directions))
    assert set(found.as_dict()["directions"]) == set(layers)
    assert plan_model(model, [torch.zeros(2, 3, 9, 9)], quick=True).directions == ("forward",)


def test_quick_times_are_of_the_estimate_and_are_not_kept(plans, estimates):
    model, x = nn.Conv2d(64, 64, 3), torch.zeros(1, 64, 20, 20)
    quick = plan_model(model, [x], quick=True)
    assert (quick.quick, quick.rows[0].plan.effort) == (True, "estimated")
    searched = plan_model(model, [x])
    assert (searched.quick, searched.rows[0].plan.effort) == (False, "timed")
    assert searched.modelled_us <= quick.modelled_us
    assert plan_model(model, [x], quick=True).rows[0].plan.cached


def test_another_layout_is_planned_as_asked():
    model, x = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3)), torch.zeros(1, 8, 12, 12)
    found = plan_model(model, [x], layout="NHWC", quick=True)
    assert {row.convolved.problem.layout for row in found.rows} == {"NHWC"}
    volumes = plan_model(nn.Conv3d(4, 4, 3), [torch.zeros(1, 4, 5, 6, 6)], layout="NHWC", quick=True)
    assert volumes.rows[0].convolved.problem.layout == "NDHWC"
    rows = plan_model(nn.Conv1d(8, 8, 3, groups=8), [torch.zeros(1, 8, 20)], layout="NHWC", quick=True)
    assert rows.rows[0].convolved.operation == "depthwise_conv1d"


# What launches cost: by hand from trn2.toml's constants of the host, on which no plan and no kernel's time rests.

#: us, low and high of 7 launches in 2 graphs; us of 3 launches in one.
COSTS = {
    "eager": ((7 * 55, 7 * 45, 7 * 65), 3 * 55),
    "compiled": ((2 * 97.5 + 7 * 5, 2 * 95 + 7 * 2, 2 * 100 + 7 * 8), 97.5 + 3 * 5),
    "xla": ((7 * 565, 7 * 540, 7 * 590), 3 * 565),
}


def test_a_plan_counts_its_launches():
    two = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))  # which are equal
    model, x = nn.Sequential(*two, nn.ReLU(), nn.Conv2d(4, 8, 1)), [torch.zeros(1, 4, 6, 6)]
    plain = plan_model(model, x, quick=True)
    assert (plain.mode, plain.launch_cost, plain.totals, plain.launch_note) == (None, None, (), "")
    assert plain.total_us == plain.modelled_us
    assert not {"mode", "launches_us", "total_us"} & plain.as_dict().keys()
    assert [*COSTS] == [*launches.MODES]
    for mode, (seven, us) in COSTS.items():
        cost = launch_cost(mode, 7, 2)
        assert (cost.us, cost.low, cost.high) == seven
        assert ("measured" in cost.words, "2 x 97.5" in cost.words) == (True, mode == "compiled")
        found = plan_model(model, x, quick=True, mode=mode)
        assert found.rows == plain.rows
        assert found.total_us == pytest.approx(plain.modelled_us + us)
        data, lines = found.as_dict(), str(found).splitlines()
        assert [data[one] for one in ("mode", "launches", "launches_us", "total_us")] == [mode, 3, us, found.total_us]
        told = {line.split("  ")[0]: line.split() for line in lines}
        assert told[f"launches, {mode}"][2:] == ["3", f"{us:,.1f}"]
        assert told["with launches"][-1] == f"{found.total_us:,.1f}"
        assert lines[0] == str(plain).splitlines()[0]


def test_what_print_shows_of_long_names_and_shapes():
    """A name loses its front, with a sign; a shape is wrapped, and no line is longer than a screen."""
    layers = nn.Sequential(OrderedDict({"a_long_name_of_a_stage": nn.Conv3d(1, 16, 3, padding=1, bias=False)}))
    found = plan_model(nn.Sequential(layers), [torch.zeros(2, 1, 16, 24, 30)], quick=True)
    assert (found.fused_note, found.totals) == ("", ())
    lines = str(found).splitlines()
    assert [line[:18].strip() for line in lines[3:5]] == ["…g_name_of_a_stage", ""]
    assert "2 1 16 24 30 -> 16 16 24 30" in " ".join(line[27:49].strip() for line in lines[3:5])
    assert found.rows[0].plan.algorithm in lines[3]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        (nn.Conv1d, (64, 64, 4, 1, 0, 1, 64), ""),
        (nn.Conv1d, (64, 64, 31, 1, 0, 1, 64), "an output channel reads one input channel, so most"),
        (nn.Conv1d, (1, 64, 4), "1 input and 64 outputs per group leave part"),
    ],
)
def test_reasons_of_rows(kind, arguments, said):
    """A depthwise convolution that the Tensor Engine does not bound has none about its array."""
    [row] = plan_model(nn.Sequential(kind(*arguments)), [torch.zeros(1, arguments[0], 1000)], quick=True).rows
    reasons = "; ".join(_reasons(row.plan))
    assert said in reasons
    assert said or "group" not in reasons
