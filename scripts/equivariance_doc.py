"""Put the figures and numbers of an analysed run into docs/equivariance.md.

arcaps analyze RUN --with OTHER_RUNS
python scripts/equivariance_doc.py RUN
"""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import tyro

from arcaps import Run
from arcaps.analysis.laboratory import EXPERIMENTS
from arcaps.analysis.sections import put_section, table

DOCS = Path(__file__).parent.parent / "docs"
FIGURES = (
    *("perturb", "perturb-9", "perturb-ranking", "align", "cosine", "pose", "robustness"),
    *("attention", "attention-conv_caps.0", "attention-class_caps"),
)


def describe_run(run: Run, records: dict[str, Any]) -> str:
    """What was measured on, and when."""
    config, metrics, result = run.config, run.metrics, run.result
    if result is None:
        state = f"training under way: the best model of {len(metrics)} epochs so far"
    else:
        test = result["test"]
        state = (
            f"epoch {result['epoch']} of {len(metrics)}, {test['accuracy']:.2%} of {test['count']:,} test images right"
        )
    dates = {
        time.strftime("%Y-%m-%d", time.localtime((run.path / "analysis" / f"{n}.json").stat().st_mtime))
        for n in records
    }
    machine, recipe = config["machine"], config["recipe"]
    rows = [
        ["run", f"recipe `{recipe['name']}`, {recipe['model']}, seed {recipe['seed']}; {state}"],
        ["machine", f"{machine['processor']}, {machine['cores']} cores"],
        ["date", ", ".join(sorted(dates))],
    ]
    return table(["", "all figures and numbers below"], rows).replace("---:", "---")


def perturb_numbers(found: dict[str, Any]) -> str:
    """The dimension that matters most, and how many matter."""
    rows = []
    for name, one in found["classes"].items():
        changes = list(one["change"].values())
        best = ", ".join(f"{dim} ({one['change'][str(dim)]:.3f})" for dim in one["ranking"][:3])
        strong = sum(change > changes[0] / 2 for change in changes)
        rows.append([name, str(one["count"]), best, f"{strong} of {len(changes)}"])
    return table(
        ["class", "n", "most change (root mean square of the pixels' change)", "dimensions with half of that"], rows
    )


def align_numbers(found: dict[str, Any]) -> str:
    """All images, the two classes of the paper's table, and the references."""
    kinds = list(found["transformations"])
    rows = []
    for key, word in (("after_the_bound", "after"), ("before_the_bound", "before")):
        mean, deviation = found[key]["mean"], found[key]["deviation"]
        for name in ("all", "8", "5") if key == "after_the_bound" else ("all",):
            if name in mean:
                pairs = zip(mean[name], deviation[name], strict=True)
                rows.append([f"ours, {name}, {word} the {found['bound']}", *(f"{m:.2f} ± {d:.2f}" for m, d in pairs)])
    rows += [
        [f"paper, {name}", *(f"{value:.2f}" for value in values)] for name, values in found["paper"]["mean"].items()
    ]
    ours, paper = found["random_reference"], found["paper"]["random_reference"]
    return (
        f"n = {found['count']:,} images ({found['data']}); mean ± standard deviation.\n\n"
        + table(["", *kinds], rows)
        + f"\n\nRandom vectors of {ours['dim']} dimensions: {ours['mean']:.3f} ± {ours['deviation']:.3f} by the same "
        f"protocol ({ours['sets']:,} sets of five); the paper prints {paper[0]} ± {paper[1]}, which the "
        "protocol does not give."
    )


def cosine_numbers(found: dict[str, Any]) -> str:
    """The ends of the histograms, and the two observations."""
    rows = []
    kinds = (("signs_fixed", "fixed"), ("signs_of_the_svd", "as the SVD gives them"), ("signs_at_random", "at random"))
    for key, word in kinds:
        for pair, one in found[key].items():
            shares = one["shares"]
            ends = [
                f"{shares[name]:.1%}" for name in ("below_-0.9", "below_-0.5", "-0.5_to_0.5", "above_0.5", "above_0.9")
            ]
            peaks = " and ".join(end for end in ("-1", "+1") if one[f"peak_at_{end}"]) or "none"
            rows.append([pair, word, *ends, peaks])

    def where(observation: str) -> str:
        holds = [pair for pair, one in found["observations"][observation].items() if one]
        return "holds for " + ", ".join(holds) if holds else "does not hold"

    return (
        f"n = {found['count']:,} images ({found['data']}).\n\n"
        + table(["", "signs", "below -0.9", "below -0.5", "between", "above 0.5", "above 0.9", "peaks at"], rows)
        + f"\n\nWith signs fixed, the paper's first observation (peaks at -1 and at +1) {where('peaks_at_-1_and_+1')}; "
        f"its second (a peak at +1: + and - move the capsule to the same side) {where('does_not_tell_+_from_-')}."
    )


def pose_numbers(found: dict[str, Any]) -> str:
    """R2 of each parameter, of all runs, and the control."""
    first = next(iter(found["runs"].values()))
    rows, control = [], []
    for run, one in found["runs"].items():
        for name, read_out in one["read_outs"].items():
            label = name if name.startswith("pixels") else f"{run}: {name}"
            rows.append([label, str(read_out["dim"]), *(f"{value:.2f}" for value in read_out["r2"].values())])
            control += list(read_out["shuffled"].values())
    parameters = [name.replace("_", " ") for name in first["read_outs"][first["features"]]["r2"]]
    return (
        f"n = {first['count']:,} images ({first['data']}).\n\n"
        + table(["R² on held-out images", "numbers", *parameters], rows)
        + f"\n\nThe control, with the transformations dealt out anew: {min(control):.3f} to {max(control):.3f}."
    )


def robustness_numbers(found: dict[str, Any]) -> str:
    """Accuracy in the middle and at the end of each change."""
    rows = []
    for name, one in found["changes"].items():
        values = one["values"]
        for model in found["models"]:
            shares = one["accuracy"][model]
            shown = [f"{share:.1%} at {value:g}" for value, share in list(zip(values, shares, strict=True))[1::2]]
            rows.append([f"{name} ({one['unit']})", model, ", ".join(shown)])
    head = ["change", "run", "right"]
    return f"n = {found['count']:,} images ({found['data']}).\n\n" + table(head, rows).replace("---:", "---")


def attention_numbers(found: dict[str, Any]) -> str:
    """Entropy, and the effect of the channel that matters most and least."""
    rows = []
    for name, layer in found["layers"].items():
        without = layer["accuracy_without_channel"]
        worst, least = (
            min(range(len(without)), key=without.__getitem__),
            max(range(len(without)), key=without.__getitem__),
        )
        rows.append(
            [
                f"`{name}`",
                layer["coefficients_are_parts_of"].removeprefix("1 over "),
                f"{layer['entropy']:.2f}",
                f"{without[worst]:.1%} (channel {worst})",
                f"{without[least]:.1%} (channel {least})",
            ]
        )
    head = ["layer", "divided over", "entropy", "right without the channel most missed", "least missed"]
    with_all = f"With all channels {found['accuracy']:.1%} are right."
    return f"n = {found['count']:,} images ({found['data']}). {with_all}\n\n" + table(head, rows)


def main(run: tyro.conf.Positional[Path]) -> None:
    """Copy figures and records, fill in the tables."""
    opened = Run.open(run)
    folder = run / "analysis"
    names = [name for name in EXPERIMENTS if (folder / f"{name}.json").exists()]
    records = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    for place in ("figures", "records"):
        (DOCS / place / "equivariance").mkdir(parents=True, exist_ok=True)
    for name in records:
        shutil.copy(folder / f"{name}.json", DOCS / "records" / "equivariance")
    for name in FIGURES:
        if (folder / f"{name}.png").exists():
            shutil.copy(folder / f"{name}.png", DOCS / "figures" / "equivariance")
    path = DOCS / "equivariance.md"
    text = put_section(path.read_text(), "run", describe_run(opened, records))
    for name, record in records.items():
        text = put_section(text, name, globals()[f"{name}_numbers"](record))
    path.write_text(text)
    print(f"{path}: {', '.join(records)}")


if __name__ == "__main__":
    tyro.cli(main)
