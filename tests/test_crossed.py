"""Random programs that cross the tools: each runs with them, and once as bare mathematics under one manager.

A program is a tree of statements over a growing list of tensors. Statements compute (among them
operations of several results, complex numbers, loops of reads and writes), or run a body of further
statements: computed again by a checkpoint, mapped, differentiated, in a thread, in steps of a generator,
under hooks and modes. The plain machine does the same by the simplest means there are: a loop for vmap, nested
managers for every derivative, a factor for a hook, a copied array for what is cut. It is itself held
against central differences.

After each program: nothing is current, nothing listens, no recording is open, nothing is alive. A second
run gives the same bits; a run that is made to fail anywhere in the user's part changes nothing.
"""

import asyncio
import contextlib
import contextvars
import gc
import math
import os
import random
import threading
import weakref
from typing import NamedTuple

import numpy
import pytest

import gradmgr
import gradmgr.numpy as np
from gradmgr import Function, GradManager, _listen, _modes, _recorder, custom_op, forward_ad, functional, graph, tensor
from gradmgr._node import edge_to
from gradmgr._node import tapes_with_result as graph_tapes
from gradmgr.profiler import profile, record_function


class Boom(Exception):
    """What a fuse raises."""


class Fuse:
    """Counts the calls of the user's functions, and raises in one of them."""

    def __init__(self):
        self.count, self.at = 0, None

    def reset(self, at=None):
        self.count, self.at = 0, at

    def __call__(self):
        self.count += 1
        if self.count == self.at:
            raise Boom(f"number {self.at}")


fuse = Fuse()

# ---------------------------------------------------------------- programs


class Statement(NamedTuple):
    name: str
    seed: int
    body: tuple = ()


COMPUTES = ["unary", "binary", "matrix", "complex", "loop", "write_local", "write", "several", "own", "stop"]
SCOPES = ["packed", "watched", "profiled", "allowed", "threaded", "stepped", "awaited"]
BODIES = [*SCOPES, *SCOPES, "checkpoint", "checkpoint", "checkpoint", "vmap", "vmap", "pull", "push", "cut"]


def make_body(rng, depth, order, hooks):
    """Return random statements: so many bodies in bodies, so many derivatives in derivatives."""
    made = []
    for _ in range(rng.randint(2, 4)):
        seed = rng.randrange(2**30)
        if depth and rng.random() < 0.6:
            name = rng.choice(BODIES)
            if name in ("pull", "push") and not order:
                name = "checkpoint"
            inner = order - (name in ("pull", "push"))
            made.append(Statement(name, seed, make_body(rng, depth - 1, inner, hooks and name != "push")))
        else:
            made.append(Statement(rng.choice([*COMPUTES, *(["hook"] * 2 if hooks else [])]), seed))
    return tuple(made)


def told(program, indent=0):
    """Return a program as text."""
    return "\n".join(
        " " * indent + f"{s.name} {s.seed}" + ("\n" + told(s.body, indent + 2) if s.body else "") for s in program
    )


# ---------------------------------------------------------------- one's own operations


class Twist(Function):
    """sin(x) y, with everything that a Function may have."""

    @staticmethod
    def forward(ctx, x, y):
        fuse()
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        return np.sin(x) * y

    @staticmethod
    def backward(ctx, g):
        fuse()
        x, y = ctx.saved_tensors
        return g * y * np.cos(x), g * np.sin(x)

    @staticmethod
    def jvp(ctx, dx, dy):
        fuse()
        x, y = ctx.saved_tensors
        return dx * y * np.cos(x) + dy * np.sin(x)


class Both(Function):
    """tanh(x) and x tanh(x), from a saved result."""

    @staticmethod
    def forward(x):
        fuse()
        t = np.tanh(x)
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


def _rule_x(g, x, out, rate):
    fuse()
    return g * rate * (1 - (out / (1 + x * 0)) ** 2)


@custom_op(derivative={"x": _rule_x})
def squash(x, rate=1.0):
    fuse()
    return numpy.tanh(rate * x)


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
        self.constants = [] if constants is None else constants  # what was cut, to be cut again
        self.replaying = constants is not None
        self.at = 0
        self.running = False  # an event loop
        self.swallowed = False  # by a checkpoint, so that there are no nodes

    def run(self, body, env):
        for statement in body:
            self.step(statement, env)

    def step(self, s, env):
        if not self.plain:
            fuse()
        semantics, ways = random.Random(s.seed), random.Random(s.seed + 1)
        globals()[f"do_{s.name}"](self, env, s, semantics, ways)

    def add(self, env, t):
        """Append a value, made small."""
        env.append(3 * np.tanh(t / 3))

    def constant(self, t):
        if self.replaying:
            value = self.constants[self.at]
            self.at += 1
        else:
            value = t.numpy().copy()
            self.constants.append(value)
        return tensor(value)


def example(rng, shape):
    return numpy.random.default_rng(rng.randrange(2**30)).uniform(-1, 1, shape)


# ---------------------------------------------------------------- statements that compute


def do_unary(m, env, s, rng, way):
    x = env.pick(rng)
    f = rng.choice(
        [
            np.sin,
            np.tanh,
            lambda x: x * x,
            lambda x: np.exp(-x * x),
            lambda x: 1 / (2 + x * x),
            lambda x: np.cumsum(x, axis=-1),
            lambda x: x - np.mean(x, axis=-1, keepdims=True),
        ]
    )
    m.add(env, f(x))


def do_binary(m, env, s, rng, way):
    x, y = env.pick(rng), env.pick(rng)
    f = rng.choice([np.add, np.multiply, np.subtract, lambda x, y: x / (1 + y * y), lambda x, y: x[..., ::-1] - 2 * y])
    m.add(env, f(x, y))


def do_matrix(m, env, s, rng, way):
    x, y = np.sin(env.pick(rng)), np.cos(env.pick(rng))
    a = x[..., :, None] * y[..., None, :] + 3 * np.diag([1.0, 2.5, 4.0])
    f = rng.choice(
        [
            lambda a: np.linalg.eigh(a + np.swapaxes(a, -1, -2))[0] / 4,
            lambda a: _functional_of_eigh(a + np.swapaxes(a, -1, -2)),
            lambda a: np.linalg.svd(a)[1] / 4,
            lambda a: np.abs(np.linalg.qr(a)[1]).sum(axis=-1) / 4,
            lambda a: x * np.linalg.slogdet(a)[1][..., None],
            lambda a: np.linalg.solve(a, y[..., None])[..., 0],
            lambda a: np.einsum("...ij,...j->...i", np.linalg.inv(a), x),
        ]
    )
    m.add(env, f(a))


def _functional_of_eigh(a):
    w, v = np.linalg.eigh(a)
    return np.diagonal((v * np.sin(w)[..., None, :]) @ np.swapaxes(v, -1, -2), axis1=-2, axis2=-1)


def do_complex(m, env, s, rng, way):
    x, y = env.pick(rng), env.pick(rng)
    z = x + 1j * y
    f = rng.choice(
        [
            lambda z: np.abs(np.fft.fft(z) + 5),
            lambda z: (z * np.conj(z)).real,
            lambda z: np.exp(z).imag,
            lambda z: np.fft.irfft(np.fft.rfft(z.real), n=3) - (1 / (3 + z)).imag,
        ]
    )
    m.add(env, f(z))


def do_several(m, env, s, rng, way):
    x = env.pick(rng)
    parts = np.split(x, [1, 2], axis=-1) if rng.random() < 0.5 else np.unstack(x[..., None, :], axis=-1)
    m.add(env, np.concatenate([parts[2] * parts[0], parts[0], parts[1]], axis=-1))


def do_own(m, env, s, rng, way):
    x, y = env.pick(rng), env.pick(rng)
    kind = rng.randrange(3)
    if kind == 0:
        m.add(env, np.sin(x) * y if m.plain else Twist.apply(x, y))
    elif kind == 1:
        t, u = (np.tanh(x), x * np.tanh(x)) if m.plain else Both.apply(x)
        m.add(env, t - u if rng.random() < 0.5 else u)
    else:
        rate = rng.choice([1.0, 0.5])
        m.add(env, np.tanh(rate * x) if m.plain else squash(x, rate=rate))


def do_loop(m, env, s, rng, way):
    """z[i] = f(z[i - 1]), reading what was written."""
    x, y = env.pick(rng), env.pick(rng)
    if m.plain:
        parts = [x[..., 0]]
        for i in (1, 2):
            parts.append(np.sin(parts[-1]) * y[..., i])
        m.add(env, np.stack(parts, axis=-1))
        return
    z = x * 1.0
    for i in (1, 2):
        z[..., i] = np.sin(z[..., i - 1]) * y[..., i]
    m.add(env, z)


def _overwritten(m, z, y, rng, way):
    """Return z with y written into it: in place, or as a function."""
    kind = rng.randrange(5)
    if m.plain:
        first = z[..., :1]
        return [
            lambda: z + y,
            lambda: z * y,
            lambda: np.concatenate([y[..., 1:2], z[..., 1:]], axis=-1),
            lambda: np.sin(z),
            lambda: np.concatenate([first, z[..., 1:] + y[..., :2]], axis=-1),
        ][kind]()
    if kind == 0:
        way.choice([lambda: z.__iadd__(y), lambda: z.add_(y), lambda: np.add(z, y, out=z)])()
    elif kind == 1:
        way.choice([lambda: z.__imul__(y), lambda: z.mul_(y), lambda: np.multiply(z, y, out=z)])()
    elif kind == 2:
        z[..., 0] = y[..., 1]
    elif kind == 3:
        way.choice([z.sin_, lambda: np.sin(z, out=z), lambda: z.copy_(np.sin(z))])()
    else:
        z[..., 1:] += y[..., :2]
    return z


def do_write_local(m, env, s, rng, way):
    x, y = env.pick(rng), env.pick(rng)
    z = x * 1.0
    m.add(env, _overwritten(m, z, y, rng, way))


def do_write(m, env, s, rng, way):
    """Write to a variable that others have read."""
    if env.low < len(env):
        k, y = rng.randrange(env.low, len(env)), env.pick(rng)
        env[k] = _overwritten(m, env[k], np.sin(y), rng, way)


def do_stop(m, env, s, rng, way):
    t = np.cos(env.pick(rng))
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


def do_hook(m, env, s, rng, way):
    """The gradient of a value is doubled on its way, by one kind of hook or another; some only look."""
    z = np.sin(env.pick(rng)) * 0.7
    if m.plain:
        env.append(2 * z - m.constant(z))
        return

    def doubled(g):
        fuse()
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
    """Do for the node of each tape that knows a tensor what the public door does for the innermost."""
    for tape in graph_tapes(t):
        register(edge_to(tape, tape.known(t)).node)


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
        return store[k]

    hooks = [
        lambda: graph.saved_tensors_hooks(pack, unpack),
        lambda: graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        lambda: graph.save_on_cpu(),
        lambda: graph.disable_saved_tensors_hooks("not here") if not s.body else contextlib.nullcontext(),
    ]
    with way.choice(hooks)():
        return m.run(s.body, env)


def do_watched(m, env, s, rng, way):
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
    if m.plain:
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
    if m.plain:
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
    around = m.forward, m.mapped, True

    def again(made):
        """Run the body, where the same stands around as the first time."""
        fuse()
        now = m.forward, m.mapped, m.swallowed
        m.forward, m.mapped, m.swallowed = around
        try:
            m.run(s.body, made)
        finally:
            m.forward, m.mapped, m.swallowed = now

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
    return {"debug": way.random() < 0.3, "preserve_rng_state": way.random() < 0.5}


def do_cut(m, env, s, rng, way):
    """A body whose results nobody differentiates."""
    if m.plain:
        env.append(m.constant(_fresh(m, env, s.body, closed=True)[-1]))
        return
    if m.forward or way.random() < 0.3:
        with gradmgr.inference_mode():
            made = _fresh(m, env, s.body, closed=True)[-1]
    else:
        with gradmgr.no_grad():
            made = _fresh(m, env, s.body, closed=True)[-1]
    env.append(made.detach() if made is env[-1] or any(made is t for t in env) else made)


def do_vmap(m, env, s, rng, way):
    rows = [env.pick(rng) for _ in range(rng.randint(1, 3))]
    taken = rng.randrange(len(rows) + 1)
    if m.plain:
        low = env.low
        results = []
        for row in rows:
            made = _fresh(m, env, s.body, closed=True, more=(row * 1.0,))
            results.append(made[-1])
        stacked = np.stack(results)
        del low
    else:

        def function(row):
            fuse()
            return _fresh(m, env, s.body, closed=True, more=(row * 1.0,))[-1]

        axis, out = way.choice([0, 1, -1]), way.choice([0, -1])
        m.mapped += 1
        try:
            chunk = way.choice([None, None, 1, 2])
            stacked = gradmgr.vmap(function, in_dims=axis, out_dims=out, chunk_size=chunk)(np.stack(rows, axis=axis))
        finally:
            m.mapped -= 1
        stacked = np.moveaxis(stacked, out, 0)
    m.add(env, np.mean(stacked, axis=0) if taken == len(rows) else stacked[taken])


def _function_of(m, env, body):
    """Return a body as a function of one tensor; what else it sees is constant to who differentiates it."""

    def f(x):
        if not m.plain:
            fuse()
        return _fresh(m, env, body, closed=True, more=(x * 1.0,))[-1] + 0.5 * x * x

    return f


def do_pull(m, env, s, rng, way):
    """The product of a vector and a Jacobian."""
    x, u = env.pick(rng) * 1.0, example(rng, m.shape)
    f = _function_of(m, env, s.body)
    m.add(env, (plain_pull if m.plain else way.choice(PULLS))(m, f, x, u))


def do_push(m, env, s, rng, way):
    """The product of a Jacobian and a vector."""
    x, v = env.pick(rng) * 1.0, example(rng, m.shape)
    f = _function_of(m, env, s.body)
    if m.plain:
        m.add(env, plain_push(m, f, x, v))
        return
    m.add(env, way.choice(PUSHES)(m, f, x, v))


def plain_pull(m, f, x, u):
    gm = GradManager().attach(x)
    with gm:
        gm.backward(f(x), u)
    return x.grad


def plain_push(m, f, x, v):
    """u'Jv is linear in u; its gradient is Jv."""
    u = tensor(numpy.zeros(m.shape))
    gm = GradManager().attach(u)
    with gm:
        gm.backward(np.sum(plain_pull(m, f, x, u) * v))
    return u.grad


def pull_with_manager(m, f, x, u):
    gm = GradManager(with_stack=True).attach(x, callbacks=_undone())
    with gm:
        gm.backward(f(x), u)
    return x.grad


def pull_with_group(m, f, x, u):
    gm, other = GradManager().attach(x), GradManager().attach(x)
    with gm | other:
        y = f(x)
        gm.backward(y, u)
        g, x.grad = x.grad, None
        other.backward(y, u)
    return (g + x.grad) / 2


def pull_with_grad(m, f, x, u):
    with GradManager().attach(x):
        (g,) = gradmgr.grad(f(x), x, u)
    return g


def pull_with_create_graph(m, f, x, u):
    """The derivative is recorded by the manager that takes it, too."""
    with GradManager().attach(x):
        y = f(x)
        (g,) = gradmgr.grad(y, x, u, create_graph=True)
        gradmgr.grad(np.sum(g), x, allow_unused=True)
    return g


def pull_batched(m, f, x, u):
    with GradManager().attach(x):
        (g,) = gradmgr.grad(f(x), x, numpy.stack([u, 2 * u]), is_grads_batched=True)
    return g[1] / 2


def pull_of_intermediate(m, f, x, u):
    with GradManager().attach(x):
        z = x * 2
        (g,) = gradmgr.grad(f(z * 0.5), z, u)
    return g * 2


def pull_functional(m, f, x, u):
    return functional.vjp(f, x, u, create_graph=True)[1]


def pull_of_sum(m, f, x, u):
    return functional.grad(lambda x: np.sum(f(x) * u))(x)


def pull_retained(m, f, x, u):
    gm = GradManager().attach(x)
    with gm:
        y = f(x)
        gm.backward(y, u, retain=True)
        x.grad = None
        gm.backward(y, u)
    return x.grad


PULLS = [
    pull_with_manager,
    pull_with_group,
    pull_with_grad,
    pull_with_create_graph,
    pull_batched,
    pull_of_intermediate,
    pull_functional,
    pull_of_sum,
    pull_retained,
]


@contextlib.contextmanager
def _under_forward(m):
    m.forward += 1
    try:
        yield
    finally:
        m.forward -= 1


def push_dual(m, f, x, v):
    with _under_forward(m), forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, v))).tangent


def push_dual_twice(m, f, x, v):
    """Inside a level that nobody uses."""
    with _under_forward(m), forward_ad.dual_level(), forward_ad.dual_level() as level:
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, v)), level=level).tangent


def push_functional(m, f, x, v):
    with _under_forward(m):
        return functional.jvp(f, x, v, create_graph=True)[1]


def push_by_reverse(m, f, x, v):
    u = tensor(numpy.zeros(m.shape))
    (g,) = [functional.vjp(lambda u: functional.vjp(f, x, u, create_graph=True)[1], u, v, create_graph=True)[1]]
    return g


def push_mapped(m, f, x, v):
    """The tangents of two directions at once."""

    def one(v):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x * 1.0 + 0 * v, v))).tangent

    m.mapped += 1
    try:
        with _under_forward(m):
            return gradmgr.vmap(one)(numpy.stack([v, -v]))[0]
    finally:
        m.mapped -= 1


PUSHES = [push_dual, push_dual_twice, push_functional, push_by_reverse, push_mapped]


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
        rng = random.Random(seed)
        self.seed = seed
        self.forward = rng.random() < 0.2
        self.second = not self.forward and rng.random() < 0.3
        self.program = make_body(rng, 3, 1 if self.second else 2, hooks=not self.forward)
        self.shape = (200, 3) if rng.random() < 0.08 else (3,)  # arrays that a budget moves out, or small ones
        self.values = [example(rng, self.shape) for _ in range(3)]
        self.weights = example(rng, self.shape)
        self.direction = [example(rng, self.shape) for _ in self.values]

    def __repr__(self):
        return f"seed {self.seed}, {'forward' if self.forward else 'reverse'}\n{told(self.program)}"

    def computed(self, m, leaves):
        """Run the program; return the result and all variables."""
        anchor = sum(leaf * leaf for leaf in leaves)
        env = Env(leaves)
        m.run(self.program, env)
        out = anchor
        for k, t in enumerate(env):
            out = out + t * math.cos(k)
        m.kept += [weakref.ref(t) for t in env] + [weakref.ref(_owner(t._array)) for t in env]
        return out, env

    # ------------------------------------------------------------ plainly

    def plain(self):
        """Return the value, the gradients, and with `second` those of the gradients along the direction."""
        m = Machine(self.shape, plain=True)
        leaves = [tensor(a) for a in self.values]
        outer, gm = GradManager().attach(leaves), GradManager().attach(leaves)
        with outer if self.second else contextlib.nullcontext(), gm:
            out, env = self.computed(m, leaves)
            gm.backward(out, self.weights)
            gradients = [leaf.grad for leaf in leaves]
            found = [out.numpy(), *[t.numpy() for t in env], *[g.numpy() for g in gradients]]
            if self.second:
                slope = sum(np.sum(g * v) for g, v in zip(gradients, self.direction, strict=True))
                for leaf in leaves:
                    leaf.grad = None
                outer.backward(slope)
                found += [leaf.grad.numpy() for leaf in leaves]
        return found, m.constants

    def numeric(self, constants, step=1e-5):
        """Return the slope of the weighted result along the direction, by a central difference."""

        def value(t):
            m = Machine(self.shape, plain=True, constants=constants)
            leaves = [tensor(a + t * v) for a, v in zip(self.values, self.direction, strict=True)]
            out, _ = self.computed(m, leaves)
            return float(numpy.sum(out.numpy() * self.weights))

        return (value(step) - value(-step)) / (2 * step)

    # ------------------------------------------------------------ with the tools

    def way(self):
        return random.Random(self.seed + 1)

    def crossed(self, setting):
        """Return what `plain` returns; with forward mode the slope in place of gradients."""
        m = Machine(self.shape, plain=False, forward=self.forward)
        setting.kept = m.kept
        found = self._pushed(m) if self.forward else self._pulled(m, setting)
        return [numpy.array(a) for a in found]  # what they are views of is to go

    def _pushed(self, m):
        leaves = [tensor(a) for a in self.values]
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(leaf, v) for leaf, v in zip(leaves, self.direction, strict=True)]
            out, env = self.computed(m, duals)
            slope = np.sum(forward_ad.unpack_dual(out).tangent * self.weights)
            return [out.numpy(), *[t.numpy() for t in env], slope.numpy()]

    def _pulled(self, m, setting):
        leaves, gm, outer = setting.leaves, setting.gm, setting.outer
        with outer if self.second else contextlib.nullcontext(), setting.beside(), gm:
            out, env = self.computed(m, leaves)
            values = [out.numpy(), *[t.numpy() for t in env]]
            gradients = setting.differentiate(gm, out, self.weights, leaves)
            found = [*values, *[g.numpy() for g in gradients]]
            if self.second:
                slope = sum(np.sum(g * v) for g, v in zip(gradients, self.direction, strict=True))
                found += [g.numpy() for g in gradmgr.grad(slope, leaves)]
        return found


def _owner(a):
    while isinstance(a.base, numpy.ndarray):
        a = a.base
    return a


class Setting:
    """Leaves and managers, made once and used for several runs."""

    def __init__(self, case):
        way = case.way()
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
        self.beside = way.choice([contextlib.nullcontext, lambda: self.third, forward_ad.dual_level])
        self.differentiate = way.choice([by_backward, by_backward, by_retained, by_grad, by_function, by_method])

    def begin(self):
        """Give the leaves their values and some `.grad`; return the latter."""
        for leaf, a in zip(self.leaves, self.values, strict=True):
            leaf[...] = a
            leaf.grad = None
        return [leaf.grad for leaf in self.leaves]


def _taken(leaves):
    gradients = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return gradients


def by_backward(gm, out, weights, leaves):
    gm.backward(out, weights)
    return _taken(leaves)


def by_retained(gm, out, weights, leaves):
    gm.backward(out, weights, retain=True)
    gm.backward(out, weights)
    return [g / 2 for g in _taken(leaves)]


def by_grad(gm, out, weights, leaves):
    return gradmgr.grad(out, leaves, weights)


def by_function(gm, out, weights, leaves):
    gradmgr.backward(out, weights, inputs=leaves)
    return _taken(leaves)


def by_method(gm, out, weights, leaves):
    np.sum(out * weights).backward()
    return _taken(leaves)


# ---------------------------------------------------------------- what must hold afterwards


def state():
    """What a program must leave as it was."""
    now = _recorder.current()
    groups = (now.groups, now.everyone, now.watchers) if isinstance(now, _recorder.Stack) else now
    return (
        groups,
        _modes._modes.get(),
        _listen.listeners(),
        gradmgr.get_backwarding_grad_manager(),
        dict(_recorder.crowd._open),
        len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
    )


def is_idle(gm):
    return not gm._walking and (gm._tape is None or not gm._tape.open)


def compare(found, expected, tolerance=1e-9):
    assert len(found) == len(expected)
    for k, (one, other) in enumerate(zip(found, expected, strict=True)):
        scale = max(1.0, float(numpy.max(numpy.abs(other), initial=0)))
        numpy.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * scale, err_msg=f"number {k}")


def expected_of(case):
    found, constants = case.plain()
    if case.forward:
        *values, a, b, c = found
        slope = sum(float(numpy.sum(g * v)) for g, v in zip((a, b, c), case.direction, strict=True))
        found = [*values, numpy.asarray(slope)]
    return found, constants


def check(case):
    """Run a program in every way, and compare."""
    before = state()
    fuse.reset()
    expected, constants = expected_of(case)
    if case.seed % 4 == 0:
        gradients = expected[-1:] if case.forward else expected[-6:-3] if case.second else expected[-3:]
        slope = gradients[0] if case.forward else sum(numpy.sum(g * v) for g, v in zip(gradients, case.direction))
        numpy.testing.assert_allclose(slope, case.numeric(constants), rtol=1e-4, atol=1e-5)
    setting = Setting(case)
    results = []
    for _ in range(2):
        setting.begin()
        fuse.reset()
        results.append(case.crossed(setting))
        total = fuse.count
        assert state() == before
        assert is_idle(setting.gm)
        assert is_idle(setting.outer)
        assert not _alive(setting)
    compare(results[0], expected)
    for one, other in zip(*results, strict=True):
        numpy.testing.assert_array_equal(one, other)
    fail(case, setting, before, total)
    setting.begin()
    fuse.reset()
    for one, other in zip(results[0], case.crossed(setting), strict=True):
        numpy.testing.assert_array_equal(one, other)


def fail(case, setting, before, total):
    """Let the program fail somewhere; nothing must have changed but what it wrote to."""
    rng = random.Random(case.seed + 2)
    for at in [rng.randint(1, total), rng.randint(total // 2, total)]:
        setting.begin()
        grads = []
        for leaf in setting.leaves:
            leaf.grad = tensor(numpy.ones(case.shape))
            grads.append(leaf.grad)
        fuse.reset(at)
        try:
            case.crossed(setting)
        except Boom:
            pass
        else:
            raise AssertionError(f"no failure at {at} of {total}")
        fuse.reset()
        assert state() == before, f"failed at {at} of {total}"
        assert all(gm is None or is_idle(gm) for gm in (setting.gm, setting.outer, setting.third))
        for leaf, g in zip(setting.leaves, grads, strict=True):
            if setting.differentiate not in (by_retained,):
                assert leaf.grad is g or leaf.grad is None
                numpy.testing.assert_array_equal(g.numpy(), 1.0)


def _alive(setting):
    """Return what lives of what a run kept, the leaves aside."""
    own = {id(leaf) for leaf in setting.leaves} | {id(_owner(leaf._array)) for leaf in setting.leaves}
    return [ref for ref in setting.kept if ref() is not None and id(ref()) not in own]


@pytest.fixture
def uncollected():
    """Nothing is to wait for the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("block", range(10))
def test_random_programs_cross_the_tools(block, uncollected):
    for seed in range(block * 20, block * 20 + 20):
        case = Case(seed)
        try:
            check(case)
        except Exception as error:
            error.add_note(repr(case))
            raise
