"""The guided tour: a recording, a photograph, a clip, a speech model's layer and training, checked and drawn.

Both data sets come with matplotlib, so nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ... import cases
from ...api.epilogue import Epilogue
from ...errors import UnsupportedError
from ...reference import AnyArray
from ...simulator.profiling import Advance, ignore
from ..verify import Report, case_arrays, verify_chunks, verify_conv, verify_depthwise_conv1d
from . import clip, eeg, image, photograph, training
from .curves import Curves

#: The named case of the tour.
CASE = "nkl_fs_asr"


@dataclass(frozen=True)
class Part:
    """The results of one part of the tour."""

    reports: tuple[Report, ...]
    files: tuple[Path, ...]
    curves: tuple[Curves, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all that was checked is right."""
        return all(report.ok for report in self.reports) and all(curves.ok for curves in self.curves)


def run(out: Path, advance: Advance = ignore) -> Part:
    """Do the whole tour; its files go to the directory `out`, which is made if need be and whose files are replaced.

    Raises UnsupportedError: matplotlib is missing, or `out` is not a directory that can be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        parts = [stop(out, advance) for stop in _STOPS]
    except OSError as error:
        raise UnsupportedError(
            f"--out={out}: cannot be written ({error.strerror}); choose a directory that can"
        ) from error
    return Part(
        tuple(report for part in parts for report in part.reports),
        tuple(path for part in parts for path in part.files),
        tuple(curves for part in parts for curves in part.curves),
    )


def _eeg(out: Path, advance: Advance) -> Part:
    x, w = eeg.recording(), eeg.filters()
    problem = eeg.problem(x, w)
    reports, y = verify_depthwise_conv1d(
        "EEG, 4 FIR filters", x, w, problem, degrees=(1, 2), keep=True, advance=advance
    )
    assert y is not None
    path = out / "eeg.png"
    advance("drawing the recording", None)
    eeg.draw(x, y, w, path)
    return Part(tuple(reports), (path,))


def _photograph(out: Path, advance: Advance) -> Part:
    picture = photograph.picture()
    reports, results = [], {}
    for effect in photograph.EFFECTS:
        x, w = photograph.arrays(picture, effect)
        name = f"photograph, {effect.name}"
        found, y = verify_depthwise_conv1d(name, x, w, photograph.problem(x, w), keep=True, advance=advance)
        assert y is not None
        reports += found
        results[effect.name] = photograph.as_picture(y, picture.shape)
    advance("drawing the photograph", None)
    return Part(tuple(reports), photograph.draw(picture, results["blur"], results["derivative"], out))


def _image(out: Path, advance: Advance) -> Part:
    picture = photograph.picture()
    blur, edges, first, second = image.layers()
    reports: list[Report] = []

    def run(x: AnyArray, layer: image.Layer) -> AnyArray:
        x, w, problem = image.arrays(x, layer)
        after = Epilogue(bias=layer.bias, activation=layer.activation)
        found, y = verify_conv(layer.name, x, w, problem, after, degrees=(1, 2), advance=advance)
        reports.extend(found)
        return y

    x = image.as_channels(picture)
    blurred, slopes, random = run(x, blur), run(x, edges), run(run(x, first), second)
    advance("drawing the image", None)
    return Part(tuple(reports), (image.draw(picture, blurred, slopes, random, out),))


def _clip(out: Path, advance: Advance) -> Part:
    x, blur, between = clip.clip(photograph.picture()), clip.blur(), clip.between()
    frames, problem = clip.with_still(x), clip.blur_problem(clip.with_still(x), blur)
    whole, blurred = verify_conv(clip.BLURRED, frames, blur, problem, degrees=(1, 2), advance=advance)
    chunks = verify_chunks(clip.BLURRED, frames, blur, problem, blurred, clip.CHUNKS, advance=advance)
    of_both = clip.between_problem(x, between)
    doubled, interpolated = verify_conv(clip.INTERPOLATED, x, between, of_both, degrees=(1, 2), advance=advance)
    advance("drawing the clip", None)
    return Part((*whole, *chunks, *doubled), (clip.draw(x, blurred, interpolated, out),))


def _named_case(_out: Path, advance: Advance) -> Part:
    case = cases.get(CASE)
    x, w = case_arrays(case, seed=0)
    reports, _ = verify_depthwise_conv1d(f"speech, {case.name}", x, w, case.problem, degrees=(1, 2), advance=advance)
    return Part(tuple(reports), ())


def _training(out: Path, advance: Advance) -> Part:
    curves, path = training.run(photograph.picture(), out, advance)
    return Part((), (path,), (curves,))


_STOPS: tuple[Callable[[Path, Advance], Part], ...] = (_eeg, _photograph, _image, _clip, _named_case, _training)
