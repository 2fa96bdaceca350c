"""Attention by features of queries and keys, whose products are the weights.

`features` maps queries and keys, `random_features` draws maps; `feature_product` is the product of
features and values over whole sequences, `causal_product` its causal form in chunks, and
`feature_core` a family's core made of both. `exponent_sums` and `gaussian_product` are exact where
sums of features would underflow, `running_product` is Luna's product of running sums.
"""
