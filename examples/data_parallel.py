"""Train a digit classifier on several processes, each with its part of every batch.

    mpiexec -n 2 python data_parallel.py

Gradients are averaged over the ranks while backward runs, so the losses equal those of one process,
`python data_parallel.py`, up to rounding.
"""

import argparse
from pathlib import Path

import numpy
from numpy.random import default_rng
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm.auto import tqdm

import gradmgr.numpy as np
from gradmgr import GradManager, distributed, errors, nn, optim, tensor
from gradmgr.nn import functional as F

try:
    from tensorboardX import SummaryWriter
except ImportError:
    SummaryWriter = None


def train(model, images, labels, epochs, batch, seed, device):
    """Train on batches that are divided among the ranks; return the loss of each whole batch."""
    reduce = distributed.make_allreduce_cb("mean")
    gm = GradManager().attach(dict(model.named_parameters()), callbacks=reduce)
    optimizer = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    rank, size = distributed.rank(), distributed.size()
    order = default_rng(seed)  # the same on every rank
    losses = []
    for _ in tqdm(range(epochs), desc="training", unit="epoch", disable=rank > 0):
        for chosen in order.permutation(len(images))[: len(images) // batch * batch].reshape(-1, batch):
            mine = chosen[rank::size]
            with gm:
                loss = F.cross_entropy(model(tensor(images[mine], device=device)), labels[mine])
                gm.backward(loss)  # in .grad is now the mean over all ranks
            optimizer.step()
            optimizer.zero_grad()
            losses.append(distributed.all_reduce(loss.detach(), "mean").item())
    return losses


def write_log(folder, losses, accuracy):
    """Write what TensorBoard shows: `tensorboard --logdir FOLDER`."""
    with SummaryWriter(folder) as log:
        for step, loss in enumerate(losses):
            log.add_scalar("loss", loss, step)
        log.add_scalar("accuracy", accuracy, len(losses))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20, help="times to go through the training images")
    parser.add_argument("--batch", type=int, default=48, help="images in a step, shared by all ranks")
    parser.add_argument("--seed", type=int, default=0, help="decides the split, the first weights and the order")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: one GPU for each rank")
    parser.add_argument("--losses", help="where to save the losses, as text")
    parser.add_argument("--log", help="a folder for TensorBoard's scalars; needs the package tensorboardX")
    args = parser.parse_args()
    if min(args.epochs, args.batch) < 1 or args.seed < 0 or (args.losses and not Path(args.losses).parent.is_dir()):
        parser.error("--epochs and --batch must be at least 1, --seed at least 0, --losses in a folder that exists")
    if args.log and SummaryWriter is None:
        parser.error("--log needs tensorboardX: pip install tensorboardX")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    distributed.init("mpi" if args.device == "cpu" else "nccl")
    images, labels = load_digits(return_X_y=True)
    x, test_x, y, test_y = train_test_split(images / 16, labels, test_size=0.2, stratify=labels, random_state=args.seed)
    if args.batch % distributed.size() or args.batch > len(x):
        parser.error(f"--batch must be a multiple of {distributed.size()}, the ranks, and at most {len(x)}, the images")
    rng = default_rng([args.seed, distributed.rank()])  # weights differ by rank here, and
    new = {"rng": rng, "dtype": "float64", "device": args.device}
    model = nn.Sequential(nn.Linear(64, 256, **new), nn.ReLU(), nn.Linear(256, 10, **new))
    distributed.bcast_parameters(model.parameters())  # are those of rank 0 from here on
    losses = train(model, x, y, args.epochs, args.batch, args.seed, args.device)
    if distributed.rank() == 0:
        read = np.argmax(model(tensor(test_x, device=args.device)), axis=1).to("cpu").numpy()
        loss, accuracy = numpy.mean(losses[-30:]), numpy.mean(read == test_y)
        print(f"ranks {distributed.size()}: loss {loss:.4f}, accuracy {accuracy:.1%}")
        if args.losses:
            numpy.savetxt(args.losses, losses, fmt="%.17g")
        if args.log:
            write_log(args.log, losses, accuracy)
