import pytest

from lingpipe.partition import layer_layout


def ends(layout, num_layers, num_partitions):
    return layer_layout.partition_ends(layout, num_layers, num_partitions)


def test_the_layout_of_megatrons_own_documentation():
    """61 layers, one more that predicts a further token, over 16 devices with 2 partitions each.

    It says: device 0 has the embedding and 3 layers, then 2; devices 1 to 13 have 2 and 2; device 14 has 2, then the
    one that predicts further tokens; device 15 has 2, then the loss.
    """
    found = ends('Et*3|(tt|)*29,m|L', num_layers=64, num_partitions=32)
    sizes = [end - start for start, end in zip([0, *found], found)]
    assert [tuple(sizes[device::16]) for device in range(16)] == [(4, 2), *[(2, 2)] * 13, (2, 1), (2, 1)]


@pytest.mark.parametrize('layout, wanted', [
    ('EttL', [4]), ('Et|tL', [2, 4]), ('E,t*4|t*4,L', [5, 10]), ('Et|(t|)*3tL', [2, 3, 4, 5, 7]), ('tt|t', [2, 3]),
    (' E t | t L ', [2, 4]), ('(t*2|)*2L', [2, 4, 5]), ('((t|)*2t)*2', [1, 2, 4, 5, 6]), ('E*2t|t', [3, 4]),
    ('Et*0|t', [1, 2]), ('t|*1L', [1, 2])])
def test_letters_and_repeats_are_layers(layout, wanted):
    assert layer_layout.is_layout(layout)
    assert ends(layout, wanted[-1], len(wanted)) == wanted


def test_without_a_layer_for_it_the_loss_is_computed_after_the_last_one():
    assert ends('Et|ttL', num_layers=5, num_partitions=2) == [2, 5]
    assert ends('Et|ttL', num_layers=4, num_partitions=2) == [2, 4]


@pytest.mark.parametrize('layout, num_layers, num_partitions, message', [
    ('Et|L', 2, 2, r"'Et\|L' puts the loss, 'L', into a partition of its own, but the stack of 2 layers has none for it: "
                   r".*Leave out the '\|' before 'L', with one partition fewer, or move it ahead by a layer\."),
    ('Et||tL', 4, 3, r"leaves partition 1 without a layer.*Leave out one of the two '\|' around it"),
    ('(tt|)*2', 4, 3, 'leaves partition 2 without a layer'),
    ('Et|tLt', 5, 2, r"has an 'L' that is not the last layer: .*comes once, at the end\. Write it there"),
    ('EL|tL', 4, 2, "has an 'L' that is not the last layer"),
    ('Et*3|tL', 9, 2, r'has 6 layers \(1 E, 4 t, 1 L\), the stack 9\. Write one letter for each layer'),
    ('Ett|t', 3, 2, r'has 4 layers \(1 E, 3 t\), the stack 3\.'),
    ('Et|tL', 4, 3, r"has 2 partitions, not 3\. Set num_partitions times num_virtual_stages to 2, or write 2 '\|'\."),
    ('Et|dL', 4, 2, r"is no layout, because of 'd': it may have 'E' \(embedding\), .*Correct it, or give a list"),
    ('(t|t', 2, 2, r"because of '\('"), ('t*|t', 2, 2, r"because of '\*'"), ('3t|t', 2, 2, "because of '3'")])
def test_a_layout_that_does_not_fit_is_refused(layout, num_layers, num_partitions, message):
    with pytest.raises(ValueError, match=message):
        ends(layout, num_layers, num_partitions)


@pytest.mark.parametrize('value', ['flops', 'time', 'params', 'layers', [1, 2], None, ''])
def test_other_values_are_no_layouts(value):
    assert not layer_layout.is_layout(value)
