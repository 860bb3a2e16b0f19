"""A writer keeps other threads from the tensor that it writes to; nobody notices but by waiting."""

import copy
import sys
import sysconfig
import threading

import numpy as np
import pytest
from helpers import in_a_thread

import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, nn, tensor
from gradmgr._arrays import memory
from gradmgr._engine import mutation, write_lock


def address(t):
    return t.numpy().ctypes.data


class Meanwhile:
    """Lets another thread read a tensor in the middle of a write, and keeps what that read and its bits."""

    def __init__(self, read):
        self.read = read
        self.held = self.bits = None
        self.thread = threading.Thread(target=self._work)

    def _work(self):
        self.held = self.read()
        self.bits = np.asarray(self.held).tobytes()

    def begin(self):
        self.thread.start()
        self.thread.join(0.1)  # it need not come to its end: it may have to wait for the write

    def check(self):
        self.thread.join()
        assert np.asarray(self.held).tobytes() == self.bits


@pytest.fixture
def during_a_write(monkeypatch):
    """Return a function that begins a Meanwhile when an index is written to next, before NumPy writes."""
    waiting = []
    put = mutation._put

    def put_later(*args, **keywords):
        while waiting:
            waiting.pop().begin()
        return put(*args, **keywords)

    monkeypatch.setattr(mutation, "_put", put_later)
    return waiting.append


READS = {
    "detach": lambda x: x.detach().numpy(),
    "numpy": lambda x: x.numpy(),
    "slice": lambda x: x[1:].numpy(),
    "transpose": lambda x: x.T.numpy(),
    "dlpack": np.from_dlpack,
    "copy": lambda x: copy.copy(x).numpy(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("recording", [False, True])
def test_what_another_thread_takes_in_the_middle_of_a_write_does_not_change(during_a_write, read, recording):
    x = tensor(np.zeros((50, 50)))
    gm = GradManager().attach(tensor(1.0))
    meanwhile = Meanwhile(lambda: read(x))
    if recording:
        gm.record()
    during_a_write(meanwhile)
    x[3] = 7.0
    gm.release()
    meanwhile.check()
    assert x[3, 0].item() == 7.0


def test_what_another_thread_uses_for_a_derivative_in_the_middle_of_a_write_does_not_change(during_a_write):
    x, own = tensor(np.zeros(500)), tensor(np.ones(500))
    gm = GradManager().attach(own)

    def gradient():
        with gm:
            gm.backward((own * x).sum())
        return own.grad.numpy()

    meanwhile = Meanwhile(gradient)
    during_a_write(meanwhile)
    x[...] = 7.0
    meanwhile.check()
    assert set(own.grad.tolist()) == {7.0}


def test_the_buffer_is_written_in_place_while_another_thread_records():
    x = tensor(np.zeros(5000))
    before = address(x)
    recording, over = threading.Event(), threading.Event()

    def record():
        with GradManager().attach(x):
            recording.set()
            over.wait()

    thread = threading.Thread(target=record)
    thread.start()
    recording.wait()
    try:
        x[7] = 1.0
        after_one = address(x)
        x += 1.0
    finally:
        over.set()
        thread.join()
    assert (x[7].item(), x[8].item()) == (2.0, 1.0)
    stays = not sysconfig.get_config_var("Py_GIL_DISABLED")  # without the GIL it is copied while other threads run
    assert stays == (after_one == before)
    assert not stays or address(x) == before


def test_nothing_is_held_while_other_threads_run_without_the_gil(monkeypatch):
    monkeypatch.setattr(write_lock, "_FREE_THREADED", True)
    x = tensor(np.zeros(500))

    def hold():
        with write_lock.lock:
            held = write_lock.hold(x) is not None
            if held:
                write_lock.release(x)
            return held, write_lock.hold_all([])

    alone = len(sys._current_frames()) == 1
    assert hold() == (alone, alone)
    assert in_a_thread(hold) == (False, False)
    assert type(x) is Tensor


@pytest.mark.parametrize("make", [tensor, nn.Parameter], ids=["Tensor", "Parameter"])
def test_the_class_of_a_tensor_is_the_same_after_a_write(make):
    x = make(np.zeros(5000))
    cls = type(x)
    for write in (
        lambda: x.__setitem__(0, 1.0),
        lambda: x.__iadd__(1.0),
        lambda: x.exp_(),
        lambda: x.__setitem__(slice(None), x[::-1]),
    ):
        write()
        assert type(x) is cls
    with pytest.raises(ValueError, match="could not broadcast"):
        x[:3] = np.ones(4)
    assert type(x) is cls


def test_a_tensor_that_is_written_to_looks_as_always_to_the_writer():
    class Own(nn.Parameter):
        """A class of a user's own, with further fields."""

        def __init__(self, data):
            super().__init__(data)
            self.more = 5

    for x in (tensor([1.0, 2.0]), nn.Parameter([1.0, 2.0]), Own([1.0, 2.0])):
        cls = type(x)
        with write_lock.lock:
            own = write_lock.hold(x)
            assert own is x._array
            assert write_lock.hold(x) is None  # a write within the write goes into new memory
            assert isinstance(x, cls)
            assert (type(x).__name__, type(x).__qualname__, type(x).__module__) == (
                cls.__name__,
                cls.__qualname__,
                cls.__module__,
            )
            assert x.tolist() == [1.0, 2.0]
            assert (x * x + gnp.exp(x)).shape == (2,)
            assert repr(x).startswith(("Tensor(", "Parameter("))
            assert type(copy.copy(x)) in (Tensor, nn.Parameter)
            assert getattr(x, "more", 5) == 5
            x[0] = 4.0
            write_lock.release(x)
            del own
        assert type(x) is cls
        assert x.tolist() == [4.0, 2.0]


def test_a_write_that_an_exception_cut_short_leaves_a_tensor_that_all_threads_can_use():
    x = tensor(np.zeros(5))
    with write_lock.lock:
        write_lock.hold(x)  # and no release
    assert in_a_thread(x.tolist) == [0.0] * 5
    assert type(x) is Tensor
    with write_lock.lock:
        write_lock.hold(x)
    x[0] = 1.0
    assert type(x) is Tensor
    assert x.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_what_something_refers_to_is_not_held():
    x = tensor(np.zeros(500))
    before = address(x)
    for hold in (lambda: x.detach(), lambda: x.numpy(), lambda: x[1:], lambda: memoryview(x.numpy())):
        held = hold()
        with write_lock.lock:
            assert write_lock.hold(x) is None
        assert type(x) is Tensor
        del held
    with write_lock.lock:
        assert write_lock.hold(x) is x._array
        write_lock.release(x)
    assert address(x) == before


def test_an_array_that_another_thread_replaces_before_its_references_are_counted_is_not_written_to(monkeypatch):
    x = tensor(np.zeros(500))
    held = x._array

    def count(array):
        x._array = np.ones(500)  # from here on `held` counts as the reference of the tensor did
        return True

    with write_lock.lock, monkeypatch.context() as patch:
        patch.setattr(memory, "is_sole", count)
        assert write_lock.hold(x) is None
    assert type(x) is Tensor
    x += 1.0
    assert not held.any()
    assert x[0].item() == 2.0
