"""A stage of `nkiconv compile-check` for one kernel, in a process of its own, which may crash: REQUEST REPLY, a JSON
document and a file for another.

`model` runs on nkiconv's simulator and chooses the algorithm; `simulate` and `compile` run under AWS's nki, written
from AWS's documents of NKI 0.7, and never run there. `nki.simulate(kernel)` takes NumPy arrays. A jitted kernel that is
called with them is compiled and then executed without a framework; NKI_ARTIFACTS_DIR, set before nki is imported, keeps
its NEFF, also where the execution fails, as it does without a device. `nki.jit(compile_config=CompileConfig(...))` is
how a kernel is compiled with `barrier_check`. No document says how to read the compiler's instruction counts or its
predicted latency: neither is reported.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nkiconv

from ... import cases
from ...whole_file import whole_file
from ..measure.neffs import compiled
from .kernels import KernelCall, keywords

#: Our kernels, and the folder that their lines are named from.
KERNELS = Path(nkiconv.__file__).resolve().parent / "kernels"
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
#: The first words of `faulthandler`; its calls come with the most recent first.
_FATAL = "Fatal Python error"


def model(asked: dict[str, Any]) -> dict[str, Any]:
    """The estimate of an unplanned call, and its modelled time."""
    case = _case(asked)
    request = importlib.import_module("nkiconv.planner.request").Request(problem=case.problem, lnc=asked["lnc"])
    shipped, estimate = (importlib.import_module(f"nkiconv.planner.{one}") for one in ("shipped", "estimate"))
    taken = shipped.known(request) or estimate.estimate(request, use_cache=False)
    profiles = importlib.import_module("nkiconv.tools.suites.profiles")
    found = profiles.profile_case(case, lnc=asked["lnc"], **taken.arguments)[0].profile
    return {"taken": taken.as_dict(), "modelled_us": found.modelled_us, "instructions": found.instructions}


def simulate(asked: dict[str, Any]) -> dict[str, Any]:
    """The result of AWS's simulator for a kernel; for a case compared with float64."""
    nki = importlib.import_module("nki")
    if "target" in asked:
        call = _call(asked)
        with call.aws_kernel() as kernel:
            nki.simulate(kernel)(*call.arrays(0), **keywords(call.arguments))
        return {}
    launched = importlib.import_module("nkiconv.tools.verify.launched")
    launch = _launch(asked)
    y = nki.simulate(launch.kernel)(*launch.args, **launch.kwargs)
    comparison, channels = launch.check(y, asked["instructions"])
    if comparison.num_wrong:
        raise launched.WrongResult(launched.wrong(comparison))
    return {"worst_ratio": comparison.worst_ratio, "channels_checked": channels}


def compile_kernel(asked: dict[str, Any]) -> dict[str, Any]:
    """The NEFF of a kernel, compiled with barrier_check."""
    check_barriers()
    if "target" in asked:
        call = _call(asked)
        with call.aws_kernel() as kernel:
            neff = compiled(lambda: kernel(*call.arrays(0), **keywords(call.arguments)))
    else:
        launch = _launch(asked)
        neff = compiled(lambda: launch.kernel(*launch.args, **launch.kwargs))
    return {"neff": str(neff), "neff_bytes": neff.stat().st_size}


def check_barriers() -> None:
    """Make `nki.jit` compile with barrier_check from now on, unless it is given a config."""
    nki: Any = importlib.import_module("nki")
    config = importlib.import_module("nki.compiler").CompileConfig(barrier_check=True)
    jit = nki.jit

    def checked(fn: Any = None, **options: Any) -> Any:
        return jit(fn, **{"compile_config": config, **options})

    nki.jit = checked


def _case(asked: dict[str, Any]) -> Any:
    return cases.get(asked["case"]).toward(asked["direction"])


def _launch(asked: dict[str, Any]) -> Any:
    taken = importlib.import_module("nkiconv.planner.plan").Estimate.from_dict(asked["taken"])
    return importlib.import_module("nkiconv.tools.verify.launched").case_launch(_case(asked), asked["lnc"], taken)


def _call(asked: dict[str, Any]) -> KernelCall:
    return KernelCall(asked["target"], tuple(asked["inputs"]), tuple(asked["arguments"]), asked["lnc"])


def told(error: BaseException, script: Path | None) -> dict[str, str]:
    """An error in a line, and the deepest line of the kernels', or of the caller's script, that it passed through;
    errors that were raised from others have the line of the first that has one."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    lines = [line for one in reversed(chain) for line in _lines(one, script)[-1:]]
    message = first_error(str(error))
    name = type(error).__name__
    return {"error": message if name == "WrongResult" else f"{name}: {message}", "line": next(iter(lines), "")}


def first_error(text: str) -> str:
    """The first line of a message that speaks of an error, or its first line."""
    lines = [line.strip("- \t") for line in text.splitlines() if line.strip("- \t")]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message")


def _lines(error: BaseException, script: Path | None) -> list[str]:
    """Lines of kernels, or of the script, that an error passed through, the deepest last."""
    found, at = [], error.__traceback__
    while at is not None:
        found.append(our_line(at.tb_frame.f_code.co_filename, at.tb_lineno, script))
        at = at.tb_next
    return [line for line in found if line]


def our_line(file: str, line: int, script: Path | None) -> str:
    """A line as it is told, "" where it is neither of kernels nor of the script."""
    path = Path(file).resolve()
    if script is not None and path == script.resolve():
        return f"{script.name}:{line}"
    return f"{path.relative_to(KERNELS.parents[1])}:{line}" if KERNELS in path.parents else ""


def line_of_log(log: str, script: Path | None) -> str:
    """The source line in the log of a process that died: from faulthandler, or an exception's traceback."""
    _, fatal, after = log.rpartition(_FATAL)
    frames = _FRAME.finditer(after)
    lines = [line for one in frames if (line := our_line(one["file"], int(one["line"]), script))]
    return "" if not lines else lines[0] if fatal else lines[-1]


#: Stages by name, in order.
STAGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "model": model,
    "simulate": simulate,
    "compile": compile_kernel,
}


def main(request: str, reply: Path) -> None:
    """Run a stage, and write its reply or its error."""
    asked = json.loads(request)
    try:
        found = STAGES[asked["stage"]](asked)
    except Exception as error:  # AWS's packages may raise any exception: it is this kernel's row
        sys.excepthook(type(error), error, error.__traceback__)
        found = told(error, script_of(asked))
    with whole_file(reply) as part:
        part.write_text(json.dumps(found), encoding="utf-8")


def script_of(asked: dict[str, Any]) -> Path | None:
    """The file of a request's kernel; None for a case."""
    return Path(asked["target"].rpartition(":")[0]) if "target" in asked else None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
