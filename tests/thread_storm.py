"""Threads that write to a tensor while others read it: each kind of write, each kind of reading, and what must hold.

A writer keeps the numbers of each region of its tensor equal, whatever it writes: of a tensor that is written as a
whole there is one region. So a reader can tell a value that no writer published, a mix of two, from one that was. What
a reader holds must never change.
"""

from __future__ import annotations

import copy
import io
import pickle
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, forward_ad, nn, no_grad, optim, tensor
from gradmgr.optim import lr_scheduler

# Lengths of the axes: small arrays, which are replaced, and arrays during whose writing NumPy gives up the GIL.
SHAPES = ((4, 3), (40, 50), (4, 5000))


class World:
    """Tensors that threads write to and read.

    Attributes:
        tensors: what is read.
        regions: of each, the number of the region that each of its elements belongs to.
        write: makes write number k, from any thread.
        module, optimizer: whose state is read.
        read_grads: whether what is read is the gradients of the tensors.
        together: whether all tensors have the same numbers before and after each write.
    """

    def __init__(self, tensors: Sequence[Tensor], write: Callable[[int], Any], regions: Any = None) -> None:
        self.tensors = list(tensors)
        self.regions = [np.zeros(t.shape, int) if regions is None else regions for t in self.tensors]
        self.write = write
        self.module = nn.Module()
        for k, t in enumerate(self.tensors):
            self.module.register_buffer(f"x{k}", t)
        self.optimizer: Any = None
        self.read_grads = False
        self.together = False


# ---------------------------------------------------------------- writers

Writer = Callable[[tuple[int, ...]], World]
WRITERS: dict[str, Writer] = {}


def _enter(name: str, make: Writer) -> None:
    assert name not in WRITERS
    WRITERS[name] = make


def _whole(change: Callable[[Tensor, int], Any], start: float, dtype: Any, shape: tuple[int, ...]) -> World:
    x = tensor(np.full(shape, start, dtype))
    return World([x], lambda k: change(x, k))


def _parts(change: Callable[[Tensor, int, Any], Any], choose: Callable[[Any], Any], shape: tuple[int, ...]) -> World:
    """Make a world whose tensor has two regions: what an index names, and the rest."""
    regions = np.zeros(shape, int)
    index = choose(regions)
    regions[index] = 1
    x = tensor(np.zeros(shape))
    return World([x], lambda k: change(x, k, index), regions)


def _in_recording(x: Tensor, change: Callable[[Tensor, int], Any], k: int) -> None:
    with GradManager().attach(x):
        change(x, k)


_OPERATORS: dict[str, tuple[Callable[[Tensor, int], Any], float, Any]] = {
    "+=": (lambda x, k: x.__iadd__(1.0), 0, float),
    "-=": (lambda x, k: x.__isub__(np.full(x.shape, 0.5)), 0, float),
    "*=": (lambda x, k: x.__imul__(-1.0), 1, float),
    "/=": (lambda x, k: x.__itruediv__(-1.0), 1, float),
    "//=": (lambda x, k: x.__ifloordiv__(-1.0), 3, float),
    "%=": (lambda x, k: x.__imod__(-3.0 if k % 2 else 3.0), 2, float),
    "**=": (lambda x, k: x.__ipow__(-1.0), 2, float),
    "&=": (lambda x, k: x.__iand__(7 + 8 * (k % 2)), 255, np.int64),
    "|=": (lambda x, k: x.__ior__(1 << k % 60), 0, np.int64),
    "^=": (lambda x, k: x.__ixor__(k), 0, np.int64),
    "<<=": (lambda x, k: x.__ilshift__(k % 2), 1, np.int64),
    ">>=": (lambda x, k: x.__irshift__(k % 2), 1 << 62, np.int64),
    "+= of a Tensor": (lambda x, k: x.__iadd__(tensor(float(k))), 0, float),
    "+= itself": (lambda x, k: x.__imul__(1.0) if k % 9 else x.__iadd__(x), 1e-9, np.float32),
    "x[...] =": (lambda x, k: x.__setitem__(..., float(k)), 0, float),
    "x[:] = array": (lambda x, k: x.__setitem__(slice(None), np.full(x.shape, float(k))), 0, float),
    "x[mask of all] =": (lambda x, k: x.__setitem__(np.ones(x.shape, bool), float(k)), 0, float),
    "out=": (lambda x, k: np.add(x, 1.0, out=x), 0, float),
    "out= of gradmgr.numpy": (lambda x, k: gnp.multiply(np.full(x.shape, float(k)), 2.0, out=x), 0, float),
    "out= of sum": (lambda x, k: gnp.sum(np.full((3, *x.shape), float(k)), axis=0, out=x), 0, float),
    "copyto": (lambda x, k: gnp.copyto(x, float(k)), 0, float),
    "copyto array": (lambda x, k: np.copyto(x, np.full(x.shape, float(k))), 0, float),
    "add.at": (lambda x, k: np.add.at(x, ..., 1.0), 0, float),
    "put": (lambda x, k: gnp.put(x, np.arange(x.size), float(k)), 0, float),
    "place": (lambda x, k: gnp.place(x, np.ones(x.shape, bool), [float(k)]), 0, float),
    "putmask": (lambda x, k: gnp.putmask(x, np.ones(x.shape, bool), float(k)), 0, float),
    "put_along_axis": (lambda x, k: gnp.put_along_axis(x, np.arange(x.size), float(k), None), 0, float),
    "fill": (lambda x, k: x.fill(float(k)), 0, float),
    "sort, partition": (lambda x, k: (x.fill_(float(k)), np.asarray(x.sort()), np.asarray(x.partition(1))), 0, float),
    "fill_": (lambda x, k: x.fill_(k), 0, float),
    "zero_, add_": (lambda x, k: x.zero_().add_(k), 0, float),
    "copy_": (lambda x, k: x.copy_(np.full(x.shape, float(k))), 0, float),
    "neg_": (lambda x, k: x.neg_(), 1, float),
    "sin_": (lambda x, k: x.sin_(), 1, float),
    "exp_": (lambda x, k: x.neg_().exp_(), 1, float),
    "clamp_": (lambda x, k: x.add_(2.0).clamp_(0, 1 + k % 3), 0, float),
    "masked_fill_": (lambda x, k: x.masked_fill_(np.ones(x.shape, bool), float(k)), 0, float),
    "lerp_": (lambda x, k: x.lerp_(np.full(x.shape, float(k)), 0.5), 0, float),
    "index_fill_": (lambda x, k: x.index_fill_(0, np.arange(len(x)), float(k)), 0, float),
    "put_": (lambda x, k: x.put_(np.arange(x.size), np.full(x.size, float(k))), 0, float),
    "scatter_": (lambda x, k: x.scatter_(0, np.arange(len(x))[:, None] + np.zeros(x.shape, int), float(k)), 0, float),
    "init.constant_": (lambda x, k: nn.init.constant_(x, float(k)), 0, float),
    "uniform_": (lambda x, k: x.uniform_(k, k, generator=np.random.default_rng(0)), 0, float),
    "recorded +=": (lambda x, k: _in_recording(x, lambda x, k: x.__iadd__(1.0), k), 0, float),
    "recorded x[...] =": (lambda x, k: _in_recording(x, lambda x, k: x.__setitem__(..., float(k)), k), 0, float),
    "recorded out=": (lambda x, k: _in_recording(x, lambda x, k: np.add(x, 1.0, out=x), k), 0, float),
}
for _name, (_change, _start, _dtype) in _OPERATORS.items():
    _enter(_name, partial(_whole, _change, _start, _dtype))

_INDEXES: dict[str, Callable[[Any], Any]] = {
    "an int": lambda like: 1,
    "a slice": lambda like: (slice(None), slice(1, -1)),
    "steps": lambda like: (slice(None, None, 2), slice(None, None, -3)),
    "a mask": lambda like: np.arange(like.size).reshape(like.shape) % 3 == 0,
    "an index array": lambda like: np.array([2, 0, 2]),
}
_WRITES_AT: dict[str, Callable[[Tensor, int, Any], Any]] = {
    "x[{}] =": lambda x, k, index: x.__setitem__(index, float(k)),
    "x[{}] = array": lambda x, k, index: x.__setitem__(index, np.full(np.zeros(x.shape)[index].shape, float(k))),
    "recorded x[{}] =": lambda x, k, index: _in_recording(x, lambda x, k: x.__setitem__(index, float(k)), k),
}
for _name, _write in _WRITES_AT.items():
    for _kind, _choose in _INDEXES.items():
        _enter(_name.format(_kind), partial(_parts, _write, _choose))


def _a_mask(like: Any) -> Any:
    return np.arange(like.size).reshape(like.shape) % 2 == 0


_MASKED: dict[str, Callable[[Tensor, int, Any], Any]] = {
    "where= and out=": lambda x, k, mask: np.add(x, 1.0, out=x, where=mask),
    "where= and out= of gradmgr.numpy": lambda x, k, mask: gnp.multiply(2.0, float(k), out=x, where=mask),
    "masked_fill_ of a part": lambda x, k, mask: x.masked_fill_(mask, float(k)),
    "copyto where=": lambda x, k, mask: np.copyto(x, float(k), where=mask),
    "putmask of a part": lambda x, k, mask: gnp.putmask(x, mask, float(k)),
    "masked_scatter_": lambda x, k, mask: x.masked_scatter_(mask, np.full(x.size, float(k))),
}
for _name, _write in _MASKED.items():
    _enter(_name, partial(_parts, _write, _a_mask))
_enter("add.at of rows", partial(_parts, lambda x, k, rows: np.add.at(x, rows, 1.0), lambda like: np.array([0, 2])))
_enter("multiply.at of rows", partial(_parts, lambda x, k, rows: np.multiply.at(x, rows, k), lambda like: [0, 2]))
_enter(
    "index_add_", partial(_parts, lambda x, k, rows: x.index_add_(0, rows, np.ones((2, x.shape[1]))), lambda _: [0, 2])
)
_enter(
    "fill_diagonal",
    partial(_parts, lambda x, k, _: gnp.fill_diagonal(x, float(k)), lambda like: np.diag_indices(min(like.shape))),
)


# ---- optimisers

_OPTIMISERS: dict[str, Callable[[list[Tensor]], Any]] = {
    "SGD": lambda params: optim.SGD(params, lr=0.1),
    "SGD with momentum": lambda params: optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda params: optim.Adagrad(params, lr=0.1),
    "Adam": lambda params: optim.Adam(params, lr=0.1),
    "Adam with amsgrad": lambda params: optim.Adam(params, lr=0.1, amsgrad=True, weight_decay=0.1),
    "AdamW": lambda params: optim.AdamW(params, lr=0.1),
    "Lion": lambda params: optim.Lion(params, lr=0.1),
    "RMSprop": lambda params: optim.RMSprop(params, lr=0.1, momentum=0.5, centered=True),
}


def _params(shape: tuple[int, ...], start: float = 1.0, dtype: Any = float) -> list[Tensor]:
    """Make parameters with gradients: small ones, which an optimiser joins in one buffer, and a large one."""
    shapes = [shape, (3,), (), (7, 5)] if np.prod(shape) < 10_000 else [(200, 300)]
    params: list[Tensor] = [nn.Parameter(np.full(s, start, dtype)) for s in shapes]
    for p in params:
        p.grad = tensor(np.full(p.shape, 0.5, dtype))
    return params


def _stepping(make: Callable[[list[Tensor]], Any], shape: tuple[int, ...]) -> World:
    params = _params(shape)
    optimizer = make(params)
    world = World(params, lambda k: optimizer.step())
    world.optimizer = optimizer
    world.together = True
    return world


for _name, _make in _OPTIMISERS.items():
    _enter(f"{_name}.step", partial(_stepping, _make))


def _stepping_half(shape: tuple[int, ...]) -> World:
    params = _params(shape, dtype=np.float16)
    optimizer = optim.SGD(params, lr=1e-3)
    return World(params, lambda k: optimizer.step())


_enter("SGD.step of half precision", _stepping_half)


def _stepping_some(shape: tuple[int, ...]) -> World:
    """Make steps where gradients come and go, and options change."""
    params = _params(shape)
    optimizer = optim.Adam(params, lr=0.1)
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.99)
    grads = [p.grad for p in params]

    def write(k: int) -> None:
        p = params[k % len(params)]
        p.grad = None if p.grad is not None else grads[k % len(params)]
        optimizer.step()
        if k % 5 == 0:
            schedule.step()

    world = World(params, write)
    world.optimizer = optimizer
    return world


_enter("Adam.step of some", _stepping_some)


def _loading_optimizer(shape: tuple[int, ...]) -> World:
    world = _stepping(_OPTIMISERS["Adam"], shape)
    world.optimizer.step()
    state = world.optimizer.state_dict()

    def write(k: int) -> None:
        world.optimizer.load_state_dict(state)
        world.optimizer.step()

    world.write = write
    return world


_enter("Optimizer.load_state_dict", _loading_optimizer)


def _learning(shape: tuple[int, ...]) -> World:
    """Make whole steps of training: forward, backward, clipping, step, zero_grad."""
    params = _params(shape)
    optimizer = optim.SGD(params, lr=0.01)
    gm = GradManager().attach(params)
    lock = threading.Lock()  # of several writers one trains at a time

    def write(k: int) -> None:
        with lock:
            with gm:
                gm.backward(sum(((p - 2.0) ** 2).sum() for p in params))
            optim.clip_grad_norm_(params, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=bool(k % 2))

    return World(params, write)


_enter("training", _learning)


# ---- gradients


def _gradients(change: Callable[[list[Tensor], int], Any], shape: tuple[int, ...]) -> World:
    params = _params(shape)
    world = World(params, lambda k: change(params, k))
    world.optimizer = optim.SGD(params)
    world.read_grads = True
    return world


def _set_grads(params: list[Tensor], k: int) -> None:
    for p in params:
        p.grad = tensor(np.full(p.shape, float(k)))


def _toggle_grads(params: list[Tensor], k: int) -> None:
    for p in params:
        p.grad = tensor(np.full(p.shape, float(k))) if k % 2 else None


def _add_to_grads(params: list[Tensor], k: int) -> None:
    for p in params:
        grad = p.grad
        if grad is not None:
            grad += 1.0


def _backward(params: list[Tensor], k: int) -> None:
    with GradManager().attach(params) as gm:
        gm.backward(sum((p * float(k)).sum() for p in params))


_CHANGES_OF_GRADS: dict[str, Callable[[list[Tensor], int], Any]] = {
    ".grad =": _set_grads,
    ".grad = None": _toggle_grads,
    ".grad +=": _add_to_grads,
    "backward": _backward,
    "backward, zero_grad": lambda params, k: (_backward(params, k), optim.SGD(params).zero_grad()),
    "zero_grad to zeros": lambda params, k: (_add_to_grads(params, k), optim.SGD(params).zero_grad(set_to_none=False)),
    "clip_grad_norm_": lambda params, k: (_add_to_grads(params, k), optim.clip_grad_norm_(params, 0.1)),
    "clip_grad_value_": lambda params, k: (_add_to_grads(params, k), optim.clip_grad_value_(params, 0.5 + k % 3)),
    "unscale_": lambda params, k: (_add_to_grads(params, k), _unscale(params)),
}


def _unscale(params: list[Tensor]) -> None:
    scaler = optim.GradScaler(init_scale=4.0)
    scaler.scale(tensor(1.0))
    scaler.unscale_(optim.SGD(params))


for _name, _changed in _CHANGES_OF_GRADS.items():
    _enter(_name, partial(_gradients, _changed))


# ---- states


def _loading_module(shape: tuple[int, ...]) -> World:
    world = World(_params(shape), lambda k: None)
    states = [{name: np.full(t.shape, v) for name, t in world.module.state_dict().items()} for v in (1.0, 2.0, 3.0)]
    world.write = lambda k: world.module.load_state_dict(states[k % 3])
    world.together = True
    return world


def _loading_file(shape: tuple[int, ...]) -> World:
    world = World(_params(shape), lambda k: None)
    saved = {"model": world.module, "x": world.tensors}

    def write(k: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            gradmgr.save(saved, path := Path(folder) / "saved")
            gradmgr.load(path, into=saved)
        for t in world.tensors:
            t += 1.0

    world.write = write
    return world


def _normalizing(shape: tuple[int, ...]) -> World:
    norm = nn.BatchNorm1d(shape[1])
    world = World([norm.running_mean, norm.running_var], lambda k: norm(np.full((4, shape[1]), float(k), np.float32)))
    world.module = norm
    return world


_enter("Module.load_state_dict", _loading_module)
_enter("load into", _loading_file)
_enter("running statistics", _normalizing)


# ---------------------------------------------------------------- readers

# What a reader got: arrays that it holds, each with the regions of its elements, or None where that says nothing.
Found = list[tuple[Any, Any]]
Reader = Callable[[World, Tensor, Any], Found]


def _same(read: Callable[[Tensor], Any]) -> Reader:
    """Make a reader of what returns the values in their places."""
    return lambda world, t, regions: [(read(t), regions)]


def _moved(read: Callable[[Any], Any]) -> Reader:
    """Make a reader of what picks or moves values, and does the same with the regions."""
    return lambda world, t, regions: [(read(t), read(regions))]


def _recorded(world: World, t: Tensor, regions: Any) -> Found:
    """Differentiate by something else: its gradient is the value that was used, and so is the result."""
    own = tensor(np.ones(t.shape))
    with GradManager().attach(own) as gm:
        y = own * t
        gm.backward(y.sum())
    assert np.array_equal(own.grad.numpy(), y.numpy()), "the derivative is not that at the value which was used"
    return [(own.grad, regions), (y, regions)]


def _recorded_twice(world: World, t: Tensor, regions: Any) -> Found:
    """Go back twice through what a tape keeps."""
    own = tensor(np.ones(t.shape))
    with GradManager().attach(own) as gm:
        y = (own * t).sum()
        gm.backward(y, retain=True)
        first, own.grad = own.grad, None
        gm.backward(y)
    assert np.array_equal(first.numpy(), own.grad.numpy()), "what a tape kept has changed"
    return [(first, regions)]


def _attached(world: World, t: Tensor, regions: Any) -> Found:
    """Differentiate by the tensor itself, with a hook that comes and goes."""
    if t.dtype.kind != "f":
        return []
    seen = []
    with GradManager().attach(t, callbacks=lambda t, grad: (seen.append(grad), grad)[1]) as gm:
        handle = t.register_hook(lambda grad: None)
        gm.backward((t * 1.0).sum())
        handle.remove()
    return [(grad, regions * 0) for grad in seen]


def _tangent(world: World, t: Tensor, regions: Any) -> Found:
    if t.dtype.kind != "f":
        return []
    with forward_ad.dual_level():
        own = forward_ad.make_dual(tensor(np.ones(t.shape, t.dtype)), tensor(np.ones(t.shape, t.dtype)))
        return [(forward_ad.unpack_dual(own * t).tangent, regions)]


def _state_of_module(world: World, t: Tensor, regions: Any) -> Found:
    state = list(world.module.state_dict().values())
    if world.together:
        assert len({value.reshape(-1)[0].item() for value in state}) == 1, "a state was read that is a mix of two"
    return [(value, None if len(world.tensors) > 1 else regions) for value in state]


def _states_of(optimizer: Any) -> Found:
    states = optimizer.state_dict()["state"].values()
    parts = [part for state in states for name, part in state.items() if name != "step"]
    return [(part, np.zeros(part.shape, int)) for part in parts]


def _state_of_optimizer(world: World, t: Tensor, regions: Any) -> Found:
    return [] if world.optimizer is None else _states_of(world.optimizer)


def _pickled_optimizer(world: World, t: Tensor, regions: Any) -> Found:
    if world.optimizer is None:
        return []
    made = pickle.loads(pickle.dumps(world.optimizer))  # noqa: S301  # made just here
    params = [p for group in made.param_groups for p in group["params"]]
    return [*_states_of(made), *[(p, np.zeros(p.shape, int)) for p in params]]


def _saved(world: World, t: Tensor, regions: Any) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved"
        gradmgr.save({"t": t, "model": world.module}, path)
        return [(gradmgr.load(path)["t"], regions)]


def _grad_of(world: World, t: Tensor, regions: Any) -> Found:
    grad = t.grad
    return [] if grad is None else [(grad.detach(), np.zeros(grad.shape, int))]


def _text(world: World, t: Tensor, regions: Any) -> Found:
    assert repr(t)
    assert str(t)
    return []


def _pickled(t: Tensor) -> Any:
    buffer = io.BytesIO()
    pickle.dump(t, buffer)
    return pickle.loads(buffer.getvalue())  # noqa: S301  # made just here


def _nested(world: World, t: Tensor, regions: Any) -> Found:
    own = tensor(np.ones(t.shape))
    outer, inner = GradManager().attach(own), GradManager().attach(own)
    with outer, inner:
        inner.backward((own * own * t).sum())
        first, own.grad = own.grad, None
        outer.backward(first.sum())
    return [(own.grad, regions), (first, regions)]


READERS: dict[str, Reader] = {
    "detach": _same(Tensor.detach),
    "slice": _moved(lambda a: a[..., 1:] if a.ndim else a[...]),
    "row": _moved(lambda a: a[-1] if a.ndim else a[()]),
    "index array": _moved(lambda a: a[np.array([0, -1])] if a.ndim else a[None]),
    "iteration": lambda world, t, regions: list(zip(t, regions, strict=True)) if t.ndim else [],
    "transpose": _moved(lambda a: a.T),
    "reshape": _moved(lambda a: a.reshape(-1)),
    "numpy()": _same(Tensor.numpy),
    "np.asarray": _same(np.asarray),
    "np.array": _same(np.array),
    "memoryview": _same(lambda t: np.asarray(memoryview(t.numpy()))),
    "dlpack": _same(np.from_dlpack),
    "copy.copy": _same(copy.copy),
    "copy.deepcopy": _same(copy.deepcopy),
    "copy()": _same(lambda t: t.copy()),
    "clone": _same(lambda t: t.clone()),
    "astype": _same(lambda t: t.astype(np.float32)),
    "item": lambda world, t, regions: [(np.array(t.reshape(-1)[0].item()), None)],
    "tolist": _same(lambda t: np.array(t.tolist())),
    "repr": _text,
    "comparison": _same(lambda t: t == 1.0),
    "arithmetic": _same(lambda t: t * 2 + 1),
    "np.sin": _same(np.sin),
    "sum": lambda world, t, regions: [(t.sum(), None), (np.mean(t), None)],
    "max": lambda world, t, regions: [(t.max(), None)],
    "matmul": lambda world, t, regions: [(t @ t.T, None)] if t.ndim == 2 and t.size < 100 else [],
    "stack": lambda world, t, regions: [(part, regions) for part in gnp.stack([t, t])],
    "record, backward": _recorded,
    "record, backward twice": _recorded_twice,
    "nested recordings": _nested,
    "attach, hook, backward": _attached,
    "forward mode": _tangent,
    "vmap": _moved(lambda a: gradmgr.vmap(lambda row: row * 1)(a) if isinstance(a, Tensor) and a.ndim else a + 0),
    "no_grad": lambda world, t, regions: [(_without_grad(t), regions)],
    "state_dict": _state_of_module,
    "Optimizer.state_dict": _state_of_optimizer,
    "pickle of the optimiser": _pickled_optimizer,
    "pickle": _same(_pickled),
    "save": _saved,
    ".grad": _grad_of,
    "tensor()": _same(tensor),
}


def _without_grad(t: Tensor) -> Tensor:
    with no_grad():
        return t + 0.0


# ---------------------------------------------------------------- the storm


def pairs() -> list[tuple[str, str, tuple[int, ...]]]:
    """Return every writer with every reader and every shape."""
    return [(writer, reader, shape) for writer in WRITERS for reader in READERS for shape in SHAPES]


def _bytes(value: Any) -> bytes:
    return np.asarray(value).tobytes()


def _is_mixed(value: Any, regions: Any) -> bool:
    """Tell whether the numbers of one region differ."""
    flat, places = np.asarray(value).ravel(), np.asarray(regions).ravel()
    for region in (0, 1):
        part = flat[places == region]
        if part.size and (part != part[0]).any() and not np.isnan(part).all():
            return True
    return False


class _Observer:
    """Holds what it reads, some of it long, and notes what is wrong."""

    def __init__(self, world: World, reader: str) -> None:
        self.world, self.read = world, READERS[reader]
        self.held: deque[tuple[Any, bytes]] = deque()
        self.faults: list[str] = []

    def look(self, k: int) -> None:
        world = self.world
        at = k % len(world.tensors)
        t: Any = world.tensors[at].grad if world.read_grads else world.tensors[at]
        if t is None:
            return
        found = [(value, _bytes(value), regions) for value, regions in self.read(world, t, world.regions[at])]
        for value, before, regions in found:
            if _bytes(value) != before:
                self.faults.append("a value that was just taken has changed")
            if regions is not None and _is_mixed(np.frombuffer(before, value.dtype), regions):
                self.faults.append("a value was read that nobody wrote: a mix of two")
        if k % 3 == 0:  # else nothing is held, and the next write goes into the same buffer
            self.held.extend((value, before) for value, before, _ in found)
        if k % 7 == 0:
            self.check()

    def check(self) -> None:
        if any(_bytes(value) != before for value, before in self.held):
            self.faults.append("a value that is held has changed")
        self.held.clear()


def storm(writer: str, reader: str, shape: tuple[int, ...], rounds: int, writers: int = 1) -> list[str]:
    """Let threads write and read so many times; return what was wrong."""
    world = WRITERS[writer](shape)
    observers = [_Observer(world, reader) for _ in range(2)]
    numbers = iter(range(1, rounds + 1))
    over = threading.Event()
    start = threading.Barrier(writers + len(observers))

    def write() -> None:
        start.wait()
        try:
            with np.errstate(all="ignore"):
                for k in numbers:
                    world.write(k)
        finally:
            over.set()

    def look(observer: _Observer) -> None:
        start.wait()
        with np.errstate(all="ignore"):
            for k in range(100 * rounds):
                observer.look(k)
                if over.is_set() and k > 2:
                    break
        observer.check()

    with ThreadPoolExecutor(writers + len(observers)) as pool:
        futures = [pool.submit(write) for _ in range(writers)] + [pool.submit(look, each) for each in observers]
        errors = [error for future in futures if (error := future.exception()) is not None]
    return [*_described(errors), *sorted({fault for observer in observers for fault in observer.faults})]


def _described(errors: list[BaseException]) -> Iterator[str]:
    for error in errors:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = "" if place is None else f" in {place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
        yield f"{type(error).__name__}: {error}{where}"
