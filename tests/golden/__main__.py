"""What kernels do and take, problem by problem: writes a golden table, or says what has moved since it was written.

    make golden                 what moved: nothing, or each row that did, and the geometric mean of all
    make golden OPTIONS=--write the table anew
    make golden OPTIONS="--kept --way timed --algorithm stacked"
                                what moved, with the settings that the table has: schedules and kernels, not choices

A row is a problem run by the bare kernel, by an estimate or by its plan: algorithm, settings, instructions, a
hash of the instruction stream, and the modelled us on two cores that plans are ranked by. Two streams of one hash do
the same: engines, operations, their settings, views, dtypes and order are in it, names and source lines are not.
Nothing here ran on hardware.
"""

from __future__ import annotations

import argparse
import ast
import csv
import dataclasses
import hashlib
import io
import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import nkiconv
from nkiconv import ConvProblem, cases
from nkiconv.planner.operations import operation_for, operation_of
from nkiconv.planner.request import Asked, Request
from nkiconv.planner.timing import ranked_us
from nkiconv.simulator.launch import Execution, execute
from nkiconv.simulator.memory import Region
from nkiconv.simulator.profiling import in_time
from nkiconv.simulator.timing import Rates
from nkiconv.whole_file import write_page

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
import random_problems
from pooled import each

TABLE = Path(__file__).parent / "golden.csv"
#: Who chooses: a bare kernel, cost models, the timeline.
WAYS = ("default", "estimate", "timed")
#: Random problems of each operation beside the named cases, and their seed.
RANDOM, SEED = {"depthwise_conv1d": 150, "conv2d": 150, "conv3d": 40, "conv_transpose": 30}, 19
_PATCHES = ConvProblem(N=8, C=3, H=224, W=224, K=768, R=16, S=16, stride=(16, 16))
_IMAGE = ConvProblem(N=4, C=64, H=56, W=56, K=64, R=3, S=3, padding=((1, 1), (1, 1)))
_POINTS = ConvProblem(N=4, C=256, H=28, W=28, K=256, S=1)
_DEPTHWISE = ConvProblem(N=2, C=192, H=28, W=28, groups=192, R=7, S=7, padding=((3, 3), (3, 3)))
_VIDEO = ConvProblem(N=1, C=96, D=4, H=60, W=104, K=96, T=3, R=3, S=3, padding=((2, 0), (1, 1), (1, 1)))
_ROWS = ConvProblem(N=1, C=4096, W=2048, S=4, groups=4096, padding=((0, 0), (3, 0)))
_RGB = ConvProblem(N=1, C=3, H=256, W=256, K=128, R=3, S=3, padding=((1, 1), (1, 1)), layout="NHWC")
_WAN = ConvProblem(N=1, C=96, D=4, H=64, W=416, K=96, T=3, R=3, S=3, padding=((0, 0), (1, 1), (1, 1)))
_LATENT = ConvProblem(N=1, C=512, H=64, W=64, K=512, R=3, S=3, padding=((1, 1), (1, 1)))
_PLANES = ConvProblem(N=1, C=256, H=128, W=128, K=256, R=3, S=3, padding=((1, 1), (1, 1)))
_PROLOGUE = {"x_scale": "image", "x_shift": "image", "x_activation": "silu"}
_NORM = {"bias": True, "y_norm": "rms", "y_norm_weight": True, "activation": "silu"}
_SUMMED = {"bias": True, "residual": "pre_activation"}
_RELU = {**_SUMMED, "activation": "relu"}
_RESNET = ConvProblem(N=8, C=64, H=56, W=56, K=64, R=3, S=3, padding=((1, 1), (1, 1)))
_LAST = ConvProblem(N=8, C=64, H=56, W=56, K=256, S=1, layout="NHWC")
_RESNEXT = ConvProblem(N=8, C=1024, H=14, W=14, K=1024, R=3, S=3, padding=((1, 1), (1, 1)), groups=32)
_STRIDED = ConvProblem(N=8, C=96, H=112, W=112, K=96, R=3, S=3, padding=((1, 1), (1, 1)), stride=(2, 2), groups=96)
#: What no named case has: biases, few channels of NHWC, gradients of patch embeddings, fused blocks, fp32 products.
OTHERS = {
    "3x3 bias": Request(problem=_IMAGE, asked=Asked(bias=True)),
    "depthwise 7x7 bias": Request(problem=_DEPTHWISE, asked=Asked(bias=True)),
    "video 96 bias": Request(problem=_VIDEO, asked=Asked(bias=True)),
    "depthwise rows bias silu": Request(problem=_ROWS, asked=Asked(bias=True, activation="silu")),
    "3x3 wgrad bias": Request(problem=_IMAGE.toward("wgrad"), asked=Asked(bias=True)),
    "1x1 wgrad bias": Request(problem=_POINTS.toward("wgrad"), asked=Asked(bias=True)),
    "1x1 wgrad NHWC": Request(problem=_LAST.replace(N=2, C=512, H=28, W=28, K=128).toward("wgrad")),
    "groups wgrad NHWC": Request(problem=_RESNEXT.replace(layout="NHWC").toward("wgrad")),
    "rgb NHWC": Request(problem=_RGB),
    "patches dgrad NCHW": Request(problem=_PATCHES.toward("dgrad")),
    "patches dgrad NHWC": Request(problem=_PATCHES.replace(layout="NHWC").toward("dgrad")),
    "patches wgrad NCHW": Request(problem=_PATCHES.toward("wgrad")),
    "patches wgrad NHWC": Request(problem=_PATCHES.replace(layout="NHWC").toward("wgrad")),
    "3x3 prologue": Request(problem=_LATENT, asked=Asked(**_PROLOGUE)),
    "3x3 group norm block": Request(problem=_LATENT, asked=Asked(**_PROLOGUE, **_SUMMED, return_stats="channel")),
    "3x3 statistics": Request(problem=_PLANES, asked=Asked(bias=True, return_stats="channel")),
    "3x3 64 residual": Request(problem=_RESNET, asked=Asked(**_RELU)),
    "3x3 64 residual NHWC": Request(problem=_RESNET.replace(layout="NHWC"), asked=Asked(**_RELU)),
    "3x3 64 statistics NHWC": Request(problem=_RESNET.replace(layout="NHWC"), asked=Asked(return_stats="channel")),
    "1x1 residual NHWC": Request(problem=_LAST, asked=Asked(**_RELU)),
    "1x1 2048 NHWC": Request(problem=_LAST.replace(N=1, C=2048, H=7, W=7, K=512)),
    "groups statistics": Request(problem=_RESNEXT, asked=Asked(bias=True, return_stats="channel")),
    "groups residual": Request(problem=_RESNEXT, asked=Asked(**_RELU)),
    "depthwise prologue": Request(
        problem=_STRIDED, asked=Asked(x_scale="channel", x_shift="channel", x_activation="silu")
    ),
    "tokens of many rows": Request(
        problem=_ROWS.replace(N=16, W=16), asked=Asked(initial_state=True, return_final_state=True, activation="silu")
    ),
    "3x3 upsampled": Request(problem=_PLANES, asked=Asked(bias=True, x_upsample=2)),
    "video 96 norm": Request(problem=_WAN.replace(H=240), asked=Asked(**_NORM)),
    "video 96 norm of a sum": Request(
        problem=_WAN, asked=Asked(**_NORM, residual="pre_activation", return_before_norm=True)
    ),
    "video 96 frames": Request(problem=_WAN, asked=Asked(bias=True, initial_frames=2, return_final_frames=2)),
    "3x3 norm": Request(problem=_PLANES, asked=Asked(**_NORM)),
    "depthwise rows gated": Request(problem=_ROWS, asked=Asked(chunks="BCx")),
    "depthwise rows GLU": Request(problem=_ROWS, asked=Asked(chunks="xG", bias=True, activation="silu")),
    "depthwise rows states": Request(
        problem=_ROWS, asked=Asked(initial_state=True, return_final_state=True, activation="silu")
    ),
    "fp32 3x3 by fp16x3": Request(problem=_LATENT.replace(dtype="fp32"), asked=Asked(precision="fp16x3")),
    "video 96 winograd": Request(problem=_WAN.replace(dtype="fp16"), asked=Asked(precision="winograd")),
}
#: Instructions of a kernel, all cores, from which its row has none of the rest: it is not traced.
MOST = 100_000
#: How much longer than in the table a row may take.
SLOWER = 1.01


@dataclass(frozen=True)
class Row:
    """One problem, run one way."""

    problem: str
    way: str
    algorithm: str
    config: str
    instructions: str
    stream: str
    us: str

    @property
    def key(self) -> tuple[str, str]:
        """What a row is found by."""
        return self.problem, self.way


def requests() -> Iterator[tuple[str, Request]]:
    """`OTHERS` and plain calls of `problems`."""
    for name, problem in problems():
        yield name, Request(problem=problem)
    yield from OTHERS.items()


def problems() -> Iterator[tuple[str, ConvProblem]]:
    """Named cases but DeepBench's, which are many, those of conv2d in bf16 also as NHWC and in fp8, gradients of
    training in both layouts, and random problems by their fields."""
    for case in (one for suite in cases.SUITES if suite not in ("deepbench", "training") for one in cases.load(suite)):
        yield case.name, case.problem
        if case.problem.dtype == "bf16" and operation_of(case.problem).name == "conv2d":
            yield f"{case.name} NHWC", case.problem.replace(layout="NHWC")
            yield f"{case.name} fp8", case.problem.replace(dtype="fp8_e4m3")
    for case, direction, layout in itertools.product(cases.load("training"), ("wgrad", "dgrad"), ("NCHW", "NHWC")):
        yield f"{case.name} {direction} {layout}", case.problem.replace(layout=layout).toward(direction)
    for operation, count in RANDOM.items():
        for problem in random_problems.OF[operation](count, SEED):
            yield random_problems.text_of(problem), problem


def stream_hash(execution: Execution) -> str:
    """Of all cores' instructions. A storage is known by the order in which its core first touches it."""
    found = hashlib.sha256()
    for program in execution.programs:
        order: dict[int, int] = {}

        def said(value: object, order: dict[int, int] = order) -> str:
            if isinstance(value, Region):
                info, place = value.info, order.setdefault(value.info.id, len(order))
                return f"{place} {info.shape} {info.dtype} {info.buffer.name} {value[1:]}"
            return f"({', '.join(map(said, value))})" if type(value) is tuple else repr(value)

        for one in program.instructions:
            params = [(name, said(value)) for name, value in sorted(one.params.items())]
            found.update(f"{one.engine} {one.op} {params} {one.scope}".encode())
            found.update(said((*one.writes, None, *one.reads)).encode())
            found.update(f"{[before.index for before in one.after]}\n".encode())
    return found.hexdigest()[:16]


def row_of(name: str, request: Request, way: str, kept: Row | None = None) -> Row:
    """A request run by one of WAYS, or with the algorithm and settings of a kept row."""
    operation, rates = operation_for(request), Rates()
    algorithm, config = None, None
    if kept is not None:
        algorithm, config = kept.algorithm or None, ast.literal_eval(kept.config)
    elif way == "timed":
        asked = {name: value for name, value in vars(request.asked).items() if value != getattr(Asked(), name)}
        plan = nkiconv.plan(request.problem, robust="off", use_cache=False, **asked)
        algorithm, config = plan.algorithm, plan.config
    elif way == "estimate":
        algorithm, config = operation.choice(request, operation.shape(request, rates))
    args, kwargs = operation.arguments(request, algorithm, config)
    execution = execute(operation.kernel[2], args, kwargs, trace_only=True)
    count = len(execution.instructions)
    rest = (stream_hash(execution), f"{ranked_us(in_time(execution, rates)):.4f}") if count <= MOST else ("", "")
    return Row(name, way, algorithm or "", repr(config), str(count), *rest)


def read() -> dict[tuple[str, str], Row]:
    """The rows of the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row.key: row for row in (Row(**fields) for fields in csv.DictReader(file))}


def text(rows: Sequence[Row]) -> list[str]:
    """The table's lines."""
    file = io.StringIO()
    writer = csv.DictWriter(file, [field.name for field in dataclasses.fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in rows)
    return file.getvalue().splitlines()


def moved(before: dict[tuple[str, str], Row], rows: Sequence[Row]) -> tuple[list[str], bool]:
    """(a line for each row that is not as it was and one for all, whether none of them is too slow)."""
    lines, times = [], []
    for row in rows:
        was = before.get(row.key)
        if was is None:
            lines.append(f"{row.problem}, {row.way}: not in the table")
            continue
        ratio = float(row.us) / float(was.us) if row.us and was.us else 1.0
        times.append(ratio)
        if row != was:
            lines.append(
                f"{row.problem}, {row.way}: {was.algorithm} {was.us} us, {was.instructions} instructions -> "
                f"{row.algorithm} {row.us} us, {row.instructions} instructions{'  SLOWER' if ratio > SLOWER else ''}"
            )
    mean, worst = math.exp(sum(map(math.log, times)) / max(1, len(times))), max(times, default=1.0)
    said = f"{len(lines)} of {len(rows)} rows moved; times: geometric mean {mean:.5f} of the table's, worst {worst:.4f}"
    return [*lines, said], mean < 1 + 1e-5 and worst <= SLOWER


def main() -> int:
    """The command; 1 where a row is slower than it may be, or all are."""
    parser = argparse.ArgumentParser(
        prog="python tests/golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the table instead")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this one; default: all")
    parser.add_argument("--only", default="", help="problems whose name or fields contain this")
    parser.add_argument("--kept", action="store_true", help="run the table's settings instead of choosing anew")
    parser.add_argument("--algorithm", default="", help="rows of the table whose algorithm's name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one a core")
    asked = parser.parse_args()
    if asked.write and (asked.way or asked.only or asked.kept or asked.algorithm):
        parser.error("--write: chooses all rows anew; drop --way, --only, --kept and --algorithm")
    table = read()
    algorithms = {key: row.algorithm for key, row in table.items()}  # of new problems it has none
    given = [
        (name, request, way, table.get((name, way)) if asked.kept else None)
        for name, request in requests()
        for way in asked.way or WAYS
        if asked.only in name and (not asked.algorithm or asked.algorithm in algorithms.get((name, way), ""))
    ]
    if not given:
        parser.error("no problem has this in its name, or no row this algorithm; drop --only or --algorithm")
    rows = each(row_of, given, "golden", asked.jobs)
    if asked.write:
        write_page(text(rows), TABLE)
        return 0
    lines, kept = moved(table, rows)
    print(*lines, sep="\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
