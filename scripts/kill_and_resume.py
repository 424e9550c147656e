"""Stop runs in every rude way, resume them each time, and compare with a run that was left alone.

python scripts/kill_and_resume.py --kills 20

Kills by SIGKILL at random moments, also while a run resumes and while it writes its report; two starts in one folder at
the same moment; a disk that is full (a small tmpfs, as root only); a folder that cannot be written (for root, who may
write anywhere, a tmpfs that is mounted read-only).
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import tyro
from safetensors.torch import load_file

from arcaps import Run

MODEL = "--dim 8 --caps 4 --primary-dim 8 --stem-channels 8".split()  # noqa: SIM905 (as one would type it)


def command(*arguments: str) -> list[str]:
    """A training as a user would start it."""
    return [sys.executable, "-m", "arcaps", "train", *arguments, "--save-minutes", "0.01"]


def quiet(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a training to its end, without its output."""
    return subprocess.run(command(*arguments), check=check, capture_output=True, text=True)


def same(one: Run, other: Run) -> bool:
    """Whether two runs ended with the same weights, to the bit, and the same result."""
    left, right = load_file(one.states()[0]), load_file(other.states()[0])
    weights = all(torch.equal(value, right[name]) for name, value in left.items() if name.startswith("model."))
    return weights and one.result is not None and one.result == other.result


def kill_often(start: list[str], killed: Run, kills: int, chance: random.Random) -> None:
    """Kill a run at random moments, some of them while it resumes."""
    for done in range(1, kills + 1):
        begun = (killed.path / "config.json").exists()
        arguments = ["--resume", str(killed.path)] if begun else [*start, "--run", str(killed.path)]
        process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        known = set(killed.states())
        early = begun and done % 4 == 0  # while it loads and resumes
        while process.poll() is None and not early and not set(killed.states()) - known:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 1.5))
        if process.poll() is not None:
            print(f"the run ended after {done - 1} kills: give more --epochs")
            break
        process.kill()
        process.wait()
        newest = killed.states()[0].name if killed.states() else "no checkpoint"
        print(f"kill {done:2}{' while it resumes' if early else ''}: {newest}", flush=True)
    quiet("--resume", str(killed.path), "--no-report")


def kill_in_report(start: list[str], run: Run) -> None:
    """Kill a run when its result is written and its report is not."""
    process = subprocess.Popen(
        command(*start, "--run", str(run.path)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not (run.path / "result.json").exists():
        time.sleep(0.001)
    process.kill()
    process.wait()
    quiet("--resume", str(run.path))


def start_twice(start: list[str], run: Run) -> bool:
    """Start two trainings in one folder at the same moment: one trains, the other is refused in one line."""
    line = command(*start, "--run", str(run.path), "--no-report")
    both = [subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in both]
    codes = sorted(process.returncode for process in both)
    refused = [error for process, error in zip(both, errors, strict=True) if process.returncode]
    return codes == [0, 1] and "Traceback" not in refused[0] and "arcaps: " in refused[0]


def mount(folder: Path, size: str) -> bool:
    """Mount a small disk at a new folder; False without the right to do so."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return os.geteuid() == 0 and not subprocess.run(["mount", *options], capture_output=True).returncode


def fill_disk(start: list[str], folder: Path) -> Run | None:
    """Train on a disk that is too small, then resume on one that is not; None without the right to mount one."""
    small = folder / "small"
    if not mount(small, "3m"):
        return None
    try:
        ended = quiet(*start, "--run", str(small / "run"), "--no-report", check=False)
        assert ended.returncode == 1, "the disk was not full"
        assert "Traceback" not in ended.stderr, ended.stderr
        assert "No space left" in ended.stderr, ended.stderr
        shutil.copytree(small / "run", folder / "moved")
    finally:
        subprocess.run(["umount", str(small)], check=True)
    quiet("--resume", str(folder / "moved"), "--no-report")
    return Run(folder / "moved")


def read_only(start: list[str], run: Run, folder: Path) -> bool | None:
    """Whether a folder that cannot be written is refused in one line, for a resume and for a new run."""
    fixed = folder / "fixed"
    mounted = mount(fixed, "100m")
    if os.geteuid() == 0 and not mounted:
        return None
    copy = Path(shutil.copytree(run.path, fixed / "run"))
    (copy / "result.json").unlink()
    if mounted:
        subprocess.run(["mount", "-o", "remount,ro", str(fixed)], check=True)
    else:
        copy.chmod(0o555)
        fixed.chmod(0o555)
    try:
        ends = [
            quiet("--resume", str(copy), check=False),
            quiet("--resume", str(copy), "--epochs", "1000", check=False),
            quiet(*start, "--run", str(fixed / "new"), check=False),
        ]
    finally:
        if mounted:
            subprocess.run(["umount", str(fixed)], check=True)
        else:
            fixed.chmod(0o755)
            copy.chmod(0o755)
    return all(
        end.returncode == 1 and "cannot be written" in end.stderr and "Traceback" not in end.stderr for end in ends
    )


def main(kills: int = 20, epochs: int = 6, seed: int = 0) -> None:
    """Tell whether runs that are stopped in every rude way end as one that was left alone, to the bit."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = Run(folder / "whole")
        start = ["digits", "--epochs", str(epochs), "--precision", "float32", *MODEL]
        quiet(*start, "--run", str(whole.path), "--no-report")
        killed, reported, twice = Run(folder / "killed"), Run(folder / "reported"), Run(folder / "twice")
        kill_often(start, killed, kills, random.Random(seed))
        outcomes = {f"{kills} kills": same(whole, killed)}
        kill_in_report(start, reported)
        outcomes["a kill during the report"] = same(whole, reported)
        outcomes["two starts at once"] = start_twice(start, twice) and same(whole, twice)
        full = fill_disk(start, folder)
        if full is not None:
            outcomes["a full disk"] = same(whole, full)
        fixed = read_only(start, whole, folder)
        if fixed is not None:
            outcomes["a folder that cannot be written"] = fixed
    for what, good in outcomes.items():
        print(f"{what}: {'nothing lost, the same to the bit' if good else 'DIFFERENT'}")
    sys.exit(not all(outcomes.values()))


if __name__ == "__main__":
    tyro.cli(main)
