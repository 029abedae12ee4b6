"""nkiconv as a package of Hugging Face's `kernels`: `make hf-kernel`, or python -m nkiconv.pytorch.hub_package FOLDER.

    FOLDER/README.md                     purpose and use
    FOLDER/build/torch-neuron/           for a machine whose torch has Neuron: metadata.json, __init__.py, layers.py
    FOLDER/build/torch-cpu/              the same for a host, where NKICONV_CPU selects the backend

A package calls the nkiconv that is installed instead of carrying it. torch registers an operator once in a process, so
a copy next to an installed nkiconv, or two copies, could not both be loaded; and a copy would need NumPy and ml_dtypes
all the same, which a package cannot ask for: `kernels` knows few dependencies by name, nki among them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

from .. import __version__
from ..errors import UnsupportedError

NAME = "nkiconv"
#: Of the layers' names and arguments, as `kernels` counts: another one when they no longer fit their callers.
VERSION = 1
#: Of `kernels`: the first version that this has been run with.
KERNELS = "0.17.2"
#: Dependencies of each backend besides torch and nkiconv.
BACKENDS: dict[str, list[str]] = {"neuron": ["nki"], "cpu": []}
_FILES = ("__init__.py", "layers.py")
_SOURCE = Path(__file__).parent / "hub"

_CARD = f"""---
library_name: kernels
license: apache-2.0
---

# nkiconv

Convolutions for AWS Trainium2, as layers for `kernels`. They call nkiconv {__version__}, which must be installed.
They have run on hosts only, not yet on a device.

| layer | stands in for |
|---|---|
| `Conv1d`, `Conv2d` | `torch.nn.Conv1d`, `torch.nn.Conv2d` |
| `causal_conv1d_fn`, `causal_conv1d_update` | functions of these names in Mamba, Qwen3-Next and more |

A model of transformers on a Neuron device, from a local copy of this folder. transformers 5.21 takes a local
folder so, and not as `kernel_config=` of `from_pretrained`:

```python
from transformers import AutoModelForCausalLM, KernelConfig

names = "causal_conv1d_fn", "causal_conv1d_update"
layers = {{name: {{"neuron": f"/path/to/this/folder:{{name}}"}} for name in names}}
model = AutoModelForCausalLM.from_pretrained(MODEL, device_map="neuron")
model.set_use_kernels(True, KernelConfig(layers, use_local_kernel=True))
```

Any model's convolutions, with `kernels` alone:

```python
from pathlib import Path

import torch
from kernels import LocalLayerRepository, Mode, kernelize, replace_kernel_forward_from_hub, use_kernel_mapping

def plain(module):
    return type(module).forward is torch.nn.Conv2d.forward

folder = Path("/path/to/this/folder")
replace_kernel_forward_from_hub(torch.nn.Conv2d, "Conv2d", condition=plain)
with use_kernel_mapping({{"Conv2d": {{"neuron": LocalLayerRepository(folder, layer_name="Conv2d")}}}}):
    kernelize(model, mode=Mode.INFERENCE, device="neuron")
```
"""


def build(folder: Path) -> None:
    """Write the package into a folder, over an earlier one.

    Raises: UnsupportedError where the folder holds a build that is not of this package, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UnsupportedError(f"folder={folder}: is a file; pass a folder, or a path where there is nothing yet")
    variants = {backend: folder / "build" / f"torch-{backend}" for backend in BACKENDS}
    for path in variants.values():
        if path.exists() and not _is_ours(path):
            raise UnsupportedError(f"folder={folder}: {path} is not of a package of nkiconv; pass another folder")
    for backend, path in variants.items():
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        for name in _FILES:
            shutil.copyfile(_SOURCE / name, path / name)
        (path / "metadata.json").write_text(json.dumps(metadata(backend), indent=2) + "\n")
    (folder / "README.md").write_text(_CARD)


def metadata(backend: str) -> dict[str, object]:
    """The metadata of a variant for `kernels`; `id` is the name under which its modules are imported."""
    digest = hashlib.sha256(b"".join((_SOURCE / name).read_bytes() for name in _FILES)).hexdigest()
    return {
        "id": f"_{NAME}_{backend}_{digest[:12]}",
        "name": NAME,
        "version": VERSION,
        "kernels-minver": KERNELS,
        "license": "Apache-2.0",
        "python-depends": BACKENDS[backend],
        "backend": {"type": backend},
    }


def _is_ours(path: Path) -> bool:
    try:
        return bool(json.loads((path / "metadata.json").read_text())["name"] == NAME)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def main(arguments: list[str]) -> int:
    """Build into the one folder named; the exit status."""
    if len(arguments) != 1:
        print("usage: python -m nkiconv.pytorch.hub_package FOLDER", file=sys.stderr)
        return 2
    try:
        build(Path(arguments[0]))
    except UnsupportedError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{arguments[0]}: for torch with {', '.join(BACKENDS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
