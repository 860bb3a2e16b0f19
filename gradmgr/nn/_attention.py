"""Attention: softmax of scaled scores, times values, in one op."""
