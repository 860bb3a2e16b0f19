"""save and load: every value is loaded as it was saved, a kill leaves the old file, a mismatch is named."""

import contextlib
import copy
import io
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import ml_dtypes
import numpy as np
import pytest

import gradmgr
from gradmgr import Tensor, errors, nn, optim, serialization, tensor

safetensors = pytest.importorskip("safetensors", reason="the format under test; npz is tried without it")
safetensors_numpy = pytest.importorskip("safetensors.numpy", reason="the format under test; npz is tried without it")


@pytest.fixture(params=["safetensors", "npz"])
def written(request, monkeypatch):
    """Both formats: npz is what is written where safetensors is not installed."""
    if request.param == "npz":
        monkeypatch.setattr(serialization, "_import_safetensors", lambda: None)
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


def saved_and_loaded(obj, path):
    gradmgr.save(obj, path)
    return gradmgr.load(path)


def assert_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, (Tensor, np.ndarray, np.generic)):
        one, other = (t.numpy() if isinstance(t, Tensor) else np.asarray(t) for t in (found, wanted))
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert one.tobytes() == other.tobytes()
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert repr(found) == repr(wanted)


# ---------------------------------------------------------------- what is loaded

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", ">f4", ">i8", ">c16", ml_dtypes.bfloat16),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)], ids=str)
def test_arrays_of_every_dtype_and_shape(written, path, dtype, shape):
    values = np.random.default_rng(0).normal(0, 20, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * values[::-1] if shape else np.asarray(values + 2j)
    a = np.asarray(np.abs(values) if np.dtype(dtype).kind == "u" else values).astype(dtype)
    assert_same(saved_and_loaded({"x": a}, path), {"x": a})
    if a.dtype.isnative:
        assert_same(saved_and_loaded(tensor(a), path), tensor(a))


def test_special_values_keep_their_bits(written, path):
    a = np.array([0x7FF8000000000001, 0xFFF8000000000123, 0x8000000000000000, 0x7FF0000000000000], np.uint64)
    assert_same(saved_and_loaded([a.view(np.float64), a.view(np.complex128)], path), [a.view("f8"), a.view("c16")])


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[::-1, ::2], lambda a: a[:, 1], lambda a: a[1:1]])
def test_strides_do_not_matter(written, path, view):
    a = np.arange(12.0).reshape(3, 4)
    assert_same(saved_and_loaded([view(a), view(a + 1j)], path), [view(a), view(a + 1j)])
    broadcast = np.broadcast_to(np.float32(2), (3, 2))
    assert_same(saved_and_loaded(broadcast, path), np.full((3, 2), np.float32(2)))


@pytest.mark.parametrize(
    "obj",
    [
        *(None, True, False, 0, -1, 2**200, 0.1, -0.0, 1e-320, float("nan"), float("-inf"), 1 + 2j, "", "ü\n\0", "nan"),
        *(complex("nan+infj"), [], {}, (), [[], {}, ()], [(1, [2, {"a": (3,)}])], np.float32(1.5), np.int8(3)),
        *({"$": 1}, {"$": "tensor"}, {"a": {"$": {"$": [1]}}}, {1: "a", "1": "b", None: 2, 1.5: 3, (1, "x"): 4}),
        *({True: 1, "": 2}, np.bool_(True), np.complex64(1j)),
    ],
    ids=repr,
)
def test_what_is_no_array(written, path, obj):
    assert_same(saved_and_loaded(obj, path), obj)


def test_keys_that_look_alike_do_not_meet(written, path):
    a = [np.full(2, float(k)) for k in range(14)]
    obj = {
        "a": {"b.c": a[0], "b": {"c": a[1]}},
        "a.b": {"c": a[2]},
        "a.b.c": a[3],
        "a.b.c~2": a[4],
        1: a[5],
        "1": a[6],
        "": a[7],
        "../up": a[8],
        "/root": a[9],
        "%2Froot": a[10],
        "__gradmgr__": a[11],
        "__metadata__": a[12],
        "file": a[13],
        "nul\0ü😀\n": a[0] * 2,
    }
    assert_same(saved_and_loaded(obj, path), obj)


def test_an_array_at_two_places_is_stored_once_and_stays_one(written, path):
    w = tensor(np.zeros(10_000))
    found = saved_and_loaded({"a": w, "b": [w]}, path)
    assert found["a"] is found["b"][0]
    assert path.stat().st_size < 100_000


def test_what_was_loaded_has_memory_of_its_own(written, path):
    found = saved_and_loaded({"w": tensor(np.ones(10_000)), "a": np.zeros(3)}, path)
    before = found["w"]._array.ctypes.data
    found["w"] += 1
    found["a"][0] = 5
    assert found["w"]._array.ctypes.data == before  # written in place: it is held nowhere else
    assert saved_and_loaded(found, path)["a"].tolist() == [5, 0, 0]


def generators():
    return [
        *[np.random.Generator(getattr(np.random, name)(3)) for name in serialization._BIT_GENERATORS],
        np.random.PCG64(4),
        np.random.RandomState(5),
        random.Random(6),  # noqa: S311  # it is what is tested
    ]


def draw(rng):
    if isinstance(rng, np.random.BitGenerator):
        return rng.random_raw(3).tolist()
    if isinstance(rng, random.Random):
        return [rng.gauss(0, 1), rng.random(), rng.randrange(9)]
    integers = rng.randint if isinstance(rng, np.random.RandomState) else rng.integers
    return [rng.normal(), rng.random(), *integers(0, 9, 3, "i4")]


@pytest.mark.parametrize("k", range(8))
def test_generators_go_on_where_they_were(written, path, k):
    rng = generators()[k]
    draw(rng)
    gradmgr.save({"rng": rng}, path)
    wanted = draw(rng), draw(rng)
    made = gradmgr.load(path)["rng"]
    assert type(made) is type(rng)
    assert (draw(made), draw(made)) == wanted
    other = generators()[k]
    assert gradmgr.load(path, into={"rng": other}) == {}
    assert (draw(other), draw(other)) == wanted


def test_a_half_used_word_and_a_second_normal_are_kept(path):
    new, old = np.random.default_rng(0), np.random.RandomState(0)
    python = random.Random(0)  # noqa: S311  # it is what is tested
    new.integers(0, 5, dtype=np.uint16)
    old.randn()
    python.gauss(0, 1)
    gradmgr.save([new, old, python], path)
    wanted = new.integers(0, 9, 5, np.uint16).tolist(), old.randn(), python.gauss(0, 1)
    new, old, python = gradmgr.load(path)
    assert (new.integers(0, 9, 5, np.uint16).tolist(), old.randn(), python.gauss(0, 1)) == wanted


# ---------------------------------------------------------------- the file


def test_other_tools_read_the_arrays_by_their_names(path):
    model = Stateful({"0.weight": tensor(np.ones((2, 3), "f4")), "0.bias": tensor([1.0])})
    gradmgr.save({"model": model, "half": tensor(np.ones(2, ml_dtypes.bfloat16)), "c": np.array([1 + 2j])}, path)
    found = safetensors_numpy.load_file(path)
    assert sorted(found) == ["c", "half", "model.0.bias", "model.0.weight"]
    assert found["model.0.weight"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert found["c"].tolist() == [[1, 2]]


def test_numpy_reads_the_arrays_of_an_npz(path, monkeypatch):
    monkeypatch.setattr(serialization, "_import_safetensors", lambda: None)
    gradmgr.save({"model": {"0.weight": tensor(np.ones((2, 3), "f4"))}, "n": [np.arange(3)]}, path)
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
        assert sorted(found) == ["__gradmgr__", "model.0.weight", "n.0"]
        assert found["n.0"].tolist() == [0, 1, 2]
        assert json.loads(found["__gradmgr__"].tobytes())["version"] == 1


def test_the_format_is_found_by_the_content(tmp_path, monkeypatch):
    gradmgr.save({"a": 1}, tmp_path / "one.npz")
    with monkeypatch.context() as without:
        without.setattr(serialization, "_import_safetensors", lambda: None)
        gradmgr.save({"a": 2}, tmp_path / "two.safetensors")
        assert gradmgr.load(tmp_path / "two.safetensors") == {"a": 2}
        with pytest.raises(errors.MissingDependencyError, match="pip install safetensors"):
            gradmgr.load(tmp_path / "one.npz")
    assert gradmgr.load(str(tmp_path / "one.npz")) == {"a": 1}
    assert gradmgr.load(tmp_path / "two.safetensors") == {"a": 2}


def test_a_missing_safetensors_is_noticed(path):
    """In an interpreter where importing it fails, not by a patch of ours."""
    code = (
        "import sys; sys.modules['safetensors'] = None\nimport gradmgr, numpy\n"
        "gradmgr.save({'a': numpy.arange(3)}, sys.argv[1]); assert gradmgr.load(sys.argv[1])['a'].sum() == 3"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)  # noqa: S603  # our own interpreter
    assert path.read_bytes().startswith(b"PK")


def test_the_same_object_gives_the_same_bytes(written, tmp_path):
    for name in ("a", "b"):
        gradmgr.save({"w": tensor([1.0]), "rng": np.random.default_rng(0)}, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_permissions_and_links_stay(written, path, tmp_path):
    umask = os.umask(0o027)
    try:
        gradmgr.save(1, path)
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o604)
    (tmp_path / "link").symlink_to(path)
    gradmgr.save(2, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert gradmgr.load(path) == 2
    assert path.stat().st_mode & 0o777 == 0o604


def test_a_missing_folder_and_a_folder_are_the_builtin_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        gradmgr.save(1, tmp_path / "nowhere" / "a")
    with pytest.raises(IsADirectoryError):
        gradmgr.save(1, tmp_path)
    with pytest.raises(FileNotFoundError):
        gradmgr.load(tmp_path / "a")
    with pytest.raises(TypeError):
        gradmgr.save(1, 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_what_is_no_regular_file_is_not_replaced(written, path):
    os.mkfifo(path)
    with pytest.raises(OSError, match="no regular file"):
        gradmgr.save(1, path)
    assert path.is_fifo()
    assert list(path.parent.iterdir()) == [path]


def test_a_name_may_be_as_long_as_the_system_allows(written, tmp_path):
    for name in ("n" * 255, "\u00e9" * 127):  # 255 and 254 bytes
        gradmgr.save({"k": 7}, tmp_path / name)
        assert gradmgr.load(tmp_path / name) == {"k": 7}
        (tmp_path / name).unlink()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="file handles are limited by POSIX's means")
def test_without_a_free_file_handle_the_old_file_stays_and_no_other(written, path):
    import resource

    gradmgr.save("old", path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            gradmgr.save("new", path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert gradmgr.load(path) == "old"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("keep", [0, 1, 8, 9, 30, 0.3, 0.7, -1])
def test_a_file_cut_short_is_named(written, path, keep):
    gradmgr.save({"w": np.arange(1000.0)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(errors.StateError, match=r"run\.ckpt"):
        gradmgr.load(path)


def test_every_flipped_bit_is_found(written, path):
    """Anywhere in the file: either an error in words, or a bit that means nothing."""
    obj = {"w": np.arange(20.0), "step": 7}
    gradmgr.save(obj, path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    caught = 0
    for place in rng.integers(0, len(whole), 400):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            found = gradmgr.load(path)
        except errors.StateError:
            caught += 1
        else:
            assert_same(found, obj)
    assert caught > 200


def archive():
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: safetensors_numpy.save_file({"a": np.zeros(3)}, p), "none that gradmgr.save wrote"),
        (lambda p: p.write_bytes(archive()), "none that gradmgr.save wrote"),
        (lambda p: p.write_bytes(b"\x93NUMPY" + b"\0" * 90), "neither"),
        (lambda p: p.write_text("hello, world"), "neither"),
        (lambda p: p.write_bytes(b""), "neither"),
        (lambda p: p.write_bytes(b"PK\x03\x04" + b"\0" * 50), "cannot be read"),
    ],
)
def test_files_of_other_programs_are_refused(path, make, text):
    make(path)
    with pytest.raises(errors.StateError, match=text) as raised:
        gradmgr.load(path)
    assert "run.ckpt" in str(raised.value)


def test_a_newer_version_is_refused(written, path, monkeypatch):
    monkeypatch.setattr(serialization, "_VERSION", 2)
    gradmgr.save(1, path)
    monkeypatch.undo()
    with pytest.raises(errors.StateError, match="version 2"):
        gradmgr.load(path)


def test_what_a_text_names_is_not_called(path, monkeypatch):
    """A file made by others cannot reach what it should not."""
    monkeypatch.setattr(serialization, "_import_safetensors", lambda: None)
    for kind in ("read", "make_once", "_class__", "nonsense"):
        serialization._write_file(str(path), {}, json.dumps({"version": 1, "value": {"$": kind}}))
        with pytest.raises(errors.StateError, match="is not known"):
            gradmgr.load(path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "a.b.1 is builtins.object"),
        ({1, 2}, "builtins.set"),
        (np.array(["x"]), "dtype <U1"),
        (np.array([None]), "dtype object"),
        (np.zeros(2, np.longdouble), "dtype longdouble|dtype float128"),
        (np.zeros(2, "M8[s]"), "dtype datetime64"),
        ({(1, object()): 2}, "key of type object"),
        (random.SystemRandom(), "SystemRandom"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_written(path, value, text):
    gradmgr.save("old", path)
    with pytest.raises(TypeError, match=text):
        gradmgr.save({"a": {"b": [1, value]}}, path)
    assert gradmgr.load(path) == "old"
    assert len(list(path.parent.iterdir())) == 1


def test_a_container_that_contains_itself_is_refused(path):
    obj = {"a": []}
    obj["a"].append(obj)
    with pytest.raises(ValueError, match=r"a\.0 contains itself"):
        gradmgr.save(obj, path)


def test_a_failed_write_leaves_the_old_file_and_no_other(written, path, monkeypatch):
    gradmgr.save("old", path)

    def full(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        gradmgr.save("new", path)
    assert gradmgr.load(path) == "old"
    assert [p.name for p in path.parent.iterdir()] == ["run.ckpt"]


def test_what_safetensors_says_of_a_full_disk_is_an_oserror(path, monkeypatch):
    gradmgr.save("old", path)
    library = serialization._import_safetensors()

    def full(*args):
        raise library.SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(library.numpy, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        gradmgr.save("new", path)
    monkeypatch.undo()
    assert gradmgr.load(path) == "old"
    assert [p.name for p in path.parent.iterdir()] == ["run.ckpt"]


SAVER = """
import sys, numpy, gradmgr
if sys.argv[2] == "npz":
    from gradmgr import serialization
    serialization._import_safetensors = lambda: None
k = 0
while True:
    k += 1
    gradmgr.save({"step": k, "w": [numpy.full(1_000_000, float(k)) for _ in range(2)]}, sys.argv[1])
    print(k, flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")
@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_kill_9_in_the_middle_of_a_save_leaves_a_whole_file(path, kind):
    """The saver writes 16 MB over and over; it is killed at a random moment, and again."""
    rng, in_the_middle = np.random.default_rng(), 0
    for _ in range(4):
        command = [sys.executable, "-c", SAVER, str(path), kind]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as saver:  # noqa: S603  # our own interpreter
            saver.stdout.readline()  # one file is whole
            time.sleep(rng.uniform(0, 0.1))
            saver.send_signal(signal.SIGKILL)
        found = gradmgr.load(path)
        assert all((w == found["step"]).all() for w in found["w"])
        for left in path.parent.glob(".run.ckpt.*.tmp"):
            in_the_middle += 1
            shutil.rmtree(left)
    assert in_the_middle > 0  # else nothing was tried


# ---------------------------------------------------------------- into objects


class Stateful:
    """Anything with state_dict; `refuse` makes its load_state_dict fail."""

    def __init__(self, state, refuse=None):
        self.state, self.refuse, self.loads = state, refuse, 0

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.loads += 1
        if self.refuse and state.get("lr") != self.state.get("lr"):
            raise errors.StateError(self.refuse)
        self.state = dict(state)


def test_into_loads_all_and_returns_the_rest(written, path):
    w, a, rng = tensor([1.0, 2.0]), np.arange(3), np.random.default_rng(1)
    model, opt = Stateful({"w": tensor([5.0])}), Stateful({"lr": 0.1, "state": {0: {"m": tensor([1.0])}}})
    obj = {"w": w, "more": {"a": a, "note": "x"}, "rng": rng, "model": model, "opt": opt, "step": 3, "l": (w, a)}
    gradmgr.save(obj, path)
    wanted = rng.random()
    w2, a2, rng2 = tensor([0.0, 0.0]), np.zeros(3, int), np.random.default_rng(9)
    model2, opt2 = Stateful({"w": tensor([0.0])}), Stateful({"lr": 0.0, "state": {}})
    kept, buffer = w2, a2
    rest = gradmgr.load(
        path, into={"w": w2, "more": {"a": a2}, "rng": rng2, "model": model2, "opt": opt2, "l": [tensor(w), a2]}
    )
    assert rest == {"more": {"note": "x"}, "step": 3}
    assert w2 is kept
    assert w2.tolist() == [1.0, 2.0]
    assert buffer.tolist() == [0, 1, 2]
    assert rng2.random() == wanted
    assert_same(model2.state, model.state)
    assert_same(opt2.state, opt.state)


def test_every_misfit_is_listed_and_nothing_changes(written, path):
    saved = {
        "w": tensor([1.0, 2.0]),
        "a": np.arange(3),
        "rng": np.random.default_rng(1),
        "model": Stateful({"0.weight": tensor(np.ones((3, 4))), "0.bias": tensor([1.0]), "old": tensor([1.0])}),
        "opt": Stateful({"lr": 0.1, "groups": []}),
        "l": [1, 2],
        "step": 3,
    }
    gradmgr.save(saved, path)
    good, w, a = tensor([7.0, 7.0]), tensor([7.0, 7.0, 7.0]), np.zeros(3, np.float32)
    rng, other = np.random.Generator(np.random.MT19937(0)), np.random.default_rng(5)
    model = Stateful({"0.weight": tensor(np.ones((4, 3))), "0.bias": tensor([1.0], "float32"), "new": tensor([1.0])})
    opt, fine = Stateful({"lr": 0.5, "groups": [1]}, refuse="2 groups, not 1"), Stateful({"lr": 0.7, "n": []})
    state = rng.bit_generator.state["state"]["pos"], other.bit_generator.state
    with pytest.raises(errors.StateError) as raised:
        gradmgr.load(
            path,
            into={
                "w": w,
                "a": a,
                "rng": rng,
                "model": model,
                "opt": opt,
                "l": [tensor(1.0)],
                "step": other,
                "gone": tensor(1.0),
            },
        )
    text = str(raised.value)
    for line in (
        "w: the file holds shape (2,) and dtype float64; to be loaded into is shape (3,)",
        "a: the file holds shape (3,) and dtype int64; to be loaded into is shape (3,) and dtype float32",
        "rng: the file holds the state of a Generator PCG64; to be loaded into is a Generator MT19937",
        "model.0.weight: the file holds shape (3, 4)",
        "model.0.bias: the file holds shape (1,) and dtype float64",
        "model.new: is not in the file",
        "model.old: is in the file",
        "opt: StateError: 2 groups, not 1",
        "l: the file holds a list of 2",
        "step: the file holds a int, not a generator",
        "gone: is not in the file",
    ):
        assert f"\n  {line}" in text, (line, text)
    assert str(path) in text
    assert text.count("\n  ") == 11
    assert w.tolist() == [7.0] * 3
    assert a.tolist() == [0, 0, 0]
    assert (rng.bit_generator.state["state"]["pos"], other.bit_generator.state) == state
    assert (model.loads, list(model.state)) == (0, ["0.weight", "0.bias", "new"])
    # what was loaded on trial before another failed is put back
    with pytest.raises(errors.StateError, match="2 groups"):
        gradmgr.load(path, into={"w": good, "opt": opt, "model": fine})
    assert good.tolist() == [7.0, 7.0]
    assert fine.state == {"lr": 0.7, "n": []}


def test_a_failure_in_the_last_object_undoes_the_first(path):
    first, second = Stateful({"lr": 1.0, "n": [1]}), Stateful({"lr": 2.0, "n": [2]})
    gradmgr.save([first, second], path)
    one, two = Stateful({"lr": 8.0, "n": [8]}), Stateful({"lr": 9.0, "n": [9]}, refuse="no")
    with pytest.raises(errors.StateError, match=r"\n  1: StateError: no"):
        gradmgr.load(path, into=[one, two])
    assert one.state == {"lr": 8.0, "n": [8]}
    assert one.loads == 2


@pytest.mark.parametrize("value", [3, "x", None, object(), np.float64(1)])
def test_what_cannot_be_loaded_into_is_a_type_error(path, value):
    w = tensor([1.0])
    gradmgr.save({"w": tensor([2.0]), "x": 3}, path)
    with pytest.raises(TypeError, match="into holds at x"):
        gradmgr.load(path, into={"w": w, "x": value})
    assert w.tolist() == [1.0]


def test_a_read_only_array_is_a_type_error(path):
    a, w = np.zeros(3), tensor([1.0])
    a.flags.writeable = False
    gradmgr.save({"w": tensor([2.0]), "a": np.ones(3)}, path)
    with pytest.raises(TypeError, match="read-only"):
        gradmgr.load(path, into={"w": w, "a": a})
    assert w.tolist() == [1.0]


def test_a_tensor_loaded_into_while_recorded_is_a_constant_from_there(path):
    w = tensor([2.0])
    gradmgr.save({"w": tensor([5.0])}, path)
    gm = gradmgr.GradManager().attach(w)
    with gm:
        y = w * w
        gradmgr.load(path, into={"w": w})
        gm.backward(y + w)
    assert w.tolist() == [5.0]
    assert w.grad.tolist() == [4.0]


def test_a_wrong_device_is_the_callers_error(path):
    gradmgr.save({"w": tensor([5.0])}, path)
    with pytest.raises(ValueError, match="device 'gpu'") as raised:
        gradmgr.load(path, device="gpu")
    assert not isinstance(raised.value, errors.StateError)


# ---------------------------------------------------------------- a training run


class Run:
    """A model with buffers and dropout, an optimiser with a schedule, and random batches: all there is to resume."""

    def __init__(self, optimizer, seed):
        self.rng = np.random.default_rng(seed)
        make = {"rng": self.rng, "dtype": "float64"}
        self.model = nn.Sequential(
            nn.Linear(5, 8, **make),
            nn.BatchNorm1d(8, dtype="float64"),
            nn.Dropout(0.3, rng=self.rng),
            nn.Linear(8, 2, **make),
        )
        groups = [
            {"params": list(self.model[0].parameters())},
            {"params": list(self.model[3].parameters()), "lr": 0.03},
        ]
        self.optimizer = optimizer([{"params": list(self.model[1].parameters())}, *groups])
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)
        self.step = 0
        self.gm = gradmgr.GradManager().attach(self.model.parameters())

    def objects(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "rng": self.rng}

    def go(self, steps):
        losses = []
        for _ in range(steps):
            x = self.rng.normal(size=(6, 5))
            with self.gm:
                loss = nn.functional.mse_loss(self.model(x), np.sin(x[:, :2]))
                self.gm.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.step += 1
            losses.append(float(loss))
        return losses


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda groups: optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
        lambda groups: optim.AdamW(groups, lr=0.05, amsgrad=True),
        lambda groups: optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
        lambda groups: optim.Lion(groups, lr=0.01),
    ],
    ids=["SGD", "AdamW", "RMSprop", "Lion"],
)
def test_a_resumed_run_is_the_same_to_the_bit(written, path, optimizer):
    whole = Run(optimizer, 0)
    wanted = whole.go(8)
    first = Run(optimizer, 0)
    assert first.go(3) == wanted[:3]
    gradmgr.save({**first.objects(), "step": first.step}, path)
    second = Run(optimizer, 7)
    second.go(1)  # a state that must go
    rest = gradmgr.load(path, into=second.objects())
    assert rest == {"step": 3}
    assert second.go(5) == wanted[3:]
    assert_same(second.model.state_dict(), whole.model.state_dict())
    assert_same(second.optimizer.state_dict(), whole.optimizer.state_dict())


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(path):
    run = Run(lambda groups: optim.Adam(groups, lr=0.1), 0)
    run.go(2)
    gradmgr.save({**run.objects(), "other": nn.Linear(5, 9)}, path)
    run.go(1)
    before, rng = copy.deepcopy([run.model.state_dict(), run.optimizer.state_dict()]), run.rng.bit_generator.state
    sgd = optim.Adam([tensor([1.0])])
    with pytest.raises(errors.StateError) as raised:
        gradmgr.load(path, into={**run.objects(), "other": nn.Linear(5, 8), "optimizer": sgd})
    text = str(raised.value)
    assert "\n  other.weight: the file holds shape (9, 5) and dtype float32; to be loaded into is shape (8, 5)" in text
    assert "\n  other.bias: the file holds shape (9,)" in text
    assert "\n  optimizer: StateError: " in text
    assert_same([run.model.state_dict(), run.optimizer.state_dict()], before)
    assert run.rng.bit_generator.state == rng
    assert sgd.state_dict()["state"] == {}


def test_load_needs_no_pickle(path):
    """No file can make load run code: nothing that unpickles is asked for."""
    source = pathlib.Path(serialization.__file__).read_text()
    assert "import pickle" not in source
    assert "allow_pickle=True" not in source


# ---------------------------------------------------------------- files that were changed


def text_of(path, written):
    """The description in a file."""
    if written == "npz":
        with np.load(path) as members:
            return members["__gradmgr__"].tobytes().decode()
    with safetensors.safe_open(path, framework="np") as file:
        return file.metadata()["gradmgr"].partition(" ")[2]


def rewrite(path, written, description, arrays=None):
    """Write a file with another description, or other arrays, and all checksums of files right."""
    text = json.dumps(description)
    if arrays is None:
        with zipfile.ZipFile(path) if written == "npz" else contextlib.nullcontext() as archive:
            names = [n.removesuffix(".npy") for n in archive.namelist()] if archive else []
            arrays = {n: np.lib.format.read_array(archive.open(f"{n}.npy")) for n in names if n != "__gradmgr__"}
        if written != "npz":
            arrays = safetensors_numpy.load_file(path)
    serialization._write_file(str(path), arrays, text)


def places_in(node, at=()):
    """Where in a description a value stands, as the keys that lead there."""
    yield at
    if isinstance(node, (dict, list)):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield from places_in(node[key], (*at, key))


def put(node, at, value):
    for key in at[:-1]:
        node = node[key]
    node[at[-1]] = value


def of_everything():
    random_one = random.Random(1)  # noqa: S311  # a generator to be saved
    random_one.gauss(0, 1)  # it keeps half of a pair
    drawn = np.random.RandomState(3)
    drawn.standard_normal()
    generators = {name: np.random.Generator(getattr(np.random, name)(5)) for name in serialization._BIT_GENERATORS}
    for rng in generators.values():
        rng.integers(0, 9, dtype=np.uint32)
    return {
        "tensor": tensor([[1.0, 2.0, 3.0]]),
        "complex": np.array([1 + 2j, 3 - 1j]),
        "small": np.arange(6, dtype=np.int8).reshape(2, 3),
        "half": np.ones(3, ml_dtypes.bfloat16),
        "flags": np.array(True),
        "scalar": np.float32(2.5),
        "numbers": (1, -2.5, float("nan"), 1j, None, "text", [True]),
        "keys": {1: 2, (3, "a"): 4},
        **generators,
        "older": drawn,
        "bits": np.random.Philox(2),
        "python": random_one,
    }


def use(value):
    """Take everything that a loaded value gives: what points outside of memory ends the process."""
    if isinstance(value, np.random.BitGenerator):
        value = np.random.Generator(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        for part in value:
            use(part)
    elif isinstance(value, np.random.Generator):
        value.integers(0, 9, 700, dtype=np.uint32)
        value.standard_normal(700)
    elif isinstance(value, (np.random.RandomState, random.Random)):
        [value.gauss(0.0, 1.0) if isinstance(value, random.Random) else value.standard_normal() for _ in range(700)]
    else:
        repr(value)


OTHERS = (
    None,
    True,
    -1,
    0,
    3,
    625,
    2**31,
    2**63,
    2**200,
    1.5,
    "",
    "O",
    "<i8",
    "nan",
    "PCG64",
    [],
    [2],
    {},
    {"$": "array"},
)


@pytest.mark.parametrize("part", range(8))
def test_a_changed_file_gives_a_value_or_an_error(part, path, written):
    """Bytes that are changed, cut and put in; and descriptions changed at any place, with their checksums right."""
    draw = np.random.default_rng([part, written == "npz"])
    gradmgr.save(of_everything(), path)
    whole, text = path.read_bytes(), text_of(path, written)
    given = 0
    for _ in range(40):
        path.write_bytes(whole)
        if draw.random() < 0.5:
            at = int(draw.integers(len(whole) if draw.random() < 0.3 else min(len(whole), 600)))
            length = int(draw.integers(0, 9))
            drawn = draw.bytes(int(draw.integers(0, 9)))
            path.write_bytes(whole[:at] + drawn + whole[at + length :] if draw.random() < 0.8 else whole[:at])
        else:
            description = json.loads(text)
            everywhere = list(places_in(description))[1:]
            for _ in range(int(draw.integers(1, 3))):
                with contextlib.suppress(KeyError, IndexError, TypeError):  # what an earlier change took away
                    put(description, everywhere[draw.integers(len(everywhere))], OTHERS[draw.integers(len(OTHERS))])
            rewrite(path, written, description)
        with contextlib.suppress(errors.GradmgrError):
            use(gradmgr.load(path))
            given += 1
    assert given < 40


def states_of(description):
    """Where the description of a generator has a number of its state."""
    for at in places_in(description["value"]):
        node = description["value"]
        for key in at:
            node = node[key]
        if node.__class__ is int and "state" in at and not {"shape", "crc32"}.intersection(at):
            yield ("value", *at), node


@pytest.mark.parametrize("name", [*serialization._BIT_GENERATORS, "older", "bits", "python"])
def test_a_number_in_the_state_of_a_generator_that_it_cannot_have_is_refused(name, path, written):
    gradmgr.save({name: of_everything()[name]}, path)
    description = json.loads(text_of(path, written))
    places = list(states_of(description))
    assert places
    for at, number in places[-5:]:  # of MT19937 in Python the last of 625
        for wrong in (-1, -(2**31), 2**31 if at[-1] in ("pos", "buffer_pos", "has_uint32", "has_gauss") else 2**129):
            put(description, at, wrong)
            rewrite(path, written, description)
            with pytest.raises(errors.StateError, match=r"cannot be read: .*the state of a generator is damaged"):
                gradmgr.load(path)
            put(description, at, number)
    rewrite(path, written, description)
    use(gradmgr.load(path))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint64, np.complex128])
@pytest.mark.parametrize(
    "other", ["<f8", "<i8", "<u8", "<c8", "<c16", "O", "<M8[ns]", "V8", "S8", "i4,f4", "longdouble"]
)
def test_an_array_stored_as_of_another_dtype_is_refused(dtype, other, path, written):
    array = np.arange(4).astype(dtype)
    gradmgr.save({"a": array}, path)
    description = json.loads(text_of(path, written))
    description["value"]["a"]["dtype"] = other
    rewrite(path, written, description)
    if other == array.dtype.str:
        assert_same(gradmgr.load(path), {"a": array})
        return
    with pytest.raises(errors.StateError, match=r"is stored as|is no dtype of an array"):
        gradmgr.load(path)


@pytest.mark.parametrize("shape", [(6,), (3, 2), (2, 3, 1), (1, 2, 3)])
@pytest.mark.parametrize("dtype", [float, complex, np.int16])
def test_an_array_stored_in_another_shape_is_refused(shape, dtype, path, written):
    array = np.arange(6).astype(dtype).reshape(2, 3)
    gradmgr.save({"a": array}, path)
    description = json.loads(text_of(path, written))
    stored = array.view(array.real.dtype).reshape(2, 3, -1) if dtype is complex else array
    rewrite(path, written, description, {"a": np.ascontiguousarray(stored.reshape(*shape, *stored.shape[2:]))})
    with pytest.raises(errors.StateError, match="described as"):
        gradmgr.load(path)


def test_the_header_of_a_safetensors_file_is_compared_with_the_description(path):
    """Of the same bytes, so that their checksum does not show it."""
    gradmgr.save({"a": np.arange(6.0).reshape(2, 3)}, path)
    whole = path.read_bytes()
    for old, new in ((b'"F64"', b'"I64"'), (b'"F64"', b'"U64"'), (b"[2,3]", b"[3,2]")):
        assert whole.count(old) == 1
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(errors.StateError, match="described as of"):
            gradmgr.load(path)


def test_a_file_without_shapes_in_its_description_is_read(path, written):
    """As gradmgr wrote it before version 0.3."""
    saved = of_everything()
    gradmgr.save(saved, path)
    description = json.loads(text_of(path, written))
    for at in list(places_in(description)):
        if at and at[-1] == "shape":
            node = description
            for key in at[:-1]:
                node = node[key]
            del node["shape"]
    rewrite(path, written, description)
    assert_same(gradmgr.load(path)["tensor"], saved["tensor"])
    assert_same(gradmgr.load(path)["complex"], saved["complex"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of Unix")
def test_a_named_pipe_is_refused_at_once(path):
    os.mkfifo(path)
    with pytest.raises(OSError, match="no regular file"):
        gradmgr.load(path)


def test_what_an_archive_claims_to_hold_takes_no_memory(path, monkeypatch):
    monkeypatch.setattr(serialization, "_import_safetensors", lambda: None)
    gradmgr.save({"a": np.arange(3.0)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    for method, claimed in ((zipfile.ZIP_STORED, b"(9000000000000,)"), (zipfile.ZIP_DEFLATED, b"(3,)")):
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, data in members.items():
                room = b" " * (len(claimed) - 4)
                archive.writestr(name, data.replace(b"(3,), }" + room, claimed + b", }") if name == "a.npy" else data)
        with pytest.raises(errors.StateError, match=r"as gradmgr.save does|of the size that its header says"):
            gradmgr.load(path)


class Stubborn:
    """An object whose state cannot be set: neither the saved one nor, from then on, its own."""

    def __init__(self):
        self.asked = 0

    def state_dict(self):
        return {"n": 1}

    def load_state_dict(self, state):
        self.asked += 1
        raise ValueError(f"no state suits {type(self).__name__}")


@pytest.mark.parametrize(
    "order", [("optimizer", "stubborn"), ("stubborn", "optimizer"), ("optimizer", "stubborn", "w")]
)
def test_one_object_that_cannot_be_set_back_keeps_no_other_from_it(order, path, written):
    p = nn.Parameter(np.arange(3.0))
    optimizer = optim.Adam([p], lr=0.1)
    p.grad = tensor([1.0, 2.0, 3.0])
    optimizer.step()
    w = tensor([1.0])
    everything = {"optimizer": optimizer, "stubborn": Stubborn(), "w": w}
    gradmgr.save(everything, path)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(errors.StateError) as caught:
        gradmgr.load(path, into={name: everything[name] for name in order})
    assert_same(optimizer.state_dict(), before)
    assert w.tolist() == [1.0]
    assert "these could not be set back to what they were:\n  stubborn: ValueError: no state suits" in str(caught.value)
    assert "nothing was changed" not in str(caught.value)
