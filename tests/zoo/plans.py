"""Plans of every distinct convolution of the zoo's models, forward and gradients, in bf16: the file that nkiconv ships.

    make plans                          what is new, and write nkiconv/planner/shipped.tsv
    make plans OPTIONS='--only resnet'  of some models only; others' plans stay
    make plans OPTIONS=--check          time those of the file first, take estimates that are faster, and search again
                                        for plans that the kernels refuse
    make plans OPTIONS=--fresh          all of them anew (hours)
    make plans OPTIONS='--hedge FILE'   hedge those of the file that an inferred constant may ruin, without a search for
                                        faster ones; FILE keeps what came of each, and a later run passes over these

Each is searched for as `nkiconv plan` does without a shipped one. What has been found is written every minute, so that
a run can go on where another was ended. All times are modelled.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.progress import track

from nkiconv.errors import NkiconvError
from nkiconv.planner import shipped
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.entry import answer
from nkiconv.planner.estimate import completed
from nkiconv.planner.explain import RUINOUS
from nkiconv.planner.operations import operation_for, violations
from nkiconv.planner.plan import TIMED, Plan
from nkiconv.planner.request import Config, Request
from nkiconv.planner.robust import Regrets
from nkiconv.planner.search import NothingRuns, Search
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


class Row(NamedTuple):
    """What came of a search for a hedge: "long" for kernels that it leaves out, "refused", "calm" where no constant is
    ruinous, "kept" or "moved"; of the fastest that was timed the worst constant; its us and worst regret, and the
    plan's."""

    key: str
    what: str
    constant: str = ""
    was_us: float = 0.0
    us: float = 0.0
    was_regret: float = 1.0
    regret: float = 1.0


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
        hedge_of = hedge(other[0])[0]
        other = timed(request, hedge_of.algorithm, hedge_of.config)
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


def hedged(request: Request, candidate: Candidate) -> Plan | None:
    """The plan of least expected regret beside a candidate, perhaps itself, without a search for faster ones; None if
    no inferred constant makes the candidate take more than `RUINOUS` times as long.

    Raises: NothingRuns: the kernel refuses it; TraceLimitError: it has more than `MOST` instructions.
    """
    with without_collector():
        made = Search(request, False, ignore)
        one = made.times.whole(candidate, MOST)
        if one is None:
            raise NothingRuns(made.times.rejected)
        made.times.found[one.candidate.key] = one
        regrets = Regrets(one, [one], dict(request.constants))
        return made.hedged(regrets, [one], TIMED, MOST) if regrets.rising(one, RUINOUS) else None


def hedge(plan: Shipped) -> tuple[Shipped, Row]:
    """A plan, or its hedge, and what it loses."""
    try:
        now = hedged(plan.request, Candidate(plan.algorithm, plan.config))
    except TraceLimitError:
        return plan, Row(key_of(plan.request), "long")
    except NothingRuns:
        return plan, Row(key_of(plan.request), "refused")
    if now is None:
        return plan, Row(key_of(plan.request), "calm")
    moved = (now.algorithm, now.config) != completed(plan.request, plan.algorithm, plan.config)
    figures = now.fastest_risk, now.fastest_us, now.modelled_us, now.fastest_regret, now.worst_regret
    row = Row(key_of(plan.request), "moved" if moved else "kept", *figures)
    return Shipped(plan.request, now.algorithm, now.config, round(now.phase0_us, 3)) if moved else plan, row


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
    parser.add_argument("--hedge", type=Path, metavar="FILE", help="hedge the file's plans; FILE: what came of each")
    parser.add_argument("--more", type=Path, help="another such file, whose plans come before those of --out")
    parser.add_argument("--out", type=Path, default=shipped.FILE, help="the file")
    asked = parser.parse_args()
    if asked.hedge:
        hedge_all(asked.out, asked.hedge, asked.jobs)
        return
    files = [asked.out, *([asked.more] if asked.more else [])]
    kept = {key_of(one.request): one for file in files for one in shipped.read(file).plans()}
    if asked.check:
        check_all(kept, asked.out, asked.jobs)
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


def check_all(kept: dict[str, Shipped], file: Path, jobs: int) -> None:
    """Time plans again, take estimates that are faster, and drop plans that kernels refuse."""
    ratios, refused, written = [], 0, time.monotonic()
    for plan, now in each(checked, list(kept.values()), jobs, "checked"):
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
    print(f"{refused:,} plans refused; {len(ratios):,} estimates taken, {geometric_mean(ratios or [1.0]):.3f} as long")


def hedge_all(file: Path, ledger: Path, jobs: int) -> None:
    """Hedge a file's plans that a ledger does not have, the fastest first, and say what it costs and brings."""
    kept = {key_of(one.request): one for one in shipped.read(file).plans()}
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    rows = {row.key: row for row in (Row(*json.loads(line)) for line in lines)}
    new = sorted((one for key, one in kept.items() if key not in rows), key=lambda one: one.us)
    written = time.monotonic()
    for _, (plan, row) in each(hedge, new, jobs, "hedged"):
        kept[row.key], rows[row.key] = plan, row
        if time.monotonic() - written > EVERY:
            write_hedged(kept, file, rows, ledger)
            written = time.monotonic()
    write_hedged(kept, file, rows, ledger)
    print("\n".join(table_of(list(rows.values()))))


def write_hedged(kept: Mapping[str, Shipped], file: Path, rows: Mapping[str, Row], ledger: Path) -> None:
    """Write the file of plans, then the ledger."""
    write(kept, file)
    with whole_file(ledger) as part:
        part.write_text("".join(f"{json.dumps(row)}\n" for row in rows.values()), encoding="utf-8")


def table_of(rows: Sequence[Row]) -> Iterator[str]:
    """What hedging came to, by constant."""
    counts = Counter(row.what for row in rows)
    yield ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    yield "| constant | plans | moved | nominal time | worst regret | of moved ones: mean | worst |"
    yield "|---|---|---|---|---|---|---|"
    known = [row for row in rows if row.us]
    for constant in [*sorted({row.constant for row in known}), ""]:
        of = [row for row in known if constant in ("", row.constant)]
        moved = [row for row in of if row.what == "moved"]
        cost = geometric_mean([row.us / row.was_us for row in of] or [1.0])
        before, after = ([getattr(row, name) for row in moved] or [1.0] for name in ("was_regret", "regret"))
        worst = f"{max(row.was_regret for row in of):.2f} to {max(row.regret for row in of):.2f}" if of else "-"
        yield (
            f"| {constant or 'all'} | {len(of):,} | {len(moved):,} | {cost - 1:+.2%} | {worst} | "
            f"{geometric_mean(before):.2f} to {geometric_mean(after):.2f} | {max(before):.2f} to {max(after):.2f} |"
        )


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
