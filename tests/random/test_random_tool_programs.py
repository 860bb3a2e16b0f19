"""Random programs that use all tools: each runs with them, and once as bare mathematics under one manager.

A program is a tree of statements over a growing list of tensors. Statements compute (among them
operations of several results, complex numbers, loops of reads and writes), or run a body of further
statements: computed again by a checkpoint, mapped, differentiated, in a thread, in steps of a generator,
under hooks and modes. The plain machine does the same by the simplest means there are: a loop for vmap, nested
managers for every derivative, a factor for a hook, a copied array for what is cut. It is itself held
against central differences.

After each program: nothing is current, no recorder, interceptor or observer is left, nothing is alive. A second
run gives the same bits; a run that is made to fail anywhere in the user's part changes nothing.
"""

import asyncio
import contextlib
import contextvars
import gc
import math
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from helpers import assert_allclose, seeded_random

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import Function, GradManager, custom_op, forward_ad, functional, graph, special, tensor
from gradmgr._engine import context, observers
from gradmgr._engine.entry import VJPS as RULES
from gradmgr._engine.history import modes
from gradmgr._engine.history.node import edge_to_node, tapes_with_result, tracking_tapes
from gradmgr.profiler import profile, record_function


class InjectedError(Exception):
    """What a fuse raises."""


class InjectedInterruptError(BaseException):
    """The same, where it is no Exception."""


class Fuse:
    """Counts the calls of the user's functions, and raises in one of them."""

    def __init__(self):
        self.count, self.at, self.kind = 0, None, InjectedError

    def reset(self, at=None, kind=InjectedError):
        self.count, self.at, self.kind = 0, at, kind

    def __call__(self):
        self.count += 1
        if self.count == self.at:
            raise self.kind(f"number {self.at}")


fuse = Fuse()

# ---------------------------------------------------------------- programs


class Statement(NamedTuple):
    name: str
    seed: int
    body: tuple = ()


COMPUTES = ["unary", "binary", "matrix", "complex", "loop", "write_local", "write", "several", "own", "stop", "look"]
SCOPES = ["packed", "anomaly", "profiled", "allowed", "threaded", "stepped", "awaited"]
DERIVATIVES = {"vjp": 1, "jvp": 1, "hvp": 2}  # and their order
BODIES = [*SCOPES, *SCOPES, *["checkpoint"] * 3, "sequential", "vmap", "vmap", "cut", *DERIVATIVES]


def make_body(rng, depth, order, hooks, noise=True):
    """Return random statements: so many bodies in bodies, so many derivatives in derivatives."""
    made = []
    for _ in range(rng.randint(2, 4)):
        seed = rng.randrange(2**30)
        if depth and rng.random() < 0.6:
            name = rng.choice(BODIES)
            if DERIVATIVES.get(name, 0) > order:
                name = "checkpoint"
            hooked = hooks and name not in ("jvp", "hvp")  # what doubles a gradient does not double a tangent
            once = noise and name != "vmap" and name not in DERIVATIVES
            made.append(
                Statement(name, seed, make_body(rng, depth - 1, order - DERIVATIVES.get(name, 0), hooked, once))
            )
        else:
            names = [*COMPUTES, *["hook"] * 2 * hooks, *["noise"] * noise]
            made.append(Statement(rng.choice(names), seed))
    return tuple(made)


def as_text(program, indent=0):
    """Return a program as text."""
    return "\n".join(
        " " * indent + f"{s.name} {s.seed}" + ("\n" + as_text(s.body, indent + 2) if s.body else "") for s in program
    )


# ---------------------------------------------------------------- operations of the user


class Twist(Function):
    """sin(x) y, with everything that a Function may have."""

    @staticmethod
    def forward(ctx, x, y):
        fuse()
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        return gnp.sin(x) * y

    @staticmethod
    def backward(ctx, g):
        fuse()
        x, y = ctx.saved_tensors
        return g * y * gnp.cos(x), g * gnp.sin(x)

    @staticmethod
    def jvp(ctx, dx, dy):
        fuse()
        x, y = ctx.saved_tensors
        return dx * y * gnp.cos(x) + dy * gnp.sin(x)


class Both(Function):
    """tanh(x) and x tanh(x), from a saved result."""

    @staticmethod
    def forward(x):
        fuse()
        t = gnp.tanh(x)
        return t, x * t

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output[0])
        ctx.save_for_forward(inputs[0], output[0])

    @staticmethod
    def vjp(ctx, g, h):
        fuse()
        x, t = ctx.saved_tensors
        return (g + h * x) * (1 - t * t) + h * t

    @staticmethod
    def jvp(ctx, dx):
        fuse()
        x, t = ctx.saved_tensors
        d = (1 - t * t) * dx
        return d, x * d + t * dx


class Dirty(Function):
    """tanh(x), written into x, and a result without a derivative."""

    @staticmethod
    def forward(ctx, x):
        fuse()
        ctx.set_materialize_grads(False)
        signs = gnp.sign(x)
        x.tanh_()
        ctx.mark_dirty(x)
        ctx.mark_non_differentiable(signs)
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x, signs

    @staticmethod
    def backward(ctx, g, unused):
        fuse()
        (t,) = ctx.saved_tensors
        return None if g is None else g * (1 - t * t)

    @staticmethod
    def jvp(ctx, dx):
        fuse()
        (t,) = ctx.saved_tensors
        return dx * (1 - t * t), None


def _rule_x(g, x, out, rate):
    fuse()
    return g * rate * (1 - (out / (1 + x * 0)) ** 2)


@custom_op(derivative={"x": _rule_x})
def squash(x, rate=1.0):
    fuse()
    return np.tanh(rate * x)


@custom_op(
    vjp={"x": lambda g, y, c: g / (c + y * y), "y": lambda g, y, out, c: -g * out * 2 * y / (c + y * y)},
    jvp={"x": lambda t, y, c: t / (c + y * y), "y": lambda t, y, out, c: -t * out * 2 * y / (c + y * y)},
)
def divide(x, y, c):
    fuse()
    return x / (c + y * y)


# ---------------------------------------------------------------- the machine


class Env(list):
    """The tensors that a program can see; those below `low` it does not write to."""

    low = 0

    def inside(self, *more, closed):
        made = Env([*self, *more])
        made.low = len(self) if closed else self.low
        if closed:
            self.low = len(self)  # what a function reads without being given it must stay
        return made

    def pick(self, rng):
        return self[rng.randrange(len(self))]


class Machine:
    """Runs programs: with the tools, or plainly."""

    def __init__(self, shape, *, plain, forward=False, constants=None):
        self.shape = shape
        self.plain = plain
        self.forward = int(forward)  # how many levels of forward mode stand around
        self.mapped = 0  # how many vmaps
        self.kept = []  # weak references to what must not outlive a run
        self.noise = np.random.default_rng(0)
        self.constants = [] if constants is None else constants  # what was cut, to be cut again
        self.replaying = constants is not None
        self.at = 0
        self.running = False  # an event loop
        self.cut = False  # whether nothing is differentiated
        self.swallowed = False  # by a checkpoint, so that there are no nodes

    def run(self, body, env):
        for statement in body:
            self.step(statement, env)

    def step(self, s, env):
        if not self.plain:
            fuse()
        semantics, ways = seeded_random(s.seed), seeded_random(s.seed + 1)
        globals()[f"do_{s.name}"](self, env, s, semantics, ways)

    def add(self, env, t):
        """Append a value, made small."""
        env.append(3 * gnp.tanh(t / 3))

    def constant(self, t):
        if self.replaying:
            value = self.constants[self.at]
            self.at += 1
        else:
            value = t.numpy().copy()
            self.constants.append(value)
        return tensor(value)


def example(rng, shape):
    return np.random.default_rng(rng.randrange(2**30)).uniform(-1, 1, shape)


# ---------------------------------------------------------------- statements that compute


def do_unary(m, env, s, rng, way):
    x = env.pick(rng)
    f = rng.choice(
        [
            gnp.sin,
            gnp.tanh,
            lambda x: x * x,
            lambda x: gnp.exp(-x * x),
            lambda x: 1 / (2 + x * x),
            lambda x: gnp.cumsum(x, axis=-1),
            lambda x: x - gnp.mean(x, axis=-1, keepdims=True),
            lambda x: gnp.where(x > 0.1, x * 0.5, gnp.sin(x)),
            lambda x: gnp.sort(x, axis=-1) * gnp.max(x, axis=-1, keepdims=True),
            lambda x: x[..., [2, 0, 0]] + x[..., 1:2],
            lambda x: gnp.take_along_axis(x, gnp.argsort(-x, axis=-1), axis=-1),
            lambda x: special.softmax(x, axis=-1) + gnp.std(x - gnp.arange(3.0), axis=-1, keepdims=True),
            lambda x: gnp.cumprod(1 + 0.1 * x, axis=-1) * gnp.prod(x + 2, axis=-1)[..., None] / 8,
        ]
    )
    m.add(env, f(x))


def do_binary(m, env, s, rng, way):
    x, y = env.pick(rng), env.pick(rng)
    f = rng.choice(
        [
            gnp.add,
            gnp.multiply,
            gnp.subtract,
            lambda x, y: x / (1 + y * y),
            lambda x, y: x[..., ::-1] - 2 * y,
            gnp.maximum,
        ]
    )
    m.add(env, f(x, y))


def do_matrix(m, env, s, rng, way):
    x, y = gnp.sin(env.pick(rng)), gnp.cos(env.pick(rng))
    a = x[..., :, None] * y[..., None, :] + 3 * gnp.diag([1.0, 2.5, 4.0])
    f = rng.choice(
        [
            lambda a: gnp.linalg.eigh(a + gnp.swapaxes(a, -1, -2))[0] / 4,
            lambda a: _functional_of_eigh(a + gnp.swapaxes(a, -1, -2)),
            lambda a: gnp.linalg.svd(a)[1] / 4,
            lambda a: gnp.abs(gnp.linalg.qr(a)[1]).sum(axis=-1) / 4,
            lambda a: x * gnp.linalg.slogdet(a)[1][..., None],
            lambda a: gnp.linalg.solve(a, y[..., None])[..., 0],
            lambda a: gnp.einsum("...ij,...j->...i", gnp.linalg.inv(a), x),
        ]
    )
    m.add(env, f(a))


def _functional_of_eigh(a):
    w, v = gnp.linalg.eigh(a)
    return gnp.diagonal((v * gnp.sin(w)[..., None, :]) @ gnp.swapaxes(v, -1, -2), axis1=-2, axis2=-1)


def do_complex(m, env, s, rng, way):
    x, y = env.pick(rng), env.pick(rng)
    z = x + 1j * y
    f = rng.choice(
        [
            lambda z: gnp.abs(gnp.fft.fft(z) + 5),
            lambda z: (z * gnp.conj(z)).real,
            lambda z: gnp.exp(z).imag,
            lambda z: gnp.fft.irfft(gnp.fft.rfft(z.real), n=3) - (1 / (3 + z)).imag,
        ]
    )
    m.add(env, f(z))


def do_several(m, env, s, rng, way):
    x = env.pick(rng)
    parts = gnp.split(x, [1, 2], axis=-1) if rng.random() < 0.5 else gnp.unstack(x[..., None, :], axis=-1)
    m.add(env, gnp.concatenate([parts[2] * parts[0], parts[0], parts[1]], axis=-1))


def do_own(m, env, s, rng, way):
    x, y = env.pick(rng), env.pick(rng)
    kind = rng.randrange(5)
    if kind == 0:
        m.add(env, gnp.sin(x) * y if m.plain else Twist.apply(x, y))
    elif kind == 3:
        z = x * 0.5
        m.add(env, gnp.tanh(z) if m.plain else Dirty.apply(z)[0])
    elif kind == 4:
        m.add(env, x / (2 + y * y) if m.plain else divide(x, y, 2))
    elif kind == 1:
        t, u = (gnp.tanh(x), x * gnp.tanh(x)) if m.plain else Both.apply(x)
        m.add(env, t - u if rng.random() < 0.5 else u)
    else:
        rate = rng.choice([1.0, 0.5])
        m.add(env, gnp.tanh(rate * x) if m.plain else squash(x, rate=rate))


def do_loop(m, env, s, rng, way):
    """z[i] = f(z[i - 1]), reading what was written."""
    x, y = env.pick(rng), env.pick(rng)
    if m.plain:
        parts = [x[..., 0]]
        for i in (1, 2):
            parts.append(gnp.sin(parts[-1]) * y[..., i])
        m.add(env, gnp.stack(parts, axis=-1))
        return
    z = x * 1.0
    for i in (1, 2):
        z[..., i] = gnp.sin(z[..., i - 1]) * y[..., i]
    m.add(env, z)


def _overwritten(m, z, y, rng, way):
    """Return z with y written into it: in place, or as a function."""
    kind = rng.randrange(6)
    if m.plain:
        first = z[..., :1]
        return [
            lambda: z + y,
            lambda: z * y,
            lambda: gnp.concatenate([y[..., 1:2], z[..., 1:]], axis=-1),
            lambda: gnp.sin(z),
            lambda: gnp.concatenate([first, z[..., 1:] + y[..., :2]], axis=-1),
            lambda: gnp.stack([y[..., 1], z[..., 1], z[..., 1] * y[..., 2]], axis=-1),
        ][kind]()
    if kind == 0:
        way.choice([lambda: z.__iadd__(y), lambda: z.add_(y), lambda: gnp.add(z, y, out=z)])()
    elif kind == 1:
        way.choice([lambda: z.__imul__(y), lambda: z.mul_(y), lambda: gnp.multiply(z, y, out=z)])()
    elif kind == 2:
        z[..., 0] = y[..., 1]
    elif kind == 3:
        way.choice([z.sin_, lambda: gnp.sin(z, out=z), lambda: z.copy_(gnp.sin(z))])()
    elif kind == 4:
        z[..., 1:] += y[..., :2]
    else:
        z[..., [2, 0]] = gnp.stack([z[..., 1] * y[..., 2], y[..., 1]], axis=-1)
    return z


def do_write_local(m, env, s, rng, way):
    x, y = env.pick(rng), env.pick(rng)
    z = x * 1.0
    m.add(env, _overwritten(m, z, y, rng, way))


def do_write(m, env, s, rng, way):
    """Write to a variable that others have read."""
    if env.low < len(env):
        k, y = rng.randrange(env.low, len(env)), env.pick(rng)
        env[k] = _overwritten(m, env[k], gnp.sin(y), rng, way)


def do_stop(m, env, s, rng, way):
    t = gnp.cos(env.pick(rng))
    if m.plain:
        m.add(env, m.constant(t))
        return
    ways = [lambda: t.detach(), lambda: (t * 1.0).detach_(), lambda: _inference(t)]
    if not m.mapped:
        ways += [lambda: tensor(t.numpy()), lambda: tensor(t.tolist())]
    if not m.forward:
        ways += [lambda: gradmgr.no_grad(lambda: t * 1.0)(), lambda: _disabled(t), lambda: _overwritten_unseen(t)]
    m.add(env, way.choice(ways)())


def _inference(t):
    with gradmgr.inference_mode():
        return t * 1.0


def _disabled(t):
    with gradmgr.set_grad_enabled(True):
        gradmgr.set_grad_enabled(False)
        return t * 1.0


def _overwritten_unseen(t):
    t = t * 1.0
    with gradmgr.no_grad():
        t *= 1.0
    return t


def do_noise(m, env, s, rng, way):
    """Random numbers, which a checkpoint has to draw again; where a body runs once, so that there are as many."""
    m.add(env, env.pick(rng) * m.noise.uniform(-1, 1, m.shape))


def do_look(m, env, s, rng, way):
    """Inspect the history by every public function; that must change nothing."""
    t = env.pick(rng)
    if m.plain:
        return
    for tape in tracking_tapes(t):
        gm = tape.owner()
        assert str(len(tape.leaves)) in gm.summary()
        assert gm.explain(t)
    if t.requires_grad and not (m.swallowed or m.cut):
        edge = graph.get_gradient_edge(t)
        assert t.is_leaf or t.grad_fn.next_functions
        assert edge.node.name() in graph.to_dot(t) + graph.to_mermaid(t) + "AccumulateGrad"


def do_hook(m, env, s, rng, way):
    """The gradient of a value is doubled by one kind of hook or another; some only look."""
    z = gnp.sin(env.pick(rng)) * 0.7
    if m.plain:
        env.append(2 * z - m.constant(z))
        return

    with_derivative = way.random() < 0.3

    def doubled(g):
        fuse()
        if with_derivative:
            return functional.vjp(lambda a: a * a, tensor(np.ones(g.shape)), g, create_graph=True)[1]
        return g * 2

    if z.requires_grad:
        kinds = ["tensor", "prehook", "node"] if not (m.mapped or m.swallowed) else ["tensor"]
        kind = way.choice(kinds)
        if kind == "tensor":
            z.register_hook(doubled)
        elif kind == "prehook":
            _on_every_tape(z, lambda node: node.register_prehook(lambda gs: (doubled(gs[0]),)))
        else:
            _on_every_tape(z, lambda node: node.register_hook(lambda gs, out: tuple([doubled(g) for g in gs])))
        z.register_hook(lambda g: fuse())
        if way.random() < 0.3:
            graph.register_multi_grad_hook([z], lambda gs: fuse(), mode=way.choice(["all", "any"]))
        if way.random() < 0.3:
            z.retain_grad()
    env.append(z)


def _on_every_tape(t, register):
    """Register on the node of each tape that tracks a tensor; the public functions do so for the innermost alone."""
    for tape in tapes_with_result(t):
        register(edge_to_node(tape, tape.node_id_of(t)).node)


# ---------------------------------------------------------------- statements with a body


def _fresh(m, env, body, closed=False, more=()):
    """Run a body on variables of its own; return the environment afterwards."""
    made = env.inside(*more, closed=closed)
    m.run(body, made)
    return made


def do_packed(m, env, s, rng, way):
    if m.plain:
        return m.run(s.body, env)
    store = {}

    def pack(t):
        fuse()
        store[len(store)] = t.detach()
        return len(store) - 1

    def unpack(k):
        fuse()
        return store[k].clone()

    hooks = [
        lambda: graph.saved_tensors_hooks(pack, unpack),
        lambda: graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        lambda: graph.save_on_cpu(),
        lambda: graph.disable_saved_tensors_hooks("not here") if not s.body else contextlib.nullcontext(),
    ]
    with way.choice(hooks)():
        return m.run(s.body, env)


def do_anomaly(m, env, s, rng, way):
    if m.plain:
        return m.run(s.body, env)
    with gradmgr.detect_anomaly(check_nan=way.random() < 0.5):
        return m.run(s.body, env)


def do_profiled(m, env, s, rng, way):
    if m.plain:
        return m.run(s.body, env)
    with profile(record_shapes=way.random() < 0.5, profile_memory=way.random() < 0.5) as found, record_function("body"):
        m.run(s.body, env)
    assert found.total_average() is not None
    return None


def do_allowed(m, env, s, rng, way):
    """Modes that let everything go on, inside others that do not."""
    if m.plain or m.cut:
        return m.run(s.body, env)
    if m.forward:
        with gradmgr.inference_mode(), gradmgr.inference_mode(False):
            return m.run(s.body, env)
    with contextlib.ExitStack() as stack:
        for _ in range(way.randrange(2)):
            stack.enter_context(gradmgr.no_grad())
        stack.enter_context(way.choice([gradmgr.enable_grad, lambda: gradmgr.set_grad_enabled(True)])())
        return m.run(s.body, env)


def do_threaded(m, env, s, rng, way):
    """In another thread, with a copy of the context."""
    if m.plain:
        return m.run(s.body, env)
    raised = []

    def work():
        try:
            m.run(s.body, env)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    thread.join()
    if raised:
        raise raised.pop()
    return None


def do_stepped(m, env, s, rng, way):
    """In steps of a generator, between which other modes hold."""
    if m.plain or m.cut:
        return m.run(s.body, env)

    @gradmgr.enable_grad()
    def steps():
        for statement in s.body:
            m.step(statement, env)
            yield

    consumer = contextlib.nullcontext() if m.forward else gradmgr.no_grad()
    with consumer:
        for _ in steps():
            pass
    return None


def do_awaited(m, env, s, rng, way):
    """In an asyncio task."""
    if m.plain or m.running:
        return m.run(s.body, env)

    async def work():
        for statement in s.body:
            await asyncio.sleep(0)
            m.step(statement, env)

    m.running = True
    try:
        asyncio.run(work())
    finally:
        m.running = False
    return None


def do_checkpoint(m, env, s, rng, way):
    closed = rng.random() < 0.5
    count = len(env)
    around = m.forward, m.mapped, m.cut, True

    def again(made):
        """Run the body, where the same stands around as the first time."""
        fuse()
        now = m.forward, m.mapped, m.cut, m.swallowed
        m.forward, m.mapped, m.cut, m.swallowed = around
        try:
            m.run(s.body, made)
        finally:
            m.forward, m.mapped, m.cut, m.swallowed = now

    if m.plain:
        made = _fresh(m, env, s.body, closed)
    elif closed:
        inside = env.inside(closed=True)

        def closing():
            made = Env(inside)
            made.low = inside.low
            again(made)
            return Env(made)

        made = gradmgr.checkpoint(closing, **_options(way))
    else:
        low_before = env.low

        def function(*args):
            made = Env(args)
            made.low = low_before
            again(made)
            return made[:count], made[count:], made.low

        _, new, low = gradmgr.checkpoint(function, *env, **_options(way))
        env.low = min(max(env.low, low), count)
        env.extend(new)
        return
    for k in range(count):
        env[k] = made[k]
    env.low = min(max(env.low, made.low), count)
    env.extend(made[count:])


def _options(way):
    options = {"debug": way.random() < 0.3}
    if way.random() < 0.3:
        options["context_fn"] = lambda: (graph.save_on_cpu(), graph.saved_tensors_hooks(lambda t: t, lambda t: t))
    return options


def do_sequential(m, env, s, rng, way):
    """A chain, each part of which reads what the one before gave."""
    x = env.pick(rng)
    around = m.forward, m.mapped, m.cut, True

    def part(statement):
        def run(x):
            now = m.forward, m.mapped, m.cut, m.swallowed
            m.forward, m.mapped, m.cut, m.swallowed = around
            try:
                made = Env([x, x * 0.5])
                made.low = 2
                m.step(statement, made)
                return gnp.sin(made[-1])
            finally:
                m.forward, m.mapped, m.cut, m.swallowed = now

        return run

    parts = [part(statement) for statement in s.body]
    if m.plain:
        for f in parts:
            x = f(x)
        env.append(x)
    else:
        env.append(gradmgr.checkpoint_sequential(parts, way.randint(1, len(parts)), x))


def do_cut(m, env, s, rng, way):
    """A body whose results are not differentiated."""
    if m.plain:
        env.append(m.constant(_fresh(m, env, s.body, closed=True)[-1]))
        return
    before, m.cut = m.cut, True
    try:
        with gradmgr.inference_mode() if m.forward or way.random() < 0.3 else gradmgr.no_grad():
            made = _fresh(m, env, s.body, closed=True)[-1]
    finally:
        m.cut = before
    env.append(made.detach() if any(made is t for t in env) else made)


def do_vmap(m, env, s, rng, way):
    rows = [env.pick(rng) for _ in range(rng.randint(1, 3))]
    chosen = rng.randrange(len(rows) + 1)
    if m.plain:
        stacked = gnp.stack([_fresh(m, env, s.body, closed=True, more=(row * 1.0,))[-1] for row in rows])
    else:

        def function(row):
            fuse()
            return _fresh(m, env, s.body, closed=True, more=(row,))[-1]

        axis, out = way.choice([0, 1, -1]), way.choice([0, -1])
        m.mapped += 1
        try:
            chunk = way.choice([None, None, 1, 2])
            stacked = gradmgr.vmap(function, in_dims=axis, out_dims=out, chunk_size=chunk)(gnp.stack(rows, axis=axis))
        finally:
            m.mapped -= 1
        stacked = gnp.moveaxis(stacked, out, 0)
    m.add(env, gnp.mean(stacked, axis=0) if chosen == len(rows) else stacked[chosen])


def _function_of(m, env, body):
    """Return a body as a function of one tensor; what else it uses is constant when it is differentiated."""

    def f(x):
        if not m.plain:
            fuse()
        return _fresh(m, env, body, closed=True, more=(x * 1.0,))[-1] + 0.5 * x * x

    return f


def do_vjp(m, env, s, rng, way):
    """The product of a vector and a Jacobian."""
    x, u = env.pick(rng) * 1.0, example(rng, m.shape)
    f = _function_of(m, env, s.body)
    m.add(env, (plain_vjp if m.plain else way.choice(VJP_KINDS))(m, f, x, u))


def do_hvp(m, env, s, rng, way):
    """The product of a Hessian and a vector."""
    x, u, v = env.pick(rng) * 1.0, example(rng, m.shape), example(rng, m.shape)
    f = _function_of(m, env, s.body)
    if m.plain:
        m.add(env, plain_vjp(m, lambda x: plain_vjp(m, f, x, u) * v, x, np.ones(m.shape)))
        return
    kinds = [hvp_reverse, hvp_forward_over_reverse, hvp_reverse_over_forward, hvp_functional, hvp_by_rows]
    m.add(env, way.choice(kinds)(m, f, x, u, v))


def hvp_reverse(m, f, x, u, v):
    with GradManager().attach(x):
        y = gnp.sum(f(x) * u)
        (g,) = gradmgr.grad(y, x, create_graph=True)
        (h,) = gradmgr.grad(g, x, v)
    return h


def hvp_forward_over_reverse(m, f, x, u, v):
    with _under_forward(m), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)
        return forward_ad.unpack_dual(functional.vjp(f, dual, u, create_graph=True)[1]).tangent


def hvp_reverse_over_forward(m, f, x, u, v):
    with _under_forward(m):
        return functional.vjp(lambda x: functional.jvp(f, x, v, create_graph=True)[1], x, u, create_graph=True)[1]


def hvp_functional(m, f, x, u, v):
    product = functional.hvp if u.flat[0] > 0 else functional.vhp
    with _under_forward(m):
        return product(lambda x: gnp.sum(f(x) * u), x, v, create_graph=True)[1]


def hvp_by_rows(m, f, x, u, v):
    if len(m.shape) > 1:
        return hvp_functional(m, f, x, u, v)

    def weighted(x):
        return gnp.sum(f(x) * u)

    with _under_forward(m):
        if u[0] > 0:  # vectorised, by either strategy
            strategy = "forward-mode" if u[1] > 0 else "reverse-mode"
            options = {"vectorize": True, "outer_jacobian_strategy": strategy}
            h = functional.hessian(weighted, x, create_graph=True, **options)
        elif u[1] > 0:
            h = functional.hessian(weighted, x, create_graph=True)
        else:
            h = functional.jacobian(functional.grad(weighted), x, create_graph=True)
    return h @ v


def do_jvp(m, env, s, rng, way):
    """The product of a Jacobian and a vector."""
    x, v = env.pick(rng) * 1.0, example(rng, m.shape)
    f = _function_of(m, env, s.body)
    if m.plain:
        m.add(env, plain_jvp(m, f, x, v))
        return
    m.add(env, way.choice(JVP_KINDS)(m, f, x, v))


def plain_vjp(m, f, x, u):
    x = x * 1.0  # an outer one may have attached it too
    gm = GradManager().attach(x)
    with gm:
        gm.backward(f(x), u)
    return x.grad


def plain_jvp(m, f, x, v):
    """u'Jv is linear in u; its gradient is Jv."""
    u = tensor(np.zeros(m.shape))
    gm = GradManager().attach(u)
    with gm:
        gm.backward(gnp.sum(plain_vjp(m, f, x, u) * v))
    return u.grad


def vjp_with_manager(m, f, x, u):
    gm = GradManager(with_stack=True).attach(x, callbacks=_undone())
    with gm:
        gm.backward(f(x), u)
    return x.grad


def vjp_with_group(m, f, x, u):
    gm, other = GradManager().attach(x), GradManager().attach(x)
    with gm | other:
        y = f(x)
        gm.backward(y, u)
        g, x.grad = x.grad, None
        other.backward(y, u)
    return (g + x.grad) / 2


def vjp_with_grad(m, f, x, u):
    with GradManager().attach(x):
        (g,) = gradmgr.grad(f(x), x, u)
    return g


def vjp_with_create_graph(m, f, x, u):
    """The derivative is recorded by the same manager."""
    with GradManager().attach(x):
        y = f(x)
        (g,) = gradmgr.grad(y, x, u, create_graph=True)
        gradmgr.grad(gnp.sum(g), x, allow_unused=True)
    return g


def vjp_batched(m, f, x, u):
    with GradManager().attach(x):
        (g,) = gradmgr.grad(f(x), x, np.stack([u, 2 * u]), is_grads_batched=True)
    return g[1] / 2


def vjp_of_intermediate(m, f, x, u):
    with GradManager().attach(x):
        z = x * 2
        (g,) = gradmgr.grad(f(z * 0.5), z, u)
    return g * 2


def vjp_functional(m, f, x, u):
    return functional.vjp(f, x, u, create_graph=True)[1]


def vjp_of_sum(m, f, x, u):
    return functional.grad(lambda x: gnp.sum(f(x) * u))(x)


def vjp_retained(m, f, x, u):
    gm = GradManager().attach(x)
    with gm:
        y = f(x)
        gm.backward(y, u, retain=True)
        x.grad = None
        gm.backward(y, u)
    return x.grad


def vjp_by_rows(m, f, x, u):
    if len(m.shape) > 1:
        return vjp_functional(m, f, x, u)
    return u @ functional.jacobian(f, x, create_graph=True, vectorize=bool(u[0] > 0))


VJP_KINDS = [
    vjp_by_rows,
    vjp_with_manager,
    vjp_with_group,
    vjp_with_grad,
    vjp_with_create_graph,
    vjp_batched,
    vjp_of_intermediate,
    vjp_functional,
    vjp_of_sum,
    vjp_retained,
]


@contextlib.contextmanager
def _under_forward(m):
    m.forward += 1
    try:
        yield
    finally:
        m.forward -= 1


def jvp_dual(m, f, x, v):
    with _under_forward(m), forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, v))).tangent


def jvp_dual_twice(m, f, x, v):
    """Inside a level that is not used."""
    with _under_forward(m), forward_ad.dual_level(), forward_ad.dual_level() as level:
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, v)), level=level).tangent


def jvp_functional(m, f, x, v):
    with _under_forward(m):
        return functional.jvp(f, x, v, create_graph=True)[1]


def jvp_by_reverse(m, f, x, v):
    u = tensor(np.zeros(m.shape))
    (g,) = [functional.vjp(lambda u: functional.vjp(f, x, u, create_graph=True)[1], u, v, create_graph=True)[1]]
    return g


def jvp_mapped(m, f, x, v):
    """The tangents of two directions at once."""

    def one(v):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x * 1.0 + 0 * v, v))).tangent

    m.mapped += 1
    try:
        with _under_forward(m):
            return gradmgr.vmap(one)(tensor(np.stack([v, -v])))[0]
    finally:
        m.mapped -= 1


def jvp_by_columns(m, f, x, v):
    if len(m.shape) > 1:
        return jvp_functional(m, f, x, v)
    with _under_forward(m):
        return functional.jacobian(f, x, create_graph=True, vectorize=True, strategy="forward-mode") @ v


JVP_KINDS = [jvp_by_columns, jvp_dual, jvp_dual_twice, jvp_functional, jvp_by_reverse, jvp_mapped]


class Later:
    """A future."""

    def __init__(self, g):
        self.g = g

    def get(self):
        fuse()
        return self.g


def _undone():
    """Callbacks that change a gradient and change it back, one by a future."""

    def double(t, g):
        fuse()
        return g * 2

    def halve(t, g):
        fuse()
        return Later(g * 0.5)

    return [double, halve]


# ---------------------------------------------------------------- whole programs


class Case:
    """A program, and what it is to be differentiated with."""

    def __init__(self, seed):
        rng = seeded_random(seed)
        self.seed = seed
        self.forward = rng.random() < 0.2
        self.second = not self.forward and rng.random() < 0.3
        self.program = make_body(rng, 3, 1 if self.second else 2, hooks=not self.forward)
        self.shape = (200, 3) if rng.random() < 0.08 else (3,)  # arrays that a budget moves out, or small ones
        self.values = [example(rng, self.shape) for _ in range(3)]
        self.weights = example(rng, self.shape)
        self.direction = [example(rng, self.shape) for _ in self.values]

    def __repr__(self):
        return f"seed {self.seed}, {'forward' if self.forward else 'reverse'}\n{as_text(self.program)}"

    def computed(self, m, leaves, attach=None):
        """Run the program, a statement at each step; return the result, all variables, and what `attach` gave.

        Args:
            m: the machine.
            leaves: the first variables.
            attach: takes an intermediate value, from which the second half goes on; returns what is to go on from,
                and anything.
        """
        anchor = sum(leaf * leaf for leaf in leaves)
        env = Env(leaves)
        half = len(self.program) // 2
        for statement in self.program[:half]:
            m.step(statement, env)
            yield
        z = gnp.sin(env[-1]) + 0.1 * anchor
        z, probe = (z, None) if attach is None else attach(z)
        env.append(z)
        for statement in self.program[half:]:
            m.step(statement, env)
            yield
        out = anchor
        for k, t in enumerate(env):
            out = out + t * math.cos(k)
        m.kept += [weakref.ref(t) for t in env] + [weakref.ref(_owner(t._array)) for t in env]
        return out, env, probe

    def along(self, gradients):
        """Return the slope along the direction, given gradients of the leaves."""
        return sum(gnp.sum(g * v) for g, v in zip(gradients, self.direction, strict=True))

    # ------------------------------------------------------------ plainly

    def plain(self):
        """Compute under one manager, or two; return what was found, and the constants."""
        m = Machine(self.shape, plain=True)
        leaves, probe = [tensor(a) for a in self.values], tensor(np.zeros(self.shape))
        outer, gm = GradManager().attach(leaves), GradManager().attach([*leaves, probe])
        seconds = []
        with outer if self.second else contextlib.nullcontext(), gm:
            out, env, _ = finished(self.computed(m, leaves, lambda z: (z + probe, None)))
            gm.backward(out, self.weights)
            gradients = pop_gradients([*leaves, probe])
            if self.second:
                outer.backward(self.along(gradients[:-1]))
                seconds = pop_gradients(leaves)
        return Found([out, *env], gradients, seconds), m.constants

    def numeric(self, constants, step=1e-5):
        """Return the slope of the weighted result along the direction, by a central difference."""

        def value(t):
            m = Machine(self.shape, plain=True, constants=constants)
            leaves = [tensor(a + t * v) for a, v in zip(self.values, self.direction, strict=True)]
            return np.sum(finished(self.computed(m, leaves))[0].numpy() * self.weights)

        return (value(step) - value(-step)) / (2 * step)

    # ------------------------------------------------------------ with the tools

    def with_tools(self, setting):
        """Compute with the tools, a statement at each step; return what was found."""
        m = Machine(self.shape, plain=False, forward=self.forward)
        setting.kept = m.kept
        return (yield from self._forward(m) if self.forward else self._reverse(m, setting))

    def _forward(self, m):
        with forward_ad.dual_level():
            pairs = zip(self.values, self.direction, strict=True)
            duals = [forward_ad.make_dual(tensor(a), v) for a, v in pairs]
            out, env, _ = yield from self.computed(m, duals)
            slope = gnp.sum(forward_ad.unpack_dual(out).tangent * self.weights)
        return Found([out, *env], [slope], [])

    def _reverse(self, m, setting):
        leaves, gm = setting.leaves, setting.gm
        seconds = []
        again = self.second and setting.differentiate is by_created
        with setting.outer if self.second and not again else contextlib.nullcontext(), setting.surrounding(), gm:
            out, env, probe = yield from self.computed(m, leaves, setting.attach)
            gradients = setting.differentiate(gm, out, self.weights, [*leaves, probe])
            if self.second:
                seconds = gradmgr.grad(self.along(gradients[:-1]), leaves, materialize_grads=again)
        return Found([out, *env], gradients, seconds)


def finished(steps):
    """Run a generator to its end; return what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


class Found:
    """Arrays that a run gave: copies, since what they were is to go."""

    def __init__(self, values, gradients, seconds):
        self.values = [np.array(t.numpy()) for t in values]
        self.gradients = [np.array(t.numpy()) for t in gradients]
        self.seconds = [np.array(t.numpy()) for t in seconds]

    def all(self):
        return [*self.values, *self.gradients, *self.seconds]


def _owner(a):
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a


class Setting:
    """Leaves and managers, made once and used for several runs."""

    def __init__(self, case):
        way = seeded_random(case.seed + 1)
        self.leaves = [tensor(a) for a in case.values]
        self.values = case.values
        options = {"with_stack": way.random() < 0.3}
        if way.random() < 0.3 or len(case.shape) > 1:
            options |= {"budget": way.choice([0, 5000]), "spill": "disk"}
        self.gm = GradManager(**options)
        self.gm.attach(self.leaves, _undone() if way.random() < 0.5 else None)
        self.outer = GradManager().attach(self.leaves)
        self.third = GradManager().attach(self.leaves)
        if way.random() < 0.3:
            self.gm.register_after_backward_callback(fuse)
        if way.random() < 0.3:
            for leaf in self.leaves:
                leaf.register_hook(lambda g: fuse())
        self.kept = []
        around = [
            contextlib.nullcontext,
            lambda: self.third,
            forward_ad.dual_level,
            gradmgr.detect_anomaly,
            profile,
        ]
        self.surrounding = way.choice([*around, *([] if case.second else [gradmgr.no_grad])])
        self.differentiate = way.choice(
            [by_backward, by_backward, by_retained, by_grad, by_created, by_function, by_method, by_batch, by_edge]
        )
        self.by_edge = self.differentiate in (by_grad, by_created, by_batch, by_edge) and way.random() < 0.5

    def attach(self, z):
        """Let an intermediate value have a gradient; return it, and what names it."""
        if self.by_edge:
            return z, graph.get_gradient_edge(z)
        self.gm.attach(z)
        return z, z

    def begin(self):
        """Give the leaves their values."""
        for leaf, a in zip(self.leaves, self.values, strict=True):
            leaf[...] = a
            leaf.grad = None

    def is_idle(self):
        managers = (self.gm, self.outer, self.third)
        return not any(gm._in_backward.locked() or (gm._tape is not None and gm._tape.open) for gm in managers)

    def alive(self):
        """Return what lives of what a run made, the leaves aside."""
        own = {id(leaf) for leaf in self.leaves} | {id(_owner(leaf._array)) for leaf in self.leaves}
        return [ref for ref in self.kept if ref() is not None and id(ref()) not in own]


def pop_gradients(leaves):
    gradients = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return gradients


def by_backward(gm, out, weights, leaves):
    gm.backward(out, weights)
    return pop_gradients(leaves)


def by_retained(gm, out, weights, leaves):
    gm.backward(out, weights, retain=True)
    gm.backward(out, weights)
    return [g / 2 for g in pop_gradients(leaves)]


def by_grad(gm, out, weights, leaves):
    return gradmgr.grad(out, leaves, weights)


def by_created(gm, out, weights, leaves):
    return gradmgr.grad(out, leaves, weights, create_graph=True)


def by_function(gm, out, weights, leaves):
    gradmgr.backward(out, weights, inputs=leaves)
    return pop_gradients(leaves)


def by_batch(gm, out, weights, leaves):
    gradients = gradmgr.grad(out, leaves, np.stack([weights, -weights]), is_grads_batched=True)
    return [(g[0] - g[1]) / 2 for g in gradients]


def by_edge(gm, out, weights, leaves):
    edge = graph.get_gradient_edge(out)
    if edge.node._tape is not gm._tape:
        return by_grad(gm, out, weights, leaves)
    del out
    return gradmgr.grad(edge, leaves, weights)


def by_method(gm, out, weights, leaves):
    gnp.sum(out * weights).backward()
    return pop_gradients(leaves)


# ---------------------------------------------------------------- what must hold afterwards


def state():
    """What a program must leave as it was."""
    now = context.current()
    groups = (now.groups, now.with_paused, now.interceptors) if isinstance(now, context.Context) else now
    return (
        groups,
        modes._modes.get(),
        observers.observers(),
        gradmgr.get_backwarding_grad_manager(),
        len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
    )


def compare(found, expected, tolerance=1e-9):
    assert len(found) == len(expected)
    for k, (one, other) in enumerate(zip(found, expected, strict=True)):
        scale = max(1.0, float(np.max(np.abs(other), initial=0)))
        assert_allclose(one, other, rtol=tolerance, atol=tolerance * scale, err_msg=f"number {k}")


def check(case):
    """Run a program in every way, and compare."""
    before = state()
    fuse.reset()
    expected, constants = case.plain()
    slope = case.along(expected.gradients[:-1])
    if case.seed % 4 == 0:
        assert_allclose(slope, case.numeric(constants), rtol=1e-4, atol=1e-5)
    if case.forward:
        expected.gradients = [slope]
    setting = Setting(case)
    first = run(case, setting, before)
    total = fuse.count
    compare(first, expected.all())
    assert_same_bits(run(case, setting, before), first)
    fail(case, setting, before, total)
    assert_same_bits(run(case, setting, before), first)


def run(case, setting, before):
    """Run a program; return all that it gave."""
    setting.begin()
    fuse.reset()
    found = finished(case.with_tools(setting)).all()
    assert state() == before
    assert setting.is_idle()
    assert not setting.alive()
    return found


def assert_same_bits(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def fail(case, setting, before, total):
    """Let the program fail somewhere; nothing must have changed but what it wrote to."""
    rng = seeded_random(case.seed + 2)
    for at in [rng.randint(1, total), rng.randint(total // 2, total)]:
        grads = begun_with_grads(setting, case)
        fuse.reset(at, rng.choice([InjectedError, InjectedInterruptError]))
        try:
            finished(case.with_tools(setting))
        except (InjectedError, InjectedInterruptError):
            pass
        else:
            raise AssertionError(f"no failure at {at} of {total}")
        fuse.reset()
        check_unchanged(case, setting, before, grads, f"failed at {at} of {total}")
    grads = begun_with_grads(setting, case)
    steps = case.with_tools(setting)
    for _ in range(rng.randint(1, len(case.program))):
        next(steps)
    steps.close()  # given up half-way
    check_unchanged(case, setting, before, grads, "closed")


def begun_with_grads(setting, case):
    """Begin with a `.grad` on every leaf; return these."""
    setting.begin()
    for leaf in setting.leaves:
        leaf.grad = tensor(np.ones(case.shape))
    return [leaf.grad for leaf in setting.leaves]


def check_unchanged(case, setting, before, grads, what):
    if "awaited" in as_text(case.program) and state() != before:
        gc.collect()  # asyncio's own cycles, which hold what was raised
    assert state() == before, what
    assert setting.is_idle()
    for leaf, g in zip(setting.leaves, grads, strict=True):
        if setting.differentiate is not by_retained:  # whose first backward may have written
            assert leaf.grad is g or leaf.grad is None
            np.testing.assert_array_equal(g.numpy(), 1.0)


def check_each(seeds):
    for seed in seeds:
        case = Case(seed)
        try:
            check(case)
        except Exception as error:
            error.add_note(repr(case))
            raise


@pytest.mark.parametrize("block", [*range(4), *[pytest.param(k, marks=pytest.mark.slow) for k in range(4, 10)]])
def test_random_programs_with_all_tools_agree_with_plain_ones(block, no_cyclic_collector):
    check_each(range(block * 20, block * 20 + 20))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_more_random_programs_with_all_tools_agree_with_plain_ones(block, no_cyclic_collector):
    check_each(range(2000 + block * 30, 2030 + block * 30))


def test_rules_that_fail(monkeypatch, no_cyclic_collector):
    """Not only what the user wrote: any rule of the table."""

    def fused(rule):
        def rule_or_fail(e, g, grads, owned):
            fuse()
            rule(e, g, grads, owned)

        return rule_or_fail

    for code, rule in list(RULES.items()):
        monkeypatch.setitem(RULES, code, fused(rule))
    before = state()
    for seed in range(500, 530):
        case = Case(seed)
        setting = Setting(case)
        first = run(case, setting, before)
        fail(case, setting, before, fuse.count)
        assert_same_bits(run(case, setting, before), first)


def _submitted(worker, step):
    """Do it in a worker; a future would not raise StopIteration."""
    raised = []

    def work():
        try:
            step()
        except StopIteration as stop:
            raised.append(stop)

    worker.submit(work).result()
    if raised:
        raise raised.pop()


def test_programs_in_contexts_that_alternate(no_cyclic_collector):
    """Each in a context of its own, as tasks are, and every step in one thread or another."""
    before = state()
    workers = [ThreadPoolExecutor(1) for _ in range(2)]
    for seed in range(1000, 1024, 4):
        cases = [Case(seed + k) for k in range(4)]
        settings = [Setting(case) for case in cases]
        fuse.reset()
        alone = [run(case, setting, state()) for case, setting in zip(cases, settings, strict=True)]
        for setting in settings:
            setting.begin()
        waiting = [
            (k, contextvars.copy_context(), case.with_tools(setting))
            for k, (case, setting) in enumerate(zip(cases, settings, strict=True))
        ]
        rng, found = seeded_random(seed), {}
        while waiting:
            turn = rng.choice(waiting)
            k, context, steps = turn
            step = partial(context.run, next, steps)
            worker = rng.choice([None, *workers])
            try:
                step() if worker is None else _submitted(worker, step)
            except StopIteration as stop:
                found[k] = stop.value.all()
                waiting.remove(turn)
        for k, each in enumerate(alone):
            assert_same_bits(found[k], each)
        assert all(setting.is_idle() for setting in settings)
    for worker in workers:
        worker.shutdown()
    assert state() == before


def test_programs_in_threads_at_once():
    cases = [Case(seed) for seed in range(1100, 1108)]
    settings = [Setting(case) for case in cases]
    fuse.reset()
    alone = [run(case, setting, state()) for case, setting in zip(cases, settings, strict=True)]
    for setting in settings:
        setting.begin()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: finished(cases[k].with_tools(settings[k])).all(), range(len(cases))))
    for one, other in zip(found, alone, strict=True):
        assert_same_bits(one, other)


BLOCKS = [
    lambda gm: gm,
    lambda gm: GradManager(with_stack=True),
    lambda gm: GradManager(budget=0, spill="disk") | GradManager(),
    lambda gm: forward_ad.dual_level(),
    lambda gm: gradmgr.no_grad(),
    lambda gm: gradmgr.enable_grad(),
    lambda gm: gradmgr.set_grad_enabled(False),
    lambda gm: gradmgr.inference_mode(),
    lambda gm: gradmgr.inference_mode(False),
    lambda gm: gradmgr.detect_anomaly(),
    lambda gm: profile(),
    lambda gm: record_function("part"),
    lambda gm: graph.save_on_cpu(),
    lambda gm: graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    lambda gm: graph.allow_mutation_on_saved_tensors(),
]


@pytest.mark.parametrize("seed", range(40))
def test_blocks_left_in_any_order(seed):
    """Whatever was entered, when all is left again nothing holds any more."""
    rng, before = seeded_random(seed), state()
    x = tensor([0.5, 1.0, 2.0])
    gm = GradManager().attach(x)
    entered = []
    for make in rng.sample(BLOCKS, rng.randint(3, len(BLOCKS))):
        block = make(gm)
        block.__enter__()
        entered.append(block)
        x.clone().mul_(gnp.sin(x))
        if len(entered) > 2 and rng.random() < 0.3:
            entered.pop(rng.randrange(len(entered))).__exit__(None, None, None)
    rng.shuffle(entered)
    for block in entered:
        block.__exit__(None, None, None)
        x.clone().mul_(gnp.sin(x))
    assert state() == before
    with gm:
        gm.backward(gnp.sum(x * x))
    np.testing.assert_array_equal(x.grad.numpy(), [1.0, 2.0, 4.0])
    assert state() == before


# ---------------------------------------------------------------- the comparison, tested itself


def test_a_rule_a_thousandth_off_is_noticed(monkeypatch):
    """By the central differences, since both machines use the rules."""

    def wrong_vjp(e, g, grads, owned, rule=RULES["multiply.xy"]):
        rule(e, g * 1.001, grads, owned)

    def noticed(seed):
        try:
            check(Case(seed))
        except AssertionError:
            return True
        return False

    seeds = [seed for seed in range(0, 40, 4) if not Case(seed).second]
    assert not any(noticed(seed) for seed in seeds)
    monkeypatch.setitem(RULES, "multiply.xy", wrong_vjp)
    assert sum(noticed(seed) for seed in seeds) > len(seeds) // 2


def test_a_hook_that_is_lost_is_noticed(monkeypatch):
    program = (Statement("checkpoint", 5, (Statement("hook", 7), Statement("unary", 8))),)
    case = Case(4)
    case.program = program
    check(case)
    monkeypatch.setattr(gradmgr.Tensor, "register_hook", lambda t, hook: None)
    with pytest.raises(AssertionError):
        check(case)
