"""Operations of all ranks together, differentiable: broadcast, all_reduce, all_gather, barrier."""
