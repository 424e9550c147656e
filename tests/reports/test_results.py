"""The results table is what the records say."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from arcaps import ArcapsError
from arcaps.reports.results import (
    DATA,
    END,
    MAIN_START,
    START,
    fill_page,
    fill_results,
    in_order,
    read_records,
    results_table,
    targets_table,
)
from arcaps.training.reproduce import ROWS, write_record

ROOT = Path(__file__).parents[2]


def make_record(row: str, seed: int, accuracy: float | None) -> dict[str, Any]:
    """A record as `arcaps reproduce` writes it, as far as the table reads it."""
    test = {"accuracy": accuracy, "interval_95": [0.98, 0.99]}
    return {
        "row": row,
        "recipe": {"epochs": 20, "seed": seed},
        "settings": {"precision": "bfloat16" if seed else "float32"},
        "parameters": 5_312_528,
        "epochs": 10,
        "seconds": 1000.0,
        "curves": {"validation_error": [0.03, 0.02]},
        "result": None if accuracy is None else {"test": test},
    }


@pytest.mark.parametrize("page", ["docs/results.md", "README.md"])
def test_the_pages_show_what_the_records_say(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    (tmp_path / "page.md").write_text(text)
    fill_results(tmp_path / "page.md", ROOT / "docs/records/results")
    assert (tmp_path / "page.md").read_text() == text
    assert any(mark in text for mark in (START, MAIN_START))


def test_targets_and_whether_they_are_reached() -> None:
    found = {"mnist-fast": [0.9960, 0.9954], "mnist+-fast": [0.9964]}
    records = {row: [make_record(row, *one) for one in enumerate(values)] for row, values in found.items()}
    records["mnist-fast"].append({"row": "mnist-fast", "runs": ["mnist-fast-seed0"], "shifts": []})
    records["cifar10-fast"] = [make_record("cifar10-fast", 0, None)]  # not finished
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in targets_table(records).splitlines()[2:]}
    assert list(lines) == [row.title for row in in_order(row for row in ROWS if row.target is not None)]
    assert lines["MNIST, our variant"].endswith("| 99.55% | **99.57%** ± 0.04% (n = 2) | reached |")
    assert "(n = 1; 95 % interval 98.00% to 99.00%) | not reached |" in lines["MNIST+, our variant"]
    assert lines["CIFAR-10, our variant"].endswith("| 87.19% |  | not trained |")


def test_the_table_goes_by_data_set_and_the_main_one_leaves_variations_out() -> None:
    records = {row.name: [make_record(row.name, 0, 0.99)] for row in ROWS}
    records["mnist-fast"].append(
        {"row": "mnist-fast", "runs": ["mnist-fast-seed0"], "shifts": [records["mnist-fast"][0]["result"]["test"]]}
    )
    titles = [line.split(" | ")[0].removeprefix("| ") for line in results_table(records).splitlines()[2:]]
    places = [DATA.index(title.split(",")[0]) for title in titles]
    assert places == sorted(places)
    assert len(titles) == len(ROWS) + 1
    main = [line.split("`")[1] for line in results_table(records, main=True).splitlines()[2:]]
    assert sorted(main) == sorted(row.name for row in ROWS if not row.variation)


def test_a_line_over_several_seeds(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.99, 0.992, 0.994)):
        write_record(tmp_path / f"mnist-seed{seed}.json", make_record("mnist", seed, accuracy))
    write_record(tmp_path / "cifar10-fast-seed0.json", make_record("cifar10-fast", 0, None))
    write_record(tmp_path / "mnist-fast-seed0.json", make_record("mnist-fast", 0, 0.985))
    tests = [{"accuracy": accuracy, "interval_95": [0.98, 0.99]} for accuracy in (0.99, 0.988, 0.995, 0.996)]
    combined: dict[str, Any] = {"row": "mnist", "runs": ["mnist-seed0", "mnist-seed1"], "shifts": tests[:2]}
    combined |= {"ensemble": tests[2], "ensemble_with_shifts": tests[3]}
    write_record(tmp_path / "mnist-combined.json", combined)
    table = results_table(read_records(tmp_path)).splitlines()
    assert len(table) == 8
    assert "| **98.50%** (n = 1; 95 % interval 98.00% to 99.00%) |" in table[2]
    assert "99.46% | **99.20%** ± 0.20% (n = 3) | 5,312,528 | 10 | bfloat16, float32 | 100 | `mnist` |" in table[3]
    assert "text, with test-time shifts |  | **98.90%** ± 0.14% (n = 2) |" in table[4]
    assert "text, ensemble of 2 |  | **99.50%** (n = 1; 95 % interval" in table[5]
    assert "text, ensemble of 2 with test-time shifts |  | **99.60%** (n = 1; 95 % interval" in table[6]
    assert "not finished: validation 98.00% after 10 of 20 epochs" in table[7]


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{START}\nold\n{END}\nafter\n")
    fill_page(page, "new")
    assert page.read_text() == f"before\n{START}\nnew\n{END}\nafter\n"
    page.write_text("nothing\n")
    with pytest.raises(ArcapsError, match="has no place for the results"):
        fill_page(page, "new")


def test_the_ablation_table_is_what_its_records_say() -> None:
    spec = spec_from_file_location("ablation", ROOT / "scripts/ablation.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    sys.modules[spec.name] = script  # where its dataclasses look for their module
    spec.loader.exec_module(script)
    shown = script.PAGE.read_text().split(script.MARKS[0])[1].split(script.MARKS[1])[0]
    assert shown == script.table(script.read_records())


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "mnist-seed0.json").write_text('{"row": "mnist", ')
    with pytest.raises(ArcapsError, match=r"mnist-seed0\.json is damaged, or no JSON"):
        read_records(tmp_path)
