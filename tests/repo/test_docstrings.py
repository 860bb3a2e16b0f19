"""Every public function and class has an example in its docstring, and it is true."""

from __future__ import annotations

import doctest
import importlib.util
import inspect

import pytest
from helpers import ROOT

import gradmgr
import gradmgr.numpy
from gradmgr.numpy import _examples

# What an example of it would need.
WITHOUT_EXAMPLE = {
    "gradmgr.distributed.recv": "a second rank",
    "gradmgr.distributed.send": "a second rank",
    "gradmgr.errors.AllocatorError": "a C library other than glibc",
    "gradmgr.errors.DeviceError": "that there is no GPU",
    "gradmgr.errors.MissingDependencyError": "that SciPy, for example, is not installed",
    "gradmgr.errors.MixedArraysError": "a GPU",
    "gradmgr.errors.RankFailedError": "a second rank",
    "gradmgr.errors.SpillError": "a full disk",
}


def described_names():
    """Return the names of gradmgr's own functions and classes, each with what it names; one name of each."""
    spec = importlib.util.spec_from_file_location("check_site", ROOT / "docs" / "check_site.py")
    check_site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_site)
    found = {}
    for name, value in check_site.public_names():
        module = getattr(value, "__module__", None) or ""
        if (inspect.isroutine(value) or inspect.isclass(value)) and module.startswith("gradmgr"):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def test_every_public_name_has_an_example():
    names = described_names()
    assert len(names) > 800
    assert {name for name, value in names.items() if ">>> " not in (value.__doc__ or "")} == WITHOUT_EXAMPLE.keys()


TABLES = {
    gradmgr.numpy: _examples.NUMPY,
    gradmgr.numpy.linalg: _examples.LINALG,
    gradmgr.numpy.fft: _examples.FFT,
    gradmgr.special: _examples.SPECIAL,
}


@pytest.mark.parametrize("module", TABLES, ids=lambda module: module.__name__)
def test_examples_of_functions_of_numpy_and_scipy_are_true(module):
    """pytest finds those of other docstrings by itself: it looks into the module that a function was written in."""
    if module is gradmgr.special:
        pytest.importorskip("scipy", reason="its kernels are SciPy's")
    said = []
    runner = doctest.DocTestRunner()
    for name in TABLES[module]:
        test = doctest.DocTestParser().get_doctest(getattr(module, name).__doc__, {}, name, None, None)
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
    assert runner.tries > len(TABLES[module])


@pytest.mark.parametrize("module", TABLES, ids=lambda module: module.__name__)
def test_an_example_calls_the_function_that_it_stands_for(module):
    """As np.name, special.name or, where it is the point of the example, by another of its names."""
    prefix = module.__name__.rpartition(".")[2]
    called = "np" if module is gradmgr.numpy else prefix if module is gradmgr.special else f"np.{prefix}"
    for name, example in TABLES[module].items():
        assert f"{called}.{name}" in example, name
        assert (getattr(module, name).__doc__ or "").count(example) == 1, name
