-- An undo is told from the others of its request by the event that had the second effect, and a transfer
-- by its receiver and number. partition_id is part of the key, so it cannot be NULL any more.
ALTER TABLE outbox
    ADD COLUMN epoch            BIGINT          NOT NULL DEFAULT 0 AFTER partition_id,
    ADD COLUMN event_generation BIGINT UNSIGNED NOT NULL DEFAULT 0 AFTER epoch,
    ADD COLUMN event_number     BIGINT UNSIGNED NOT NULL DEFAULT 0 AFTER event_generation,
    ADD COLUMN peer             SMALLINT        NOT NULL DEFAULT -1 AFTER request_id,
    ADD COLUMN transfer         BIGINT          NOT NULL DEFAULT 0 AFTER peer,
    MODIFY COLUMN partition_id  SMALLINT        NOT NULL DEFAULT -1,
    DROP INDEX once,
    ADD UNIQUE KEY once (
        kind,
        product_id,
        partition_id,
        event_generation,
        event_number,
        request_id
    )
