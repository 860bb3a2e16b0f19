"""The modules of gradmgr.nn; the functions of a file are in the file of the same name in `_functions`."""
