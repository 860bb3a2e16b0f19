"""Draws of elementwise functions: of one operand and two, with `where=`, conditions, casts."""

from __future__ import annotations

from typing import Any

from tools.fuzz.draw import Draw, Drawn, broadcasts_to, translated

# Text in NumPy's words: text in torch's; {x} stands for the operand. Arguments are kept where the function is smooth.
ANY_UNARY = {
    "np.sin({x})": "torch.sin({x})",
    "np.cos({x})": "torch.cos({x})",
    "np.tanh({x})": "torch.tanh({x})",
    "np.exp({x})": "torch.exp({x})",
    "np.expm1({x})": "torch.expm1({x})",
    "np.square({x})": "torch.square({x})",
    "np.negative({x})": "-{x}",
    "-{x}": "-{x}",
    "+{x}": "{x} * 1",
    "{x} * {x}": "{x} * {x}",
    "{x} + {x}": "{x} + {x}",
    "np.sinh({x})": "torch.sinh({x})",
    "np.cosh({x})": "torch.cosh({x})",
    "np.arctan({x} * 0.5)": "torch.atan({x} * 0.5)",
    "np.arcsinh({x} * 0.5)": "torch.asinh({x} * 0.5)",
    "np.sqrt({x} * np.conj({x}) + 2)": "torch.sqrt({x} * t.conj({x}) + 2)",
    "np.log({x} * np.conj({x}) + 1.5)": "torch.log({x} * t.conj({x}) + 1.5)",
    "np.log1p({x} * np.conj({x}))": "torch.log1p({x} * t.conj({x}))",
    "1 / ({x} * np.conj({x}) + 1.5)": "1 / ({x} * t.conj({x}) + 1.5)",
    "np.reciprocal({x} * np.conj({x}) + 1.5)": "1 / ({x} * t.conj({x}) + 1.5)",
    "np.conj({x})": "t.conj({x})",
    "np.real({x})": "t.real({x})",
    "np.imag({x})": "t.imag({x})",
    "{x}.real": "t.real({x})",
    "np.abs({x})": "torch.abs({x})",
    "abs({x})": "torch.abs({x})",
    "np.angle({x} + 1.5)": "torch.angle({x} + 1.5)",
    "{x} ** 2": "{x} ** 2",
    "{x} ** 3": "{x} ** 3",
    "({x} * np.conj({x}) + 1) ** -1.5": "({x} * t.conj({x}) + 1) ** -1.5",
    "np.power({x}, 1)": "{x} * 1",
    "np.float_power({x}, 2)": "{x} ** 2",
    "2.0 ** {x}": "2.0 ** {x}",
    "np.isfinite({x}) * {x}": "{x} * 1",
    "np.where(np.abs({x}) < 1, {x}, 0.5)": "t.choose(torch.abs({x}) < 1, {x}, 0.5)",
    "np.nan_to_num({x})": "{x} * 1",
    "np.copy({x})": "{x} * 1",
    "np.astype({x}, C8)": "t.pair({x}, torch.zeros((), dtype=torch.complex128))[0]",
    "F.hooked({x}, 2)": "2 * {x} - {x}.detach()",
    "F.hooked({x}, 0.5)": "0.5 * {x} + 0.5 * {x}.detach()",
    "F.detached(np.sin({x}))": "torch.sin({x}).detach()",
    "F.Cube.apply({x})": "{x} ** 3",
    "F.Wave.apply({x})[1]": "{x} * torch.sin({x})",
}
REAL_UNARY = {
    "np.cbrt({x} * {x} + 0.5)": "t.cbrt({x} * {x} + 0.5)",
    "np.exp2({x})": "torch.exp2({x})",
    "np.log2({x} * {x} + 1)": "torch.log2({x} * {x} + 1)",
    "np.log10({x} * {x} + 1)": "torch.log10({x} * {x} + 1)",
    "np.arcsin(np.tanh({x}) * 0.9)": "torch.asin(torch.tanh({x}) * 0.9)",
    "np.arccos(np.tanh({x}) * 0.9)": "torch.acos(torch.tanh({x}) * 0.9)",
    "np.arctanh(np.tanh({x}) * 0.9)": "torch.atanh(torch.tanh({x}) * 0.9)",
    "np.arccosh({x} * {x} + 1.5)": "torch.acosh({x} * {x} + 1.5)",
    "np.tan({x} * 0.3)": "torch.tan({x} * 0.3)",
    "np.sinc({x})": "torch.sinc({x})",
    "np.deg2rad({x})": "torch.deg2rad({x})",
    "np.degrees({x})": "torch.rad2deg({x})",
    "np.fabs({x})": "torch.abs({x})",
    "np.sign({x}) * {x}": "torch.sign({x}) * {x}",
    "np.sqrt(np.abs({x}) + 0.5)": "torch.sqrt(torch.abs({x}) + 0.5)",
    "np.clip({x}, -0.7, 0.9)": "torch.clamp({x}, -0.7, 0.9)",
    "np.clip({x}, None, 0.4)": "torch.clamp({x}, max=0.4)",
    "np.maximum({x}, 0.3)": "torch.clamp({x}, min=0.3)",
    "np.floor({x})": "torch.floor({x})",
    "np.heaviside({x}, 0.5) + {x}": "(({x} > 0) * 1.0 + ({x} == 0) * 0.5) + {x}",
    "np.modf({x})[0]": "{x} - torch.trunc({x}).detach()",
    "np.fmod({x}, 0.7)": "t.fmod_times({x}, 0.7, torch.trunc)",
    "{x} % 0.7": "t.fmod_times({x}, 0.7, torch.floor)",
    "np.where({x} > 0.1, {x}, np.expm1({x}))": "torch.where({x} > 0.1, {x}, torch.expm1({x}))",
    "np.select([{x} > 1, {x} > 0], [{x}, np.square({x})], -0.5)": (
        "torch.where({x} > 1, {x}, torch.where({x} > 0, torch.square({x}), torch.full_like({x}, -0.5)))"
    ),
    "np.astype({x}, F4)": "{x} * 1",
    "special.expit({x})": "torch.special.expit({x})",
    "special.erf({x})": "torch.special.erf({x})",
    "special.erfc({x})": "torch.special.erfc({x})",
    "special.gammaln({x} * {x} + 1)": "torch.special.gammaln({x} * {x} + 1)",
    "special.digamma({x} * {x} + 1)": "torch.special.digamma({x} * {x} + 1)",
    "special.ndtr({x})": "torch.special.ndtr({x})",
    "special.log_ndtr({x})": "torch.special.log_ndtr({x})",
    "special.entr({x} * {x} + 0.1)": "torch.special.entr({x} * {x} + 0.1)",
    "special.i0e({x})": "torch.special.i0e({x})",
    "special.xlogy({x}, 2.5)": "torch.special.xlogy({x}, torch.tensor(2.5))",
}
ANY_BINARY = {
    "{x} + {y}": "{x} + {y}",
    "{x} - {y}": "{x} - {y}",
    "{x} * {y}": "{x} * {y}",
    "np.add({x}, {y})": "{x} + {y}",
    "np.subtract({x}, {y})": "{x} - {y}",
    "np.multiply({x}, {y})": "{x} * {y}",
    "{x} / ({y} * np.conj({y}) + 1.5)": "{x} / ({y} * t.conj({y}) + 1.5)",
    "np.divide({x}, np.abs({y}) + 1.5)": "{x} / (torch.abs({y}) + 1.5)",
    "np.power(np.abs({x}) + 0.5, {y})": "t.power(torch.abs({x}) + 0.5, {y})",
    "(np.abs({x}) + 0.5) ** np.real({y})": "t.power(torch.abs({x}) + 0.5, t.real({y}))",
    "np.power(-np.abs({x}) - 0.5, {y} + 0.1j)": "t.power(-torch.abs({x}) - 0.5, {y} + 0.1j)",
    "np.where(np.real({x}) > np.real({y}), {x}, {y})": "t.choose(t.real({x}) > t.real({y}), {x}, {y})",
    "F.Product.apply({x}, {y})": "torch.sin({x}) * {y}",
}
REAL_BINARY = {
    "np.maximum({x}, {y})": "torch.maximum(*t.pair({x}, {y}))",
    "np.minimum({x}, {y})": "torch.minimum(*t.pair({x}, {y}))",
    "np.fmax({x}, {y})": "t.extreme_but_nan(torch.maximum, {x}, {y})",
    "np.fmin({x}, {y})": "t.extreme_but_nan(torch.minimum, {x}, {y})",
    "np.hypot({x}, {y})": "torch.hypot(*t.pair({x}, {y}))",
    "np.arctan2({x}, {y} * {y} + 0.3)": "torch.atan2(*t.pair({x}, {y} * {y} + 0.3))",
    "np.logaddexp({x}, {y})": "torch.logaddexp(*t.pair({x}, {y}))",
    "np.logaddexp2({x}, {y})": "torch.logaddexp2(*t.pair({x}, {y}))",
    "np.copysign({x}, {y})": "torch.copysign(*t.pair({x}, {y}))",
    "np.fmod({x}, {y} * {y} + 0.5)": "t.fmod_times({x}, {y} * {y} + 0.5, torch.trunc)",
    "{x} % ({y} * {y} + 0.5)": "t.fmod_times({x}, {y} * {y} + 0.5, torch.floor)",
    "{x} + 1j * {y}": "{x} + 1j * {y}",
    "special.xlogy({x}, {y} * {y} + 0.2)": "torch.special.xlogy({x}, {y} * {y} + 0.2)",
    "np.clip({x}, {y} - 0.5, {y} + 0.5)": "torch.minimum(torch.maximum({x}, {y} - 0.5), {y} + 0.5)",
}
TO_BOOLEANS = ["{x} > 0.1", "np.abs({x}) < 1", "np.real({x}) >= np.real({y})", "~({x} == {y})", "np.isfinite({x})"]
UFUNCS_1 = {"sin": "torch.sin", "exp": "torch.exp", "square": "torch.square", "tanh": "torch.tanh", "negative": "-"}
UFUNCS_2 = {"add": "+", "subtract": "-", "multiply": "*"}


def _filled(texts: dict[str, str], d: Draw, **names: str) -> Drawn:
    numpy = d.choice(list(texts))
    return translated(numpy, texts, **names)


def unary(d: Draw) -> Drawn | None:
    """Draw a function of one operand."""
    x = d.pick()
    if x is None:
        return None
    is_real = d.values[x].dtype.kind == "f"
    return _filled(REAL_UNARY if is_real and d.chance(0.5) else ANY_UNARY, d, x=x)


def binary(d: Draw) -> Drawn | None:
    """Draw a function of two operands that broadcast."""
    x = d.pick()
    y = None if x is None else d.partner(x)
    if x is None or y is None:
        return None
    are_real = d.values[x].dtype.kind == d.values[y].dtype.kind == "f"
    return _filled(REAL_BINARY if are_real and d.chance(0.4) else ANY_BINARY, d, x=x, y=y)


def with_number(d: Draw) -> Drawn | None:
    """Draw an operation with a number, real or complex, or a NumPy scalar."""
    x = d.pick()
    number = d.choice([str(d.number()), "3", "np.float64(0.75)", "(0.5-1j)"])
    text = d.choice(["{x} * {n}", "{n} * {x}", "{x} + {n}", "{n} - {x}", "{x} / {n}", "np.multiply({n}, {x})"])
    if x is None:
        return None
    return Drawn(text.format(x=x, n=number), text.replace("np.multiply({n}, {x})", "{n} * {x}").format(x=x, n=number))


def with_integers(d: Draw) -> Drawn | None:
    """Draw an operation with integers or booleans."""
    x = d.pick()
    y = None if x is None else d.partner(x, "ib")
    if y is None:
        return None
    text = d.choice(["{x} * {y}", "{y} * {x}", "{x} + 2 * {y}", "{y} - {x}" if y[0] == "i" else "{y} * {x}"])
    return Drawn(text.format(x=x, y=y), text.format(x=x, y=y))


def power_of_integers(d: Draw) -> Drawn | None:
    """Draw a power with an array of integers as exponents, or as base."""
    x = d.pick()
    y = None if x is None else d.partner(x, "i")
    if x is None or y is None:
        return None
    if d.chance(0.5):
        return Drawn(f"np.power({x}, np.abs({y}))", f"t.pair({x}) [0] ** torch.abs({y})")
    return Drawn(f"np.power(np.abs({y}) + 1, {x})", f"t.power(torch.abs({y}).double() + 1, {x})")


def choice(d: Draw) -> Drawn | None:
    """Draw a where of two operands and a condition."""
    x = d.pick()
    y = None if x is None else d.partner(x)
    mask = None if x is None else d.partner(x, "b")
    if x is None or y is None or mask is None:
        return None
    if d.chance(0.3):
        return Drawn(f"np.where({mask}, {x}, 0)", f"t.choose({mask}, {x}, 0.0)")
    return Drawn(f"np.where({mask}, {x}, {y})", f"t.choose({mask}, {x}, {y})")


def booleans(d: Draw) -> Drawn | None:
    """Draw a condition."""
    x = d.pick()
    y = None if x is None else d.partner(x)
    text = d.choice(TO_BOOLEANS)
    if x is None or y is None or (d.values[x].dtype.kind == "c" and "{x} > 0" in text):
        return None
    return Drawn(text.format(x=x, y=y))


def integers(d: Draw) -> Drawn | None:
    """Draw integers: of an order, a count, a rounding."""
    x = d.real(lambda a: a.ndim and a.size)
    if x is None:
        return None
    text = d.choice(
        [
            "np.argsort({x}, axis=-1, stable=True)",
            "np.astype(np.rint({x}), int)",
            "np.argmax({x}, axis=0)",
            "np.cumsum({x} > 0)",
        ]
    )
    return Drawn(text.format(x=x))


# ---------------------------------------------------------------- writes


def augmented(d: Draw) -> Drawn | None:
    """Draw x += y and its kin."""
    x = d.target()
    y = None if x is None else d.guest(x)
    if x is None or y is None:
        return None
    sign = d.choice(["+", "-", "*"])
    if d.chance(0.15):
        n = abs(d.number()) + 1
        return Drawn(f"{x} /= {n}", f"{x} / {n}", x)
    return Drawn(f"{x} {sign}= {y}", f"t.into({x}, {x} {sign} {y})", x)


def out_1(d: Draw) -> Drawn | None:
    """Draw a ufunc of one operand with out=, and sometimes where=."""
    target = d.target()
    x = None if target is None else d.guest(target)
    if target is None or x is None:
        return None
    name = d.choice(list(UFUNCS_1))
    return _with_out(d, target, f"np.{name}({x}", f"{UFUNCS_1[name]}({x})")


def out_2(d: Draw) -> Drawn | None:
    """Draw a ufunc of two operands with out=, and sometimes where=."""
    target = d.target()
    x = None if target is None else d.guest(target)
    y = None if target is None else d.guest(target)
    if target is None or x is None or y is None:
        return None
    name = d.choice(list(UFUNCS_2))
    return _with_out(d, target, f"np.{name}({x}, {y}", f"{x} {UFUNCS_2[name]} {y}")


def _with_out(d: Draw, target: str, numpy: str, torch: str) -> Drawn:
    mask = d.mask(target) if d.chance(0.5) else None
    if mask is None:
        return Drawn(f"{numpy}, out={target})", f"t.into({target}, {torch})", target)
    return Drawn(f"{numpy}, out={target}, where={mask})", f"t.into({target}, {torch}, {mask})", target)


def copied(d: Draw) -> Drawn | None:
    """Draw a write of values: copyto, a masked assignment, a fill."""
    x = d.target()
    if x is None:
        return None
    y, mask = d.guest(x), d.mask(x)
    if y is None or mask is None or d.chance(0.2):
        number = d.number()
        return d.choice(
            [
                Drawn(f"{x}[...] = {number}", f"torch.full_like({x}, {number})", x),
                Drawn(f"{x}.fill({number})", f"torch.full_like({x}, {number})", x),
            ]
        )
    if d.chance(0.5):
        return Drawn(f"np.copyto({x}, {y}, where={mask})", f"t.into({x}, {y}, {mask})", x)
    if d.values[mask].shape == d.values[x].shape:
        number = d.number()
        return Drawn(f"{x}[{mask}] = {number}", f"t.into({x}, torch.full_like({x}, {number}), {mask})", x)
    return Drawn(f"np.copyto({x}, {y})", f"t.into({x}, {y})", x)


def set_items(d: Draw) -> Drawn | None:
    """Draw an assignment to a part, or an augmented one."""
    x = d.target()
    if x is None:
        return None
    a: Any = d.values[x]
    index = d.index(a.shape)
    part = eval(f"a[{index}]", {"a": a}).shape  # noqa: S307  # an index that was just drawn
    y = d.pick(lambda b: fits_into(b, a, part))
    if y is None:
        return None
    place = f"lambda a: a[{index}]"
    choice = d.below(3)
    if choice == 0:
        return Drawn(f"{x}[{index}] += {y}", f"t.written({x}, {place}, t.moved({x}, {place}) + {y})", x)
    if choice == 1 and d.values[y].shape in ((), part):  # others NumPy 2.4 does not broadcast
        return Drawn(f"np.add.at({x}, np.s_[{index}], {y})", f"t.added({x}, {place}, {y})", x)
    return Drawn(f"{x}[{index}] = {y}", f"t.written({x}, {place}, {y})", x)


def fits_into(b: Any, a: Any, shape: tuple[int, ...]) -> bool:
    """Tell whether b can be assigned to a part of a of this shape."""
    return (b.dtype.kind != "c" or a.dtype.kind == "c") and broadcasts_to(b.shape, shape)
