"""Draws of products, linear algebra and Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz.draw import Draw, Drawn, broadcasts, translated


def _multiplies(a: Any, b: Any) -> bool:
    if min(a.ndim, b.ndim) == 0 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        return False
    return broadcasts(a.shape[:-2], b.shape[:-2])


def product(d: Draw) -> Drawn | None:
    """Draw a matrix product."""
    x = d.pick(lambda a: a.ndim)
    y = None if x is None else d.pick(lambda b: _multiplies(d.values[x], b))
    if x is None or y is None:
        return None
    return Drawn(d.choice([f"{x} @ {y}", f"np.matmul({x}, {y})"]), f"t.matmul({x}, {y})")


def of_transpose(d: Draw) -> Drawn | None:
    """Draw the product of a matrix and the transpose of one."""
    x = d.pick(lambda a: a.ndim >= 2)
    y = None if x is None else d.pick(lambda b: b.ndim >= 2 and _multiplies(d.values[x], b.swapaxes(-1, -2)))
    if x is None or y is None:
        return None
    texts = {
        f"{x} @ np.swapaxes({y}, -1, -2)": f"t.matmul({x}, {y}.mT)",
        f"np.einsum('...ij,...kj->...ik', {x}, {y})": f"t.matmul({x}, {y}.mT)",
        f"np.matvec({x}, {y}[..., 0, :])": f"t.matmul({x}, {y}[..., 0, :, None])[..., 0]",
    }
    numpy = d.choice(list(texts))
    return Drawn(numpy, texts[numpy])


def vectors(d: Draw) -> Drawn | None:
    """Draw a product of two vectors, or of what is taken as such."""
    x = d.pick(lambda a: a.ndim and a.size <= 12)
    y = None if x is None else d.pick(lambda b: b.shape == d.values[x].shape)
    z = d.pick(lambda a: a.size <= 12)
    if x is None or y is None or z is None:
        return None
    texts = {
        f"np.vdot({x}, {y})": f"(t.conj({x}) * {y}).sum()",
        f"np.vecdot({x}, {y})": f"(t.conj({x}) * {y}).sum(-1)",
        f"np.outer({x}, {z})": f"t.outer({x}, {z})",
        f"np.kron({x}, {y})": f"t.kron({x}, {y})",
        f"np.tensordot({x}, {y}, axes={d.values[x].ndim})": f"({x} * {y}).sum()",
        f"np.convolve(np.ravel({x}), np.ravel({z}), 'full')": f"t.convolve({x}.reshape(-1), {z}.reshape(-1), 'full')",
        f"np.convolve(np.ravel({x}), np.ravel({z}), 'same')": f"t.convolve({x}.reshape(-1), {z}.reshape(-1), 'same')",
        f"np.convolve(np.ravel({x}), np.ravel({z}), 'valid')": f"t.convolve({x}.reshape(-1), {z}.reshape(-1), 'valid')",
        f"np.inner({x}, {y})": f"t.tensordot({x}, {y}.movedim(-1, 0), 1)",
        f"np.einsum('...i,...i->...', {x}, {y})": f"({x} * {y}).sum(-1)",
        f"np.linalg.vector_norm({x} + 0.3)": f"torch.linalg.vector_norm({x} + 0.3)",
        f"np.cross({x}[..., :3], {y}[..., :3])": f"torch.linalg.cross(*t.pair({x}[..., :3], {y}[..., :3]))",
    }
    numpy = d.choice([text for text in texts if "cross" not in text or d.values[x].shape[-1] >= 3])
    return Drawn(numpy, texts[numpy])


def einsum(d: Draw) -> Drawn | None:
    """Draw an einsum of one operand or two."""
    x = d.pick(lambda a: a.ndim == 2 and a.size <= 50)
    if x is None:
        return None
    n, m = d.values[x].shape
    y = d.pick(lambda a: a.ndim == 2 and a.shape[0] == m)
    z = d.pick(lambda a: a.ndim == 1 and a.shape[0] == m)
    texts = ["'ij->ji'", "'ij->i'", "'ij->'", "'ij'"] + (["'ii'", "'ii->i'", "'ii->'"] if n == m else [])
    if y is not None and d.chance(0.5):
        text = d.choice(["'ij,jk'", "'ij,jk->ki'", "'ij,jk->j'", "'ij,jk->ijk'", "'ij,jk->'"])
        return Drawn(f"np.einsum({text}, {x}, {y})", f"t.einsum({text}, {x}, {y})")
    if z is not None and d.chance(0.5):
        text = d.choice(["'ij,j'", "'ij,j->ij'", "'ij,j->j'"])
        return Drawn(f"np.einsum({text}, {x}, {z})", f"t.einsum({text}, {x}, {z})")
    text = d.choice(texts)
    return Drawn(f"np.einsum({text}, {x})", f"t.einsum({text}, {x})")


# ---------------------------------------------------------------- linear algebra

# Of square matrices, kept away from singular ones.
SQUARE = {
    "np.linalg.inv({x} + {e})": "torch.linalg.inv({x} + t.eye({x}, 5))",
    "np.linalg.det({x} + {e})": "torch.linalg.det({x} + t.eye({x}, 5))",
    "np.linalg.slogdet({x} + {e})[1]": "torch.linalg.slogdet({x} + t.eye({x}, 5))[1]",
    "np.linalg.cholesky({x} @ np.conj({x}.mT) + {e})": "torch.linalg.cholesky({x} @ t.conj({x}).mT + t.eye({x}, 5))",
    "np.linalg.eigvalsh({x} + np.conj({x}.mT))": "torch.linalg.eigvalsh({x} + t.conj({x}).mT)",
    "F.sine_of_symmetric(np, {x})": "t.sine_of_symmetric({x})",
    "np.linalg.matrix_power({x}, 3)": "torch.linalg.matrix_power({x}, 3)",
    "np.linalg.matrix_power({x} + {e}, -2)": "torch.linalg.matrix_power({x} + t.eye({x}, 5), -2)",
    "np.linalg.solve({x} + {e}, {x})": "torch.linalg.solve({x} + t.eye({x}, 5), {x})",
    "np.linalg.pinv({x} + {e})": "torch.linalg.inv({x} + t.eye({x}, 5))",
    "np.abs(np.linalg.qr({x} + {e})[1])": "torch.abs(torch.linalg.qr({x} + t.eye({x}, 5))[1])",
    "np.linalg.trace({x})": "torch.diagonal({x}, dim1=-2, dim2=-1).sum(-1)",
}
# Of matrices of any shape.
MATRIX = {
    "np.linalg.svd({x}, compute_uv=False)": "torch.linalg.svdvals({x})",
    "np.linalg.svdvals({x})": "torch.linalg.svdvals({x})",
    "np.linalg.norm({x} + 0.3, axis=(-2, -1))": "torch.linalg.matrix_norm({x} + 0.3)",
    "np.linalg.matrix_norm({x}, ord='nuc')": "torch.linalg.matrix_norm({x}, ord='nuc')",
    "np.linalg.norm({x}, 1, axis=(-2, -1))": "torch.linalg.matrix_norm({x}, 1)",
    "np.linalg.norm({x}, 2, axis=(-2, -1))": "torch.linalg.matrix_norm({x}, 2)",
    "np.linalg.multi_dot([{x}, {x}.T, {x}])": "{x} @ {x}.T @ {x}",
    "np.cov({x})": "torch.cov({x})",
    "np.linalg.matrix_transpose({x})": "{x}.mT",
}


_NO_SPECTRUM = [text for text in SQUARE if "eig" not in text and "symmetric" not in text]


def _are_apart(spectrum: Any) -> bool:
    """Tell whether eigenvalues or singular values differ and are not 0: elsewhere derivatives are ill-defined."""
    ordered = np.sort(np.abs(np.concatenate([spectrum, 0 * spectrum[..., :1]], axis=-1)), axis=-1)
    return bool((np.diff(ordered, axis=-1) > 0.01).all())


def linear_algebra(d: Draw) -> Drawn | None:
    """Draw a function of numpy.linalg."""
    if d.chance(0.6):
        x = d.pick(lambda a: a.ndim >= 2 and a.shape[-1] == a.shape[-2] > 0 and a.size <= 60)
        if x is None:
            return None
        a = d.values[x]
        kinds = list(SQUARE) if _are_apart(np.linalg.eigvalsh(a + np.conj(a.swapaxes(-1, -2)))) else _NO_SPECTRUM
        numpy = d.choice([text for text in SQUARE if text in kinds])
        return translated(numpy, SQUARE, x=x, e=f"5 * np.eye({d.values[x].shape[-1]})")
    x = d.pick(lambda a: a.ndim >= 2 and 0 < a.size <= 60)
    if x is None:
        return None
    flat = ("multi_dot", "np.cov")
    spectral = ("svd", "'nuc'", "}, 2")
    avoided = (() if d.values[x].ndim == 2 else flat) + (() if _are_apart(np.linalg.svdvals(d.values[x])) else spectral)
    numpy = d.choice([text for text in MATRIX if not any(word in text for word in avoided)])
    return translated(numpy, MATRIX, x=x)


def solved(d: Draw) -> Drawn | None:
    """Draw the solution of linear equations with another right-hand side."""
    x = d.pick(lambda a: a.ndim == 2 and a.shape[0] == a.shape[1] > 0 and a.size <= 60)
    y = None if x is None else d.pick(lambda b: b.ndim in (1, 2) and b.shape[0] == d.values[x].shape[0])
    if x is None or y is None:
        return None
    e = f"5 * np.eye({d.values[x].shape[0]})"
    return Drawn(f"np.linalg.solve({x} + {e}, {y})", f"t.solve({x} + t.eye({x}, 5), {y})")


# ---------------------------------------------------------------- Fourier transforms

FFT = {
    "np.fft.fft({x}, n={n}, axis={k}, norm={o})": "torch.fft.fft({x}, {n}, {k}, {o})",
    "np.fft.ifft({x}, n={n}, axis={k}, norm={o})": "torch.fft.ifft({x}, {n}, {k}, {o})",
    "np.fft.irfft({x}, n={m}, axis={k}, norm={o})": "torch.fft.irfft({x}, {m}, {k}, {o})",
    "np.fft.hfft({x}, n={m}, axis={k}, norm={o})": "torch.fft.hfft({x}, {m}, {k}, {o})",
    "np.fft.fftn({x}, norm={o})": "torch.fft.fftn({x}, norm={o})",
    "np.fft.ifftn({x}, axes=({k},), norm={o})": "torch.fft.ifftn({x}, dim=({k},), norm={o})",
    "np.fft.fftshift({x}, axes={k})": "torch.fft.fftshift({x}, {k})",
    "np.fft.ifftshift({x})": "torch.fft.ifftshift({x})",
}
FFT_REAL = {
    "np.fft.rfft({x}, n={n}, axis={k}, norm={o})": "torch.fft.rfft({x}, {n}, {k}, {o})",
    "np.fft.ihfft({x}, n={n}, axis={k}, norm={o})": "torch.fft.ihfft({x}, {n}, {k}, {o})",
    "np.fft.rfftn({x}, norm={o})": "torch.fft.rfftn({x}, norm={o})",
}


def fourier(d: Draw) -> Drawn | None:
    """Draw a Fourier transform."""
    x = d.pick(lambda a: a.ndim and a.size)
    if x is None:
        return None
    texts = FFT_REAL if d.values[x].dtype.kind == "f" and d.chance(0.4) else FFT
    numpy = d.choice(list(texts))
    fill = {
        "x": x,
        "k": str(d.axis(d.values[x])),
        "n": d.choice(["None", "2", "5"]),
        "m": d.choice(["2", "3", "5"]),
        "o": repr(d.choice([None, "ortho", "forward"])),
    }
    return translated(numpy, texts, **fill)
