"""The benchmark of generation at its smallest size."""

import re

from tests import needs

pytestmark = needs.keras_hub


def test_groups_write_the_texts_of_plain_keras(run_benchmark, table):
    text = run_benchmark(
        'speed.generation', '--num_layers=2', '--width=32', '--vocab_size=20', '--batch_size=2', '--prompt_length=3',
        '--length=8', '--num_runs=1')
    rows = table(text)
    assert [row['prompts'] for row in rows] == ['4', '4', '4', '4', '2', '4']
    assert {row['same text'] for row in rows} == {'yes'}
    assert [row['what generates'] for row in rows[-2:]] == ['2 partitions, 1 group', '2 partitions, 2 groups']
    one, many = (float(row['tokens/s'].replace(',', '')) for row in rows[-2:])
    ratio = float(re.search(r'2 groups generate ([\d.]+) times', text)[1])
    assert (many - .5) / (one + .5) - .01 <= ratio <= (many + .5) / (one - .5) + .01  # the table has whole tokens
