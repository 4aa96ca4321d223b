import pytest
import tensorflow as tf

from lingpipe.placements import logical_cores, spmd_cores, tpu_system
from tests import virtual_tpu
from tests.tiny_tasks import transformer_task

CORES = [f'/device:TPU:{index}' for index in range(8)]


class System:
    """What `tpu_system.start` returns, of a system that does not exist."""

    topology = virtual_tpu.topology()
    resolver = virtual_tpu.Resolver(topology)
    devices = CORES


def body(**fields):
    return transformer_task()[0].body.Set(devices=None, **fields)


def test_a_machine_without_a_tpu_is_refused_with_what_to_check():
    with pytest.raises(RuntimeError, match=r'--tpu=local: no TPU .* could be started \(.*tensorflow-tpu.*--device=cpu'):
        tpu_system.start_tpu_system('local')


def test_a_tpu_that_cannot_be_reached_is_named_with_what_to_check(monkeypatch):
    def unreachable(tpu):
        raise OSError('Name or service not known')

    monkeypatch.setattr(tf.distribute.cluster_resolver, 'TPUClusterResolver', unreachable)
    with pytest.raises(RuntimeError, match=r'--tpu=mine: .*\(Name or service not known\).*READY.*--tpu=local'):
        tpu_system.start_tpu_system('mine')


def test_each_stage_of_each_replica_gets_a_core():
    assert tpu_system.place(body(num_partitions=2, num_replicas=3), System).devices == CORES[:6]


def test_more_stages_of_replicas_than_cores_are_refused():
    with pytest.raises(ValueError, match='num_partitions=2 times num_replicas=5 is more than the 8 cores .* product to '
                                         '8 or less'):
        tpu_system.place(body(num_partitions=2, num_replicas=5), System)


@pytest.mark.parametrize('route, module, name', [
    ('logical_cores', logical_cores, 'LogicalCores'), ('spmd', spmd_cores, 'SpmdCores')])
def test_routes_of_one_program_get_replicas_that_fill_the_system(route, module, name, monkeypatch):
    monkeypatch.setattr(module, name, lambda *arguments: arguments)
    assert tpu_system.place(body(num_partitions=4, tpu_route=route), System) == (System.resolver, System.topology, 4)


def experiment(of_task, of_body=None):
    params, _ = transformer_task()
    params.dtype_policy, params.body.dtype_policy = of_task, of_body
    made = params.Copy()
    made.Define('task', params, 'The task.')
    return made


@pytest.mark.parametrize('of_task, of_body, expected', [
    (None, None, 'mixed_bfloat16'), ('float32', None, 'float32'), (None, 'float32', None)])
def test_precision_is_that_of_tpus_where_params_name_none(of_task, of_body, expected):
    params = experiment(of_task, of_body)
    assert tpu_system.with_defaults(params).task.dtype_policy == expected
    assert params.task.dtype_policy == of_task


def test_float16_is_not_for_tpus():
    with pytest.raises(ValueError, match="'mixed_float16' is not for TPUs. Set it to 'mixed_bfloat16' or 'float32'"):
        tpu_system.with_defaults(experiment('mixed_float16'))


@pytest.mark.parametrize('fields, mode, message', [
    ({'tpu_route': 'spmd'}, 'trace', "tpu_route='spmd' is for --mode=train only, but --mode=trace"),
    ({'tpu_route': 'logical_cores'}, 'eval', "tpu_route='logical_cores' is for --mode=train only, but --mode=eval"),
    ({}, 'generate', '--mode=generate does not run on TPUs.*--device=cpu'),
    ({'partition_by': 'time'}, 'train', "partition_by='time' measures layers.*Set it to 'flops'"),
    ({'devices': ['CPU:0']}, 'train', r"devices=\['CPU:0'\] names devices.*Set it to None")])
def test_what_does_not_run_on_a_tpu_is_refused_before_it_is_started(fields, mode, message):
    with pytest.raises(ValueError, match=message):
        tpu_system.validate(body().Set(**fields), mode)
