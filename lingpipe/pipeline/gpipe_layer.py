"""GPipeLayer: a stack of layers, cut into partitions on different devices."""

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from lingpipe import hyperparams, patches, schedules
from lingpipe.devices import collectives, device_kinds, variable_placement
from lingpipe.partition import balancing, selection
from lingpipe.pipeline import construction, layer_sources, loss_pass, stage_grid, tape_pass, validation
from lingpipe.private_api import stateless_scope
from lingpipe.stages import boundary, losses, micro_batches, random_seeds, stage


class _Untracked:
    """Objects of a pipeline that Keras and TensorFlow do not save."""

    def __init__(self, source: layer_sources.LayerSource, chosen: list[str]) -> None:
        self.source, self.chosen = source, chosen
        self.losses: dict[Any, loss_pass.StageLoss] = {}
        self.grid: stage_grid.StageGrid | None = None
        self.functions: dict[tuple, Callable] = {}  # traced
        self.placed: dict[int, tuple[keras.Variable, str]] = {}  # by id; keeps the variables, so that ids stay unique


@construction.with_fields
class GPipeLayer(construction.Constructors):
    """Pipeline parallelism over a sequence of layers (GPipe, arXiv 1811.06965).

    A batch is cut into micro-batches, which follow each other through the partitions. Gradients are summed over
    micro-batches and applied once. The sums equal the gradients of one device, for any cuts and any recomputation::

        layers      [0 1 2 3]  [4 5 6]  [7 8 9]      num_partitions=3
        devices       CPU:0     CPU:1    CPU:2
        micro-batch     2   ->    1   ->   0         num_micro_batches=3

    The pipeline is a Keras layer. It works under `tf.GradientTape`, in Functional models and in `model.fit`.

    A Params object or keyword arguments define the pipeline. The arguments are the fields of Params. Only the argument
    `layers` differs: it is a list of Keras layers, which keep their weights. With keyword arguments or `from_keras`,
    four fields are 'auto' by default, and `print(pipe)` shows the values that 'auto' chose::

        num_partitions     one partition per device
        schedule           '1f1b', or 'interleaved_1f1b' if V > 1
        recompute          as little as `memory_limit` or the memory of a GPU allows; on accelerators, 'stage' if
                           their memory or the batch size is unknown
        num_micro_batches  1 if K is 1; else 4 K, for a small bubble (GPipe, section 2.3); with `batch_size`, the
                           largest number up to 4 K that divides the rows of a replica

    Args:
        source: the `LayerSource` with the layers of `params`; None: one is made from the fields of `params`.
        **fields: fields of `Params()`, listed below, except `model`.

    Attributes:
        model: the Keras model that the pipeline was made from, or None.
        schedule: the `Schedule` of a training step with all M micro-batches.
        jit_compile: whether XLA compiles the functions of each partition; `set_jit_compile` changes it.
    """

    @classmethod
    def Params(cls) -> hyperparams.InstantiableParams:
        """Return the Params of a pipeline. `help(GPipeLayer)` says what each field means."""
        p = super().Params()
        p.Define('layers', [], 'List of InstantiableParams of Keras layers, in order.')
        p.Define(
            'model', None, 'Params of a Keras model to cut instead, such as lingpipe.KerasModelParams(function).')
        p.Define(
            'num_partitions', 1, 'K: number of devices, each with one contiguous partition, or several '
            'if the schedule says so.')
        p.Define(
            'num_micro_batches', 1, 'M: number of micro-batches that a batch, or the share of a replica, is cut into.')
        p.Define(
            'num_replicas', 1, 'R: number of pipelines side by side, each with a share of the batch and devices of '
            "its own; 'auto': the number with the shortest simulated step on the devices that there are.")
        p.Define('gradient_sum', 'auto', f'How gradients are summed over replicas: one of {list(collectives.METHODS)}.')
        p.Define(
            'schedule', 'gpipe', f'Order of the actions: one of {sorted(schedules.SCHEDULES)}, the path of a CSV '
            "file, LingPipe's or PyTorch's, or the list of each device's actions.")
        p.Define(
            'num_virtual_stages', 1, "V: number of partitions on each device, for the schedules 'interleaved_1f1b' and "
            "'circular'; 2 for 'zb_v' and 'v_half'; a CSV file or list says itself where its partitions are.")
        p.Define(
            'recompute', 'stage', "'none': keep all activations; 'selective': recompute large tensors that take little "
            "time, such as attention's probabilities, as far as memory_limit requires or, without a limit, in a "
            "small part of the forward pass's time; 'stage': keep activations between partitions and recompute the "
            "rest, a partition at a time; 'layer': recompute a layer at a time.")
        p.Define(
            'partition_by', 'flops', "What the cut makes even: 'flops', 'time' (measured on the first device) or "
            "'params'; or a list of ascending end indices.")
        p.Define(
            'memory_limit', None, 'Most bytes that a device may need by estimate; None: no limit.')
        p.Define(
            'batch_size', None, "Rows of a training batch, for memory_limit and what partition_by measures; None: "
            'those that the pipeline is built with.')
        p.Define(
            'num_optimizer_slots', None, 'Tensors that the optimizer keeps for each weight, for memory_limit: SGD 0, '
            "momentum 1, Adam 2; None: counted from the trainer's optimizer, Adam's without a trainer.")
        p.Define(
            'profile_dir', None, "Folder that keeps the times of layers that partition_by measures; None: the "
            "trainer's log directory, and without a trainer none is kept.")
        p.Define(
            'devices', None, 'List of device names, one per partition, replica after replica; None: all '
            'accelerators, else virtual CPUs.')
        p.Define(
            'tpu_route', 'auto', "Which programs run the pipeline on TPUs: 'stage_programs': one for each function of "
            "a partition, for any layers; 'logical_cores': one that is cut over the cores of a TPUStrategy's "
            "replicas, for older runtimes; 'spmd': one that every core runs, for partitions that are alike, in "
            "training and --mode=plan --compile; 'auto': in training 'spmd' if possible, else 'logical_cores' for "
            "replicas that fill the system and have one partition or share statistics, else 'stage_programs'.")
        p.Define(
            'added_losses', 'exact', "'exact': losses of layers (add_loss) are refused unless they are means or sums "
            "over examples; 'averaged': others, such as the balance of experts, are averaged over micro-batches.")
        p.Define('jit_compile', False, 'Whether XLA compiles the functions of each partition.')
        p.Define('random_seed', None, 'Integer that dropout and its like depend on, instead of seeds of '
                 'layers; None draws one from Keras.')
        return p

    def __init__(self, params: hyperparams.InstantiableParams | None = None,
                 source: layer_sources.LayerSource | None = None, **fields: Any) -> None:
        params, chosen, source = construction.given(type(self), params, source, fields)
        validation.validate_gpipe_params(params, len(source))
        # With autocast, the weights that Keras passes would already be cast.
        super().__init__(params, autocast=False, dtype='float32')
        self.supports_jit = False
        self.model, self.stack = source.model, source.layers
        self.schedule = validation.make_schedule(params)
        self._seed_generator = keras.random.SeedGenerator(params.random_seed)
        with tf.init_scope(), tf.device('CPU:0'):
            self._num_inferences = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._seed_variable = self._seed_generator.state.value  # where TensorFlow finds it when saving functions
        self._untracked = _Untracked(source, chosen)  # Keras and TensorFlow save only layers and collections
        self.jit_compile = params.jit_compile

    @property
    def grid(self) -> stage_grid.StageGrid:
        """The stages of all replicas, as a `StageGrid`. Raises ValueError before `build`."""
        if self._untracked.grid is None:
            raise ValueError(f'{self.name!r} has no weights yet. Call it on a batch, or build(input_shape), first.')
        return self._untracked.grid

    @property
    def stages(self) -> list[stage.Stage]:
        """List of the `Stage`s of the first replica. Raises ValueError before `build`."""
        return self.grid.stages

    @property
    def replicas(self) -> list[list[stage.Stage]]:
        """List of replicas. Each replica is a list of `Stage`s. Raises ValueError before `build`."""
        return self.grid.replicas

    @property
    def partitions(self) -> list[balancing.Partition]:
        """List of `Partition`s. Each has the layers, the device and the costs of one partition."""
        devices = [part.device for part in self.stages]  # raises ValueError if there are no weights yet
        return self.cut.describe(self.analyses, devices)

    @property
    def source(self) -> layer_sources.LayerSource:
        """The object that gives the pipeline its layers, a `LayersOfParams` or a `LayersOfModel`."""
        return self._untracked.source

    @property
    def output_of_one_example(self) -> Any:
        """Nest of `tf.TensorSpec` of the outputs for a batch of one example. The pipeline must be built."""
        return self.source.output_of_one_example(self.analyses)

    @property
    def computes_in_float16(self) -> bool:
        """Whether some layer computes in float16. Gradients then need a scaled loss."""
        return any(layer.compute_dtype == 'float16' for layer in self._flatten_layers(include_self=False))

    def __repr__(self) -> str:
        """Return a text. After `build`, it shows the layers of each partition."""
        if self._untracked.grid is None:
            return super().__repr__()
        p = self.params
        fields = ', '.join(f'{name}={p.Get(name)!r}' for name in ('num_replicas', 'num_micro_batches', 'recompute'))
        chosen = ', '.join(f'{field}={p.Get(field)!r}' for field in self._untracked.chosen)
        return (f'<GPipeLayer name={self.name!r}, schedule={self.schedule.name!r}, {fields}>\n'
                f'{balancing.table(self.partitions)}' + (f"\n'auto' chose {chosen}." if chosen else ''))

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._require_built(inputs)
        with patches.telling_what_failed_first():  # Keras turns the error inside into another one
            return super().__call__(inputs, *args, **kwargs)

    def build(self, input_shape: Any) -> None:
        """Cut the stack and create every weight on its partition's device.

        Args:
            input_shape: shape `(batch, ...)` of the input, or a nest of shapes. A Keras model determines
                the dtypes of its inputs. Without a model, all inputs have Keras's default float type.
        """
        if self.model is None or self._untracked.grid is None:
            self.build_from_specs(self.source.specs_of_shapes(input_shape))

    @tf.autograph.experimental.do_not_convert
    def build_from_specs(self, input_specs: Any, load_weights: bool = True) -> None:
        """Build the pipeline for inputs with the given specs; see `build`.

        Args:
            input_specs: nest of `tf.TensorSpec` `[batch, ...]`.
            load_weights: whether to load the weights that come with the model of `params`. Pass False if
                `source.load_weights` or a checkpoint loads weights later.
        """
        validation.refuse_strategies(self.name)
        validation.refuse_layers_of_whole_batches(self.params, stage.sublayers(self.stack))
        random_seeds.make_global_generator()  # which cannot get a value while a layer is traced
        self.analyses = self.source.analyses(input_specs)
        devices = device_kinds.device_grid(self.params)
        self.cut = balancing.cut(self.params, self.schedule, self.source, self.analyses, input_specs, devices[0])
        if self.params.recompute == construction.AUTO:
            params = hyperparams.CopyFieldsTo(self.params, self.Params())  # a layer's Params are frozen
            self.params = params.Set(recompute=self.cut.recompute, memory_limit=self.cut.memory_limit)
            self.params.Freeze()
        self.schedule = schedules.for_costs(self.schedule, self.cut.costs.stages(self.cut.ends))
        self._untracked.grid = self._make_grid(input_specs, devices)
        self.place_new_weights()
        self.built = True
        if load_weights:
            self.source.load_weights()

    def _make_grid(self, input_specs: Any, devices: list[list[str]]) -> stage_grid.StageGrid:
        """Create all weights and the stages of all replicas."""
        p = self.params
        # Each row of `devices` is a replica.
        of_stages = [[row[self.schedule.device_of(index)] for row in devices] for index in range(len(self.cut.ends))]
        specs = [input_specs, *[analysis.outputs for analysis in self.analyses]]
        runs = self.source.runs(self.cut.ends, of_stages, specs)
        if p.num_replicas * p.num_micro_batches > 1:
            self.source.refuse_micro_batches(specs)
        stages = [stage.Stage(run, own_devices[0], sources, self.jit_compile, p.num_replicas)
                  for (run, sources), own_devices in zip(runs, of_stages)]
        if p.recompute == 'selective':
            for each, most_bytes in zip(stages, self.cut.most_kept_bytes(self.schedule)):
                each.selection = functools.partial(selection.kept_tensors, device=each.device, most_bytes=most_bytes)
        others = [[each.on(device) for each, device in zip(stages, replica)]
                  for replica in itertools.islice(zip(*of_stages), 1, None)]
        seeds = random_seeds.StepSeeds(self._seed_generator, self._num_inferences)
        return stage_grid.StageGrid([stages, *others], self.schedule, seeds, p)

    def place_new_weights(self) -> None:
        """If layers got weights since the last call, move these to their stages' devices. All functions trace again."""
        found = {id(variable): (variable, each.device) for each in reversed(self.stages)  # the first has shared ones
                 for variable in itertools.chain(*each.variables())}
        new = found.keys() - self._untracked.placed.keys() if self._untracked.placed else ()  # at first, all are placed
        for key in new:
            variable_placement.move(*found[key])
        if new:
            patches.forget_traces()
        self._untracked.placed = found

    def forget_programs(self) -> None:
        """Drop all traces. Changed attributes of layers then take effect."""
        self._untracked.losses.clear()
        self._untracked.functions.clear()
        for each in self._untracked.grid.stages if self._untracked.grid else []:
            each.forget_programs()

    def set_jit_compile(self, jit_compile: bool) -> None:
        """Set whether XLA compiles the functions of each partition, and drop all traces."""
        self.jit_compile = jit_compile
        for each in itertools.chain(*self._untracked.grid.replicas) if self._untracked.grid else []:
            each.set_jit_compile(jit_compile)
        self.forget_programs()

    def pack_outputs(self, outputs: Any) -> Any:
        """Convert the outputs of the last stage to the nest that the user gets."""
        return self.source.pack_outputs(outputs)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """Return None. The outputs already have the masks that the layers compute."""

    def compute_output_spec(self, inputs: Any, training: bool | None = False, mask: Any = None) -> Any:
        """Return symbolic outputs for symbolic inputs, as nests of `keras.KerasTensor` `[batch, ...]`."""
        return self.source.output_spec(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the nest of output shapes. `input_shape` is a shape `(batch, ...)` or a nest of shapes."""
        symbols = keras.tree.map_shape_structure(keras.KerasTensor, input_shape)
        return keras.tree.map_structure(lambda symbol: symbol.shape, self.compute_output_spec(symbols))

    @functools.cached_property
    def _may_train_by_default(self) -> Any:
        """Whether some layer is in training mode by default."""
        # A model's call may pass training=True. Layers for image augmentation have it as a default.
        layers = self._flatten_layers(include_self=False)
        given = [node.arguments.kwargs.get('training') for layer in layers for node in layer._inbound_nodes]
        parameters = [inspect.signature(layer.call).parameters.get('training') for layer in layers]
        return True in given or any(each is not None and each.default is True for each in parameters)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Run the stack. Actions always have the order of GPipe, because the loss is outside the pipeline.

        Args:
            inputs: nest of tensors `[batch, ...]`.
            training: Python boolean; None: the default of each layer.
            mask: nest of boolean Keras masks, with None for an input without a mask; None: no masks.

        Returns:
            Nest of tensors `[batch, ...]`, with the masks of the last layer.

        Raises:
            ValueError: the call is inside a `keras.StatelessScope`.
        """
        if stateless_scope.in_stateless_scope():
            raise ValueError(f'{self.name!r} was called in a keras.StatelessScope, or inside another pipeline, but '
                             'partitions read variables on their devices. Call stateless_call of the source model, or '
                             'make one pipeline of the whole model.')
        inputs = boundary.put_masks_on(self.source.enter(inputs), mask)
        if training is None and not self._may_train_by_default:
            training = False
        outputs, added = self._in_function(tape_pass.call)(
            self._untracked.grid, inputs, training if training is None else bool(training))
        for loss in added:
            self.add_loss(loss)
        return self.pack_outputs(outputs)

    @tf.autograph.experimental.do_not_convert
    def value_and_grad(self, loss_fn: Callable, x: Any, y_true: Any, sample_weight: Any = None, step: Any = None,
                       return_outputs: bool = False, assign_state: bool = True, loss_scale: Any = None,
                       read: Callable[[keras.Variable], tf.Tensor] = variable_placement.read_variable
                       ) -> loss_pass.ValueAndGrad:
        """Compute the mean loss of a batch, and the gradients. The last stage computes the loss.

        Args:
            loss_fn: a Keras loss, `losses.LossAndStates`, or a function `(y_true, outputs)`. The function may return a
                scalar, which is the mean over the examples. It may return a tensor `[batch, ...]` with a loss for each
                example. As in Lingvo, it may return `{name: (mean, weight)}` with the entry 'loss'.
            x: nest of tensors `[batch, ...]`, the input.
            y_true: nest of tensors `[batch, ...]`, the targets.
            sample_weight: tensor `[batch, ...]` of weights for examples or tokens, or None.
            step: number of the training step; None: the pipeline counts steps. Step and seed determine all random
                numbers.
            assign_state: whether to assign moving statistics and other state. If False, the caller assigns
                `state_updates` of the result, in a `tf.function`.
            loss_scale: scalar that multiplies the loss before the backward pass, and divides the gradients afterwards.
                Without a scale, small gradients may vanish in float16. None: 1.
            read: function that returns the value of a Keras variable.
        """
        self._require_built(x)
        grid = self.grid
        step = None if step is None else tf.cast(step, tf.int64)
        loss_scale = None if loss_scale is None else tf.cast(loss_scale, tf.float32)
        out = self._in_function(loss_pass.value_and_grad)(
            grid, self._stage_loss(loss_fn), self.source.enter(x),
            loss_pass.targets_of(y_true, sample_weight), step, return_outputs, assign_state, loss_scale, read)
        gradients = dict(zip(map(id, grid.trainable_variables), out.gradients))
        return out._replace(gradients=[gradients.get(id(variable)) for variable in self.trainable_variables],
                            outputs=self.pack_outputs(out.outputs) if return_outputs else None)

    @tf.autograph.experimental.do_not_convert
    def evaluate(self, loss_fn: Callable, x: Any, y_true: Any, sample_weight: Any = None,
                 read: Callable[[keras.Variable], tf.Tensor] = variable_placement.read_variable) -> dict[str, Any]:
        """Compute the metric sums of a batch in evaluation mode. See `value_and_grad` for all arguments except `read`.

        Args:
            read: function that returns the value to use for a Keras variable, such as its moving average.

        Returns:
            Dictionary `{name: sums}`, to be added up over batches. `sums` is a pair (sum, weight), or a tuple of any
            length for a state of `losses.LossAndStates`. The entry 'loss' includes losses that layers add.
        """
        self._require_built(x)
        return self._in_function(loss_pass.evaluate)(
            self._untracked.grid, self._stage_loss(loss_fn), self.source.enter(x),
            loss_pass.targets_of(y_true, sample_weight), read)

    @tf.autograph.experimental.do_not_convert
    def outputs_and_added_losses(self, x: Any) -> tuple[Any, list[tf.Tensor]]:
        """Run in evaluation mode. Return outputs `[batch, ...]`, and the added loss of each stage that adds losses."""
        self._require_built(x)
        outputs, added = self._in_function(tape_pass.evaluate)(self._untracked.grid, self.source.enter(x))
        return self.pack_outputs(outputs), added

    def _stage_loss(self, loss_fn: Callable) -> loss_pass.StageLoss:
        """Return the `StageLoss` of a loss, the same object for equal losses."""
        key = losses.identity(loss_fn)
        if key not in self._untracked.losses:
            self._untracked.losses[key] = loss_pass.StageLoss(loss_fn, self.source)
        return self._untracked.losses[key]  # which is a key of traced programs

    def _require_built(self, x: Any) -> None:
        if not self.built:
            self.build_from_specs(micro_batches.specs_of_tensors(x))

    def _in_function(self, method: Callable) -> Callable:
        """In eager mode, return `method` as a `tf.function`; in a graph, return `method` itself."""
        self.place_new_weights()  # layers may have got some since the last call, as by `enable_lora`
        if not tf.executing_eagerly():
            return method
        self._untracked.source.refuse_changed_settings()
        key = (method, *[part.trainability() for part in self.stages])
        function = self._untracked.functions.setdefault(key, boundary.MaskedFunction(  # runs devices in parallel
            device_kinds.rest_on_host(self.stages[0].device, method)))
        return functools.partial(boundary.traced, function)
