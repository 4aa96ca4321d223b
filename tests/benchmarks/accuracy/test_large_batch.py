"""The experiment on large batches at its smallest size."""

_TINY = ['--batch_sizes=40', '--seeds=0', '--epochs=1', '--filters=8']


def test_a_row_has_both_optimizers_and_divergence_counts_as_chance(
        short_resnet, load_benchmark, capsys):
    load_benchmark('accuracy.large_batch', *_TINY, '--sgd_rates=1e30', '--lars_rates=1').main([])
    text = capsys.readouterr().out
    (row,) = [line.strip('|').split('|') for line in text.splitlines() if line.startswith('| 40')]
    batch, steps, sgd, lars = map(float, row)
    assert (batch, steps, sgd) == (40, 36, 10.0)
    assert 0 <= lars <= 100
    assert 'Machine: ' in text
