import pytest

from lingpipe.cluster import tpu_slice

HOSTS = ['lm-0.lm', 'lm-1.lm', 'lm-2.lm']


def environment(index, names='lm-0.lm,lm-1.lm,lm-2.lm'):
    return {'TPU_WORKER_HOSTNAMES': names, 'TPU_WORKER_ID': index}


@pytest.mark.parametrize(('index', 'task', 'expected'), [
    ('0', None, 'chief:0'), ('0', 'worker:0', 'worker:0'), ('2', None, 'worker:2'), ('2', 'worker:2', 'worker:2')])
def test_host_0_leads_and_the_others_serve(index, task, expected):
    config = tpu_slice.read(task, environment(index))
    assert config.task == expected
    assert config.jobs == {'chief': ['lm-0.lm:2223'], 'worker': [f'{name}:2222' for name in HOSTS]}


def test_a_host_may_name_its_port():
    config = tpu_slice.read(environment=environment('1', '10.0.0.2:81, 10.0.0.3'))
    assert tpu_slice.target(config) == 'grpc://10.0.0.2:81,grpc://10.0.0.3:2222'


@pytest.mark.parametrize('given', [{}, environment('3'), environment('one'), environment('0', ' ,')])
def test_an_environment_that_names_no_host_is_refused(given):
    with pytest.raises(ValueError, match='TPU_WORKER_HOSTNAMES=.* and TPU_WORKER_ID=.* do not say which host .* Set '
                                         'the first'):
        tpu_slice.read(environment=given)


def test_the_chief_alone_leaves_the_tpu_to_the_server_of_its_host():
    seen = []
    for index in ('0', '1'):
        given = environment(index)
        tpu_slice.leave_tpu_to_server(tpu_slice.read(environment=given), given)
        seen.append(given.get('TPU_LOAD_LIBRARY'))
    assert seen == ['0', None]
