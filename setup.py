"""Installs the package lingpipe, the package params with its models, and the command lingpipe.

The command also finds a folder `params` or a module in the current folder; see `lingpipe/model_registry.py`.
"""

import pathlib

import setuptools

_FOLDER = pathlib.Path(__file__).parent
# To compile for TPUs that are not there; wheels exist only for Linux on x86-64.
_TPU_COMPILER = [f"{package}; sys_platform == 'linux' and platform_machine == 'x86_64'"
                 for package in ('jaxlib==0.10.2', 'libtpu==0.0.51')]
_CLASSIFIERS = [
    'Development Status :: 4 - Beta',
    'Intended Audience :: Developers',
    'Intended Audience :: Science/Research',
    'Operating System :: MacOS',
    'Operating System :: POSIX :: Linux',
    'Programming Language :: Python :: 3',
    'Programming Language :: Python :: 3 :: Only',
    'Programming Language :: Python :: 3.11',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Topic :: System :: Distributed Computing',
    'Typing :: Typed',
]
_NOTEBOOKS = ['ipykernel', 'nbclient', 'nbformat']
_KERAS_HUB = ['keras-hub>=0.32,<0.33', 'safetensors', 'tokenizers']

setuptools.setup(
    name='lingpipe',
    version='0.1.0',
    description='Pipeline-parallel training of giant neural networks in TensorFlow and Keras',
    long_description=(_FOLDER / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    keywords=['pipeline parallelism', 'GPipe', 'model parallelism', 'Keras', 'TensorFlow', 'Lingvo', 'TPU'],
    classifiers=_CLASSIFIERS,
    project_urls={'Paper': 'https://arxiv.org/abs/1811.06965'},
    packages=setuptools.find_packages(include=['lingpipe', 'lingpipe.*', 'params', 'params.*']),
    package_data={'lingpipe': ['py.typed', 'input/digits.npz']},
    entry_points={'console_scripts': ['lingpipe = lingpipe.__main__:run']},
    python_requires='>=3.11',
    install_requires=[
        'absl-py',
        'importlib_resources',  # which TFDS imports without declaring it
        'keras>=3.15.1,<3.16',  # with 3.12, the fuzzer finds losses that differ from Keras's
        'matplotlib',  # pictures of plans, traces and reports
        'numpy',
        'scipy',  # the exact choice of what is recomputed
        'tensorboard',  # which tf.summary needs
        'tensorflow>=2.18,<2.22',
        'tensorflow-datasets',
        'tqdm',
        'wrapt',  # registers pipelines once a program has loaded Keras, so that saved models load
    ],
    extras_require={
        'docs': ['mkdocs>=1.6,<2', 'mkdocs-material>=9.6,<10', 'mkdocstrings[python]'],
        'gpu': ['tensorflow[and-cuda]'],
        'hub': _KERAS_HUB,
        'mlflow': ['mlflow'],
        'notebooks': [*_NOTEBOOKS, 'jupyterlab'],
        'tpu-compile': _TPU_COMPILER,
        'wandb': ['wandb'],
        'test': _KERAS_HUB + _NOTEBOOKS + (_FOLDER / 'requirements/test.txt').read_text(encoding='utf-8').split(),
    },
)
