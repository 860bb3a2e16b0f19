"""What a recording keeps, and that it is gone afterwards, whatever the user still holds."""

import ctypes
import gc
import os
import subprocess
import sys
import tracemalloc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

import gradmgr.numpy as gnp
from gradmgr import GradManager, errors, keep_freed_memory, no_grad, special, tensor
from gradmgr._engine.tensor import raw

N = 1000
BYTES = 8 * N


def arrays_kept(tape):
    """The distinct arrays, with axes, that a tape's entries keep."""

    def flat(values):
        for value in values:
            if isinstance(value, (tuple, list)):
                yield from flat(value)
            elif isinstance(raw(value), np.ndarray) and raw(value).ndim:
                yield raw(value)

    return list({id(a): a for a in flat(tape.entries)}.values())


def vector(seed=0):
    return tensor(np.random.default_rng(seed).uniform(0.5, 1.5, N))


# ---------------------------------------------------------------- what an op keeps

x_of, y_of, out_of = "x", "y", "out"

KEPT_OF_ONE = {
    "exp": (gnp.exp, [out_of]),
    "tanh": (gnp.tanh, [x_of, out_of]),
    "sqrt": (gnp.sqrt, [out_of]),
    "expm1": (gnp.expm1, [x_of]),
    "reciprocal": (gnp.reciprocal, [out_of]),
    "sin": (gnp.sin, [x_of]),
    "log": (gnp.log, [x_of]),
    "absolute": (gnp.absolute, [x_of]),
    "square": (gnp.square, [x_of]),
    "negative": (gnp.negative, []),
    "positive": (gnp.positive, []),
    "times a number": (lambda x: x * 3.0, []),
    "plus a number": (lambda x: x + 3.0, []),
    "by a number": (lambda x: x / 3.0, []),
    "to a number": (lambda x: x**3, [x_of]),
    "sum": (gnp.sum, []),
    "mean": (gnp.mean, []),
    "cumsum": (gnp.cumsum, []),
    "floor": (gnp.floor, []),
    "reshape": (lambda x: x.reshape(10, -1), []),
    "transpose": (lambda x: x.reshape(10, -1).T, []),
    "broadcast_to": (lambda x: gnp.broadcast_to(x, (3, N)), []),
    "slice": (lambda x: x[3:], []),
    "astype": (lambda x: x.astype("float32"), []),
    "concatenate": (lambda x: gnp.concatenate([x, x]), []),
    "stack": (lambda x: gnp.stack([x, x]), []),
    "split": (lambda x: gnp.split(x, 2)[0], []),
    "clone": (lambda x: x.clone(), []),
    "roll": (lambda x: gnp.roll(x, 3), []),
    "flip": (gnp.flip, []),
    "max": (gnp.max, [x_of]),
    "logsumexp": (special.logsumexp, [x_of]),
    "softmax": (special.softmax, [out_of]),
    "fft": (gnp.fft.fft, []),
    "rfft": (gnp.fft.rfft, []),
    "pad": (lambda x: gnp.pad(x, 3), []),
    "diff": (gnp.diff, []),
    "trapezoid": (gnp.trapezoid, []),
    "sort": (gnp.sort, ["other"]),  # the order
    "take": (lambda x: gnp.take(x, np.arange(N)), ["other"]),
    "clip": (lambda x: gnp.clip(x, 0.0, 1.0), [x_of]),
}

KEPT_OF_TWO = {
    # name: (op, both tracked, only x tracked, only y tracked)
    "add": (lambda x, y: x + y, [], [], []),
    "subtract": (lambda x, y: x - y, [], [], []),
    "multiply": (lambda x, y: x * y, [x_of, y_of], [y_of], [x_of]),
    "divide": (lambda x, y: x / y, [y_of, out_of], [y_of], [y_of, out_of]),
    "matmul": (lambda x, y: x @ y, [x_of, y_of], [y_of], [x_of]),
    "outer": (lambda x, y: gnp.outer(x[:300], y[:300]), [x_of, y_of], [y_of], [x_of]),
    "einsum": (lambda x, y: gnp.einsum("i,i->i", x, y), [x_of, y_of], [y_of], [x_of]),
    "concatenate": (lambda x, y: gnp.concatenate([x, y]), [], [], []),
    "iadd": (lambda x, y: (x + 0.0).__iadd__(y), [], [], []),
}


def check_kept(tape, expected, named):
    kept = arrays_kept(tape)
    names = [next((name for name, t in named.items() if np.shares_memory(raw(t), a)), "other") for a in kept]
    assert sorted(names) == sorted(expected)


@pytest.mark.parametrize("name", KEPT_OF_ONE)
def test_an_op_of_one_input_keeps_what_its_rule_names(name):
    function, expected = KEPT_OF_ONE[name]
    x = vector()
    gm = GradManager().attach(x)
    with gm:
        out = function(x)
        check_kept(gm._tape, expected, {x_of: x, out_of: out})
        assert gm._tape.nbytes() == BYTES * len(expected)


@pytest.mark.parametrize("tracked", ["both", "x", "y"])
@pytest.mark.parametrize("name", KEPT_OF_TWO)
def test_an_op_of_two_inputs_keeps_what_the_rules_of_the_tracked_ones_name(name, tracked):
    function, *expected = KEPT_OF_TWO[name]
    x, y = vector(0), vector(1)
    gm = GradManager().attach([x, y] if tracked == "both" else x if tracked == "x" else y)
    with gm:
        out = function(x, y)
        check_kept(gm._tape, expected[["both", "x", "y"].index(tracked)], {x_of: x, y_of: y, out_of: out})


def test_one_array_used_twice_is_kept_once():
    x = vector()
    gm = GradManager().attach(x)
    with gm:
        y = x * x + gnp.sin(x)
        assert gm._tape.nbytes() == BYTES
        assert y.shape == (N,)


def test_a_frozen_weight_keeps_no_activation():
    x, frozen = tensor(np.ones((20, 30))), tensor(np.ones((30, 40)))
    gm = GradManager().attach(x)
    with gm:
        activation = x + 1.0
        reference = weakref.ref(activation._array)
        y = activation @ frozen
        del activation
        assert reference() is None
        assert gm._tape.nbytes() == frozen.nbytes
        gm.backward(y, np.ones((20, 40)))
    np.testing.assert_array_equal(x.grad.numpy(), np.full((20, 30), 40.0))


def test_a_frozen_input_keeps_no_weight():
    x, w = tensor(np.ones((20, 30))), tensor(np.ones((30, 40)))
    gm = GradManager().attach(w)
    with gm:
        y = x @ w
        assert gm._tape.nbytes() == x.nbytes
        gm.backward(y, np.ones((20, 40)))
    np.testing.assert_array_equal(w.grad.numpy(), np.full((30, 40), 20.0))


def test_nothing_is_kept_of_what_is_not_tracked():
    x, c = vector(), vector(1)
    gm = GradManager().attach(x)
    with gm:
        d = gnp.exp(c) * c
        with no_grad():
            e = gnp.exp(x) * x
        assert gm._tape.entries == []
        assert d.shape == e.shape


def test_a_small_piece_does_not_pin_its_buffer():
    x = tensor(np.ones(3))
    gm = GradManager().attach(x)
    with gm:
        big = tensor(np.ones(100_000))
        reference = weakref.ref(big._array)
        y = x * big[:3]
        del big
        assert reference() is None
        gm.backward(y, np.ones(3))


def test_a_gradient_pins_no_larger_buffer():
    x, w = tensor(np.ones(3)), tensor(np.ones((3, 1)))
    gm = GradManager().attach([x, w])
    with gm:
        big = gnp.concatenate([x, np.ones(100_000)])
        gm.backward([big, gnp.broadcast_to(w, (3, 1000))], [np.ones(100_003), np.ones((3, 1000))])
    for t in (x, w):
        a = t.grad._array
        assert (a if a.base is None else a.base).nbytes == t.nbytes
        assert a.flags.writeable


# ---------------------------------------------------------------- gone afterwards


def program(x):
    """Some results to hold on to, and intermediates that only the history holds."""
    a = gnp.exp(x) * gnp.tanh(x)
    b = gnp.sin(a / (x + 1)) @ a
    return [a, b, a[2:], (a * b).sum()]


ENDS = {
    "backward": lambda gm, outputs: gm.backward(outputs[-1]),
    "release": lambda gm, outputs: gm.release(),
    "two backwards": lambda gm, outputs: (gm.backward(outputs[-1], retain=True), gm.backward(outputs[-1])),
    "y=None": lambda gm, outputs: gm.backward(None),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_held_after_the_end_while_all_outputs_live(end):
    x = vector()
    gm = GradManager().attach(x)
    gm.record()
    tape = gm._tape
    outputs = program(x)
    users = {id(t._array) for t in (x, *outputs)}
    references = [weakref.ref(a) for a in arrays_kept(tape) if id(a) not in users]
    assert len(references) >= 4
    assert tape.nbytes() >= 4 * BYTES
    ENDS[end](gm, outputs)
    assert [ref for ref in references if ref() is not None] == []
    assert tape.nbytes() == 0
    assert len(tape.entries) == 0
    assert all(t.size for t in outputs)


def test_nothing_is_held_after_an_exception_in_the_block():
    x = vector()
    gm = GradManager().attach(x)
    references = []

    def fails():
        with gm:
            program(x)
            references.extend(weakref.ref(a) for a in arrays_kept(gm._tape) if a is not x._array)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert len(references) >= 4
    assert [ref for ref in references if ref() is not None] == []


def test_nothing_is_held_after_a_failed_backward():
    x = vector()

    def fails(t, g):
        raise ZeroDivisionError

    gm = GradManager().attach(x, fails)
    gm.record()
    tape = gm._tape
    outputs = program(x)
    with pytest.raises(ZeroDivisionError):
        gm.backward(outputs[-1])
    assert tape.nbytes() == 0
    assert x.grad is None


def test_nothing_is_held_when_a_recording_manager_is_dropped():
    x = vector()
    gm = GradManager().attach(x)
    gm.record()
    y = gnp.sin(gnp.exp(x))
    references = [weakref.ref(a) for a in arrays_kept(gm._tape)]
    assert len(references) == 1
    del gm
    assert references[0]() is None
    assert y.shape == (N,)


def test_the_tape_itself_is_freed():
    x = vector()
    gm = GradManager().attach(x)
    outputs = []
    for _ in range(3):
        with gm:
            outputs += program(x)
            gm.backward(outputs[-1])
    live = [o for o in gc.get_objects() if type(o).__name__ == "Tape"]
    # A result may name the closed tape it was made on; that holds no array.
    assert all(not tape.open and len(tape.entries) == 0 and not tape.leaf_ids and not tape.leaves for tape in live)


@pytest.mark.parametrize("retain", [False, True])
def test_a_run_that_has_ended_holds_as_much_as_one_without_recording(retain):
    """Measured by allocation: after the end no more is held than a run without recording holds."""

    def held(record):
        x = vector()
        gm = GradManager().attach(x)
        tracemalloc.start()
        try:
            if record:
                gm.record()
            outputs = program(x)
            if record:
                gm.backward(outputs[-1], retain=retain)
                gm.release()
                x.grad = None
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(outputs) == 4
        return size

    held(True)  # what is made once, such as error texts' source lines, is made here
    assert held(True) - held(False) < BYTES / 4


# ---------------------------------------------------------------- while backward goes


def test_memory_falls_as_backward_goes():
    """At the callback of the k-th weight, only the k activations that the entries before its own keep are left."""
    count, alive = 12, []
    references = []

    def count_alive(t, g):
        alive.append(sum(ref() is not None for ref in references))
        return g

    weights = [tensor(np.full(N, 1.01)) for _ in range(count)]
    gm = GradManager().attach(weights, count_alive)
    with gm:
        y = tensor(np.ones(N)) * 1.0
        for w in weights:
            references.append(weakref.ref(y._array))
            y = y * w
        gm.backward(y.sum())
    assert alive == list(range(count))[::-1]


def test_backward_needs_a_few_arrays_however_long_the_chain():
    size = 100_000

    def peak(length):
        x = tensor(np.full(size, 0.5))
        gm = GradManager().attach(x)
        with gm:
            y = x
            for _ in range(length):
                y = gnp.sin(y)
            loss = y.sum()
            del y
            tracemalloc.start()
            try:
                gm.backward(loss)
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        return most

    assert peak(100) < 6 * 8 * size
    assert peak(100) < peak(10) + 8 * size


def test_retain_keeps_and_the_next_backward_frees():
    x = vector()
    gm = GradManager().attach(x)
    with gm:
        tape = gm._tape
        y = program(x)[-1]
        before = tape.nbytes()
        gm.backward(y, retain=True)
        assert tape.nbytes() == before
        gm.backward(y)
        assert tape.nbytes() == 0


# ---------------------------------------------------------------- dead work is dropped from an open tape

DROPPED = {
    "one op": lambda x: x * 2.0,
    "an op that keeps": gnp.exp,
    "a chain": lambda x: gnp.sum(gnp.sin(gnp.exp(x) * x)),
    "a write in place": lambda x: (x * 2.0).__setitem__(0, x[1]),
    "a loop of its own": lambda x: sum((x * k for k in range(3)), start=x),
}


@pytest.mark.parametrize("managers", [1, 2])
@pytest.mark.parametrize("name", DROPPED)
def test_dropped_results_need_no_memory(name, managers):
    x = vector()
    gms = [GradManager().attach(x) for _ in range(managers)]
    for gm in gms:
        gm.record()
    held = []
    for k in range(10_000 if managers == 1 else 2_000):
        DROPPED[name](x)
        if k % 1000 == 0:
            held.append(gnp.sin(x))  # alive: stays, with what it needs
        for gm in gms:
            assert len(gm._tape.entries) < 2_000
            if k % 100 == 0:
                assert gm._tape.nbytes() < 2_000 * BYTES
    gms[0].backward(held, [np.ones(N)] * len(held))
    np.testing.assert_allclose(x.grad.numpy(), len(held) * np.cos(x.numpy()))
    for gm in gms:
        gm.release()


def test_ten_thousand_dropped_results_in_bytes():
    x = vector()
    gm = GradManager().attach(x)
    with gm:
        tracemalloc.start()
        try:
            for _ in range(10_000):  # 80 MB if they were kept
                gnp.exp(x)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        gm.backward((x * x).sum())
    assert most < 600 * BYTES


def test_what_is_needed_by_something_alive_is_not_dropped():
    x = tensor(np.full(4, 0.1))
    gm = GradManager().attach(x)
    with gm:
        y = x
        for _ in range(2_000):
            y = gnp.sin(y) + 0.001  # a live chain, the names of whose middle are gone
            x * 3.0
        gm.backward(y.sum())
    value, slope = 0.1, 1.0
    for _ in range(2_000):
        value, slope = np.sin(value) + 0.001, slope * np.cos(value)
    np.testing.assert_allclose(x.grad.numpy(), np.full(4, slope), rtol=1e-9)


# ---------------------------------------------------------------- freed memory


def in_a_new_process(program):
    """What a program prints, of which nothing may be left in this process."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)  # noqa: S603  # our own program
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# The MB that a process has gained when it has freed 200 of them, and when it has made and freed some more.
FREEING = """
import numpy, gradmgr
{call}
def resident():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1000
before = resident()
many = [numpy.ones(2_500_000) for _ in range(10)]
assert resident() - before > 190
del many
print(resident() - before)
for _ in range(20):
    numpy.ones(2_500_000) + 1
print(resident() - before)
"""


@pytest.mark.skipif(not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="needs glibc")
def test_freed_memory_is_kept_when_asked_for():
    first, later = map(int, in_a_new_process(FREEING.format(call="gradmgr.keep_freed_memory()")))
    assert first > 190  # MB: all that was freed
    assert later < 250  # and no more is taken for what comes after
    assert int(in_a_new_process(FREEING.format(call=""))[0]) < 50  # without a call


def test_where_there_is_no_glibc_an_error_says_so(monkeypatch):
    monkeypatch.setattr(os, "confstr_names", {}, raising=False)
    with pytest.raises(errors.AllocatorError, match="another C library"):
        keep_freed_memory()


def test_a_refusal_of_the_allocator_is_an_error(monkeypatch):
    monkeypatch.setattr(os, "confstr_names", {"CS_GNU_LIBC_VERSION": 2}, raising=False)
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda what, value: 0))
    with pytest.raises(errors.AllocatorError, match=r"glibc 2\.36 refused"):
        keep_freed_memory()
