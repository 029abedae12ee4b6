"""`nkiconv run` on files that are too large, or have names that are: refused before anything is unpacked."""

import numpy as np
import pytest
from shell import run

pytestmark = pytest.mark.simulator_only


@pytest.fixture
def filters(tmp_path):
    np.save(tmp_path / "w.npy", np.ones((2, 3), np.float32))
    return tmp_path / "w.npy"


@pytest.mark.parametrize("name", ["x.npz", "x.npy"])
def test_files_are_asked_how_much_they_hold(name, filters, tmp_path, monkeypatch):
    monkeypatch.setattr("nkiconv.tools.cli.files.npy.ARRAY_MAX", 1000)
    x = np.zeros((1, 2, 126), np.float32)
    np.savez_compressed(tmp_path / "x.npz", x)
    np.save(tmp_path / "x.npy", x)
    result = run("run", "--input", tmp_path / name, "--filter", filters)
    assert result.exit_code == 2
    assert "holds 1,008 bytes unpacked, shape (1, 2, 126); at most 1,000 are taken here" in result.stderr


def test_a_shape_of_bools(filters, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 2, 9), np.float32))
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data.replace(b"(1, 2, 9), }   ", b"(True, 2, 9), }"))
    result = run("run", "--input", tmp_path / "x.npy", "--filter", filters)
    assert result.exit_code == 2
    assert "is damaged (shape (True, 2, 9))" in result.stderr


def test_a_name_too_long_for_an_archive(filters, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((1, 2, 9), np.float32))
    target = f"{tmp_path}/o.npz:{'a' * 70_000}"
    result = run("run", "--input", tmp_path / "x.npy", "--filter", filters, "--out", target)
    assert result.exit_code == 2
    assert "the name has more than 1,000 bytes" in result.stderr
