"""Other libraries' names over gradmgr's own functions: `gradmgr.compat.autograd` for programs of HIPS autograd.

A layer of names and argument order, with no engine of its own. Nothing here is imported before a program asks for it.

What it cannot do, as it depends on the inside of autograd's tracer:

* Subclasses of `Box` and `ArrayBox`, `Box.register`, `VSpace.register` and node classes: a traced value is a
  `gradmgr.Tensor`, and what can be differentiated by is floating or complex arrays and numbers in nested lists, tuples,
  dicts and dataclasses. `Box`, `VSpace.register`, `tracer.Node`, `trace` and `new_box` raise an error that says so;
  `VJPNode` and `JVPNode` are names for `register_notrace` only.
* `defvjp` and `defjvp` for a function that the program did not make with `primitive`, such as NumPy's: the rule is not
  used, with a warning, and gradmgr's own rules hold.
* Readers of autograd's graph: `full_graph` raises; `gradmgr.graph` shows gradmgr's. `const_graph` is `gradmgr.compile`,
  which checks what autograd takes on trust.
* Derivatives by `longdouble` and `clongdouble`.
"""
