"""Rules of the arguments of a back-to-back causal convolution, of arrays and of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import rules
from .errors import DtypeError, GeometryError, LayoutError, NkiconvError, UnsupportedError, refused

#: Order of the three chunks of x, as `chunks` has it: x2 gates y, x1 gates v.
CHUNKS = "CBx"
#: Arguments that are arrays, and the letters of their axes.
AXES = {"x": "N, C, W", "weights_proj": "C, S", "weights_mixer": "G, S", "skip_bias": "D"}
STATES = ("initial_states[0]", "initial_states[1]")


def interleaved_violation(interleaved: Any) -> str:
    """Chunks of D channels only: a kernel loads a run of channels."""
    if interleaved is not True:
        return rules.flag("interleaved", interleaved)
    return (
        "interleaved=True: x2, x1, v must be chunks of D channels; reorder the rows of the projection that makes x, "
        "and of weights_proj, once: w.reshape(D, 3, -1).swapaxes(0, 1).reshape(3 * D, -1)"
    )


def states_violation(initial_states: Any) -> str:
    """None, or two arrays."""
    if initial_states is None or (isinstance(initial_states, (tuple, list)) and len(initial_states) == 2):
        return ""
    return "initial_states: must be a pair, of x and of x1 * v; pass what return_final_states gives, or None"


def violations(given: dict[str, Any]) -> Iterator[NkiconvError]:
    """Errors of arrays that are arrays, by name, None left out: dtypes are x's, shapes go together."""
    x, proj, mixer = (given[name] for name in ("x", "weights_proj", "weights_mixer"))
    letters = AXES | dict.fromkeys(STATES, "N, C, S - 1")
    wrong = [*refused(LayoutError, *(rules.rank(name, one.shape, letters[name]) for name, one in given.items()))]
    dtypes = (rules.same(name, "dtype", one.dtype, "x", x.dtype) for name, one in given.items())
    wrong += refused(DtypeError, *dtypes)
    yield from wrong
    if wrong:
        return
    if x.shape[1] % 3:
        yield GeometryError(f"x.shape={tuple(x.shape)}: has {x.shape[1]} channels, must have 3 * D; pass x2, x1 and v")
        return
    channels = x.shape[1] // 3
    if mixer.shape[0] == 0 or channels % mixer.shape[0]:
        yield GeometryError(
            f"weights_mixer.shape={tuple(mixer.shape)}: has {mixer.shape[0]} filters, must have a divisor of "
            f"D={channels}; pass one for each channel or group of channels"
        )
    wanted: dict[str, tuple[Sequence[int], str]] = {
        "weights_proj": ((3 * channels, proj.shape[1]), "[3 * D, S]"),
        "skip_bias": ((channels,), "[D]"),
        STATES[0]: ((x.shape[0], 3 * channels, proj.shape[1] - 1), "[N, 3 * D, S - 1] of weights_proj"),
        STATES[1]: ((x.shape[0], channels, mixer.shape[1] - 1), "[N, D, S - 1] of weights_mixer"),
    }
    for name in wanted.keys() & given.keys():
        size, words = wanted[name]
        yield from refused(GeometryError, rules.shape(name, given[name].shape, size, words))
    for name, w in (("weights_proj", proj), ("weights_mixer", mixer)):
        if w.shape[1] < 2:
            yield UnsupportedError(
                f"{name}.shape={tuple(w.shape)}: must have 2 taps or more; put zeros in front of one"
            )
