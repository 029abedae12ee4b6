"""The share of convolutions' arithmetic that nkiconv takes, over a zoo of models with random weights.

    make zoo

Every model is built from its config, most of them without numbers (on meta tensors), converted and run once;
nothing is downloaded. A convolution counts as nkiconv's where its kernel is chosen for it. Models of packages that are
not installed are left out, and told.
"""

from collections.abc import Iterator, Sequence

from everything import command, importable, models, quiet
from measure import Found, measure
from rich.progress import track

from nkiconv.whole_file import write_page


def page(found: Sequence[Found], missing: Sequence[str]) -> Iterator[str]:
    """The table, as lines of Markdown."""
    yield "# The zoo"
    yield ""
    yield "Written by `make zoo`: of each model's convolutions, forward, in one run of its default config with random"
    yield "weights. Nothing here ran on hardware."
    yield ""
    yield "| model | package | Gflop | nkiconv's | convolutions | rest, and why |"
    yield "|---|---|---:|---:|---:|---|"
    for one in found:
        cells = one.model.name, one.model.package, f"{one.flops / 1e9:,.1f}", shown(one.fraction), str(one.kernels)
        yield f"| {' | '.join(cells)} | {rest(one)} |"
    yield ""
    yield from (f"{name} is not installed: its models are left out." for name in missing)
    yield totals(found)


def rest(found: Found) -> str:
    """What is not nkiconv's, with the reasons, and what is smaller than in the default config."""
    parts = [f"{shown(flops / found.flops)}: {reason}" for reason, flops in found.rest.items()]
    parts += [f"({found.model.reduced})"] * bool(found.model.reduced)
    return "; ".join([found.error] if found.error else parts).replace("|", "/")


def shown(fraction: float) -> str:
    """A share in percent, 100 only where nothing is missing."""
    return "100 %" if fraction == 1 else f"{min(fraction, 0.9999):.2%}".replace("%", " %")


def totals(found: Sequence[Found]) -> str:
    """All models together, in words."""
    ran = [one for one in found if not one.error]
    flops, ours = sum(one.flops for one in ran), sum(one.nkiconv for one in ran)
    if not flops:
        return f"None of {len(found)} models ran."
    mean, least = sum(one.fraction for one in ran) / len(ran), min(ran, key=lambda one: one.fraction)
    return (
        f"{len(ran)} of {len(found)} models ran: {shown(ours / flops)} of {flops / 1e9:,.0f} Gflop are nkiconv's, "
        f"{shown(mean)} in a model's mean, {shown(least.fraction)} of {least.model.name}'s, the least."
    )


def main() -> None:
    """The command."""
    parser = command("tests/zoo", __doc__)
    asked = parser.parse_args()
    wanted = models(asked.only)
    if not wanted:
        parser.error(f"--only {' '.join(asked.only)}: no model has that in its name")
    missing = importable(wanted)
    quiet()
    found = [measure(one) for one in track(wanted, description="models") if one.package not in missing]
    write_page(list(page(found, missing)), asked.out)


if __name__ == "__main__":
    main()
