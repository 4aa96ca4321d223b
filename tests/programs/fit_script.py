"""A user's own script: fits a Keras model in a pipeline over a cluster, or alone with as many devices.

    fit_script.py OUTPUT [--alone | --worker_timeout_seconds=10]
"""

import pathlib
import sys

import lingpipe

folder, is_alone = pathlib.Path(sys.argv[1]), '--alone' in sys.argv
limit = float(next((word.partition('=')[2] for word in sys.argv if 'timeout' in word), 600))
devices = lingpipe.use_virtual_devices(2) if is_alone else lingpipe.connect(
    trusted_network=True, worker_timeout_seconds=limit)

import keras
import numpy as np


class Told(keras.callbacks.Callback):
    """Writes the number of each epoch that has ended, for a test that strikes then."""

    def on_epoch_end(self, epoch, logs=None):
        (folder / 'epoch').write_text(str(epoch))


keras.utils.set_random_seed(0)
dense = [keras.layers.Dense(8, activation='tanh') for _ in range(3)]
source = keras.Sequential([keras.Input([4]), *dense, keras.layers.Dropout(0.2), keras.layers.Dense(2)])
pipe = lingpipe.GPipeLayer.from_keras(source, num_partitions=2, num_micro_batches=4, schedule='1f1b', random_seed=3)
model = lingpipe.PipelineModel(pipe)
model.compile(keras.optimizers.Adam(0.01), 'mse', metrics=['mae'])
rng = np.random.default_rng(0)
x, y = rng.normal(size=[32, 4]).astype('float32'), rng.normal(size=[32, 2]).astype('float32')
history = model.fit(
    x, y, batch_size=8, epochs=40, shuffle=False, verbose=0,
    callbacks=[keras.callbacks.BackupAndRestore(str(folder / 'backup')), Told()])
model.save(folder / 'model.keras')
np.savez(folder / 'found.npz', *model.get_weights(), loss=history.history['loss'][-1:], predicted=model.predict(x, verbose=0),
         evaluated=model.evaluate(x, y, verbose=0))
print('devices', *sorted({variable.value.device for variable in model.trainable_variables}))
