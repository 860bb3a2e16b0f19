"""Convolutions by oneDNN, where it is installed; and what happens where it is not, or cannot be used."""

import ctypes
import ctypes.util
import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import normal
from machine import needs_machine

import gradmgr
from gradmgr import GradManager, errors, nn, tensor
from gradmgr._arrays import onednn_library
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere
from gradmgr.nn._functions import convolution, onednn, windows

INSTALLED = onednn_library.found.get()
needs_library = pytest.mark.skipif(INSTALLED is None, reason=f"oneDNN cannot be used: {onednn_library.found.reason}")


@pytest.fixture
def library(monkeypatch):
    """The library, asked for whatever it can."""
    monkeypatch.setattr(onednn, "_is_faster_in_numpy", lambda *_: False)
    return INSTALLED


def normal_float32(*shape, seed=0):
    return normal(*shape, seed=seed).astype(np.float32)


def with_channels_last(images):
    """A copy in which the channels are last in memory."""
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def draw(random):
    """The geometry and the shapes of x, w and the result of one random convolution, or of a transposed one."""
    groups, inputs, outputs = (int(n) for n in random.integers(1, 4, 3))
    if random.random() < 0.3:
        groups, inputs, outputs = int(random.integers(1, 20)), 1, 1
    kernel, stride, dilation = (tuple(int(n) for n in random.integers(1, 4, 2)) for _ in range(3))
    padding = tuple(int(n) for n in random.integers(0, 4, 2))
    out = tuple(int(n) for n in random.integers(1, 9, 2))
    facts = zip(out, kernel, stride, padding, dilation, strict=True)
    size = [(m - 1) * s - 2 * p + d * (k - 1) + 1 + int(random.integers(max(s, d))) for m, k, s, p, d in facts]
    size = tuple(max(1, n) for n in size)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    out = [(n + 2 * p - span) // s + 1 for n, p, span, s in zip(size, padding, spans, stride, strict=True)]
    geometry = windows.geometry_of(size, kernel, tuple(max(1, m) for m in out), stride, padding, dilation, groups)
    count = int(random.integers(1, 12))
    return geometry, (count, groups * inputs, *size), (groups * outputs, inputs, *kernel), geometry.out


def both(kind, geometry, x, w, z, bias_of_z, bias_of_x):
    """What oneDNN gives, None where it has no primitive, and what NumPy does."""
    if kind == "forward":
        return onednn.forward(x, w, bias_of_z, geometry), convolution._conv(x, w, bias_of_z, geometry)
    if kind == "data":
        return onednn.data(z, w, bias_of_x, geometry), convolution._conv_x(z, w, bias_of_x, geometry)
    return onednn.weights(x, z, geometry), convolution._conv_w(x, z, geometry)


@needs_library
@pytest.mark.parametrize(("block", "worth"), [(1 << 21, 1 << 24), (3000, 1)])
@pytest.mark.parametrize("kind", ["forward", "data", "weights"])
@pytest.mark.parametrize("are_last", [True, False])
def test_it_agrees_with_numpy(monkeypatch, library, set_threads, kind, block, worth, are_last):
    """In blocks of all images and of few, which do not divide them; with strides, gaps, groups, and one thread or 3."""
    monkeypatch.setattr(onednn, "_keeps_channels_last", lambda: are_last)
    monkeypatch.setattr(onednn, "_BLOCK", block)
    monkeypatch.setattr(onednn, "_WORTH_THREADS", worth)
    random, met = np.random.default_rng(block), 0
    for trial in range(60):
        geometry, of_x, of_w, out = draw(random)
        of_z = (of_x[0], of_w[0], *out)
        arrays = [random.standard_normal(s).astype(np.float32) for s in (of_x, of_w, of_z, of_z[1:2], of_x[1:2])]
        if trial % 3 == 0:
            arrays[:3] = [np.asfortranarray(a) for a in arrays[:3]]
        elif trial % 3 == 1:
            arrays[0], arrays[2] = with_channels_last(arrays[0]), with_channels_last(arrays[2])
        set_threads(1)
        found, wanted = both(kind, geometry, *arrays)
        if found is None:
            continue
        met += 1
        assert found.dtype == np.float32
        is_image = are_last and kind != "weights"
        assert (found.transpose(0, 2, 3, 1) if is_image else found).flags.c_contiguous
        assert found.flags.owndata
        assert np.allclose(found, wanted, rtol=1e-5, atol=3e-6 * abs(wanted).max()), (geometry, of_x, of_w)
        set_threads(3)
        assert np.array_equal(both(kind, geometry, *arrays)[0], found)
    assert met > 40


@needs_library
def test_derivatives_go_through_it(library):
    """First and second derivatives are those of the NumPy path."""

    def run():
        x, w, b = (
            tensor(normal_float32(4, 6, 9, 8)),
            tensor(normal_float32(8, 3, 3, 2, seed=1)),
            tensor(normal_float32(8, seed=2)),
        )
        with GradManager().attach([x, w, b]) as gm:
            z = F.conv2d(x, w, b, (2, 1), (1, 0), (1, 2), 2)
            loss = (z * z * z).sum()
            gm.backward(loss)
        return [z.numpy(), *[t.grad.numpy() for t in (x, w, b)]]

    def again(x, w):
        return gradmgr.functional.hvp(
            lambda x, w: (F.conv2d(x, w, None, 1, 1) ** 3).sum(), (x, w), (np.cos(x), np.sin(w))
        )[1]

    arguments = tensor(normal_float32(2, 3, 5, 6)), tensor(normal_float32(4, 3, 3, 3, seed=1))
    found, seconds = run(), again(*arguments)
    before = library.plan.cache_info()
    assert before.misses + before.hits > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn, "_is_faster_in_numpy", lambda *_: True)
        for one, other in zip((*found, *seconds), (*run(), *again(*arguments)), strict=True):
            one, other = np.asarray(one), np.asarray(other)
            assert np.allclose(one, other, rtol=1e-5, atol=1e-5 * abs(other).max())
    assert library.plan.cache_info() == before  # the NumPy path did not call oneDNN


LAYERS = {
    "batch_norm": lambda z: F.batch_norm(z, None, None, training=True),
    "batch_norm by running statistics": lambda z: F.batch_norm(z, np.zeros(16, "f4"), np.ones(16, "f4")),
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "silu": F.silu,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "gelu by tanh": lambda z: F.gelu(z, "tanh"),
    "dropout": lambda z: F.dropout(z, 0.3, rng=np.random.default_rng(0)),
    "max_pool2d": lambda z: F.max_pool2d(z, 2),
    "avg_pool2d": lambda z: F.avg_pool2d(z, 3, 1, 1),
    "addition": lambda z: z + z * 2,
    "concatenation": lambda z: gradmgr.numpy.concatenate([z, z * 2], axis=1),
}


@needs_library
@needs_machine
@pytest.mark.parametrize("side", [6, 40])
@pytest.mark.parametrize("layer", LAYERS)
def test_channels_stay_last_from_one_convolution_to_the_next(monkeypatch, library, layer, side):
    """In results and their gradients, of small and large images; what is computed is what it is in C order."""

    def run():
        x, w = tensor(normal_float32(3, 5, side, side)), tensor(normal_float32(16, 5, 3, 3, seed=1))
        seen = []
        with GradManager().attach([x, w]) as gm:
            z = F.conv2d(x, w, None, padding=1)
            z.register_hook(lambda g: seen.append(g.numpy()))
            y = LAYERS[layer](z)
            y.register_hook(lambda g: seen.append(g.numpy()))
            v = normal_float32(8, y.shape[1], 3, 3, seed=2)
            gm.backward((F.conv2d(y, v, None, padding=1) ** 2).sum())
        return [z.numpy(), y.numpy(), *seen], [x.grad.numpy(), w.grad.numpy()]

    images, grads = run()
    for a in images:
        assert np.moveaxis(a, 1, -1).flags.c_contiguous
    for a in grads:  # of leaves in C order
        assert a.flags.c_contiguous
    monkeypatch.setattr(onednn, "_keeps_channels_last", lambda: False)
    for found, expected in zip((images, grads), run(), strict=True):
        for one, other in zip(found, expected, strict=True):
            assert np.allclose(one, other, rtol=1e-4, atol=1e-5 * abs(other).max())


@needs_library
@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_machine)])
def test_a_compiled_step_has_the_bits_of_an_eager_one(library, native):
    """With the channels last in memory, from the first convolution to the last."""
    w, v, u = (tensor(normal_float32(*shape, seed=k)) for k, shape in enumerate([(16, 3, 3, 3), (8, 16, 3, 3), (8,)]))
    gm = GradManager().attach([w, v, u])

    def step(x):
        with gm:
            z = F.batch_norm(F.conv2d(x, w, None, padding=1), None, None, training=True)
            z = F.max_pool2d(F.relu(z), 2) + F.silu(F.avg_pool2d(z, 2))
            z = F.gelu(F.conv2d(z, v, u))
            gm.backward((z.reshape(len(x), -1) ** 2).mean())
        return [z, *[t.grad for t in (w, v, u)]]

    compiled = gradmgr.compile(step, native=native)
    for k in range(4):
        x = normal_float32(6, 3, 20, 20, seed=10 + k)
        results = []
        for run in (compiled, step):
            results.append([t.numpy().tobytes() for t in run(x)])
            for t in (w, v, u):
                t.grad = None
        assert results[0] == results[1]
    assert "eagerly" not in compiled.explain()


@needs_library
def test_what_onednn_leaves_to_numpy(library):
    """Other dtypes, errors that are to raise, and empty batches are for NumPy."""
    x, w = normal_float32(2, 3, 6, 6), normal_float32(4, 3, 3, 3, seed=1)
    geometry = windows.geometry_of((6, 6), (3, 3), (4, 4), (1, 1), (0, 0), (1, 1))
    assert onednn.forward(x, w, None, geometry) is not None
    assert onednn.forward(x.astype(float), w, None, geometry) is None
    assert onednn.forward(x, w.astype(np.float16), None, geometry) is None
    assert onednn.forward(x, w, np.zeros(4), geometry) is None
    with np.errstate(over="raise"):
        assert onednn.forward(x, w, None, geometry) is None
        with pytest.raises(FloatingPointError):
            F.conv2d(x * np.float32(3e38), w)


@needs_library
def test_small_and_narrow_convolutions_are_for_numpy():
    def is_used(kind, work, w, groups=1):
        return not onednn._is_faster_in_numpy(kind, work, w, groups)

    assert not is_used("forward", 1000, (4, 3, 3, 3))
    assert is_used("forward", 1 << 20, (16, 3, 3, 3))
    assert not is_used("data", 1 << 20, (16, 3, 3, 3))
    assert not is_used("forward", 1 << 20, (16, 16, 1, 1))
    assert not is_used("forward", 1 << 20, (16, 2, 3, 3), 8)
    assert is_used("weights", 1 << 20, (16, 1, 3, 3), 16)
    assert F.conv2d(np.zeros((0, 16, 9, 9), np.float32), normal_float32(16, 16, 3, 3)).shape == (0, 16, 7, 7)


@needs_library
def test_subnormal_numbers_stay(library):
    """It does not flush subnormal numbers to zero, nor does what is computed afterwards."""
    x, w = np.full((2, 16, 8, 8), 1e-40, np.float32), np.zeros((16, 16, 3, 3), np.float32)
    w[:, 0, 1, 1] = 1
    assert np.array_equal(F.conv2d(x, w, padding=1), x)
    assert (x[0, 0, 0] * np.float32(0.5) > 0).all()


@needs_library
def test_a_nan_and_an_infinity_stay_where_their_windows_are(library):
    x, w = normal_float32(2, 16, 9, 9), normal_float32(16, 16, 3, 3, seed=1)
    x[0, 3, 4, 4], x[1, 0, 0, 0] = np.nan, np.inf
    z = F.conv2d(x, w)
    assert np.isnan(z[0, :, 2:5, 2:5]).all()
    assert np.isfinite(z).sum() == z.size - 16 * 10
    assert np.isinf(z[1, :, 0, 0]).all()


@needs_library
def test_many_threads_at_once(library, set_threads):
    set_threads(2)
    x, w = normal_float32(8, 16, 12, 12), normal_float32(16, 16, 3, 3, seed=1)
    wanted, found = F.conv2d(x, w), []

    def go():
        found.extend([np.array_equal(F.conv2d(x, w), wanted) for _ in range(20)])

    workers = [threading.Thread(target=go) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [True] * 120


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python's, of a fork beside threads
def test_a_child_process_computes_the_same(library, set_threads):
    set_threads(2)
    x, w = normal_float32(8, 16, 12, 12), normal_float32(16, 16, 3, 3, seed=1)
    wanted = F.conv2d(x, w)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(F.conv2d(x, w), wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


@needs_library
def test_openmp_is_left_as_it_was(library):
    if not library.has_openmp:
        pytest.skip("the library is not built on OpenMP")
    before = library._get_threads()
    library._set_threads(5)
    F.conv2d(normal_float32(2, 16, 9, 9), normal_float32(16, 16, 3, 3))
    assert library._get_threads() == 5
    library._set_threads(before)


@needs_library
def test_objects_of_onednn_are_destroyed():
    library = onednn_library.Library(INSTALLED.path)
    geometry = windows.geometry_of((9, 9), (3, 3), (7, 7), (1, 1), (0, 0), (1, 1))
    destroyed = []
    library._destroyers = {
        kind: lambda handle, kind=kind, destroy=destroy: (destroyed.append(kind), destroy(handle))
        for kind, destroy in library._destroyers.items()
    }
    x, w, z = np.zeros((2, 16, 9, 9), "f4"), np.zeros((16, 16, 3, 3), "f4"), np.zeros((2, 16, 7, 7), "f4")
    assert onednn._Job(library, "forward", geometry, x, w, z, None, 1).run()
    assert {"primitive", "memory", "stream"}.isdisjoint(destroyed)
    library.plan.cache_clear()
    assert {"memory", "memory_desc", "primitive", "primitive_desc", "stream"} == set(destroyed)


@needs_library
def test_a_failure_names_the_function():
    with pytest.raises(RuntimeError, match="oneDNN's dnnl_primitive_execute failed with status 5"):
        INSTALLED.check(5, "dnnl_primitive_execute")
    with pytest.raises(MemoryError, match="dnnl_memory_create"):
        INSTALLED.check(1, "dnnl_memory_create")


# ---------------------------------------------------------------- without it


def computes(monkeypatch, places):
    """Whether a convolution of these places gives NumPy's numbers; and what is said of it."""
    found = onednn_library.Found()
    monkeypatch.setattr(onednn_library, "found", found)
    monkeypatch.setattr(onednn_library, "library_paths", lambda: places)
    x, w = normal_float32(8, 16, 12, 12), normal_float32(16, 16, 3, 3, seed=1)
    geometry = windows.geometry_of((12, 12), (3, 3), (10, 10), (1, 1), (0, 0), (1, 1))
    assert np.array_equal(F.conv2d(x, w), convolution._conv(x, w, None, geometry))
    assert found.looked
    assert found.library is None
    return nn.convolution_library()


def test_without_a_library_numpy_computes(monkeypatch):
    assert computes(monkeypatch, []) == f"NumPy (no oneDNN is installed; {errors.how_to_install('onednn')})"


def test_a_broken_library_is_named_and_the_next_is_tried(monkeypatch, tmp_path):
    """The message names files that are no library, and missing ones; the next is tried."""
    broken = tmp_path / "libdnnl.so.3"
    broken.write_text("no library")
    said = computes(monkeypatch, [str(broken), str(tmp_path / "libgone.so")])
    assert said.startswith(f"NumPy ({broken}: ")
    assert "libgone.so: " in said


@pytest.mark.skipif(sys.platform != "linux", reason="the name of the other library is Linux's")
def test_a_library_without_onednns_functions_is_named(monkeypatch):
    other = ctypes.util.find_library("m")
    assert "it has not the functions of oneDNN 3" in computes(monkeypatch, [other])


@pytest.mark.parametrize(
    ("version", "runtime", "says"),
    [(2, 2, r"it is oneDNN 2\.7\.1; 3 is needed"), (3, 512, r"oneDNN 3\.7\.1 built on runtime 512"), (3, 8, "a pool")],
)
def test_a_library_of_another_version_or_runtime_is_refused(monkeypatch, version, runtime, says):
    answer = onednn_library.Version(version, 7, 1, b"", runtime, 0)

    def dnnl_version():
        return ctypes.pointer(answer)

    fake = SimpleNamespace(dnnl_version=dnnl_version, _handle=0)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: fake)
    monkeypatch.setattr(ctypes, "PyDLL", lambda _, handle: fake)
    with pytest.raises(OSError, match=says):
        onednn_library.Library("libdnnl.so.3")


def test_small_convolutions_do_not_look_for_it(monkeypatch):
    found = onednn_library.Found()
    monkeypatch.setattr(onednn_library, "found", found)
    F.conv2d(normal_float32(1, 1, 4, 4), normal_float32(1, 1, 3, 3))
    F.conv2d(np.zeros((8, 16, 12, 12)), np.zeros((16, 16, 3, 3)))  # float64
    assert not found.looked
