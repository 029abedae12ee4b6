"""The text in which a trace writes an instruction's operands."""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from ..dtypes import canonical
from .records import Operand, TraceError

#: Addresses within a partition from here on are PSUM's.
_PSUM_BASE = 0x2000000
#: Bytes between two partitions in the addresses that DMA uses, and of all partitions' SBUF.
_PARTITION_STRIDE, _SBUF_SPAN = 0x40000, 0x2000000

_WAIT = re.compile(r"(?<![$\w])S\[(\d+)\](?: \(\w+\))?>=(\d+)")
_INCREMENT = re.compile(r"(?<![$\w])S\[(\d+)\](?: \(\w+\))?\+\+@complete")
_VIEW = r"(?<!\w){}=(?:(\w+)@)?0x([0-9a-f]+)\[([-\d,]+)\]\[([\d,]+)\]"


def semaphore(text: str) -> int:
    """The number of a semaphore written as 24 or as S[24] (its owner)."""
    return int(_need(r"\d+", "number", text)[0])


def waits(text: str) -> tuple[tuple[int, int], ...]:
    """(semaphore, value) of every wait."""
    return tuple((int(number), int(value)) for number, value in _WAIT.findall(text))


def increments(text: str) -> tuple[tuple[int, int], ...]:
    """(semaphore, by) of every increment at completion; a DMA's counts all its DMA engines."""
    found = [(int(number), 1) for number in _INCREMENT.findall(text)]
    if "sem_increment=" in text:
        found.append((number_of("semaphore", text), number_of("sem_increment", text)))
    return tuple(found)


def number_of(name: str, text: str) -> int:
    """The integer setting `name=`. Raises TraceError: there is none."""
    return int(_need(rf"(?<!\w){name}=(\d+)", name, text)[1])


def setting(name: str, text: str) -> str:
    """The word after `name=`, or an empty string."""
    found = re.search(rf"(?<!\w){name}=(\w+)", text)
    return found[1] if found else ""


def view(name: str, text: str) -> Operand:
    """The view `name=dtype@address[strides][counts]`; one without a dtype is fp32, as matmuls write PSUM."""
    found = _need(_VIEW.format(name), name, text)
    dtype = canonical(found[1] or "fp32")
    if dtype is None:
        raise TraceError(f"{name}={found[0]!r}: unknown dtype {found[1]!r}")
    return Operand(dtype, int(found[2], 16) >= _PSUM_BASE, _ints(found[3]), _ints(found[4]))


def pointers(text: str) -> int:
    """How many operands are one value a partition, read from memory."""
    sources = re.search(r"imm_src=(\S+)", text)
    return len(re.findall(r"(?:bias|scale)_ptr=", text)) + (sources[1].split(",").count("PTR") if sources else 0)


def array_size(text: str) -> tuple[int, int]:
    """Rows and columns of a matmul's stationary operand, written as rows*columns."""
    found = _need(r"(?<!\S)(\d+)\*(\d+)(?!\S)", "rows*columns", text)
    return int(found[1]), int(found[2])


class Pattern(NamedTuple):
    """Elements of one side of a DMA: their bytes, how many, and where they lie if that side is SBUF."""

    element_bytes: int
    elements: int
    first_partition: int
    partitions: int


def pattern(side: str, text: str) -> Pattern:
    """The side ("src" or "dst") of a DMA."""
    found = _need(rf"{side}_pattern=\[([-\d,]+)\]\[([\d,]+)\]", f"{side}_pattern", text)
    strides, counts = _ints(found[1]), _ints(found[2])
    partitions = prod(n for stride, n in zip(strides, counts, strict=True) if stride == _PARTITION_STRIDE)
    address = re.search(rf"{side}_addr_imm=0x([0-9a-f]+)", text)
    first = int(address[1], 16) % _SBUF_SPAN // _PARTITION_STRIDE if address else 0
    return Pattern(number_of(f"{side}_elem_size", text), prod(counts), first, partitions)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _need(regex: str, name: str, text: str) -> re.Match[str]:
    found = re.search(regex, text)
    if found is None:
        raise TraceError(f"no {name} in the operands {text!r}")
    return found
