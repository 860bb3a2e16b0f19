"""Every name of the torch.autograd page: it is here by the same name and with the same parameters, or refused.

Where the parameters differ it is said why; what is refused raises an error that says why.
"""

import importlib
import inspect
import re

import pytest
from helpers import ROOT

import gradmgr

PAGE = ROOT / "docs" / "torch_autograd.md"

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

# The parameters that torch 2.13 has: from its signatures or, of what is written in C++, its documentation.
PARAMETERS = {
    "torch.autograd.backward": (
        "(tensors, grad_tensors=None, retain_graph=None, create_graph=False, grad_variables=None, inputs=None)"
    ),
    "torch.autograd.grad": (
        "(outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, only_inputs=True, "
        "allow_unused=None, is_grads_batched=False, materialize_grads=False)"
    ),
    "torch.autograd.forward_ad.dual_level": "()",
    "torch.autograd.forward_ad.make_dual": "(tensor, tangent, *, level=None)",
    "torch.autograd.forward_ad.unpack_dual": "(tensor, *, level=None)",
    "torch.autograd.forward_ad.enter_dual_level": "()",
    "torch.autograd.forward_ad.exit_dual_level": "(*, level=None)",
    "torch.autograd.forward_ad.UnpackedDualTensor": "(primal, tangent)",
    "torch.autograd.functional.jacobian": (
        "(func, inputs, create_graph=False, strict=False, vectorize=False, strategy='reverse-mode')"
    ),
    "torch.autograd.functional.hessian": (
        "(func, inputs, create_graph=False, strict=False, vectorize=False, outer_jacobian_strategy='reverse-mode')"
    ),
    "torch.autograd.functional.vjp": "(func, inputs, v=None, create_graph=False, strict=False)",
    "torch.autograd.functional.jvp": "(func, inputs, v=None, create_graph=False, strict=False)",
    "torch.autograd.functional.vhp": "(func, inputs, v=None, create_graph=False, strict=False)",
    "torch.autograd.functional.hvp": "(func, inputs, v=None, create_graph=False, strict=False)",
    "torch.no_grad": "()",
    "torch.enable_grad": "(orig_func=None)",
    "torch.set_grad_enabled": "(mode)",
    "torch.inference_mode": "(mode=True)",
    "torch.is_grad_enabled": "()",
    "torch.is_inference_mode_enabled": "()",
    "torch.autograd.grad_mode.set_multithreading_enabled": "(mode)",
    "torch.Tensor.backward": "(self, gradient=None, retain_graph=None, create_graph=False, inputs=None)",
    "torch.Tensor.detach": "(self)",
    "torch.Tensor.detach_": "(self)",
    "torch.Tensor.register_hook": "(self, hook)",
    "torch.Tensor.register_post_accumulate_grad_hook": "(self, hook)",
    "torch.Tensor.retain_grad": "(self)",
    "torch.Tensor.clone": "(self, *, memory_format=torch.preserve_format)",
    "torch.autograd.Function": "(*args, **kwargs)",
    "torch.autograd.Function.forward": "(*args, **kwargs)",
    "torch.autograd.Function.backward": "(ctx, *grad_outputs)",
    "torch.autograd.Function.vjp": "(ctx, *grad_outputs)",
    "torch.autograd.Function.jvp": "(ctx, *grad_inputs)",
    "torch.autograd.Function.vmap": "(info, in_dims, *args)",
    "torch.autograd.Function.setup_context": "(ctx, inputs, output)",
    "torch.autograd.Function.apply": "(*args, **kwargs)",
    "torch.autograd.function.once_differentiable": "(fn)",
    "torch.autograd.gradcheck": (
        "(func, inputs, *, eps=1e-06, atol=1e-05, rtol=0.001, raise_exception=True, nondet_tol=0.0, "
        "check_undefined_grad=True, check_grad_dtypes=False, check_batched_grad=False, "
        "check_batched_forward_grad=False, check_forward_ad=False, check_backward_ad=True, fast_mode=False, "
        "masked=None)"
    ),
    "torch.autograd.gradgradcheck": (
        "(func, inputs, grad_outputs=None, *, eps=1e-06, atol=1e-05, rtol=0.001, "
        "gen_non_contig_grad_outputs=False, raise_exception=True, nondet_tol=0.0, check_undefined_grad=True, "
        "check_grad_dtypes=False, check_batched_grad=False, check_fwd_over_rev=False, "
        "check_rev_over_rev=True, fast_mode=False, masked=False)"
    ),
    "torch.autograd.detect_anomaly": "(check_nan=True)",
    "torch.autograd.set_detect_anomaly": "(mode, check_nan=True)",
    "torch.autograd.graph.Node": "()",
    "torch.autograd.graph.Node.name": "(self)",
    "torch.autograd.graph.Node.register_hook": "(self, fn)",
    "torch.autograd.graph.Node.register_prehook": "(self, fn)",
    "torch.autograd.graph.GradientEdge": "(node, output_nr, ownership_token=None)",
    "torch.autograd.graph.get_gradient_edge": "(tensor)",
    "torch.autograd.graph.increment_version": "(tensor)",
    "torch.autograd.graph.saved_tensors_hooks": "(pack_hook, unpack_hook)",
    "torch.autograd.graph.save_on_cpu": "(pin_memory=False, device_type='cuda')",
    "torch.autograd.graph.disable_saved_tensors_hooks": "(error_message)",
    "torch.autograd.graph.register_multi_grad_hook": "(tensors, fn, *, mode='all')",
    "torch.autograd.graph.allow_mutation_on_saved_tensors": "()",
    "torch.autograd.profiler.profile": (
        "(enabled=True, *, use_cuda=False, use_device=None, record_shapes=False, with_flops=False, "
        "profile_memory=False, with_stack=False, with_modules=False, use_kineto=False, use_cpu=True, "
        "experimental_config=None, acc_events=False, custom_trace_id_callback=None, "
        "post_processing_timeout_s=None, activity_filters=None)"
    ),
    "torch.autograd.profiler.profile.export_chrome_trace": "(self, path, metadata=None, use_python_export=False)",
    "torch.autograd.profiler.profile.key_averages": (
        "(self, group_by_input_shape=False, group_by_stack_n=0, group_by_overload_name=False)"
    ),
    "torch.autograd.profiler.profile.total_average": "(self)",
    "torch.autograd.profiler.record_function": "(name, args=None)",
    "torch.autograd.profiler_util.Interval": "(start, end)",
    "torch.autograd.profiler.emit_nvtx": "(enabled=True, record_shapes=False)",
    "torch.autograd.profiler.emit_itt": "(enabled=True, record_shapes=False)",
    "torch.utils.checkpoint.checkpoint": (
        "(function, *args, use_reentrant=None, context_fn=..., determinism_check='default', debug=False, "
        "early_stop=True, **kwargs)"
    ),
    "torch.utils.checkpoint.checkpoint_sequential": "(functions, segments, input, use_reentrant=None, **kwargs)",
    "torch.vmap": "(func, in_dims=0, out_dims=0, randomness='error', *, chunk_size=None)",
}

_STRICTER = "gradcheck here is stricter, and checks forward mode and further orders"
_KINETO = "Kineto, which is not here, has what it steers"

# Where ours differ: what they are, and why.
_NESTS = "without create_graph a derivative within a transform is recorded there"
_AS_GRAD = f"without inputs it gives a function of them, as functional.grad does; {_NESTS}"

DIFFERENT = {
    "torch.autograd.functional.jacobian": (
        "(func, inputs=None, create_graph=None, strict=False, vectorize=False, strategy='reverse-mode')",
        _AS_GRAD,
    ),
    "torch.autograd.functional.hessian": (
        "(func, inputs=None, create_graph=None, strict=False, vectorize=False, outer_jacobian_strategy='reverse-mode')",
        _AS_GRAD,
    ),
    **{
        f"torch.autograd.functional.{name}": (
            "(func, inputs=None, v=None, create_graph=None, strict=False)",
            _AS_GRAD,
        )
        for name in ("vjp", "jvp", "vhp", "hvp")
    },
    "torch.autograd.grad": (
        PARAMETERS["torch.autograd.grad"].replace("create_graph=False", "create_graph=None"),
        _NESTS,
    ),
    "torch.autograd.backward": (
        "(tensors, grad_tensors=None, retain_graph=None, create_graph=None, inputs=None)",
        f"{_NESTS}; grad_variables is a deprecated name of grad_tensors",
    ),
    "torch.Tensor.backward": ("(self, gradient=None, retain_graph=None, create_graph=None, inputs=None)", _NESTS),
    "torch.no_grad": ("(function=None)", "what is decorated without parentheses; torch takes it and does not say so"),
    "torch.enable_grad": ("(function=None)", "only the name of what is decorated"),
    "torch.Tensor.clone": ("(self)", "NumPy has no memory formats"),
    "torch.autograd.gradcheck": (
        "(func, inputs, *, eps=1e-06, atol=1e-06, rtol=1e-05, raise_exception=True, nondet_tol=0.0, "
        "check_undefined_grad=True, check_grad_dtypes=True, check_batched_grad=False, "
        "check_batched_forward_grad=False, check_forward_ad=True, check_backward_ad=True, fast_mode=False, "
        "masked=None, order=1, complex_step=False, seed=0)",
        _STRICTER,
    ),
    "torch.autograd.gradgradcheck": (
        "(func, inputs, grad_outputs=None, *, eps=1e-06, atol=1e-06, rtol=1e-05, "
        "gen_non_contig_grad_outputs=False, raise_exception=True, nondet_tol=0.0, check_undefined_grad=True, "
        "check_grad_dtypes=True, check_batched_grad=False, check_fwd_over_rev=True, check_rev_over_rev=True, "
        "fast_mode=False, masked=None, seed=0)",
        _STRICTER,
    ),
    "torch.autograd.graph.Node": (
        "(tape, node_id, name, *, has_result_entries=False)",
        "programs make none, here or there",
    ),
    "torch.autograd.graph.GradientEdge": ("(node, output_nr)", "the token keeps C++ objects alive"),
    "torch.autograd.profiler.profile": (
        "(enabled=True, *, use_device=None, use_cuda=False, record_shapes=False, with_flops=False, "
        "profile_memory=False, with_stack=False, with_modules=False, **kineto)",
        "the rest steers Kineto, which is not here, and is taken at its defaults only",
    ),
    "torch.autograd.profiler.profile.export_chrome_trace": ("(self, path)", _KINETO),
    "torch.autograd.profiler.profile.key_averages": (
        "(self, group_by_input_shape=False, group_by_stack_n=0)",
        "ops have no overloads here",
    ),
    "torch.utils.checkpoint.checkpoint": (
        "(function, /, *args, use_reentrant=None, context_fn=..., determinism_check='default', debug=False, "
        "early_stop=True, preserve_rng_state=True, generators=(), **kwargs)",
        "torch takes preserve_rng_state out of kwargs; NumPy's generators are objects",
    ),
    "torch.utils.checkpoint.checkpoint_sequential": (
        "(functions, segments, input, use_reentrant=None, **options)",
        "only the name of the ** parameter",
    ),
}

# What takes no parameters.
ATTRIBUTES = {
    *("torch.Tensor.grad", "torch.Tensor.requires_grad", "torch.Tensor.is_leaf", "torch.Tensor.grad_fn"),
    *("torch.Tensor.retains_grad", "torch.autograd.graph.Node.metadata", "torch.autograd.graph.Node.next_functions"),
    "torch.autograd.profiler.profile.self_cpu_time_total",
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
def test_a_name_of_torch_exists(path):
    lookup(path)


def parameters(path):
    signature = inspect.signature(lookup(path))
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return re.sub("<function [^>]*>", "...", str(signature.replace(parameters=bare, return_annotation=signature.empty)))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_torch(name):
    ours, why = DIFFERENT.get(name, (PARAMETERS[name], "the same"))
    assert parameters(HERE[name]) == ours, why


def test_every_name_is_compared():
    assert PARAMETERS.keys() | ATTRIBUTES | {"torch.autograd.gradcheck.GradcheckError"} == HERE.keys()
    assert not PARAMETERS.keys() & ATTRIBUTES
    assert all(isinstance(lookup(HERE[name]), property) for name in ATTRIBUTES)
    assert [name for name, (ours, _) in DIFFERENT.items() if ours == PARAMETERS[name]] == []


@pytest.mark.parametrize("path", REFUSED.values(), ids=REFUSED.keys())
def test_a_name_that_is_missing_is_refused_with_a_reason(path):
    owner, _, name = path.rpartition(".")
    found = gradmgr.tensor(1.0) if owner == "Tensor()" else importlib.import_module(f"gradmgr.{owner}".rstrip("."))
    with pytest.raises(AttributeError) as caught:
        getattr(found, name)
    assert name in str(caught.value)
    assert len(str(caught.value)) > 60


@pytest.mark.parametrize("name", ["autograd", "func"])
def test_where_the_contents_of_other_modules_are(name):
    with pytest.raises(AttributeError, match=rf"module 'gradmgr' has no attribute '{name}': .*gradmgr.functional"):
        getattr(gradmgr, name)


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
