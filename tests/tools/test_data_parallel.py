"""bcast_parameters, DistributedSampler and checkpoints by rank 0."""

import numpy as np
import pytest
from mpi import ranks

from gradmgr.distributed import DistributedSampler
from gradmgr.errors import DistributedError

# ---------------------------------------------------------------- bcast_parameters


def test_all_ranks_get_the_roots_values_in_the_same_tensors():
    ranks(
        3,
        """
        import ml_dtypes
        shapes = [((2, 3), "f4"), ((), "f8"), ((0, 2), "f8"), ((4,), "c16"), ((3,), ml_dtypes.bfloat16), ((2,), ">i8")]
        ts = [tensor((np.ones(s) * (RANK + 1)).astype(d)) for s, d in shapes]
        alias, before = ts[0], [id(t) for t in ts]
        view = ts[0].numpy()
        for root in (2, 0, 1):
            for k, t in enumerate(ts):
                t[...] = (RANK + 1) * 10 + k
            given = {f"p{k}": t for k, t in enumerate(ts)} if root else [*ts, alias]
            assert dist.bcast_parameters(given, root) is None
            assert [id(t) for t in ts] == before
            for k, (t, (s, d)) in enumerate(zip(ts, shapes)):
                assert t.dtype == d and (t.numpy() == np.full(s, (root + 1) * 10 + k).astype(d)).all(), (k, t)
        assert set(view.ravel().tolist()) == {RANK + 1.0}  # a view taken before is what it was
        dist.bcast_parameters(ts[0])
        dist.bcast_parameters([])
        # in a group, roots count by its numbers
        group = dist.new_group([1, 2])
        w = tensor([float(RANK)])
        if RANK:
            dist.bcast_parameters(w, 1, group)
        assert w.tolist() == [0.0 if RANK == 0 else 2.0]
        """,
    )


def test_what_was_broadcast_is_a_constant_of_a_recording():
    ranks(
        2,
        """
        w = tensor([3.0 + RANK])
        gm = GradManager().attach(w)
        with gm:
            y = w * w
            dist.bcast_parameters(w)
            gm.backward((y + w * 5).sum())
        assert w.tolist() == [3.0]
        # on the root nothing was written
        assert grads(w) == [[11.0] if RANK == 0 else [8.0]], grads(w)
        """,
    )


def test_what_differs_is_named_on_every_rank_and_nothing_changes():
    ranks(
        2,
        """
        a, b = tensor([RANK + 1.0]), tensor(np.full(2 + RANK, RANK + 1.0))
        bcast = dist.bcast_parameters
        error = raises(errors.DistributedError, "gave different tensors to bcast_parameters", bcast, {"a": a, "b": b})
        assert "at place 1 rank 0: 'b', float64(2,); rank 1: 'b', float64(3,)" in str(error), str(error)
        assert a.tolist() == [RANK + 1.0] and b.tolist() == [RANK + 1.0] * (2 + RANK)
        raises(errors.DistributedError, "rank 0: float64(1,); rank 1: nothing", bcast, [] if RANK else [a])
        raises(errors.DistributedError, "root 0", dist.bcast_parameters, a, RANK)
        for root in (2, -1):
            raises(ValueError, f"found {root}", dist.bcast_parameters, a, root)
        raises(TypeError, "element 1 is numpy.ndarray", dist.bcast_parameters, [a, np.ones(2)])
        raises(TypeError, "'x' is builtins.int", dist.bcast_parameters, {"x": 3})
        raises(TypeError, "element 0 is numpy.ndarray", dist.bcast_parameters, np.ones(2))
        dist.bcast_parameters(a)
        assert a.tolist() == [1.0]
        """,
    )


# ---------------------------------------------------------------- DistributedSampler


@pytest.mark.parametrize("length", [0, 1, 2, 5, 12, 13, 100])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_parts_are_equally_long_and_cover_everything(length, parts, shuffle):
    samplers = [DistributedSampler(range(length), parts, k, shuffle) for k in range(parts)]
    found = [list(s) for s in samplers]
    assert {len(s) for s in samplers} == {len(f) for f in found} == {-(-length // parts)}
    everything = [k for f in found for k in f]
    assert set(everything) == set(range(length))
    assert all(everything.count(k) <= (2 if length >= parts else parts) for k in range(length))
    dropped = [DistributedSampler(length, parts, k, shuffle, drop_last=True) for k in range(parts)]
    kept = [k for s in dropped for k in s]
    assert {len(s) for s in dropped} == {length // parts}
    assert len(kept) == len(set(kept)) == length // parts * parts


@pytest.mark.parametrize(
    ("length", "parts", "drop_last", "wanted"),  # torch.utils.data.DistributedSampler's, shuffle=False
    [
        (10, 4, False, [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]),
        (10, 4, True, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (2, 5, False, [[0], [1], [0], [1], [0]]),
        (3, 4, True, [[], [], [], []]),
    ],
)
def test_without_shuffling_the_parts_are_torchs(length, parts, drop_last, wanted):
    found = [list(DistributedSampler(length, parts, k, False, drop_last=drop_last)) for k in range(parts)]
    assert found == wanted


def test_epochs_differ_and_can_be_repeated():
    sampler = DistributedSampler(1000, 2, 1, seed=5)
    first = list(sampler)
    assert list(sampler) == first != sorted(first)
    sampler.set_epoch(3)
    third = list(sampler)
    assert third != first
    other = DistributedSampler(1000, 2, 1, seed=5)
    assert other.indices(3).tolist() == third
    assert other.indices().tolist() == first
    assert other.indices().dtype == np.int64
    assert DistributedSampler(1000, 2, 1, seed=6).indices().tolist() != first
    assert DistributedSampler(1000, 2, 1, seed=[5, 1]).indices().tolist() != first


def test_one_part_is_a_permutation_of_arrays_too():
    x = np.arange(20.0).reshape(10, 2)
    sampler = DistributedSampler(x, 1, 0)
    assert sorted(x[sampler.indices()].ravel().tolist()) == x.ravel().tolist()


@pytest.mark.parametrize("arguments", [(5, 2, 2), (5, 2, -1), (-1, 2, 0)])
def test_wrong_parts_are_refused(arguments):
    with pytest.raises(ValueError, match="DistributedSampler"):
        DistributedSampler(*arguments)


def test_a_wrong_seed_is_refused_at_once():
    for seed in (-1, "x", 1.5):
        with pytest.raises((ValueError, TypeError)):
            DistributedSampler(5, 1, 0, seed=seed)


def test_without_init_the_parts_must_be_given():
    with pytest.raises(DistributedError, match="init"):
        DistributedSampler(5)


def test_the_ranks_are_the_parts():
    ranks(
        2,
        """
        sampler = dist.DistributedSampler(9)
        assert (sampler.rank, sampler.num_replicas, len(sampler)) == (RANK, 2, 5)
        everything = dist.all_gather(sampler.indices())
        assert set(everything.ravel().tolist()) == set(range(9))
        assert len(dist.DistributedSampler(9, group=dist.new_group([RANK, 1 - RANK][::1 - 2 * RANK]))) == 5
        """,
    )


# ---------------------------------------------------------------- checkpoints


def test_rank_0_saves_and_its_errors_are_everybodys(tmp_path):
    ranks(
        2,
        f"""
        path = {str(tmp_path / "run")!r}
        rng = np.random.default_rng(RANK)
        w = tensor([RANK + 1.0])
        dist.save({{"w": w, "rng": rng}}, path)
        assert gradmgr.load(path, into={{"w": w}}).keys() == {{"rng"}}  # the file is there for all
        assert w.tolist() == [1.0]
        if RANK == 0:
            raises(FileNotFoundError, "nowhere", dist.save, w, path + "/nowhere/x")
            raises(TypeError, "builtins.object", dist.save, {{"x": object()}}, path)
        else:
            message = "rank 0 could not save: FileNotFoundError"
            raises(errors.DistributedError, message, dist.save, w, path + "/nowhere/x")
            raises(errors.DistributedError, "rank 0 could not save: TypeError", dist.save, w, path)
        dist.save(5, path)
        assert gradmgr.load(path) == 5
        """,
    )
