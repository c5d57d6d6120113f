SELECT partition_id, generation, number, anchor FROM stream_checkpoint
