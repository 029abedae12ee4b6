"""Replay of hardware traces: a tiny trace, made here, with times that can be worked out by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nkiconv.simulator.replay import TraceError, build, compare, read_trace
from nkiconv.simulator.replay.__main__ import main
from nkiconv.simulator.replay.tasks import origin_ns, phase
from nkiconv.simulator.timing import Rates

#: Semaphores of the tiny trace.
LOAD, STORE, TENSOR, SCALAR = 8, 9, 5, 4
#: The trace's own clock at the first DMA's issue.
T0 = 10_000
#: ns from T0 at which things were seen to happen.
LOAD_DONE, STORE_ISSUE, STORE_DONE = 1_900, 4_000, 6_100


def instruction(
    pc: int, label: str, opcode: str, operands: str, start: int, duration: int, **more: Any
) -> dict[str, Any]:
    return {
        "pc": pc, "label": label, "opcode": opcode, "operands": operands, "timestamp": T0 + start,
        "duration": duration, "subgraph": "sg00", "bir_instruction_name": f"I-{pc}", "activation_fn": "", **more,
    }  # fmt: skip


def dma(pc: int, label: str, text: str, start: int, *, load: bool, element: int) -> dict[str, Any]:
    semaphore = LOAD if load else STORE
    chip, hbm = "[262144,1][128,1]", f"[{element},1][128,1]"
    src, dst = (hbm, chip) if load else (chip, hbm)
    operands = (
        f"{text} semaphore={semaphore} sem_increment=16 src_elem_size={element} dst_elem_size={element} "
        f"src_pattern={src} dst_pattern={dst} src_addr_imm=0x800000000000 dst_addr_imm=0x802000000000 compute_op=NONE "
    )
    more = {"sbuf_write_bytes": 1} if load else {"sbuf_read_bytes": 1}
    return instruction(pc, label, "DMA_DIRECT2D", operands, start, 540, **more)


def packets(queue: int, size: int, first: int, done: int) -> list[dict[str, Any]]:
    """Eight elements and the semaphore on each of 16 engines; the engines start 10 ns after each other."""
    rows = []
    for engine in range(16):
        begin = first + 10 * engine
        times = [(begin + 20 * i, 15, size) for i in range(8)] + [(done - 7 - engine, 7, 4)]
        rows += [
            {
                "dma_queue": str(queue), "dma_engine": str(64 + engine), "timestamp": T0 + time, "duration": duration,
                "transfer_size": bytes_, "queue_type": "hardware_dynamic", "subgraph": "sg00"}
            for time, duration, bytes_ in times
        ]  # fmt: skip
    return rows


def semaphore(number: int, *times: int, step: int = 1) -> list[dict[str, Any]]:
    return [
        {"id": f"S[{number}] (x)", "timestamp": T0 + time, "value": step * (i + 1), "subgraph": "sg00"}
        for i, time in enumerate(times)
    ]


WEIGHTS = "transpose_mode=DISABLED src=bfloat16@0x1000[-1,0,-32][32,1,4] 128*128 "
MOVING = "acc_flags=3 src=bfloat16@0x2000[1,0,0][512,1,1] dst=0x2000000[1,0,0][512,1,1] 128*128 "
COPY = "src=fp32@0x2000000[1,1,1,1][512,1,1,1] dst=fp32@0x4000[1,1,1,1][512,1,1,1] channels=128 "


def tiny() -> dict[str, Any]:
    """A load, two matmuls, a copy that waits for the second, and a store of its result."""
    return {
        "instruction": [instruction(40, "Tensor", "NOP", "S[2]>=9", -500, 10) | {"bir_instruction_name": ""},
            instruction(13, "TensorMatrix", "MATMUL", f"S[{TENSOR}] (Tensor)++@complete {MOVING}", 2_700, 633),
            instruction(12, "Tensor", "LDWEIGHTS", WEIGHTS, 2_272, 146),
            instruction(11, "TensorMatrix", "MATMUL", f"S[{TENSOR}] (Tensor)++@complete {MOVING}", 2_270, 614),
            instruction(10, "Tensor", "LDWEIGHTS", f"S[{LOAD}] (qSyncDynamicHW)>=16 {WEIGHTS}", 2_240, 100),
            instruction(
                20, "Scalar", "COPY", f"S[{TENSOR}] (Tensor)>=2 S[{SCALAR}] (Scalar)++@complete {COPY}", 3_370, 600),
            dma(21, "Scalar", f"S[{SCALAR}] (Scalar)>=1", STORE_ISSUE, load=False, element=2048),
            dma(30, "Sync", "", 0, load=True, element=512)],
        "dma": packets(0, 512, 1_400, LOAD_DONE) + packets(1, 2048, STORE_ISSUE + 1_200, STORE_DONE),
        "dma_queues_info": [{"q_name": "qSyncDynamicHW", "q_idx": 0, "subgraph": "sg00"},
            {"q_name": "qScalarDynamicHW", "q_idx": 1, "subgraph": "sg00"}],
        "semaphore_update": [*semaphore(LOAD, *range(2_198 - 15, 2_198 + 1)), *semaphore(TENSOR, 2_899, 3_348),
            *semaphore(SCALAR, 3_980)],
        "ham": [],
    }  # fmt: skip


def write(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def by_pc(document: dict[str, Any], pc: int) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in document["instruction"] if row["pc"] == pc)
    return found


def test_records_follow_the_queues(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, tiny()))
    assert [(r.engine, r.opcode, r.pc) for r in trace.records] == [
        ("tensor", "MATMUL", 11), ("tensor", "MATMUL", 13), ("scalar", "COPY", 20), ("scalar", "DMA_DIRECT2D", 21),
        ("sync", "DMA_DIRECT2D", 30),
    ]  # fmt: skip
    first, second, copied, store, load = trace.records
    assert (first.waits, second.waits, copied.waits, store.waits) == (((8, 16),), (), ((5, 2),), ((4, 1),))
    assert (copied.increments, load.increments) == (((4, 1),), ((8, 16),))
    assert (first.matmul.load_ns, first.start_ns, first.end_ns) == (T0 + 2_240, T0 + 2_270, T0 + 2_884)
    assert first.satisfied_ns == T0 + 2_198
    assert (load.dma.queue, load.dma.load, load.dma.partitions) == ("hwdge", True, 128)
    assert (load.dma.arrival_ns, load.done_ns) == (T0 + 1_400 + 150, T0 + LOAD_DONE)
    assert not store.dma.load


def test_span_by_hand(tmp_path: Path) -> None:
    rates = Rates()
    found = compare(read_trace(write(tmp_path, tiny())), rates)

    def flow(element: int) -> float:  # 8 elements an engine, then the semaphore
        busy = 8 * (rates("dma.element_overhead_ns") + element / rates("dma.engine_bytes_per_ns"))
        return busy + rates("dma.sem_write_ns")

    time = rates("dma.hwdge_first_packet_load_ns") + rates("dma.engine_skew_load_ns") + flow(512)
    time += rates("dma.done_to_consumer_ns") + rates("pe.cold_ldw_16bit_half_ns")
    time += 2 * 512 / 2.4 / 0.5 + rates("pe.completion_half_ns")
    time += rates("sync.hop_to_scalar_ns")
    time += rates("scalar.copy_lat_psum_ns") + 512 * rates("scalar.ns_per_elem")
    time += rates("sync.hop_to_dma_issue_ns")
    time += rates("dma.hwdge_first_packet_store_ns") + rates("dma.engine_skew_store_ns") + flow(2048)
    assert found.in_order.predicted_ns == pytest.approx(time)
    assert found.overtaking.predicted_ns == pytest.approx(time)
    assert found.in_order.seen_ns == STORE_DONE
    assert found.in_order.error == pytest.approx(time / STORE_DONE - 1)
    assert sum(step.gap_ns for step in found.in_order.steps) == pytest.approx(time - STORE_DONE)


def test_rows(tmp_path: Path) -> None:
    rates = Rates()
    rows = {
        (row.opcode, row.memory, row.state): row for row in compare(read_trace(write(tmp_path, tiny())), rates).rows
    }
    copied = rows["COPY", "psum", "cold"]
    assert (copied.engine, copied.dtype, copied.n, copied.count) == ("scalar", "fp32", "512", 1)
    assert copied.seen_latency_ns == 600
    assert copied.latency_ns == pytest.approx(rates("scalar.copy_lat_psum_ns") + 512 * rates("scalar.ns_per_elem"))
    assert copied.latency_error == pytest.approx(copied.latency_ns / 600 - 1)
    assert copied.issue_error is None
    streamed, dry = rows["MATMUL", "sbuf", "warm 4/8"], rows["MATMUL", "sbuf", "cold 4/8"]
    assert (streamed.seen_latency_ns, dry.seen_latency_ns) == (633, 644)
    assert streamed.latency_ns == pytest.approx(1024 / 2.4 + rates("pe.completion_half_ns"))
    assert dry.latency_ns == pytest.approx(streamed.latency_ns + rates("pe.cold_ldw_16bit_half_ns"))
    load = rows["DMA_DIRECT2D", "hwdge load", "1st packet"]
    assert (load.seen_latency_ns, load.seen_issue_ns, load.n) == (1_550, 540, "128 x 512 B")
    assert load.issue_ns == rates("dma.hwdge_issue_ns")


def test_event_semaphores_wait_for_the_next_instruction(tmp_path: Path) -> None:
    document = tiny()
    document["instruction"].append(instruction(19, "Scalar", "EVENT_SEMAPHORE", f"S[{LOAD}]>=16 setter=0", 2_300, 40))
    trace = read_trace(write(tmp_path, document))
    copied = trace.records[2]
    assert copied.waits == ((LOAD, 16), (TENSOR, 2))
    assert build(trace, Rates(), in_order=True).tasks.num_waits[2] == 2


def test_two_passes_are_one_matmul_and_a_load_may_serve_two(tmp_path: Path) -> None:
    document = tiny()
    by_pc(document, 10)["operands"] = (
        f"S[{LOAD}]>=16 fp32_mode=LOW transpose_mode=DISABLED src=fp32@0x1000[-1,0,0][128,1,1] 128*128 "
    )
    by_pc(document, 12)["operands"] = "fp32_mode=HIGH transpose_mode=DISABLED src=fp32@0x1000[-1,0,0][128,1,1] 128*128 "
    for pc in (11, 13):
        by_pc(document, pc)["operands"] = by_pc(document, pc)["operands"].replace("bfloat16", "fp32")
    trace = read_trace(write(tmp_path, document))
    assert (trace.records[0].end_ns, trace.records[0].increments) == (T0 + 3_333, ((5, 1), (5, 1)))
    assert trace.records[1].opcode == "COPY"
    document = tiny()
    document["instruction"].remove(by_pc(document, 12))
    trace = read_trace(write(tmp_path, document))
    assert [record.matmul.load_ns for record in trace.records[:2]] == [T0 + 2_240, None]


def test_grid_line_falls_on_the_first_change(tmp_path: Path) -> None:
    document, rates = tiny(), Rates()
    document["ham"] = [
        {"timestamp": T0 + time, "k": k, "n": 8, "subgraph": "sg00"} for time, k in ((2_000, 8), (5_413, 4))
    ]
    trace = read_trace(write(tmp_path, document))
    assert trace.throttle == ((T0 + 2_000, True), (T0 + 5_413, False))
    replay = build(trace, rates, in_order=True)
    assert origin_ns(replay) == T0
    window = rates("throttle.window_ns")
    assert (1 - phase(trace, T0, rates)) * window == pytest.approx(2_000)


def changed(pc: int, **fields: Any) -> Callable[[dict[str, Any]], Any]:
    """An edit of one instruction of a trace."""
    return lambda trace: by_pc(trace, pc).update(fields)


def kept(section: str, rows: Callable[[Any], bool]) -> Callable[[dict[str, Any]], Any]:
    """An edit that keeps some rows of a section."""
    return lambda trace: trace.update({section: [row for row in trace[section] if rows(row)]})


@pytest.mark.parametrize(("document", "message"), [
    ("no json", "not a trace: no JSON"), ([], "not a trace"), ({"traceEvents": []}, "not a trace"),
    (kept("instruction", lambda _: False), "no instruction has a compiler's name"),
    (lambda trace: trace.pop("dma"), "lacks the section dma"),
    (lambda trace: trace.pop("semaphore_update"), "lacks the section semaphore_update"),
    (changed(20, operands=f"S[{TENSOR}] (Tensor)>=3 {COPY}"), r"S\[5\] >= 3, and the trace brings it to 2"),
    (changed(20, operands=f"S[77]>=1 {COPY}"), r"S\[77\] >= 1, and the trace brings it to 0"),
    (changed(13, timestamp=T0 + 4_700), "came true after its end"),
    (changed(20, opcode="FROBNICATE"), "FROBNICATE at pc 20 of scalar: an opcode that replay does not know"),
    (changed(20, operands="S[5]>=2"), "no dst"),
    (changed(20, operands=COPY.replace("fp32", "fp5")), "unknown dtype"),
    (changed(20, operands=f"{COPY} accumulator_cmd=READ"), "accumulator"),
    (changed(20, label="Quantum"), "unknown engine"),
    (changed(20, timestamp="soon"), "not as expected"),
    (changed(10, opcode="EVENT_SEMAPHORE"), "does not follow its LDWEIGHTS"),
    (changed(30, sbuf_read_bytes=1), "neither a load nor a store"),
    (kept("dma", lambda row: row["transfer_size"] != 4), "triggers 1 DMAs, and DMA engine 64 ended 0"),
    (kept("dma", lambda _: False), "Scalar triggers DMAs"),
    (lambda trace: trace.update(ham=[{"subgraph": "sg00"}]), "lacks 'timestamp'"),
])  # fmt: skip
def test_malformed_traces_are_refused(tmp_path: Path, document: Any, message: str) -> None:
    trace = tiny()
    if callable(document):
        document(trace)
    with pytest.raises(TraceError, match=message):
        compare(read_trace(write(tmp_path, trace if callable(document) else document)))
    assert issubclass(TraceError, ValueError)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path, tiny()))
    assert main([path, "--path"]) == 0
    plain = capsys.readouterr().out
    assert "cold 4/8" in plain
    assert "where on the predicted critical path" in plain
    assert main([path, "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "### tiny"
    assert lines[2].startswith("| opcode | engine |")
    assert lines[-1].startswith(f"| tiny | {STORE_DONE} | ")
    assert main([path, "--spans"]) == 0
    assert "COPY" not in capsys.readouterr().out


def test_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(write(tmp_path, "{}"))]) == 2
    assert "TraceError" in capsys.readouterr().err
    assert main([str(tmp_path / "absent.json")]) == 2
