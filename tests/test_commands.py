"""Commands of the Makefile and of the docs that no other test runs, and examples, on the least that they take."""

import ast
import dataclasses
import importlib
import re
import runpy
import shlex
import shutil
from collections import Counter
from pathlib import Path

import fused_vae
import gated_delta_conv
import host_cost
import pytest
import torch
import training_layers
import training_plans
from chained import made
from commands import ROOT, called, of_command, process, ran
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn

import nkiconv
from nkiconv.planner.candidates import Candidate
from nkiconv.planner.explain import RUINOUS
from nkiconv.planner.robust import DEFAULT
from nkiconv.planner.timing import trace
from nkiconv.simulator.timing import Rates
from nkiconv.tools.suites import chains
from nkiconv.tools.tables import chains as tables

pytestmark = pytest.mark.simulator_only

#: A command, words after it, and a pattern of what it prints.
COMMANDS = [
    ("tests/choice", "--operation conv_transpose --count 1 --seed 3", r"\nOf 1 problems, .* worst 1\."),
    ("tests/choice", "--operation conv2d --count 1 --minutes 0", r"\nNo problem was timed\."),
    ("tests/limits", "--count 1 --seed 7 --jobs 1", r"\n\| wgrad \| 1 \| 0\.\d\d \|  \| 0\.\d\d \| 0 \|\n"),
    ("tests/calibration", "--seeds 1 --only scalar_tables", r"\n1 of 1 constants are found within 5% in"),
    ("tests/golden", "--only rn50_c4 --way default --jobs 1", r"^0 of 7 rows moved; .* worst 1\.0000\n$"),
    ("tests/golden", "--only kda_bf16 --way timed --kept --algorithm mixed --jobs 1", r"^0 of 1 rows moved; "),
    ("tests/ablate", "--only dot --jobs 1", r"\n\| dot \| slots \| \d+ \| \d+ of \d+ \| 0 \| 1\.\d{4} \|"),
    ("tests/few_channels", "--only '3 channels, 4x4, 32x32, 64'", r"price 0\.\d\d\ntakes_windows: 1\.000, 1\.00 at "),
    ("tests/few_channels", "--only '16 channels, 2x2, 112x112, 64'", r"\ntakes_windows: 1\.0\d\d, 1\.0\d at worst\n$"),
    ("tests/validation", "--only 'runs of 64 bytes'", r"(\| ours \|[^$]*){5}\n\| pe\.row_tiles_overlap \| 1 "),
    ("tests/validation", "--only nki-autotune", r"\nNo checkout of it was given\.\n"),
    ("tests/zoo/packages.py", str(ROOT / "pyproject.toml"), r"^diffusers==\S+ timm==\S+ "),
]


choice = of_command("choice")


def test_choice_tells_how_near_the_clock_of_estimates_is(choice):
    every = next(row for row in choice.clocks([IMAGE, IMAGE.replace(C=8)], choice.MOST) if row.startswith("| all "))
    assert re.fullmatch(r"\| all \| 2 \| [\d.]+% \| [\d.]+% \| [01]\.\d\d \| [01]\.\d\d \|", every)


@pytest.fixture
def installed(of_packages):
    """Skips a test whose package of the zoo is not installed."""

    def check(package):
        try:
            of_packages.ready(package)
        except ImportError:
            pytest.skip(f"{package} is not installed: `make zoo` installs it")

    return check


#: Of the zoo's commands and of examples, with models of packages that may not be there.
MODELS = [
    ("transformers", "tests/zoo", "--only Vivit", r"\n\| VivitModel \| transformers \| 7\.4 \| 100 % \| 1 \|  \|\n"),
    ("transformers", "tests/zoo/nets.py", "--only mamba2", r"\n\| Mamba2-130m, 2,048 tokens \| 24 \| 1 \| [01] "),
    ("transformers", "tests/zoo/plans.py", "--only Vivit --most 1 --jobs 1 --out a.tsv", r"\na.tsv: 1 plans, 0 KiB\n"),
    ("diffusers", "examples/fused_vae.py", "--size 64", r"\napart over fused: [\d.]+, apart over polyphase: "),
    ("diffusers", "examples/fused_unet.py", "--model sd15", r"^sd15, 2 of 64 x 64: \d+ of \d+ norms fused, "),
    ("diffusers", "examples/fused_video_vae.py", "--model ltx", r"^ltx, latents 1x128x7x16x22, \d+ norms by them"),
]


@pytest.mark.parametrize(("package", "script", "words", "said"), [
    *(pytest.param("", *row, id=" ".join(row[:2])) for row in COMMANDS),
    *(pytest.param(*row, marks=pytest.mark.slow, id=" ".join(row[1:3])) for row in MODELS),
])  # fmt: skip
def test_a_command_on_one_case(package, script, words, said, installed, capsys, monkeypatch, tmp_path):
    if package:
        installed(package)
    monkeypatch.chdir(tmp_path)
    assert ran(script, *shlex.split(words)) == 0
    assert re.search(said, capsys.readouterr().out)


@pytest.mark.slow
def test_a_decode_by_stages(installed, capsys, monkeypatch):
    """Of a small VAE; later frames take what the third adds to two."""
    installed("diffusers")
    wan_vae = importlib.import_module("wan_vae")
    config = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2], "num_res_blocks": 1, "temperal_downsample": [True]}
    monkeypatch.setattr(wan_vae, "VAES", {"small": (config, 4)})
    monkeypatch.setattr(wan_vae, "SIZES", {"16": {"small": (16, 16)}})
    assert called(wan_vae.main, "--vae", "small", "--frames", 4) == 0
    said = capsys.readouterr().out
    assert len(re.findall(r"^\| (?:in and middle|up 0|up 1|out|all) \| \d+ \|", said, re.MULTILINE)) == 5
    assert "\nall frames in one graph: " in said


@pytest.mark.parametrize(("script", "words", "said"), [
    ("tests/golden", "--only nothing --way estimate", "no problem has this in its name"),
    ("tests/golden", "--write --kept", "drop --way, --only, --kept and --algorithm"),
    ("tests/ablate", "--only nothing", "no plan of the golden table is of such an algorithm"),
    ("tests/calibration", "--only nothing", "no probe has this in its name"),
    ("tests/calibration", "--seeds 0", "--seeds=0: must be at least 1"),
    ("tests/validation", ".", "has none of "),
    ("tests/validation", "--constant pe=x", "must be NAME=VALUE with a number"),
    ("tests/conformance", ".", "give a checkout of one of the four"),
    ("tests/zoo", "--only nothing", "no model has that in its name"),
    ("tests/zoo/nets.py", "--only nothing", "no net has that in its name"),
    ("examples/train_small.py", "--steps 0", "--steps=0: must be at least 1"),
], ids=lambda one: one)  # fmt: skip
def test_what_is_wrong_is_named(script, words, said, capsys):
    assert ran(script, *shlex.split(words)) == 2
    assert said in capsys.readouterr().err


RECIPE = re.search(r"^readme:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
LINES = re.findall(r"\$\(BIN\)/python (.*)", RECIPE)
#: Pages whose parts take longer to make: commands run, kernels are planned, or functions are called.
LONG = ("docs/first_kernel.md", "docs/support.md", "compare.py docs/tensor_engine.md")
#: What is written between markers, and what into fences.
BETWEEN = re.compile(r"(<!-- [^\n]* generated by `make readme` -->\n).*?(<!-- /)", re.DOTALL)
FENCES = re.compile(r"(<!-- (?:prints|shows [^\n]*) -->\n```\w+\n).*?(```\n)", re.DOTALL)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
@pytest.mark.parametrize("line", [
    pytest.param(line, marks=[pytest.mark.slow] * line.endswith(LONG)) for line in LINES
])  # fmt: skip
def test_make_readme_changes_nothing(line, tmp_path, monkeypatch):
    """Of pages whose generated parts are taken out before."""
    for name in ("docs", "profiles"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.json", "*.png"))
    shutil.copy(ROOT / "README.md", tmp_path)
    for name in ("examples", "nkiconv"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    *options, name, page = line.split()[: 2 + line.startswith("-m")]
    before = Path(page).read_text(encoding="utf-8")
    emptied = (FENCES if name.endswith("console") else BETWEEN).sub(r"\1\2", before)
    assert emptied != before
    Path(page).write_text(emptied, encoding="utf-8")
    if options:
        assert called(lambda: runpy.run_module(name, run_name="__main__"), *line.split()[2:]) == 0
    else:
        assert ran(name, page) == 0
    assert Path(page).read_text(encoding="utf-8") == before, "run `make readme`"
    assert (tmp_path / "profiles" / "front.png").exists() == ("tables.front" in line)


def test_examples_print_tables(monkeypatch, capsys):
    """Of models and layers of their own, small ones."""
    monkeypatch.setattr(gated_delta_conv, "STAGES", {"small": ((1, 8, True), (2, 8, False))})
    assert called(gated_delta_conv.main, 16) == 0
    assert re.search(r"\nsmall +16 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+x\n$", capsys.readouterr().out)
    step = training_plans.Step("small", lambda: nn.Conv2d(3, 8, 1), ((1, 3, 2, 8),))
    monkeypatch.setattr(training_plans, "STEPS", {"small": step})
    assert called(training_plans.main) == 0
    assert re.search(r"\n\| small (\| \d+ \(\d+%\) ){4}\| \d+ \|\n$", capsys.readouterr().out)
    forward, *more = training_layers.cells(IMAGE.replace(C=8, K=8), "wgrad", "0.0042")
    assert float(forward) > 0
    assert more[-1] == "0.4%"
    assert fused_vae.statistics_us((1, 64, 8, 8)) > 0
    assert fused_vae.passes((2, 64), (64,), reads=2)[1] == 2 * 3 * (128 + 64)


def test_host_cost_compares_calls_of_one_result():
    """What it times of torch and of nkiconv gives the same."""
    torch.manual_seed(0)
    every = host_cost.tiny_calls()
    for what, theirs, ours, _ in every:
        if "backward" not in what and "nn.Conv2d, no_grad" not in what and "update" not in what:
            assert_within_share(ours(), theirs(), FLOAT32_SUMS)
    assert len(host_cost.quickest([one for _, *pair, _ in every for one in pair], 1, 1)) == 2 * len(every)
    assert sum(isinstance(one, nn.Conv2d) for one in host_cost.build_model().modules()) == 53


ROW = nkiconv.ConvProblem(N=1, C=8, W=64, S=3, groups=8, padding=((0, 0), (2, 0)), dtype="bf16")
IMAGE = nkiconv.ConvProblem(N=1, C=32, H=4, W=8, K=32, R=3, S=3, padding=((1, 1), (1, 1)), dtype="bf16")
#: Chains of each kind on small tensors.
CHAINS = {
    "gated": lambda: chains.gated("lfm2", "LFM2", ROW, "BCx"),
    "group_norm": lambda: chains.group_norm(32, 4),
    "convnext": lambda: chains.convnext(32, 4),
    "bottleneck": lambda: chains.bottleneck(32, 4, False),
    "training": lambda: chains.bottleneck(32, 4, True),
    "back_to_back": lambda: chains.back_to_back(7),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_modelled_three_ways(name):
    row = chains.timed(CHAINS[name]())
    assert min(row.alone_us, row.fused_us, row.separate_us) > 0
    fused, separate = (re.findall(r"\.\d\b", told) for told in (row.launches, row.separate_launches))
    assert 1 <= len(fused) < len(separate)


def test_chains_are_modelled(tmp_path, monkeypatch):
    """One anew, another as it is kept."""
    page, rows = tmp_path / "fused.md", tmp_path / "rows.csv"
    first, last = tables.MARKERS
    page.write_text(f"a\n{first}{last}\nz\n")
    small = [chains.normed("wan_384", IMAGE, "pre_activation"), chains.normed_layers(32, 4)]
    for module in (chains, tables):
        monkeypatch.setattr(module, "chains", lambda: iter(small))
    assert called(tables.main, page, "--csv", rows) == 0
    before = page.read_text()
    assert before.count("\n| wan_384_residual | ") == before.count("\n| convnext_layers_32 | ") == 2
    assert "(geometric mean of 2 chains)" in before
    page.write_text(f"a\n{first}{last}\nz\n")
    assert called(tables.main, page, "--csv", rows, "--only", "convnext_layers_32") == 0
    assert page.read_text() == before


def reader():
    """A model for the zoo: [1, 3, 8, 8] -> [1, 8, 6, 6]."""
    return made(lambda model, x: model.layer(x), layer=nn.Conv2d(3, 8, 3))


measure, pages, nets, plans, of_zoo, of_packages = (
    of_command("zoo", name) for name in ("measure", "__main__", "nets", "plans", "zoo", "packages")
)


@pytest.fixture
def tiny(of_zoo):
    return of_zoo.Model("tiny", "torch", reader, {"x": (1, 3, 8, 8)})


def test_the_zoo_tells_what_is_missed(measure, pages, tiny, of_zoo):
    found = measure.measure(tiny)
    assert (found.kernels, found.fraction, found.error) == (1, 1, "")
    broken = measure.measure(of_zoo.Model("broken", "torch", reader, {"x": (1, 4, 8, 8)}))
    found.take_off("too long", 4 * found.flops)
    lines = [*pages.page([found, broken], ["timm"])]
    assert "| tiny | torch | 0.0 | 20.00 % | 1 | 80.00 %: too long |" in lines
    assert lines[-2] == "timm is not installed: its models are left out."


def test_nets_are_planned(nets, tiny):
    found = nets.planned(tiny)
    row = [*nets.page([("tiny net", found)], [])][-2]
    assert re.fullmatch(r"\| tiny net \| 1 \| 1 \| 0 \| [\d.]+ \| \d+% \|  \|", row)
    assert [nets.net(*rest).name for _, *rest in nets.NETS] == [name for _, name, *_ in nets.NETS]


def test_plans_of_the_zoo_are_found_and_checked(plans, tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plans, "each", lambda work, given, *_: [(one, work(one)) for one in given])
    found = [plans.planned(request) for request in plans.requests_of(tiny)]
    assert sorted(one.request.problem.dtype for one in found) == ["bf16"] * 2  # none by x, which nothing asks for
    assert [plans.checked(one) for one in found] == found
    slow = plans.Shipped(plans.Request(problem=nkiconv.cases.get("rn50_stem").problem), "implicit_gemm", None, 1.0)
    refused = dataclasses.replace(slow, request=plans.Request(problem=nkiconv.cases.get("kda_bf16").problem))
    kept = {plans.key_of(one.request): one for one in (slow, refused, *found)}
    plans.again(plans.checked, kept, tmp_path / "checked.tsv", 1)
    replaced = kept.pop(plans.key_of(slow.request))
    assert (list(kept.values()), replaced.algorithm) == (found, "stacked")
    assert capsys.readouterr().out.startswith("1 plans refused; 1 others taken, ")
    file = tmp_path / "plans.tsv"
    plans.write({plans.key_of(one.request): one for one in found}, file)
    before = file.read_text()
    assert ran("tests/zoo/plans.py", "--most", 0, "--out", file) == 0
    assert file.read_text() == before


def test_plans_of_the_zoo_are_hedged(plans):
    """One that slow triggers of DMA may ruin moves, to one that is faster then and not much slower now; another
    stays."""
    ruined, calm = (plans.Request(problem=nkiconv.cases.get(name).problem) for name in ("prime", "c256_32x16"))
    fastest, stays = (
        dataclasses.replace(plans.planned(dataclasses.replace(one, robust=0.0)), request=one) for one in (ruined, calm)
    )
    moved = plans.hedged(fastest)
    assert (moved.algorithm, plans.hedged(stays)) == ("implicit_gemm", stays)
    assert fastest.us < moved.us <= fastest.us * (1 + DEFAULT / 100)
    slow = Rates({"dma.static_issue_ns": 670.0})
    ruined_us, hedged_us = (
        trace(one.request, Candidate(one.algorithm, one.config), slow).timed.us for one in (fastest, moved)
    )
    assert hedged_us < ruined_us / RUINOUS


command, faults, reach = (of_command("mutation", name) for name in ("__main__", "faults", "reach"))
KERNEL = ROOT / "nkiconv" / "kernels" / "statistics" / "channels.py"


def test_faults_are_edits_that_python_takes(command, faults, reach, tmp_path):
    text = KERNEL.read_text(encoding="utf-8")
    found = faults.of_file(KERNEL, faults.KERNEL)
    assert {"tile bound", "missing instruction"} <= {fault.kind for fault in found}
    for fault in found:
        assert ast.dump(ast.parse(fault.planted(text))) != ast.dump(ast.parse(text))
    assert len({fault.kind for fault in command.sample(found, 8, 0)}) >= 3
    one, other = (command.Verdict(fault, what, 3) for fault, what in zip(found, ("noticed", "survived"), strict=False))
    lines = command.section("Kernels", [one, other], len(found))
    assert lines[2].endswith(f": 1 of 2 noticed, 50.0 %; {len(found)} can be planted.")
    tests = ["tests/a.py::test_a", "tests/a.py::test_b"]
    assert command.failed_of(f"FAILED {tests[1]} - x\n1 failed", tests) == (tests[1],)
    reached = reach.Reach({str(KERNEL): {7: tests}}, Counter({tests[0]: 2, tests[1]: 1}))
    assert sorted(reached.tests(KERNEL, 7, 0)) == tests
    assert reached.tests(KERNEL, 8, 0) == []
    assert {*command.COPIED} == {path.name for path in command.copy_of_repository(tmp_path).iterdir()}


TUTORIAL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def nki_tensor_add_kernel(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    a_tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    b_tile = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a_tile, src=a)
    nisa.dma_copy(dst=b_tile, src=b)
    nisa.tensor_tensor(dst=a_tile, data1=a_tile, data2=b_tile, op=nl.add)
    nisa.dma_copy(dst=out, src=a_tile)
    return out
"""


def written(folder, files):
    """A checkout with these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_tutorials_run(tmp_path, capsys):
    old = "import neuronxcc.nki as nki\n\n\n@nki.jit\ndef f(x):\n    return x\n"
    wrong = TUTORIAL.replace("op=nl.add", "op=nl.subtract")
    files = {"getting_started_jax.py": TUTORIAL, "getting_started_torch.py": wrong, "old.py": old}
    checkout = written(tmp_path, {f"nki/examples/{name}": text for name, text in files.items()})
    assert ran("tests/conformance", checkout, "--commit", "abc") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "## aws-neuron-sdk (abc)" in lines
    assert "| getting_started_jax.py | nki_tensor_add_kernel | passed | 0.0e+00 |" in lines
    assert any("getting_started_torch.py | nki_tensor_add_kernel | differs from the reference" in one for one in lines)
    assert "- older: nki/examples/old.py" in lines


#: Stand-ins for checkouts whose suites run in processes of their own.
PEER = {
    "causal_conv1d/causal_conv1d_interface.py": """
import torch.nn.functional as F

def causal_conv1d_ref(x, weight, bias=None, activation=None):
    y = F.conv1d(F.pad(x, (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=x.shape[1])
    return y if activation is None else F.silu(y)
""",
    "tests/test_causal_conv1d.py": """
import pytest
import torch
from causal_conv1d import causal_conv1d_fn
from causal_conv1d.causal_conv1d_interface import causal_conv1d_ref

@pytest.mark.parametrize("activation", [None, "silu"])
def test_causal_conv1d(activation):
    x, w = torch.randn(1, 8, 20, device="cuda"), torch.randn(8, 4, device="cuda")
    y = causal_conv1d_fn(x, w, activation=activation)
    assert torch.allclose(y, causal_conv1d_ref(x, w, activation=activation), atol=1e-5)

def test_off():
    assert causal_conv1d_fn(torch.ones(1, 1, 1, device="cuda"), torch.ones(1, 2, device="cuda")).item() == 2
""",
}
KERNEL_TEST = (
    TUTORIAL
    + """
import numpy as np
import pytest
from test.integration.nkilib.utils import comparators
from test.utils import test_orchestrator

@pytest.mark.fast
@pytest.mark.parametrize("off", [0, 1])
def test_add(off):
    a = np.ones((4, 3), np.float32)
    found = nki.cpu_simulate(nki_tensor_add_kernel)[1](a=a, b=a)
    assert comparators.maxAllClose(found, 2 * a + off), "Validation failed"
"""
)
LIBRARY = {
    "conftest.py": """
def pytest_addoption(parser):
    parser.addoption("--test-mode")
    parser.addoption("--output-directory")
    parser.addoption("--force-local-cleanup", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "fast: is quick")
""",
    **{f"test/{name}__init__.py": "" for name in ("", "utils/", "integration/", "integration/nkilib/utils/")},
    "test/utils/test_orchestrator.py": "class Orchestrator: ...\n",
    "test/integration/nkilib/utils/comparators.py": "from numpy import allclose as maxAllClose\n",
    "test/integration/nkilib/core/test_add.py": KERNEL_TEST,
}


@pytest.mark.slow
def test_suites_of_others_run(tmp_path):
    peer, library = written(tmp_path / "peer", PEER), written(tmp_path / "library", LIBRARY)
    said = process("tests/conformance", peer, "--mode", "simulate", cwd=ROOT).stdout
    assert "\n| test_causal_conv1d | 2 | 2 | 0 |  |\n| test_off | 0 | 1 | 0 | 1 x AssertionError: assert 1.0 ==" in said
    said = process("tests/conformance", library, "--commit", "abc", cwd=ROOT).stdout
    assert "\n## nki-library (abc)\n" in said
    assert "\n| test_add | 1 |  |  | 2 | 0 | 0.0e+00 | 1 x differs from the reference |\n" in said


@pytest.mark.slow
def test_a_fault_is_noticed(tmp_path):
    """The only one of its file, by tests of one file."""
    words = "--kernels 0 --rules 1 --only simulator/races.py --tests tests/simulator/test_races.py --jobs 1 --reach"
    said = process("tests/mutation", *words.split(), tmp_path / "reach", cwd=ROOT).stdout
    assert ": 1 of 1 noticed, 100.0 %; 1 can be planted.\n" in said
