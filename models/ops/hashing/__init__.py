"""Attention among tokens that hash alike."""
