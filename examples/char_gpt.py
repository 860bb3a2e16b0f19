"""Train a small transformer on the standard library's sources and let it write Python; --compile compiles the step."""

import argparse
import sysconfig
from pathlib import Path
from time import perf_counter

import numpy
from tqdm.auto import tqdm

from gradmgr import GradManager, compile, errors, nn, no_grad, optim, tensor  # noqa: A004  # torch's name


def read_sources(limit):
    """Return up to `limit` characters of the standard library's modules, plain ASCII, as codes."""
    texts = (path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    codes = numpy.frombuffer(b"\n".join(texts).replace(b" " * 4, b"\t"), "uint8")  # an indent is one character
    return codes[(codes < 127) & ((codes >= 32) | (codes == 9) | (codes == 10))][:limit]


class Block(nn.Module):
    """Causal attention, then a perceptron at each position, each with a residual connection."""

    def __init__(self, width, heads, **new):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, device=new["device"]), nn.LayerNorm(width, device=new["device"])
        self.into, self.out = nn.Linear(width, 3 * width, **new), nn.Linear(width, width, **new)
        self.up, self.down = nn.Linear(width, 4 * width, **new), nn.Linear(4 * width, width, **new)

    def forward(self, x):
        q, k, v = self.into(self.norm1(x)).reshape(*x.shape[:2], 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(0, 2, 1, 3).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A model of the scores (logits) of the next character at each position."""

    def __init__(self, characters, length, width, depth, heads, **new):
        super().__init__()
        self.length = length
        self.letters, self.places = nn.Embedding(characters, width, **new), nn.Embedding(length, width, **new)
        self.blocks = nn.Sequential(*[Block(width, heads, **new) for _ in range(depth)])
        self.norm, self.scores = nn.LayerNorm(width, device=new["device"]), nn.Linear(width, characters, False, **new)
        for table in self.letters.weight, self.places.weight:
            nn.init.normal_(table, std=0.2, rng=new["rng"])

    def forward(self, codes):
        x = self.letters(codes) + self.places.weight[: codes.shape[1]]
        return self.scores(self.norm(self.blocks(x)))


def train(model, text, rng, steps, batch, device, is_compiled):
    """Train with AdamW on random sections of the text; return losses, in nats per character, and times of all steps."""
    gm, losses, times = GradManager().attach(model.parameters()), [], []
    optimizer = optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.05)
    warm_up = optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=max(steps // 20, 1))
    fall = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps, eta_min=1e-4)
    schedule = optim.lr_scheduler.SequentialLR(optimizer, [warm_up, fall], [max(steps // 20, 1)])

    def step(seen, wanted):
        with gm:
            loss = nn.functional.cross_entropy(model(seen).reshape(len(wanted), -1), wanted)
            gm.backward(loss)
        optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = compile(step) if is_compiled else step
    for _ in (bar := tqdm(range(steps), desc="reading", unit="step")):
        seen = text[rng.integers(0, len(text) - model.length, (batch, 1)) + numpy.arange(model.length + 1)]
        begun = perf_counter()
        losses.append(step(tensor(seen[:, :-1], device=device), tensor(seen[:, 1:].ravel(), device=device)).item())
        times.append(perf_counter() - begun)
        schedule.step()
        bar.set_postfix(loss=f"{numpy.mean(losses[-50:]):.3f}", refresh=False)
    return losses, times


def write(model, codes, count, rng, device, warmth=0.6):
    """Extend `codes` by `count` characters, each sampled from the model's distribution."""
    with no_grad():
        for _ in range(count):
            scores = model(tensor(numpy.array([codes[-model.length :]]), device=device))[0, -1]
            chances = nn.functional.softmax(scores / warmth, dim=-1).to("cpu").numpy().astype(float)
            codes.append(rng.choice(len(chances), p=chances / chances.sum()))
    return codes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=2400, help="of training")
    parser.add_argument("--length", type=int, default=64, help="characters it sees at once")
    parser.add_argument("--width", type=int, default=96, help="numbers that stand for a character")
    parser.add_argument("--depth", type=int, default=3, help="blocks")
    parser.add_argument("--sample", type=int, default=500, help="characters to write at the end")
    parser.add_argument("--seed", type=int, default=0, help="decides weights, places and the sample")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--compile", action="store_true", help="the training step")
    args = parser.parse_args()
    if min(args.steps, args.depth) < 1 or not 1 <= args.length <= 1024 or min(args.sample, args.seed) < 0:
        parser.error("--steps and --depth must be at least 1, --length 1 to 1024, --sample and --seed at least 0")
    if args.width < 4 or args.width % 4:
        parser.error("--width must be a multiple of 4, the heads of attention")
    try:
        tensor(0.0, device=args.device)
    except (ValueError, errors.DeviceError) as error:
        parser.error(f"--device: {error}")
    rng = numpy.random.default_rng(args.seed)
    alphabet, text = numpy.unique(read_sources(4_000_000), return_inverse=True)
    model = GPT(len(alphabet), args.length, args.width, args.depth, heads=4, rng=rng, device=args.device)
    print(f"{sum(p.size for p in model.parameters()):,} parameters, {len(text):,} characters to read")
    losses, times = train(model, text, rng, args.steps, batch=16, device=args.device, is_compiled=args.compile)
    prompt = numpy.searchsorted(alphabet, numpy.frombuffer(b"\ndef ", "uint8"))
    print(bytes(alphabet[write(model, [*prompt], args.sample, rng, args.device)]).decode().expandtabs(4))
    print(f"\nloss {numpy.mean(losses[-50:]):.3f} nats a character, {1e3 * numpy.median(times):.1f} ms a step")
