"""The benchmarks run, and their pages follow what was measured."""

import importlib
import json
import math
from pathlib import Path

import pytest
import tiny

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def recovery(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(FOLDER)
    module = importlib.import_module("recovery")
    monkeypatch.setattr(module, "HORIZONS", (2, 1))
    monkeypatch.setattr(module, "STEPS", (0, 1, 2))
    page = importlib.import_module("recovery_page")
    monkeypatch.setattr(page, "LONG", 2)
    monkeypatch.setattr(page, "SHORT", 1)
    return module


def test_recovery_measures_every_way_and_writes_its_page(recovery, nano, tmp_path):
    data = tiny.write_bin(tmp_path / "data", tiny.spec())
    subject = recovery.Subject(name="tiny", title="a tiny model", checkpoint=nano, data=str(data))
    bench = recovery.Bench(subject, tmp_path)
    rows = [recovery.as_row(measured) for way in recovery.WAYS for measured in bench.run(way, 0)]
    assert [(row["way"], row["horizon"]) for row in rows] == [(way, h) for way in recovery.WAYS for h in (2, 1)]
    for row in rows:
        steps = [*range(row["horizon"] + 1)]
        assert [*row["losses"]] == [*row["seconds"]] == [*row["passes"]] == steps
        assert all(math.isfinite(loss) for loss in row["losses"].values())
        assert (row["conversion_passes"] > 0) == (row["own_text"] > 0) == (row["way"] == "retrofit")
        assert 0 < row["data_tokens"][1] <= bench.batch * bench.spec.block_size
    old = [row for row in rows if row["way"] == "old"]
    assert all(row["losses"][0] == row["old"] for row in old)
    results = tmp_path / "recovery.json"
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    recovery.render(results, {"tiny": "a tiny model", "absent": "another"})
    page = (tmp_path / "recovery.md").read_text()
    assert "## a tiny model" in page
    assert "another" not in page
    assert f"Old model: {rows[0]['old']:.3f}." in page
    assert f"{rows[0]['losses'][2]:.3f}" in page
    assert (tmp_path / "recovery.png").read_bytes().startswith(b"\x89PNG")


def test_the_race_ends_where_a_way_is_near_enough(recovery, nano, tmp_path, monkeypatch):
    race = importlib.import_module("time_to_recover")
    monkeypatch.setattr(race, "STEPS", (1, 2))
    data = tiny.write_bin(tmp_path / "data", tiny.spec())
    subject = recovery.Subject(name="tiny", title="a tiny model", checkpoint=nano, data=str(data))
    bench = recovery.Bench(subject, tmp_path)
    found = {way: race.search(bench, way, 100.0, (0,)) for way in race.WAYS}
    assert {row.steps for row in found.values()} == {1}
    assert race.search(bench, "reset", -100.0, (0,)) is None
    page = race.page({"tiny": found | {"reset": None}}, {"tiny": "a tiny model"}, 100.0, 1)
    assert "more than 2" in page
    assert "## a tiny model" in page
    assert page.count(f"{bench.batch * bench.spec.block_size:,}") == 2


def test_throughput_measures_each_row_and_writes_its_page(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(FOLDER)
    throughput = importlib.import_module("throughput")
    size = throughput.Size(spec=throughput.shape(1, 2, 16, 8, 30), batch=4, steps=4, processes=2)
    monkeypatch.setattr(throughput, "SIZES", {"tiny": size})
    results = {}
    for optimizer, rows in throughput.GROUPS.items():
        case = throughput.Case(model="tiny", precision="float32", compiled=False, optimizer=optimizer)
        seconds = [throughput.take_turns(case) for _ in range(2)]
        assert all(0 < taken[row] < 60 for taken in seconds for row in rows)
        results[case] = throughput.Measured(
            seconds={row: [taken[row] for taken in seconds] for row in rows},
            memory={row: used for row in rows for used in throughput.peak(case, row).values()},
        )
        assert min(results[case].memory.values()) > 1e6
    page = throughput.page(results)
    assert page.count("| tiny, 4 × 8 |") == 5
    assert page.count("| 1.000 |") == 2  # a plain loop beside itself
    assert throughput.ratio([1.0, 1.25, 1.5]) == "1.250<br>1.000 to 1.500"
    assert throughput.ratio([1.0, 1.0004]) == "1.000"


def test_throughput_leaves_out_what_failed(monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(FOLDER)
    throughput = importlib.import_module("throughput")
    case = throughput.Case(model="1M", precision="float8", compiled=False, optimizer="adamw")
    assert throughput.in_a_process(case, "modernize") == {}
    assert "failed (1):" in capsys.readouterr().out
    found = throughput.Measured(seconds={row: [] for row in case.rows}, memory={})
    assert "| 1M" not in throughput.page({case: found})


def test_conversion_is_measured_beside_a_copy(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    bench = importlib.import_module("convert")
    size = bench.TINY["tiny"]
    bench.make(size, tmp_path)
    results = {}
    for way in bench.COPIES:
        found = results["tiny", "torch zip", way] = bench.Measured(works=[], imports=[])
        bench.measure(way, "torch zip", size, tmp_path, found)
        assert found.works[0].seconds > 0
        assert found.works[0].memory > 1e6
        assert len(found.imports) == (way != "cp")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["old.pt", "old.safetensors"]
    start = {what: [bench.Cost(seconds=0.1, memory=1)] for what in bench.START}
    page = bench.page(results, bench.TINY, start)
    assert page.count("| tiny | torch zip |") == len(bench.COPIES)
    assert "| `modernize --help` | 0.100 | 1.00 |" in page


def test_a_benchmark_tells_why_a_process_failed(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    with pytest.raises(RuntimeError, match="no such word"):
        importlib.import_module("convert").cost(("python", "-c", "raise SystemExit('no such word')"))
