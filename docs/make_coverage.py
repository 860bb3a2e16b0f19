"""Write docs/coverage.md, the status of every function of NumPy, from the table of samples.

python docs/make_coverage.py
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from samples import CONSTANTS, CREATION, SAMPLES, Sample, flat, gradients, seeds  # noqa: E402  # found through the line above
from samples.gpu import refusal, refused_call  # noqa: E402  # as above

import gradmgr.numpy as gnp  # noqa: E402  # as above
from gradmgr import errors, tensor, vmap  # noqa: E402  # as above
from gradmgr._arrays import batched  # noqa: E402  # as above
from gradmgr._transforms.gradcheck import vjp  # noqa: E402  # as above
from gradmgr.numpy._refused import REFUSED  # noqa: E402  # as above

PAGE = HERE / "coverage.md"
CLASSES = ("vectorize",)  # used as functions
_RULE = "|---|---|---|---|---|---|---|"

HEAD = """\
# The status of every function of NumPy

For NumPy {version}. Written by `python docs/make_coverage.py` from the table of samples in `tests/samples`, on which
the tests check values against NumPy and derivatives against numeric ones; a test fails when this page is stale.

* **differentiable**: reverse and forward mode, every order, since derivatives are made of the same functions. The
  order up to which they are compared with numeric differences stands in the notes: 2 is all four combinations of
  reverse and forward; 0 means a kink or a jump at every sample, where only reverse against forward is compared.
* **zero derivative**: differentiable, and the derivative is zero wherever it exists (rounding, signs).
* **passed through**: integers, booleans, positions, shapes and dtypes, and files, which carry no gradient; creation
  functions give Tensors that no manager tracks.
* **refused**: raises, and says why.

The column "CuPy" says what runs on a GPU's arrays: the tests run the samples on a stand-in that has what CuPy 14
has (`tests/guard.py`) and, where there is a GPU, on CuPy itself (`tests/generic/test_gpu.py`). What CuPy lacks is
refused by an error that names it. Creation functions with `device=` make Tensors there; the column is empty for other
functions that take no arrays.

The column "vmap" says whether a function of a batch, and its gradient, are computed at once, or one example after the
other, which is slow for many small ones (`errors.PerformanceWarning`); "partly" is so for some arguments only.

{counts}
"""


def public_functions() -> Iterator[tuple[str, str]]:
    """Yield ("numpy", "linalg." or "fft." prefix, name) of every public function of NumPy."""
    for prefix, module in (("", np), ("linalg.", np.linalg), ("fft.", np.fft)):
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            is_function = callable(thing) and (not isinstance(thing, type) or name in CLASSES)
            if is_function and not name.startswith("_"):  # NumPy 2.1 exports private ones
                yield prefix, name


def sampled() -> dict[object, list[Sample]]:
    """Map each function of gradmgr.numpy to the samples that call it by name."""
    found: dict[object, list[Sample]] = {}
    for sample in SAMPLES:
        at = sample.case.startswith("at, ")  # its gradient is also that of what ufunc.at does not write to
        if not at and not sample.name.startswith(("Tensor.", "special.", "sparse.", "nn.", "engine.")):
            found.setdefault(attrgetter(sample.name)(gnp), []).append(sample)
    return found


def is_zero(sample: Sample) -> bool:
    """Return whether every gradient of the sample is zero, which holds for an empty one."""
    dtypes = (np.float64, np.complex128) if sample.is_complex else (np.float64,)  # for imag, angle
    return all(not np.any(g) for dtype in dtypes for g in gradients(sample, sample.make(dtype)))


def checked_order(samples: list[Sample]) -> int:
    """Return the order of derivatives that were compared with numeric ones."""
    return max(3 if s.third else 2 if s.smooth else 0 for s in samples)


def status_of(name: str, samples: dict[object, list[Sample]]) -> tuple[str, str]:
    """Return the status and a note; ("none", ...) where the function was forgotten."""
    if name in REFUSED:
        return "refused", REFUSED[name]
    try:
        function = attrgetter(name)(gnp)
    except AttributeError:
        return "none", "not in gradmgr.numpy"
    if function in samples:
        kind = "zero derivative" if all(map(is_zero, samples[function])) else "differentiable"
        return kind, f"compared with numeric differences to order {checked_order(samples[function])}"
    if name in CREATION:
        return "passed through", "creation"
    if name in CONSTANTS:
        return "passed through", "no gradient"
    if function is attrgetter(name)(np):
        return "passed through", "NumPy's own"
    return "none", "no sample"


def takes_device(function: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter `device`."""
    try:
        return "device" in inspect.signature(function).parameters
    except ValueError:  # a function of NumPy in C
        return False


def on_gpu(name: str, samples: dict[object, list[Sample]]) -> str:
    """Return which part of a function runs on CuPy's arrays, by the table of what CuPy lacks."""
    if name in REFUSED:
        return ""
    function = attrgetter(name)(gnp)
    if function in samples:
        refusals = [refusal(s) for s in samples[function]]
    elif name in CONSTANTS:
        refusals = [refused_call(name, k) for k in range(len(CONSTANTS[name]))]
    else:
        return "with `device=`" if name in CREATION and takes_device(function) else ""
    lacking = sorted({r.lacking for r in refusals if r is not None})
    if not lacking:
        return "yes"
    return "refused" if all(refusals) else f"without `{'`, `'.join(lacking)}`"


def in_vmap(name: str, samples: dict[object, list[Sample]]) -> str:
    """Return whether `vmap` computes a function at once, by running the samples and their gradients in it."""
    if name in REFUSED or (function := attrgetter(name)(gnp)) not in samples:
        return ""
    found = {is_looped(sample) for sample in samples[function]}
    if found <= {None}:
        return "refused"
    return "partly by example" if {True, False} <= found else "by example" if True in found else "at once"


def is_looped(sample: Sample) -> bool | None:
    """Return whether a sample in a vmap runs example by example; None where it cannot be in one."""
    args = sample.make(np.float64)
    stacked = [tensor(np.stack([a, a])) if k in sample.where else a for k, a in enumerate(args)]
    dims = tuple([0 if k in sample.where else None for k in range(len(args))])
    loops = []
    loop = batched.loop_over_examples

    def noted(*args: Any) -> Any:
        loops.append(args)
        return loop(*args)

    def with_gradient(*given: Any) -> Any:
        outs = flat(sample.call(gnp, *given))
        return (*outs, *vjp(lambda *again: flat(sample.call(gnp, *again)), list(given), sample.where, seeds(outs)))

    batched.loop_over_examples = noted  # type: ignore[assignment]  # for this script
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            vmap(with_gradient, dims)(*stacked)
    except (errors.GradmgrError, TypeError, ValueError):
        return None
    finally:
        batched.loop_over_examples = loop
    return bool(loops)


def statuses() -> dict[str, tuple[str, str]]:
    """Return the status of every public function of NumPy, by its name after `numpy.`."""
    samples = sampled()
    return {prefix + name: status_of(prefix + name, samples) for prefix, name in public_functions()}


def page() -> str:
    """Return the text of the page."""
    found = statuses()
    kinds = ("differentiable", "zero derivative", "passed through", "refused")
    counts = ", ".join(f"{sum(kind == k for kind, _ in found.values())} {k}" for k in kinds)
    samples = sampled()
    lines = [HEAD.format(version=minor(np), counts=f"{len(found)} functions: {counts}.")]
    for title, chapter in (("numpy", ""), ("numpy.linalg", "linalg."), ("numpy.fft", "fft.")):
        lines += [f"## {title}", "", "| function | status | orders | forward mode | CuPy | vmap | notes |", _RULE]
        for name, (kind, note) in found.items():
            last = name.removeprefix(chapter)
            if name.startswith(chapter) and "." not in last:
                orders, forward = ("every", "yes") if kind in kinds[:2] else ("", "")
                where = f"{on_gpu(name, samples)} | {in_vmap(name, samples)}"
                lines.append(f"| `{last}` | {kind} | {orders} | {forward} | {where} | {note} |")
        lines.append("")
    return "\n".join(lines)


def minor(module: ModuleType) -> str:
    """Return the version without its last number: functions come and go with minor versions."""
    return ".".join(module.__version__.split(".")[:2])


if __name__ == "__main__":
    PAGE.write_text(page())
