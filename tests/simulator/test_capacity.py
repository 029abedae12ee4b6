"""Live SBUF and PSUM: lifetimes from first to last touch, banks, addresses, and messages that say who holds what; and
simulate(sentinels=True): kernels may read what nobody wrote, and find what AWS's simulator puts there.
"""

import inspect
import warnings

import numpy as np
import pytest
from pairs import run

from nkiconv.simulator import CapacityWarning, NkiError, execute, simulate
from nkiconv.simulator import isa as nisa
from nkiconv.simulator import language as nl

F32 = nl.float32


def tile(columns, buffer=nl.sbuf, **settings):
    return nl.ndarray((128, columns), F32, buffer, **settings)


def touch(*tensors):
    for tensor in tensors:
        nisa.memset(tensor, 1.0)


def touches(order, buffer, *columns):
    """Tiles of so many columns, touched in the order of their letters."""

    def body():
        tiles = [tile(n, buffer) for n in columns]
        touch(*(tiles[ord(letter) - ord("a")] for letter in order))

    return body


def copied():
    a, b = tile(1000), tile(1000)
    touch(a)
    nisa.tensor_copy(b, a)


def viewed():
    a, b = tile(1000), tile(10)
    touch(a[0:4, 0:1], b, a[:, 999])


# why: a body, and its peaks in bytes of SBUF and of PSUM, and in banks
PEAKS = {
    "a tensor lives from its first to its last touch": (touches("aab", nl.sbuf, 1000, 2000, 4000), (8000, 0, 0)),
    "overlapping lifetimes add up": (touches("abacb", nl.sbuf, 1000, 2000, 500), (12_000, 0, 0)),
    "a copy holds source and destination": (copied, (8000, 0, 0)),
    "views keep the whole tile": (viewed, (4040, 0, 0)),
    "dtype and rank count": (lambda: touch(nl.ndarray((2, 3, 5, 7), nl.bfloat16)), (210, 0, 0)),
    "banks of PSUM": (touches("abcabc", nl.psum, 512, 100, 400), (0, 4048, 2)),
}


@pytest.mark.parametrize(("body", "expected"), PEAKS.values(), ids=PEAKS)
def test_peaks(body, expected):
    found = run(body, trace_only=True)
    assert (found.sbuf_peak_bytes, found.psum_peak_bytes, found.psum_peak_banks) == expected


def rotating(buffers):
    """A loop over so many buffers of 40,000 bytes beside weights of 70,000."""
    weights = tile(17_500, name="weights")
    touch(weights)
    tiles = [tile(10_000) for _ in range(buffers)]
    for step in range(2 * buffers):
        touch(tiles[step % buffers])
    touch(weights)


def test_the_message_lists_the_holders():
    run(lambda: rotating(3), trace_only=True)
    with pytest.raises(NkiError) as caught:
        run(lambda: rotating(4), trace_only=True)
    error = caught.value
    assert error.rule == "NKI018"
    assert "SBUF of core 0 needs 230,000 of 212,728 bytes per partition at instruction 4 of 10" in error.detail
    first, second = error.operands.values()
    assert first.startswith("160,000 B = 4 x 40,000 B, [128, 10000] float32 tensor allocated at ")
    assert first.split(" at ")[1].startswith(__file__)
    assert second.startswith("70,000 B = 1 x 70,000 B, [128, 17500] float32 weights allocated at ")
    assert error.location.startswith(f"{__file__}:")
    with pytest.raises(NkiError, match=r"others = 32,.* B = 2 tensors"):
        run(touches("abcdefghijklmn" * 2, nl.sbuf, *range(4014, 4000, -1)), trace_only=True)


@pytest.mark.parametrize(("buffer", "columns", "rule"), [(nl.sbuf, 17_500, "NKI018"), (nl.psum, 512, "NKI019")])
def test_what_overflows_runs_where_that_is_allowed(buffer, columns, rule):
    """Its peaks stay known; the warning stands at the line that was too much; results are as ever."""

    def kernel(count):
        out, copies = nl.ndarray((1, count), F32, nl.shared_hbm), nl.zeros((1, count), F32)
        tiles = [tile(columns, buffer) for _ in range(count)]
        for i, one in enumerate(tiles):
            nisa.memset(one, float(i))
        for i, one in enumerate(tiles):
            nisa.tensor_copy(copies[:, i : i + 1], one[0:1, columns - 1 : columns])
        nisa.dma_copy(out, copies)
        return out

    with pytest.raises(NkiError, match=rule):
        execute(kernel, (9,))
    with pytest.warns(CapacityWarning, match=rf"(?s){rule}: memset: .* core 0 needs .* holder 1 = .* 9 x ") as told:
        found = execute(kernel, (9,), overflow=True)
    lines, first = inspect.getsourcelines(kernel)
    memset = first + next(i for i, line in enumerate(lines) if "memset" in line)
    assert [(one.filename, one.lineno) for one in told] == [(__file__, memset)]
    assert found.outputs.tolist() == [list(range(9))]
    assert found.sbuf_peak_bytes + found.psum_peak_bytes >= 9 * 4 * columns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(kernel, overflow=True)(2)


def placed(interleaved, buffer=nl.sbuf, column=16):
    a, b = tile(8, address=(0, 0)), tile(8, buffer, address=(0, column))
    touch(a, b, *((a, b) if interleaved else ()))


def test_addresses_may_be_reused_after_the_last_touch():
    run(lambda: placed(False))
    run(lambda: placed(True, nl.psum, 0))  # SBUF and PSUM are apart
    with pytest.raises(NkiError, match=r"NKI020.*\(0, 16\) and \(0, 0\) of SBUF overlap"):
        run(lambda: placed(True))
    with pytest.raises(NkiError, match="NKI020"):
        execute(lambda: placed(True), (), overflow=True)


def half(dtype="float32", buffer=nl.sbuf):
    out, tile = nl.ndarray((4, 8), dtype, nl.shared_hbm), nl.ndarray((4, 8), dtype, buffer)
    nisa.memset(tile[:, 0:4], 1)
    nisa.dma_copy(out, tile)
    return out


#: What AWS's simulator has where nobody wrote.
SENTINELS = {"float32": np.nan, "bfloat16": np.nan, "float8_e4m3": np.nan, "int8": 4, "uint16": 4, "int32": 4}


@pytest.mark.parametrize("dtype", SENTINELS)
def test_floats_are_nan_and_integers_four(dtype):
    found = np.asarray(simulate(half, sentinels=True)(dtype), np.float32)
    np.testing.assert_array_equal(found, [[1] * 4 + [SENTINELS[dtype]] * 4] * 4)
    with pytest.raises(NkiError, match=r"NKI016: dma_copy: element \(0, 4\)"):
        simulate(half)(dtype)


def test_results_may_be_unwritten_too():
    def kernel():
        out = nl.ndarray((2, 4), nl.float32, nl.shared_hbm)
        nisa.dma_copy(out[0], nl.ones((1, 4), nl.float32))
        return out

    with pytest.raises(NkiError, match="NKI023"):
        simulate(kernel)()
    np.testing.assert_array_equal(simulate(kernel, sentinels=True)(), [[1] * 4, [np.nan] * 4])


def test_scrap_of_an_instruction_is_a_sentinel_again():
    """Of several results for one element, activation with a sum leaves none that a document tells."""

    def kernel():
        out, scrap = nl.ndarray((4, 1), nl.float32, nl.shared_hbm), nl.zeros((4, 1), nl.float32)
        sums = nl.ndarray((4, 1), nl.float32, nl.sbuf)
        nisa.activation(
            scrap.broadcast(1, 8), nl.copy, nl.ones((4, 8), nl.float32), reduce_op=nl.add, reduce_res=sums,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        nisa.dma_copy(out, scrap)
        return out

    assert np.isnan(simulate(kernel, sentinels=True)()).all()
