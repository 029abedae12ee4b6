"""Names that NKI no longer has: kernels that use them fail, or return zeros by the old package's entry points."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .found import Problem
from .project import Project
from .source import Source

_SLICES = "index with slices, as in x[0:128, 0:512]"
_CALL = "decorate the kernel with nki.jit and call it with arrays"

#: The name, and what to write instead.
REMOVED = {
    "nki.language.arange": _SLICES,
    "nki.language.mgrid": _SLICES,
    "nki.language.par_dim": "leave it out, dim 0 is the partition dim; make blocks a list of tensors",
    "nki.language.loop_reduce": "accumulate in PSUM, or add with nisa.tensor_tensor in the loop",
    "nki.baremetal": _CALL,
    "nki.benchmark": _CALL,
    "nki.profile": _CALL,
    "nki.simulate_kernel": "write nki.simulate(kernel)(arguments)",
}


def check(project: Project, source: Source) -> Iterator[Problem]:
    """Names anywhere in a file: entry points are called by code outside kernels."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            name = project.external(source, node).removeprefix("neuronxcc.")
            if name in REMOVED:
                yield Problem(source, "NKL212", node, (name, REMOVED[name]))
