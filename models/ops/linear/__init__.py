"""Attention by features of queries and keys, whose products are the weights."""
