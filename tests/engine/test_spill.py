"""GradManager(budget=, spill=): values move out and back with the same bits; no file is left."""

import contextvars
import gc
import os
import re
import resource
import subprocess
import sys
import tempfile
import textwrap
import threading
import warnings
from types import SimpleNamespace

import guard
import numpy as np
import pytest
from helpers import cupy_on_a_gpu

import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, tensor
from gradmgr._engine.history.saved_values import saved_tensors_hooks
from gradmgr._engine.history.spill import _SpilledValue, format_bytes, parse_bytes, spill_of
from gradmgr._transforms.checkpoint import checkpoint
from gradmgr._transforms.grad import grad
from gradmgr.graph import increment_version

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(40, 40)) / 7, RNG.normal(size=(40, 40)) / 7  # 12.8 kB each


def program(x, w):
    """Values of every memory layout, several arrays in one buffer, in-place writes, loops, an op of several results."""
    h = x
    for k in range(6):
        h = gnp.tanh(h @ w.T + 0.1 * k)
        h = h * gnp.exp(h.T)[::-1, ::2].repeat(2, axis=1) + h.reshape(20, 80)[:, :40].repeat(2, axis=0)
    h *= x
    h[3:9] = gnp.sin(h[13:19]) * h[0]
    values, vectors = gnp.linalg.eigh(h @ h.T)
    z = gnp.einsum("ij,jk->ik", vectors**2, h).transpose() * gnp.sort(h, axis=0)
    c = gnp.fft.fft(z, axis=1)
    return (c.real**2).sum() + (c.imag * h[:, gnp.asarray(RNG_INDEX)]).sum() + values.sum()


RNG_INDEX = RNG.permutation(40)


def gradients_of_program(retain=False, **options):
    x, w = tensor(A), tensor(B)
    gm = GradManager(**options).attach([x, w])
    with gm:
        y = program(x, w)
        away = spill_of(gm._tape).moved_bytes if options else 0
        gm.backward(y, retain=retain)
        if retain:
            first, x.grad, w.grad = [x.grad, w.grad], None, None
            gm.backward(y)
            assert_same([x.grad.numpy(), w.grad.numpy()], [g.numpy() for g in first])
    return [x.grad.numpy(), w.grad.numpy()], away


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()
        assert a.dtype == b.dtype


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """No file is ever to be seen in the directory for temporary ones, and none is left open."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = len(descriptors())
    yield
    if len(descriptors()) > before:
        gc.collect()  # of a manager that stands in the traceback of an error, perhaps
    assert os.listdir(tmp_path) == []
    assert len(descriptors()) <= before


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("budget", [0, "20 kB", "100 kB", "1MiB"])
@pytest.mark.parametrize("retain", [False, True])
def test_the_same_bits(budget, retain):
    found, away = gradients_of_program(retain, budget=budget, spill="disk")
    expected, _ = gradients_of_program(retain)
    assert_same(found, expected)
    assert (away > 0) is (budget != "1MiB")


def test_the_oldest_move_and_the_budget_holds():
    w = tensor(B)
    gm = GradManager(budget=5 * A.nbytes, spill="disk").attach(w)
    with gm:
        x = tensor(A)
        for _ in range(20):
            x = gnp.tanh(x @ w)
            # The program itself holds w, x and an operand of the last operation, in addition to the budget.
            assert gm._tape.nbytes() <= (5 + 3) * A.nbytes
        tanhs = [e for e in gm._tape.entries if e[0] == "tanh.x.packed"]
        cells = [next(part for part in e if isinstance(part, _SpilledValue)) for e in tanhs]
        here = [isinstance(cell.kept, np.ndarray) for cell in cells]
        assert here == sorted(here)  # those that are here are the newest
        assert 0 < sum(here) < len(here) == 20
        spill = spill_of(gm._tape)
        assert spill.moved_bytes + spill.resident_bytes + 2 * A.nbytes >= 20 * A.nbytes
        assert "moved" in gm.summary()
        del cells, tanhs
        gm.backward(x.sum())
        spill._apply_changes()
        assert (spill.resident_bytes, spill.moved_bytes) == (0, 0)


def test_a_buffer_counts_once():
    x = tensor(A)
    gm = GradManager(budget="1 GB", spill="disk").attach(x)
    with gm:
        h = x * 2.0
        y = gnp.exp(h)
        z = (y * y.T * y.reshape(80, 20).reshape(40, 40) * y[::-1]).sum()
        # x * 2.0 keeps nothing; exp keeps y, the products keep y and two products.
        assert spill_of(gm._tape).resident_bytes == 3 * A.nbytes
        del h, y
        gm.backward(z)


def test_values_held_elsewhere_stay():
    x = tensor(A)
    held = []
    gm = GradManager(budget=0, spill="disk").attach(x)
    with gm:
        y = x
        for _ in range(5):
            y = gnp.sin(y) + 1.0
            held.append(y)
        spill = spill_of(gm._tape)
        assert spill.moved_bytes == 0
        held.clear()
        for _ in range(10):  # it is found out in the course of further operations
            y = gnp.negative(y)
        assert spill.moved_bytes == 4 * A.nbytes  # sin keeps its input: x, which is held, and four others
        gm.backward(y.sum())


def test_small_arrays_stay():
    x = tensor(np.ones(511))
    gm = GradManager(budget=0, spill="disk").attach(x)
    with gm:
        y = x
        for _ in range(100):
            y = gnp.sin(y)
        assert spill_of(gm._tape).moved_bytes == 0
        gm.backward(y.sum())


def test_dropped_values_free_their_place_in_the_file():
    x = tensor(A)
    gm = GradManager(budget=0, spill="disk").attach(x)
    with gm:
        for _ in range(500):
            y = gnp.sin(gnp.exp(gnp.sin(x)))
        spill = spill_of(gm._tape)
        assert spill._file._end < 200 * A.nbytes
        gm._tape.sweep(everything=True)
        y = gnp.sin(y)
        spill._apply_changes()
        assert spill.moved_bytes <= 3 * A.nbytes
        gm.backward(y.sum())


# ---------------------------------------------------------------- with everything else


def second_order(first, second):
    x, w = tensor(A), tensor(B)
    outer, inner = GradManager(**first).attach([x, w]), GradManager(**second).attach([x, w])
    with outer, inner:
        inner.backward(program(x, w))
        gx, gw, x.grad, w.grad = x.grad, w.grad, None, None
        outer.backward((gx * gw).sum())
    return [gx.numpy(), gw.numpy(), x.grad.numpy(), w.grad.numpy()]


@pytest.mark.parametrize("which", ["outer", "inner", "both"])
def test_nested_managers(which):
    budget = {"budget": 3 * A.nbytes, "spill": "disk"}
    found = second_order(budget if which != "inner" else {}, budget if which != "outer" else {})
    assert_same(found, second_order({}, {}))


def test_nested_managers_share_what_moves():
    x = tensor(A)
    budget = {"budget": 0, "spill": "disk"}
    outer, inner = GradManager(**budget).attach(x), GradManager(**budget).attach(x)
    with outer, inner:
        y = x
        for _ in range(10):
            y = gnp.sin(y)
        one, other = spill_of(outer._tape), spill_of(inner._tape)
        one._apply_changes(), other._apply_changes()
        assert one.moved_bytes == other.moved_bytes >= 8 * A.nbytes
        assert (one._file is None) != (other._file is None)
        inner.backward(y.sum())
        g, x.grad = x.grad, None
        outer.backward(g.sum())


def test_derivatives_recorded_on_the_tape_itself():
    def second(**options):
        x, w = tensor(A), tensor(B)
        with GradManager(**options).attach([x, w]):
            gx, gw = grad(program(x, w), [x, w], create_graph=True)
            return [g.numpy() for g in (gx, gw, *grad((gx * gw).sum(), [x, w]))]

    assert_same(second(budget=0, spill="disk"), second())


def test_with_hooks_and_checkpoints():
    def run(**options):
        x, w = tensor(A), tensor(B)
        gm = GradManager(**options).attach([x, w])
        with gm:
            y = checkpoint(program, x * 1.0, w)
            with saved_tensors_hooks(lambda t: t.numpy().copy(), tensor):
                z = program(y * x, w)
            gm.backward(z * program(x, w))
        return [x.grad.numpy(), w.grad.numpy()]

    assert_same(run(budget=0, spill="disk"), run())


def test_memory_declared_overwritten():
    def run(moves):
        buffer = A.copy()
        x = tensor(B)
        gm = GradManager(budget=0, spill="disk").attach(x)
        with gm:
            y = x * buffer
            if moves:
                view = buffer
                del buffer
                address = view.__array_interface__["data"][0]
                del view
                assert address
                y = gnp.negative(gnp.negative(gnp.negative(y)))
                assert spill_of(gm._tape).moved_bytes == A.nbytes
            else:
                increment_version(buffer)
            gm.backward(y.sum())

    run(moves=True)
    with pytest.raises(errors.StaleValueError):
        run(moves=False)


def test_threads_that_record_into_one_tape():
    def run(**options):
        w = tensor(B)
        gm = GradManager(**options).attach(w)
        results = [None] * 4
        gate = threading.Barrier(4)

        def work(k):
            gate.wait()
            y = tensor(A + k)
            for _ in range(30):
                y = gnp.tanh(y @ w)
            results[k] = y

        with gm:
            threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, k)) for k in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            gm.backward(sum(y.sum() for y in results))
        return w.grad.numpy()

    np.testing.assert_allclose(run(budget=0, spill="disk"), run(), rtol=1e-10)


# ---------------------------------------------------------------- no file is left, whatever happens


def half_way():
    x = tensor(A)
    gm = GradManager(budget=0, spill="disk").attach(x)
    gm.record()
    y = x
    for _ in range(10):
        y = gnp.sin(y)
    assert spill_of(gm._tape).moved_bytes
    return gm, y


@pytest.mark.parametrize("ending", ["backward", "release", "drop", "failure", "nothing moved back"])
def test_the_file_is_gone(ending):
    before = len(descriptors())
    gm, y = half_way()
    assert len(descriptors()) == before + 1
    gc.disable()
    try:
        if ending == "backward":
            gm.backward(y.sum())
        elif ending == "release":
            gm.release()
        elif ending == "drop":
            del gm
        elif ending == "failure":
            gm.attach(gm.attached_tensors(), lambda t, g: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                gm.backward(y.sum())
        else:
            gm._tape.close()
            gm.release()
        assert len(descriptors()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "os._exit(4)", "os.kill(os.getpid(), 9)", "1 / 0"])
def test_the_file_is_gone_with_the_process(ending, tmp_path):
    script = f"""
        import os, sys
        import numpy as np
        import gradmgr.numpy as gnp
        from gradmgr import GradManager, tensor
        x = tensor(np.ones((64, 64)))
        gm = GradManager(budget=0, spill="disk").attach(x)
        gm.record()
        y = x
        for _ in range(10):
            y = gnp.sin(y)
        from gradmgr._engine.history.spill import spill_of
        assert spill_of(gm._tape).moved_bytes
        {ending}
    """
    done = subprocess.run(  # noqa: S603  # our own words
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == {"": 0, "sys.exit(3)": 3, "os._exit(4)": 4, "1 / 0": 1}.get(ending, -9), done.stderr
    assert "ResourceWarning" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_the_file_is_readable_by_its_owner_alone():
    gm, _ = half_way()
    assert os.fstat(spill_of(gm._tape)._file._file.fileno()).st_mode & 0o777 == 0o600
    gm.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_process_does_not_touch_it():
    gm, y = half_way()
    argument_positions, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CPython warns of fork where there were threads
        child = os.fork()
    if child == 0:
        try:
            gm.backward(y.sum())
        except errors.SpillError as error:
            os.write(writes, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writes)
    with os.fdopen(argument_positions) as read_end:
        assert "in the process that this one was forked from" in read_end.read()
    x = gm.attached_tensors()[0]
    gm.backward(y.sum())
    assert x.grad is not None


@pytest.fixture
def full_disk():
    """No file may grow beyond what is given to it."""
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk(full_disk, unchanged):
    x = tensor(A)
    gm = GradManager(budget=0, spill="disk").attach(x)
    with gm:
        y = x
        full_disk(3 * A.nbytes + 100)
        count = 0
        said = ""
        while not said:
            try:
                y = gnp.sin(y)
                count += 1
            except OSError as error:
                said = f"{type(error).__name__}: {error}"
        assert re.search("^SpillError: .* could not write 12.5 KiB in addition to 37.5 KiB .* nothing is lost", said)
        assert count >= 3
        with unchanged([gm], [x, y]), pytest.raises(errors.SpillError):
            gnp.sin(y)
        full_disk(resource.RLIM_INFINITY)
        z = gnp.sin(y).sum()
        gm.backward(z)
    found, x.grad = x.grad.numpy(), None
    plain = GradManager().attach(x)
    with plain:
        y = x
        for _ in range(count + 1):
            y = gnp.sin(y)
        plain.backward(y.sum())
    assert found.tobytes() == x.grad.numpy().tobytes()


def test_a_full_disk_and_memory_that_is_written_already(full_disk):
    x, v = tensor(A), tensor(A[0])
    gm = GradManager(budget=0, spill="disk").attach([x, v])
    with gm:
        y = gnp.sin(x * 2.0)
        z = y * 3.0
        del y
        full_disk(100)
        for k in range(40):
            z[k] = v  # the buffer of z is its own, and written to
        full_disk(resource.RLIM_INFINITY)
        gm.backward(z.sum())
    assert x.grad.tolist() == np.zeros((40, 40)).tolist()
    assert v.grad.tolist() == [40.0] * 40


def test_no_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(errors.SpillError, match="cannot make a temporary file"):
        half_way()
    gc.collect()  # the manager stands in the traceback, and records


def test_a_file_that_was_damaged():
    gm, y = half_way()
    spill_of(gm._tape)._file._file.truncate(10)
    with pytest.raises(errors.SpillError, match="could not be read back: the temporary file ends early"):
        gm.backward(y, A)
    assert gm._tape is None


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (0, 0),
        (4096, 4096),
        (np.int64(7), 7),
        ("2GiB", 2 << 30),
        ("2 GiB", 2 << 30),
        ("1.5 GiB", 3 << 29),
        ("500MB", 500_000_000),
        ("500 MiB", 500 << 20),
        ("3kB", 3000),
        ("3KB", 3000),
        ("3KiB", 3072),
        ("1TB", 10**12),
        (" 12 B ", 12),
        ("0.5KiB", 512),
    ],
)
def test_forms_of_a_budget(budget, expected):
    assert parse_bytes(budget) == expected


@pytest.mark.parametrize("budget", ["", "GiB", "2", "2 GiBs", "-1GiB", "2gib", "1e9B", "2iB", "1,5 GiB", "two"])
def test_text_that_is_no_budget(budget):
    text = f"budget={budget!r} is no number of bytes; write it as '2GiB'"
    with pytest.raises(ValueError, match=re.escape(text)):
        GradManager(budget=budget)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="budget=-1 is no number of bytes"):
        GradManager(budget=-1)
    for wrong in (1.5, True, [3]):
        with pytest.raises(TypeError, match=f"found {type(wrong).__name__}"):
            GradManager(budget=wrong)
    with pytest.raises(ValueError, match="spill is 'host', for arrays on a GPU, or 'disk'; found 'tape'"):
        GradManager(budget="1GiB", spill="tape")


def test_the_budget_is_written_in_units_of_bytes():
    assert format_bytes(0) == "0 B"
    assert format_bytes(3 << 29) == "1.5 GiB"
    assert repr(GradManager(budget="2GiB")) == "GradManager(0 attached, budget 2 GiB, the rest on the host)"
    on_disk = GradManager(budget="1.5MiB", spill="disk")
    assert repr(on_disk) == "GradManager(0 attached, budget 1.5 MiB, the rest on disk)"


def test_arrays_on_the_cpu_have_no_host_to_go_to():
    x = tensor(A)
    gm = GradManager(budget="20 kB").attach(x)
    with gm:
        y = gnp.sin(x)
        with pytest.warns(RuntimeWarning, match=r"more than its budget of 19.53 KiB .* pass spill='disk'") as caught:
            y = gnp.sin(gnp.sin(y))
        assert len(caught) == 1
        assert caught[0].filename == __file__
        y = gnp.sin(y)  # once is enough
        gm.backward(y.sum())
    assert x.grad is not None


# ---------------------------------------------------------------- GPUs


@pytest.fixture
def cupy_with_addresses(cupy, monkeypatch):
    """The guard as CuPy, with what spilling asks of an array besides: its address, and views of any strides."""

    def data(array):
        return SimpleNamespace(mem=object(), device=array.device, ptr=array._host.__array_interface__["data"][0])

    def as_strided(x, shape=None, strides=None):
        return guard.ndarray(np.lib.stride_tricks.as_strided(x._host, shape, strides))

    monkeypatch.setattr(guard.ndarray, "data", property(data))
    monkeypatch.setattr(cupy.lib.stride_tricks, "as_strided", as_strided, raising=False)
    return cupy


def on_gpu(cupy, **options):
    x, w = tensor(cupy.asarray(A)), tensor(cupy.asarray(B))
    gm = GradManager(**options).attach([x, w])
    with gm:
        y = x
        for k in range(6):
            y = gnp.tanh(y @ w.T + 0.1 * k)
            y = y * gnp.exp(y.T)[::-1, ::2].repeat(2, axis=1)
        away = spill_of(gm._tape).moved_bytes if options else 0
        gm.backward(y.sum())
    return [x.grad._array.get(), w.grad._array.get()], away


@pytest.mark.parametrize("spill", ["host", "disk"])
def test_gpu_values_of_the_guard_are_moved(cupy_with_addresses, spill):
    found, away = on_gpu(cupy_with_addresses, budget=2 * A.nbytes, spill=spill)
    assert away >= 8 * A.nbytes
    assert_same(found, on_gpu(cupy_with_addresses)[0])


@pytest.mark.gpu
@pytest.mark.parametrize("spill", ["host", "disk"])
def test_gpu_values_are_moved(spill):
    cupy = cupy_on_a_gpu()
    found, away = on_gpu(cupy, budget=2 * A.nbytes, spill=spill)
    assert away >= 8 * A.nbytes
    assert_same(found, on_gpu(cupy)[0])
