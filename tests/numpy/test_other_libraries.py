"""Other libraries compute on Tensors: results stay Tensors and gradients are right, or the call says what to use.

SciPy reads SCIPY_ARRAY_API when it is first imported, which any other test may have done before. So the checks of
SciPy and scikit-learn run in one process of their own (this very file, as a script), and one test each reports on them.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pickle
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, errors, gradcheck, nn, tensor
from gradmgr._engine.context import is_tracked

random = np.random.default_rng(11)
X = random.uniform(0.3, 2.0, (4, 5))
Y = random.uniform(0.3, 2.0, (4, 5))
PLACES = np.cumsum(X, axis=1)
QUATERNIONS = random.normal(size=(3, 4))
POINTS = random.normal(size=(3, 3))
SAMPLES, TARGET = random.normal(size=(8, 3)), random.normal(size=8)


def assert_flows(function: Callable[..., Any], *arrays: np.ndarray) -> None:
    """On Tensors the function gives a tracked Tensor of the values it gives on arrays, with the numeric gradient."""
    expected = function(*arrays)
    points = [tensor(a) for a in arrays]
    with GradManager().attach(points):
        found = function(*points)
        assert type(found) is Tensor, f"the result is a {type(found).__name__}"
        assert is_tracked(found), "the result is tracked by no manager"
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)
        assert found.dtype == np.asarray(expected).dtype
    assert gradcheck(function, points)


# ---------------------------------------------------------------- SciPy and scikit-learn, by the Array API

CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


@check
def softmax() -> None:
    from scipy import special

    assert_flows(lambda x: special.softmax(x, axis=1), X)
    assert_flows(lambda x: special.log_softmax(x, axis=0), X)


@check
def logsumexp() -> None:
    from scipy import special

    assert_flows(lambda x: special.logsumexp(x, axis=0), X)
    assert_flows(lambda x, b: special.logsumexp(x, axis=1, b=b, keepdims=True), X, Y)


@check
def xlogy() -> None:
    from scipy import special

    assert_flows(special.xlogy, X, Y)


@check
def erf() -> None:
    from scipy import special

    assert_flows(special.erf, X)
    assert_flows(special.erfc, X)


@check
def more_of_special() -> None:
    from scipy import special

    for name in ("gammaln", "expit", "entr", "ndtr", "log_ndtr", "i0", "i0e", "i1", "i1e"):
        assert_flows(getattr(special, name), X)
    for name in ("logit", "ndtri"):
        assert_flows(getattr(special, name), X / 3)
    for name in ("rel_entr", "kl_div"):
        assert_flows(getattr(special, name), X, Y)


@check
def gmean() -> None:
    from scipy import stats

    assert_flows(lambda x: stats.gmean(x, axis=0), X)
    assert_flows(lambda x, w: stats.gmean(x, axis=1, weights=w), X, Y)


@check
def zscore() -> None:
    from scipy import stats

    assert_flows(lambda x: stats.zscore(x, axis=0), X)
    assert_flows(lambda x: stats.zscore(x, axis=1, ddof=1), X)


@check
def skew() -> None:
    from scipy import stats

    assert_flows(lambda x: stats.skew(x, axis=0), X)
    assert_flows(lambda x: stats.skew(x, axis=1, bias=False), X)


@check
def kurtosis() -> None:
    from scipy import stats

    assert_flows(lambda x: stats.kurtosis(x, axis=0), X)
    assert_flows(lambda x: stats.kurtosis(x, axis=1, fisher=False, bias=False), X)


@check
def variation() -> None:
    from scipy import stats

    assert_flows(lambda x: stats.variation(x, axis=0), X)
    assert_flows(lambda x: stats.variation(x, axis=1, ddof=1), X)


@check
def more_of_stats() -> None:
    from scipy import stats

    assert_flows(lambda x: stats.hmean(x, axis=0), X)
    assert_flows(lambda x: stats.pmean(x, 3, axis=0), X)
    assert_flows(lambda x: stats.moment(x, 3, axis=0), X)
    assert_flows(lambda x: stats.sem(x, axis=0), X)
    assert_flows(lambda x: stats.entropy(x, axis=0), X)


@check
def trapezoid() -> None:
    from scipy import integrate

    assert_flows(lambda y: integrate.trapezoid(y, dx=0.5, axis=0), X)
    assert_flows(lambda y, x: integrate.trapezoid(y, x, axis=-1), X, PLACES)


@check
def simpson() -> None:
    """SciPy's simpson made plain arrays of what it is given before 1.18; cumulative_simpson did not."""
    import scipy
    from scipy import integrate

    if np.lib.NumpyVersion(scipy.__version__) >= "1.18.0":
        assert_flows(lambda y: integrate.simpson(y, axis=0), X)
        assert_flows(lambda y, x: integrate.simpson(y, x=x, axis=-1), X, PLACES)
    else:
        t = tensor(X)
        with GradManager().attach(t):
            expect_refusal(lambda: integrate.simpson(t, axis=0))
        np.testing.assert_array_equal(integrate.simpson(t, axis=0), integrate.simpson(X, axis=0))
    odd = PLACES[:, :5]
    assert_flows(lambda y: integrate.cumulative_simpson(y, dx=0.5, axis=1)[..., -1], X)
    assert_flows(lambda y, x: integrate.cumulative_simpson(y, x=x, axis=-1), X, odd)


@check
def cumulative_trapezoid() -> None:
    from scipy import integrate

    assert_flows(lambda y: integrate.cumulative_trapezoid(y, axis=0, initial=0), X)
    assert_flows(lambda y, x: integrate.cumulative_trapezoid(y, x, axis=-1), X, PLACES)


@check
def rotation_from_quaternions() -> None:
    from scipy.spatial.transform import Rotation

    assert_flows(lambda q: Rotation.from_quat(q).as_matrix(), QUATERNIONS)
    assert_flows(lambda q, v: Rotation.from_quat(q).apply(v), QUATERNIONS, POINTS)
    assert_flows(lambda q, v: Rotation.from_quat(q).inv().apply(v), QUATERNIONS[0], POINTS[0])
    both = QUATERNIONS, QUATERNIONS[::-1].copy()
    assert_flows(lambda q, p: (Rotation.from_quat(q) * Rotation.from_quat(p)).as_quat(), *both)
    assert_flows(lambda q: Rotation.from_quat(q).as_rotvec(), QUATERNIONS)
    assert_flows(lambda q: Rotation.from_quat(q).magnitude(), QUATERNIONS)


@check
def rotation_from_matrices() -> None:
    """A matrix that is not a rotation is made one by its singular vectors: SciPy writes it into what it was given."""
    from scipy.spatial.transform import Rotation

    rotations = Rotation.from_quat(QUATERNIONS).as_matrix()
    assert_flows(lambda m, v: Rotation.from_matrix(m * 1.0).apply(v), rotations + 0.1 * X[:3, :3], POINTS)
    assert_flows(lambda m, v: Rotation.from_matrix(m, assume_valid=True).apply(v), rotations, POINTS)


@check
def rotation_from_vectors() -> None:
    from scipy.spatial.transform import Rotation

    assert_flows(lambda v: Rotation.from_rotvec(v).as_matrix(), POINTS)
    assert_flows(lambda e: Rotation.from_euler("xyz", e).as_matrix(), POINTS)
    assert_flows(lambda e: Rotation.from_euler("ZYX", e).as_euler("xyz"), POINTS / 3)


def dispatching() -> Any:
    """Scikit-learn computes on what it is given, and divides 0 by 0 where it has seen no sample before.

    It silences that for NumPy alone, since the Array API has no errstate.
    """
    import sklearn

    stack = ExitStack()
    stack.enter_context(sklearn.config_context(array_api_dispatch=True))
    stack.enter_context(np.errstate(divide="ignore", invalid="ignore"))
    return stack


@check
def standard_scaler() -> None:
    from sklearn.preprocessing import StandardScaler

    with dispatching():
        assert_flows(lambda x: StandardScaler().fit_transform(x), SAMPLES)
        assert_flows(lambda x, z: StandardScaler().fit(x).transform(z), SAMPLES, SAMPLES[:2])
        assert_flows(lambda x, z: StandardScaler().fit(x).inverse_transform(z), SAMPLES, SAMPLES[:2])


@check
def pca() -> None:
    from sklearn.decomposition import PCA

    with dispatching():
        assert_flows(lambda x: PCA(2, svd_solver="full").fit_transform(x), SAMPLES)
        assert_flows(lambda x: PCA(2, svd_solver="full").fit(x).explained_variance_ratio_, SAMPLES)
        with pytest.raises(errors.LostWriteError):  # it changes a transpose whose matrix it still holds
            PCA(2, svd_solver="covariance_eigh").fit(tensor(SAMPLES))


@check
def ridge() -> None:
    from sklearn.linear_model import Ridge

    with dispatching():
        assert_flows(lambda x, y: Ridge(0.5, solver="svd").fit(x, y).coef_, SAMPLES, TARGET)
        assert_flows(lambda x, y, z: Ridge(0.5, solver="svd").fit(x, y).predict(z), SAMPLES, TARGET, SAMPLES[:3])


def run_checks() -> dict[str, str]:
    """Run every check; by name what went wrong, "" where nothing did."""
    warnings.simplefilter("error")
    found = {}
    for name, function in CHECKS.items():
        try:
            function()
            found[name] = ""
        except (Exception, pytest.fail.Exception):  # the latter is none of the former
            found[name] = traceback.format_exc()
    return found


@pytest.fixture(scope="module")
def reports() -> dict[str, str]:
    for library in ("scipy", "sklearn"):
        pytest.importorskip(library)
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1"}
    root = str(Path(gradmgr.__file__).parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(  # noqa: S603  # this file itself
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CHECKS)
def test_flows_through_scipy_and_scikit_learn(reports: dict[str, str], name: str) -> None:
    assert reports[name] == "", reports[name]


def test_the_checks_reject_what_they_should() -> None:
    assert_flows(lambda x: x * 2, X)
    for wrong in (
        lambda x: x.numpy() if isinstance(x, Tensor) else x,  # no Tensor
        lambda x: x.detach() * 2 if isinstance(x, Tensor) else x * 2,  # no history
        lambda x: x * 2 if isinstance(x, Tensor) else x * 3,  # other values
        lambda x: x * 2 + (x * 0.001 - x.detach() * 0.001) if isinstance(x, Tensor) else x * 2,  # 0.05 % off
    ):
        with pytest.raises((AssertionError, errors.GradcheckError)):
            assert_flows(wrong, X)


# ---------------------------------------------------------------- einops and opt_einsum

einops_calls = {
    "rearrange": lambda e, x: e.rearrange(x, "a (b c) -> (c a) b", c=1),
    "rearrange a list": lambda e, x: e.rearrange([x, x], "n a b -> a (n b)"),
    "reduce mean": lambda e, x: e.reduce(x, "a b -> b", "mean"),
    "reduce max": lambda e, x: e.reduce(x, "(a c) b -> a b ()", "max", c=2),
    "reduce prod": lambda e, x: e.reduce(x, "a b -> a", "prod"),
    "repeat": lambda e, x: e.repeat(x, "a b -> a c b", c=3),
    "pack": lambda e, x: e.pack([x, x[0]], "* b")[0],
    "unpack": lambda e, x: e.unpack(x, [(1, 2), (3,)], "a *")[0],
}


@pytest.mark.parametrize("name", einops_calls)
def test_flows_through_einops(name: str) -> None:
    einops = pytest.importorskip("einops")
    from gradmgr.numpy._einops import register_einops

    register_einops()
    register_einops()
    assert_flows(lambda x: einops_calls[name](einops, x), X)


@pytest.mark.parametrize("name", einops_calls)
def test_flows_through_einops_by_the_array_api(name: str) -> None:
    array_api = pytest.importorskip("einops.array_api")
    function = einops_calls[name]
    with GradManager().attach(t := tensor(X)):
        found = function(array_api, t)
        assert type(found) is Tensor
        assert is_tracked(found)
    assert gradcheck(lambda x: function(array_api, x), t)


def test_flows_through_the_einsum_of_einops() -> None:
    einops = pytest.importorskip("einops")
    from gradmgr.numpy._einops import register_einops

    register_einops()
    assert_flows(lambda x, y: einops.einsum(x, y, "a b, c b -> a c"), X, Y)


def test_einops_gives_an_array_only_when_asked() -> None:
    einops = pytest.importorskip("einops")
    from gradmgr.numpy._einops import register_einops

    register_einops()
    with GradManager().attach(t := tensor(X)):
        np.testing.assert_array_equal(einops.asnumpy(t), X)  # as explicit as t.numpy()
    assert einops.parse_shape(t, "a b") == {"a": 4, "b": 5}


@pytest.mark.parametrize("pattern", ["ab,cb->ac", "ab,cb,ad->cd", "ab,ab,ab->", "ab,cb->abc", "ab,ab->a"])
def test_flows_through_opt_einsum(pattern: str) -> None:
    """It has no backend for gradmgr, and so calls NumPy's functions, which dispatch to gradmgr."""
    opt_einsum = pytest.importorskip("opt_einsum")
    lengths = {"a": 3, "b": 4, "c": 2, "d": 5}
    given, _, _ = pattern.partition("->")
    operands = [random.normal(size=[lengths[axis] for axis in axes]) for axes in given.split(",")]
    assert_flows(lambda *given: opt_einsum.contract(pattern, *given), *operands)


def test_flows_through_an_expression_of_opt_einsum() -> None:
    opt_einsum = pytest.importorskip("opt_einsum")
    expression = opt_einsum.contract_expression("ab,bc,cd->ad", (4, 5), Y.T, (4, 2), constants=[1])
    assert_flows(lambda x, z: expression(x, z), X, Y[:, :2])


# ---------------------------------------------------------------- no gradient is lost in silence


def expect_refusal(call: Callable[[], Any]) -> None:
    with pytest.raises(errors.TrackedConversionError, match=r"gradmgr\.numpy or gradmgr\.special, or say t\.numpy\(\)"):
        call()


REFUSED: dict[str, Callable[[Any], Any]] = {
    "scipy.linalg.expm": lambda t: sys.modules["scipy.linalg"].expm(t[:3, :3]),
    "scipy.linalg.solve": lambda t: sys.modules["scipy.linalg"].solve(t[:3, :3], t[:3, 0]),
    "scipy.linalg.svdvals": lambda t: sys.modules["scipy.linalg"].svdvals(t),
    "scipy.integrate.simpson": lambda t: sys.modules["scipy.integrate"].simpson(t),
    "scipy.interpolate.CubicSpline": lambda t: sys.modules["scipy.interpolate"].CubicSpline(range(5), t[0]),
    "scipy.optimize.nnls": lambda t: sys.modules["scipy.optimize"].nnls(t, t[:, 0]),
    "scipy.sparse": lambda t: sys.modules["scipy.sparse"].coo_array(t),
    "scipy.signal": lambda t: sys.modules["scipy.signal"].lfilter([1.0], [1.0, 0.5], t),
    "scipy.ndimage": lambda t: sys.modules["scipy.ndimage"].gaussian_filter(t, 1.0),
    "scipy.spatial": lambda t: sys.modules["scipy.spatial"].distance.cdist(t, t),
}


@pytest.mark.parametrize("name", REFUSED)
def test_scipys_functions_of_arrays_refuse_what_is_tracked(name: str) -> None:
    for module in ("linalg", "integrate", "interpolate", "optimize", "sparse", "signal", "ndimage", "spatial.distance"):
        pytest.importorskip(f"scipy.{module}")
    t = tensor(X)
    with GradManager().attach(t) as manager:
        y = t * 2
        for tracked in (t, y):
            expect_refusal(lambda tracked=tracked: REFUSED[name](tracked))
        manager.backward(y.sum())
    assert t.grad.tolist() == np.full_like(X, 2.0).tolist()
    REFUSED[name](t)  # nothing tracks it now


def test_scikit_learn_without_dispatch_refuses_what_is_tracked() -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    t = tensor(SAMPLES)
    with GradManager().attach(t):
        expect_refusal(lambda: preprocessing.StandardScaler().fit(t))
    np.testing.assert_allclose(preprocessing.StandardScaler().fit(t).mean_, SAMPLES.mean(0))


def test_a_special_function_of_scipy_says_what_to_use() -> None:
    """They are ufuncs, and a ufunc asks its operands, tracked or not."""
    special = pytest.importorskip("scipy.special")
    t = tensor(X)
    for call in (special.erf, special.gammaln, lambda t: special.xlogy(X, t)):
        with pytest.raises(TypeError, match=r"scipy\.special\.\w+ was called on a Tensor.*; use gradmgr\.special\.\w+"):
            call(t)
    with pytest.raises(TypeError, match=r"wofz was called on a Tensor.*no differentiable counterpart.*t\.numpy\(\)"):
        special.wofz(t)
    with GradManager().attach(t):
        np.testing.assert_array_equal(gradmgr.special.erf(t).numpy(), special.erf(X))


IMPLICIT: dict[str, Callable[[Any, Any], Any]] = {
    "np.asarray": lambda t, a: np.asarray(t),
    "np.array of a list": lambda t, a: np.array([t, t]),
    "a[...] = t": lambda t, a: a.__setitem__(..., t),
    "a += t": lambda t, a: a.__iadd__(t),
    "np.copyto": lambda t, a: np.copyto(a, t),
    "np.from_dlpack": lambda t, a: np.from_dlpack(t),
    "from_dlpack of ours": lambda t, a: gnp.from_dlpack(t),
    "t.__dlpack__": lambda t, a: t.__dlpack__(),
    "np.ascontiguousarray": lambda t, a: np.ascontiguousarray(t),
    "np.add.reduce(out=)": lambda t, a: np.sum(t, axis=0, out=a[0]),
}


@pytest.mark.parametrize("name", IMPLICIT)
def test_implicit_conversion_of_a_tracked_tensor_raises(name: str) -> None:
    t, a = tensor(X), np.zeros_like(X)
    with GradManager().attach(t):
        for tracked in (t, t * 1.0):
            with pytest.raises(errors.TrackedConversionError, match=r"numpy\(\)"):
                IMPLICIT[name](tracked, a)
    np.testing.assert_array_equal(a, 0.0)


def test_a_tensor_has_no_buffer() -> None:
    for t in (tensor(X), tensor(1.0)):
        with pytest.raises(TypeError, match="bytes-like"):
            memoryview(t)


def test_explicit_conversions_are_allowed() -> None:
    t = tensor(0.5)
    with GradManager().attach(t):
        y = t * 2
        assert y.item() == y.numpy()[()] == y.tolist() == 1.0
        with pytest.raises(TypeError):
            math.sin(tensor(X))


MODULES = (
    *("gradmgr", "gradmgr.numpy", "gradmgr.numpy.fft", "gradmgr.numpy.linalg", "gradmgr.special", "gradmgr.functional"),
    *("gradmgr.nn", "gradmgr.nn.functional", "gradmgr.nn.init", "gradmgr.optim", "gradmgr.optim.lr_scheduler"),
    *("gradmgr.distributed", "gradmgr.forward_ad", "gradmgr.function", "gradmgr.graph", "gradmgr.profiler"),
)


@pytest.mark.parametrize("module", MODULES)
def test_public_functions_and_classes_can_be_pickled(module: str) -> None:
    """A pickle names functions and classes; every public one is found under the name it says."""
    offered = importlib.import_module(module)
    lost = []
    for name in offered.__all__:
        thing = getattr(offered, name)
        if isinstance(thing, (FunctionType, type)) and thing.__module__.startswith("gradmgr"):
            try:
                found = pickle.loads(pickle.dumps(thing))  # noqa: S301  # made just now
            except pickle.PicklingError as error:
                found = error
            if found is not thing:
                lost.append((name, found))
    assert not lost


def test_a_model_with_functions_of_numpys_can_be_pickled() -> None:
    model = nn.Sequential(nn.Linear(3, 2, rng=np.random.default_rng(0)), gnp.tanh)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301  # made just now
    np.testing.assert_array_equal(again(POINTS.astype(np.float32)).numpy(), model(POINTS.astype(np.float32)).numpy())


if __name__ == "__main__":
    print(json.dumps(run_checks()))  # noqa: T201  # read by the fixture
