"""The command monarch-dashboard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from monarch.tools.dashboard_server import main
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "simulated_dashboard.py"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--port", "70000"], "70000 is not between 0 and 65,535"),
        (["--port", "many"], "invalid number value: 'many'"),
        (["--db", "x", "--simulate"], "not allowed with argument"),
    ],
)
def test_wrong_usage(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_a_file_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--db", str(tmp_path / "none")]) == 1
    monkeypatch.setenv("MONARCH_DB_PATH", str(tmp_path / "other"))
    assert main([]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [f"monarch-dashboard: no file {tmp_path}/{name}" for name in ("none", "other")]
    monkeypatch.delenv("MONARCH_DB_PATH")
    assert main([]) == 1
    assert "say which file: --db PATH" in capsys.readouterr().err
    assert main(["--simulate"]) == 1
    assert "python examples/simulated_dashboard.py" in capsys.readouterr().err


def test_a_file_that_somebody_else_may_have_written_is_not_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, beside = tmp_path / "run.duckdb", tmp_path / "open" / "run.duckdb"
    for path in (file, beside):
        path.parent.mkdir(exist_ok=True)
        path.write_text("no database")
    file.chmod(0o646)
    beside.parent.chmod(0o1777)  # a log of changes could be put beside it
    for path in (file, beside):
        assert main(["--db", str(path)]) == 1
        said = capsys.readouterr().err
        assert "others" in said
        assert "or say --trust" in said and str(path.parent) in said
    assert main(["--db", str(file), "--trust"]) == 1
    assert "is no DuckDB file" in capsys.readouterr().err


@full
def test_a_simulated_job_is_served_until_it_is_told_to_end() -> None:
    command = [sys.executable, str(EXAMPLE), "--port", "0", "--past", "70"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("Monarch Dashboard: http://localhost:")
        with httpx.Client(base_url=said.partition(": ")[2].strip(), timeout=TIMEOUT, trust_env=False) as client:
            assert client.get("/api/summary").json()["health_status"] == "unhealthy"
            assert client.post("/api/query", json={"sql": "SELECT 1 AS one"}).json()["rows"] == [{"one": 1}]
        process.terminate()
        assert process.communicate(timeout=TIMEOUT) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
