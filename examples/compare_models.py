"""Models of transformers by nkiconv against the same by torch: `make models`.

For each model of `transformers_models`, on the host: how much of its convolutions' arithmetic is nkiconv's, by how much
outputs and derivatives of the input differ where
nkiconv's operators compute in torch (NKICONV_CPU=torch), over the largest number of torch's; and whether the kernels
agree with them in the simulator (NKICONV_CPU=compare), within bounds that are derived in nkiconv.bounds.
"""

import dataclasses
import os
import sys
from collections.abc import Iterable

import torch
import transformers
from torch import nn
from transformers_models import MODELS, Model

from nkiconv import ComparisonError
from nkiconv.pytorch.models.flops import share_of

_STEPS = 2
#: What the last column says of kernels that are within their bounds.
AGREE = "agree"
_HEAD = ("model", "convolutions", "arithmetic", "output", "input gradient", "decoding", "kernels, simulated")


@dataclasses.dataclass(frozen=True)
class Found:
    """What a model gives: its last hidden state, the input's derivative, and for a decoder the state step by step."""

    output: torch.Tensor
    gradient: torch.Tensor
    steps: torch.Tensor | None


def results(model: Model, made: nn.Module) -> Found:
    """Run a model forward and backward, and decode with it."""
    x = model.input().requires_grad_()
    y = model.run(made, x)
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad(y, x, g)
    steps = None
    if model.cache is not None:
        with torch.no_grad():
            steps = model.decode(made, x.detach(), _STEPS)
    return Found(y.detach(), gradient, steps)


def difference(found: torch.Tensor | None, expected: torch.Tensor | None) -> float | None:
    """The largest difference over the largest number."""
    if found is None or expected is None:
        return None
    return float((found - expected).abs().max() / expected.abs().max())


def row(model: Model) -> tuple[int, float, list[float | None], str]:
    """(convolutions, nkiconv's share, differences of output, gradient and decoding, what the simulated kernels say)."""
    os.environ["NKICONV_CPU"] = "torch"
    expected = results(model, model.build())
    made, convolutions = model.with_nkiconv()
    share = share_of(made, (), {model.argument: model.input()}).fraction
    found = results(model, made)
    differences = [difference(*pair) for pair in zip(_parts(found), _parts(expected), strict=True)]
    os.environ["NKICONV_CPU"] = "compare"
    try:
        results(model, made)
    except ComparisonError as error:
        return convolutions, share, differences, str(error)
    return convolutions, share, differences, AGREE


def _parts(found: Found) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    return found.output, found.gradient, found.steps


def show(names: Iterable[str]) -> bool:
    """Print the Markdown table of models by name; return whether all kernels agree."""
    _print_row(_HEAD)
    _print_row(["---"] * len(_HEAD))
    agree = True
    for name in names:
        convolutions, share, differences, kernels = row(MODELS[name])
        cells = ["" if one is None else "0" if one == 0 else f"{one:.1e}" for one in differences]
        _print_row([name, str(convolutions), f"{share:.0%}", *cells, kernels])
        agree = agree and kernels == AGREE
    return agree


def _print_row(cells: Iterable[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main(names: list[str]) -> None:
    """Print the table of the models named, or of all; exit with 1 where kernels disagree."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        sys.exit(f"{', '.join(unknown)}: no such model; there are {', '.join(MODELS)}")
    transformers.logging.set_verbosity_error()  # it warns that torch decodes slowly
    sys.exit(0 if show(names or MODELS) else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
