"""`arcaps evaluate`, `predict` and `ensemble`."""

import csv as csvlib
import io
import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from arcaps.cli.options import Flag, check_output
from arcaps.errors import ArcapsError


def evaluate(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    *,
    data: str | None = None,
    part: Literal["train", "validation", "test"] = "test",
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    skip_broken: Flag = False,
    invert: Flag = False,
    shifts: int = 0,
    json: Flag = False,
    data_dir: str | None = None,
) -> None:
    """Evaluate a run's model: accuracy with its 95 % interval, class by class, and the most frequent mistakes.

    Args:
        run: A run folder, a .safetensors file, or the name of a pretrained model: digits or mnist.
        data: A data set's name, or a folder of images, which get the model's size and channels; by default what the
            run was tested on.
        part: Which part of the data set.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto is bfloat16 on GPUs that compute in it, else float32.
        skip_broken: Leave out files of your own that cannot be read.
        invert: Turn black into white and white into black in --data, for images that are not as those of the training.
        shifts: Average the scores over each image shifted by up to this number of pixels: 1 gives 9 views.
        json: Print JSON instead of tables.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.models import Classification
    from arcaps.training.inference import evaluate_run

    evaluation = evaluate_run(
        run,
        data=data,
        part=part,
        device=device,
        precision=precision,
        skip_broken=skip_broken,
        invert=invert,
        shifts=shifts,
        data_dir=data_dir,
    )
    if json:
        print(jsonlib.dumps(evaluation.as_dict(), indent=2))
    elif isinstance(evaluation, Classification):
        print_classification(evaluation)
    else:
        print(evaluation.summary)


def print_classification(evaluation: Any) -> None:
    """Accuracy, and each class with the class that it is most often confused with."""
    low, high = evaluation.interval
    right = f"{evaluation.accuracy:.2%} of {evaluation.count:,} right"
    print(f"{evaluation.data}: {right} (95 % interval {low:.2%} to {high:.2%})")
    width = max(map(len, evaluation.class_names))
    for row, (name, share) in enumerate(evaluation.per_class.items()):
        count = int(evaluation.confusion[row].sum())
        wrong = evaluation.confusion[row].clone()
        wrong[row] = 0
        most = int(wrong.argmax())
        mistake = f"most often confused with {evaluation.class_names[most]} ({int(wrong[most])})" if wrong[most] else ""
        shown = f"{share:7.2%} of {count:,}" if count else "no images"
        print(f"  {name:{width}}  {shown}  {mistake}".rstrip())


def predict(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE ...")],
    *,
    top: int = 3,
    invert: Flag = False,
    csv: Path | None = None,
    json: Flag = False,
    device: str = "auto",
) -> None:
    """Predict the class of image files, with the score of each class.

    Files that cannot be read are named, and the others are still predicted; the exit code is then 1.

    Args:
        model: A run folder, a .safetensors file, an .onnx file, or the name of a pretrained model: digits or mnist.
        images: Image files, or folders of them.
        top: How many classes to print for each image, the highest score first.
        invert: Turn black into white and white into black, for images that are not as those of the training.
        csv: Also write a CSV file with the class and the score of every class of each image.
        json: Print JSON instead of lines.
        device: auto, cpu, cuda, cuda:1 or mps.
    """
    from arcaps.training.inference import predict_with_progress

    if top < 1:
        raise ArcapsError(f"top is {top}: give at least 1")
    check_output("--csv", csv)
    found = []
    for prediction in predict_with_progress(model, images, invert=invert, device=device):
        found.append(prediction)
        if prediction.problem:
            print(f"arcaps: {prediction.problem}", file=sys.stderr)
        elif not json:
            best = "  ".join(f"{name} {score:.3f}" for name, score in prediction.top(top))
            print(f"{prediction.image}: {prediction.label}    {best}")
    if json:
        rows = [{"file": one.image, "class": one.label, "scores": one.scores} for one in found if not one.problem]
        print(jsonlib.dumps(rows, indent=2))
    if csv is not None:
        write_csv(csv, found)
    broken = sum(bool(one.problem) for one in found)
    if broken:
        raise ArcapsError(f"{broken} of {len(found)} files cannot be read: they are named above")


def write_csv(path: Path, found: list[Any]) -> None:
    """A line for each image: file, class, the score of every class."""
    names = next((list(one.scores) for one in found if one.scores), [])
    text = io.StringIO(newline="")
    writer = csvlib.writer(text)
    writer.writerow(["file", "class", *names])
    for one in found:
        if not one.problem:
            writer.writerow([one.image, one.label, *(f"{one.scores[name]:.6f}" for name in names)])
    try:
        path.write_bytes(text.getvalue().encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise ArcapsError(f"{path} cannot be written: {error.strerror}: give another --csv") from None


def ensemble(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN RUN ...")],
    *,
    data: str | None = None,
    device: str = "auto",
    skip_broken: Flag = False,
    invert: Flag = False,
    shifts: int = 0,
    json: Flag = False,
    data_dir: str | None = None,
) -> None:
    """Evaluate several runs together: the mean of their scores decides.

    Args:
        runs: Run folders, .safetensors files, or names of pretrained models.
        data: A data set's name, or a folder of images; by default what the first run was tested on.
        device: auto, cpu, cuda, cuda:1 or mps.
        skip_broken: Leave out files of your own that cannot be read.
        invert: Turn black into white and white into black in --data, for images that are not as those of the training.
        shifts: Average the scores over each image shifted by up to this number of pixels: 1 gives 9 views.
        json: Print JSON instead of lines.
        data_dir: The data directory; by default ARCAPS_DATA, or the platform's cache folder.
    """
    from arcaps.training.inference import evaluate_ensemble

    if len(runs) < 2:
        raise ArcapsError("an ensemble is of two runs or more: give their folders")
    if len({run.resolve() for run in runs}) < len(runs):
        raise ArcapsError(f"the runs {', '.join(map(str, runs))} are not all different: give each once")
    members, together = evaluate_ensemble(
        list(runs), data=data, device=device, skip_broken=skip_broken, invert=invert, shifts=shifts, data_dir=data_dir
    )
    if json:
        everything = {
            "members": {str(run): member.as_dict() for run, member in members.items()},
            "ensemble": together.as_dict(),
        }
        print(jsonlib.dumps(everything, indent=2))
        return
    for run, member in members.items():
        print(f"{member.accuracy:7.2%}  {run}")
    low, high = together.interval
    interval = f"95 % interval {low:.2%} to {high:.2%}, n = {together.count:,}"
    print(f"{together.accuracy:7.2%}  ensemble of {len(members)} ({interval})")
