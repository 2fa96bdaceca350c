"""Sequence to sequence: a model predicts a target from a source and the earlier target tokens.

    tokens   s1 s2 s3 _  t1 t2        the batch's prefix is 3, the source
    target   .  .  .  t1 t2 _         `_` begins the answer, and ends it

A decoder-only model reads the whole row; tokens of the prefix attend to each other in both
directions. An encoder-decoder reads the prefix by its encoder and the rest by its decoder. Rows
with shorter sources are padded at the end.

The model reads the correct target up to each position (teacher forcing). If all tokens of a row are
predicted correctly, greedy decoding writes the same target, token by token, and the other way
round. So `exact_match` is also the score of greedy decoding.
"""
