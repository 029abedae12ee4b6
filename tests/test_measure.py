"""Measuring, with a fake device: slopes, order, noise, the check before them, rows that fail, and the file of rows; and
the real device's code with everything of AWS's replaced.

torch on the CPU stands for the device; neither backend of torch-neuronx has run here.
"""

import csv
import dataclasses
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_device import CALL_US, FakeDevice, off_by_one

from nkiconv import cases
from nkiconv.errors import FileFormatError, UnsupportedError
from nkiconv.problem import DTYPES
from nkiconv.simulator.profiling.settings import ignore
from nkiconv.tools import doctor
from nkiconv.tools.measure import interleave, modelled, one_case, rows, torch_neuron
from nkiconv.tools.measure.interleave import AGAIN, COPY_FLOOR, LAUNCH_FLOOR, THIS, Variant
from nkiconv.tools.suites import profiles
from nkiconv.tools.suites.profile_table import sources_hash
from nkiconv.tools.verify import launched

pytestmark = pytest.mark.simulator_only

CASE = "nkl_pad_n1_c16_w512_s7"  # 16 channels, 24 instructions
ORDER = (THIS, AGAIN, COPY_FLOOR, LAUNCH_FLOOR)


def measure(device, rounds=4, **options):
    asked = {"dtype": None, "lnc": 2, "algorithm": None, "rounds": rounds, "advance": ignore}
    return one_case.measure_case(device, cases.get(CASE), **asked, **options)


def test_every_round_times_every_variant_in_rotated_order():
    order = []

    class Recorder(FakeDevice):
        def seconds(self, launched, calls, kwargs):
            order.append((launched, len(calls), kwargs))
            return len(calls) * 1e-6

    variants = [Variant(name, name, [()] * 5, {"of": name}) for name in "abcd"]
    slopes = interleave.interleave(Recorder(), variants, 5, (2, 5), ignore)
    assert "".join(name for name, length, _ in order if length == 2) == "abcdbcdacdabdabcabcd"
    assert [length for _, length, _ in order] == [2, 5] * 20
    assert all(kwargs == {"of": name} for name, _, kwargs in order)
    assert slopes == {name: pytest.approx([1.0] * 5) for name in "abcd"}


def timing_of(this, again, copy=1.0, launch=1.0):
    """A `Timing` whose medians are these."""
    return interleave.timing(dict(zip(ORDER, ([us] for us in (this, again, copy, launch)), strict=True)), (4, 20))


# median of this, of this again, whether that is noise
@pytest.mark.parametrize(("this", "again", "noisy"), [(100.0, 102.9, False), (100.0, 103.1, True), (100.0, 96.9, True)])
def test_a_difference_of_equal_things_is_noise(this, again, noisy):
    found = timing_of(this, again)
    assert found.noisy is noisy
    assert found.aa_difference == pytest.approx(abs(again - this) / this)


@pytest.mark.parametrize("medians", [(0.0, 1.0), (1.0, -1.0), (1.0, 1.0, 0.0), (1.0, 1.0, 1.0, -2.0)])
def test_a_median_that_no_time_can_have(medians):
    with pytest.raises(ArithmeticError, match=r"median slope .* not above zero; use more rounds"):
        timing_of(*medians)


def test_a_case_on_a_quiet_device():
    """Without noise the slopes are the law's, whatever a launch costs once."""
    row = measure(FakeDevice(), rounds=6)
    assert (row.status, row.reason, row.channels_checked) == ("pass", "", 16)
    found = row.timing
    law = [CALL_US["depthwise_conv1d_implicit_gemm"]] * 2 + [CALL_US["copy_floor"], CALL_US["launch_floor"]]
    for one, us in zip((found.this, found.again, found.copy_floor, found.launch_floor), law, strict=True):
        assert (one.p10_us, one.p50_us, one.p90_us) == pytest.approx((us, us, us))
    assert (found.rounds, found.chain_calls, found.noisy) == (6, (4, 20), False)
    assert found.x_copy_floor == pytest.approx(4.0)
    assert 0 < row.comparison.worst_ratio <= 1


def test_chains_are_of_the_four_kernels_and_no_two_calls_are_alike():
    device = FakeDevice()
    measure(device, rounds=4, chain_calls=(2, 3))
    first_round = [(name, len(calls)) for name, calls in device.timed[:8]]
    kernel = "depthwise_conv1d_implicit_gemm"
    assert first_round == [(name, n) for name in (kernel, kernel, "copy_floor", "launch_floor") for n in (2, 3)]
    assert len(device.timed) == 4 * 8
    for (_, short), (_, long) in zip(device.timed[::2], device.timed[1::2], strict=True):
        assert all(a is b for one, other in zip(short, long, strict=False) for a, b in zip(one, other, strict=True))
        images = [call[0] for call in long]
        for i, image in enumerate(images):
            assert not any(np.shares_memory(image, other) or np.array_equal(image, other) for other in images[:i])


def test_big_cases_are_checked_on_a_sample(monkeypatch):
    monkeypatch.setattr(launched, "SAMPLE_ABOVE_INSTRUCTIONS", 10)
    monkeypatch.setattr(launched, "SAMPLE_CHANNELS", 4)  # of 16: 0, 5, 10, 15
    seen = measure(FakeDevice(spoil=off_by_one(10, 2)))
    assert (seen.status, seen.channels_checked) == ("failed", 4)
    assert "worst at n=0 k=10 p=0 q=2" in seen.reason
    passed = measure(FakeDevice(spoil=off_by_one(9, 2)))
    assert (passed.status, passed.channels_checked) == ("pass", 4)


def test_an_interrupt_is_no_row():
    def interrupt(_output):
        raise KeyboardInterrupt

    device = FakeDevice(spoil=interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure(device)
    assert device.num_forgotten == 1


def test_predictions_have_columns_of_their_own(tmp_path, monkeypatch):
    path = tmp_path / "measured.csv"
    path.touch()  # an empty file gets a header
    row = measure(FakeDevice())
    predicted = row.modelled
    assert predicted == modelled.model(CASE, None, 2, None, ignore)
    assert predicted.modelled_us != row.timing.this.p50_us
    rows.append(path, row)
    rows.append(path, dataclasses.replace(row, modelled=None, timing=row.timing))
    both, alone = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    for name, value in (
        ("modelled_us", predicted.modelled_us),
        ("modelled_phase0_us", predicted.phase0_us),
        ("modelled_worst_us", predicted.worst_us),
        ("modelled_copy_floor_us", predicted.copy_floor_us),
        ("modelled_launch_floor_us", predicted.launch_floor_us),
        ("roofline_fraction", predicted.roofline_us / 12.0),
    ):
        assert float(both[name]) == pytest.approx(value, rel=1e-5)
        assert alone[name] == ""
    assert alone["p50_us"] == both["p50_us"] == "12"
    monkeypatch.setenv("PATH", "")  # no git
    assert rows.commit() == ""


# why, what is in the file, pattern
BAD_FILES = [
    ("other columns", "case,us\nshort,1\n", r"has other columns than this version appends"),
    ("half a row", ",".join(rows.COLUMNS) + "\nshort,3", r"ends in half a row"),
]


@pytest.mark.parametrize(("content", "pattern"), [row[1:] for row in BAD_FILES], ids=[row[0] for row in BAD_FILES])
def test_other_files_are_left_alone(tmp_path, content, pattern):
    path = tmp_path / "measured.csv"
    path.write_text(content)
    with pytest.raises(FileFormatError, match=pattern):
        rows.append(path, None)
    assert path.read_text() == content


def test_aws_s_nki_is_no_reason_to_refuse_a_case(monkeypatch):
    monkeypatch.setattr(profiles, "CHOICE", dataclasses.replace(profiles.CHOICE, provider="aws"))
    case = cases.get(CASE)
    assert [str(error)[:11] for error in profiles.refusals(case, None, 2)] == ["NKICONV_NKI"]
    assert profiles.case_violations(case, None, 2) == []
    assert [str(error)[:5] for error in profiles.case_violations(case, None, 3)] == ["lnc=3"]


def test_where_aws_s_nki_runs_the_model_has_a_process_of_its_own(monkeypatch):
    here = modelled.model(CASE, "fp32", 1, "vector", ignore)
    monkeypatch.setattr(modelled, "CHOICE", dataclasses.replace(modelled.CHOICE, provider="aws"))
    monkeypatch.setattr(modelled, "profile_case", None)
    monkeypatch.setenv("NKICONV_NKI", "aws")
    assert modelled.model(CASE, "fp32", 1, "vector", ignore) == here


class Kernel:
    """A launched kernel that works on torch's tensors and counts its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, x, w, factor):
        self.calls.append((x, w))
        return x * w * factor


@pytest.fixture
def environment(monkeypatch):
    """Changes of the environment, and what `_lacking` says, end with the test."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(torch_neuron, "_lacking", lambda lnc: iter(()))
    monkeypatch.setitem(sys.modules, "torch_neuronx", SimpleNamespace(nki_op=nki_op))


@pytest.fixture
def synced(environment, monkeypatch):
    """torch_xla on the CPU; the list fills with the name of each of its functions that is called."""
    called = []
    monkeypatch.setitem(
        sys.modules, "torch_xla", SimpleNamespace(device=lambda: "cpu", sync=lambda: called.append("sync"))
    )
    model = SimpleNamespace(wait_device_ops=lambda: called.append("wait"))
    monkeypatch.setitem(sys.modules, "torch_xla.core.xla_model", model)
    return called


@pytest.fixture
def native(environment, monkeypatch):
    """The native backend on the CPU, with torch.compile's own "eager"; the list fills with each synchronize."""
    called = []
    monkeypatch.setattr(torch, "neuron", SimpleNamespace(synchronize=lambda: called.append("wait")), raising=False)
    monkeypatch.setattr(torch_neuron._Native, "device", "cpu")
    monkeypatch.setattr(torch_neuron._Native, "compiler", "eager")
    return called


def nki_op(name, mutates_args):
    """As torch_neuronx's, with torch's own custom operators."""

    def register(function):
        operator = torch.library.custom_op(name, function, mutates_args=mutates_args)
        operator.register_fake(lambda x, w: torch.empty_like(x))
        return operator

    return register


def arrays(dtype, count=3):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((4, 6)).astype(DTYPES[dtype])
    return [(rng.standard_normal((4, 6)).astype(DTYPES[dtype]), w) for _ in range(count)]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_arrays_come_back_as_they_went(dtype):
    array = np.array([[0.0, -0.0, 1.5], [np.inf, np.nan, -3e-3]]).astype(DTYPES[dtype])
    for one in (array, array.T, array[:, ::2], array[:, ::-1], array[np.newaxis]):
        tensor = torch_neuron.from_numpy(torch, one)
        assert (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) == (one.shape, str(one.dtype))
        back = torch_neuron.to_numpy(torch, tensor)
        assert (back.dtype, back.shape, back.tobytes()) == (one.dtype, one.shape, one.tobytes())
    assert torch_neuron.from_numpy(torch, array)[0, 2] == 1.5


@pytest.mark.usefixtures("synced")
def test_a_run_gives_the_kernel_s_outputs():
    device = torch_neuron.TorchNeuron(2)
    x, w = arrays("bf16")[0]
    y = device.run(Kernel(), (x, w), {"factor": 2})
    assert y.dtype == DTYPES["bf16"]
    np.testing.assert_array_equal(y, x * w * x.dtype.type(2))


def test_the_lazy_backend_records_a_chain_and_times_its_sync(synced):
    device, kernel = torch_neuron.TorchNeuron(2), Kernel()
    recorded = []
    calls, seconds = arrays("fp32"), []

    def launched(x, w, factor):
        recorded.append(len(synced))
        return kernel(x, w, factor)

    for again in (calls, list(calls)):
        seconds.append(device.seconds(launched, again, {"factor": 3}))
    assert min(seconds) > 0
    runs = torch_neuron.WARM_UPS + 2
    assert synced == ["sync", "wait", "sync", "wait"] * runs  # before the chain, and after it
    assert recorded == [4 * i + 2 for i in range(runs) for _ in calls]  # all calls lie between the two
    assert len({id(x) for x, _ in kernel.calls}) == 3  # uploaded once, and not merged
    assert len({id(w) for _, w in kernel.calls}) == 1
    device.seconds(launched, calls[:2], {"factor": 3})
    assert len(kernel.calls) == runs * 3 + (torch_neuron.WARM_UPS + 1) * 2  # another chain is another graph
    device.seconds(launched, calls[:2], {"factor": 4})
    assert len(kernel.calls) == runs * 3 + (torch_neuron.WARM_UPS + 1) * 2 * 2  # and so are other arguments
    device.forget()
    device.seconds(launched, calls, {"factor": 3})
    assert len({id(x) for x, _ in kernel.calls}) == 6


def test_the_clock_stops_when_the_device_has_finished(synced, monkeypatch):
    """Time that passes while calls are recorded does not count; time that passes in the wait does."""
    now = [0.0]
    monkeypatch.setattr(torch_neuron.time, "perf_counter", lambda: now[0])

    def wait():
        now[0] += 5.0

    sys.modules["torch_xla.core.xla_model"].wait_device_ops = wait

    def launched(x, w):
        now[0] += 100.0
        return x * w

    assert torch_neuron.TorchNeuron(2).seconds(launched, arrays("fp32"), {}) == 5.0


def test_the_native_backend_compiles_a_chain(native):
    device, kernel = torch_neuron.TorchNeuron(2), Kernel()
    calls = arrays("bf16")
    assert device.seconds(kernel, calls, {"factor": 2}) > 0
    runs = torch_neuron.WARM_UPS + 1
    assert native == ["wait", "wait"] * runs
    assert len(kernel.calls) == 3 * runs
    got = [torch_neuron.to_numpy(torch, x).tobytes() for x, _ in kernel.calls[-3:]]
    assert got == [x.tobytes() for x, _ in calls]
    device.seconds(kernel, calls, {"factor": 2})
    assert len(kernel.calls) == 3 * (runs + 1)


@pytest.mark.usefixtures("native")
@torch._dynamo.config.patch(recompile_limit=2)
def test_the_native_backend_takes_more_chains_than_torch_compiles_of_one_function():
    device, calls = torch_neuron.TorchNeuron(2), arrays("fp32", 2)
    for _ in range(3):
        device.forget()
        for count in (1, 2):
            assert device.seconds(Kernel(), calls[:count], {"factor": 1}) > 0


@pytest.mark.usefixtures("synced")
def test_the_environment_is_completed_before_anything_is_imported(monkeypatch):
    monkeypatch.setitem(os.environ, "NEURON_COMPILE_CACHE_URL", "mine")
    device = torch_neuron.TorchNeuron(1)
    assert os.environ["NEURON_LOGICAL_NC_CONFIG"] == "1"
    assert os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] == "trn2"
    assert os.environ["NEURON_COMPILE_CACHE_URL"] == "mine"
    assert os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"].endswith(sources_hash())
    assert device.name in device.description
    assert f"torch_xla, torch {torch.__version__}" in device.description


@pytest.mark.usefixtures("environment")
def test_a_package_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_neuronx", None)
    with pytest.raises(UnsupportedError, match=r"^torch_neuronx: cannot be imported \(.*\); reinstall it"):
        torch_neuron.TorchNeuron(2)


# why, what differs from a whole machine, patterns
LACKING = [
    ("nothing", {}, []),
    ("no device", {"device": False}, ["/dev/neuron0: there is no Neuron device here; use a trn2 instance"]),
    ("no torch-neuronx", {"torch-neuronx": "missing"}, ["torch-neuronx: is missing; install it from AWS's own"]),
    ("placeholder", {"nki": doctor.PLACEHOLDER}, ["nki: is PyPI's placeholder of that name, not AWS's package;"]),
    ("no torch", {"torch": "missing"}, ["torch: is missing; install the one that torch-neuronx wants"]),
    ("simulator", {"provider": "simulator"}, ["nki: AWS's must run the kernels, and because I say so; unset"]),
    ("trn1", {"product": "trn1.2xlarge"}, ["trn1.2xlarge: is not a trn2 instance"]),
    ("other degree", {"NEURON_LOGICAL_NC_CONFIG": "1"},
     ["NEURON_LOGICAL_NC_CONFIG is 1; --lnc in NEURON_CC_FLAGS is unset; the launch's LNC degree is 2: these"]),
    ("two", {"device": False, "nki": "missing"}, ["nki: is missing", "/dev/neuron0: there is no"]),
]  # fmt: skip


@pytest.mark.cover(3, keep=["nothing", "simulator", "trn1"])
@pytest.mark.parametrize(("changes", "expected"), [row[1:] for row in LACKING], ids=[row[0] for row in LACKING])
def test_what_a_machine_lacks_has_a_name(monkeypatch, tmp_path, changes, expected):
    """Of one that has everything but for the changes."""
    packages = tuple(
        doctor.Package(name, "a test", "1", changes.get(name, doctor.INSTALLED))
        for name in ("torch", "torch-neuronx", "nki", "neuronx-cc")
    )
    found = dataclasses.replace(
        doctor.diagnose(), packages=packages, provider=changes.get("provider", "aws"), reason="because I say so",
        device=changes.get("device", True),
    )  # fmt: skip
    monkeypatch.setattr(torch_neuron, "diagnose", lambda: found)
    product = tmp_path / "product_name"
    product.write_text(changes.get("product", "trn2.48xlarge") + "\n")
    monkeypatch.setattr(torch_neuron, "PRODUCT", product)
    for name in [name for name in changes if name.startswith("NEURON_")]:
        monkeypatch.setenv(name, changes[name])
    lacking = [str(error) for error in torch_neuron._lacking(2)]
    assert len(lacking) == len(expected)
    assert all(error.startswith(start) for error, start in zip(lacking, expected, strict=True)), lacking
