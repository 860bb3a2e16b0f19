"""The modules of gradmgr.nn; each file stands beside the file of its functions in `_functions`."""
