"""A report of a finished run, for people: Markdown with figures."""

from typing import Any

import torch

from arcaps import figures
from arcaps.data import Dataset
from arcaps.models import Classifier
from arcaps.storage import write_whole
from arcaps.training.evaluate import class_scores
from arcaps.training.images import Images
from arcaps.training.run import Run


def write_report(run: Run, images: Images, result: dict[str, Any]) -> None:
    """Write `report.md` and its figures into the run's folder."""
    model, config, metrics, test = run.model(), run.config, run.metrics, result["test"]
    folder = run.path / "figures"
    names = images.test.class_names
    last = metrics[-1]
    figures.save(figures.learning_curves(metrics, result["epoch"]), folder / "learning_curves.png")
    figures.save(figures.confusion_matrix(torch.tensor(test["confusion"]), names), folder / "confusion.png")
    low, high = test["interval_95"]
    facts = {
        "model": f"{config['recipe']['model']}, {model.parameter_count():,} trainable parameters",
        "training": f"{len(metrics)} epochs, {last['step']:,} steps, {last['seconds'] / 60:.1f} minutes, "
        f"{last['step_seconds'] / last['seconds']:.0%} of them in the steps themselves",
        "seed": config["recipe"]["seed"],
        "machine": f"{config['machine']['processor']}, {config['machine']['cores']} cores",
        "versions": ", ".join(f"{name} {number}" for name, number in config["versions"].items()),
        "commit": config["commit"] or "unknown",
    }
    sections = [
        f"# {config['recipe']['name']}: {config['recipe']['about']}",
        f"{test['accuracy']:.2%} of {test['count']:,} test images right (95 % interval {low:.2%} to {high:.2%}): "
        f"{test['data']}, met once, by the model of epoch {result['epoch']}, whose validation error of "
        f"{result['validation_error']:.2%} was the lowest of {len(metrics)} epochs.",
        table(facts),
        "## Learning\n\n![loss and validation error by epoch](figures/learning_curves.png)",
        "## What was taken for what\n\n![confusion matrix](figures/confusion.png)",
        table({name: f"{part:.2%}" for name, part in test["per_class"].items()}, ("class", "right")),
    ]
    other = result.get("chosen_as_in_the_paper")
    if other is not None:
        sections.insert(
            2,
            "The paper chooses the epoch by validation images of the test's own kind. By that, epoch "
            f"{other['epoch']} would have been taken, with {other['test']['accuracy']:.2%} of the test images right.",
        )
    sample = images.test.take(torch.arange(0, len(images.test), max(1, len(images.test) // 10_000)))
    mistakes = draw_mistakes(model, sample)
    if mistakes is not None:
        figures.save(mistakes, folder / "mistakes.png")
        remark = "Above each image: what it is, and what it was taken for; the surest mistakes first."
        sections.append(f"## Mistakes\n\n{remark}\n\n![mistakes](figures/mistakes.png)")
    drawn = draw_reconstructions(model, images.test)
    if drawn is not None:
        figures.save(drawn, folder / "reconstructions.png")
        remark = "Each image above what the decoder draws from its longest capsule."
        sections.append(f"## Reconstructions\n\n{remark}\n\n![reconstructions](figures/reconstructions.png)")
    write_whole(run.path / "report.md", ("\n\n".join(sections) + "\n").encode())


def table(rows: dict[str, Any], heading: tuple[str, str] = ("", "")) -> str:
    """A table of two columns."""
    lines = [f"| {heading[0]} | {heading[1]} |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    return "\n".join(lines)


def draw_mistakes(model: Classifier, dataset: Dataset, most: int = 40) -> Any:
    """The images that were taken for something else, the surest mistakes first; None if there are none."""
    scores = class_scores(model, dataset)
    predicted = scores.argmax(-1)
    wrong = (predicted != dataset.labels).nonzero().flatten()
    if not len(wrong):
        return None
    wrong = wrong[scores[wrong].amax(-1).sort(descending=True).indices][:most]
    names = dataset.class_names
    titles = [f"{names[dataset.labels[n]]} \u2192 {names[predicted[n]]}" for n in wrong]
    return figures.image_grid([dataset.images[wrong].float() / 255], titles)


@torch.no_grad()
def draw_reconstructions(model: Classifier, dataset: Dataset) -> Any:
    """Images of every class above what the decoder makes of them; None for a model without a decoder."""
    classes = min(10, len(dataset.class_names))
    firsts = [(dataset.labels == label).nonzero().flatten()[:2] for label in range(classes)]
    chosen = torch.cat([first[k : k + 1] for k in range(2) for first in firsts])
    images = model.preprocessing(dataset.images[chosen])
    output = model(images)
    if output.reconstruction is None:
        return None
    titles = [dataset.class_names[label] for label in dataset.labels[chosen]]
    return figures.image_grid([images, output.reconstruction], titles, ["image", "drawn"])
