"""What an array is: array libraries, batched arrays and their rules, blocks, the allocator."""
