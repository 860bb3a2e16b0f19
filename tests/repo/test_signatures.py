"""Every function takes NumPy's arguments: their names, order, kinds and defaults, but for what stands here."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import gradmgr.numpy as gnp

EMPTY = inspect.Parameter.empty
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY

# The signatures of what NumPy writes in C can be read from this version on.
if np.lib.NumpyVersion(np.__version__) < "2.4.0":
    pytest.skip("NumPy's own signatures are complete from 2.4 on", allow_module_level=True)

# Keywords that NumPy's function of this name does not have: where a Tensor is made, and what the Array API
# standard asks for.
MORE = {
    "array": {"device"},
    "argsort": {"descending"},
    "fft.fftfreq": {"dtype"},
    "fft.rfftfreq": {"dtype"},
    "sort": {"descending"},
}

# What differs on purpose: our signature, and why.
DELIBERATE = {
    "arange": (
        "(start_or_stop=None, /, stop=None, step=1, *, dtype=None, device=None, like=None)",
        "NumPy takes arange(stop=3) too, whatever its signature says",
    ),
    "clip": (
        "(a, min=<no value>, max=<no value>, out=None, *, a_min=<no value>, a_max=<no value>, **kwargs)",
        "the Array API standard's names where bounds stand by position; NumPy's a_min and a_max are keywords",
    ),
    "einsum": (
        "(*operands, out=None, optimize=False, dtype=None, order='K', casting='safe')",
        "NumPy's **kwargs are these three",
    ),
    "empty_like": (
        "(a, dtype=None, order='K', subok=True, shape=None, *, device=None)",
        "as zeros_like: NumPy's first parameter has no name, so that both may be called in the same way",
    ),
}

# A ufunc here is one frame of Python, in which each keyword costs every call its time: `where` and `dtype`
# may stand by position, and `casting`, `order`, `subok` and `signature` raise a TypeError that names them.
UFUNC_ENDS = ["out=None", "where=True", "dtype=None"]
# Those made of two results, of matrices, and without gradient say themselves what they take.
UFUNCS = {
    "divmod": "(*args, out=None, where=True, dtype=None)",
    "frexp": "(*args, out=None, where=True, dtype=None)",
    "modf": "(*args, out=None, where=True, dtype=None)",
    "matvec": "(x1, x2, /, out=None, *, axes=None, dtype=None)",
    "vecdot": "(x1, x2, /, out=None, *, axes=None, axis=None, keepdims=False, dtype=None)",
    "vecmat": "(x1, x2, /, out=None, *, axes=None, dtype=None)",
}

FUNCTIONS = [
    (prefix + name, getattr(numpys, name), getattr(namespace, name))
    for prefix, numpys, namespace in (("", np, gnp), ("linalg.", np.linalg, gnp.linalg), ("fft.", np.fft, gnp.fft))
    for name in sorted(numpys.__all__)
    if hasattr(namespace, name)
    and callable(getattr(numpys, name))
    and getattr(namespace, name) is not getattr(numpys, name)
]
PLAIN = [case for case in FUNCTIONS if not isinstance(case[1], np.ufunc | type)]


def signature_of(function: Any) -> inspect.Signature | None:
    """The signature without annotations; None where NumPy does not say."""
    try:
        found = inspect.signature(function)
    except ValueError:
        return None
    parameters = [p.replace(annotation=EMPTY) for p in found.parameters.values()]
    return found.replace(parameters=parameters, return_annotation=EMPTY)


def facts(parameter: inspect.Parameter) -> tuple[Any, ...]:
    """What counts of a parameter: one that has no name for the caller may be called anything."""
    name = None if parameter.kind is POSITIONAL_ONLY else parameter.name
    return name, parameter.kind, parameter.default is EMPTY


def differences(numpys: inspect.Signature, ours: inspect.Signature, more: set[str]) -> list[str]:
    """Where ours is not NumPy's."""
    more = more - numpys.parameters.keys()  # it may have them in a later version
    mine = [p for p in ours.parameters.values() if not (p.kind is KEYWORD_ONLY and p.name in more)]
    theirs = list(numpys.parameters.values())
    by_order = [[p for p in ps if p.kind is not KEYWORD_ONLY] for ps in (theirs, mine)]
    by_name = [{p.name: p for p in ps if p.kind is KEYWORD_ONLY} for ps in (theirs, mine)]
    found = [f"{a} is {b}" for a, b in zip(*by_order, strict=False) if facts(a) != facts(b)]
    if len(by_order[0]) != len(by_order[1]) or by_name[0].keys() != by_name[1].keys():
        found.append("not the same parameters")
    pairs = [*zip(*by_order, strict=False), *[(by_name[0][k], by_name[1][k]) for k in by_name[0].keys() & by_name[1]]]
    for a, b in pairs:
        unsaid = a.default is np._NoValue  # NumPy does not say what happens without it
        if not unsaid and repr(a.default) != repr(b.default):
            found.append(f"{a} is {b}")
    return found


@pytest.mark.parametrize(("name", "numpys", "ours"), PLAIN, ids=[name for name, _, _ in PLAIN])
def test_a_function_has_numpys_parameters(name: str, numpys: Any, ours: Any) -> None:
    theirs, mine = signature_of(numpys), signature_of(ours)
    if name in DELIBERATE:
        assert str(mine) == DELIBERATE[name][0]
        assert differences(theirs, mine, set())
    elif theirs is not None:
        assert not differences(theirs, mine, MORE.get(name, set())), f"NumPy's {theirs}, ours {mine}"


UFUNC_CASES = [case for case in FUNCTIONS if isinstance(case[1], np.ufunc)]


@pytest.mark.parametrize(("name", "numpys", "ours"), UFUNC_CASES, ids=[name for name, _, _ in UFUNC_CASES])
def test_a_ufunc_has_numpys_operands_and_its_main_keywords(name: str, numpys: Any, ours: Any) -> None:
    mine = signature_of(ours)
    if name in UFUNCS:
        assert str(mine) == UFUNCS[name]
    elif mine != signature_of(numpys):
        *operands, out, where, dtype = map(str, mine.parameters.values())
        assert [out, where, dtype] == UFUNC_ENDS
        assert len(operands) == numpys.nin
        assert all(p.kind is POSITIONAL_ONLY for p in list(mine.parameters.values())[: numpys.nin])


def test_the_comparison_sees_what_differs() -> None:
    def numpys(a, /, b, axis=0, *, c=np._NoValue, d=1): ...

    def same(x, /, b, axis=0, *, d=1, c=True, device=None): ...

    def with_name(x, /, b2, axis=0, *, c=None, d=1): ...

    def another_default(a, /, b, axis=1, *, c=None, d=1): ...

    def one_less(a, /, b, axis=0, *, c=None): ...

    def by_keyword(a, /, b, *, axis=0, c=None, d=1): ...

    theirs = inspect.signature(numpys)
    assert not differences(theirs, inspect.signature(same), {"device"})
    for other in (same, with_name, another_default, one_less, by_keyword):
        assert differences(theirs, inspect.signature(other), set()), other.__name__
