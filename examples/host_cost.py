"""What nkiconv.pytorch costs where torch computes, NKICONV_CPU=torch: `python examples/host_cost.py`.

Tiny calls, [1, 4, 8, 8] by [4, 4, 3, 3] and rows of 16 channels by 4 taps, show what stands around torch's convolution;
a ResNet-50 of bf16 in eval mode shows what is left of it in a model. Both are run in turns, and the quickest run of
each is told, on one thread. Importing is timed in processes of its own.
"""

import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nkiconv import pytorch

_ROUNDS, _CALLS = 200, 20


class Bottleneck(nn.Module):
    """A 1 x 1, a 3 x 3 and a 1 x 1 convolution, and a way past them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.past = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.past.append(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False))
            self.past.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, 4 width, H / stride, W / stride]."""
        return F.relu(self.body(x) + self.past(x))


class Reader(nn.Module):
    """Convolves by a function of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        """[1, 4, 8, 8] -> [1, 4, 6, 6]."""
        return F.conv2d(x, self.weight)


def build_model() -> nn.Module:
    """ResNet-50 with random weights."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def quickest(calls: list[Callable[[], object]], rounds: int, repeats: int) -> list[float]:
    """Seconds of one run of each, the quickest of all rounds, in which they take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            best[i] = min(best[i], (time.perf_counter() - began) / repeats)
    return best


def tiny_calls() -> list[tuple[str, Callable[[], object], Callable[[], object], bool]]:
    """(what, by torch, by nkiconv, whether derivatives are recorded) of each tiny call."""
    x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    leaf = w.clone().requires_grad_()
    theirs, ours = nn.Conv2d(4, 4, 3), pytorch.nn.Conv2d(4, 4, 3)
    layer, reader = nn.Sequential(theirs), Reader()
    converted, functional = pytorch.convert(layer).model, pytorch.convert(reader).model

    def step(convolve: Callable[..., Tensor]) -> None:
        convolve(x, leaf).sum().backward()

    def with_activation(act: str) -> tuple[str, Callable[[], object], Callable[[], object], bool]:
        theirs = getattr(torch, act, None) or getattr(F, act)
        return f"conv2d and {act}", lambda: theirs(F.conv2d(x, w)), lambda: pytorch.conv2d(x, w, activation=act), False

    return [
        ("conv2d, no_grad", lambda: F.conv2d(x, w), lambda: pytorch.conv2d(x, w), False),
        ("conv2d, with a derivative to come", lambda: F.conv2d(x, leaf), lambda: pytorch.conv2d(x, leaf), True),
        ("conv2d, sum and backward", lambda: step(F.conv2d), lambda: step(pytorch.conv2d), True),
        *(with_activation(act) for act in ("relu", "silu", "gelu", "tanh", "sigmoid")),
        ("nn.Conv2d, no_grad", lambda: theirs(x), lambda: ours(x), False),
        ("nn.Conv2d of a converted model", lambda: layer(x), lambda: converted(x), False),
        ("F.conv2d of a converted model", lambda: reader(x), lambda: functional(x), False),
        *causal_calls(),
    ]


def causal_calls() -> list[tuple[str, Callable[[], object], Callable[[], object], bool]]:
    """The same of causal_conv1d_fn and causal_conv1d_update, which torch's functions make up."""
    rows, taps, state = torch.randn(2, 16, 32), torch.randn(16, 4), torch.randn(2, 16, 3)
    leaf, token = taps.clone().requires_grad_(), rows[..., 0].contiguous()

    def whole(w: Tensor) -> Tensor:
        return F.silu(F.conv1d(rows, w[:, None], padding=3, groups=16)[..., :32])

    def one(w: Tensor) -> Tensor:
        window = torch.cat([state, token[..., None]], -1)
        state.copy_(window[..., 1:])
        return F.silu(F.conv1d(window, w[:, None], groups=16))[..., 0]

    def ours_whole(w: Tensor) -> object:
        return pytorch.causal_conv1d_fn(rows, w, activation="silu")

    def ours_one(w: Tensor) -> object:
        return pytorch.causal_conv1d_update(token, state, w, activation="silu")

    return [
        (f"{name}{more}", lambda w=w, call=theirs: call(w), lambda w=w, call=ours: call(w), w is leaf)
        for name, theirs, ours in (("causal_conv1d_fn", whole, ours_whole), ("causal_conv1d_update", one, ours_one))
        for more, w in ((", no_grad", taps), (", a derivative to come", leaf))
    ]


def import_seconds(runs: int = 5) -> float:
    """CPU seconds that importing nkiconv.pytorch adds to torch's, the least of some fresh processes."""
    script = (
        "import time, torch; began = time.process_time(); import nkiconv.pytorch; print(time.process_time() - began)"
    )
    return min(float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(runs))


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"import nkiconv.pytorch: {import_seconds():.2f} CPU seconds over torch's")
    print(f"{'us a call':42}{'torch':>8}{'nkiconv':>9}{'more':>7}")
    for what, theirs, ours, with_grad in tiny_calls():
        with torch.set_grad_enabled(with_grad):
            one, other = (1e6 * seconds for seconds in quickest([theirs, ours], _ROUNDS, _CALLS))
        print(f"{what:42}{one:8.1f}{other:9.1f}{other - one:7.1f}")
    model = build_model().eval().bfloat16()
    converted = pytorch.convert(model).model
    x = torch.randn(1, 3, 224, 224).bfloat16()
    with torch.no_grad():
        one, other = quickest([lambda: model(x), lambda: converted(x)], 9, 1)
    name = "ResNet-50, bf16, 1 x 3 x 224 x 224"
    print(f"{name}: torch {1e3 * one:.1f} ms, nkiconv {1e3 * other:.1f} ms, {other / one:.2f}x")


if __name__ == "__main__":
    main()
