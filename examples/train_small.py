"""Five small networks trained by nkiconv's kernels, and the same by torch alone: one loss curve.

    PYTHONPATH=. python examples/train_small.py                           # 20 steps each, a minute or two on two cores
    PYTHONPATH=. python examples/train_small.py --only unet --mode compare
    PYTHONPATH=. python examples/train_small.py --plot losses.png         # needs matplotlib, as the data does

Each network starts from the same weights and sees the same batches (small_models.py) with torch's modules and converted
by `nkiconv.pytorch.convert`, which takes all of its convolutions. Then every forward, gradient by the input and by the
filters is a kernel's. NKICONV_CPU=simulate computes with the kernels' results in the simulator: its curve is theirs.
NKICONV_CPU=compare computes with torch's and holds each kernel's against them, within the bounds of `nkiconv.bounds`;
a ComparisonError names the layer that is beyond.

What differs is the order of fp32 sums. A step's loss and gradients, of sums of up to some thousand terms through a few
layers, err by some roundings of 2^-24, `ROUNDINGS` of them at most. Plain gradient descent that is stable hands an
error of the weights on without enlarging it, so that those of all steps until then add up: at step t curves may be
t * ROUNDINGS * 2^-24 of the loss apart, 4e-5 at step 20. That needs smooth networks. At relu's kink a rounding turns a
unit on or off, in flat parts of a photograph thousands at once: with relu for silu in the ResNet losses of torch
itself, from weights 1e-7 apart, differ by a tenth after 20 steps. Filters' gradients that are off by 0.1 % are seen in
each of the five.

Exit status 1 where curves are further apart than that. Needs `pip install '.[torch,plots]'`, Mamba2 transformers too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from small_models import TASKS, Task
from torch import nn

from nkiconv.pytorch import convert
from nkiconv.pytorch.computers.modes import VARIABLE
from nkiconv.tools.demo import plots

STEPS = 20
#: By which a step's loss and gradients are off at most, each of 2^-24.
ROUNDINGS = 32
#: What --mode may be, and the values of NKICONV_CPU that it stands for.
MODES = {"simulate": ("simulate",), "compare": ("compare",), "both": ("simulate", "compare")}


@dataclass(frozen=True)
class Curves:
    """Losses by step, of torch and by NKICONV_CPU, and the share of convolutions' arithmetic that is nkiconv's."""

    torch: list[float]
    ours: dict[str, list[float]]
    share: float

    def apart(self, step: int) -> float:
        """The largest difference at a step, from 0 on, over torch's loss."""
        return max(abs(losses[step] - self.torch[step]) for losses in self.ours.values()) / abs(self.torch[step])

    @property
    def most(self) -> float:
        """The largest of all steps."""
        return max(map(self.apart, range(len(self.torch))))

    @property
    def right(self) -> bool:
        """Whether curves are within rounding of each other, and all convolutions are nkiconv's."""
        return self.share == 1 and all(self.apart(step) <= allowed(step) for step in range(len(self.torch)))


def allowed(step: int) -> float:
    """How far curves may be apart at a step, from 0 on, over the loss."""
    return (step + 1) * ROUNDINGS * 2.0**-24


def curves(task: Task, steps: int, modes: Sequence[str], tick: Callable[[], None] = lambda: None) -> Curves:
    """Train a network with torch, and with kernels in each mode; tick: called after each step."""
    expected, ours, share = train(task, _built(task), steps, tick), {}, 1.0
    for mode in modes:
        report = convert(_built(task))
        with report.installation, _computing(mode):
            share = min(share, report.share(task.batch(_generator())[0]).fraction)
            ours[mode] = train(task, report.model, steps, tick)
    return Curves(expected, ours, share)


def train(task: Task, model: nn.Module, steps: int, tick: Callable[[], None] = lambda: None) -> list[float]:
    """Losses of a model by step, each before the step of gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), task.rate)
    generator, losses = _generator(), []
    for _ in range(steps):
        x, wanted = task.batch(generator)
        loss = task.loss(model(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        tick()
    return losses


def _built(task: Task) -> nn.Module:
    torch.manual_seed(0)
    return task.build()


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@contextmanager
def _computing(mode: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = mode
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def show(title: str, found: Curves, screen: Console) -> None:
    """Print losses by step, and how far they are apart."""
    table = Table(title=title, title_justify="left", box=None)
    for head in ("step", "torch", *found.ours, "apart", "allowed"):
        table.add_column(head, justify="right")
    for step, loss in enumerate(found.torch):
        losses = [f"{one:.7f}" for one in (loss, *(ours[step] for ours in found.ours.values()))]
        table.add_row(str(step + 1), *losses, f"{found.apart(step):.1e}", f"{allowed(step):.1e}")
    screen.print(table)
    said = "within rounding" if found.right else "NOT within rounding, or not all by kernels"
    screen.print(
        f"largest relative difference {found.most:.1e}; {found.share:.0%} of convolutions by nkiconv: {said}\n",
        soft_wrap=True,
    )


def draw(found: dict[str, Curves], path: Path) -> None:
    """Write one picture, a panel for each network."""
    drawn = plots.figure(4 * len(found), 3.6)
    axes = drawn.subplots(1, len(found), squeeze=False)[0]
    for axis, (name, one) in zip(axes, found.items(), strict=True):
        steps = range(1, len(one.torch) + 1)
        axis.plot(steps, one.torch, color=plots.BEFORE, linewidth=5, label="torch")
        for (mode, losses), style in zip(one.ours.items(), ("-", ":"), strict=False):
            axis.plot(steps, losses, style, color=plots.AFTER if style == "-" else "black", label=f"kernels, {mode}")
        axis.set_title(f"{TASKS[name].title}\napart by {one.most:.0e} of the loss at most", fontsize=10)
        axis.set(xlabel="step", xticks=range(0, len(one.torch) + 1, 5))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("loss")
    axes[0].legend()
    plots.save_figure(drawn, path)


def main() -> None:
    """Train, print and draw; exit with 1 where curves are further apart than roundings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TASKS, help="one network")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of gradient descent (default {STEPS})")
    parser.add_argument("--mode", choices=MODES, default="both", help="who computes for nkiconv (default both)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the curves as PNG")
    asked = parser.parse_args()
    if asked.steps < 1:
        parser.error(f"--steps={asked.steps}: must be at least 1")
    names, modes = [asked.only] if asked.only else list(TASKS), MODES[asked.mode]
    if "mamba2" in names:
        import transformers

        transformers.logging.set_verbosity_error()  # it warns that torch computes slowly
    found, screen = {}, Console(width=100, highlight=False)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(names) * (1 + len(modes)) * asked.steps)
        for name in names:
            bar.update(task, description=name)
            found[name] = curves(TASKS[name], asked.steps, modes, lambda: bar.advance(task))
            show(TASKS[name].title, found[name], screen)
    if asked.plot is not None:
        draw(found, asked.plot)
        screen.print(f"wrote {asked.plot}")
    sys.exit(0 if all(one.right for one in found.values()) else 1)


if __name__ == "__main__":
    main()
