-- What two shards know of the units that one gave the other: sums that only grow in an epoch, so that what one of
-- them has lost is the difference, and no transfer needs a number. units: given where is_out is 1, else those that came;
-- arrived: of units given those that the shard knows to have arrived. Both begin anew, as they do in Redis.
ALTER TABLE shard_transfer
    DROP COLUMN number,
    DROP COLUMN open_units,
    DROP COLUMN moved,
    ADD COLUMN units BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN arrived BIGINT NOT NULL DEFAULT 0
