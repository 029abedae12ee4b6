"""`kernels` loads the package that `make hf-kernel` lays out, and models run by its layers, without any network; models
of transformers give by nkiconv what they give by torch: outputs, derivatives of inputs, steps of decoding.
"""

import dataclasses
import importlib
import socket
import sys

import numpy as np
import pytest
import torch
from causal import integers
from operators_seen import Seen
from tolerances import FLOAT32_SUMS, assert_within_share
from torch import nn
from torch_exact import filled, same

from nkiconv import pytorch as nkiconv_torch
from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import hub_package

if sys.version_info < (3, 11):  # elsewhere the extra `dev` has both, and a missing one is a failure
    pytest.skip("transformers needs Python 3.11", allow_module_level=True)

import compare_models
import kernels
from transformers_models import MODELS

FUNCTIONS = ("causal_conv1d_fn", "causal_conv1d_update")
MODULES = {"Conv1d": nn.Conv1d, "Conv2d": nn.Conv2d}
DECODERS = [name for name in MODELS if MODELS[name].cache]
TRAINED = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No network, torch computes, and what kernelize leaves on transformers' functions goes afterwards."""

    def refuse(*args):
        raise AssertionError(f"opened a connection: {args}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("NKICONV_CPU", "torch")
    monkeypatch.setattr(torch.version, "cuda", None)  # `kernels` takes a build of torch for a GPU as a machine with one
    importlib.import_module("transformers").logging.set_verbosity_error()
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        yield
    for model in (MODELS[name] for name in DECODERS):
        for name in FUNCTIONS:
            vars(getattr(importlib.import_module(model.file), name)).pop("forward", None)


@pytest.fixture
def package(tmp_path):
    assert hub_package.main([str(tmp_path / "package")]) == 0
    return tmp_path / "package"


@pytest.fixture
def replaced(monkeypatch):
    for name, kind in MODULES.items():
        monkeypatch.setattr(kind, "kernel_layer_name", name, raising=False)


@pytest.fixture
def neuron(monkeypatch, tmp_path):
    """A torch with Neuron, as far as `kernels` looks at it."""
    monkeypatch.setattr(torch, "neuron", object(), raising=False)
    (tmp_path / "nki").mkdir()
    (tmp_path / "nki" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("nki", None)


@pytest.fixture
def together():
    """A transformers that uses the `kernels` that is installed: only then are its functions layers."""
    available = importlib.import_module("transformers.utils.import_utils").is_kernels_available()
    assert available, f"transformers takes other versions of kernels than {kernels.__version__}: pin a pair in `dev`"


def by_layers(package, made):
    """A model or module kernelized for cpu, with no way back to torch."""
    repositories = {
        name: {"cpu": kernels.LocalLayerRepository(package, layer_name=name)} for name in (*FUNCTIONS, *MODULES)
    }
    with kernels.use_kernel_mapping(repositories, inherit_mapping=False):
        return kernels.kernelize(made, mode=TRAINED, device="cpu", use_fallback=kernels.KernelizeFallback.NO_LAYER)


def files(folder):
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("content", [None, "", "[]", '{"name": "relu"}'])
def test_other_builds_are_not_touched(package, capsys, content):
    path = package / "build" / "torch-neuron" / "metadata.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    before = files(package)
    with pytest.raises(UnsupportedError, match=r"folder=.*torch-neuron is not of a package of nkiconv; pass another"):
        hub_package.build(package)
    capsys.readouterr()
    assert hub_package.main([str(package)]) == 1
    assert "pass another folder" in capsys.readouterr().err
    assert files(package) == before


def test_a_file_is_no_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsupportedError, match=r"folder=.*file: is a file; pass a folder"):
        hub_package.build(tmp_path / "file")
    assert hub_package.main([]) == hub_package.main(["one", "two"]) == 2
    assert capsys.readouterr().err.startswith("usage: ")


def test_without_nkiconv(package, monkeypatch):
    monkeypatch.setitem(sys.modules, "nkiconv.pytorch", None)
    with pytest.raises(ImportError, match=r"this package calls nkiconv, which cannot be imported \(.*\); install it"):
        kernels.get_local_kernel(package)


@pytest.mark.usefixtures("neuron")
def test_neuron_takes_its_variant(package):
    assert kernels.get_local_kernel(package).__file__ == str(package / "build/torch-neuron/__init__.py")


@pytest.mark.usefixtures("replaced")
# A module of torch and the shape of its input.
@pytest.mark.parametrize(("make", "shape"), [
    (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), (2, 4, 9)),
    (lambda: nn.Conv1d(4, 4, 4, padding="same", groups=4), (4, 9)),
    (lambda: nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 2), dilation=2, groups=2), (2, 4, 7, 8)),
    (lambda: nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular", groups=4), (4, 7, 8)),
])  # fmt: skip
def test_modules(package, make, shape):
    module = filled(make())
    x = integers(*shape, seed=9).requires_grad_()
    expected = module(x)
    g = integers(*expected.shape, seed=10)
    derivatives = torch.autograd.grad(expected, (x, *module.parameters()), g)
    by_layers(package, module)
    with Seen() as seen:
        found = module(x)
    assert sum(name.startswith("nkiconv::") for name in seen.names) == 1
    assert torch.equal(found, expected)
    assert same(torch.autograd.grad(found, (x, *module.parameters()), g), derivatives)


class Own(nn.Conv2d):
    def forward(self, input):
        return super().forward(input) + 1


@pytest.mark.usefixtures("replaced")
def test_a_forward_of_its_own_is_not_lost(package, monkeypatch):
    x = integers(2, 4, 7, 8)
    module = by_layers(package, Own(4, 6, 3))
    with pytest.raises(UnsupportedError, match=r"Own: has its own forward, .*; keep it out with the condition="):
        module(x)
    condition = staticmethod(lambda module: type(module).forward is nn.Conv2d.forward)
    monkeypatch.setattr(nn.Conv2d, "kernel_condition", condition, raising=False)
    module = by_layers(package, Own(4, 6, 3))
    assert torch.equal(module(x), nn.Conv2d.forward(module, x) + 1)


@pytest.mark.cover(3)
@pytest.mark.usefixtures("neuron", "together")
@pytest.mark.parametrize("name", DECODERS)
def test_kernel_config(package, monkeypatch, name):
    """transformers' own way: a model that says it is on a Neuron device, and stays on cpu.

    KernelConfig takes no cpu, so transformers is told another device at the two places where it asks for one.
    """
    from transformers import KernelConfig

    for place in ("transformers.utils.kernel_config", "transformers.integrations.hub_kernels"):
        monkeypatch.setattr(f"{place}.get_device_type", lambda device=None: "neuron")
    model = MODELS[name]
    installed, convolutions = model.with_nkiconv()
    made = model.build()
    config = KernelConfig({name: {"neuron": f"{package}:{name}"} for name in FUNCTIONS}, use_local_kernel=True)
    made.set_use_kernels(True, config)
    assert made.use_kernels
    loaded = [one.module for one in kernels.get_loaded_kernels() if str(package) in one.module.__file__]
    assert [module.__file__ for module in loaded] == [str(package / "build/torch-neuron/__init__.py")]
    with torch.no_grad(), Seen() as seen:
        found = model.decode(made, model.input(), 2)
    assert seen.names.count("nkiconv::causal_conv1d") == 3 * convolutions > 0
    with torch.no_grad():
        assert torch.equal(found, model.decode(installed, model.input(), 2))


# Models by convert and by the package of two functions.


@pytest.mark.cover(4)
@pytest.mark.parametrize("mode", ["torch", "compare"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_models(monkeypatch, model, mode):
    """fp32 sums in another order; `compare` raises where a kernel is outside its own bound too."""
    made, convolutions = model.with_nkiconv()
    share = nkiconv_torch.convert(made, causal_conv1d=False, functional=False).share(**{model.argument: model.input()})
    assert (convolutions > 0, share.fraction) == (True, 1)
    expected = compare_models.results(model, model.build())
    monkeypatch.setenv("NKICONV_CPU", mode)
    found = compare_models.results(model, made)
    for field in dataclasses.fields(found):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert (one is None) == (other is None) == (field.name == "steps" and model.cache is None)
        if one is not None:
            assert_within_share([one], [other], FLOAT32_SUMS)


@pytest.mark.cover(2)
@pytest.mark.parametrize("name", DECODERS)
def test_convert_reaches_what_decoders_call_as_functions(name):
    """The file is imported long before; its layers never call the convolutions that they have."""
    model = MODELS[name]
    made, x = model.build(), model.input()
    with torch.no_grad():
        expected, steps = model.run(made, x), model.decode(made, x, 2)
    assert nkiconv_torch.convert(made, causal_conv1d=False, functional=False).share(**{model.argument: x}).fraction == 0
    report = nkiconv_torch.convert(made)
    with report.installation, torch.no_grad():
        assert len(report.by_function) == len(report.entries) > 0
        assert report.share(**{model.argument: x}).fraction == 1
        assert_within_share([model.run(report.model, x)], [expected], FLOAT32_SUMS)
        assert_within_share([model.decode(report.model, x, 2)], [steps], FLOAT32_SUMS)
    assert torch.equal(model.run(made, x), expected)


def test_the_table_names_kernels_that_disagree(monkeypatch, capsys):
    """The bound is what decides: with none, every kernel but an exact one is off."""
    monkeypatch.setattr(
        "nkiconv.pytorch.computers.simulated.epilogue_bound",
        lambda terms, magnitude, *_: np.full(magnitude.shape, 1e-30),
    )
    with pytest.raises(SystemExit) as stop:
        compare_models.main(["vit"])
    assert stop.value.code == 1
    assert "the kernel and torch differ by" in capsys.readouterr().out
