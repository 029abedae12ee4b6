"""Modelled times of all convolutions of whole nets, forward in bf16: `profiles/nets.md`.

    make nets                                  all of them
    python tests/zoo/nets.py --only resnet     those with a word in their name, on stdout

Each convolution takes what a call takes without a search: the plan that nkiconv ships, else an estimate.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import of_transformers
import torch
from everything import command, importable, models, quiet
from rich.progress import track
from zoo import Ids, Model

from nkiconv import cases
from nkiconv.planner.plan import SHIPPED
from nkiconv.pytorch import plan_model
from nkiconv.pytorch.models.model_plan import ModelPlan
from nkiconv.tools.suites.suite import h200_fractions
from nkiconv.whole_file import write_page

#: Net, its name in the zoo, its inputs, and what its config has otherwise than by default.
NETS: tuple[tuple[str, str, dict[str, tuple[int, ...]], dict[str, int]], ...] = (
    ("ResNet-50, batch 32", "resnet50", {"x": (32, 3, 224, 224)}, {}),
    ("EfficientNet-B0, batch 8", "efficientnet_b0", {"x": (8, 3, 224, 224)}, {}),
    ("ConvNeXt-T, batch 8", "convnext_tiny", {"x": (8, 3, 224, 224)}, {}),
    ("SDXL UNet, 128 x 128 latents", "SDXL UNet", {}, {}),
    ("wav2vec2-base, 10 s", "wav2vec2_base", {"waveforms": (1, 160_000)}, {}),
    ("Mamba2-130m, 2,048 tokens", "Mamba2Model", {"input_ids": Ids((1, 2048))},
     {"hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24, "n_groups": 1}),
)  # fmt: skip


def net(name: str, inputs: dict[str, tuple[int, ...]], settings: dict[str, int]) -> Model:
    """A model of the zoo with other inputs and another config."""
    found = next(one for one in models([name]) if one.name == name)
    build = of_transformers.built(name, settings) if settings else found.build
    return dataclasses.replace(found, build=build, inputs=inputs or found.inputs)


def planned(model: Model) -> ModelPlan:
    """The plans of one run in bf16."""
    inputs = {name: _in_bf16(one) for name, one in model.given().items()}
    return plan_model(model.made().to(torch.bfloat16), (), inputs, quick=True, use_cache=False)


def _in_bf16(value: object) -> object:
    if isinstance(value, dict):
        return {name: _in_bf16(one) for name, one in value.items()}
    return value.to(torch.bfloat16) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def on_h200(found: ModelPlan) -> str:
    """What cuDNN reaches of an H200's limit in cases that have a convolution's shape, at whatever batch."""
    shapes = {row.convolved.problem.replace(N=1) for row in found.rows}
    shares = [
        f"{name} {share:.0%}"
        for (name, dtype), share in h200_fractions().items()
        if cases.get(name).problem.replace(N=1, dtype=dtype) in shapes
    ]
    return ", ".join(shares)


def page(found: Sequence[tuple[str, ModelPlan]], missing: Sequence[str]) -> Iterator[str]:
    """The table, as lines of Markdown."""
    yield "# Whole nets"
    yield ""
    yield "Written by `make nets`: the sum over all convolutions of one forward run in bf16, two cores, inside a"
    yield "graph, each with the plan that nkiconv ships, else an estimate. Modelled; nothing here ran on hardware. What"
    yield "else a net does is in no sum. Of the limit: each convolution's least time by bytes and flops, summed, over"
    yield "the sum. cuDNN: the share of an H200's own limit in cases of that shape, at their batch; measured by others."
    yield "~: times of some are extrapolated from parts."
    yield ""
    yield "| net | convolutions | distinct | shipped plans | modelled us | of the limit | cuDNN on an H200 |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    for name, one in found:
        plans = [row.plan for row in one.rows if row.plan is not None]
        shipped = sum(plan.effort == SHIPPED for plan in plans)
        calls, mark = sum(row.calls for row in one.rows), "" if all(plan.whole for plan in plans) else "~"
        times = f"{mark}{one.modelled_us:,.1f} | {one.roofline_fraction:.0%}"
        yield f"| {name} | {calls} | {len(one.rows)} | {shipped} | {times} | {on_h200(one)} |"
    yield ""
    yield from (f"{name} is not installed: its nets are left out." for name in missing)


def main() -> None:
    """The command."""
    parser = command("tests/zoo/nets.py", __doc__)
    asked = parser.parse_args()
    words = [word.lower() for word in asked.only] or [""]
    wanted = [(name, net(*rest)) for name, *rest in NETS if any(word in name.lower() for word in words)]
    if not wanted:
        parser.error(f"--only {' '.join(asked.only)}: no net has that in its name")
    missing = importable([model for _, model in wanted])
    quiet()
    ready = [(name, model) for name, model in wanted if model.package not in missing]
    found = [(name, planned(model)) for name, model in track(ready, description="nets")]
    write_page(list(page(found, missing)), asked.out)


if __name__ == "__main__":
    main()
