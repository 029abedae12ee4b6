"""Plans of every distinct convolution of the zoo's models, forward and gradients, in bf16: the file that nkiconv ships.

    make plans                          what is new, and write nkiconv/planner/shipped.tsv
    make plans OPTIONS='--only resnet'  of some models only; others' plans stay
    make plans OPTIONS=--check          time those of the file first, take estimates that are faster, and search again
                                        for plans that the kernels refuse
    make plans OPTIONS=--fresh          all of them anew (hours)
    make plans OPTIONS=--hedge          hedge those of the file that an inferred constant may ruin, without a search for
                                        faster ones

Each is searched for as `nkiconv plan` does without a shipped one. What has been found is written every minute, so that
a run can go on where another was ended. All times are modelled.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from rich.progress import track

from nkiconv.errors import NkiconvError
from nkiconv.planner import shipped
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.entry import answer
from nkiconv.planner.estimate import completed
from nkiconv.planner.explain import RUINOUS
from nkiconv.planner.operations import operation_for, violations
from nkiconv.planner.plan import TIMED
from nkiconv.planner.request import Config, Request
from nkiconv.planner.robust import Regrets
from nkiconv.planner.search import Search
from nkiconv.planner.shipped import Shipped, key_of
from nkiconv.planner.timing import trace
from nkiconv.simulator.collector import without_collector
from nkiconv.simulator.errors import NkiError, TraceLimitError
from nkiconv.simulator.profiling.settings import ignore
from nkiconv.simulator.timing import Rates
from nkiconv.whole_file import whole_file

if TYPE_CHECKING:
    from zoo import Model

#: Seconds between two states of the file.
EVERY = 60
#: Instructions of a plan that is timed again at most. The largest ratio of an estimate's time to a plan's to be taken:
#: 3 % is what a setting must buy, too (`make ablate`).
MOST, FASTER = 4_000, 0.97


def requests_of(model: Model) -> list[Request] | None:
    """Distinct convolutions of a run of a model, and of its gradients where it has them; None where neither runs."""
    from nkiconv.pytorch.models.recording import record

    made, inputs = model.made(), model.given()
    for training in (True, False):
        try:
            convolved = record(made, (), inputs, training=training).convolved
        except Exception as error:  # the model's own code, which may raise whatever it likes
            print(f"{model.name}{', training' * training}: {type(error).__name__}: {error}".splitlines()[0])
            continue
        found = [Request(problem=one.problem, asked=one.asked, operation=one.operation) for one in convolved]
        return [one for one in map(in_bf16, found) if not any(violations(one))]
    return None


def in_bf16(request: Request) -> Request:
    """A request of fp32 tensors, of bf16."""
    if request.problem.dtype != "fp32":
        return request
    asked = dataclasses.replace(request.asked, precision=None, out_dtype=None)
    return dataclasses.replace(request, problem=request.problem.replace(dtype="bf16"), asked=asked)


def planned(request: Request) -> Shipped | str | None:
    """The plan of a request; None where nothing runs it; of a fault of the planner what it says."""
    try:
        plan = answer(request, use_cache=False)
    except NkiconvError:
        return None
    except Exception as error:  # the rest of a run of hours goes on; `main` then fails
        return f"{key_of(request)}: {type(error).__name__}: {error}"
    return Shipped(request, plan.algorithm, plan.config, round(plan.phase0_us, 3))


def checked(plan: Shipped) -> Shipped | None:
    """A plan with its time today, as it is if it is long; the hedge of an estimate that is faster by `FASTER`; None if
    the kernel refuses the plan."""
    request, operation = plan.request, operation_for(plan.request)
    shape = operation.shape(request, Rates())
    if plan.algorithm not in operation.algorithms or operation.kernel_reason(plan.algorithm, shape, plan.config):
        return None
    try:
        now = trace(request, Candidate(plan.algorithm, plan.config), Rates(), most=MOST)
    except TraceLimitError:
        return plan
    except NkiError:
        return None
    other = timed(request, *operation.choice(request, shape))
    if other is not None and other[1] < FASTER * now.us:
        hedge = hedged(other[0]) or other[0]
        other = timed(request, hedge.algorithm, hedge.config)
        if other is not None and other[1] < FASTER * now.us:
            return other[0]
    return dataclasses.replace(plan, us=round(now.timed.us, 3))


def timed(request: Request, algorithm: str, config: Config) -> tuple[Shipped, float] | None:
    """A plan and the us that it is ranked by; None if the kernel refuses it or it is long."""
    try:
        traced = trace(request, Candidate(algorithm, config), Rates(), most=MOST)
    except (NkiError, TraceLimitError):
        return None
    return Shipped(request, algorithm, config, round(traced.timed.us, 3)), traced.us


def hedged(plan: Shipped) -> Shipped | None:
    """The plan of least expected regret beside this one, which is this one if no inferred constant makes it take more
    than `RUINOUS` times as long or if it is long, without a search for faster ones; None if the kernel refuses it."""
    with without_collector():
        made = Search(plan.request, False, ignore)
        try:
            one = made.times.whole(Candidate(plan.algorithm, plan.config), MOST)
        except TraceLimitError:
            return plan
        if one is None:
            return None
        made.times.found[one.candidate.key] = one
        regrets = Regrets(one, [one], dict(plan.request.constants))
        if not regrets.rising(one, RUINOUS):
            return plan
        now = made.hedged(regrets, [one], TIMED, MOST)
    if (now.algorithm, now.config) == completed(plan.request, plan.algorithm, plan.config):
        return plan
    return Shipped(plan.request, now.algorithm, now.config, round(now.phase0_us, 3))


def each(work: Callable[[Any], Any], given: Sequence[Any], jobs: int, what: str) -> Iterator[tuple[Any, Any]]:
    """What each comes to, with it, as they come; nothing that nkiconv ships is known to `work`."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, shipped.take, (Path(os.devnull),)) as pool:
        waiting = {pool.submit(work, one): one for one in given}
        for one in track(as_completed(waiting), description=what, total=len(waiting)):
            yield waiting[one], one.result()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python tests/zoo/plans.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="a word in a model's or a package's name")
    parser.add_argument("--check", action="store_true", help="time the file's plans first, and take faster estimates")
    parser.add_argument("--fresh", action="store_true", help="search again for plans that the file has")
    parser.add_argument("--most", type=int, help="search for so many at most; with 0 no model is built")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that search at once")
    parser.add_argument("--hedge", action="store_true", help="hedge the file's plans first")
    parser.add_argument("--out", type=Path, default=shipped.FILE, help="the file")
    asked = parser.parse_args()
    kept = {key_of(one.request): one for one in shipped.read(asked.out).plans()}
    if asked.check:
        again(checked, kept, asked.out, asked.jobs)
    if asked.hedge:
        again(hedged, kept, asked.out, asked.jobs)
    wanted, faults = ({}, []) if asked.most == 0 else distinct(asked.only)
    new = [one for key, one in wanted.items() if asked.fresh or key not in kept][: asked.most]
    print(f"{len(wanted):,} distinct convolutions, {len(kept):,} plans kept, {len(new):,} to search for")
    written = time.monotonic()
    for request, found in each(planned, new, asked.jobs, "plans"):
        if isinstance(found, str):
            faults.append(found)
        elif found is not None:
            kept[key_of(request)] = found
        if time.monotonic() - written > EVERY:
            write(kept, asked.out)
            written = time.monotonic()
    write(kept, asked.out)
    print(f"{asked.out}: {len(kept):,} plans, {asked.out.stat().st_size / 1024:,.0f} KiB")
    if faults:
        raise SystemExit("\n".join([f"{len(faults)} faults:", *faults]))


def again(work: Callable[[Shipped], Shipped | None], kept: dict[str, Shipped], file: Path, jobs: int) -> None:
    """Take what `checked` or `hedged` makes of each plan, and drop plans that kernels refuse."""
    ratios, refused, written = [], 0, time.monotonic()
    for plan, now in each(work, list(kept.values()), jobs, work.__name__):
        key = key_of(plan.request)
        if now is None:
            refused += 1
            del kept[key]
            continue
        if (now.algorithm, now.config) != (plan.algorithm, plan.config):
            ratios.append(now.us / plan.us)
        kept[key] = now
        if time.monotonic() - written > EVERY:
            write(kept, file)
            written = time.monotonic()
    print(f"{refused:,} plans refused; {len(ratios):,} others taken, {geometric_mean(ratios or [1.0]):.3f} as long")


def distinct(only: Sequence[str]) -> tuple[dict[str, Request], list[str]]:
    """What the models with one of these words in their names convolve, all models' without any, by key; which do not
    run."""
    from everything import importable, models, quiet

    every = models(only)
    missing = importable(every)
    quiet()
    print(*(f"{name} is not installed: its models are left out" for name in missing), sep="\n")
    built = [one for one in track(every, description="models") if one.package not in missing]
    found = {f"{one.package} {one.name}": requests_of(one) for one in built}
    faults = [f"{name}: the model does not run" for name, requests in found.items() if requests is None]
    return {key_of(request): request for requests in found.values() for request in requests or ()}, faults


def write(plans: Mapping[str, Shipped], file: Path) -> None:
    """Write the file, whole."""
    with whole_file(file) as part:
        part.write_text(shipped.text_of(plans.values()), encoding="utf-8")


if __name__ == "__main__":
    main()
