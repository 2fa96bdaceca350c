"""Recurrences S_t = D_t S_(t-1) + k_t v_t^T whose decays D_t depend on the token, in chunks."""
