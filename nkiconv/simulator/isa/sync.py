"""Two cores, their registers and scalars: core_barrier, sendrecv, register_*, scalar_*, which NeuronCore this is."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import hardware as hw
from ..memory import PSUM, SBUF, MemoryRegion
from ..objects import VirtualRegister, listed
from ..program import Instruction, Program, current
from ..rendezvous import Offer
from ..rules import fail, kernel_line
from ..scalars import SCALAR_DTYPES, NkiScalar
from ..tensor import NkiTensor
from . import check
from .enums import dma_engine, engine, nc_version

_Engine, _DmaEngine = engine, dma_engine
_CORES = (0, 1)


def get_nc_version() -> nc_version:
    """The NeuronCore generation that is simulated: gen3."""
    return nc_version.gen3


def get_nc_sub_version() -> int:
    """Silicon revision: 0."""
    return 0


def _meet(program: Program, kind: tuple[Any, ...], payload: Any = None) -> tuple[Any, bool]:
    if program.num_programs != len(_CORES):
        fail("NKI150", f"the kernel runs on {program.num_programs} core")
    meeting = program.launch.meeting
    assert meeting is not None
    offer, second = meeting.meet(program.core, Offer(kind, kernel_line()[0], payload))
    return offer.payload, second


def core_barrier(
    data: NkiTensor, cores: tuple[int, ...], engine: engine = engine.gpsimd, name: str | None = None
) -> Instruction:
    """Both cores wait for each other; accesses to `data` before it are ordered before those after it.

    Args:
        data: tensor in shared HBM. cores: (0, 1). engine: the engine that waits.
    Raises NkiError (NKI150, NKI151, NKI154). Source: isa core_barrier.
    """
    program = current()
    check.tensors(data=data)
    check.enum_member("engine", engine, _Engine)
    if data.buffer is not MemoryRegion.shared_hbm or listed(cores) != _CORES or engine is _Engine.dma:
        fail("NKI151", f"cores={cores!r}, engine={engine.name}, data in {data.buffer.name}", data=data)
    _, second = _meet(program, ("core_barrier", data.storage.info.id))
    if second and data.storage.race is not None:
        data.storage.race.clear()
    return program.record(engine.name, "core_barrier", (data,), (data,), {"cores": _CORES}, name)


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: dma_engine = dma_engine.dma,
    name: str | None = None,
) -> Instruction:
    """Send src to the other core's dst and receive into one's own dst.

    Args:
        src, dst: SBUF tiles of one shape and dtype. send_to_rank, recv_from_rank: 0 or 1.
        pipe_id: meetings with the same id pair up.
        dma_engine: gpsimd_dma moves at most 1024/512/256 bytes per partition of 32/16/8-bit data.
    Raises NkiError (NKI150, NKI152, NKI153, NKI154). Source: isa sendrecv.
    """
    program = current()
    check.tensors(src=src, dst=dst)
    check.enum_member("dma_engine", dma_engine, _DmaEngine)
    if src.buffer is not SBUF or dst.buffer is not SBUF or src.shape != dst.shape or src.dtype != dst.dtype:
        fail("NKI152", "src and dst differ or are not in SBUF", src=src, dst=dst)
    if send_to_rank not in _CORES or recv_from_rank not in _CORES or send_to_rank != recv_from_rank:
        fail("NKI152", f"send_to_rank={send_to_rank!r}, recv_from_rank={recv_from_rank!r}")
    if program.num_programs == len(_CORES) and send_to_rank == program.core:
        fail("NKI152", f"core {program.core} sends to itself")
    row_bytes = src.size // src.shape[0] * src.itemsize
    if dma_engine is _DmaEngine.gpsimd_dma and row_bytes > hw.SENDRECV_GPSIMD_BYTES[src.itemsize]:
        fail("NKI153", f"{row_bytes} bytes per partition of {src.itemsize}-byte data", src=src)
    check.writable(dst=dst)
    payload = np.array(src.storage.read(src)) if program.numeric else None
    received, _ = _meet(program, ("sendrecv", pipe_id, src.shape, src.dtype), payload)
    if program.numeric:
        dst.storage.write(dst, received)
    trigger = "gpsimd" if dma_engine is _DmaEngine.gpsimd_dma else "dma"
    return program.record(trigger, "sendrecv", (dst,), (src,), {"pipe_id": pipe_id}, name)


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A new register, with a compile-time int of 32 bits in it or nothing. Raises NkiError (NKI160)."""
    current()
    return VirtualRegister(None if x is None else _int32("x", x))


def _int32(name: str, value: Any) -> int:
    if type(value) is not int or not -(2**31) <= value < 2**32:
        fail("NKI160", f"{name}={value!r} is not an int of 32 bits")
    return value


def _register(name: str, register: Any) -> VirtualRegister:
    if type(register) is not VirtualRegister:
        fail("NKI160", f"{name}={register!r} is not a register")
    return register


def _target(register: Any) -> VirtualRegister:
    if _register("dst", register).frozen:
        fail("NKI172", "dst is the induction register of a dynamic_range loop")
    return register  # type: ignore[no-any-return]


def _one_element(name: str, tensor: Any) -> NkiTensor:
    check.tensors(**{name: tensor})
    check.narrow(**{name: tensor})
    if tensor.buffer is PSUM or tensor.size != 1:
        where = tensor.buffer.name
        fail("NKI160", f"{name} has {tensor.size} elements in {where}, expected 1 in SBUF or HBM", **{name: tensor})
    return tensor  # type: ignore[no-any-return]


def register_move(dst: VirtualRegister, src: Any) -> Instruction:
    """dst = a compile-time int of 32 bits or another register. Raises NkiError (NKI160, NKI172)."""
    program = current()
    target = _target(dst)
    value = _int32("src", src) if type(src) is int else _register("src", src).value
    target.value = value
    target.set_by = program.record("sync", "register_move", (), (), {})
    return target.set_by


def register_load(dst: VirtualRegister, src: NkiTensor) -> Instruction:
    """dst = the one element of a tensor in HBM or SBUF (up to 32 bits). Raises NkiError (NKI040, NKI055, NKI160,
    NKI172)."""
    program = current()
    target, tensor = _target(dst), _one_element("src", src)
    target.value = int(tensor.storage.read(tensor).reshape(-1)[0]) if program.numeric else None
    target.set_by = program.record("sync", "register_load", (), (tensor,), {})
    return target.set_by


def register_store(dst: NkiTensor, src: VirtualRegister) -> Instruction:
    """The one element of a tensor in HBM or SBUF = a register. Raises NkiError (NKI040, NKI055, NKI160)."""
    program = current()
    tensor, register = _one_element("dst", dst), _register("src", src)
    if program.numeric:
        if register.value is None:
            fail("NKI160", "src was never given a value")
        tensor.storage.write(tensor, register.value)
    return program.record("sync", "register_store", (tensor,), (), {})


def _scalar_tile(name: str, tensor: Any) -> NkiTensor:
    """A 1x1 tensor of int32 or int64 in SBUF or HBM (NKI040, NKI161), from NKI 0.7 on (NKI184)."""
    program = current()
    if not program.launch.traces:
        fail("NKI184", "NkiScalar, scalar_load and scalar_store came with NKI 0.7; use registers")
    check.tensors(**{name: tensor})
    if tensor.buffer is PSUM or tensor.shape != (1, 1) or tensor.dtype not in SCALAR_DTYPES:
        what = f"{list(tensor.shape)} {tensor.dtype} in {tensor.buffer.name}"
        fail("NKI161", f"{name} is {what}, expected [1, 1] int32 or int64 in SBUF or HBM", **{name: tensor})
    return tensor  # type: ignore[no-any-return]


def scalar_load(src: NkiTensor) -> NkiScalar:
    """An NkiScalar with the one element of src and its dtype.

    Args: src: [1, 1] int32 or int64 in SBUF or HBM.
    Raises NkiError (NKI040, NKI161, NKI184). Source: isa scalar_load of NKI 0.7.
    """
    program = current()
    tensor = _scalar_tile("src", src)
    found = NkiScalar(int(tensor.storage.read(tensor)[0, 0]) if program.numeric else None, tensor.dtype)
    found.set_by = program.record("sync", "scalar_load", (), (tensor,), {})
    return found


def scalar_store(dst: NkiTensor, value: NkiScalar) -> Instruction:
    """The one element of dst = an NkiScalar; of an int nisa.memset makes a tile.

    Args: dst: [1, 1] in SBUF or HBM, of value's dtype.
    Raises NkiError (NKI040, NKI161, NKI184). Source: isa scalar_store of NKI 0.7.
    """
    program = current()
    tensor = _scalar_tile("dst", dst)
    if type(value) is not NkiScalar or value.dtype != tensor.dtype:
        what = f"an NkiScalar of {value.dtype}" if type(value) is NkiScalar else repr(value)
        fail("NKI161", f"value is {what}, expected an NkiScalar of {tensor.dtype}", dst=tensor)
    if program.numeric:
        tensor.storage.write(tensor, value.value)
    stored = program.record("sync", "scalar_store", (tensor,), (), {})
    stored.after += [] if value.set_by is None else [value.set_by]
    return stored
