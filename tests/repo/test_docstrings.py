"""Every public function and class has in its docstring an example, and what it raises, and both are true."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import inspect
import io
import pydoc
import re

import pytest
from helpers import ROOT
from samples import refusals

import gradmgr
import gradmgr.numpy
from gradmgr.numpy import _examples, _raises

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


A_RECORD = "holds what a call has found out; programs do not make one"
TAKES_NOTHING = "takes no argument"
ANY_VALUE = "answers for whatever it is given"
ALL_VALUES = "is computed for every value, be it no number"
OF_NO_VALUE = "looks at no value before `check`, which answers False"
CALLS_NUMPY = "has, in a call, the errors of the functions of gradmgr.numpy that it is made of"
# Why nothing stands there of what is raised.
NEVER_RAISES = {
    **dict.fromkeys(("AttachSpec", "BackwardRun", "distributed.Group", "function.FunctionCtx"), A_RECORD),
    **dict.fromkeys(("forward_ad.UnpackedDualTensor", "graph.GradientEdge", "graph.Node"), A_RECORD),
    **{f"profiler.{n}": A_RECORD for n in ("EventList", "FunctionEvent", "FunctionEventAvg", "Interval")},
    **dict.fromkeys(("get_backwarding_grad_manager", "get_num_threads", "is_grad_enabled"), TAKES_NOTHING),
    **dict.fromkeys(("is_inference_mode_enabled", "anomaly.is_anomaly_check_nan_enabled"), TAKES_NOTHING),
    **dict.fromkeys(("anomaly.is_anomaly_enabled", "distributed.is_initialized"), TAKES_NOTHING),
    **dict.fromkeys(("forward_ad.dual_level", "forward_ad.enter_dual_level"), TAKES_NOTHING),
    **dict.fromkeys(("graph.allow_mutation_on_saved_tensors", "nn.convolution_library"), TAKES_NOTHING),
    "nn.Identity": "takes whatever it is given",
    "set_multithreading_enabled": "takes any value for True or False",
    **{f"distributions.constraints.{n}": OF_NO_VALUE for n in ("Bounded", "Constraint", "Independent", "Tested")},
    **{f"distributions.constraints.{n}": OF_NO_VALUE for n in ("greater_than", "greater_than_eq", "less_than")},
    **{f"distributions.constraints.{n}": OF_NO_VALUE for n in ("half_open_interval", "integer_interval")},
    **{f"distributions.constraints.{n}": OF_NO_VALUE for n in ("interval", "multinomial")},
    **{f"distributions.transforms.{n}Transform": CALLS_NUMPY for n in ("Affine", "Compose", "Exp", "Sigmoid", "Tanh")},
    "distributions.transforms.SoftplusTransform": CALLS_NUMPY,
    **{f"numpy.{n}": ALL_VALUES for n in ("argwhere", "array_equal", "array_equiv", "diagflat", "flatnonzero", "imag")},
    **{f"numpy.{n}": ALL_VALUES for n in ("iscomplex", "iscomplexobj", "isreal", "isrealobj", "may_share_memory")},
    **{f"numpy.{n}": ALL_VALUES for n in ("min_scalar_type", "nan_to_num", "ndenumerate", "ndim", "real")},
    **{f"numpy.{n}": ALL_VALUES for n in ("real_if_close", "setdiff1d", "shape", "shares_memory")},
    "numpy.isfortran": "takes an array, and there are but two answers",
    **{f"compat.autograd.{n}": ANY_VALUE for n in ("isinstance", "type", "core.getval", "core.isbox", "util.func")},
    **dict.fromkeys(("compat.autograd.core.JVPNode", "compat.autograd.core.VJPNode"), "only names a mode"),
    "compat.autograd.core.SparseObject": A_RECORD,
    "compat.autograd.misc.fixed_points.fixed_point": "raises what the program's functions do",
    "compat.autograd.test_util.scalar_close": "takes two numbers",
    "compat.autograd.uninstall": TAKES_NOTHING,
}


def test_every_public_name_says_what_it_raises():
    silent = {
        name.removeprefix("gradmgr.")
        for name, value in described_names().items()
        if not re.search(r"\bRaises?\b", value.__doc__ or "")
        and not (inspect.isclass(value) and issubclass(value, BaseException))
    }
    assert silent == NEVER_RAISES.keys()


TABLES = {
    gradmgr.numpy: (_examples.NUMPY, _raises.NUMPY),
    gradmgr.numpy.linalg: (_examples.LINALG, _raises.LINALG),
    gradmgr.numpy.fft: (_examples.FFT, _raises.FFT),
    gradmgr.special: (_examples.SPECIAL, _raises.SPECIAL),
    gradmgr.Tensor: (_examples.METHODS, _raises.METHODS),
}


@pytest.mark.parametrize("module", TABLES, ids=lambda module: module.__name__)
def test_examples_of_functions_that_templates_make_are_true(module):
    """pytest finds those of other docstrings by itself: it looks into the module that a function was written in."""
    if module in (gradmgr.special, gradmgr.Tensor):
        pytest.importorskip("scipy", reason="some kernels are SciPy's")
    said = []
    runner = doctest.DocTestRunner()
    examples = TABLES[module][0]
    for name in examples:
        test = doctest.DocTestParser().get_doctest(getattr(module, name).__doc__, {}, name, None, None)
        runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)
    assert runner.tries > len(examples)


def called_as(module):
    """Return how the examples call the functions of a module: np.name, np.linalg.name, special.name, x.name."""
    prefix = module.__name__.rpartition(".")[2]
    return {gradmgr.numpy: "np", gradmgr.special: prefix, gradmgr.Tensor: ""}.get(module, f"np.{prefix}")


@pytest.mark.parametrize("module", TABLES, ids=lambda module: module.__name__)
def test_an_example_calls_the_function_that_it_stands_for(module):
    """By its name or, where it is the point of the example, by another of its names."""
    for name, example in TABLES[module][0].items():
        assert f"{called_as(module)}.{name}" in example, name
        assert (getattr(module, name).__doc__ or "").count(example) == 1, name


def test_every_member_of_tensor_has_an_example():
    refused = ("data", "is_sparse")
    names = [name for name in dir(gradmgr.tensor(1.0)) if not name.startswith("_") and name not in refused]
    assert len(names) > 200
    lacking = [name for name in names if ">>> " not in (inspect.getattr_static(gradmgr.Tensor, name).__doc__ or "")]
    assert lacking == ["cupy"]  # needs a GPU


NO_ARGUMENT = "takes no argument, and there is a result for every tensor"
# Members of Tensor whose docstrings say nothing of what is raised.
METHODS_WITHOUT_ERRORS = {
    **dict.fromkeys(
        ("T", "device", "dtype", "flat", "grad_fn", "imag", "is_leaf", "itemsize", "nbytes"), "an attribute"
    ),
    **dict.fromkeys(("ndim", "real", "requires_grad", "retains_grad", "shape", "size"), "an attribute"),
    **dict.fromkeys(
        ("abs_", "absolute_", "conj_physical_", "logical_not_", "nan_to_num_", "neg_", "negative_"), NO_ARGUMENT
    ),
    **dict.fromkeys(("reciprocal_", "sgn_", "sign_", "square_", "t_", "zero_"), NO_ARGUMENT),
    **dict.fromkeys(("clone", "conj", "conjugate", "detach", "detach_", "numpy", "tolist"), NO_ARGUMENT),
    **dict.fromkeys(("data", "is_sparse"), "only raises, and is not listed by dir()"),
}


def test_every_member_of_tensor_says_what_it_raises():
    members = {name for name in dir(gradmgr.tensor(1.0)) if not name.startswith("_")}
    docs = {name: inspect.getattr_static(gradmgr.Tensor, name).__doc__ or "" for name in members}
    assert {name for name, doc in docs.items() if "Raises:" not in doc} == METHODS_WITHOUT_ERRORS.keys()


# ---------------------------------------------------------------- what is raised


def right_call(module, name):
    """Return the arguments with which the example of a function calls it first; none where it has no such call."""
    function = getattr(module, name)
    calls = []

    def noted(*args, **keywords):
        calls.append((args, keywords))
        return function(*args, **keywords)

    others = [each for each, value in vars(module).items() if value is function]
    code = [example.source for example in doctest.DocTestParser().get_examples(function.__doc__)]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        for each in others:
            patch.setattr(module, each, noted)
        with contextlib.suppress(ValueError):  # where the example shows an error
            exec("".join(code), {})  # noqa: S102  # what stands in our own docstrings
    return calls[0] if calls else ((), {})


@pytest.mark.parametrize("module", [each for each in TABLES if TABLES[each][1]], ids=lambda module: module.__name__)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of names that NumPy is to drop
def test_functions_of_numpy_and_scipy_raise_what_their_docstrings_say(module):
    if module is gradmgr.special:
        pytest.importorskip("scipy", reason="its kernels are SciPy's")
    untrue = []
    for name, lines in TABLES[module][1].items():
        function = getattr(module, name)
        assert function.__doc__.count(lines) == 1, name
        args, keywords = right_call(module, name)
        for line in lines.split("\n"):
            said, _, words = line.strip().partition(": ")
            kind = pydoc.locate(said)
            calls = refusals.SPECIFIC.get((f"{called_as(module).replace('np', 'numpy')}.{name}", said))
            for number, call in enumerate(calls or refusals.SHARED[words]):
                try:
                    call(function, args, keywords)
                except kind:
                    continue
                except Exception as error:
                    untrue.append(f"{name}, call {number} of {line.strip()}: {error!r}")
                else:
                    untrue.append(f"{name}, call {number} of {line.strip()}: nothing was raised")
    assert untrue == []


def test_no_refused_call_is_left_over():
    lines = {line.strip() for _, table in TABLES.values() for text in table.values() for line in text.split("\n")}
    assert refusals.SHARED.keys() == {line.partition(": ")[2] for line in lines}


def errors_of(function):
    """Yield the exceptions that a docstring's section of errors names, and what it says of each."""
    section = inspect.cleandoc(function.__doc__).partition("\nRaises:\n")[2].partition("\n\n")[0]
    for line in section.split("\n"):
        said, _, words = line.strip().partition(": ")
        yield said, words


@pytest.mark.parametrize("name", refusals.LAYERS)
def test_layers_raise_what_their_docstrings_say(name):
    layer = getattr(gradmgr.nn, name)
    said = dict(errors_of(layer))
    assert said.keys() == refusals.LAYERS[name].keys()
    for kind, calls in refusals.LAYERS[name].items():
        for call in calls:
            with pytest.raises(pydoc.locate(kind)):
                call(layer)


@pytest.mark.parametrize("name", refusals.OTHERS)
def test_other_functions_and_classes_raise_what_their_docstrings_say(name):
    found = pydoc.locate(name)
    said = dict(errors_of(found))
    assert said.keys() == refusals.OTHERS[name].keys()
    for kind, calls in refusals.OTHERS[name].items():
        for call in calls:
            with pytest.raises(pydoc.locate(kind)):
                call(found)
