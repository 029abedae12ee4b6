"""Times NEFFs in an environment that has nrtpy, and not nkiconv: requests and answers are lines of JSON.

{"neff": path, "runs": n} is answered by {"seconds": [n times]}, {"forget": true} drops the models, {} says the version.
Other lines on stdout, as the runtime's, have no mark.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from math import prod
from typing import Any

#: Begins an answer.
MARK = "nkiconv-answer "


def seconds(model: Any, inputs: Any, runs: int) -> list[float]:
    """Of each execution on the NeuronCore."""
    return [ms / 1e3 for ms in model.benchmark(inputs, warmup_iter=1, benchmark_iter=runs, mode="device").durations_ms]


def loaded(path: str) -> tuple[Any, Any]:
    """A model, and zeros for its inputs, of integers as wide as its elements."""
    import numpy as np
    from nrtpy import NrtpyModel, NrtpyTensor

    model = NrtpyModel.load_from_neff(path)
    inputs = {}
    for name, known in model.input_tensors_info.items():
        array = np.zeros(tuple(known.shape), f"u{known.size // prod(known.shape)}")
        inputs[name] = NrtpyTensor.from_numpy(array, name=name)
    return model, inputs


def answer(asked: dict[str, Any], models: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    """The answer to one request; `models` keeps loaded models."""
    if "neff" in asked:
        if asked["neff"] not in models:
            models[asked["neff"]] = loaded(asked["neff"])
        return {"seconds": seconds(*models[asked["neff"]], asked["runs"])}
    models.clear()
    return {"version": metadata.version("nrtpy")}


def main() -> None:
    """Answer each line of stdin."""
    models: dict[str, tuple[Any, Any]] = {}
    for line in sys.stdin:
        try:
            found = answer(json.loads(line), models)
        except Exception as error:  # the calibration says which probe failed, and goes on
            found = {"error": f"{type(error).__name__}: {error}"}
        print(MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
