-- opening: the generation that the latest attempt to open the partition was given, whether or not it
-- succeeded. A partition that is open with a lower one lost its latest opening in a failover.
ALTER TABLE partition_lease
    ADD COLUMN opening BIGINT UNSIGNED NOT NULL DEFAULT 0
