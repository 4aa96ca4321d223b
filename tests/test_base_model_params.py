import pytest

from lingpipe import base_model_params, hyperparams


class Task:
    @classmethod
    def Params(cls):
        p = hyperparams.InstantiableParams(cls)
        p.Define('num_layers', 2, 'Number of layers.')
        p.Define('train', hyperparams.Params(), 'Training.')
        p.train.Define('max_steps', 100, 'Steps.')
        p.Define('eval', hyperparams.Params(), 'Evaluation.')
        p.eval.Define('samples', 5, 'Examples.')
        return p


def input_params(split):
    p = hyperparams.Params()
    p.Define('split', split, 'Part of the data.')
    return p


class Experiment(base_model_params.SingleTaskModelParams):
    NUM_LAYERS = 3

    def Train(self):
        return input_params('train')

    def Test(self):
        return input_params('test')

    def Task(self):
        return Task.Params().Set(num_layers=self.NUM_LAYERS)


class Deeper(Experiment):
    NUM_LAYERS = 30

    def Dev(self):
        return input_params('dev')


def test_model_leaves_the_params_that_task_returned_as_they_are():
    p = Task.Params()

    class Shared(Experiment):
        def Task(self):
            return p

    model = Shared().Model()
    model.train.max_steps = 1
    assert p == Task.Params()
    assert Shared().Model().train.max_steps == 100


def test_datasets_are_those_that_a_class_or_its_base_defines():
    assert Experiment().GetDatasetNames() == ['Train', 'Test']
    assert Deeper().GetDatasetNames() == ['Train', 'Dev', 'Test']
    datasets = Deeper().GetAllDatasetParams()
    assert {name: p.split for name, p in datasets.items()} == {'Train': 'train', 'Dev': 'dev', 'Test': 'test'}
    assert type('Untested', (Deeper,), {'Test': None})().GetDatasetNames() == ['Train', 'Dev']


def test_methods_may_change_and_return_params_that_they_share():
    class Sharing(Experiment):
        INPUT = Experiment().Train()

        def Train(self):
            return self.INPUT

        def Test(self):
            return self.INPUT.Set(split='test')

    assert {name: p.split for name, p in Sharing().GetAllDatasetParams().items()} == {'Train': 'train', 'Test': 'test'}


def test_missing_methods_say_what_to_write():
    with pytest.raises(NotImplementedError, match=r'Experiment does not define Dev\(\); add `def Dev\(self\):`'):
        Experiment().GetDatasetParams('Dev')
    with pytest.raises(NotImplementedError, match=r'add `def Task\(self\):` to it, returning the Params of a task'):
        base_model_params.SingleTaskModelParams().Model()


@pytest.mark.parametrize('name', ['Tets', 'test', 'Task', 'Model', '__init__'])
def test_unknown_dataset_is_a_lookup_error(name):
    with pytest.raises(LookupError, match=f"Experiment has no dataset '{name}'.*Test"):
        Experiment().GetDatasetParams(name)


def test_task_without_train_params_is_refused():
    class Untrained(Experiment):
        def Task(self):
            return Task.Params().Delete('train')

    with pytest.raises(AttributeError, match=r'Untrained.Task\(\) returns Params without train; define it there'):
        Untrained().Model()


@pytest.mark.parametrize('method', ['Task', 'Train', 'Test'])
def test_a_method_without_a_return_is_named(method):
    forgetful = type('Forgetful', (Experiment,), {method: lambda self: None})()
    with pytest.raises(ValueError, match=rf'^Forgetful.{method}\(\) returns None, where Params are needed. End it with a'):
        forgetful.Model() if method == 'Task' else forgetful.GetDatasetParams(method)
