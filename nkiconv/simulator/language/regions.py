"""The memories of a NeuronCore by name, and questions about them."""

from __future__ import annotations

from typing import Any

from ..memory import PRIVATE_HBM, PSUM, SBUF, SHARED_HBM

sbuf, psum = SBUF, PSUM
hbm = private_hbm = PRIVATE_HBM
shared_hbm = SHARED_HBM


def is_sbuf(buffer: Any) -> bool:
    """Whether a memory is SBUF."""
    return buffer is SBUF


def is_psum(buffer: Any) -> bool:
    """Whether a memory is PSUM."""
    return buffer is PSUM


def is_hbm(buffer: Any) -> bool:
    """Whether a memory is any HBM."""
    return buffer is PRIVATE_HBM or buffer is SHARED_HBM


def is_on_chip(buffer: Any) -> bool:
    """Whether a memory is SBUF or PSUM."""
    return buffer is SBUF or buffer is PSUM
