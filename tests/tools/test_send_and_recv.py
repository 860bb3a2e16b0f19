"""send and recv: a model in stages on several ranks has the values and gradients of one process."""

import textwrap

import pytest
from mpi import PRELUDE, ranks, run_ranks

STAGES = """
rng = np.random.default_rng(0)
ws = [tensor(rng.normal(size=(4, 4))) for _ in range(3)]
xs = [rng.normal(size=(2, 4)) for _ in range(2)]

def stage(k, x):
    return gnp.tanh(x @ ws[k])

def whole():
    "What one process finds."
    copies = [tensor(w) for w in ws]
    gm = GradManager().attach(copies)
    with gm:
        loss = 0.0
        for x in xs:
            for w in copies:
                x = gnp.tanh(x @ w)
            loss = loss + (x * x).sum()
        gm.backward(loss)
    return float(loss), [w.grad.numpy() for w in copies]

LOSS, GRADS = whole()
"""


def test_three_stages_equal_one_process():
    ranks(
        3,
        STAGES
        + textwrap.dedent("""
        w = ws[RANK]
        gm = GradManager().attach(w)
        for step in range(3):
            with gm:
                loss = 0.0
                for x in xs:  # both micro-batches are sent before a backward
                    x = dist.recv((2, 4), "f8", RANK - 1) if RANK else x
                    y = stage(RANK, x)
                    if RANK < 2:
                        assert dist.send(y, RANK + 1) is None
                    else:
                        loss = loss + (y * y).sum()
                gm.backward(loss if RANK == 2 else None)
            if RANK == 2:
                assert abs(float(loss) - LOSS) < 1e-12
            np.testing.assert_allclose(w.grad.numpy(), GRADS[RANK], rtol=1e-12)
            w.grad = None
        """),
    )


def test_each_rank_may_call_backward_in_its_own_order():
    """The last rank calls backward of the first micro-batch first, the others of the last one."""
    ranks(
        3,
        STAGES
        + textwrap.dedent("""
        w = ws[RANK]
        gm = GradManager().attach(w)
        if RANK == 2:
            got = []
            for k in range(2):
                with gm:
                    y = stage(2, dist.recv((2, 4), "f8", 1))
                    gm.backward((y * y).sum())
        else:
            with gm:
                for x in xs:
                    dist.send(stage(RANK, dist.recv((2, 4), "f8", RANK - 1) if RANK else x), RANK + 1)
                gm.backward()
        np.testing.assert_allclose(w.grad.numpy(), GRADS[RANK], rtol=1e-12)
        """),
    )


def test_retain():
    ranks(
        2,
        """
        w = tensor([2.0, 3.0])
        gm = GradManager().attach(w)
        with gm:
            if RANK == 0:
                dist.send(w * w, 1)
            else:
                y = (dist.recv(2, "f8", 0) * w).sum()
            for k in (1, 2, 3):
                gm.backward(*([] if RANK == 0 else [y, np.float64(k)]), retain=k < 3)
        # 1 + 2 + 3 times: of rank 0 2 w times rank 1's w, of rank 1 what it received
        assert grads(w) == ([[48.0, 108.0]] if RANK == 0 else [[24.0, 54.0]]), grads(w)
        """,
    )


def test_gradients_are_zero_where_no_loss_depends_on_what_was_sent():
    ranks(
        2,
        """
        w = tensor([2.0])
        gm = GradManager().attach(w)
        for use in (True, False):
            with gm:
                if RANK == 0:
                    dist.send(w * 3, 1)
                    dist.send(w * 5, 1)
                    del_me = [w * k for k in range(500)]  # a sweep must not drop what was sent
                    gm.backward()
                else:
                    a, b = dist.recv((1,), "f8", 0), dist.recv((1,), "f8", 0)
                    gm.backward((a * w).sum() if use else w.sum())
            assert grads(w) == [[6.0] if use else [0.0]] if RANK == 0 else [[6.0] if use else [1.0]], grads(w)
            w.grad = None
        # no rank has a loss
        with gm:
            if RANK == 0:
                dist.send(w * 3, 1)
            else:
                dist.recv((1,), "f8", 0)
            gm.backward()
        assert grads(w) == ([[0.0]] if RANK == 0 else [None]), grads(w)
        # a loss on the first rank too, besides what it sends
        with gm:
            if RANK == 0:
                dist.send(w * 3, 1)
                gm.backward((w * w).sum())
            else:
                gm.backward((dist.recv((1,), "f8", 0) * 7).sum())
        assert RANK or grads(w) == [[25.0]], grads(w)
        """,
    )


def test_a_value_sent_to_a_rank_and_returned():
    """A loss on rank 0 of what rank 1 made of what rank 0 sent."""
    ranks(
        2,
        """
        w = tensor([2.0, 5.0])
        gm = GradManager().attach(w)
        with gm:
            if RANK == 0:
                dist.send(w, 1)
                y = dist.recv((2,), "f8", 1)
                gm.backward((y * w).sum())
            else:
                dist.send(dist.recv((2,), "f8", 0) ** 2 * w, 0)
                gm.backward()
        # the loss is w0**3 * w1, of two w that hold the same
        assert grads(w) == [[24.0, 375.0]] if RANK == 0 else [[8.0, 125.0]], grads(w)
        """,
    )


def test_every_dtype_and_shape():
    ranks(
        2,
        """
        import ml_dtypes
        for dtype in ("f2", "f4", "f8", ">f8", "c8", "c16", ml_dtypes.bfloat16):
            for shape in ((), (0,), (3,), (2, 3), (2, 0, 3)):
                w = tensor(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype) + np.ones((), dtype))
                gm = GradManager().attach(w)
                with gm:
                    if RANK == 0:
                        dist.send(w.T, 1)
                        gm.backward()
                    else:
                        x = dist.recv(shape[::-1], dtype, 0)
                        assert x.dtype == dtype and (x.numpy() == w.numpy().T).all()
                        y = x.T * w
                        gm.backward(y, np.full(shape, 2, dtype))
                assert (w.grad.shape, w.grad.dtype) == (w.shape, w.dtype)
                assert (w.grad.numpy() == (w * 2).numpy()).all(), (dtype, shape, w.grad)
        for value in (np.arange(5), np.array([True, False]), 3, [1.0, 2.0], np.arange(6.0).reshape(2, 3)[:, ::2].T):
            value = np.asarray(value)
            if RANK == 0:
                dist.send(value, 1)
            else:
                assert (dist.recv(value.shape, value.dtype, 0).numpy() == value).all()
        """,
    )


def test_what_is_sent_is_the_value_at_that_time():
    ranks(
        2,
        """
        a, w = np.full(300_000, 1.0), tensor(np.full(300_000, 2.0))
        if RANK == 0:
            dist.send(a, 1)
            a[:] = 7
            shared = gradmgr.asarray(a)
            dist.send(shared, 1)
            a[:] = 8
            dist.send(w, 1)
            w += 1
            dist.barrier()
        else:
            dist.barrier()
            found = [dist.recv(300_000, "f8", 0).numpy() for _ in range(3)]
            assert [set(x.tolist()) for x in found] == [{1.0}, {7.0}, {2.0}]
        """,
    )


def test_without_a_recording_it_is_plain_communication():
    ranks(
        2,
        """
        w = tensor([2.0])
        if RANK == 0:
            dist.send(w * 3, 1)
        else:
            x = dist.recv(1, "f8", 0)
            assert x.tolist() == [6.0] and not x.requires_grad
        gm = GradManager().attach(w)
        with gm:
            if RANK == 0:
                dist.send(np.ones(1), 1)  # not tracked here, so that no gradient is waited for
                with gradmgr.no_grad():
                    dist.send(w * 2, 1)
                gm.backward((w * 1).sum())
            else:
                x, y = dist.recv(1, "f8", 0), dist.recv(1, "f8", 0)
                assert not x.requires_grad and not y.requires_grad
                gm.backward((x * y * w).sum())
        assert grads(w) == [[1.0] if RANK == 0 else [4.0]], grads(w)
        """,
    )


def test_several_managers():
    ranks(
        2,
        """
        w = tensor([2.0])
        one, two = GradManager().attach(w), GradManager().attach(w)
        with one | two:
            if RANK == 0:
                dist.send(w * w, 1)
                one.backward()
                two.backward()
            else:
                y = (dist.recv((1,), "f8", 0) * w).sum()
                one.backward(y)
                two.backward(y)
        assert grads(w) == ([[16.0]] if RANK == 0 else [[8.0]]), grads(w)
        """,
    )


def test_the_second_derivative_goes_through_the_ranks():
    """Of f = (w0**2 * w1)**2 summed, with the gradient norm of rank 0's w, against one process."""
    ranks(
        2,
        """
        def one_process():
            a, b = tensor([2.0, 1.0]), tensor([3.0, 0.5])
            outer, inner = GradManager().attach([a, b]), GradManager().attach(a)
            with outer:
                with inner:
                    inner.backward(((a ** 2 * b) ** 2).sum())
                g, a.grad = a.grad, None
                outer.backward((g * g).sum())
            return a.grad.numpy(), b.grad.numpy()
        wanted = one_process()
        w = tensor([2.0, 1.0]) if RANK == 0 else tensor([3.0, 0.5])
        outer, inner = GradManager().attach(w), GradManager()
        if RANK == 0:
            inner.attach(w)
        with outer:
            with inner:
                if RANK == 0:
                    dist.send(w ** 2, 1)
                    inner.backward()
                else:
                    inner.backward(((dist.recv(2, "f8", 0) * w) ** 2).sum())
            if RANK == 0:
                g, w.grad = w.grad, None
                outer.backward((g * g).sum())
            else:
                assert w.grad is None
                outer.backward()
        np.testing.assert_allclose(w.grad.numpy(), wanted[RANK], rtol=1e-12)
        """,
    )


def test_in_a_group_ranks_count_by_its_numbers():
    ranks(
        3,
        """
        pair = dist.new_group([2, 0])
        w = tensor([3.0])
        gm = GradManager().attach(w)
        if RANK != 1:
            with gm:
                if RANK == 2:
                    dist.send(w * 2, 1, group=pair)
                    gm.backward()
                else:
                    gm.backward((dist.recv((1,), "f8", 0, group=pair) * w).sum())
            assert grads(w) == [[6.0]]
        """,
    )


# ---------------------------------------------------------------- errors


def test_receiving_another_shape_or_dtype_is_an_error():
    ran = run_ranks(
        2,
        PRELUDE
        + textwrap.dedent("""
        if RANK == 0:
            dist.send(np.ones(3), 1)
            dist.send(np.ones(3, "f4"), 1)
            dist.barrier()
        else:
            raises(errors.DistributedError, "expected float64(2,)", dist.recv, 2, "f8", 0)
            error = raises(errors.DistributedError, "expected float64(3,)", dist.recv, 3, "f8", 0)
            assert "rank 0 sent float32(3,)" in str(error)
            dist.barrier()
        for other in (RANK, 2, -1):
            raises(ValueError, f"cannot be {other}", dist.send, np.ones(1), other)
            raises(ValueError, f"cannot be {other}", dist.recv, 1, "f8", other)
        raises(TypeError, "send takes", dist.send, object(), 1 - RANK)
        """),
    )
    assert ran.rc == 0, str(ran)


def test_a_recording_on_one_side_only_is_an_error():
    ran = run_ranks(
        2,
        PRELUDE
        + textwrap.dedent("""
        w = tensor([1.0])
        gm = GradManager().attach(w)
        if RANK == 0:
            with gm:
                dist.send(w * 2, 1)
                dist.barrier()
        else:
            raises(errors.DistributedError, "1 managers follow there", dist.recv, 1, "f8", 0)
            dist.barrier()
        """),
    )
    assert ran.rc == 0, str(ran)


def test_a_rank_that_dies_ends_the_one_that_waits_for_its_gradient():
    ran = run_ranks(
        2,
        PRELUDE
        + textwrap.dedent("""
        w = tensor([1.0])
        gm = GradManager().attach(w)
        with gm:
            if RANK == 0:
                dist.send(w * 2, 1)
                gm.backward()
            else:
                x = dist.recv(1, "f8", 0)
                raise ZeroDivisionError("by nought")
        """),
        timeout=40,
    )
    assert ran.rc != 0
    assert "RankFailedError" in ran.err[0], str(ran)
    assert "ZeroDivisionError: by nought" in ran.err[0], str(ran)
    assert ran.seconds < 20


def test_inside_a_checkpointed_function_they_are_refused():
    """It runs again in backward, where no rank waits for a second message. What all do together may stand there.

    And a rank that waits too long says what for.
    """
    ranks(
        2,
        """
        from gradmgr import checkpoint
        w, found = tensor([1.0, 2.0]), []
        gm = GradManager().attach(w)
        def exchanged(x):
            if RANK == 0:
                dist.send(x * x, 1)
            return dist.recv((2,), "f8", 0) * x
        with gm:
            raises(errors.UnsupportedFunctionError, "inside a checkpointed function", checkpoint, exchanged, w)
        def reduced(x):
            return dist.all_reduce(x * x * x * (RANK + 1)) * x
        for call in (lambda f, x: f(x), checkpoint):
            w.grad = None
            with gm:
                y = call(reduced, w).sum() if RANK else (call(reduced, w) * 0 + w).sum()
                gm.backward(y, retain=True)
                gm.backward(y)
            found.append(w.grad.tolist())
        assert found[0] == found[1], found
        # a rank that waits says for what
        dist.finalize()
        dist.init(timeout=0.5)
        with gm:
            if RANK == 0:
                dist.send(w * 1, 1)
                what = "recv from rank 1 of the gradient of float64(2,), message 0 between the two"
                raises(errors.RankFailedError, what, gm.backward)
            else:
                dist.recv((2,), "f8", 0)
                time.sleep(1.5)
        """,
    )


@pytest.mark.parametrize("how", ["forward", "vmap"])
def test_forward_mode_and_vmap_are_refused(how):
    program = {
        "forward": """
        from gradmgr import forward_ad
        with forward_ad.dual_level():
            x = forward_ad.make_dual(tensor([1.0]), tensor([1.0]))
            raises(errors.UnsupportedFunctionError, "no tangents", dist.send, x, 1 - RANK)
        """,
        "vmap": """
        def f(x):
            raises(errors.UnsupportedFunctionError, "vmap", dist.send, x, 1 - RANK)
            return x
        gradmgr.vmap(f)(tensor([[1.0]]))
        """,
    }[how]
    ranks(2, program)
