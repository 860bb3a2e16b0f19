"""A naive engine to compare with: explicit graphs over NumPy and the plain chain rule; it shares nothing with gradmgr.

A Node is an array and, for each parent, a closure that makes the parent's gradient from the node's.
The closures build Nodes, so that a gradient can be differentiated again. A write in place is a
function here, `put`, whose result takes the variable's place. Slow, never freed, and short enough
to be checked by reading.
"""

import itertools

import numpy as np

_serial = itertools.count()


class Node:
    __array_ufunc__ = None  # ndarray * Node comes to __rmul__

    def __init__(self, value, *parents):
        self.value = np.asarray(value)
        self.parents = parents
        self.serial = next(_serial)  # a node is younger than its parents

    shape = property(lambda x: x.value.shape)
    ndim = property(lambda x: x.value.ndim)
    __add__ = __radd__ = lambda x, y: add(x, node(y))
    __mul__ = __rmul__ = lambda x, y: multiply(x, node(y))
    __neg__ = lambda x: x * -1.0
    __sub__ = lambda x, y: x + -node(y)
    __rsub__ = lambda x, y: node(y) + -x
    __truediv__ = lambda x, y: x * node(y) ** -1
    __rtruediv__ = lambda x, y: node(y) * x**-1
    __pow__ = lambda x, p: power(x, p)
    __matmul__ = lambda x, y: matmul(x, y)
    __getitem__ = lambda x, index: get(x, index)


def node(value):
    """A constant, unless it is a Node already."""
    return value if isinstance(value, Node) else Node(np.asarray(value, dtype=float))


def grad(outputs, seeds, inputs):
    """The gradients, as Nodes, of the sum of the outputs weighted by the seeds; None where no path leads."""
    total = {}

    def receive(n, g):
        total[n] = total[n] + g if n in total else g

    for y, dy in zip(outputs, seeds, strict=True):
        receive(y, node(dy))
    for n in sorted(_ancestors(outputs), key=lambda n: n.serial, reverse=True):
        if n in total:
            for parent, vjp in n.parents:
                receive(parent, vjp(total[n]))
    return [total.get(x) for x in inputs]


def _ancestors(outputs):
    found, waiting = set(), list(outputs)
    while waiting:
        n = waiting.pop()
        if n not in found:
            found.add(n)
            waiting += [parent for parent, _ in n.parents]
    return found


# ---------------------------------------------------------------- arithmetic; matmul of matrices and stacks of them

same = lambda x: Node(x.value, (x, lambda g: g))
exp = lambda x: Node(np.exp(x.value), (x, lambda g: g * exp(x)))
sin = lambda x: Node(np.sin(x.value), (x, lambda g: g * cos(x)))
cos = lambda x: Node(np.cos(x.value), (x, lambda g: -(g * sin(x))))
tanh = lambda x: Node(np.tanh(x.value), (x, lambda g: g * (1.0 - tanh(x) ** 2)))
power = lambda x, p: Node(x.value**p, (x, lambda g: g * (p * x ** (p - 1) if p else 0.0)))


def add(x, y):
    return Node(x.value + y.value, (x, lambda g: sum_to(g, x.shape)), (y, lambda g: sum_to(g, y.shape)))


def multiply(x, y):
    return Node(x.value * y.value, (x, lambda g: sum_to(g * y, x.shape)), (y, lambda g: sum_to(g * x, y.shape)))


def matmul(x, y):
    swapped = lambda m: transpose(m, (*range(m.ndim - 2), m.ndim - 1, m.ndim - 2))
    vjps = (x, lambda g: sum_to(g @ swapped(y), x.shape)), (y, lambda g: sum_to(swapped(x) @ g, y.shape))
    return Node(x.value @ y.value, *vjps)


# ---------------------------------------------------------------- shapes and sums

reshape = lambda x, shape: Node(x.value.reshape(shape), (x, lambda g: reshape(g, x.shape)))
transpose = lambda x, axes: Node(x.value.transpose(axes), (x, lambda g: transpose(g, np.argsort(axes))))
broadcast_to = lambda x, shape: Node(np.broadcast_to(x.value, shape), (x, lambda g: sum_to(g, x.shape)))


def sum(x, axis=None, keepdims=False):
    kept = np.sum(x.value, axis=axis, keepdims=True).shape
    value = np.sum(x.value, axis=axis, keepdims=keepdims)
    return Node(value, (x, lambda g: broadcast_to(reshape(g, kept), x.shape)))


def mean(x, axis=None, keepdims=False):
    total = sum(x, axis, keepdims)
    return total * (total.value.size / x.value.size)


def sum_to(x, shape):
    """Undo broadcasting from `shape`."""
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(k + lead for k, n in enumerate(shape) if n == 1))
    return reshape(sum(x, axes, keepdims=True), shape)


# ---------------------------------------------------------------- indexing


def get(x, index):
    return Node(x.value[index], (x, lambda g: scatter(g, index, x.shape)))


def scatter(x, index, shape):
    """Zeros with x added at index; a place named twice gets both."""
    value = np.zeros(shape)
    np.add.at(value, index, x.value)
    return Node(value, (x, lambda g: get(g, index)))


def put(x, index, v):
    """x with v at index; a place named twice has what was written to it last."""
    places = np.arange(x.value.size).reshape(x.shape)[index]
    last = dict(zip(places.ravel(), range(places.size), strict=True))
    changed, chosen = np.array(list(last), dtype=int), np.array(list(last.values()), dtype=int)
    kept = np.ones(x.value.size)
    kept[changed] = 0
    written = get(reshape(broadcast_to(v, places.shape), (places.size,)), chosen)
    return x * kept.reshape(x.shape) + reshape(scatter(written, changed, (x.value.size,)), x.shape)
