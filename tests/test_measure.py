"""Measuring, with a fake device: slopes, order, noise, the check before them, rows that fail, and the file of rows."""

import csv
import dataclasses

import numpy as np
import pytest
from fake_device import CALL_US, FakeDevice, off_by_one

from nkiconv import cases
from nkiconv.errors import FileFormatError
from nkiconv.tools.measure import interleave, modelled, one_case, rows
from nkiconv.tools.measure.interleave import AGAIN, COPY_FLOOR, LAUNCH_FLOOR, THIS, Variant
from nkiconv.tools.suites import profiles
from nkiconv.tools.verify import launched

pytestmark = pytest.mark.simulator_only

CASE = "nkl_pad_n1_c16_w512_s7"  # 16 channels, 24 instructions
ORDER = (THIS, AGAIN, COPY_FLOOR, LAUNCH_FLOOR)


def ignore(_what, _share):
    """An `Advance` that does nothing."""


def measure(device, name=CASE, *, dtype=None, rounds=4, **options):
    return one_case.measure_case(
        device, cases.get(name), dtype=dtype, lnc=2, algorithm=None, rounds=rounds, advance=ignore, **options
    )


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
NOISE = [(100.0, 102.9, False), (100.0, 103.1, True), (100.0, 96.9, True)]


@pytest.mark.parametrize(("this", "again", "noisy"), NOISE)
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


def test_a_transposed_case():
    """Whose filters have their channels first, and their taps in reverse order."""
    assert measure(FakeDevice(), "odd_up_fp32").status == "pass"


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


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_predictions_have_columns_of_their_own(tmp_path):
    path = tmp_path / "measured.csv"
    path.touch()  # an empty file gets a header
    row = measure(FakeDevice())
    predicted = row.modelled
    assert predicted == modelled.model(CASE, None, 2, None, ignore)
    assert predicted.modelled_us != row.timing.this.p50_us
    rows.append(path, row)
    rows.append(path, dataclasses.replace(row, modelled=None, timing=row.timing))
    both, alone = read(path)
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


def test_no_commit_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert rows.commit() == ""


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
