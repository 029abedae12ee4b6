"""`nkiconv plan-model`: every convolution of a model once, its plan, the sum; what stays; and bad input by name."""

import json

import pytest
from commands import ROOT, done, process, run

import nkiconv

pytest.importorskip("torch")
pytestmark = [pytest.mark.simulator_only, pytest.mark.usefixtures("plans", "plainly", "unadvised")]
HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
#: Two convolutions of one shape, one of another, one that is transposed, one that stays, one that nobody calls.
MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.filters = nn.Parameter(torch.randn(1, 4, 5))
        self.unused = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        y = self.up(self.blocks(self.norm(self.first(x))))
        return torch.conv_tbc(y.flatten(2).permute(2, 0, 1).contiguous(), self.filters, self.filters[0, 0])

def build_model():
    print("building")
    return Model()
"""


@pytest.fixture
def unadvised(monkeypatch):
    """No search for other forms of slow layers."""
    from nkiconv.pytorch.models import model_plan

    monkeypatch.setattr(model_plan, "advise", lambda *_, **__: ())


@pytest.fixture
def script(tmp_path):
    """A function that writes a script and returns its path."""

    def write(text, name="model.py"):
        path = tmp_path / name
        path.write_text(HEAD + text)
        return path

    return write


def document(*arguments):
    """The JSON of a run."""
    return json.loads(done("plan-model", *arguments, "--json").stdout)


def words(text):
    return " ".join(text.split())


def test_table(script, monkeypatch):
    from nkiconv.pytorch.models import advice, model_plan

    monkeypatch.setattr(model_plan, "advise", advice.advise)
    result = run(
        "plan-model", f"{script(MODEL)}:build_model", "--input", "1x3x6x6", "--dtype", "bf16", "--lnc", 1, "--wide",
        width=250,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    text = words(result.stdout)
    for wanted in (
        "(trn2, 1 core, modelled)", "1 8 6 6 -> 8 6 6", "3x3 bf16 bias", "+1 more", "convolutions that stay in torch",
        "(the model) 1 144 1 4 * 1 4 5 is called as a function", "the model ran on shapes only", "sum 4",
        "flops of convolutions are nkiconv's; the others: aten::conv_tbc", "of the limit; ",
        "convolutions that this run did not call: unused",
    ):  # fmt: skip
        assert wanted in text
    assert "building" in result.stderr
    assert "building" not in result.stdout


def test_options_reach_conversion_and_planner(script):
    text = "def build(): return nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8))"
    arguments = f"{script(text)}:build", "--input", "input=1x3x6x6", "--fold-batchnorm", "--lnc", 1, "--dtype", "fp16"
    found = document(*arguments, "--tuned")
    [first] = found["rows"]
    assert (first["asked"]["bias"], first["problem"]["dtype"], first["plan"]["lnc"]) == (True, "fp16", 1)
    assert first["plan"]["effort"] == "tuned"
    assert found["conversion"]["folds"][0]["folded"]
    assert document(*arguments)["rows"][0]["plan"]["cached"]


OTHERS = {
    "1-d, with named and whole-number inputs": ("""
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.mix = nn.Conv1d(6, 6, 4, groups=6, padding=3)

    def forward(self, ids, scale):
        return self.mix(self.embed(ids).transpose(1, 2)) * scale

build_model = Model
""", ("--input", "scale=1", "--input", "1x9:int64"), "fake tensors", [("depthwise_conv1d", 6)]),
    "parameters without data": (
        "def build_model():\n    with torch.device('meta'):\n        return nn.Conv1d(3, 4, 3)\n",
        ("--input", "3x9"), "meta tensors", [("conv2d", 4)]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "arguments", "ran_on", "rows"), OTHERS.values(), ids=OTHERS)
def test_other_ways_to_run(script, text, arguments, ran_on, rows):
    found = document(f"{script(text)}:build_model", *arguments)
    assert found["ran_on"] == ran_on
    assert [(row["operation"], row["problem"]["K"]) for row in found["rows"]] == rows


def test_a_model_that_a_script_has_made(script):
    found = document(f"{script(MODEL + 'model = build_model()')}:model", "--input", "1x3x6x6")
    assert [row["layers"][0] for row in found["rows"]] == ["blocks.0", "up", "first"]


def test_what_has_no_plan_is_not_in_the_sum(script, monkeypatch):
    from nkiconv.pytorch.models import model_plan

    real = model_plan.answer

    def answer(request, **more):
        if request.problem.C == 3:
            raise nkiconv.UnsupportedError("C=3: too odd")
        return real(request, **more)

    monkeypatch.setattr(model_plan, "answer", answer)
    arguments = "plan-model", f"{script(MODEL)}:build_model", "--input", "1x3x6x6"
    found = json.loads(run(*arguments, "--json").stdout)
    told = [(row["layers"][0], row["reason"]) for row in found["rows"]]
    assert told == [("blocks.0", ""), ("up", ""), ("first", "C=3: too odd")]
    assert found["modelled_us"] == found["rows"][0]["modelled_us"] + found["rows"][1]["modelled_us"]
    assert [(row["layers"], row["calls"]) for row in found["rows"]][:2] == [(["blocks.0", "blocks.2"], 2), (["up"], 1)]
    assert [(one["operator"], one["shapes"]) for one in found["kept"]] == [("aten::conv_tbc", [[144, 1, 4], [1, 4, 5]])]
    assert (found["uncalled"], found["ran_on"], found["lnc"]) == (["unused"], "fake tensors", 2)
    assert "no plan for first, which is not in the sum: C=3: too odd" in words(run(*arguments).stdout)


@pytest.mark.parametrize(("text", "target", "arguments", "message"), [
    ("", "{folder}/nowhere.py:build", (), "nowhere.py does not exist; give the path of a Python script"),
    ("", "{folder}/model.py", (), "must be a path, a colon and a function; write model.py:build_model"),
    ("def build_model(): ...", "{folder}/model.py:build_modle", (), "no build_modle; did you mean build_model?"),
    ("class UNet: ...\ndef build(): ...", "{folder}/model.py:Unet", (), "no Unet; did you mean UNet?"),
    ("build = 3", "{folder}/model.py:build", (), "build is no function but of type int"),
    ("1 / 0", "{folder}/model.py:build", (), "importing it raised ZeroDivisionError (model.py:4): division by zero"),
    ("def build(): return 3", "{folder}/model.py:build", (), "returned int; return a torch.nn.Module"),
    ("", "{folder}/model.py:build", ("--input", "1x0x3"), "--input=1x0x3: must be [NAME=]SHAPE[:TYPE]"),
    ("", "{folder}/model.py:build", ("--input", "1x3:fp8"), "--input=1x3:fp8: accepted types are bf16, fp16"),
    ("", "{folder}/model.py:build", ("--input", "a=1", "--input", "a=2"), "--input=a=2: a is given twice"),
    ("", "{folder}/model.py:build", ("--dtype", "fp8", "--lnc", 3), "cannot run this call; 2 reasons"),
])  # fmt: skip
def test_bad_input(script, tmp_path, plans, text, target, arguments, message):
    script(text)
    result = run("plan-model", target.format(folder=tmp_path), "--input", "1x3", *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert message in words(result.stderr)
    assert not plans.exists()


def test_an_input_is_needed(script):
    result = run("plan-model", f"{script(MODEL)}:build_model", "--json")
    assert result.exit_code == 2
    [violation] = json.loads(result.stdout)["error"]["violations"]
    assert violation.startswith("--input: is needed")


@pytest.mark.slow
def test_torch_is_asked_for_by_name(script, tmp_path):
    """As a process of its own, in which torch cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["torch"] = None\n')
    words = "-m", "nkiconv", "plan-model", f"{script(MODEL)}:build_model", "--input", "1x3x6x6"
    done = process(*words, front=[tmp_path])
    assert (done.returncode, done.stdout) == (2, "")
    assert "MissingPackageError: nkiconv.pytorch: needs torch, which is not installed; run pip install" in done.stderr
    assert "pip install '.[torch]' in a checkout" in done.stderr


@pytest.mark.parametrize(("name", "shape", "calls"), [
    pytest.param("resnet18", "1x3x32x32", 20, marks=pytest.mark.slow),  # a line of docs/cli.md
    ("whisper_stem", "1x80x40", 2),
])  # fmt: skip
def test_examples(name, shape, calls):
    found = document(ROOT / "examples" / f"{name}.py:build_model", "--input", shape, "--dtype", "bf16")
    assert sum(row["calls"] for row in found["rows"]) == calls
    assert (found["kept"], found["uncalled"], found["ran_on"]) == ([], [], "fake tensors")
    assert all(row["plan"] is not None for row in found["rows"])
