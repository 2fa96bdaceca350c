import numpy as np
import pytest

from lra.tasks.language.windows import evaluation_windows, lanes, shuffled_windows


def predicted(windows):
    """Positions whose token is predicted and counts, window by window."""
    return [
        range(start + length - scored + 1, start + length + 1)
        for start, length, scored in zip(*(part.tolist() for part in windows), strict=True)
    ]


@pytest.mark.parametrize("tokens", [2, 7, 8, 9, 16, 17, 100, 101])
@pytest.mark.parametrize("stride", [1, 3, 8])
def test_each_token_but_the_first_is_predicted_once(tokens, stride):
    windows = evaluation_windows(tokens, length=8, stride=stride)
    counted = [place for window in predicted(windows) for place in window]
    assert counted == list(range(1, tokens))
    assert windows.lengths.max() <= 8
    assert windows.starts.min() == 0
    assert (windows.starts + windows.lengths < tokens).all()


def test_sliding_windows_see_what_they_promise():
    windows = evaluation_windows(1000, length=64, stride=16)
    context = windows.lengths - windows.scored
    assert context[0] == 0
    assert (context[1:] >= 48).all()


def test_windows_that_do_not_overlap_see_nothing_of_the_last():
    windows = evaluation_windows(100, length=32, stride=32)
    assert windows.starts.tolist() == [0, 32, 64, 96]
    assert windows.lengths.tolist() == windows.scored.tolist() == [32, 32, 32, 3]


def test_shuffled_windows_cover_an_epoch():
    windows = shuffled_windows(1003, length=10, seed=5)
    starts = np.sort(windows.starts)
    assert (np.diff(starts) == 10).all()
    assert 0 <= starts[0] < 10
    assert starts[-1] + 10 <= 1002
    assert len(starts) in {99, 100}
    assert not (np.diff(windows.starts) == 10).all()
    assert windows.starts.tolist() == shuffled_windows(1003, length=10, seed=5).starts.tolist()
    other = shuffled_windows(1003, length=10, seed=6).starts
    assert windows.starts.tolist() != other.tolist()


def test_a_stream_of_one_window():
    assert shuffled_windows(11, length=10, seed=0).starts.tolist() == [0]


@pytest.mark.parametrize("whole", [True, False])
def test_a_row_goes_on_from_batch_to_batch(whole):
    windows = lanes(1003, length=10, rows=4, whole=whole)
    starts, lengths = windows.starts.reshape(-1, 4), windows.lengths.reshape(-1, 4)
    assert (np.diff(starts, axis=0) == 10).all()
    counted = sorted(place for window in predicted(windows) for place in window)
    assert len(set(counted)) == len(counted)
    if whole:
        assert (lengths == 10).all()
    else:
        assert counted == list(range(1, 1003))
        assert (lengths[:-1] == 10).all()
