import pytest

from lingpipe.planner import picture


@pytest.mark.parametrize('text, expected', [
    ('16GiB', 2**34), ('8 gb', 8 * 10**9), ('1.5MiB', 3 * 2**19), ('16e9', 16 * 10**9), (1024, 1024),
    (16e9, 16 * 10**9), ('2B', 2)])
def test_sizes_are_read_as_people_write_them(text, expected):
    assert picture.to_bytes('device_memory', text) == expected


@pytest.mark.parametrize('text', ['much', '16 GiB of', '-3GB', '0GiB', '3 Gibi', ''])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match='device_memory=.* is no size of a memory. Write it as 16GiB'):
        picture.to_bytes('device_memory', text)


def test_sizes_are_shown_in_the_largest_unit_that_they_fill():
    assert [picture.to_text(size) for size in (512, 3 * 2**19, 2**34, 3 * 2**40)] == [
        '0.50 KiB', '1.50 MiB', '16.00 GiB', '3.00 TiB']
