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

    def run(self, body, env):
        for statement in body:
            self.step(statement, env)

    def step(self, s, env):
        if not self.plain:
            fuse()
        semantics, ways = random.Random(s.seed), random.Random(s.seed + 1)
        globals()[f"do_{s.name}"](self, env, s, semantics, ways)

    def add(self, env, t):
        """Append a value, made small where it is not."""
        env.append(np.tanh(t) if numpy.any(numpy.abs(_peeked(t)) > 3) else t)

    def constant(self, t):
        if self.replaying:
            value = self.constants[self.at]
            self.at += 1
        else:
            value = t.numpy().copy()
            self.constants.append(value)
        return tensor(value)


def _peeked(t):
    """Return the values of a tensor, of all examples: what only a test may look at."""
    a = t._array
    while hasattr(a, "level"):
        a = a._array
    return a


def example(rng, shape):
    return numpy.random.default_rng(rng.randrange(2**30)).uniform(-1, 1, shape)


# ---------------------------------------------------------------- statements that compute


def do_unary(m, env, s, rng, way):
    x = env.pick(rng)
    f = rng.choice([np.sin, np.tanh, lambda x: x * x, lambda x: np.exp(-x * x), lambda x: 1 / (2 + x * x), np.cumsum_])
    m.add(env, f(x))


np_cumsum = lambda x: np.cumsum(x, axis=-1)


def do_binary(m, env, s, rng, way):
    x, y = env.pick(rng), env.pick(rng)
    f = rng.choice([np.add, np.multiply, np.subtract, lambda x, y: x / (1 + y * y), lambda x, y: x[..., ::-1] - 2 * y])
    m.add(env, f(x, y))
