"""Files that commands write are there whole or not at all: the disk may be full, and Ctrl-C may come at any time."""

import os
import subprocess
import sys

import pytest
from commands import run

from nkiconv.planner import cache, timekeeper, timing
from nkiconv.whole_file import whole_file


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("existed", [True, False])
def test_nothing_is_left_where_the_block_raises(error, existed, tmp_path):
    path = tmp_path / "a.txt"
    if existed:
        path.write_text("before")

    def write():
        with whole_file(path) as part:
            part.write_text("half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert os.listdir(tmp_path) == (["a.txt"] if existed else [])
    assert not existed or path.read_text() == "before"


KILLED = """
import os, signal, sys
from nkiconv.whole_file import whole_file
for name in sys.argv[1:]:
    part = whole_file(__import__("pathlib").Path(name)).__enter__()
    part.write_text("half")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_what_a_killed_process_left_goes(tmp_path, monkeypatch):
    names = ["a.txt", "b.txt"]
    subprocess.run([sys.executable, "-c", KILLED, *(str(tmp_path / name) for name in names)])
    assert len(os.listdir(tmp_path)) == 2
    with whole_file(tmp_path / "a.txt") as part:
        part.write_text("after")
        mine = part.name
        assert sorted(name[:3] for name in os.listdir(tmp_path)) == [".a.", ".b."]  # this process' own, and b's
        monkeypatch.setenv("NKICONV_CACHE", str(tmp_path))
        cache.clear([])
        assert os.listdir(tmp_path) == [mine]  # what is being written stays
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "a.txt", tmp_path / "link.txt"
    target.write_text("before")
    link.symlink_to(target)
    with whole_file(link) as part:
        part.write_text("after")
    assert link.is_symlink()
    assert target.read_text() == "after"


def test_a_device_is_written_in_place(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with whole_file(pipe) as part:
            part.write_text("through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.simulator_only
def test_ctrl_c_during_tune_leaves_the_cache_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("NKICONV_CACHE", str(tmp_path))
    cache.forget()
    assert run("plan", "c1k1").exit_code == 0
    [before] = os.listdir(tmp_path)
    text = (tmp_path / before).read_text()
    calls = iter(range(1))

    def interrupted(*arguments, **limits):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return timing.trace(*arguments, **limits)

    monkeypatch.setattr(timekeeper, "trace", interrupted)
    result = run("tune", "c1k1")
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert os.listdir(tmp_path) == [before]
    assert (tmp_path / before).read_text() == text
