"""SingleTaskModelParams, the class with which a user defines an experiment."""


from lingpipe import hyperparams, wording

_DATASETS = ('Train', 'Dev', 'Test')


class SingleTaskModelParams:
    """An experiment. A subclass defines `Train()` and `Task()`, and optionally `Dev()` and `Test()`.

    To make a variant, subclass the experiment, and override class constants or methods:

        @model_registry.RegisterSingleTaskModel
        class LeNet5(base_model_params.SingleTaskModelParams):
            NUM_PARTITIONS = 1

            def Train(self):
                return image_input.ImageInput.Params().Set(name='mnist', split='train', batch_size=256)

            def Task(self):
                ...

        @model_registry.RegisterSingleTaskModel
        class LeNet5OnFourDevices(LeNet5):
            NUM_PARTITIONS = 4
    """

    def Train(self) -> hyperparams.Params:
        """Return the Params of the input to train on."""
        raise self._MissingError('Train', 'the Params of the input to train on')

    def Dev(self) -> hyperparams.Params:
        """Return the Params of the input for evaluation during development."""
        raise self._MissingError('Dev', 'the Params of an input')

    def Test(self) -> hyperparams.Params:
        """Return the Params of the input for the final evaluation."""
        raise self._MissingError('Test', 'the Params of an input')

    def Task(self) -> hyperparams.Params:
        """Return the Params of the task. They must have the fields `train` and `eval`."""
        raise self._MissingError('Task', "the Params of a task, such as a classifier's")

    def _MissingError(self, method, result):
        name = type(self).__name__
        return NotImplementedError(f'{name} does not define {method}(); add `def {method}(self):` to it, '
                                   f'returning {result}.')

    def _Made(self, method):
        params = getattr(self, method)()
        if not isinstance(params, hyperparams.Params):
            raise ValueError(f'{type(self).__name__}.{method}() returns {params!r}, where Params are needed. End it '
                             'with a `return` of them.')
        return params.Copy()  # methods may change and return Params that they share

    def Model(self) -> hyperparams.Params:
        """Return the Params of the experiment, with the fields `task`, `train` and `eval`.

        `train` and `eval` move out of the task's Params. A path is `train.max_steps`, not `task.train.max_steps`.

        Raises:
            AttributeError: the task's Params lack `train` or `eval`.
        """
        task = self._Made('Task')
        model = hyperparams.Params()
        model.Define('task', task, 'The model with its loss and metrics.')
        for name, description in (('train', 'How the task is trained.'), ('eval', 'How the task is evaluated.')):
            if name not in task:
                raise AttributeError(f'{type(self).__name__}.Task() returns Params without {name}; define it there.')
            model.Define(name, task.Get(name), description)
            task.Delete(name)
        return model

    def GetDatasetNames(self) -> list[str]:
        """Return the names of the defined datasets. In a subclass, `Test = None` removes an inherited `Test()`."""
        return [name for name in _DATASETS
                if getattr(type(self), name) not in (None, getattr(SingleTaskModelParams, name))]

    def GetDatasetParams(self, name: str) -> hyperparams.Params:
        """Return the Params of the input called 'Train', 'Dev' or 'Test'.

        Raises:
            LookupError: `name` is not one of these three names.
            NotImplementedError: this experiment does not define that dataset.
        """
        if name not in _DATASETS:
            nearest = wording.did_you_mean(str(name), _DATASETS)
            raise LookupError(f'{type(self).__name__} has no dataset {name!r}{nearest}')
        return self._Made(name)

    def GetAllDatasetParams(self) -> dict[str, hyperparams.Params]:
        """Return {name: Params of the input} for every dataset that this experiment defines."""
        return {name: self.GetDatasetParams(name) for name in self.GetDatasetNames()}
