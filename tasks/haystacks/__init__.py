"""Long rows of bytes in which a few sentences decide the answer: needles, lists, facts.

    haystack ………… The value of calm-river is 4821903. …………  What is the value of calm-river?
    answer                                                                          4821903

A token is a byte. A row has an exact number of bytes and ends with the answers, whose bytes are the
questions. Sentences are never cut, and every row draws their places anew.
"""
