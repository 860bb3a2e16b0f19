"""The functions of gradmgr.nn, in files by kind."""
