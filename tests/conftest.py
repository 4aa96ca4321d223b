"""Eight virtual CPU devices for every test, and arithmetic that does not depend on how operations were fused."""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'

from lingpipe.distribute import local_devices

local_devices.use_virtual_devices(8)
