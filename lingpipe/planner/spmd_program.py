"""The training step of an SPMD pipeline as the program that the TPU compiler takes, with nothing allocated."""

from lingpipe.layers import unallocated
from lingpipe.pipeline import analysis, losses
from lingpipe.planner import stage_calls, tpu_lowering
from lingpipe.spmd import pipeline as spmd
from lingpipe.spmd import stage_map
from lingpipe.spmd import step as spmd_step


def lower(body_params, input_specs, target_specs, loss, optimizer, clip_gradient_norm_to_value=0.0):
    """Translates the step for all cores of one pipeline.

    Args:
        body_params: `GPipeLayer.Params()`; K, M and recomputation are those of the program.
        input_specs: nest of `tf.TensorSpec` `[batch, ...]` of the input.
        target_specs: nest of `tf.TensorSpec` `[batch, ...]` of what the loss compares with.
        loss: function `(targets, outputs) -> {name: (mean, weight)}`, as tasks have it.
        optimizer: `keras.optimizers.Optimizer` without slots.
        clip_gradient_norm_to_value: see `spmd_step.SpmdStep`.

    Returns:
        The program, see `tpu_lowering.lower`; with one partition it is for one device.

    Raises:
        ValueError: the layers are not enough alike; the message says what to do.
    """
    p = body_params
    whole = p.Copy().Set(num_partitions=1, num_virtual_stages=1, schedule='gpipe', partition_by='flops')
    pipe = stage_calls.unallocated_pipeline(whole, input_specs)
    layer_params = analysis.named_layer_params(p.layers, p.dtype_policy)
    specs = [input_specs, *[each.outputs for each in pipe.analyses]]
    pipeline = spmd.SpmdPipeline(
        pipe.stack, stage_map.longest_run(layer_params, specs), p.num_partitions, p.num_micro_batches, p.recompute,
        is_partitioned=p.num_partitions > 1)
    with unallocated.unallocated_variables():
        step = spmd_step.SpmdStep(
            pipeline, losses.as_metrics(loss), optimizer, p.random_seed or 0, clip_gradient_norm_to_value)
        state_specs = step.state_specs()
    return tpu_lowering.lower(step, state_specs, input_specs, target_specs)
