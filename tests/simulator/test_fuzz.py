"""Random programs: legal ones give what NumPy gives, bit by bit; illegal edits are refused by the right rule."""

import fuzz_numpy
import numpy as np
import pytest
from fuzz_edits import EDITS, illegal
from fuzz_programs import WRITERS, generate, simulate

from nkiconv.simulator import NkiError

#: Programs of the quick run and of the slow one.
FEW, MANY = range(60), range(10_000, 30_000)
SLOW = pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(1800)], id="many")


def differences(seed):
    program, expected = generate(seed)
    found = simulate(program)
    return [
        op.name
        for op, wanted, got in zip(program.ops, expected, found, strict=True)
        if not np.array_equal(np.asarray(got).astype(np.float64), wanted.astype(np.float64))
    ]


@pytest.mark.parametrize("seeds", [pytest.param(FEW, id="few"), SLOW])
def test_legal_programs_compute_what_numpy_computes(seeds):
    assert [(seed, found) for seed in seeds if (found := differences(seed))] == []


@pytest.mark.parametrize("seeds", [pytest.param(FEW, id="few"), SLOW])
def test_illegal_edits_are_refused_by_their_rules(seeds):
    """Anything but an NkiError is a crash, and no error at all a rule that nobody keeps."""
    edited = 0
    for seed in seeds:
        found = illegal(generate(seed)[0], seed)
        if found is None:
            continue
        name, program, rules = found
        edited += 1
        with pytest.raises(NkiError) as caught:
            simulate(program)
        assert caught.value.rule in rules, (seed, name, str(caught.value))
    assert edited > len(seeds) * 0.8


@pytest.mark.slow
def test_programs_have_every_instruction_and_every_edit():
    seen = {op.name for seed in range(150) for op in generate(seed)[0].ops}
    assert len(seen) == len(WRITERS)
    left = {edit.__name__ for edit in EDITS}
    for seed in range(3_000):
        found = illegal(generate(seed)[0], seed) if left else None
        left -= set() if found is None else {found[0]}
    assert left == set()


@pytest.mark.parametrize(("table", "name", "wrong"), [
    ("BINARY", "maximum", np.fmin),
    ("BINARY", "subtract", lambda one, other: other - one),
    ("BITWISE", "bitwise_xor", np.bitwise_or),
    ("FUNCTIONS", "relu", np.abs),
])  # fmt: skip
def test_a_fault_is_seen(table, name, wrong, monkeypatch):
    monkeypatch.setitem(getattr(fuzz_numpy, table), name, wrong)
    assert any(differences(seed) for seed in FEW)
