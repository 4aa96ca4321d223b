import numpy as np
import pytest
import tensorflow as tf

from lingpipe.training import checkpoint_contents, errors, experiment, initial_weights

ALL = [('(.*)', '%s')]


@pytest.fixture
def load(tiny):
    """Function that builds the tiny model with other names for some layers and loads weights; returns {name: array}."""

    def load(names=(), units=10, **given):
        params = tiny.params(train__random_seed=5, **{f'train__{field}': value for field, value in given.items()})
        params.task.body.layers[-1].units = units
        for position, name in dict(names).items():
            params.task.body.layers[position].Set(name=name)
        experiment.validate_training_params(params.train, params.eval)
        body = experiment.build_task(params, tf.TensorSpec([32, 8, 8, 1])).body
        fresh = {name: variable.numpy() for name, variable in checkpoint_contents.model_variables(body).items()}
        initial_weights.load(params.train, body)
        return fresh, {name: variable.numpy() for name, variable in checkpoint_contents.model_variables(body).items()}

    return load


@pytest.fixture
def source(finished, stored):
    """The path of a checkpoint, and {name: array} of the weights in it."""
    path = str(finished.logdir / 'train/ckpt-12')
    weights = {name.removeprefix('model/').partition('/.ATTR')[0]: value for name, value in stored(path).items()
               if name.startswith('model/')}
    return path, weights


def same(found, expected):
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_rules_map_names_and_what_they_leave_alone_starts_afresh(load, source, capsys):
    path, weights = source
    rules = {path: ([('body/(.*)', 'dense_1/%s'), *ALL], ['head/', 'batch_normalization_2/00[01]'])}
    fresh, found = load({1: 'body', 4: 'head'}, units=3, init_from_checkpoint_rules=rules)
    assert capsys.readouterr().out == (
        f'4 of 8 variables come from {path}; these are newly initialised: batch_normalization_2/000_gamma, '
        'batch_normalization_2/001_beta, head/000_kernel, head/001_bias.\n')
    norm = 'batch_normalization_2/'
    same(found, {**fresh, **{f'body/{name}': weights[f'dense_1/{name}'] for name in ('000_kernel', '001_bias')},
                 **{norm + name: weights[norm + name] for name in ('002_moving_mean', '003_moving_variance')}})


def test_a_later_checkpoint_has_the_last_word_and_averages_can_be_named(load, source, stored, tmp_path):
    path, weights = source
    bias = weights['dense_1/001_bias']
    tf.train.Checkpoint(model={'one': tf.Variable(bias * 2)}).write(str(tmp_path / 'other'))
    rules = {f'{path}.index': ([('(.*)', 'moving_average/%s')], []),
             str(tmp_path / 'other'): ([('dense_1/001_bias|batch_normalization_2/00[01].*', 'one')], [])}
    _, found = load(init_from_checkpoint_rules=rules)
    averages = {name: stored(path)[f'moving_average/{name}/.ATTRIBUTES/VARIABLE_VALUE'] for name in found}
    same(found, {**averages, **dict.fromkeys(
        ('dense_1/001_bias', 'batch_normalization_2/000_gamma', 'batch_normalization_2/001_beta'), bias * 2)})


def test_without_rules_what_the_checkpoint_lacks_is_named(load, source, capsys):
    path, weights = source
    fresh, found = load({4: 'head'}, units=3, init_from_checkpoint=path)
    same(found, {**{name: value for name, value in weights.items() if not name.startswith('dense_4')},
                 **{name: fresh[name] for name in ('head/000_kernel', 'head/001_bias')}})
    assert capsys.readouterr().out == (f'6 of 8 variables come from {path}; these are newly initialised: '
                                       'head/000_kernel, head/001_bias.\n')


@pytest.mark.parametrize('rules, error, message', [
    ((ALL, ['haed/']), ValueError, "'haed/' matches no variable of the model; the nearest of 8 are: .*Change it, or "
                                   "leave it out"),
    (([('haed/(.*)', '%s')], []), ValueError, "'haed/.*' matches no variable of the model"),
    (([('head/(.*)', 'dense_5/%s')], []), errors.TrainingError,
     "ckpt-12 has no variable 'dense_5/000_kernel' for head/000_kernel; did you mean .*dense_4/000_kernel.* to be left "
     "alone"),
    (([('head/(.*)', 'dense_1/%s')], []), errors.TrainingError,
     r"dense_1/000_kernel of shape \[64, 16\], but head/000_kernel of this model has \[16, 10\]. To initialise it instead, "
     r"set .*\['head/'\]"),
    ((ALL, 'head/'), ValueError, "'head/' is not a list. It must be a dictionary from paths"),
    (([('(.*', '%s')], []), ValueError, 'is not possible: missing'),
    (([('(.*)', '%d')], []), ValueError, 'is not possible'), (([('(.*)', '%s%')], []), ValueError, 'is not possible'),
    (([('.*', '%s')], []), ValueError, 'is not possible'), (3, ValueError, 'is not possible')])
def test_rules_that_cannot_work_are_named(load, source, rules, error, message):
    with pytest.raises(error, match=message):
        load({4: 'head'}, init_from_checkpoint_rules={source[0]: rules})


def test_what_is_of_another_model_altogether_is_refused(load, source):
    path, _ = source
    with pytest.raises(errors.TrainingError, match='has no variable of this model, only such as'):
        load({1: 'a', 2: 'b', 4: 'c'}, init_from_checkpoint=path)
    with pytest.raises(errors.TrainingError, match=r"To initialise it instead, set .*\(\[\('\(\.\*\)', '%s'\)\], "
                                                   r"\['dense_4/'\]\)\}"):
        load(units=3, init_from_checkpoint=path)
    with pytest.raises(ValueError, match='were both given. Give one of them'):
        load(init_from_checkpoint=path, init_from_checkpoint_rules={path: (ALL, [])})
