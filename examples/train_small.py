"""Five small networks trained by nkiconv's kernels, and the same by torch alone: one loss curve.

    python examples/train_small.py                           # 20 steps each, one to two minutes on two cores
    python examples/train_small.py --only unet --mode compare
    python examples/train_small.py --plot losses.png         # needs matplotlib, as the data does

Each network starts from the same weights and sees the same batches (small_models.py) with torch's modules and converted
by `nkiconv.pytorch.convert`, which takes all of its convolutions. Then every forward, gradient by the input and by the
filters is a kernel's. NKICONV_CPU=simulate computes with the kernels' results in the simulator: its curve is theirs.
NKICONV_CPU=compare computes with torch's and holds each kernel's against them, within the bounds of `nkiconv.bounds`;
a ComparisonError names the layer that is beyond.

What differs is the order of fp32 sums. A step's loss and gradients, of sums of up to some thousand terms through a few
layers, err by some roundings of 2^-24, 32 of them at most. Plain gradient descent that is stable hands an error of the
weights on without enlarging it, so that those of all steps until then add up: at step t curves may be 32 t 2^-24 of the
loss apart, 4e-5 at step 20 (nkiconv/tools/demo/curves.py). That needs smooth networks. At relu's kink a rounding turns
a unit on or off, in flat parts of a photograph thousands at once: with relu for silu in the ResNet losses of torch
itself, from weights 1e-7 apart, differ by a tenth after 20 steps. Filters' gradients that are off by 1 % are seen in
each of the five.

Exit status 1 where curves are further apart than that. Needs `pip install '.[torch,plots]'`, Mamba2 transformers too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.progress import Progress
from small_models import TASKS, Task
from torch import nn

from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import convert
from nkiconv.pytorch.computers.modes import VARIABLE
from nkiconv.tools.cli.shell import console, notes
from nkiconv.tools.cli.show import CURVES_NOTES, curves_grid
from nkiconv.tools.demo import plots
from nkiconv.tools.demo.curves import Curves

STEPS = 20
#: What --mode may be, and the values of NKICONV_CPU that it stands for.
MODES = {"simulate": ("simulate",), "compare": ("compare",), "both": ("simulate", "compare")}


def trained(task: Task, steps: int, modes: Sequence[str], tick: Callable[[], None] = lambda: None) -> Curves:
    """Losses of a network by torch, and by kernels in each mode; tick: called after each step.

    Raises: ComparisonError, of the mode "compare"; UnsupportedError where torch would run one of the convolutions.
    """
    expected, found = train(task, _built(task), steps, tick), {}
    for mode in modes:
        report = convert(_built(task))
        with report.installation, _computing(mode):
            share = report.share(task.batch(_generator())[0])
            if share.torch:
                raise UnsupportedError(f"{task.title}: {share}; all of them must be\n{report}")
            found[f"kernels, {mode}"] = train(task, report.model, steps, tick)
    return Curves(task.title, "torch", expected, found)


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


def draw(found: Sequence[Curves], path: Path) -> None:
    """Write one picture, a panel for each network."""
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    drawn = plots.figure(4 * columns, 3.8 * rows)
    axes = list(drawn.subplots(rows, columns, squeeze=False).flat)
    for axis, curves in zip(axes, found, strict=False):
        curves.draw(axis)
    for axis in axes[len(found) :]:
        axis.set_axis_off()
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
    found, screen = [], console()
    with Progress(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(names) * (1 + len(modes)) * asked.steps)
        for name in names:
            bar.update(task, description=name)
            found.append(trained(TASKS[name], asked.steps, modes, lambda: bar.advance(task)))
            curves_grid(found[-1]).show(screen)
    notes(screen, *CURVES_NOTES)
    for curves in found:
        said = "equal within rounding" if curves.ok else "NOT equal within rounding"
        screen.print(f"{curves.title}: {said}, apart by {curves.most:.1e} of the loss at most")
    if asked.plot is not None:
        draw(found, asked.plot)
        screen.print(f"wrote {asked.plot}")
    sys.exit(0 if all(curves.ok for curves in found) else 1)


if __name__ == "__main__":
    main()
