"""A table of a model's layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gradmgr._arrays import libraries
from gradmgr._engine.containers import leaves_of
from gradmgr._engine.display import Text
from gradmgr._engine.history.modes import no_grad
from gradmgr._engine.history.spill import format_bytes
from gradmgr._engine.hooks import Hooks
from gradmgr._engine.tensor import Tensor, wrap
from gradmgr._transforms.randomness import Replayed, sources_in
from gradmgr.nn._functions.arguments import length
from gradmgr.nn._modules.container import PlainFunction
from gradmgr.nn._modules.functional_call import Stage
from gradmgr.nn._modules.module import MODULE, Module


def summary(model: Module, *inputs: Any, depth: int | None = None, **keywords: Any) -> str:
    """Return a table of a model's layers as text: types, numbers of parameters and, with inputs, shapes of outputs.

    The parameters of a module include those of the modules within it; a shared one counts once. With inputs the model
    is called on them, in evaluation mode and without recording; neither running statistics nor the states of generators
    change. For a module that is called several times the last output is shown.

    Args:
        model: a Module.
        *inputs: the arguments to call it with.
        depth: how many levels of modules within modules to show; all by default, 0 for the model alone.
        **keywords: the keyword arguments to call it with.

    Raises:
        TypeError: `model` is not a Module.
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
    for level, name, module in _iterate_tree(model, levels):
        output = results.get(id(module), "-")
        kind = repr(module) if isinstance(module, PlainFunction) else type(module).__name__
        rows.append(("  " * level + name, kind, output, f"{_count(module.parameters()):,}"))
    return Text(_table(rows if called else [(*row[:2], row[3]) for row in rows]) + "\n" + _totals(model))


def _iterate_tree(
    module: Module, levels: int | None, level: int = 0, name: str = "(model)"
) -> Iterator[tuple[int, str, Module]]:
    yield level, name, module
    if levels is None or level < levels:
        for inner_name, inner in module._registered(MODULE):
            if inner is not None:
                yield from _iterate_tree(inner, levels, level + 1, inner_name)


def _results(model: Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> dict[int, str]:
    """Call copies of the modules, and return the shapes of their outputs by the id of the module."""
    modules = {id(module): module for module in model.modules()}
    stage = Stage(modules, {id(buffer): wrap(buffer._array) for buffer in model.buffers()})
    results: dict[int, str] = {}
    for key, module in modules.items():
        made = stage.copy_of(module)
        hooks = Hooks()
        for hook in module._post_hooks or ():
            hooks.add(object(), hook)
        hooks.add(key, lambda _, args, result, key=key: results.__setitem__(key, _format_shapes(result)))
        made._post_hooks = hooks
        made.training = False
    drawing = Replayed([(source, source.read()) for source in sources_in(model)])  # generators are as before then
    no_grad().run(drawing.run, stage.copy_of(model), *inputs, **keywords)
    return results


def _format_shapes(result: Any) -> str:
    shapes = [str(leaf.shape) for leaf in leaves_of(result) if isinstance(leaf, Tensor) or libraries.is_array(leaf)]
    return ", ".join(shapes) or type(result).__name__


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(t.size for t in tensors)


def _totals(model: Module) -> str:
    parameters, buffers = list(model.parameters()), list(model.buffers())
    sizes = [format_bytes(sum(t.nbytes for t in tensors)) for tensors in (parameters, buffers)]
    return f"{_count(parameters):,} parameters ({sizes[0]}), {_count(buffers):,} elements in buffers ({sizes[1]})"


def _table(rows: list[tuple[str, ...]]) -> str:
    """Return rows, the first of which are titles, as text; the last column is aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    left = [[cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)] for row in rows]
    lines = ["  ".join([*cells, row[-1].rjust(widths[-1])]) for cells, row in zip(left, rows, strict=True)]
    return "\n".join([lines[0], rule, *lines[1:], rule])
