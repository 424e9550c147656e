"""The leaderboards: what they hold equal, and the tables that show what the records say."""

from pathlib import Path

import pytest

from arcaps.errors import ArcapsError
from arcaps.models import create_model
from arcaps.reports.compare import LEADERBOARD_END, LEADERBOARD_START, fill_leaderboard, leaderboard_tables
from arcaps.routing import list_routings
from arcaps.training.compare import CONTROLS, rows_of
from arcaps.training.jobs import Job
from arcaps.training.leaderboard import LEADERBOARDS, Leaderboard, choose_leaderboards, copy_records

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs/records/leaderboard"


def test_the_page_shows_what_the_records_say() -> None:
    text = (ROOT / "docs/routings.md").read_text()
    assert text.split(LEADERBOARD_START)[1].split(LEADERBOARD_END)[0].strip() == leaderboard_tables(RECORDS)


@pytest.mark.parametrize("board", LEADERBOARDS, ids=lambda board: board.name)
def test_every_routing_and_control_is_in_every_leaderboard(board: Leaderboard) -> None:
    rows = rows_of(board.rows, board.name, board.seeds, {})
    names = " ".join(row.name for row in rows)
    assert {row.name for row in rows} >= set(list_routings())
    assert all(control in names for control in CONTROLS)
    settings = [row.job(0).settings() for row in rows]
    same = ("data", "limit", "epochs", "batch_size", "optimiser", "schedule", "augmentation", "validation")
    for name in same:
        assert len({getattr(one, name) for one in settings}) == 1, name


def test_the_strong_cnn_has_as_many_parameters_as_the_baseline() -> None:
    def parameters(job: Job) -> int:
        recipe = job.settings()
        size, channels = recipe.image_size or {"cifar10": 32}.get(recipe.data, 28), 3 if recipe.data == "cifar10" else 1
        return create_model(recipe.model, image_size=size, channels=channels, **recipe.options).parameter_count()

    for board in LEADERBOARDS:
        rows = rows_of(board.rows, board.name, 1, {})
        strong = next(row for row in rows if row.name.startswith("strong_conv_net"))
        assert parameters(strong.job(0)) == pytest.approx(parameters(rows[0].job(0)), rel=0.02), board.name


def test_records_are_copied_and_shown(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mnist-2000"
    (folder / "records").mkdir(parents=True)
    (folder / "comparison.json").write_text('{"recipe": "mnist-2000", "common": {}}')
    (folder / "records" / "attention-seed0.json").write_text(
        '{"row": "attention", "title": "attention", "recipe": {"seed": 0}, "epochs": 4, "parameters": 12345, '
        '"curves": {"validation_error": [0.25, 0.125]}, "result": {"test": {"accuracy": 0.875}}}'
    )
    copy_records(folder, tmp_path / "records" / "mnist-2000")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{LEADERBOARD_START}\n{LEADERBOARD_END}\nafter\n")
    fill_leaderboard(page, tmp_path / "records")
    assert "| `attention` | 1 | 4 | 87.50% | 87.50% |  | 12,345 |" in page.read_text()
    assert "`arcaps leaderboard mnist-2000`" in page.read_text()


def test_an_unknown_leaderboard_is_refused() -> None:
    with pytest.raises(ArcapsError, match="unknown leaderboard 'mnist-200': did you mean 'mnist-2000'"):
        choose_leaderboards(("mnist-200",))
