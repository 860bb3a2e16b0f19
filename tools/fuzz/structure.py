"""Draws of functions that move elements, join arrays and reduce them."""

from __future__ import annotations

import numpy as np

from tools.fuzz.draw import Draw, Drawn, translated

# Functions that move elements: {a} stands for the operand, which has at least so many axes; {k} for an axis.
MOVES = {
    0: [
        "np.ravel({a})",
        "np.expand_dims({a}, 0)",
        "{a}[..., None]",
        "np.broadcast_to({a}, (2, *{a}.shape))",
        "np.atleast_2d({a}) * 1",
        "np.tile({a}, 2)",
        "{a}.flatten()",
        "np.squeeze({a}) * 1",
        "{a}.T",
        "np.repeat({a}, 2)",
        "np.reshape({a}, (-1, 1))",
        "{a}.reshape(-1)",
        "np.flip({a})",
    ],
    1: [
        "np.flip({a}, {k})",
        "np.roll({a}, 1, axis={k})",
        "np.roll({a}, -2)",
        "np.repeat({a}, 2, axis={k})",
        "np.moveaxis({a}, 0, -1)",
        "np.swapaxes({a}, 0, {k})",
        "np.expand_dims({a}, {k})",
        "np.array_split({a}, 2)[0]",
        "np.array_split({a}, 3, axis={k})[1]",
        "np.pad({a}, 1, mode='wrap')",
        "np.pad({a}, (0, 2), mode='edge')",
        "np.pad({a}, 1, mode='reflect')",
        "np.take({a}, [0, -1, 0], axis={k})",
        "np.delete({a}, 0, axis={k})",
        "np.resize({a}, (2, 3))",
        "np.compress([True, False, True], {a}, axis={k})",
        "np.unstack({a})[-1]",
        "np.append({a}, {a}, axis={k})",
        "np.fliplr(np.atleast_2d({a}))",
        "np.rollaxis({a}, {k})",
        "np.lib.stride_tricks.sliding_window_view({a}, 2, axis={k})",
        "np.split({a}, [1], axis={k})[1]",
        "np.stack([{a}, {a}], axis={k})",
        "np.concatenate([{a}, {a}], axis={k})",
        "np.hsplit({a}, [1])[0]",
    ],
    2: [
        "np.transpose({a})",
        "{a}.mT",
        "np.rot90({a})",
        "np.diagonal({a})",
        "np.diagonal({a}, 1)",
        "np.flipud({a})",
        "np.swapaxes({a}, -1, -2)",
        "np.transpose({a}, (1, 0, *range(2, {a}.ndim)))",
        "np.vsplit({a}, [1])[1]",
    ],
}


def moved(d: Draw) -> Drawn | None:
    """Draw a function that moves elements."""
    least = d.choice([0, 1, 1, 2])
    x = d.pick(lambda a: a.ndim >= least and a.size <= 200 and (a.size or d.chance(0.5)))
    if x is None:
        return None
    axis = str(d.axis(d.values[x])) if d.values[x].ndim else "0"
    text = d.choice(MOVES[least]).replace("{k}", axis)
    if ("compress" in text or "take" in text) and not d.values[x].size:  # where NumPy does not check the places
        return None
    return Drawn(text.replace("{a}", x), f"t.moved({x}, lambda a: {text.replace('{a}', 'a')})")


def item(d: Draw) -> Drawn | None:
    """Draw a part of an array."""
    x = d.pick()
    if x is None:
        return None
    index = d.index(d.values[x].shape)
    return Drawn(f"{x}[{index}]", f"t.moved({x}, lambda a: a[{index}])")


def masked_items(d: Draw) -> Drawn | None:
    """Draw the elements where a condition holds."""
    b = d.pick(lambda a: a.size, "b")  # of no elements NumPy does not take a Tensor for booleans
    x = None if b is None else d.pick(lambda a: a.shape == d.values[b].shape)
    if x is None:
        return None
    text = d.choice([f"{x}[{b}]", f"np.extract({b}, {x})"])
    return Drawn(text, f"{x}[{b}]")


def items_by_order(d: Draw) -> Drawn | None:
    """Draw elements in the places that an order of another array gives."""
    i = d.pick(lambda a: a.ndim and a.size, "i")
    x = None if i is None else d.pick(lambda a: a.shape == d.values[i].shape)
    if i is None or x is None or int(abs(d.values[i]).max()) >= d.values[i].shape[-1]:
        return None
    return Drawn(f"np.take_along_axis({x}, {i}, axis=-1)", f"torch.take_along_dim({x}, {i} % {i}.shape[-1], -1)")


def joined(d: Draw) -> Drawn | None:
    """Draw several arrays as one."""
    x = d.pick(lambda a: a.ndim)
    if x is None:
        return None
    shape = d.values[x].shape
    axis = d.axis(d.values[x])
    y = d.pick(lambda a: a.ndim == len(shape) and _without(a.shape, axis) == _without(shape, axis))
    z = d.pick(lambda a: a.shape == shape)
    choice = d.below(4)
    if choice == 0:
        return Drawn(f"np.concatenate([{x}, {y}], axis={axis})", f"torch.cat(t.pair({x}, {y}), dim={axis})")
    if choice == 1:
        return Drawn(f"np.stack([{x}, {z}], axis={axis})", f"torch.stack(t.pair({x}, {z}), dim={axis})")
    if choice == 2:
        return Drawn(f"np.hstack([{x}, {z}])", f"torch.hstack(t.pair({x}, {z}))")
    return Drawn(f"np.vstack([{x}, {z}, {x}])", f"torch.vstack(t.pair({x}, {z}, {x}))")


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    sizes = list(shape)
    del sizes[axis]
    return tuple(sizes)


# ---------------------------------------------------------------- reductions


def summed(d: Draw) -> Drawn | None:
    """Draw sum, mean or prod, with keywords."""
    name = d.choice(["sum", "sum", "mean", "prod"])
    x = d.pick(lambda a: a.size or name != "mean")
    if x is None:
        return None
    numpy, torch = d.axes(d.values[x])
    keep = d.chance(0.4)
    mask = d.mask(x) if d.chance(0.3) and name != "mean" else None
    more = "" if mask is None else f", where={mask}"
    prefix = f"np.{name}({x}, " if d.chance(0.6) else f"{x}.{name}("
    function = "sum_" if name == "sum" else name
    where = f", torch.broadcast_to({mask}, {x}.shape)" if mask else ""
    return Drawn(f"{prefix}axis={numpy}, keepdims={keep}{more})", f"t.{function}({x}, {torch}, {keep}{where})")


def spread(d: Draw) -> Drawn | None:
    """Draw var or std, which has no derivative where it is 0."""
    x = d.pick(lambda a: a.size > 1 and float(np.std(a)) > 0.01)
    if x is None:
        return None
    numpy, torch = d.axes(d.values[x])
    keep, ddof = d.chance(0.4), d.below(2)
    name = d.choice(["var", "std"]) if numpy == "None" else "var"
    return Drawn(
        f"np.{name}({x}, axis={numpy}, keepdims={keep}, ddof={ddof})", f"t.{name}({x}, {torch}, {keep}, {ddof})"
    )


def extremes(d: Draw) -> Drawn | None:
    """Draw max or min, with keywords."""
    x = d.real(lambda a: a.size)
    if x is None:
        return None
    numpy, torch = d.axes(d.values[x])
    keep, which = d.chance(0.4), d.choice(["max", "min"])
    mask = d.mask(x) if d.chance(0.3) else None
    if mask is None:
        name = which if d.chance(0.7) else f"a{which}"
        return Drawn(f"np.{name}({x}, axis={numpy}, keepdims={keep})", f"t.extreme('{which}', {x}, {torch}, {keep})")
    where = f"torch.broadcast_to({mask}, {x}.shape)"
    return Drawn(
        f"np.{which}({x}, axis={numpy}, keepdims={keep}, initial=0.2, where={mask})",
        f"t.extreme('{which}', {x}, {torch}, {keep}, {where}, 0.2)",
    )


ALONG = {
    "np.cumsum({x}, axis={k})": "torch.cumsum({x}, {k})",
    "np.cumprod({x}, axis={k})": "torch.cumprod({x}, {k})",
    "np.cumulative_sum({x}, axis={k})": "torch.cumsum({x}, {k})",
    "np.add.accumulate({x}, axis={k})": "torch.cumsum({x}, {k})",
    "np.multiply.accumulate({x}, axis={k})": "torch.cumprod({x}, {k})",
    "np.add.reduce({x}, axis={k})": "{x}.sum({k})",
    "np.diff({x}, axis={k})": "t.differences({x}, 1, {k})",
    "np.linalg.norm({x} + 0.3, axis={k})": "torch.linalg.vector_norm({x} + 0.3, dim={k})",
    "np.trapezoid({x}, dx=0.5, axis={k})": "t.trapezoid({x}, {k}, 0.5)",
    "np.add.reduceat({x}, [0], axis={k})": "{x}.sum({k}, keepdim=True)",
    "np.average({x}, axis={k})": "{x}.mean({k})",
}
ALONG_REAL = {
    "np.sort({x}, axis={k})": "t.ordered({x}, {k})",
    "np.median({x}, axis={k})": "t.median({x}, {k}, False)",
    "np.quantile({x}, 0.3, axis={k})": "torch.quantile({x}, 0.3, dim={k})",
    "np.percentile({x}, [10, 65], axis={k})": "torch.quantile({x}, torch.tensor([0.1, 0.65]), dim={k})",
    "np.ptp({x}, axis={k})": "torch.amax({x}, {k}) - torch.amin({x}, {k})",
    "np.maximum.accumulate({x}, axis={k})": "torch.cummax({x}, {k})[0]",
    "np.maximum.reduce({x}, axis={k})": "torch.amax({x}, {k})",
    "special.softmax({x}, axis={k})": "torch.softmax({x}, {k})",
    "special.log_softmax({x}, axis={k})": "torch.log_softmax({x}, {k})",
    "special.logsumexp({x}, axis={k})": "torch.logsumexp({x}, {k})",
    "np.linalg.norm({x}, 1, axis={k})": "torch.linalg.vector_norm({x}, 1, dim={k})",
    "np.linalg.norm({x}, np.inf, axis={k})": "torch.linalg.vector_norm({x}, float('inf'), dim={k})",
    "np.linalg.norm({x} + 0.3, 3, axis={k})": "torch.linalg.vector_norm({x} + 0.3, 3, dim={k})",
    "np.gradient(np.concatenate([{x}, {x}], axis={k}), axis={k})": "t.gradient(torch.cat([{x}, {x}], {k}), {k})",
    "np.nansum({x}, axis={k})": "torch.nansum({x}, {k})",
    "np.nanmax({x}, axis={k})": "torch.amax({x}, {k})",
    "np.mean({x}, axis={k}, where=~({x} > 9))": "t.mean({x}, ({k},), False, ~({x} > 9))",
}


def along(d: Draw) -> Drawn | None:
    """Draw a function along one axis."""
    x = d.pick(lambda a: a.ndim and a.size)
    if x is None:
        return None
    texts = ALONG_REAL if d.values[x].dtype.kind == "f" and d.chance(0.5) else ALONG
    numpy = d.choice(list(texts))
    return translated(numpy, texts, x=x, k=str(d.axis(d.values[x])))


def triangle(d: Draw) -> Drawn | None:
    """Draw what keeps some elements and fills the rest with zeros."""
    x = d.pick(lambda a: a.ndim >= 2)
    if x is None:
        return None
    k = d.below(3) - 1
    texts = {
        f"np.tril({x}, {k})": f"torch.tril({x}, {k})",
        f"np.triu({x}, {k})": f"torch.triu({x}, {k})",
        f"np.trace({x})": f"t.moved({x}, lambda a: np.diagonal(a)).sum(-1)",
        f"np.pad({x}, 1)": f"torch.nn.functional.pad({x}, (1, 1) * {x}.ndim)",
        f"np.pad({x}, ((0, 1), *[(1, 0)] * ({x}.ndim - 1)), constant_values=0.5)": (
            f"torch.nn.functional.pad({x}, (1, 0) * ({x}.ndim - 1) + (0, 1), value=0.5)"
        ),
    }
    numpy = d.choice(list(texts))
    return Drawn(numpy, texts[numpy])


def outer_ufunc(d: Draw) -> Drawn | None:
    """Draw the outer method of a ufunc."""
    x = d.pick(lambda a: 0 < a.ndim < 3 and a.size <= 12)
    y = d.pick(lambda a: 0 < a.ndim < 3 and a.size <= 12)
    if x is None or y is None:
        return None
    sign, name = d.choice([("+", "add"), ("*", "multiply"), ("-", "subtract")])
    ones = (1,) * d.values[y].ndim
    return Drawn(f"np.{name}.outer({x}, {y})", f"{x}.reshape(*{x}.shape, *{ones}) {sign} {y}")


def like(d: Draw) -> Drawn | None:
    """Draw a constant of the shape of another, with values written or added."""
    x = d.pick()
    if x is None:
        return None
    texts = {
        f"np.zeros_like({x}) + {x}": f"{x} * 1",
        f"np.ones_like({x}) - {x}": f"1 - {x}",
        f"np.full_like({x}, 0.5) * {x}": f"0.5 * {x}",
        f"np.broadcast_arrays({x}, {x})[1]": f"{x} * 1",
    }
    numpy = d.choice(list(texts))
    return Drawn(numpy, texts[numpy])
