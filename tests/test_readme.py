"""The README is true: its Python runs, its commands exist, its generated tables are what the code says."""

import dataclasses
import re
import shlex
import sys
import types
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import module_of
from shell import run
from typer.main import get_command
from typer.testing import CliRunner

import nkiconv
from nkiconv import cases, readme_table, suite
from nkiconv.pytorch.computers import device, modes
from nkiconv.readme_table import markers
from nkiconv.simulator.coverage import coverage, markdown
from nkiconv.support import page as support

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(scope="module")
def namespace():
    """What the README's Python leaves, all of it run in order."""
    found = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), found)
    return found


@pytest.mark.simulator_only
def test_python_blocks_run_in_order(namespace):
    assert len(blocks("python")) >= 3
    assert namespace["y"].shape == (2, 48, 1000)
    assert (namespace["doubled"] == 2).all()


@pytest.mark.simulator_only
def test_quick_starts_do_what_they_say(namespace):
    assert namespace["maps"].shape == (1, 16, 20, 20)
    assert namespace["weight"].grad.abs().sum() > 0
    converted, planned = namespace["converted"], namespace["planned"]
    assert [entry.operator for entry in converted.swapped] == ["conv2d"]
    assert [fold.convolution for fold in converted.folds] == ["0"]
    assert namespace["scores"].shape == (1, 8, 32, 32)
    assert [row.layers for row in planned.rows] == [("0",)]
    assert planned.modelled_us > 0


@pytest.mark.simulator_only
def test_quick_start_for_trn2_reaches_the_kernel(namespace, monkeypatch):
    """On a device that is none: calls of the kernel are answered by the simulator."""
    launched = []

    def wrap_nki(kernel):
        launched.append(kernel)
        return {2: nkiconv.simulate(kernel[2])}

    monkeypatch.setitem(sys.modules, "torch_neuronx", types.SimpleNamespace(wrap_nki=wrap_nki))
    monkeypatch.setattr(modes, "computer", lambda x: "device")
    device.launcher.cache_clear()
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.ReLU()).requires_grad_(False)
    model[0].weight.copy_(torch.randint(-3, 4, (4, 3, 3, 3), generator=generator))
    batch = torch.randint(-3, 4, (1, 3, 8, 8), generator=generator).float()
    try:
        y = namespace["on_trn2"](model, batch, device="cpu")
    finally:
        device.launcher.cache_clear()
    assert launched == [nkiconv.conv2d_implicit_gemm]
    assert torch.equal(y, model(batch))  # whole numbers: sums are exact in any order


COMMANDS = sorted(
    {line.split()[1] for block in blocks("console") for line in block.splitlines() if line[:8] == "nkiconv "}
    | set(re.findall(r"`nkiconv ([a-z-]+)", TEXT))
)


#: Lines of the README's console blocks, and how tests run them: as they are printed, or with these words instead.
CHEAPER = {
    "kda_bf16": "short",
    "conformer": "short",
    "1x3x224x224": "1x3x32x32",
    "nkl_": "nkl_n1_c256_w512_s64",
    "kda": "kda_bf16",
    "rn50": "rn50_1x1",
    "../nki-library": "library",
}
#: What a line gets besides, by its first words: fewer cases, or fewer values and less of each.
MORE = {
    "bench --suite depthwise --against": ["--only", "kda_bf16"],
    "crossover --vary S": ["--values", "1,2", "--C", "128"],
    "crossover --vary W": ["--values", "64", "--C", "128"],
    "crossover --vary Q": ["--values", "1,2", "--C", "128"],
    "crossover --vary N": ["--values", "1,2", "--C", "128"],
}


def console_lines():
    """The words of each line of the console blocks that calls nkiconv, after that name."""
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("nkiconv ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def inline_lines():
    """The same of calls within sentences that have arguments, placeholders filled in."""
    filled = {
        "CASE...": "short",
        "CASE": "short",
        "PATHS": "nkiconv/kernels",
        "SCRIPT.py:FUNCTION": "examples/resnet18.py:f",
    }
    lines = [shlex.split(" ".join(line.split())) for line in re.findall(r"`nkiconv ([a-z][^`]*)`", TEXT)]
    return [[filled.get(word, word) for word in words] for words in lines if len(words) > 1]


@pytest.mark.parametrize("words", [*console_lines(), *inline_lines()], ids=" ".join)
def test_every_call_is_one_that_the_command_line_parses(words):
    from nkiconv.cli import app

    name, *rest = words
    context = get_command(app).commands[name].make_context(name, rest)
    assert context.params


@pytest.fixture
def here(tmp_path, monkeypatch, plans):
    """What the README's lines speak of: the repository's folders, arrays, pictures and sound, and a checkout."""
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "nkiconv"):
        (tmp_path / name).symlink_to(README.parent / name)
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
    kernel = tmp_path / "library/src/nkilib_src/nkilib/experimental/conv/depthwise_conv1d.py"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("def depthwise_conv1d_implicit_gemm(*_, **__):\n    raise ValueError('is none')\n")
    return tmp_path


@pytest.mark.simulator_only
@pytest.mark.parametrize("words", console_lines(), ids=" ".join)
@pytest.mark.usefixtures("here")
def test_every_line_runs(words, monkeypatch):
    """As it is printed, or with a smaller case in its place."""
    from nkiconv import bench

    for name, less in (("RUNS", 1), ("REPEATS", 5), ("CASES", ("short",))):
        monkeypatch.setattr(bench, name, less)
    more = next((extra for first, extra in MORE.items() if " ".join(words).startswith(first)), [])
    words = [CHEAPER.get(word, word) for word in words]
    if "--values" in words and more:
        words[words.index("--values") + 1] = more[1]
        more = more[2:]
    result = run(*words, *(more if "--C" not in words else more[:-2]))
    assert result.exit_code == 0, result.output
    for option in ("--out", "--plot", "--trace"):
        if option in words:
            assert Path(words[words.index(option) + 1].partition(":")[0]).stat().st_size > 0


@pytest.mark.simulator_only
def test_the_figures_of_the_choice_are_what_its_command_says(monkeypatch, capsys):
    """README's sentence is that of tests/choice.md, which `make choice` writes; here on a sample."""
    command = module_of(README.parent / "tests" / "choice", "__main__", monkeypatch)
    page = (README.parent / "tests" / "choice.md").read_text()
    said = re.findall(r"^Of \d+ problems, choice over plan: .*$", page, re.MULTILINE)
    assert len(said) == 2
    for sentence in said:
        assert sentence in " ".join(TEXT.split())
    monkeypatch.setattr(sys, "argv", ["choice", "--count", "2", "--seed", "3", "--most", "3000"])
    command.main()
    found = re.findall(r"geometric mean ([\d.]+), worst ([\d.]+)", capsys.readouterr().out)
    assert len(found) == 2
    assert all(1 - 1e-9 <= float(mean) <= float(worst) for mean, worst in found)


@pytest.mark.simulator_only
@pytest.mark.usefixtures("plans")
def test_figures_of_packed_filters_and_of_nhwc_are_those_of_plans():
    """On a sample: the range of NHWC is that of the named cases that it lists."""
    problem = cases.get("rn50_c5").problem
    plain, packed = (nkiconv.plan(problem, packed=packed).phase0_us for packed in (False, True))
    assert f"(rn50_c5: {packed:.1f} us for {plain:.1f}, modelled" in " ".join(TEXT.split())
    least, most = re.search(r"([\d.]+) to ([\d.]+) times as long in NHWC as in NCHW", " ".join(TEXT.split())).groups()
    nhwc = nkiconv.plan(dataclasses.replace(problem, layout="NHWC")).phase0_us
    assert float(least) <= nhwc / plain <= float(most)


@pytest.mark.simulator_only
def test_the_table_beside_awss_kernel_is_the_csv():
    rows = suite.read(README.parent / "profiles" / "depthwise_against_nki_library.csv")
    first, last = readme_table.AGAINST_MARKERS
    between = TEXT.split(first)[1].split(last)[0]
    assert between == readme_table.markdown(rows, readme_table.AGAINST_COLUMNS), "run `make against`"
    assert [(row["case"], row["dtype"]) for row in rows] == [(case.name, d) for case, d in suite.chosen("depthwise")]
    assert all((row["nki_library_us"] is None) != (row["nki_library_reason"] is None) for row in rows)
    mean, count = suite.geometric_mean(row["x_nki_library"] for row in rows)
    ahead, _ = suite.geometric_mean(row["x_nki_library_lookahead"] for row in rows)
    said = f"Of {count} cases, AWS's over ours: geometric mean {mean:.1f}, its look-ahead order over ours {ahead:.1f}."
    assert said in " ".join(TEXT.split())
    assert {row["nki_library_check"] for row in rows if row["nki_library_us"] is not None} == {"pass"}


def test_there_are_commands():
    assert {"doctor", "cases", "run", "bench-simulator"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_exists(command):
    from nkiconv.cli import app

    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output


def test_make_targets_exist():
    makefile = (README.parent / "Makefile").read_text()
    targets = set(re.findall(r"`?make ([a-z-]+)", TEXT))
    assert targets >= {"demo", "test"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target} is not in the Makefile"


@pytest.mark.simulator_only
@pytest.mark.parametrize("name", suite.SUITES)
def test_profiles_table_is_the_csv(name):
    rows = suite.read(README.parent / "profiles" / f"{name}_modelled_trn2.csv")
    first, last = markers(name)
    between = TEXT.split(first)[1].split(last)[0]
    assert between == readme_table.markdown(rows), "run `make profiles`"
    assert [(row["case"], row["dtype"]) for row in rows] == [(case.name, d) for case, d in suite.chosen(name)]
    assert {row["verdict"] for row in rows} == {"pass"}


@pytest.mark.simulator_only
def test_coverage_table_is_current():
    between = re.search(r"<!-- coverage:.*?-->\n(.*?)<!-- /coverage -->", TEXT, re.DOTALL)
    assert between, "the README lost its coverage markers"
    assert between.group(1) == markdown(), "run `make readme`"
    assert all(part.simulated > 0 for part in coverage())


@pytest.mark.simulator_only
def test_support_tables_are_current():
    first, last = support.MARKERS
    assert TEXT.split(first)[1].split(last)[0] == support.page(), "run `make readme`"
