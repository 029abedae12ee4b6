"""The command that says what each setting buys."""

import ast
import sys

import pytest
from commands import of_command

pytestmark = pytest.mark.simulator_only


ablate = of_command("ablate")


@pytest.mark.slow
def test_the_command(ablate, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ablate", "--only", "skewed"])
    assert ablate.main() == 0
    lines = capsys.readouterr().out.splitlines()
    table = ablate.golden_table().read().values()
    configs = [ast.literal_eval(row.config) for row in table if row.way == "timed" and row.algorithm == "skewed"]
    assert len(lines) == 2 + len({name for config in configs for name, _ in config})
    monkeypatch.setattr(sys, "argv", ["ablate", "--only", "nonesuch"])
    with pytest.raises(SystemExit):
        ablate.main()
    assert "--only=nonesuch" in capsys.readouterr().err
