"""Sequence to sequence: a target is answered token by token, from a source and what stands before.

    tokens   s1 s2 s3 _  t1 t2        the batch's prefix is 3, the source
    target   .  .  .  t1 t2 _         `_` begins the answer, and ends it

A decoder alone reads the row as it is, its prefix seeing itself both ways; an encoder-decoder reads
the prefix by its encoder and the rest by its decoder. Rows of unequal sources are padded behind.

Every answer sees the right ones before it (teacher forcing). A row all of whose answers are right
is what greedy decoding writes as well: each token is the likeliest behind those before, which are
the right ones by induction, and the other way round. So `exact_match` is that of greedy decoding.
"""
