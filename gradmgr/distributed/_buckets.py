"""`make_allreduce_cb`: gradients are averaged over the ranks while backward goes on."""
