"""Train on several processes and go on without those that fail: start again from the last checkpoint with fewer.

    python elastic.py --ranks 3 --fail-at 25

Rank 0 writes a checkpoint every few steps. When a rank dies, here one that kills itself, the job ends with a status
that is not 0, and is started again with one rank fewer. A batch is divided among the ranks there are, so the result is
that of a run without a failure that goes on with one rank fewer from the same step.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from numpy.random import default_rng
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm.auto import tqdm

import gradmgr
import gradmgr.numpy as np
from gradmgr import GradManager, distributed, errors, nn, optim, tensor
from gradmgr.nn import functional as F


def supervise(ranks, arguments):
    """Run this file with so many ranks, and after each failure with one fewer."""
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    launcher = beside or shutil.which("mpiexec") or sys.exit(f"there is no mpiexec; {errors.how_to_install('mpich')}")
    while ranks:
        command = [launcher, "-n", str(ranks), sys.executable, __file__, *arguments]
        done = subprocess.run(command)  # noqa: S603 (this file itself, with the arguments it was given)
        if done.returncode == 0:
            return
        ranks -= 1
        print(f"the job ended with status {done.returncode}; it goes on with ranks: {ranks}", flush=True)
        arguments = [*arguments, "--fail-at", "-1"]  # a failure that is not repeated
    sys.exit("no rank is left")


def train(images, labels, args):
    """Train from the last checkpoint, or from the start, to the last step; return the model."""
    rank, size = distributed.rank(), distributed.size()
    new = {"rng": default_rng(args.seed), "dtype": "float64", "device": args.device}  # the same weights on every rank
    model = nn.Sequential(nn.Linear(64, 64, **new), nn.ReLU(), nn.Linear(64, 10, **new))
    optimizer = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    order = default_rng([args.seed, 1])
    state, start = {"model": model, "optimizer": optimizer, "order": order}, 0
    if Path(args.checkpoint).exists():
        start = gradmgr.load(args.checkpoint, into=state)["step"]
        if rank == 0:
            print(f"going on from step {start} of {args.steps}, as {args.checkpoint} says; without that file, from 0")
    gm = GradManager().attach(dict(model.named_parameters()), callbacks=distributed.make_allreduce_cb("sum"))
    for step in tqdm(range(start, args.steps), desc=f"ranks: {size}", unit="step", disable=rank > 0):
        if step == args.fail_at and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        chosen = order.integers(0, len(images), args.batch)  # of the whole batch, the same on every rank
        mine = chosen[rank::size]
        with gm:
            loss = F.cross_entropy(model(tensor(images[mine], device=args.device)), labels[mine], reduction="sum")
            gm.backward(loss / args.batch)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % args.every == 0 or step + 1 == args.steps:
            distributed.save(state | {"step": step + 1}, args.checkpoint)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=0, help="processes to start with; 0: this one is a rank itself")
    parser.add_argument("--steps", type=int, default=200, help="steps in all, those of the checkpoint included")
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument(
        "--checkpoint", default="elastic.checkpoint", help="the file, which a run goes on from if it is there"
    )
    parser.add_argument("--fail-at", type=int, default=-1, help="the step at which the last rank kills itself, once")
    parser.add_argument("--batch", type=int, default=48, help="images in a step, shared by all ranks")
    parser.add_argument("--seed", type=int, default=0, help="decides the split, the first weights and the order")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: one GPU for each rank")
    args = parser.parse_args()
    if min(args.steps, args.every) < 1 or args.seed < 0 or args.ranks < 0 or args.batch < max(args.ranks, 1):
        parser.error("--steps and --every must be at least 1, --seed and --ranks 0, --batch the number of ranks")
    if not Path(args.checkpoint).parent.is_dir():
        parser.error("--checkpoint must be in a folder that exists")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    if args.ranks:
        supervise(args.ranks, [*sys.argv[1:], "--ranks", "0"])
        sys.exit()
    distributed.init("mpi" if args.device == "cpu" else "nccl")
    images, labels = load_digits(return_X_y=True)
    x, test_x, y, test_y = train_test_split(images / 16, labels, test_size=0.2, stratify=labels, random_state=args.seed)
    model = train(x, y, args)
    if distributed.rank() == 0:
        read = np.argmax(model(tensor(test_x, device=args.device)), axis=1).to("cpu").numpy()
        print(f"ranks {distributed.size()}: accuracy {(read == test_y).mean():.1%}")
