"""`kernels` loads the package that `make hf-kernel` lays out, and models run by its layers, without any network."""

import importlib
import json
import socket
import sys

import pytest
import torch
from operators_seen import Seen
from torch import nn
from torch.nn.utils import parametrizations
from torch_exact import same
from transformers_models import MODELS

import nkiconv.pytorch
from nkiconv.errors import UnsupportedError
from nkiconv.pytorch import hub_package

if sys.version_info < (3, 11):  # elsewhere the extra `dev` has both, and a missing one is a failure
    pytest.skip("transformers needs Python 3.11", allow_module_level=True)

import kernels

FUNCTIONS = ("causal_conv1d_fn", "causal_conv1d_update")
MODULES = {"Conv1d": nn.Conv1d, "Conv2d": nn.Conv2d}
DECODERS = [name for name in MODELS if MODELS[name].cache]
TRAINED = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE


def of_nkiconv(seen):
    return len([name for name in seen.names if name.startswith("nkiconv::")])


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


def test_what_is_in_a_package(package):
    variants = [f"build/torch-{backend}/{name}" for backend in ("cpu", "neuron") for name in hub_package._FILES]
    metadata = [f"build/torch-{backend}/metadata.json" for backend in ("cpu", "neuron")]
    assert sorted(files(package)) == sorted(["README.md", *variants, *metadata])
    card = (package / "README.md").read_text()
    assert all(f"`{name}`" in card for name in (*FUNCTIONS, *MODULES))


@pytest.mark.usefixtures("replaced")
def test_examples_of_the_card(package, monkeypatch):
    """The second runs, on cpu; the first wants a model and a device, and `test_kernel_config` does the same."""
    monkeypatch.setattr(nn.Conv2d, "kernel_condition", None, raising=False)
    first, second = (part.split("```")[0] for part in (package / "README.md").read_text().split("```python\n")[1:])
    compile(first, "README.md", "exec")
    model = nn.Sequential(nn.Conv2d(4, 6, 3))
    names = {"model": model}
    exec(second.replace("/path/to/this/folder", str(package)).replace('"neuron"', '"cpu"'), names)
    with Seen() as seen:
        model(small((2, 4, 7, 8), 0))
    assert of_nkiconv(seen) == 1


@pytest.mark.parametrize(("backend", "needs"), [("neuron", ["nki"]), ("cpu", [])])
def test_metadata_as_kernels_reads_it(package, backend, needs):
    found = kernels.Metadata.read_from_file(package / "build" / f"torch-{backend}" / "metadata.json")
    assert str(found.backend.backend_type).lower() == backend
    assert (found.name.python_name, found.version, found.python_depends) == ("nkiconv", 1, needs)
    assert (found.license, str(found.kernels_minver)) == ("Apache-2.0", "0.17.2")
    assert found.id.isidentifier()
    assert backend in found.id


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


def test_functions_are_those_of_the_nkiconv_that_is_installed(package):
    loaded = kernels.get_local_kernel(package)
    assert loaded.__name__ == json.loads((package / "build/torch-cpu/metadata.json").read_text())["id"]
    for name in loaded.__all__:
        assert name == "layers" or getattr(loaded, name) is getattr(nkiconv.pytorch, name)
    assert {*FUNCTIONS, "conv1d", "conv2d"} < set(loaded.__all__)


def test_as_a_kernel_of_the_hub(package, monkeypatch):
    """By the name it would have there, and the version in its metadata; LOCAL_KERNELS says where it is instead."""
    monkeypatch.setenv("LOCAL_KERNELS", f"someone/nkiconv={package}")
    loaded = kernels.get_kernel("someone/nkiconv", version=hub_package.VERSION)
    assert loaded.__file__ == str(package / "build/torch-cpu/__init__.py")


def test_without_nkiconv(package, monkeypatch):
    monkeypatch.setitem(sys.modules, "nkiconv.pytorch", None)
    with pytest.raises(ImportError, match=r"this package calls nkiconv, which cannot be imported \(.*\); install it"):
        kernels.get_local_kernel(package)


@pytest.mark.usefixtures("neuron")
def test_neuron_takes_its_variant(package):
    assert kernels.get_local_kernel(package).__file__ == str(package / "build/torch-neuron/__init__.py")


#: A module of torch and the shape of its input.
CALLS = [
    (lambda: nn.Conv1d(4, 6, 3), (2, 4, 9)),
    (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), (2, 4, 9)),
    (lambda: nn.Conv1d(4, 4, 4, padding="same", groups=4), (4, 9)),
    (lambda: nn.Conv1d(4, 4, 3, padding=2, padding_mode="reflect"), (2, 4, 9)),
    (lambda: parametrizations.weight_norm(nn.Conv1d(4, 6, 3)), (2, 4, 9)),
    (lambda: nn.Conv2d(4, 6, (3, 2)), (2, 4, 7, 8)),
    (lambda: nn.Conv2d(4, 6, 3, stride=(2, 1), padding=(1, 2), dilation=2, groups=2), (2, 4, 7, 8)),
    (lambda: nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular", groups=4), (4, 7, 8)),
    (lambda: nn.Conv2d(4, 4, 3, padding=(1, 2), stride=2, padding_mode="replicate"), (2, 4, 7, 8)),
]


def small(shape, seed):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


@torch.no_grad()
def fill(module):
    """Small integers for parameters; with weight norm for lengths of filters, which have one number that is not 0."""
    for seed, parameter in enumerate(module.parameters()):
        parameter.copy_(small(parameter.shape, seed))
    if hasattr(module, "parametrizations"):
        module.parametrizations.weight.original1.zero_()[:, 0, 0] = 2


@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize(("make", "shape"), CALLS)
def test_modules(package, make, shape):
    module = make()
    fill(module)
    x = small(shape, 9).requires_grad_()
    expected = module(x)
    g = small(expected.shape, 10)
    derivatives = torch.autograd.grad(expected, (x, *module.parameters()), g)
    by_layers(package, module)
    with Seen() as seen:
        found = module(x)
    assert of_nkiconv(seen) == 1
    assert torch.equal(found, expected)
    assert same(torch.autograd.grad(found, (x, *module.parameters()), g), derivatives)


class Own(nn.Conv2d):
    def forward(self, input):
        return super().forward(input) + 1


@pytest.mark.usefixtures("replaced")
def test_a_forward_of_its_own_is_not_lost(package, monkeypatch):
    x = small((2, 4, 7, 8), 0)
    module = by_layers(package, Own(4, 6, 3))
    with pytest.raises(UnsupportedError, match=r"Own: has its own forward, .*; keep it out with the condition="):
        module(x)
    condition = staticmethod(lambda module: type(module).forward is nn.Conv2d.forward)
    monkeypatch.setattr(nn.Conv2d, "kernel_condition", condition, raising=False)
    module = by_layers(package, Own(4, 6, 3))
    assert torch.equal(module(x), nn.Conv2d.forward(module, x) + 1)


@pytest.mark.cover(3)
@pytest.mark.usefixtures("replaced")
@pytest.mark.parametrize("name", [name for name in MODELS if name not in DECODERS])
def test_models_of_transformers(package, name):
    """By layers they give what they give converted, bit for bit: `test_transformers` holds that against torch's."""
    model = MODELS[name]
    converted, convolutions = model.with_nkiconv()
    made = by_layers(package, model.build())
    with Seen() as seen:
        found = model.run(made, model.input())
    assert of_nkiconv(seen) == convolutions > 0
    assert torch.equal(found, model.run(converted, model.input()))


def assert_same_decoding(model, made, installed, convolutions):
    with torch.no_grad(), Seen() as seen:
        found = model.decode(made, model.input(), 2)
    assert seen.names.count("nkiconv::causal_conv1d") == 3 * convolutions > 0
    with torch.no_grad():
        assert torch.equal(found, model.decode(installed, model.input(), 2))


def test_packed_sequences_reach_the_layer(package):
    """seq_idx comes to it among arguments that are for others."""
    layer = kernels.get_local_kernel(package).layers.causal_conv1d_fn()
    x, w, seq_idx = small((1, 3, 9), 0), small((3, 4), 1), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]])
    found = layer(x, w, None, activation="silu", seq_idx=seq_idx, position_ids=None, cu_seq_lens_q=torch.tensor([0]))
    apart = [layer(piece, w, None, activation="silu") for piece in x.split([3, 4, 2], dim=2)]
    assert torch.equal(found, torch.cat(apart, dim=2))


def test_layers_are_what_kernels_takes(package):
    """Neither constructors nor members of their own but the two flags, and the arguments of what they stand in for."""
    layers = kernels.get_local_kernel(package).layers
    for name in (*FUNCTIONS, *MODULES):
        layer = getattr(layers, name)
        assert layer.__init__ is nn.Module.__init__
        assert {member for member in vars(layer) if not member.startswith("__")} == {"forward", "can_torch_compile"}


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
    assert_same_decoding(model, made, installed, convolutions)
