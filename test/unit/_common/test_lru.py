"""The one cache behind the session model's images, the service's images and the embeddings of the 2024 API."""

import pytest

from triton_sam._common.lru import ByteLru


def filled(limit, *sizes):
    cache = ByteLru(limit)
    for name, nbytes in zip("abcdef", sizes, strict=False):
        cache.put(name, name.upper(), nbytes)
    return cache


def test_values_unused_for_longest_make_room():
    cache = filled(10, 4, 4)
    assert cache.get("a") == "A"
    assert cache.put("c", "C", 4) == 1
    assert list(cache.values()) == ["A", "C"]
    assert (cache.nbytes, len(cache), cache.get("b")) == (8, 2, None)


def test_a_look_without_use_changes_no_age():
    cache = filled(10, 4, 4)
    assert cache.peek("a") == "A"
    cache.put("c", "C", 4)
    assert cache.peek("a") is None


def test_a_value_larger_than_the_limit_is_kept_alone():
    cache = filled(10, 4, 4)
    assert cache.put("c", "C", 99) == 2
    assert (list(cache.values()), cache.nbytes) == (["C"], 99)
    assert cache.put("d", "D", 1) == 1


def test_a_key_is_replaced_without_counting_as_gone():
    cache = filled(10, 5, 5)
    assert cache.put("a", "new", 5) == 0
    assert (list(cache.values()), cache.nbytes) == (["B", "new"], 10)


def test_a_value_that_grows_may_be_the_one_that_goes():
    cache = filled(10, 2, 2)
    cache.resize("b", 7)
    assert (list(cache.values()), cache.nbytes) == (["A", "B"], 9)
    cache.resize("a", 4)
    assert (list(cache.values()), cache.nbytes) == (["B"], 7)
    cache.resize("b", 70)  # the last one stays
    assert (len(cache), cache.nbytes) == (1, 70)


def test_what_is_removed_is_no_longer_counted():
    cache = filled(10, 3, 4)
    assert (cache.remove("a"), cache.remove("a"), cache.nbytes) == (True, False, 4)
    assert cache.remove_oldest() == 4
    with pytest.raises(KeyError):
        cache.remove_oldest()
    assert (cache.nbytes, len(cache)) == (0, 0)
