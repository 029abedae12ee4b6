"""Command lines that are refused by name, before any work; bad files are in test_cli_files_refused.py."""

import shlex
import sys
from pathlib import Path

import pytest
from cli_files import good_files
from commands import run

from nkiconv.tools import verify
from nkiconv.tools.cli.file_work import Work
from nkiconv.tools.measure import torch_neuron

pytestmark = pytest.mark.simulator_only
ROWS, LINES = "--input all.npz:x --filter all.npz:taps", "--input all.npz:x --filter all.npz:w1"
PICTURE = "--input good.png --filter all.npz:w2 --groups 3"
NORM = f"{Path(__file__).parents[1] / 'examples' / 'kernels' / 'rms_norm.py'}:rms_norm"
INPUTS = "--input 256x96:fp32 --input 1x96:fp32"
#: A command line, and what stderr says.
REFUSED = [
    ("run", "CASE, --input: neither is given"),
    ("run nkl_fs_asx", "case='nkl_fs_asx': ", "did you mean nkl_fs_asr"),
    ("run vae_512 mobilenet_dw rn50_c4 --algorithm weight_stationary", "2 reasons - case='vae_512': K=512: weight_",
     " - case='rn50_c4'"),
    (f"run short {ROWS}", "--input, --filter: cannot be combined with named cases"),
    ("run short --bias all.npz:flat", "--bias: cannot be combined with named cases"),
    ("run short --groups 0", "--groups: cannot be combined with named cases"),
    (f"run {ROWS} --seed 1", "--seed=1: files bring their own data"),
    (f"run {ROWS} --force", "--force: lets --out overwrite, and there is no --out"),
    ("profile short --force", "--force: lets --trace or --plot overwrite, and there is no --trace or --plot"),
    ("profiles --force", "--force: lets --csv overwrite, and there is no --csv; give one or drop it"),
    ("crossover --vary S --values 1 --W 64 --force", "--force: lets --csv overwrite"),
    ("bench --suite depthwise --force", "--force: lets --csv or --plot overwrite"),
    ("calibrate --list --out t.toml", "--out=t.toml: is of a calibration, and --list measures nothing"),
    ("calibrate --target model --force", "--force: is of --target trn2, and the target is model; drop it"),
    ("run short --channels half", "--channels=half: must be auto, all"),
    (f"run {ROWS} --out y.npy --channels 3", "--channels=3: --out needs every channel"),
    ("run --input rows.npy --filter all.npz:taps --dtype bf16", "DtypeError: --dtype=bf16: rows.npy holds float32"),
    (f"run {ROWS} --out there.npy", "UnsupportedError: --out=there.npy: exists already"),
    (f"run {ROWS} --out folder --force", "UnsupportedError: --out=folder: is a directory"),
    (f"run {ROWS} --out no/y.npy", "UnsupportedError: --out=no/y.npy: no is not a directory"),
    ("run --input no.npy --filter all.npz:taps", "--input=no.npy: cannot be read (No such"),
    ("run --input all.npz:x", "--filter: is needed with --input"),
    (f"run {ROWS} --bias all.npz:{5000 * 'b'}", f"UnsupportedError: --bias=all.npz:{77 * 'b'}...: has no"),
    (f"run {ROWS} --operation conv3d", "UnsupportedError: --operation=conv3d: accepted are depthwise_conv"),
    ("run --input all.npz:x --filter all.npz:flat", "LayoutError: --filter=all.npz:flat: has shape"),
    ("run --input all.npz:x --filter all.npz:packed", "LayoutError: --filter=", ": must be [C, S]"),
    (f"run {ROWS} --groups 2", "--groups=2: depthwise_conv1d takes none (each channel has its own"),
    (f"run {PICTURE} --operation depthwise_conv2d --lhs-dilation 2",
     "2 reasons - --groups=3: depthwise_conv2d takes none", " - --lhs-dilation=2: depthwise_conv2d takes none"),
    (f"run {LINES} --stride 1,2", "GeometryError: --stride=1,2: must be one number (rows have one"),
    (f"run {ROWS} --residual all.npz:x", "GeometryError: residual.shape=(1, 2, 9): must be y's, [N, C"),
    (f"run {ROWS} --residual-position post_activation", "--residual-position=post_activation: there is no --res"),
    ("run --input all.npz:x --filter good.png", "--filter=good.png: is a PNG or JPEG pict"),
    (f"run {ROWS} --bias good.wav", "--bias=good.wav: is a 16-bit WAV file, which --input, --resid"),
    ("run --input good.png --filter all.npz:w1", "good.png: is a PNG ", ", for conv2d and dep"),
    ("run --input good.wav --filter all.npz:w2", "good.wav: is a 16-bit WAV file, for conv1d"),
    (f"run {ROWS} --out y.png", "--out=y.png: a PNG or JPEG picture is written where x is one"),
    (f"run {ROWS} --out y.npz:../y", "--out=y.npz:../y: the name points out of the archive"),
    (f"run {ROWS} --out o.npz:{'a' * 70_000}", "the name has more than 1,000 bytes"),
    (f"run {ROWS} --out y.safetensors:__metadata__", "__metadata__ is the format's own; use another"),
    (f"run {PICTURE} --out good.png", "UnsupportedError: --out=good.png: exists already, and is not"),
    ("run --input good.png --filter two.npy --out y.png",
     "--out=y.png: y has N=1, K=2, the file holds one picture of K = 1 (L), 3 (RGB), 4 (RGBA) channels"),
    ("run --input good.wav --filter tracks.npy --out y.wav",
     "--out=y.wav: y is [1, 65536, 20], a WAV file holds N=1, up to 65,535 channels"),
    (f"run {NORM} --input 4x4:fp23", "fp23 is no dtype; write SHAPE:DTYPE with one of bf16"),
    (f"run {NORM} --input 4x0:fp32", "every extent must be at least 1"),
    (f"run {NORM} --input 4xx4:fp32", "--input=4xx4:fp32: must be a shape, as 1x512x5000:bf16, or a file"),
    (f"run {NORM} --arg eps", "--arg=eps: must be NAME=VALUE"),
    (f"run {NORM} --arg eps=one", "must be a Python literal or nl.NAME"),
    (f"run {NORM} {NORM}_fused", "a kernel runs alone"),
    (f"run {NORM} --input 128x64:bf16", "missing a required argument: 'w'; it takes x, w, eps: give one"),
    (f"profile {NORM} {INPUTS} --arg mu=1", "unexpected keyword argument 'mu'; it takes x, w, eps: give"),
    (f"run {NORM} --filter w.npy", "--filter: of convolutions"),
    (f"profile {NORM} {INPUTS} --direction wgrad", "--direction=wgrad: is of cases, and"),
    (f"run {NORM} {INPUTS} --out y.txt --lnc 1", "go to .npy or .npz"),
    (f"run {NORM} {INPUTS} --out there.npz", "exists; name another, or overwrite it with --force"),
    (f"run {NORM[:-1]} {INPUTS}", "did you mean rms_norm"),
    ("run kda_bf16 --arg eps=1", "--arg=eps=1: is of a kernel"),
    ("run --input a.npy --input b.npy", "a convolution has one x"),
    ("run old.py --input 128x64:bf16", "is a file, which defines double, "),
    ("run old.py:double --input 128,64:bf16", "128,64 is no shape; write 128x64:bf16"),
    ("run old.py:double --input 128x64", "write import nki, nki.isa and nki.language for"),
    (f"profile {NORM} {INPUTS} --dtype bf16", "--dtype=bf16: is of cases"),
    ("profile kda_bf16 conformer --against kda_bf16", "is held against one profile, 2 are named"),
    (f"profile {NORM} {INPUTS} --against nowhere.json", "holds no single profile"),
    ("bench", "UnsupportedError: CASE: none is given; name a case"),
    ("bench short --target model --rounds 9", "--rounds=9: is of --target trn2"),
    ("bench short --target model --append x.csv", "--append=x.csv: is of --target trn2"),
    ("bench short --target trn2 --timing-speed", "--timing-speed: is of the model"),
    ("bench short --target trn2 --append no/x.csv", "--append=no/x.csv: no is not a directory"),
    ("bench short --target trn2 --append .", "--append=.: is a directory"),
    ("calibrate --case short", "add --compare OLD NEW"),
    ("calibrate --compare trn2 none.toml", "none.toml: cannot be read"),
    ("calibrate --compare trn2 trn2 --only dma", "--compare measures nothing"),
    ("calibrate --compare trn2 trn2 --fresh --out x.toml", "--fresh: is of a calibration"),
    ("calibrate --only 'no such'", "no probe has such a name"),
    ("calibrate --target model --out x.toml", "is of --target trn2"),
    ("calibrate --target trn2 --out /", "is a directory"),
    ("crossover --vary S --values 0,2", "values=0: must be at least 1"),
    ("bench --suite depthwise --readme there.csv", "lacks the markers"),
    ("demo --out there.npy", "UnsupportedError: --out="),
]  # fmt: skip
#: Of plans, profiles, sweeps, suites and lint.
PLANS = [
    ("plan kda_bf61", "did you mean kda_bf16"),
    ("plan short --N 0", "--N: a shape, and short is named too; drop one"),
    ("plan nkl_n1_c16_w512_s7 --constant scalar.ns_per_elem=fast", "must be NAME=VALUE with a number"),
    ("plan nkl_n1_c16_w512_s7 --constant pe.min_interval_rows=1e20",
     "must be at most 128000, 1000 times trn2.toml's 128"),
    ("plan nkl_n1_c16_w512_s7 --constant a=1 --constant b=1 --constant 'a =2'", "a is given twice"),
    ("profile nkl_n1_c16_w512_s7 --algorithm fft", "algorithm='fft': accepted for depthwise_conv1d are None, banded"),
    ("profile nkl_n1_c16_w512_s7 mamba2_prefill --algorithm dot", "case='mamba2_prefill': Q=4096: dot computes"),
    ("profile nkl_n1_c16_w512_s7 nkl_n1_c16_w512_s7 --trace t.json", "--trace=t.json: is of one case, and 2 are given"),
    ("profile nkl_n1_c16_w512_s7 --plot nowhere/p.png", "nowhere is not a directory"),
    ("profile nkl_n1_c16_w512_s7 --plot p.jpg", "--plot=p.jpg: must end in .png"),
    ("profile nkl_n1_c16_w512_s7 --trace .", "--trace=.: is a directory"),
    ("profile nkl_n1_c16_w512_s7 --trace x.png --plot x.png", "is --plot's path too"),
    ("profiles --only kda --csv x.csv", "drop one of the two"),
    ("profile nkl_n1_c16_w512_s7 --trace /dev/full", "/dev/full: "),
    ("profiles --csv there.csv", "exists; name another, or overwrite it with --force"),
    ("crossover --vary K", "--vary=K: accepted are N, C, W, S, Q"),
    ("crossover --vary S --S 4", "--S=4: --vary=S takes its values from --values"),
    ("crossover --vary Q --W 64", "--W=64: --vary=Q sets W = Q + S - 1"),
    ("crossover --vary Q --causal", "--causal: --vary=Q has no padding"),
    ("crossover --vary S --values 1,,2", "--values=1,,2: must be ints between commas"),
    ("crossover --vary S --csv there.csv", "exists; name another, or overwrite it with --force"),
    ("crossover --vary S --csv missing/sweep.csv", "--csv=missing/sweep.csv"),
    ("crossover --vary S --json --format markdown", "--format=markdown: --json prints one document"),
    ("bench --suite depthwise_conv1d --csv there.csv", "exists; name another, or overwrite it with --force"),
    ("bench --suite deepbench --only zzz", "--only=zzz: no case has this in its name; they are db_00, db_01"),
    ("bench --suite deepbench --layout HWCN", "layout='HWCN'"),
    ("bench --suite deepbench --dtype fp16", "--dtype: cannot be combined with --suite=deepbench"),
    ("bench kda_bf16 --against library", "--against: belongs to --suite"),
    ("bench --suite depthwise --check", "--check: belongs to --against, and there is none"),
    ("bench --suite conv2d --against library", "--against has a kernel for depthwise only"),
    ("bench --suite depthwise --against .", "nkilib/experimental/conv/depthwise_conv1d.py; give the folder"),
    ("bench --suite depthwise --against library --plot x.png", "--plot=x.png: cannot be combined"),
    ("bench --suite depthwise --against library --only zzz", "no headline case has this"),
    ("lint none", "UnsupportedError: none: no such file or folder"),
    ("lint", "UnsupportedError: PATHS: none given"),
    ("lint . --nki 0.5", "nki='0.5': must be 0.6 or 0.7"),
    *((f"lint --rules {more}", f"{more.split()[0].replace('src', 'PATHS')}: judges kernels, and --rules judges none")
      for more in ("src", "--nki 0.6", "--strict", "--ignore NKL101")),
    ("lint . --format github --json", "--format github: --json prints one document"),
    ("lint . --format xml", "--format xml: must be text, github, json"),
    ("lint . --ignore NKL999", "ignore='NKL999': no rule has this id; `nkiconv lint --rules` lists them"),
    ("bench --suite dense", "--suite=dense: unknown name; use one of depthwise, conv2d"),
    ("bench --suite depthwise kda_bf16", "CASE: cannot be combined with --suite=depthwise"),
    ("bench --suite depthwise --target model", "--target: cannot be combined"),
    ("bench --suite depthwise --only zzz", "no headline case has this in its name"),
    ("bench --suite depthwise --only kda --csv x.csv", "is of every case; drop one of the two"),
    ("bench --suite depthwise --readme none.md", "none.md: cannot be read and written (No such file"),
    ("bench --suite depthwise --readme .", "cannot be read and written (Is a directory)"),
    ("bench --suite depthwise --readme x.md --lnc 1", "has the table of two cores"),
    ("bench --suite depthwise --plot no/x.png", "no is not a directory"),
    ("bench kda_bf16 --plot x.png", "--plot: belongs to --suite"),
    ("bench kda_bf16 --csv x.csv", "--csv: belongs to --suite"),
    ("cases --suite conv4d", "suite='conv4d': unknown name; use one of depthwise_conv1d, conv2d"),
    ("cases --format html", "--format=html: accepted are table, markdown, csv"),
    ("cases --format csv --json", "--format=csv: --json prints one document"),
]  # fmt: skip
#: Shapes, of every command that plans them.
SHAPES = [
    ("", "CASE: none is named; name one (nkiconv cases), or give a shape"),
    ("--C 5", "--W, --S: a shape has at least C, W and S"),
    ("kda_bf16 --C 5 --N 2", "--N, --C: a shape, and kda_bf16 is named too; drop one"),
    ("--C 5 --W 2 --S 2 --padding left", "--padding='left': accepted are same, valid, causal"),
    ("--C 5 --W 9 --S 2 --padding same --lhs-dilation 2", "is not defined with --lhs-dilation"),
    ("--C 5 --W 9 --H 9 --S 2 --padding causal", "--padding='causal': accepted are same, valid; use one"),
    ("--C 5 --W 9 --S 2 --stride 2,2", "--stride=2,2: must be one number (rows have one axis)"),
    ("--C 5 --W 9 --S 2 --transposed --lhs-dilation 2", "--lhs-dilation=2: is what --stride says with --transposed"),
    ("--C 5 --W 9 --S 2 --output-padding 1", "--output-padding=1: is of transposed convolutions; give --transposed"),
    ("--C 5 --W 9 --S 2 --transposed --padding same", "--padding=same: is not defined with --transposed"),
    ("--C 5 --W 9 --S 2 --transposed --output-padding 2 --stride 2", "must be at least 0 and below stride or dilation"),
    ("--C 5 --W 9 --S 2 --transposed --output-padding 1,1", "--output-padding=1,1: must be one number"),
    ("kda_bf16 --transposed", "--transposed: a shape, and kda_bf16 is named too; drop one"),
]  # fmt: skip
PLANS += [(f"{command} {options}", words) for command in ("plan", "tune", "profile") for options, words in SHAPES]


@pytest.fixture
def refused(plans, tmp_path, monkeypatch):
    """What is wrong stands in stderr and nothing elsewhere; nothing runs, no file changes, and the status is 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    good_files(tmp_path)
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    for owner, name in ((Work, "verify"), (verify, "verify_depthwise_conv1d"), (torch_neuron, "TorchNeuron")):
        monkeypatch.setattr(owner, name, None)

    def held(line, *words):
        result = run(*shlex.split(line))
        assert result.exit_code == 2
        assert result.stdout == "" or "--json" in line
        assert all(word in " ".join(result.stderr.split()) for word in words), result.stderr
        assert "Traceback" not in result.stderr
        assert not plans.exists()
        assert {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()} == before

    return held


@pytest.mark.parametrize("row", REFUSED, ids=[f"{row[0][:60]} {number}" for number, row in enumerate(REFUSED)])
def test_runs_and_benches_are_refused(refused, row):
    refused(*row)


@pytest.mark.cover(30)
@pytest.mark.parametrize(("line", "words"), PLANS, ids=[f"{row[0]} {number}" for number, row in enumerate(PLANS)])
def test_refused(refused, line, words):
    refused(line, words)


def test_every_violation_is_named():
    result = run("crossover", "--vary", "Q", "--W", 64, "--causal", "--values", "x")
    assert result.exit_code == 2
    for option in ("--W=64", "--causal", "--values=x"):
        assert option in result.stderr
