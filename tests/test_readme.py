"""The README and the pages in docs/ are true: their Python runs, their commands exist, their links lead somewhere, and
their generated tables are what the code says."""

import functools
import itertools
import re
import shlex
import subprocess
import sys
import types
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT, done
from typer.main import get_command

import nkiconv
from nkiconv import cases
from nkiconv.pytorch.computers import device, modes
from nkiconv.rules import DIRECTIONS, LAYOUTS
from nkiconv.tools.suites import chains, csv_rows, suite
from nkiconv.tools.tables import chains as pages
from nkiconv.tools.tables import console, deepbench, readme

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The front page and what it leads to, by name; the pages of docs/api are docstrings (test_api_pages.py).
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
#: The page with what its commands print; they run where that is held.
PRINTED = "docs/first_kernel.md"
API = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs" / "api").glob("*.md"))]
TEXT = "\n".join(PAGES.values())


def blocks(language, text=TEXT):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@functools.cache
def namespace(page):
    """What a page's Python leaves, all of it run in order."""
    found = {}
    for block in blocks("python", PAGES[page]):
        exec(compile(block, page, "exec"), found)
    return found


def between(page, around):
    """What stands between two markers of a page, which no other page has."""
    first, last = around
    assert [name for name, text in PAGES.items() if first in text] == [page]
    return PAGES[page].split(first)[1].split(last)[0]


def test_the_front_page_is_one_page():
    readme = PAGES["README.md"]
    assert len(readme) <= 8000
    first_screens = "\n".join(readme.splitlines()[:60])
    for name in ("causal_conv1d", "causal_conv1d_interface", "causal_conv1d_varlen", "cpp_functions"):
        assert f"`{name}`" in first_screens
    assert "Status: not yet run on hardware." in " ".join(first_screens.split())
    assert all(f"](docs/{path.name})" in readme for path in (ROOT / "docs").glob("*.md") if path.name != "index.md")


@pytest.mark.slow
@pytest.mark.simulator_only
@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if blocks("python", text)])
def test_python_blocks_run_in_order(page):
    """In a fresh process, as a reader has it: what other tests import is not there."""
    code = "\n".join(blocks("python", PAGES[page]))
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.mark.simulator_only
def test_blocks_leave_what_they_say():
    assert (namespace("docs/kernels.md")["doubled"] == 2).all()


@pytest.mark.slow
@pytest.mark.simulator_only
def test_quick_starts_do_what_they_say():
    assert namespace("README.md")["y"].shape == namespace("docs/numpy.md")["y"].shape == (2, 48, 1000)
    assert namespace("docs/numpy.md")["features"].shape == (1, 16, 20, 28)
    found = namespace("docs/torch.md")
    assert found["maps"].shape == (1, 16, 20, 20)
    assert found["weight"].grad.abs().sum() > 0
    assert [row.layers for row in found["planned"].rows] == [("0",)]
    assert found["planned"].modelled_us > 0
    for page in ("README.md", "docs/torch.md"):
        converted = namespace(page)["converted"]
        assert [entry.operator for entry in converted.swapped] == ["conv2d"]
        assert [fold.convolution for fold in converted.folds] == ["0"]
        assert namespace(page)["scores"].shape == (1, 8, 32, 32)
        assert namespace(page)["rows"].shape == (2, 64, 128)


@pytest.mark.simulator_only
def test_quick_start_for_trn2_reaches_the_kernel(monkeypatch):
    """On a device that is none: calls of the kernel are answered by the simulator."""
    launched = []

    def wrap_nki(kernel):
        launched.append(kernel)
        return {2: nkiconv.simulate(kernel[2])}

    monkeypatch.setitem(sys.modules, "torch_neuronx", types.SimpleNamespace(wrap_nki=wrap_nki))
    monkeypatch.setattr(modes, "computer", lambda x: "device")
    device.LAUNCHERS.clear()
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.ReLU()).requires_grad_(False)
    model[0].weight.copy_(torch.randint(-3, 4, (4, 3, 3, 3), generator=generator))
    batch = torch.randint(-3, 4, (1, 3, 8, 8), generator=generator).float()
    try:
        y = namespace("docs/trn2.md")["on_trn2"](model, batch, device="cpu")
    finally:
        device.LAUNCHERS.clear()
    assert launched == [nkiconv.conv2d_implicit_gemm]
    assert torch.equal(y, model(batch))  # whole numbers: sums are exact in any order


def console_lines(text=TEXT, fence="console"):
    """The words of each line of the console blocks that calls nkiconv, after that name; of bash those for a device."""
    joined = [block.replace("\\\n", " ") for block in blocks(fence, text)]
    lines = [line for block in joined for line in block.splitlines() if line.startswith("nkiconv ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def inline_lines():
    """The same of calls within sentences that have arguments, placeholders filled in."""
    filled = {"PATHS": "nkiconv/kernels", "SCRIPT.py:FUNCTION": "examples/resnet18.py:f"}
    filled |= dict.fromkeys(("CASE", "CASE..."), "short")
    lines = [shlex.split(" ".join(line.split())) for line in re.findall(r"`nkiconv ([a-z][^`]*)`", TEXT)]
    return [[filled.get(word, word) for word in words] for words in lines if len(words) > 1]


@pytest.mark.cover(20)
@pytest.mark.parametrize("words", [*console_lines(), *console_lines(fence="bash"), *inline_lines()], ids=" ".join)
def test_every_call_is_one_that_the_command_line_parses(words):
    from nkiconv.tools.cli import app

    name, *rest = words
    command = get_command(app).commands[name]
    if hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    assert command.make_context(name, rest).params


@pytest.fixture
def here(tmp_path, monkeypatch, plans):
    """What the pages' lines speak of: the repository's folders, arrays, pictures and sound."""
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "nkiconv"):
        (tmp_path / name).symlink_to(ROOT / name)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((2, 5, 40), (5, 3)))
    np.save("x.npy", x)
    np.save("w.npy", w)
    np.savez("model.npz", x=x, w=w, b=np.ones(5, np.float32))
    np.save("blur.npy", np.full((3, 1, 3, 3), 1 / 9, np.float32))
    np.save("fir.npy", np.full((1, 7), 1 / 7, np.float32))
    safetensors = pytest.importorskip("safetensors.numpy")
    safetensors.save_file({"x": x}, "x.safetensors")
    safetensors.save_file({"conv.weight": w}, "layer.safetensors")
    pytest.importorskip("PIL.Image").fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save("photo.png")
    with wave.open("speech.wav", "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(rng.integers(-3000, 3000, 200, np.int16).tobytes())
    return tmp_path


#: Commands whose lines run as they are printed; of others their own tests run smaller ones.
TRIED = ("run", "profile", "cases", "cache", "report")
LINES = console_lines("\n".join(text for name, text in PAGES.items() if name != PRINTED))


@pytest.mark.cover(5)
@pytest.mark.simulator_only
@pytest.mark.parametrize("words", [words for words in LINES if words[0] in TRIED], ids=" ".join)
@pytest.mark.usefixtures("here")
def test_lines_run(words):
    done(*words)
    for option in ("--out", "--plot", "--trace"):
        if option in words:
            assert Path(words[words.index(option) + 1].partition(":")[0]).stat().st_size > 0


def test_the_figures_of_the_choice_are_those_of_its_page():
    """The sentence of docs/algorithms.md is that of tests/choice.md, which `make choice` writes."""
    page = (ROOT / "tests" / "choice.md").read_text()
    said = re.findall(r"^Of \d+ problems, choice over plan: .*$", page, re.MULTILINE)
    assert said
    for sentence in said:
        assert sentence in " ".join(TEXT.split())


def chosen(name):
    return [(case.name, dtype) for case, dtype in suite.chosen(name)]


#: A page, markers of a table in it, its rows' file, the lines that it makes of them, columns, what rows have in these.
TABLES = [
    ("performance", readme.AGAINST_MARKERS, "depthwise_against_nki_library",
     lambda rows: readme.markdown(rows, readme.AGAINST_COLUMNS), ("case", "dtype"), chosen("depthwise")),
    *(("performance", readme.markers(name), f"{name}_modelled_trn2", readme.markdown, ("case", "dtype"), chosen(name))
      for name in suite.SUITES),
    ("fused", pages.MARKERS, "chains_modelled_trn2", pages.page, ("chain",), [(one.name,) for one in chains.chains()]),
    *(("deepbench", deepbench.markers(layout), f"deepbench_{layout.lower()}_modelled_trn2", deepbench.page,
       ("direction", "case", "layout"), [*itertools.product(DIRECTIONS, cases.names("deepbench"), [layout])])
      for layout in LAYOUTS),
]  # fmt: skip


@pytest.mark.simulator_only
@pytest.mark.parametrize(
    ("page", "around", "file", "written", "columns", "listed"), TABLES, ids=[row[2] for row in TABLES]
)
def test_a_table_is_the_csv(page, around, file, written, columns, listed):
    rows = csv_rows.read(ROOT / "profiles" / f"{file}.csv")
    assert between(f"docs/{page}.md", around) == written(rows), (
        "run `make profiles`, `chains`, `against` or `deepbench`"
    )
    assert [tuple(row[name] for name in columns) for row in rows] == listed
    assert {row.get("verdict", "pass") for row in rows} == {"pass"}


@pytest.mark.simulator_only
def test_the_sentence_beside_awss_kernel_is_the_csvs():
    rows = csv_rows.read(ROOT / "profiles" / "depthwise_against_nki_library.csv")
    assert all((row["nki_library_us"] is None) != (row["nki_library_reason"] is None) for row in rows)
    mean, count = suite.geometric_mean(row["x_nki_library"] for row in rows)
    ahead, _ = suite.geometric_mean(row["x_nki_library_lookahead"] for row in rows)
    said = f"Of {count} cases, AWS's over ours: geometric mean {mean:.1f}, its look-ahead order over ours {ahead:.1f}."
    assert said in " ".join(TEXT.split())
    assert {row["nki_library_check"] for row in rows if row["nki_library_us"] is not None} == {"pass"}


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:`|^)make\s+([a-z-]+)", TEXT, re.MULTILINE))
    assert targets >= {"demo", "test"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target} is not in the Makefile"


def test_a_page_gets_what_commands_print_and_functions(tmp_path):
    (tmp_path / "one.py").write_text("import os\n\n\n@property\ndef f(x):\n    return x\n")
    page = "<!-- shows one.py:f -->\n```py\n```\n```console\nnkiconv cases \\\n  --suite none\n```\n\n"
    page += "<!-- prints -->\n```text\n```\n"
    found = console.filled(page, tmp_path)
    assert "```py\n@property\ndef f(x):\n    return x\n```" in found
    assert "```text\nUnsupportedError: suite='none'" in found
    page = "```console\nnkiconv cases --suite conv3d\n```\n\n<!-- tables -->\n<!-- /tables -->\n"
    assert "wan_384" in console.filled(page, tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        console.filled(page.replace("conv3d", "none"), tmp_path)
    with pytest.raises(ValueError, match="must begin with nkiconv"):
        console.printed("python", tmp_path)


def slugs(text):
    """The anchors of a page's headings, as the places that show Markdown make them."""
    without = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", without, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *API, "profiles/README.md"])
def test_links_lead_somewhere(page):
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not link.startswith("https://"):
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.is_file(), f"{page}: {link}"
            assert target.is_relative_to(ROOT), f"{page}: {link}"
            assert not anchor or anchor in slugs(target.read_text(encoding="utf-8")), f"{page}: {link}"


def test_import_arrows_are_those_of_the_contract():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = [one["layers"] for one in config["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    assert len(layers) == 2
    for lines in layers:
        assert "\n".join(lines) + "\n" in blocks("text", PAGES["docs/architecture.md"])


def test_each_chain_has_its_measured_row():
    every = [chain.name for chain in chains.chains()]
    assert len(set(every)) == len(every)
    # of ConvNeXt the norm and the convolution in front of it were measured alone, of ResNet single convolutions, of
    # Evo 2, of Wan's sums and of decode steps nothing
    measured = {name for name in every if not name.startswith(("convnext", "bottleneck", "evo2", "gdn_step"))}
    measured -= {name for name in measured if name.endswith("_residual")}
    assert measured <= chains.h200().keys()


def test_a_pass_takes_the_time_of_its_bytes():
    once, twice = (chains.passed("copy", 2**22, reads).us for reads in (1, 2))
    assert twice == pytest.approx(1.5 * once)
    bytes_ns = 2 * 2**22 * 2 / 716
    assert bytes_ns < 1000 * once < 1.15 * bytes_ns  # 1.127 of it, with the ends of a copy
