"""Modules made of modules: Sequential, ModuleList, ModuleDict."""
