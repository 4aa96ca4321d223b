"""Published datasets of TFDS, which tests mock."""

import tensorflow_datasets as tfds


def write_metadata(dataset, data_dir, num_examples):
    """Leave in `data_dir` what tfds.testing.mock_data needs to know the number of examples."""
    builder = tfds.builder(dataset, data_dir=str(data_dir))
    template = tfds.core.ShardedFileTemplate(
        data_dir=builder.data_path, dataset_name=builder.name, split='train', filetype_suffix='tfrecord')
    split = tfds.core.SplitInfo(name='train', shard_lengths=[num_examples], num_bytes=0, filename_template=template)
    builder.info.set_splits(tfds.core.splits.SplitDict([split]))
    builder.data_path.mkdir(parents=True)
    builder.info.write_to_directory(builder.data_dir)
