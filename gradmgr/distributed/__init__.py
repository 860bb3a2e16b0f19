"""Data-parallel and pipelined training over MPI or NCCL."""
