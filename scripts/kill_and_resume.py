"""Kill a run with SIGKILL at random moments, resume it each time, and compare it with one that was never killed.

python scripts/kill_and_resume.py --kills 20
"""

import random
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
    return [sys.executable, "-m", "arcaps", "train", *arguments, "--precision", "float32", "--save-minutes", "0.01"]


def main(kills: int = 20, epochs: int = 6, seed: int = 0) -> None:
    """Tell whether a run that is killed this number of times ends with the weights of one that is not, to the bit."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Run(Path(folder) / "whole"), Run(Path(folder) / "killed")
        start = ["digits", "--epochs", str(epochs), *MODEL]
        subprocess.run(command(*start, "--run", str(whole.path)), check=True, stdout=subprocess.DEVNULL)
        done = 0
        while done < kills:
            begun = (killed.path / "config.json").exists()
            arguments = ["--resume", str(killed.path)] if begun else [*start, "--run", str(killed.path)]
            process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL)
            known = set(killed.states())
            while process.poll() is None and not set(killed.states()) - known:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 1.5))
            if process.poll() is not None:
                print(f"the run ended after {done} kills: give more --epochs")
                break
            process.kill()
            process.wait()
            done += 1
            print(f"kill {done:2}: newest checkpoint {killed.states()[0].name}", flush=True)
        subprocess.run(command("--resume", str(killed.path)), check=True, stdout=subprocess.DEVNULL)
        one, other = load_file(whole.states()[0]), load_file(killed.states()[0])
        same = all(torch.equal(value, other[name]) for name, value in one.items() if name.startswith("model."))
        print(f"after {done} kills the weights are {'the same to the bit' if same else 'DIFFERENT'}")
        sys.exit(not same)


if __name__ == "__main__":
    tyro.cli(main)
