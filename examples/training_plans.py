"""What a step of training would take on trn2 in the convolutions of five models, modelled; nothing is downloaded.

Forward, the gradients by inputs and those by filters, each planned by itself; what is between convolutions is not in
it. Needs `pip install transformers diffusers`.

    python examples/training_plans.py                     # all of them, as a table in Markdown
    python examples/training_plans.py --only resnet50
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nkiconv.pytorch import plan_model
from nkiconv.pytorch.models.model_plan import ModelPlan


def _of_transformers(name: str, config: str, **settings: Any) -> nn.Module:
    import transformers

    model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return model


def _unet() -> nn.Module:
    from diffusers import UNet2DConditionModel

    model: nn.Module = UNet2DConditionModel(cross_attention_dim=768)
    return model


@dataclass(frozen=True)
class Step:
    """A model and the inputs of a step: shapes, of bf16, or int64 where `tokens` says so."""

    title: str
    build: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...], ...]
    tokens: bool = False


STEPS = {
    "resnet50": Step(
        "ResNet-50, 32 x 224 x 224",
        lambda: _of_transformers("ResNetForImageClassification", "ResNetConfig"),
        ((32, 3, 224, 224),),
    ),
    "convnext_t": Step(
        "ConvNeXt-T, 32 x 224 x 224",
        lambda: _of_transformers("ConvNextForImageClassification", "ConvNextConfig"),
        ((32, 3, 224, 224),),
    ),
    "efficientnet_b0": Step(
        "EfficientNet-B0, 32 x 224 x 224",
        lambda: _of_transformers(
            "EfficientNetForImageClassification",
            "EfficientNetConfig",
            width_coefficient=1.0,
            depth_coefficient=1.0,
            image_size=224,
            hidden_dim=1280,
        ),
        ((32, 3, 224, 224),),
    ),
    "mamba2_130m": Step(
        "Mamba2-130m, 8 x 2048 tokens",
        lambda: _of_transformers(
            "Mamba2ForCausalLM", "Mamba2Config", hidden_size=768, num_hidden_layers=24, num_heads=24, n_groups=1
        ),
        ((8, 2048),),
        tokens=True,
    ),
    "sd_unet": Step(
        "UNet of Stable Diffusion 1.5, 4 x 64 x 64",
        _unet,
        ((4, 4, 64, 64), (1,), (4, 77, 768)),
    ),
}


def planned(step: Step) -> ModelPlan:
    """The plan of a step, in bf16."""
    with torch.device("meta"):  # shapes only
        model = step.build().to(torch.bfloat16)
    kind = torch.int64 if step.tokens else torch.bfloat16
    return plan_model(model, [torch.zeros(shape, dtype=kind) for shape in step.inputs], training=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=STEPS, help="one model")
    only = parser.parse_args().only
    print("| step | forward us (of the limit) | dgrad | wgrad | sum | instructions |")
    print("|---|---|---|---|---|---|")
    for name in STEPS if only is None else [only]:
        found = planned(STEPS[name])
        cells = []
        for direction in ("forward", "dgrad", "wgrad"):
            part = found.toward(direction)
            cells.append(f"{part.modelled_us:,.0f} ({part.roofline_fraction:.0%})")
        total = f"{found.modelled_us:,.0f} ({found.roofline_fraction:.0%})"
        print("|", " | ".join([STEPS[name].title, *cells, total, f"{found.instructions:,}"]), "|", flush=True)


if __name__ == "__main__":
    main()
