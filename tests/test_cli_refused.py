"""Command lines of plans, profiles, sweeps and suites that are refused by name, before any work."""

import shlex

import pytest
from shell import run

pytestmark = pytest.mark.simulator_only
# a command line, and what stderr says
REFUSED = [
    ("plan kda_bf61", "did you mean kda_bf16"),
    ("plan nkl_n1_c16_w512_s7 --dtype fp8_e4m3", "accepted are bf16, fp16, fp32"),
    ("plan nkl_n1_c16_w512_s7 --constant scalar.ns_per_elem=fast", "must be NAME=VALUE with a number"),
    ("plan nkl_n1_c16_w512_s7 --constant scalar.speed=1", "unknown name"),
    ("plan nkl_n1_c16_w512_s7 --constant pe.min_interval_rows=1e20",
     "must be at most 128000, 1000 times trn2.toml's 128"),
    ("plan nkl_n1_c16_w512_s7 --constant a=1 --constant b=1 --constant 'a =2'", "a is given twice"),
    ("plan nkl_n1_c16_w512_s7 --precision tf32", "precision='tf32': depthwise_conv1d has none; drop it"),
    ("plan short --robust much", "robust='much': must be off, on or per cent"),
    ("profile nkl_n1_c16_w512_s7 --algorithm fft", "algorithm='fft': accepted for depthwise_conv1d are None, banded"),
    ("profile nkl_n1_c16_w512_s7 mamba2_prefill --algorithm dot", "case='mamba2_prefill': Q=4096: dot computes"),
    ("profile vae_512 --algorithm toeplitz_rows", "toeplitz_rows': was removed, stacked takes its"),
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
    ("crossover --vary S --values 0,2", "values=0: must be at least 1"),
    ("crossover --vary S --csv there.csv", "exists; name another, or overwrite it with --force"),
    ("crossover --vary S --csv missing/sweep.csv", "--csv=missing/sweep.csv"),
    ("crossover --vary S --json --format markdown", "--format=markdown: --json prints one document"),
    ("bench --suite depthwise_conv1d --csv there.csv", "exists; name another, or overwrite it with --force"),
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
LINES = REFUSED + [
    (f"{command} {options}", words) for command in ("plan", "tune", "profile") for options, words in SHAPES
]


@pytest.mark.cover(30)
@pytest.mark.parametrize(("line", "words"), LINES, ids=[f"{row[0]} {number}" for number, row in enumerate(LINES)])
def test_refused(plans, tmp_path, monkeypatch, line, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("precious")
    result = run(*shlex.split(line))
    assert result.exit_code == 2
    assert result.stdout == "" or "--json" in line
    assert words in " ".join(result.stderr.split())
    assert not plans.exists()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_every_violation_is_named():
    result = run("crossover", "--vary", "Q", "--W", 64, "--causal", "--values", "x")
    assert result.exit_code == 2
    for option in ("--W=64", "--causal", "--values=x"):
        assert option in result.stderr
