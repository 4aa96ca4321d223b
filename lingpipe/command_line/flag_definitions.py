"""The flags of run.py."""

from absl import flags

flags.DEFINE_string('model', None, "Model: a module of params ('params.amoebanet'), or a class in one ('params.amoebanet.X').")
flags.DEFINE_enum(
    'mode', 'train', ['train', 'eval', 'trace', 'export', 'generate', 'inspect_params', 'inspect_model', 'plan', 'list'],
    'train: train, evaluating as it goes. eval: evaluate a checkpoint. trace: show what the time of a few steps is '
    'spent on, in a picture and a table. export: write a checkpoint as a plain Keras file and as a SavedModel. '
    'generate: print what a language model writes after --prompt, or a translation model makes of it. inspect_params: print all hyperparameters. inspect_model: print every layer with its shape, parameters, FLOPs, '
    'partition and device. plan: tell what fits on which devices, and how fast it is. list: print all models.')
flags.DEFINE_string(
    'logdir', None, 'Folder of checkpoints and curves, here or at gs://; training goes on from what is there.')
flags.DEFINE_string('model_params_override', '', "Changes, such as 'train.max_steps=100; task.body.num_partitions=4; input.batch_size=64; test.batch_size=50'.")
flags.DEFINE_string('model_params_file_override', '', 'File of changes, one a line.')
flags.DEFINE_enum('device', 'auto', ['auto', 'cpu', 'gpu', 'tpu'], 'Where partitions go; auto: accelerators, else CPU.')
flags.DEFINE_string('tpu', None, "With --device=tpu: name of a Cloud TPU, or 'local', the default, for this machine's own.")
flags.DEFINE_string('checkpoint', None, 'Checkpoint to evaluate, export or generate with; the newest of --logdir otherwise.')
flags.DEFINE_bool('follow', False, 'With --mode=eval: evaluate every new checkpoint of a running training.')
flags.DEFINE_string('accelerator', None, "With --mode=plan: what to plan for, such as 'v3', 'v5e' or 'a100'.")
flags.DEFINE_string('device_memory', None, "With --mode=plan: memory of a device, such as '16GiB'; by default the accelerator's.")
flags.DEFINE_integer('num_devices', None, "With --mode=plan: how many devices num_partitions='auto' may use; by default as many "
                     'as the model needs.', lower_bound=1)
flags.DEFINE_bool('compile', False, 'With --mode=plan: also compile what each device would run for a TPU, which need not be there.')
flags.DEFINE_string('tpu_topology', 'v5e:2x2', "With --mode=plan --compile: the TPUs to compile for, such as 'v3:2x2'.")
flags.DEFINE_integer('steps', 3, 'With --mode=trace: how many training steps to record.', lower_bound=1)
flags.DEFINE_string('prompt', '', 'With --mode=generate: start of the text.')
flags.DEFINE_integer('num_tokens', 200, 'With --mode=generate, language models: largest number of tokens to go on for.', lower_bound=1)
flags.DEFINE_float('temperature', 0.8, 'With --mode=generate, language models: the lower, the likelier the text; 0: always the likeliest.')
flags.DEFINE_integer('top_k', 40, 'With --mode=generate, language models: choose among so many of the likeliest tokens; 0: all.')
flags.DEFINE_integer('seed', 0, 'With --mode=generate, language models: another seed, another text.')
flags.DEFINE_enum(
    'cluster', 'none', ['none', 'pipeline', 'multi_worker', 'parameter_server'],
    'Train on many machines, each running this command. pipeline: stages on the workers. multi_worker: a pipeline on each worker, '
    'gradients averaged. parameter_server: weights on servers, that workers send their gradients to.')
flags.DEFINE_string(
    'cluster_spec', None, 'With --cluster: file in the form of TF_CONFIG that names all processes; by default TF_CONFIG itself.')
flags.DEFINE_string('task', None, "With --cluster: which process this one is, such as 'worker:1'; by default as the cluster spec says.")
flags.DEFINE_enum('update', 'async', ['async', 'sync'], 'With --cluster=parameter_server: whether workers wait for each other in every step.')
flags.DEFINE_integer(
    'max_staleness', None, 'With --cluster=parameter_server --update=async: gradients are dropped that are staler than so many updates of '
    'others; by default none is.', lower_bound=0)
flags.DEFINE_float(
    'step_timeout_seconds', 600., 'With --cluster: after so long without the end of a step a worker counts as lost; 0: never.', lower_bound=0.)
flags.DEFINE_integer(
    'max_restarts', 0, 'With --mode=train: how often to start again by itself after a crash or a lost worker, counted anew with every '
    'new checkpoint.', lower_bound=0)
