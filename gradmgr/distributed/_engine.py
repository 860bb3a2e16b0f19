"""The engines that carry arrays between ranks: MPI for NumPy arrays, NCCL for CuPy arrays."""
