"""`nkiconv plan-model`: modelled times of a PyTorch model's convolutions on trn2, layer by layer."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import rules
from ...errors import NkiconvError, UnsupportedError, raise_all, refused
from ...launches import launch_mode
from ..tables.readme import Columns
from .grid import Grid
from .options import Fresh, Lnc
from .scripts import function_of
from .shell import FORMATS, JsonOption, asked, console, plain_warnings, print_json, prints_tables, progress, say_wrapped
from .show import cores, modelled

if TYPE_CHECKING:
    from ...pytorch.models.model_plan import ModelPlan, Row

#: Types that an input may be of, by nkiconv's and torch's names; the first three are a model's too.
_TYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "int64": "int64",
    "int32": "int32",
    "bool": "bool",
}
_FLOATS = ("bf16", "fp16", "fp32")
#: Of one input.
ELEMENTS_MAX = 1 << 30
COLUMNS: Columns = (
    ("layer", "layer", ""),
    ("calls", "calls", "d"),
    ("shape", "shape", ""),
    ("filters", "filters", ""),
    ("algorithm", "algorithm", ""),
    ("modelled us", "one", ",.1f"),
    ("all calls us", "us", ",.1f"),
    ("share", "share", ".1%"),
    ("of the limit", "fraction", ".1%"),
    ("instructions", "instructions", ",d"),
    ("bound by", "bound_by", ""),
)
#: Columns that a screen shows without --wide.
_MAIN = ("layer", "all calls us", "share", "of the limit", "shape", "bound by", "calls", "algorithm")
#: Rows of the table on a screen without --wide.
ROWS = 16
#: Names of a list below the table.
SHOWN = 5

Script = Annotated[
    str, typer.Argument(metavar="SCRIPT.py:FUNCTION", help="A function that returns the model, or the model.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="[NAME=]1x3x224x224[:TYPE]",
        help="Shape of an input of forward, in order or by name; repeatable. TYPE: bf16, fp16, fp32, int64, int32 or "
        "bool; default: the model's.",
    ),
]


@prints_tables
def command(
    script: Script,
    input: Inputs = None,
    dtype: Annotated[str | None, typer.Option(help="Cast the model to bf16, fp16 or fp32; default: as built.")] = None,
    layout: Annotated[
        str | None, typer.Option(help="Plan as if x and y were NCHW or NHWC in memory; default: NCHW, as they run.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="Add what launches cost: eager, compiled (by torch.compile) or xla (under torch_xla)."),
    ] = None,
    lnc: Lnc = 2,
    fold_batchnorm: Annotated[
        bool, typer.Option("--fold-batchnorm", help="Multiply batch norms into the convolutions before them.")
    ] = False,
    fuse: Annotated[
        bool, typer.Option("--fuse", help="Plan chains of norm, activation, convolution and sum as one call each.")
    ] = False,
    polyphase: Annotated[
        bool,
        typer.Option("--polyphase", help="With --fuse, sum the taps that meet one pixel of an image upsampled by 2."),
    ] = False,
    training: Annotated[
        bool, typer.Option("--training", help="With the gradients that a step of training runs: dgrad and wgrad.")
    ] = False,
    search: Annotated[
        bool, typer.Option("--search", help="Search as nkiconv plan does (a second or two each), and keep the plans.")
    ] = False,
    tuned: Annotated[
        bool, typer.Option("--tuned", help="Search as nkiconv tune does (seconds to minutes each).")
    ] = False,
    no_cache: Fresh = False,
    as_json: JsonOption = False,
) -> None:
    """Plan every convolution that a PyTorch model runs on inputs of these shapes, and sum up their modelled times.

    A copy of the model runs once in eval mode: on shapes alone where it can, else on zeros. Times are those of the
    cached plan, or of the estimate that a device takes without one; --search looks for faster plans. Below the table:
    why the slowest layers are slow, and their times in other layouts, dtypes and paddings.
    """
    shapes = list(_shapes(input, dtype, mode, lnc, polyphase and not fuse))
    pytorch = importlib.import_module("nkiconv.pytorch")  # raises MissingPackageError where there is no torch
    with progress(show=not as_json) as advance, plain_warnings(), function_of(script) as build:
        advance("building the model", None)
        model = _model(build, script, dtype)
        inputs, named = _tensors(model, shapes)
        more: dict[str, Any] = {"fold_batchnorm": fold_batchnorm, "fuse": fuse, "polyphase": polyphase}
        more |= {"training": training, "lnc": lnc, "wide": tuned, "use_cache": not no_cache}
        more |= {"layout": layout, "mode": mode, "advice": True, "quick": not (search or tuned)}
        found: ModelPlan = pytorch.plan_model(model, inputs, named, **more, advance=advance)
    if as_json:
        print_json({"script": script, "inputs": input or [], **found.as_dict()})
    else:
        _show(found, script, input or [])


def _shapes(
    given: list[str] | None, dtype: str | None, mode: str | None, lnc: int, is_alone: bool
) -> Iterator[tuple[str | None, tuple[int, ...], str]]:
    """(name, shape, type) of each --input; the type is "" for the model's. is_alone: whether --polyphase is.

    Raises UnsupportedError, for every option at once.
    """
    errors: list[NkiconvError] = []
    found: list[tuple[str | None, tuple[int, ...], str]] = []
    if not given:
        errors.append(UnsupportedError("--input: is needed; give the shape of forward's, as in --input 1x3x224x224"))
    if dtype is not None and dtype not in _FLOATS:
        errors.append(UnsupportedError(f"--dtype={dtype}: accepted are {', '.join(_FLOATS)}; use one of these"))
    errors += refused(UnsupportedError, launch_mode(mode, "--mode"), rules.lnc(lnc, "--lnc"))
    errors += refused(UnsupportedError, "--polyphase: is of what --fuse finds; pass both" * is_alone)
    for text in given or []:
        name, equals, rest = text.rpartition("=")
        shape, colon, kind = rest.partition(":")
        extents = shape.split("x")
        if (equals and not name.isidentifier()) or not all(one.isdecimal() and int(one) > 0 for one in extents):
            errors.append(
                UnsupportedError(f"--input={text}: must be [NAME=]SHAPE[:TYPE], extents at least 1; write 1x3x224x224")
            )
            continue
        if math.prod(map(int, extents)) > ELEMENTS_MAX:
            errors.append(
                UnsupportedError(f"--input={text}: more than {ELEMENTS_MAX:,} elements; give a smaller shape")
            )
        if colon and kind not in _TYPES:
            errors.append(UnsupportedError(f"--input={text}: accepted types are {', '.join(_TYPES)}; use one of these"))
        if equals and name in [other for other, _, _ in found]:
            errors.append(UnsupportedError(f"--input={text}: {name} is given twice; drop one"))
        found.append((name or None, tuple(map(int, extents)), kind))
    raise_all("nkiconv plan-model cannot run this call", errors)
    yield from found


def _model(build: Any, script: str, dtype: str | None) -> Any:
    """The model of a script, cast."""
    torch = importlib.import_module("torch")
    model = build()
    if not isinstance(model, torch.nn.Module):
        raise UnsupportedError(f"SCRIPT={script}: returned {type(model).__name__}; return a torch.nn.Module")
    return model if dtype is None else model.to(getattr(torch, _TYPES[dtype]))


def _tensors(model: Any, shapes: list[tuple[str | None, tuple[int, ...], str]]) -> tuple[list[Any], dict[str, Any]]:
    """(positional, named) inputs: zeros, of the model's own floating type unless another is named."""
    torch = importlib.import_module("torch")
    floats = [one.dtype for one in model.parameters() if one.is_floating_point()]
    own = floats[0] if floats else torch.float32
    inputs, named = [], {}
    for name, shape, kind in shapes:
        tensor = torch.zeros(shape, dtype=getattr(torch, _TYPES[kind]) if kind else own)
        if name is None:
            inputs.append(tensor)
        else:
            named[name] = tensor
    return inputs, named


def _show(found: ModelPlan, script: str, inputs: list[str]) -> None:
    screen = console()
    title = f"convolutions of {script} on {', '.join(inputs)} (trn2, {cores(found.lnc)}, modelled)"
    grid = Grid.of(title, COLUMNS, _MAIN)
    shown = len(found.rows) if asked().wide or asked().format != FORMATS[0] else ROWS
    for row in found.rows[:shown]:
        grid.put(_cells(found, row))
    if rest := found.rows[shown:]:
        calls, us, share = sum(row.calls for row in rest), sum(row.us for row in rest), sum(map(found.share, rest))
        grid.put({"layer": f"{len(rest)} more", "calls": calls, "us": us, "share": share})
    several = [(one, found.toward(one)) for one in found.directions] if found.directions != ("forward",) else []
    for name, part in (*((f"sum, {one}", part) for one, part in several), ("sum", found)):
        of_all = {"share": part.modelled_us / found.modelled_us} if several else {}
        numbers = {"us": part.modelled_us, "fraction": part.roofline_fraction, "instructions": part.instructions}
        grid.put({"layer": name, "calls": sum(row.calls for row in part.rows), **of_all, **numbers}, style="bold")
    for name, calls, us in found.totals:
        grid.put({"layer": name, **({"calls": calls} if calls else {}), "us": us}, style="bold")
    grid.show(screen)
    if found.kept:
        _kept_grid(found).show(screen)
    if found.advice:
        say_wrapped(screen, "Slowest against their limits, why, and what other forms take (modelled):", "bold")
    for advice in (*found.advice, *filter(None, [found.fusing])):
        say_wrapped(screen, f"- {advice}")
    for note in _notes(found):
        say_wrapped(screen, note)


def _cells(found: ModelPlan, row: Row) -> dict[str, Any]:
    """A row of the table; without a plan, dashes."""
    words = importlib.import_module("nkiconv.planner.explain")
    more = f" +{len(row.layers) - 1} more" if len(row.layers) > 1 else ""
    problem, direction = row.convolved.problem, row.convolved.direction
    shape, filters = words.problem_words(problem, row.convolved.asked)
    layer = f"{row.layers[0] or '(the model)'}{more}{'' if direction == 'forward' else f', {direction}'}"
    head = {"layer": layer, "calls": row.calls, "shape": shape, "filters": filters}
    if row.plan is None:
        return {**{key: None for _, key, _ in COLUMNS}, **head, "algorithm": "no plan"}
    return {
        **head,
        "algorithm": row.plan.algorithm,
        "one": modelled(row.plan),
        "us": row.us,
        "share": found.share(row),
        "fraction": row.plan.roofline_fraction,
        "instructions": row.instructions,
        "bound_by": row.plan.bound_by,
    }


def _kept_grid(found: ModelPlan) -> Grid:
    headings = "layer", "calls", "input * filters", "because"
    grid = Grid("convolutions that stay in torch", headings, ("layer", "input * filters", "because"))
    for one in found.kept:
        grid.add(
            one.other.layer or "(the model)",
            str(one.calls),
            " * ".join(" ".join(map(str, shape)) for shape in one.other.shapes),
            one.reason,
        )
    return grid


def _notes(found: ModelPlan) -> Iterator[str]:
    yield "shape: N C H W -> K P Q (rows: N C W -> K Q; volumes: N C D H W -> K Z P Q)"
    yield (
        "modelled: mean over phases of the throttle's grid, program order; the sum is of convolutions alone, without "
        "what is between them"
    )
    yield str(found.flops)
    if found.fused_note:
        yield found.fused_note
    if found.launch_note:
        yield found.launch_note
    if found.quick:
        yield "these are the plans that a device takes if none is cached; --search looks for faster ones and keeps them"
    if found.cache_bytes:
        size = f"{found.cache_bytes / 1e6:,.1f} MB"
        yield f"where a video comes in chunks, convolutions keep {size} of frames for the next"
    if found.graphs > 1:
        where = [f"call {call} of {layer or 'the model'}" for layer, call in found.cuts]
        more = f" and {len(where) - SHOWN} more, which --json has" if len(where) > SHOWN else ""
        yield (
            f"{found.instructions:,} instructions are more than a compiler takes in one graph, "
            f"{found.most_instructions:,} a core: compile it in {found.graphs} parts, cut before "
            f"{', '.join(where[:SHOWN])}{more}"
        )
    ran = {"fake tensors": "shapes only", "meta tensors": "shapes only, its parameters have no data"}
    yield f"the model ran on {ran.get(found.ran_on, f'data: on shapes alone it {found.because}')}"
    for row in found.rows:
        if row.plan is None:
            yield f"no plan for {row.layers[0]}, which is not in the sum: {row.reason}"
    if any(row.plan is not None and row.plan.extrapolated_from is not None for row in found.rows):
        yield "~ extrapolated from a part, as the kernel is long; --tuned times the whole"
    if found.uncalled:
        names = [name or "the model" for name in found.uncalled]
        more = f" and {len(names) - SHOWN} more, which --json has" if len(names) > SHOWN else ""
        yield f"convolutions that this run did not call: {', '.join(names[:SHOWN])}{more}"
