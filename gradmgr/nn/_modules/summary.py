"""What a model is made of, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from gradmgr._arrays import libraries
from gradmgr._engine.containers import leaves_of
from gradmgr._engine.history.modes import no_grad
from gradmgr._engine.history.spill import format_bytes
from gradmgr._engine.hooks import Hooks
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr._transforms.randomness import sources_in
from gradmgr.nn._functions.arguments import length
from gradmgr.nn._modules.container import PlainFunction
from gradmgr.nn._modules.functional_call import Stage
from gradmgr.nn._modules.module import MODULE, Module


def summary(model: Module, *inputs: Any, depth: int | None = None, **keywords: Any) -> str:
    """Return, as text, a table of a model's layers: their types, parameters and, with inputs, what they give.

    The parameters of a module are those within it; one that stands in several places counts once. With inputs the
    model is called on them, unrecorded and as in evaluation: nothing of it changes, neither running statistics nor the
    state of generators. A module that is called several times shows what it gave last.

    Args:
        model: a Module.
        *inputs: what to call it with.
        depth: how many levels of modules within modules to show; by default all, 0 for the model alone.
        **keywords: keyword arguments to call it with.

    Raises:
        TypeError: `model` is no Module.
        ValueError: depth is negative.

    >>> import numpy
    >>> from gradmgr import nn
    >>> net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> print(nn.summary(net, numpy.zeros((5, 2), "float32")))
    layer    type        output  parameters
    -------  ----------  ------  ----------
    (model)  Sequential  (5, 1)          33
      0      Linear      (5, 8)          24
      1      Tanh        (5, 8)           0
      2      Linear      (5, 1)           9
    -------  ----------  ------  ----------
    33 parameters (132 B), 0 elements in buffers (0 B)
    """
    if not isinstance(model, Module):
        raise TypeError(f"summary takes a Module; found {type(model).__name__}")
    levels = None if depth is None else length(depth, "depth", "summary")
    called = bool(inputs or keywords)
    results = _results(model, inputs, keywords) if called else {}
    rows: list[tuple[str, ...]] = [("layer", "type", "output", "parameters")]
    for level, name, module in _tree(model, levels):
        output = results.get(id(module), "-")
        kind = repr(module) if isinstance(module, PlainFunction) else type(module).__name__
        rows.append(("  " * level + name, kind, output, f"{_count(module.parameters()):,}"))
    return _table(rows if called else [(*row[:2], row[3]) for row in rows]) + "\n" + _totals(model)


def _tree(
    module: Module, levels: int | None, level: int = 0, name: str = "(model)"
) -> Iterator[tuple[int, str, Module]]:
    yield level, name, module
    if levels is None or level < levels:
        for inner_name, inner in module._of(MODULE):
            if inner is not None:
                yield from _tree(inner, levels, level + 1, inner_name)


def _results(model: Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> dict[int, str]:
    """Call stand-ins of the modules, and return the shapes of what each gave, by the module's identity."""
    modules = {id(module): module for module in model.modules()}
    stage = Stage(modules, {id(buffer): wrap(buffer._array) for buffer in model.buffers()})
    results: dict[int, str] = {}
    for key, module in modules.items():
        made = stage.stand_in(module)
        hooks = Hooks()
        for hook in module._post_hooks or ():
            hooks.add(hook)
        hooks.add(lambda _, args, result, key=key: results.__setitem__(key, _shapes(result)))
        made._post_hooks = hooks
        made.training = False
    with no_grad(), _generators_kept(model):
        stage.stand_in(model)(*inputs, **keywords)
    return results


@contextmanager
def _generators_kept(model: Module) -> Iterator[None]:
    """Set the generators within a model back to their states at the end of a with block."""
    states = [(source, source.read()) for source in sources_in(model)]
    try:
        yield
    finally:
        for source, state in states:
            source.write(state)


def _shapes(result: Any) -> str:
    shapes = [str(leaf.shape) for leaf in leaves_of(result) if isinstance(leaf, Tensor) or libraries.is_array(leaf)]
    return ", ".join(shapes) or type(result).__name__


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(t.size for t in tensors)


def _totals(model: Module) -> str:
    parameters, buffers = list(model.parameters()), list(model.buffers())
    sizes = [format_bytes(sum(t.nbytes for t in tensors)) for tensors in (parameters, buffers)]
    return f"{_count(parameters):,} parameters ({sizes[0]}), {_count(buffers):,} elements in buffers ({sizes[1]})"


def _table(rows: list[tuple[str, ...]]) -> str:
    """Write rows, the first of them titles, in columns of which the last is aligned at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    left = [[cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)] for row in rows]
    lines = ["  ".join([*cells, row[-1].rjust(widths[-1])]) for cells, row in zip(left, rows, strict=True)]
    return "\n".join([lines[0], rule, *lines[1:], rule])
