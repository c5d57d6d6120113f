-- What else a shard is restored by. serves: it takes requests of its layout. began: number of the event by which
-- it came to its epoch; 0: not known.
ALTER TABLE shard_stock
    ADD COLUMN serves BOOLEAN         NOT NULL DEFAULT 1 AFTER released,
    ADD COLUMN began  BIGINT UNSIGNED NOT NULL DEFAULT 0 AFTER serves,
    ADD KEY by_partition (partition_id)
