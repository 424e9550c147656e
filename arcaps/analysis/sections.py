"""What the experiments found, in Markdown: a section of a run's report for each."""

from collections.abc import Mapping, Sequence

from arcaps.analysis.align import PAPER, PAPER_REFERENCE, Alignment, Cosine
from arcaps.analysis.attention import Attention
from arcaps.analysis.perturb import Perturbation
from arcaps.analysis.pose import Pose
from arcaps.analysis.robustness import Robustness


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def put_section(text: str, name: str, section: str) -> str:
    """A report with a section put in, or put in place of the section of the same name."""
    first, last = f"<!-- analysis: {name} -->", f"<!-- end of analysis: {name} -->"
    block = f"{first}\n{section.strip()}\n{last}"
    start, end = text.find(first), text.find(last)
    if start >= 0 and end > start:
        return text[:start] + block + text[end + len(last) :]
    return f"{text.rstrip()}\n\n{block}\n"


def perturb_section(found: Perturbation) -> str:
    """The dimensions that matter most, class by class."""
    order = found.ranking()
    rows = []
    for row, name in enumerate(found.class_names):
        best = [f"{found.dims[place]} ({found.change[row, place]:.3f})" for place in order[row, :5].tolist()]
        rows.append([name, str(int(found.counts[row])), ", ".join(best)])
    return (
        "## Perturbation: what one dimension of a class capsule stands for\n\n"
        f"{found.model} on {found.data}. One dimension of the class capsule is moved by up to "
        f"{float(found.offsets[-1]):.3f} either way, a quarter of the greatest length of a capsule, and drawn by the "
        "decoder. A dimension's change is the root mean square of the pixels' change, the mean over n images.\n\n"
        "![one dimension per class](analysis/perturb.png)\n\n![all dimensions](analysis/perturb-ranking.png)\n\n"
        + table(["class", "n", "dimensions that change the picture most (change)"], rows)
        + "\n\nAll dimensions, class by class: "
        + ", ".join(
            f"[{name}](analysis/perturb-{place}.png)"
            for place, name in zip(found.labels, found.class_names, strict=True)
        )
        + "."
    )


def align_section(found: Alignment) -> str:
    """The alignment ratios beside the paper's and the random reference."""
    reference, kinds = found.reference, found.transformations
    parts = []
    for stage, word in ((found.after, "After"), (found.before, "Before")):
        mean, deviation = found.table(stage)
        rows = [
            [name, *(f"{m:.3f} \u00b1 {d:.3f}" for m, d in zip(ms, ds, strict=True))]
            for name, ms, ds in zip([*found.class_names, "**all**"], mean.tolist(), deviation.tolist(), strict=True)
        ]
        if word == "After":
            rows += [[f"paper, {name}", *(f"{value:.2f}" for value in values)] for name, values in PAPER.items()]
        parts.append(f"{word} the {found.bound}:\n\n" + table(["class", *kinds], rows))
    sided = " / ".join(f"{share:.0%}" for share in found.after.one_sided.double().mean(1).tolist())
    still = float(found.after.ratios.isnan().double().mean())
    return (
        "## Alignment ratio: does the capsule move along one line?\n\n"
        f"{found.model} on {found.data}, n = {len(found.labels):,} images. Five copies of each image, rotated by 5 to "
        "25 degrees or shifted by 1 to 5 pixels (bilinear, black border; rotation + is counter-clockwise, x + to the "
        "right, y + down); the mean \u00b1 standard deviation of the ratio over images and copies. 1 is a line.\n\n"
        "![alignment ratios](analysis/align.png)\n\n" + "\n\n".join(parts) + "\n\n"
        f"Random vectors of {reference.dim} dimensions by the same protocol give {reference.mean:.3f} \u00b1 "
        f"{reference.deviation:.3f} ({reference.sets:,} sets of five; standard error {reference.error:.4f}). The paper "
        f"prints {PAPER_REFERENCE[0]} \u00b1 {PAPER_REFERENCE[1]}, which its protocol does not give; ours is the bar "
        "to clear. The paper's rows are of its own MNIST models; it does not say which way + is.\n\n"
        f"All five differences of an image lie on one side of the align vector for {sided} of the images "
        f"({', '.join(kinds)}). {still:.2%} of the differences were zero and are left out."
    )


def cosine_section(found: Cosine) -> str:
    """The shares near each end, and which of the paper's two observations holds."""
    rows, verdicts, lost = [], [], []
    kinds = zip(found.pairs, found.fixed, found.free, found.arbitrary, strict=True)
    for pair, fixed, free, arbitrary in kinds:
        for word, values in (("fixed", fixed), ("as the SVD gives them", free), ("at random", arbitrary)):
            shares = found.shares(values)
            names = ("below_-0.9", "below_-0.5", "-0.5_to_0.5", "above_0.5", "above_0.9")
            rows.append([pair, word, *(f"{shares[name]:.1%}" for name in names)])
        low, high = found.peaks(fixed)
        shares = found.shares(fixed)
        where = {(True, True): "at -1 and at +1", (True, False): "at -1 only", (False, True): "at +1 only"}
        verdicts.append(f"{pair}: peaks {where.get((low, high), 'at neither end')}")
        lost.append(
            f"{pair}: {shares['below_-0.5']:.1%} to opposite sides (below -0.5), {shares['above_0.5']:.1%} to the same "
            f"side (above 0.5)"
        )
    peaks = [found.peaks(values) for values in found.fixed]
    both, same = [all(pair) for pair in peaks], [high for _, high in peaks]
    random = [pair for pair, values in zip(found.pairs, found.arbitrary, strict=True) if all(found.peaks(values))]
    differ = ", ".join(f"{share:.1%} ({pair})" for pair, share in zip(found.pairs, found.differ(), strict=True))

    def say(holds: list[bool]) -> str:
        if all(holds):
            return "holds"
        if not any(holds):
            return "does not hold"
        return "holds for " + ", ".join(pair for pair, one in zip(found.pairs, holds, strict=True) if one) + " only"

    return (
        "## Cosine: is + told from -?\n\n"
        f"{found.model} on {found.data}, n = {found.fixed.shape[1]:,} images, after the {found.bound}. The cosine "
        "between the align vectors of a transformation and of its opposite; -1: the capsule moves to opposite "
        "sides.\n\n"
        "![cosine histograms](analysis/cosine.png)\n\n"
        + table(["", "signs", "below -0.9", "below -0.5", "-0.5 to 0.5", "above 0.5", "above 0.9"], rows)
        + "\n\nThe paper's two observations, with signs fixed as its footnote says (a peak is an outermost bin of 0.1 "
        "that holds more than its neighbour and more than its part of a uniform distribution):\n\n"
        f"1. *Two peaks, around -1 and 1*: {say(both)}. {'; '.join(verdicts)}.\n"
        f"2. *Positive and negative transformations are not told apart* (a peak at +1): {say(same)}. "
        f"{'; '.join(lost)}.\n\n"
        "The sign of a singular vector is arbitrary. Without fixing it, the result depends on the SVD routine: the "
        f"signs that ours gives turn the cosine's sign for {differ} of the images. Signs drawn at random make every "
        "histogram symmetric and deal a peak at one end out to both; the same test then finds two peaks for "
        f"{', '.join(random) or 'none of the three'}."
    )


def pose_section(found: Mapping[str, Pose]) -> str:
    """R2 of each parameter for each kind of features."""
    first = next(iter(found.values()))
    rows, shared, control = [], [], []
    for run, one in found.items():
        for name, read_out in one.read_outs.items():
            if name.startswith("pixels") and one is not first:
                continue
            label = name if name.startswith("pixels") else f"{run}: {name}"
            rows.append([label, str(read_out.dim), *(f"{value:.3f}" for value in read_out.r2.tolist())])
            numbers = [f"{value:.3f}" if value == value else "" for value in read_out.shared.tolist()]
            shared.append([label, str(read_out.dim), *numbers])
            control.append([label, str(read_out.dim), *(f"{value:.3f}" for value in read_out.shuffled.tolist())])
    heading = ["features", "numbers", *(name.replace("_", " ") for name in first.parameters)]
    own = first.read_outs[first.features]
    classes = [
        [name, *(f"{value:.3f}" if value == value else "" for value in values)]
        for name, values in zip(first.class_names, own.per_class.tolist(), strict=True)
    ]
    return (
        "## Pose: can the true transformation be read off?\n\n"
        f"n = {first.count:,} images: {first.data}. Ridge regression within each class from the features to the "
        f"transformation; R\u00b2 on held-out images ({first.folds} folds), the ridge's strength chosen by "
        "leave-one-out on the other folds. 1 is perfect, 0 knows nothing.\n\n"
        "![R2 of each parameter](analysis/pose.png)\n\n" + table(heading, rows) + "\n\n"
        "One regression for all classes together, with a level for each class:\n\n"
        + table(heading, shared)
        + "\n\nControl, the transformations dealt out anew within each class:\n\n"
        + table(heading, control)
        + f"\n\nBy class, {next(iter(found))}, {first.features}:\n\n"
        + table(["class", *heading[2:]], classes)
        + "\n\nEven a perfect observer would not reach 1: an image has a slant, a size and a place of its own before "
        "it is transformed. The row of the pixels says what a linear read-out can get from the image itself."
    )


def robustness_section(found: Robustness) -> str:
    """Accuracy at each step."""
    parts = []
    for name, curve in found.curves.items():
        shares = found.accuracy(name)
        rows = [
            [model, *(f"{value:.1%}" for value in row)]
            for model, row in zip(found.models, shares.tolist(), strict=True)
        ]
        parts.append(f"{name} ({curve.unit}):\n\n" + table(["run", *(f"{value:g}" for value in curve.values)], rows))
    return (
        "## Robustness: how far can an image be changed?\n\n"
        f"n = {found.count:,} images of {found.data}; all runs meet the same changed images (seed {found.seed}). "
        "Accuracy; the 95 % intervals are in `analysis/robustness.json`.\n\n"
        "![accuracy as each change grows](analysis/robustness.png)\n\n" + "\n\n".join(parts)
    )


def attention_section(found: Attention) -> str:
    """Who is listened to, how surely, and what is lost without it."""
    parts = []
    for layer in found.layers:
        most = layer.listened().nanmean(0).mean((0, 1))
        rows = [
            [str(channel), f"{weight:.3f}", f"{right:.1%}", f"{length:.3f}"]
            for channel, (weight, right, length) in enumerate(
                zip(
                    most.tolist(),
                    layer.removed_accuracy.tolist(),
                    layer.removed_length.nanmean(1).tolist(),
                    strict=True,
                )
            )
        ]
        parts.append(
            f"`{layer.name}`: each coefficient is a part of 1 over the {layer.choices} {layer.over}; entropy "
            f"{float(layer.entropy.nanmean()):.3f} of 1, over the same {layer.over}.\n\n"
            f"![coefficients](analysis/attention-{layer.name}.png)\n\n"
            + table(["input channel", "mean coefficient", "right without it", "length without it"], rows)
        )
    return (
        "## Attention: which input is listened to, where, and how surely\n\n"
        f"{found.model} on {found.data}, n = {found.count:,} images. With all channels {found.accuracy:.1%} are right "
        f"and the true class's capsule is {float(found.length.nanmean()):.3f} long (1: the greatest length).\n\n"
        "![without a channel](analysis/attention.png)\n\n" + "\n\n".join(parts)
    )
