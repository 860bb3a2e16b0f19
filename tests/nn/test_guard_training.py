"""`nn`, `optim`, checkpoints and `distributed` on the guard class of guard.py: everything with a public name, by name.

What would copy to the host implicitly, mix two kinds of arrays or call what CuPy lacks, fails here. So does
a new function, layer, optimiser or initialiser that no test names; and what makes the program wait for a GPU is listed.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import runpy
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import guard
import numpy as np
import pytest
from helpers import ROOT, each_case, host
from samples import SAMPLES, Sample, flat, gradients, tensors
from samples.gpu import refusal
from samples.training import CASES, CLIPS, CODES, EXAMPLES, LAYERS, OPTIMIZERS, parameters, seeded, values, write_mnist

import gradmgr
import gradmgr.numpy as gnp
from gradmgr import GradManager, Tensor, asarray, errors, nn, no_grad, optim, tensor
from gradmgr._arrays import table_rows
from gradmgr.nn import functional as F  # noqa: N812  # as everywhere

pytestmark = pytest.mark.usefixtures("cupy")


def on_guard(value: Any) -> Any:
    """Arrays as the guard's, Tensors as Tensors of such, in whatever holds them."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(on_guard, value))
    if isinstance(value, Tensor):
        return asarray(guard.cupy.asarray(value._array.copy()))
    return guard.cupy.asarray(value) if isinstance(value, np.ndarray) else value


def is_on_guard(value: Any) -> bool:
    return isinstance(value._array if isinstance(value, Tensor) else value, guard.ndarray)


def assert_close(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    found, expected = flat(found), flat(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if b is None:
            assert a is None
            continue
        assert is_on_guard(a)
        assert (host(a).shape, host(a).dtype) == (host(b).shape, host(b).dtype)
        np.testing.assert_allclose(host(a), host(b), rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- functions

# How often a call makes the program wait for the GPU: to look at labels, indices or probabilities. What comes from the
# host is looked at there.
WAITS = {"nll_loss": 1, "cross_entropy": 1, "embedding": 1, "binary_cross_entropy": 1, "one_hot": 1}
WAITS |= {"embedding_bag": 1}
# For a gradient of rows it waits to find how many of them differ, and how many there are without padding.
WAITS_FOR_ROWS = {"sparse": 1, "sparse, padding": 3, "sum, offsets, padding": 3, "max, offsets, padding": 3}

OF_NN = [s for s in SAMPLES if s.name.startswith("nn.") and refusal(s) is None]


def test_every_function_has_a_sample() -> None:
    public = {name for name, f in vars(F).items() if inspect.isfunction(f) and not name.startswith("_")}
    assert public == set(F.__all__)
    assert {f"nn.{name}" for name in public} - {s.name for s in OF_NN} == {"nn.one_hot"}  # which has no gradient


@each_case(product(OF_NN, [np.float32, np.float16]))
def test_a_function_in_low_precision(sample: Sample, dtype: Any) -> None:
    arrays = [on_guard(a) for a in sample.make(dtype)]
    with np.errstate(all="ignore"):
        found, expected = (
            sample.call(gnp, *tensors(sample, arrays)),
            sample.call(gnp, *tensors(sample, sample.make(dtype))),
        )
        assert_close(found, expected, {4: 1e-5, 2: 4e-3}[np.dtype(dtype).itemsize])
        grads = gradients(sample, [on_guard(a) for a in sample.make(dtype)])
        assert_close(grads, gradients(sample, sample.make(dtype)), {4: 1e-4, 2: 2e-2}[np.dtype(dtype).itemsize])
    assert guard.ndarray.copies_to_host == 0


@each_case(OF_NN)
def test_a_function_waits_for_nothing(sample: Sample) -> None:
    points = tensors(sample, [on_guard(a) for a in sample.make()])
    manager = GradManager().attach([points[k] for k in sample.where])
    guard.ndarray.waits = 0
    with manager:
        outs = [y for y in flat(sample.call(gnp, *points)) if manager._tape.node_id_of(y) is not None]
        manager.backward(outs, [gnp.ones_like(y) for y in outs])
    most = WAITS.get(sample.name.removeprefix("nn."), 0) + WAITS_FOR_ROWS.get(sample.case, 0)
    assert guard.ndarray.waits <= most


@pytest.mark.parametrize("call", [
    lambda x, y: F.cross_entropy(x, y),
    lambda x, y: F.cross_entropy(x, y, ignore_index=1, label_smoothing=0.1),
    lambda x, y: F.nll_loss(x, y),
    lambda x, y: F.embedding(y, x, 1, scale_grad_by_freq=True),
    lambda x, y: x[gnp.arange(3), y],
])  # fmt: skip
@pytest.mark.parametrize("given", ["array", "Tensor"])
def test_labels_and_indices_of_the_host_are_moved(call: Any, given: str) -> None:
    """As CuPy moves what indexes; numbers to compute with are not."""
    y = np.array([1, 0, 1])
    found = []
    for x in (tensor(np.eye(3)), tensor(guard.cupy.asarray(np.eye(3)))):
        gm = GradManager().attach(x)
        with gm:
            out = call(x, y if given == "array" else tensor(y))
            gm.backward(out.sum())
        found.append([out, x.grad])
    waits = guard.ndarray.waits
    assert_close(found[1], found[0])
    assert waits == 0
    assert guard.ndarray.copies_to_host == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.cross_entropy(host(x), guard.cupy.asarray([0, 1])),
        lambda x: F.embedding(guard.cupy.asarray([0, 1]), host(x)),
        lambda x: F.cross_entropy(x, host(x)),
        lambda x: F.cross_entropy(x, np.array([0, 1]), np.ones(2)),
        lambda x: F.mse_loss(x, host(x)),
        lambda x: F.linear(x, host(x)),
        lambda x: F.linear(host(x), x),
        lambda x: F.conv1d(x, np.ones((1, 2, 1))),
        lambda x: F.layer_norm(x, 2, np.ones(2)),
        lambda x: F.batch_norm(x, np.zeros(2), np.ones(2)),
        lambda x: F.batch_norm(x, np.zeros(2), np.ones(2), training=True),
        lambda x: F.scaled_dot_product_attention(x, x, x, np.ones((2, 2), bool)),
        lambda x: F.gru_cell(x, host(x), np.ones((6, 2)), np.ones((6, 2))),
    ],
)
def test_what_is_computed_with_does_not_mix(call: Any) -> None:
    with pytest.raises(errors.MixedArraysError, match=r"both NumPy and CuPy; move one side first"):
        call(tensor(guard.cupy.asarray([[1.0, 2.0], [3.0, 4.0]])))


def test_one_hot_and_what_numbers_it_asks_for() -> None:
    assert_close(F.one_hot(guard.cupy.asarray([1, 0]), 3), F.one_hot(np.array([1, 0]), 3))
    assert guard.ndarray.waits == 1
    assert_close(F.one_hot(guard.cupy.asarray([1, 0])), np.array([[0, 1], [1, 0]]))


# ---------------------------------------------------------------- layers


# What is no layer: bases, containers that have no forward, and what the tests below use.
OTHERS = {"Module", "ModuleDict", "ModuleList", "Parameter", "ParameterList", "functional", "functional_call", "init"}
WAITS_OF_LAYERS = {"BCELoss": 1, "CrossEntropyLoss": 1, "NLLLoss": 1, "Embedding": 1, "EmbeddingBag": 1}


def test_every_layer_is_named_here() -> None:
    assert set(nn.__all__) == set(LAYERS) | OTHERS | {"convolution_library", "summary", "utils"}


def _trained(name: str, device: str) -> tuple[Any, list[Any], list[Any]]:
    """A layer after one backward in training and a call in evaluation: what it gave, and its gradients."""
    make, given = LAYERS[name]
    layer = make({"device": device})
    args = tuple(map(on_guard, given)) if device != "cpu" else given
    inputs = [tensor(a) if a.dtype.kind == "f" else a for a in args]
    gm = GradManager().attach([*layer.parameters(), *[a for a in inputs if isinstance(a, Tensor)]])
    guard.ndarray.waits = 0
    with gm:
        trained = flat(layer(*inputs))
        gm.backward(sum([(y * y).sum() for y in trained]))
    waits = guard.ndarray.waits
    with no_grad():
        outs = trained + flat(layer.eval()(*args))
    assert waits <= WAITS_OF_LAYERS.get(name, 0)
    return layer, outs, [p.grad for p in (*layer.parameters(), *inputs) if isinstance(p, Tensor)]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name: str) -> None:
    (_, outs, grads), (layer, found, found_grads) = _trained(name, "cpu"), _trained(name, "cuda")
    assert_close(found, outs, 2e-5)
    assert_close(found_grads, grads, 2e-5)
    assert guard.ndarray.copies_to_host == 0
    assert all(map(is_on_guard, layer.state_dict().values()))
    before = {key: host(t).copy() for key, t in layer.state_dict().items()}
    moved = layer.to("cpu").state_dict()
    assert not any(map(is_on_guard, moved.values()))
    layer.to("cuda").load_state_dict({key: t.numpy() for key, t in moved.items()})
    assert all(map(is_on_guard, [*layer.state_dict().values(), *[p.grad for p in layer.parameters()]]))
    for twin in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)) if name != "Sequential" else layer):  # noqa: S301  # our own
        for key, t in twin.state_dict().items():
            assert is_on_guard(t)
            np.testing.assert_array_equal(host(t), before[key])


def test_a_call_with_other_parameters() -> None:
    layer = nn.BatchNorm(2, device="cuda")
    given = {key: tensor(guard.cupy.asarray(host(t) + 1)) for key, t in layer.named_parameters()}
    gm = GradManager().attach(given)
    with gm:
        gm.backward(nn.functional_call(layer, given, guard.cupy.asarray(values(4, 2))).sum())
    assert all(is_on_guard(t.grad) for t in given.values())
    assert all(p.grad is None for p in layer.parameters())


def test_a_summary_reads_no_values() -> None:
    net = nn.Sequential(nn.Linear(2, 8, device="cuda"), nn.BatchNorm(8, device="cuda"), nn.Dropout(0.5))
    text = nn.summary(net, guard.cupy.asarray(values(5, 2)))
    assert "(5, 8)" in text
    assert guard.ndarray.waits == 0


@pytest.mark.parametrize("name", nn.init.__all__)
def test_first_values(name: str) -> None:
    fill = getattr(nn.init, name)
    if name == "calculate_gain":
        assert fill("relu") > 1
        return
    options = {"constant_": {"val": 3.0}, "sparse_": {"sparsity": 0.5}}.get(name, {})
    options |= {"rng": seeded()} if "rng" in inspect.signature(fill).parameters else {}
    shape = (4, 3, 3) if name == "dirac_" else (4, 3)
    twins = [tensor(np.empty(shape, np.float32), device=device) for device in ("cpu", "cuda")]
    for t in twins:
        assert fill(t, **copy.deepcopy(options)) is t
    assert_close(twins[1], twins[0], 0)
    assert guard.ndarray.waits == 0


# ---------------------------------------------------------------- optimisers


def test_every_optimizer_is_named_here() -> None:
    classes = {name for name in optim.__all__ if isinstance(getattr(optim, name), type)}
    # SparseAdam takes other gradients, LBFGS a closure.
    assert classes == set(OPTIMIZERS) | {"Optimizer", "GradScaler", "LBFGS", "SparseAdam"}
    functions = {name for name in optim.__all__ if inspect.isfunction(getattr(optim, name))}
    assert functions == set(CLIPS)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "SparseAdam"])
def test_steps_by_gradients_of_rows(name: str) -> None:
    found = []
    for device in ("cpu", "cuda:0"):
        table = tensor(values(50, 4), device=device)
        gm, optimizer = GradManager().attach(table), getattr(optim, name)([table], lr=0.1)
        for places in (CODES, CODES + 1):
            with gm:
                gm.backward((F.embedding(places, table, sparse=True) ** 2).sum())
            optim.clip_grad_norm_([table], 1.0)
            assert table.grad is not None
            assert table.grad.is_sparse
            assert table.grad.device == device
            optimizer.step()
            optimizer.zero_grad()
        found.append(host(table))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_a_gradient_of_look_ups_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "_LARGE_TABLE", 0)
    monkeypatch.setattr(table_rows, "_SORTING", 0)
    found = []
    for device in ("cpu", "cuda:0"):
        table = tensor(values(500, 4), device=device)
        with GradManager().attach(table) as gm:
            gm.backward((table[CODES] ** 2).sum() + table[CODES + 1].sum())
        assert table.grad is not None
        assert table.grad.is_sparse == (device == "cpu")
        optim.Adagrad([table], lr=0.1).step()
        found.append(host(table))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of the parameters is large, and takes several blocks."""
    monkeypatch.setattr(optim._chunks, "_GPU_SMALL", 1000)
    monkeypatch.setattr(optim._chunks, "_GPU_BLOCK", 512)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else ",".join(v))
def test_steps(name: str, options: dict[str, Any], dtype: str) -> None:
    twins = [parameters(dtype), [on_guard(p) for p in parameters(dtype)]]
    both = [getattr(optim, name)(params, lr=0.1, **options) for params in twins]
    tolerance = {"f2": 5e-3, "f8": 1e-12}.get(dtype, 1e-5)
    for step in range(3):
        grads = parameters(dtype, seed=step + 1)
        for params, optimizer, given in zip(twins, both, (grads, on_guard(grads)), strict=True):
            for p, g in zip(params, given, strict=True):
                p.grad = g
            optimizer.step()
        assert_close(twins[1], twins[0], tolerance)
    assert (guard.ndarray.waits, guard.ndarray.copies_to_host) == (0, 0)
    both[1].load_state_dict(both[0].state_dict())
    kept = both[1].state_dict()["state"].get(0, {})
    assert all(is_on_guard(t) for key, t in kept.items() if key != "step")
    assert guard.ndarray.waits == 0


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else ",".join(v))
def test_what_is_not_finite_stays_so_in_a_step(name: str, options: dict[str, Any]) -> None:
    numbers, grads = [1.0, np.inf, np.nan, 1.0, 1.0, -np.inf], [1.0, 1.0, 1.0, np.nan, np.inf, np.nan]
    found = []
    for xp in (np, guard.cupy):
        p = asarray(xp.asarray(np.array(numbers)))
        optimizer = getattr(optim, name)([p], lr=0.1, **options)
        for _ in range(2):
            p.grad = asarray(xp.asarray(np.array(grads)))
            optimizer.step()
        state = optimizer.state_dict()["state"].get(0, {})
        found.append([p, *[t for key, t in sorted(state.items()) if key != "step"]])
    assert_close(found[1], found[0])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8"])
@pytest.mark.parametrize("name", CLIPS)
def test_clipping(name: str, dtype: str) -> None:
    results = []
    for place in (lambda value: value, on_guard):
        params = place(parameters(dtype))
        for p, g in zip(params, place(parameters(dtype, seed=1)), strict=True):
            p.grad = g
        made = CLIPS[name](params)
        results.append([made, *[p.grad for p in params]])
    assert_close(results[1], results[0], {"f2": 2e-3, "f8": 1e-12}.get(dtype, 1e-5))
    assert guard.ndarray.waits <= (0 if name == "clip_grad_value_" else 2)  # one for all small, one for each large
    assert guard.ndarray.copies_to_host == 0


@pytest.mark.parametrize("overflow", [False, True])
def test_a_scaler(overflow: bool) -> None:
    w = tensor(np.ones(3, "f2"), device="cuda")
    optimizer, scaler, gm = optim.SGD([w], lr=0.5), optim.GradScaler(init_scale=1024.0), GradManager().attach(w)
    with gm:
        gm.backward(scaler.scale(gnp.sum(w * (float("inf") if overflow else 1.0))))
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_array_equal(host(w), np.full(3, 1.0 if overflow else 0.5))
    assert scaler.get_scale() == (512 if overflow else 1024)
    assert guard.ndarray.waits == 1


# ---------------------------------------------------------------- checkpoints


def test_checkpoints(tmp_path: Path) -> None:
    def made(seed: int) -> dict[str, Any]:
        model = nn.Sequential(
            nn.Linear(3, 4, device="cuda", rng=np.random.default_rng(seed)), nn.BatchNorm(4, device="cuda")
        )
        optimizer = optim.Adam(model.parameters(), lr=0.1 * seed)
        for p in model.parameters():
            p.grad = gnp.ones_like(p) * seed
        optimizer.step()
        mask = tensor(guard.cupy.asarray(np.array([True, False])))
        return {"model": model, "optimizer": optimizer, "array": guard.cupy.asarray(values(2) * seed), "mask": mask}

    one, other, path = made(1), made(2), tmp_path / "run"
    gradmgr.save(one, path)
    for device in ("cpu", "cuda"):
        saved = gradmgr.load(path, device=device)
        assert {is_on_guard(saved[key]) for key in ("array", "mask")} == {device == "cuda"}
        gradmgr.load(path, into=other, device=device)
        assert_close([*other["model"].state_dict().values()], [*one["model"].state_dict().values()])
        assert_close([other["array"], other["mask"]], [one["array"], one["mask"]])
        assert_close(
            [*other["optimizer"].state_dict()["state"][0].values()][1:],
            [*one["optimizer"].state_dict()["state"][0].values()][1:],
        )
        other = made(3)


# ---------------------------------------------------------------- devices


def test_the_gpu_without_a_number_is_the_current_one() -> None:
    t = tensor([1.0], device="cuda")
    assert t.device == "cuda:0"
    assert t.to("cuda") is t
    assert gradmgr.asarray(t._array, device="cuda", copy=False)._array is t._array
    for device in ("cuda", "cuda:0"):
        made = [gnp.zeros(2, device=device), nn.Parameter([1.0], device=device), gradmgr.Tensor([1.0], device=device)]
        made += [gnp.arange(3, device=device), nn.Linear(2, 1).to(device).weight, gnp.astype(t, "f4", device=device)]
        made += [nn.Linear(2, 1).to(device, "f8").weight, gnp.zeros_like(tensor([1.0]), device=device)]
        assert {x.device for x in made} == {"cuda:0"}


def test_another_gpu_may_be_current(monkeypatch: pytest.MonkeyPatch) -> None:
    class Second(guard.Device):
        def __init__(self, number: int | None = None) -> None:
            assert number in (None, 1)
            self.id = 1

    monkeypatch.setattr(guard.cupy.cuda, "Device", Second)
    monkeypatch.setattr(guard.ndarray, "device", property(lambda self: Second()))
    assert nn.Linear(2, 1, device="cuda").weight.device == "cuda:1"
    assert tensor([1.0], device="cuda").to("cuda").device == "cuda:1"


def test_the_buffer_for_received_arrays_is_on_their_device() -> None:
    from gradmgr.distributed import _pipeline

    assert is_on_guard(_pipeline._empty((2, 3), np.float32, "cuda"))
    assert isinstance(_pipeline._empty((2, 3), np.float32, "cpu"), np.ndarray)


# ---------------------------------------------------------------- distributed


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """NCCL's engine with one rank, over the stand-in of CuPy's binding."""
    pytest.importorskip("mpi4py", reason=f"mpi4py is not installed; {errors.how_to_install('mpich')}")
    from gradmgr import distributed

    monkeypatch.setitem(sys.modules, "cupy.cuda", guard.cupy.cuda)
    distributed.init()  # finds the GPU by itself
    yield distributed
    distributed.finalize()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", "i1", "i2", "u2", "i4", "i8", "u8", "?"])
def test_nccl(one_gpu: Any, dtype: str) -> None:
    whole = np.array([[1, 0, 2], [3, 1, 0]]).astype(dtype)
    for array in (whole, whole.T, whole[::2], whole[0, 0], whole[:0]):
        x = guard.cupy.asarray(np.asarray(array))
        for op in ("sum", "mean", "min", "max", "prod"):
            if (op == "mean" and x.dtype.kind in "iub") or (op == "sum" and dtype == "?"):
                continue
            if x.dtype.kind == "c" and op in ("min", "max", "prod"):
                continue
            assert_close(one_gpu.all_reduce(x, op), np.asarray(array), 0)
        assert_close(one_gpu.all_gather(x), np.asarray(array)[None], 0)
        assert_close(one_gpu.broadcast(x), np.asarray(array), 0)
    assert isinstance(one_gpu.all_reduce(np.ones(2)), np.ndarray)
    assert guard.ndarray.copies_to_host == 0


def test_derivatives_over_nccl(one_gpu: Any) -> None:
    x = tensor(guard.cupy.asarray(np.arange(6.0).reshape(2, 3)))
    gm = GradManager().attach(x)
    with gm:
        gm.backward((one_gpu.all_reduce(x * x, "mean") + one_gpu.all_gather(x)[0] + one_gpu.broadcast(x)).sum())
    assert_close(x.grad, 2 * host(x) + 2)


def test_batch_norm_over_the_ranks(one_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradmgr.distributed import _sync_batch_norm
    from gradmgr.nn._functions.normalization import normalise_batch

    layer, other = one_gpu.SyncBatchNorm(3, device="cuda"), nn.BatchNorm(3)
    batches = _sync_batch_norm._RankBatches(_sync_batch_norm.resolve_group(), "")  # as of several ranks
    monkeypatch.setattr(layer, "_normalise", lambda *given: normalise_batch(batches, *given))
    (x, moved), found = (tensor(values(4, 3, 2)), on_guard(tensor(values(4, 3, 2)))), []
    for module, at in ((other, x), (layer, moved)):
        guard.ndarray.waits = 0
        with GradManager().attach([at, *module.parameters()]) as gm:
            y = module(at)
            gm.backward((y**3).sum())
        assert guard.ndarray.waits == 0
        found.append([y, at.grad, *[p.grad for p in module.parameters()], *module.state_dict().values()])
    assert_close(found[1], found[0], 2e-5)
    assert guard.ndarray.copies_to_host == 0


@pytest.mark.parametrize("bucket_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("method", ["mean", "SUM"])
def test_the_all_reduce_of_gradients(one_gpu: Any, method: str, bucket_bytes: int) -> None:
    ws = [on_guard(t) for dtype in ("f4", "f8", "f2", "c8") for t in parameters(dtype)[:3]]
    unused = tensor([1.0], device="cuda")
    reduce = one_gpu.make_allreduce_cb(method, bucket_bytes=bucket_bytes)
    reduce._even_alone = True
    gm = GradManager().attach([*ws, unused], callbacks=[lambda t, g: g * 2.0, reduce, lambda t, g: g * 0.5])
    for _ in range(2):  # the second time the memory of the buckets is used again
        for w in ws:
            w.grad = None
        with gm:
            gm.backward(sum([(w * w).real.sum() for w in ws]))
        for w in ws:
            assert_close(w.grad, (2 * host(w).conj()).astype(w.dtype), 0)
        assert unused.grad is None
    gm = GradManager().attach(ws, callbacks=reduce)
    with reduce.no_sync(), gm:
        gm.backward(sum([(w * w).real.sum() for w in ws]))
    with gm:
        gm.backward(sum([(w * w).real.sum() for w in ws]))
    for w in ws:
        assert_close(w.grad, (6 * host(w).conj()).astype(w.dtype), 1e-3 if w.dtype == np.float16 else 1e-6)


def test_parameters_and_checkpoints_of_ranks(one_gpu: Any, tmp_path: Path) -> None:
    model = nn.Linear(2, 3, device="cuda")
    one_gpu.bcast_parameters(model.parameters())
    assert all(map(is_on_guard, model.parameters()))
    one_gpu.save(model, tmp_path / "file")
    assert one_gpu.DistributedSampler(4, shuffle=False).indices().tolist() == [0, 1, 2, 3]
    one_gpu.barrier()


def test_mpi_alone_says_how_gpus_are_connected(cupy: ModuleType) -> None:
    pytest.importorskip("mpi4py", reason=f"mpi4py is not installed; {errors.how_to_install('mpich')}")
    from gradmgr import distributed

    distributed.init("mpi")
    try:
        with pytest.raises(errors.DistributedError, match=r"begin with distributed.init\('nccl'\)"):
            distributed.all_reduce(cupy.asarray([1.0]))
    finally:
        distributed.finalize()


# ---------------------------------------------------------------- the examples, with --device cuda


def test_every_example_is_named_here() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


RANKED = ("data_parallel", "elastic")  # which run as one rank here


@pytest.mark.filterwarnings("ignore:.*arrays of a GPU are not replayed")  # they run as they are written
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("sklearn", "matplotlib", "tqdm", "mlxtend") + ("mpi4py",) * (name in RANKED):
        pytest.importorskip(package, reason=f"what the examples need; {errors.how_to_install('examples')}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "cupy.cuda", guard.cupy.cuda)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, path, format: None)  # which takes its time
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *EXAMPLES[name].split(), "--device", "cuda"])
    write_mnist(tmp_path)
    try:
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    finally:
        if name in RANKED and gradmgr.distributed.is_initialized():
            gradmgr.distributed.finalize()
