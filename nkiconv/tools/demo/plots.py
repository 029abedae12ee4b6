"""matplotlib, imported where it is needed and missed by name: its sample data, figures and image files."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import MissingPackageError, UnsupportedError
from ...whole_file import whole_file

#: Colours of the input and the output.
BEFORE, AFTER = "0.65", "tab:blue"


def _matplotlib(module: str) -> Any:
    try:
        return importlib.import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise MissingPackageError.of("the demo's data and pictures", "matplotlib", "plots") from error


def sample_data(name: str) -> Path:
    """Path of a file of matplotlib's sample data. Raises UnsupportedError where matplotlib or the file is missing."""
    cbook = _matplotlib("cbook")
    path = Path(str(cbook.get_sample_data(name, asfileobj=False)))
    if not path.is_file():
        remedy = "run pip install --force-reinstall matplotlib"
        raise UnsupportedError(f"{name}: is missing from matplotlib's sample data; {remedy}")
    return path


def figure(width_inches: float, height_inches: float) -> Any:
    """An empty matplotlib Figure that needs no display."""
    return _matplotlib("figure").Figure(figsize=(width_inches, height_inches), layout="constrained")


def save_figure(drawn: Any, path: Path) -> None:
    """Write a Figure as PNG."""
    with whole_file(path) as part:
        drawn.savefig(part, format="png", dpi=130)


def side_by_side(
    title: str, inches: tuple[float, float], panels: Sequence[tuple[Any, str, dict[str, Any]]], label: str, path: Path
) -> None:
    """Write pictures [H, W, 3], or [H, W] with how to colour them and the label of their scale, under their titles."""
    drawn = figure(*inches)
    axes = drawn.subplots(1, len(panels))
    drawn.suptitle(title, fontsize=14)
    for axis, (values, name, how) in zip(axes, panels, strict=True):
        shown = axis.imshow(values, **how)
        axis.set_title(name, fontsize=11)
        axis.set_xlabel("column (pixels)")
        if how:
            drawn.colorbar(shown, ax=axis, label=f"{label} (black 0, white 1)", shrink=0.8)
    axes[0].set_ylabel("row (pixels)")
    save_figure(drawn, path)


def read_picture(path: Path) -> Any:
    """An image file as a NumPy array, uint8 [H, W, 3]."""
    return _matplotlib("image").imread(path)


def save_picture(values: Any, path: Path) -> None:
    """Write [H, W, 3] values, 0 to 1 (others are clipped), as PNG."""
    _matplotlib("image").imsave(path, values.clip(0.0, 1.0))
