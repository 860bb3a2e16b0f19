"""Derivatives as functions of functions: vjp, jvp, jacobian, hessian, vhp, hvp, grad, value_and_grad."""
