"""Every name of the torch.autograd page: it is here under the same name, or refused by an error that says why."""

import importlib
from pathlib import Path

import pytest

import gradmgr

PAGE = Path(__file__).parents[1] / "docs" / "torch_autograd.md"

# Where torch has it -> where it is here.
HERE = {
    "torch.autograd.backward": "backward",
    "torch.autograd.grad": "grad",
    "torch.autograd.forward_ad.dual_level": "forward_ad.dual_level",
    "torch.autograd.forward_ad.make_dual": "forward_ad.make_dual",
    "torch.autograd.forward_ad.unpack_dual": "forward_ad.unpack_dual",
    "torch.autograd.forward_ad.enter_dual_level": "forward_ad.enter_dual_level",
    "torch.autograd.forward_ad.exit_dual_level": "forward_ad.exit_dual_level",
    "torch.autograd.forward_ad.UnpackedDualTensor": "forward_ad.UnpackedDualTensor",
    "torch.autograd.functional.jacobian": "functional.jacobian",
    "torch.autograd.functional.hessian": "functional.hessian",
    "torch.autograd.functional.vjp": "functional.vjp",
    "torch.autograd.functional.jvp": "functional.jvp",
    "torch.autograd.functional.vhp": "functional.vhp",
    "torch.autograd.functional.hvp": "functional.hvp",
    "torch.no_grad": "no_grad",
    "torch.enable_grad": "enable_grad",
    "torch.set_grad_enabled": "set_grad_enabled",
    "torch.inference_mode": "inference_mode",
    "torch.is_grad_enabled": "is_grad_enabled",
    "torch.is_inference_mode_enabled": "is_inference_mode_enabled",
    "torch.autograd.grad_mode.set_multithreading_enabled": "set_multithreading_enabled",
    "torch.Tensor.grad": "Tensor.grad",
    "torch.Tensor.requires_grad": "Tensor.requires_grad",
    "torch.Tensor.is_leaf": "Tensor.is_leaf",
    "torch.Tensor.grad_fn": "Tensor.grad_fn",
    "torch.Tensor.backward": "Tensor.backward",
    "torch.Tensor.detach": "Tensor.detach",
    "torch.Tensor.detach_": "Tensor.detach_",
    "torch.Tensor.register_hook": "Tensor.register_hook",
    "torch.Tensor.register_post_accumulate_grad_hook": "Tensor.register_post_accumulate_grad_hook",
    "torch.Tensor.retain_grad": "Tensor.retain_grad",
    "torch.Tensor.retains_grad": "Tensor.retains_grad",
    "torch.Tensor.clone": "Tensor.clone",
    "torch.autograd.Function": "Function",
    "torch.autograd.Function.forward": "Function.forward",
    "torch.autograd.Function.backward": "Function.backward",
    "torch.autograd.Function.vjp": "Function.vjp",
    "torch.autograd.Function.jvp": "Function.jvp",
    "torch.autograd.Function.vmap": "Function.vmap",
    "torch.autograd.Function.setup_context": "Function.setup_context",
    "torch.autograd.Function.apply": "Function.apply",
    "torch.autograd.function.once_differentiable": "once_differentiable",
    "torch.autograd.gradcheck": "gradcheck",
    "torch.autograd.gradgradcheck": "gradgradcheck",
    "torch.autograd.gradcheck.GradcheckError": "GradcheckError",
    "torch.autograd.detect_anomaly": "detect_anomaly",
    "torch.autograd.set_detect_anomaly": "set_detect_anomaly",
    "torch.autograd.graph.Node": "graph.Node",
    "torch.autograd.graph.Node.name": "graph.Node.name",
    "torch.autograd.graph.Node.metadata": "graph.Node.metadata",
    "torch.autograd.graph.Node.next_functions": "graph.Node.next_functions",
    "torch.autograd.graph.Node.register_hook": "graph.Node.register_hook",
    "torch.autograd.graph.Node.register_prehook": "graph.Node.register_prehook",
    "torch.autograd.graph.GradientEdge": "graph.GradientEdge",
    "torch.autograd.graph.get_gradient_edge": "graph.get_gradient_edge",
    "torch.autograd.graph.increment_version": "graph.increment_version",
    "torch.autograd.graph.saved_tensors_hooks": "graph.saved_tensors_hooks",
    "torch.autograd.graph.save_on_cpu": "graph.save_on_cpu",
    "torch.autograd.graph.disable_saved_tensors_hooks": "graph.disable_saved_tensors_hooks",
    "torch.autograd.graph.register_multi_grad_hook": "graph.register_multi_grad_hook",
    "torch.autograd.graph.allow_mutation_on_saved_tensors": "graph.allow_mutation_on_saved_tensors",
    "torch.autograd.profiler.profile": "profiler.profile",
    "torch.autograd.profiler.profile.export_chrome_trace": "profiler.profile.export_chrome_trace",
    "torch.autograd.profiler.profile.key_averages": "profiler.profile.key_averages",
    "torch.autograd.profiler.profile.self_cpu_time_total": "profiler.profile.self_cpu_time_total",
    "torch.autograd.profiler.profile.total_average": "profiler.profile.total_average",
    "torch.autograd.profiler.record_function": "profiler.record_function",
    "torch.autograd.profiler_util.Interval": "profiler.Interval",
    "torch.autograd.profiler.emit_nvtx": "profiler.emit_nvtx",
    "torch.autograd.profiler.emit_itt": "profiler.emit_itt",
    "torch.utils.checkpoint.checkpoint": "checkpoint",
    "torch.utils.checkpoint.checkpoint_sequential": "checkpoint_sequential",
    "torch.vmap": "vmap",
}

# What is not here: asking for it says why.
REFUSED = {
    "torch.autograd.Variable": "Variable",
    "torch.Tensor.data": "Tensor().data",
    "torch.autograd.function.BackwardCFunction": "function.BackwardCFunction",
    "torch.autograd.function.InplaceFunction": "function.InplaceFunction",
    "torch.autograd.function.NestedIOFunction": "function.NestedIOFunction",
    "torch.autograd.profiler.load_nvprof": "profiler.load_nvprof",
    "torch.autograd.profiler.parse_nvprof_trace": "profiler.parse_nvprof_trace",
    "torch.autograd.profiler.EnforceUnique": "profiler.EnforceUnique",
    "torch.autograd.profiler.KinetoStepTracker": "profiler.KinetoStepTracker",
    "torch.autograd.profiler_util.MemRecordsAcc": "profiler.MemRecordsAcc",
    "torch.autograd.profiler_util.StringTable": "profiler.StringTable",
    "torch.autograd.profiler_util.Kernel": "profiler.Kernel",
}

# The methods of a context that forward and backward of a Function receive.
CONTEXT = (
    *("save_for_backward", "save_for_forward", "saved_tensors", "mark_dirty", "mark_non_differentiable"),
    *("set_materialize_grads", "needs_input_grad"),
)


def lookup(path):
    found = gradmgr
    for name in path.split("."):
        found = found(1.0) if name == "()" else getattr(found, name)
    return found


@pytest.mark.parametrize("path", HERE.values(), ids=HERE.keys())
def test_is_here(path):
    lookup(path)


@pytest.mark.parametrize("path", REFUSED.values(), ids=REFUSED.keys())
def test_is_refused_with_a_reason(path):
    owner, _, name = path.rpartition(".")
    found = gradmgr.tensor(1.0) if owner == "Tensor()" else importlib.import_module(f"gradmgr.{owner}".rstrip("."))
    with pytest.raises(AttributeError) as caught:
        getattr(found, name)
    assert name in str(caught.value)
    assert len(str(caught.value)) > 60


def test_the_context_of_a_function():
    seen = []

    class Asks(gradmgr.Function):
        @staticmethod
        def forward(ctx, x):
            seen.extend(name for name in CONTEXT if hasattr(ctx, name))
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g

    x = gradmgr.tensor(1.0)
    with gradmgr.GradManager().attach(x):
        Asks.apply(x)
    assert tuple(seen) == CONTEXT


def test_the_page_names_each():
    page = PAGE.read_text()
    assert [name for name in (*HERE, *REFUSED) if name not in page] == []
