"""The functions of gradmgr.nn, by PyTorch's chapters."""
