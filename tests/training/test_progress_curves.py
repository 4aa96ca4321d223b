import keras
import pytest

from lingpipe.training import errors
from tests.curves import read
from tests.programs import tiny_digits


def test_training_writes_every_curve_at_its_interval(finished):
    curves = read(finished.logdir / 'train')
    for name in ('loss', 'accuracy', 'learning_rate', 'gradient_norm', 'images_per_second'):
        assert [step for step, _ in curves[name]] == [4, 8, 12]
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    for step, rate in curves['learning_rate']:
        assert rate == pytest.approx(0.1 * 0.5 ** (step / 10)) == pytest.approx(float(schedule(step)))
    assert all(value > 0 for _, value in curves['gradient_norm'] + curves['images_per_second'])
    assert curves['loss'][0][1] > curves['loss'][-1][1]


def test_training_writes_its_partitions(finished):
    curves = read(finished.logdir / 'train')
    table = curves['partitions'][0][1].item().decode()
    assert 'flatten_0 .. dense_1' in table and all(line.startswith('    ') for line in table.splitlines())


def test_a_stopped_run_has_its_last_curves(tiny, tmp_path):
    with pytest.raises(errors.TrainingError, match='not finite'):
        tiny.train(tmp_path, 'PoisonedDigits', train__summary_interval_steps=1)
    assert [step for step, _ in read(tmp_path / 'train')['loss']] == [1, 2, 3, 4, 5]


def test_a_run_tells_how_long_it_waited_for_its_input(tiny, tmp_path, capsys):
    made = tiny.trainer(tmp_path, 'StarvedDigits', train__max_steps=4, train__steps_per_loop=2)
    made.run()
    assert float(made._program.batch_waits.seconds) >= 4 * tiny_digits.SLOW_SECONDS * 0.99
    told = capsys.readouterr().err.splitlines()[-1]
    shares = {word.split()[0]: int(word.split()[1]) for word in told.partition(': ')[2].split(', ')}
    assert told.startswith('Time ') and list(shares) == ['steps', 'input', 'saving', 'evaluation']
    assert shares['input'] > 0 and sum(shares.values()) == pytest.approx(100, abs=2)
