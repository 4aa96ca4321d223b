import keras
import pytest

from lingpipe import model_registry
from lingpipe.layers import batch_normalization, transformer
from lingpipe.layers.keras_params import KerasParams
from lingpipe.placements import tpu_system

MESH = [2, 2, 1, 1]


@pytest.fixture
def params():
    p = model_registry.GetParams('params.transformer_lm', 'Train')
    p.input.Set(batch_size=8, sequence_length=4)
    p.task.body.Set(num_partitions=2, num_micro_batches=2, recompute='stage',
                    layers=transformer.transformer_lm_layers(2, 256, 32, 128, 2))
    return p


def test_auto_is_one_program_where_the_layers_allow_it(params, capsys):
    chosen = tpu_system.resolved(params, 'train', MESH)
    assert chosen.task.body.tpu_route == 'spmd' and params.task.body.tpu_route == 'auto'
    names = [layer.name for layer in chosen.task.body.layers]
    assert chosen.task.body.partition_by == [names.index('block_1'), len(names)]
    assert "'auto': tpu_route='spmd'. One program for all cores." in capsys.readouterr().out


def odd_layers(body):
    body.layers = transformer.transformer_lm_layers(3, 256, 8, 8, 2)


def with_two_alike(body, params):
    body.layers = [KerasParams(keras.layers.Embedding, input_dim=256, output_dim=8)] + [params] * 2


class Counting(keras.layers.Dense):
    """Counts its calls."""

    def build(self, input_shape):
        super().build(input_shape)
        self.count = self.add_weight(shape=(), name='count', trainable=False)

    def call(self, inputs, training=False):
        self.count.assign_add(1.0)
        return super().call(inputs, training=training)


def with_losses(body):
    with_two_alike(body, KerasParams(
        keras.layers.Dense, units=8, activity_regularizer=KerasParams(keras.regularizers.L2, l2=0.1)))


class Spare(keras.layers.Dense):
    def build(self, input_shape):
        super().build(input_shape)
        self.spare = self.add_weight(shape=(3, 2), name='spare')


REFUSED = {
    'weights that are not used': (lambda p: with_two_alike(p.task.body, KerasParams(Spare, units=8)), r'do not use .*/spare.*trainable=False'),
    'no two layers that are alike': (lambda p: p.task.body.Set(layers=p.task.body.layers[:3]),
        'needs at least num_partitions=2'),
    'a counter': (lambda p: with_two_alike(p.task.body, KerasParams(Counting, units=8)),
                  'assigns.*/count'),
    'a batch norm': (lambda p: with_two_alike(p.task.body, KerasParams(keras.layers.BatchNormalization)),
                     'a batch norm in training'),
    'added losses': (lambda p: with_losses(p.task.body), r'adds a loss .*leaves out'),
    'nothing recomputed': (lambda p: p.task.body.Set(recompute='none'),
        "recompute='none' does not go with tpu_route='spmd'"),
    'a schedule': (lambda p: p.task.body.Set(schedule='1f1b'), "schedule='1f1b' with .* does not go with "
                                                               "tpu_route='spmd'"),
    'an optimizer': (lambda p: p.train.Set(optimizer=KerasParams(keras.optimizers.Nadam)),
        'Nadam keeps .* beside slots'),
}


@pytest.mark.parametrize('name', sorted(REFUSED))
def test_auto_avoids_spmd_where_validation_refuses_it(name, params, capsys):
    """The refusal comes before a TPU system is started."""
    change, message = REFUSED[name]
    change(params)
    chosen = tpu_system.resolved(params, 'train', MESH)
    assert chosen.task.body.tpu_route == 'stage_programs' and chosen.task.body.partition_by == 'flops'
    assert "'auto': tpu_route='stage_programs'. 'spmd' would not do: " in capsys.readouterr().out
    params.task.body.tpu_route = 'spmd'
    with pytest.raises(ValueError, match=message):
        tpu_system.validate_route(params, 'train')


OF_THE_SYSTEM = {
    'replicas that do not divide the batch': (
        lambda p: p.input.Set(batch_size=6), 'batch_size=6 is not a multiple of 2 replicas times '
                                             'num_micro_batches=2.*multiple of 4'),
    'no box of cores': (lambda p: p.task.body.Set(
        num_partitions=3, layers=transformer.transformer_lm_layers(3, 256, 8, 8, 2)),
            'num_partitions=3 cores do not fill'),
}


@pytest.mark.parametrize('name', sorted(OF_THE_SYSTEM))
def test_what_does_not_go_with_the_system_is_refused_once_it_is_known(name, params):
    change, message = OF_THE_SYSTEM[name]
    change(params)
    assert tpu_system.resolved(params, 'train', MESH).task.body.tpu_route == 'stage_programs'
    params.task.body.tpu_route = 'spmd'
    tpu_system.validate_route(params, 'train')
    with pytest.raises(ValueError, match=message):
        tpu_system.resolved(params, 'train', MESH)


def test_moving_averages_of_weights_go_with_one_program(params):
    params.train.ema_decay = 0.9
    assert tpu_system.resolved(params, 'train', MESH).task.body.tpu_route == 'spmd'


def test_auto_leaves_no_layers_that_are_alike_to_all_cores(params):
    odd_layers(params.task.body)
    assert tpu_system.resolved(params, 'train', MESH).task.body.tpu_route == 'stage_programs'
    params.task.body.tpu_route = 'spmd'
    assert tpu_system.resolved(params, 'train', MESH).task.body.partition_by[0] == 4


def test_auto_leaves_less_work_to_all_cores_than_a_core_has_in_stages(params, capsys):
    dense = [KerasParams(keras.layers.Dense, units=units) for units in (90, 90, 8)]  # too few weights to be cut
    with_two_alike(params.task.body, KerasParams(keras.layers.Dense, units=8))
    params.task.body.layers[1:1] = dense
    assert tpu_system.resolved(params, 'train', MESH).task.body.tpu_route == 'stage_programs'
    assert '99% of the work of each core would be that of layers outside of the stages' in capsys.readouterr().out
    params.task.body.tpu_route = 'spmd'
    assert tpu_system.resolved(params, 'train', MESH).task.body.partition_by == [5, 6]


def test_other_modes_and_routes_are_left_alone(params):
    assert tpu_system.resolved(params, 'eval', MESH) is params
    params.task.body.Set(tpu_route='logical_cores')
    assert tpu_system.resolved(params, 'train', MESH).ToText() == params.ToText()


def test_auto_is_one_program_for_replicas_of_one_core(params, capsys):
    params.task.body.Set(num_partitions=1, num_replicas=4)
    chosen = tpu_system.resolved(params, 'train', MESH)
    assert (chosen.task.body.tpu_route, chosen.task.body.num_replicas) == ('logical_cores', 1)
    assert 'One program for all replicas, a core for each.' in capsys.readouterr().out
    params.task.body.num_replicas = 3
    assert tpu_system.resolved(params, 'train', MESH).task.body.tpu_route == 'stage_programs'


@pytest.mark.parametrize('route', ['logical_cores', 'spmd'])
def test_replicas_of_one_program_fill_the_system(route, params):
    params.task.body.Set(tpu_route=route, num_replicas=2)
    chosen = tpu_system.resolved(params, 'train', MESH)
    assert chosen.task.body.num_replicas == 1 and params.task.body.num_replicas == 2
    params.task.body.num_replicas = 3
    with pytest.raises(ValueError, match='num_replicas=3 .* room for 2 of 2 cores. Set it to 2, or to 1'):
        tpu_system.resolved(params, 'train', MESH)


# ---- statistics over groups of replicas -----------------------------------------------------------------------------

def with_groups(params, group_size=2, **body):
    """Layers that are not alike, with a grouped batch norm inside of one of them."""
    norm = KerasParams(keras.layers.TimeDistributed, layer=KerasParams(
        batch_normalization.BatchNormalization, group_size=group_size), name='normed')
    params.task.body.Set(layers=[params.task.body.layers[0], norm], **body)
    return params


def test_auto_is_one_program_where_replicas_share_statistics(params, capsys):
    chosen = tpu_system.resolved(with_groups(params, num_replicas=2), 'train', MESH)
    assert (chosen.task.body.tpu_route, chosen.task.body.num_replicas) == ('logical_cores', 1)
    assert "'stage_programs' cannot share statistics between replicas" in capsys.readouterr().out


def test_auto_refuses_replicas_that_share_statistics_and_leave_cores_idle(params):
    with_groups(params, group_size=3, num_partitions=1, num_replicas=3)
    tpu_system.validate_route(params, 'train')
    message = "finds no route on 4 cores. 'spmd' .*'normed' .*group_size=3.* as many replicas .* or set group_size=1"
    with pytest.raises(ValueError, match=message):
        tpu_system.resolved(params, 'train', MESH)


@pytest.mark.parametrize('mode, remedy', [('train', "tpu_route='auto' or 'logical_cores'"),
                                          ('trace', '--device=cpu')])
def test_programs_of_stages_share_no_statistics(mode, remedy, params):
    """It is refused before a TPU system is started."""
    with_groups(params, num_replicas=2, tpu_route='stage_programs')
    with pytest.raises(ValueError, match=f"'normed' .*group_size=2.*'stage_programs' runs each of num_replicas=2.*{remedy}"):
        tpu_system.validate_route(params, mode)
    tpu_system.validate_route(params, 'eval')
    params.task.body.num_replicas = 1
    tpu_system.validate_route(params, mode)


def test_uneven_groups_are_refused_before_a_system_is_started(params):
    with_two_alike(params.task.body, KerasParams(batch_normalization.BatchNormalization, group_size=3))
    params.task.body.Set(num_replicas=4)
    with pytest.raises(ValueError, match='group_size=3 does not divide num_replicas=4.*one of .1, 2, 4.'):
        tpu_system.validate_route(params, 'train')
