"""Put the figures, records and sections of an analysed run into docs/equivariance.md.

arcaps analyze RUN --with OTHER_RUNS
python scripts/equivariance_doc.py RUN
python scripts/equivariance_doc.py RUN --name affnist   # another run: the sections affnist/pose and so on
python scripts/equivariance_doc.py                      # the sections again, from the records in docs/
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import tyro

from arcaps import Run
from arcaps.reports.analysis import section_of
from arcaps.reports.markdown import put_section, table

DOCS = Path(__file__).parent.parent / "docs"
RECORDS, FIGURES = DOCS / "records" / "equivariance", DOCS / "figures" / "equivariance"
KEPT = (
    *("perturb", "perturb-9", "perturb-ranking", "align", "cosine", "pose", "pose-layers", "robustness"),
    *("attention", "attention-conv_caps.0", "attention-class_caps"),
)
"""The figures that the page shows."""


def describe_run(run: Run) -> str:
    """A table of the run, the machine and the day."""
    config, metrics, result = run.config, run.metrics, run.result
    state = f"training not finished: the best model of {len(metrics)} epochs"
    if result is not None:
        test = result.test
        state = f"epoch {result.epoch} of {len(metrics)}, accuracy {test['accuracy']:.2%} (n = {test['count']:,})"
    files = (run.path / "analysis").glob("*.json")
    days = sorted({time.strftime("%Y-%m-%d", time.localtime(file.stat().st_mtime)) for file in files})
    machine, recipe = config["machine"], config["recipe"]
    rows = [
        ["run", f"recipe {recipe['name']}, {recipe['model']}, seed {recipe['seed']}; {state}"],
        ["machine", f"{machine['processor']}, {machine['cores']} cores"],
        ["date", ", ".join(days)],
    ]
    return table(["", "all figures and numbers below"], rows, words=2)


def copy_results(run: Run, name: str) -> None:
    """Copy the records and the figures of a run into docs/, into subfolders of this name."""
    records, figures = RECORDS / name, FIGURES / name
    for folder in (records, figures):
        folder.mkdir(parents=True, exist_ok=True)
    for record in (run.path / "analysis").glob("*.json"):
        shutil.copy(record, records)
    for kept in KEPT:
        if (run.path / "analysis" / f"{kept}.png").exists():
            shutil.copy(run.path / "analysis" / f"{kept}.png", figures)


def sections() -> Iterator[tuple[str, str]]:
    """The name of each record in docs/, and the section that is made from it."""
    for file in sorted(RECORDS.rglob("*.json")):
        inside = file.relative_to(RECORDS).with_suffix("")
        figures = Path("figures/equivariance", inside.parent).as_posix()
        yield inside.as_posix(), section_of(json.loads(file.read_text()), figures, title=False)


def main(run: tyro.conf.Positional[Path | None] = None, name: str = "") -> None:
    """Fill in the page from the records in docs/, after copying those of a run if one is given.

    A section without a place in the page is left out.

    Args:
        run: A run folder that arcaps analyze has analysed.
        name: For a run besides the main one: what its sections are called, before a slash.
    """
    page = DOCS / "equivariance.md"
    text = page.read_text()
    if run is not None:
        opened = Run.open(run)
        copy_results(opened, name)
        text = put_section(text, f"{name}/run".strip("/"), describe_run(opened))
    for title, section in sections():
        if f"<!-- analysis: {title} -->" in text:
            text = put_section(text, title, section)
    page.write_text(text)


if __name__ == "__main__":
    tyro.cli(main)
