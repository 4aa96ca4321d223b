"""The benchmark of the first step, of a short AmoebaNet here and of the whole one in the command."""


def test_the_command_and_a_model_are_compared_with_plain_keras(run_benchmark, short_amoebanet, table):
    plain, pipelined, command = table(run_benchmark('speed.first_step', '--runs=1'))
    assert plain['of plain Keras'] == '1.00' and plain['what'].startswith('plain Keras')
    assert all(float(row['seconds']) > 0 for row in (pipelined, command))
