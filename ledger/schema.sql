-- The ledger's whole schema as the migrations leave it, to read in one place. A test compares the two.

-- One row per product. The shards' live units are part of available_stock. Each stream is applied at its
-- own pace: units may be sold or removed at one shard before the stream of another tells that they came
-- in, so available_stock and total_stock can be below zero for a while. Held and sold units never move. released_stock: units that
-- have left the buffer for the shards since the product was loaded. Below buffer_release_below available
-- units in the shards the buffer is released by itself; 0: never.
-- frozen_… is the last decision to stop or to resume the sale: why and by whom, '' while it is not;
-- freeze_version grows with each, 0: there was none.
CREATE TABLE product_inventory (
    product_id       BIGINT       NOT NULL,
    name             VARCHAR(200) NOT NULL DEFAULT '',
    status           VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'closed',
    total_stock      BIGINT       NOT NULL DEFAULT 0,
    available_stock  BIGINT       NOT NULL DEFAULT 0,
    pre_deduct_stock BIGINT       NOT NULL DEFAULT 0,
    buffer_stock     BIGINT       NOT NULL DEFAULT 0,
    released_stock   BIGINT       NOT NULL DEFAULT 0,
    sold_count       BIGINT       NOT NULL DEFAULT 0,
    buffer_percent   TINYINT      NOT NULL DEFAULT 5,
    max_per_user     BIGINT       NOT NULL DEFAULT 0,
    low_stock        BIGINT       NOT NULL DEFAULT 0,
    buffer_release_below BIGINT   NOT NULL DEFAULT 0,
    shards           INT          NOT NULL DEFAULT 0,
    layout_version   BIGINT       NOT NULL DEFAULT 0,
    layout_shards    INT          NOT NULL DEFAULT 0,
    epoch            BIGINT       NOT NULL DEFAULT 0,
    load_pool        BIGINT       NOT NULL DEFAULT 0,
    sold_before      BIGINT       NOT NULL DEFAULT 0,
    sold_from_buffer BIGINT       NOT NULL DEFAULT 0,
    former_shards    VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    frozen_reason    VARCHAR(200) NOT NULL DEFAULT '',
    frozen_by        VARCHAR(64)  NOT NULL DEFAULT '',
    freeze_version   BIGINT       NOT NULL DEFAULT 0,
    version          BIGINT       NOT NULL DEFAULT 0,
    create_time      DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time      DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id),
    KEY by_freeze (freeze_version),
    KEY by_buffer_rule (buffer_release_below),
    CONSTRAINT product_id_positive CHECK (product_id > 0),
    CONSTRAINT product_status_known CHECK (status IN ('closed', 'loading', 'open', 'closing')),
    CONSTRAINT product_held_not_negative CHECK (pre_deduct_stock >= 0),
    CONSTRAINT product_buffer_not_negative CHECK (buffer_stock >= 0),
    CONSTRAINT product_released_not_negative CHECK (released_stock >= 0),
    CONSTRAINT product_sold_not_negative CHECK (sold_count >= 0),
    CONSTRAINT product_conserves_units CHECK (
        total_stock = available_stock + pre_deduct_stock + buffer_stock + sold_count
    ),
    CONSTRAINT product_buffer_percent_in_range CHECK (buffer_percent BETWEEN 0 AND 100)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The journal: one row per operation. type: 1 reserve, 2 confirm, 3 release, 4 rollback, 5 deduct,
-- 6 restock, 7 remove, 8 layout, 9 refund, 10 force_release, 11 repair, 12 buffer, 13 freeze, 14 unfreeze, 15 restore. quantity is
-- negative where units left the available stock, or the held ones for the sold ones. partition_id and the
-- event id say which stream entry told of it; NULL and 0: it did not come by a stream. A rollback has those of
-- the second effect that it brought back. actor: who asked for it, where somebody said so. available_after:
-- available units of the shard just after the operation; of the product where it did not come by a stream; NULL: not known.
CREATE TABLE inventory_log (
    id               BIGINT       NOT NULL AUTO_INCREMENT,
    product_id       BIGINT       NOT NULL,
    request_id       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind             VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    type             TINYINT      NOT NULL,
    order_id         BIGINT       NOT NULL DEFAULT 0,
    user_id          BIGINT       NOT NULL DEFAULT 0,
    quantity         BIGINT       NOT NULL,
    partition_id     SMALLINT     NULL,
    event_generation BIGINT UNSIGNED NOT NULL DEFAULT 0,
    event_number     BIGINT UNSIGNED NOT NULL DEFAULT 0,
    remark           VARCHAR(200) NOT NULL DEFAULT '',
    actor            VARCHAR(64)  NOT NULL DEFAULT '',
    available_after  BIGINT       NULL,
    create_time      DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    UNIQUE KEY one_effect (product_id, request_id, kind),
    KEY by_order (order_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What each shard holds as far as its stream has been applied. in_transit is signed: units that left
-- for other shards less those that came; over all shards of an epoch it adds up to what is on its way.
-- loaded is signed, too: a shard may give back more than it was loaded with.
-- released: units of the buffer that have arrived at the shard since the product was loaded; what
-- product_inventory has in released_stock beyond all of them is on its way. serves: it takes requests of its layout.
-- began: number of the event by which it came to its epoch; 0: not known.
CREATE TABLE shard_stock (
    product_id       BIGINT      NOT NULL,
    partition_id     SMALLINT    NOT NULL,
    epoch            BIGINT      NOT NULL,
    layout_version   BIGINT      NOT NULL,
    state            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    available        BIGINT      NOT NULL DEFAULT 0,
    held             BIGINT      NOT NULL DEFAULT 0,
    sold             BIGINT      NOT NULL DEFAULT 0,
    loaded           BIGINT      NOT NULL DEFAULT 0,
    in_transit       BIGINT      NOT NULL DEFAULT 0,
    released         BIGINT      NOT NULL DEFAULT 0,
    serves           BOOLEAN     NOT NULL DEFAULT 1,
    began            BIGINT UNSIGNED NOT NULL DEFAULT 0,
    event_generation BIGINT UNSIGNED NOT NULL DEFAULT 0,
    event_number     BIGINT UNSIGNED NOT NULL DEFAULT 0,
    update_time      DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id, partition_id),
    KEY by_partition (partition_id),
    CONSTRAINT shard_available_not_negative CHECK (available >= 0),
    CONSTRAINT shard_held_not_negative CHECK (held >= 0),
    CONSTRAINT shard_sold_not_negative CHECK (sold >= 0),
    CONSTRAINT shard_conserves_units CHECK (available + held + sold + in_transit = loaded)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What two shards know of the units that one gave the other, as far as their streams have been applied: sums that only
-- grow in an epoch, so that what one of them has lost is the difference. One row at each of the two. units: given where
-- is_out is 1, else those that came; arrived: of units given those that the shard knows to have arrived.
CREATE TABLE shard_transfer (
    partition_id SMALLINT NOT NULL,
    product_id   BIGINT   NOT NULL,
    peer         SMALLINT NOT NULL,
    is_out       BOOLEAN  NOT NULL,
    epoch        BIGINT   NOT NULL DEFAULT 0,
    units        BIGINT   NOT NULL DEFAULT 0,
    arrived      BIGINT   NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id, product_id, peer, is_out),
    KEY by_peer (peer)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The last applied entry of each partition's stream, and what it is recognised by besides its id.
CREATE TABLE stream_checkpoint (
    partition_id SMALLINT    NOT NULL,
    generation   BIGINT UNSIGNED NOT NULL DEFAULT 0,
    number       BIGINT UNSIGNED NOT NULL DEFAULT 0,
    anchor       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    update_time  DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (partition_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Applied entries of the last hour as they stood in the stream: fields is their flat list of names and
-- values, packed with MessagePack. A shard that lost its memory is rebuilt from them.
CREATE TABLE raw_event (
    partition_id SMALLINT    NOT NULL,
    generation   BIGINT UNSIGNED NOT NULL,
    number       BIGINT UNSIGNED NOT NULL,
    fields       MEDIUMBLOB  NOT NULL,
    create_time  DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (partition_id, generation, number),
    KEY by_age (create_time)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Entries, or single requests of an entry, that could not be applied. reason starts with one word for
-- its class. request_id is empty where the whole entry is meant. fields is packed as in raw_event and
-- cut after 1 MiB. state: open, retried, discarded. shard_followed: whether shard_stock took over what the
-- event says of the shard's counts all the same; NULL: not known, an earlier version wrote the letter.
CREATE TABLE dead_letter (
    id           BIGINT       NOT NULL AUTO_INCREMENT,
    partition_id SMALLINT     NOT NULL,
    generation   BIGINT UNSIGNED NOT NULL,
    number       BIGINT UNSIGNED NOT NULL,
    product_id   BIGINT       NOT NULL DEFAULT 0,
    request_id   VARCHAR(64)  NOT NULL DEFAULT '',
    reason       VARCHAR(500) NOT NULL,
    fields       MEDIUMBLOB   NOT NULL,
    shard_followed BOOLEAN    NULL,
    state        VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'open',
    actor        VARCHAR(64)  NOT NULL DEFAULT '',
    remark       VARCHAR(200) NOT NULL DEFAULT '',
    create_time  DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time  DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    KEY by_event (partition_id, generation, number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Work on the live stock that must come to its end, whoever does it. kind undo: the units of a request's
-- second effect go back; the event is the one that had it. kind transfer: of the units that partition_id gave
-- peer (transfer: all of that epoch) not just these have arrived as far as the events tell; a row goes when they have.
-- -1: no partition.
CREATE TABLE outbox (
    id               BIGINT       NOT NULL AUTO_INCREMENT,
    kind             VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    product_id       BIGINT       NOT NULL,
    partition_id     SMALLINT     NOT NULL DEFAULT -1,
    epoch            BIGINT       NOT NULL DEFAULT 0,
    event_generation BIGINT UNSIGNED NOT NULL DEFAULT 0,
    event_number     BIGINT UNSIGNED NOT NULL DEFAULT 0,
    request_id       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    peer             SMALLINT     NOT NULL DEFAULT -1,
    transfer         BIGINT       NOT NULL DEFAULT 0,
    quantity         BIGINT       NOT NULL DEFAULT 0,
    state            VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'open',
    attempts         INT          NOT NULL DEFAULT 0,
    due_time         DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    remark           VARCHAR(200) NOT NULL DEFAULT '',
    create_time      DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time      DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    UNIQUE KEY once (
        kind,
        product_id,
        partition_id,
        event_generation,
        event_number,
        request_id
    ),
    KEY by_due (state, due_time)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What audits found; report is JSON.
CREATE TABLE audit_report (
    id          BIGINT      NOT NULL AUTO_INCREMENT,
    scope       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    product_id  BIGINT      NOT NULL DEFAULT 0,
    differences INT         NOT NULL DEFAULT 0,
    report      MEDIUMTEXT  NOT NULL,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    KEY by_product (product_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Modes that all processes agree on, changed by compare-and-set on epoch: sales is where units are sold from.
-- `server …`: what a serving process says of itself (reaches: it reaches Redis), again and again: it counts for a
-- moment after update_time.
CREATE TABLE service_mode (
    name        VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode        VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch       BIGINT       NOT NULL DEFAULT 0,
    remark      VARCHAR(200) NOT NULL DEFAULT '',
    update_time DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Which worker serves a partition, and until when by this database's clock; no worker: ''.
CREATE TABLE partition_lease (
    partition_id SMALLINT    NOT NULL,
    worker       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    expire_time  DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    opening      BIGINT UNSIGNED NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Workers that are alive: each says so before expire_time, by this database's clock.
CREATE TABLE worker (
    name        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    expire_time DATETIME(3) NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row: what is fixed for the cluster's life, and which of its MySQL servers this one is, from 0 on.
CREATE TABLE cluster (
    id           TINYINT     NOT NULL,
    partitions   INT         NOT NULL,
    ledgers      INT         NOT NULL DEFAULT 1,
    ledger_index INT         NOT NULL DEFAULT 0,
    create_time  DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    CONSTRAINT cluster_is_one CHECK (id = 1)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Changes of a product's shard count while it is on sale. Each may use two versions: its own, and the
-- next one to roll back under. state: wanted, then active or rolled_back; done once the shards that left
-- are empty.
CREATE TABLE layout_change (
    product_id  BIGINT      NOT NULL,
    version     BIGINT      NOT NULL,
    shards      INT         NOT NULL,
    cause       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    state       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'wanted',
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id, version),
    KEY by_state (state, update_time),
    CONSTRAINT layout_change_shards_positive CHECK (shards > 0),
    CONSTRAINT layout_change_cause_known CHECK (cause IN ('operator', 'hot', 'cold')),
    CONSTRAINT layout_change_state_known CHECK (state IN ('wanted', 'active', 'done', 'rolled_back'))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How many requests a second each server process is asked for a product: a word of a few seconds.
CREATE TABLE product_demand (
    product_id     BIGINT      NOT NULL,
    server         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    requests_per_s BIGINT      NOT NULL,
    update_time    DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id, server),
    KEY by_age (update_time)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Units that orders hold, shard by shard, as far as the streams have been applied: a row lasts as long as
-- its hold. create_time is the live stock's. decision: the order's record at its coordinator, of its first line;
-- empty at the others. With orders, the journal has type 9 refund (an order that was
-- confirmed too late and whose units are gone) and 10 force_release (who had an order released, and why);
-- both move no units.
CREATE TABLE hold (
    id           BIGINT      NOT NULL AUTO_INCREMENT,
    product_id   BIGINT      NOT NULL,
    partition_id SMALLINT    NOT NULL,
    request_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    order_id     BIGINT      NOT NULL,
    user_id      BIGINT      NOT NULL,
    quantity     BIGINT      NOT NULL,
    decision     VARCHAR(3000) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    create_time  DATETIME(3) NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY once (product_id, request_id, partition_id),
    KEY by_product (product_id, id),
    KEY by_user (user_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What callers are told of, for some days. Ids are in the order of the commits.
CREATE TABLE service_event (
    id          BIGINT      NOT NULL,
    kind        VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    product_id  BIGINT      NOT NULL,
    order_id    BIGINT      NOT NULL DEFAULT 0,
    user_id     BIGINT      NOT NULL DEFAULT 0,
    available   BIGINT      NOT NULL DEFAULT 0,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    KEY by_age (create_time)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row, made by the first event: the highest id in service_event. A transaction that tells of something
-- holds it until it has committed, or ids would be visible in another order than they were given out.
CREATE TABLE event_sequence (
    id      TINYINT NOT NULL,
    last_id BIGINT  NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT event_sequence_is_one CHECK (id = 1)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Requests that take nothing, for good, where MySQL is all there is or as the streams have told: kind refused
-- (of a retry, for shortage) or never (ResolveRequest decided it). quantity and user_id: what was refused.
CREATE TABLE request_tombstone (
    product_id  BIGINT      NOT NULL,
    request_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    quantity    BIGINT      NOT NULL DEFAULT 0,
    user_id     BIGINT      NOT NULL DEFAULT 0,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id, request_id),
    KEY by_age (create_time),
    CONSTRAINT request_tombstone_kind_known CHECK (kind IN ('refused', 'never'))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Orders, where MySQL is all there is. state barred: released before it came, so it will hold nothing; it has
-- no lines. order_lines: <product>:<quantity>:<place>, by product, with commas between them; place is - or, of
-- a line that was short, an exclamation mark. deadline_time includes the grace for late confirmations.
CREATE TABLE inventory_order (
    order_id      BIGINT        NOT NULL,
    user_id       BIGINT        NOT NULL DEFAULT 0,
    state         VARCHAR(16)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    order_lines   VARCHAR(2000) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    deadline_time DATETIME(3)   NOT NULL,
    create_time   DATETIME(3)   NOT NULL,
    update_time   DATETIME(3)   NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (order_id),
    KEY by_deadline (state, deadline_time),
    CONSTRAINT inventory_order_state_known CHECK (
        state IN ('held', 'confirmed', 'released', 'expired', 'refused', 'retaken', 'refund_required', 'barred')
    )
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Units that a user holds and has bought of a product with a limit per user, where MySQL is all there is. They
-- count from the load on that raised the product's epoch to this one.
CREATE TABLE user_units (
    product_id BIGINT NOT NULL,
    user_id    BIGINT NOT NULL,
    epoch      BIGINT NOT NULL,
    units      BIGINT NOT NULL,
    PRIMARY KEY (product_id, user_id),
    CONSTRAINT user_units_not_negative CHECK (units >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Shards whose own counts differ from the ledger's at the same event: live less ledger. A shard has one open
-- row at most; is_open is NULL once it agrees again, and state says how that came: repaired, or passed.
-- damaged names live counts that no script has written. first_… is the first event that tells of the
-- difference, last_… the one at which it became what it is; changes counts how often it did.
CREATE TABLE shard_drift (
    id               BIGINT      NOT NULL AUTO_INCREMENT,
    product_id       BIGINT      NOT NULL,
    partition_id     SMALLINT    NOT NULL,
    epoch            BIGINT      NOT NULL,
    is_open          TINYINT     NULL DEFAULT 1,
    state            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'open',
    available        BIGINT      NOT NULL,
    held             BIGINT      NOT NULL,
    sold             BIGINT      NOT NULL,
    loaded           BIGINT      NOT NULL,
    damaged          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    first_generation BIGINT UNSIGNED NOT NULL,
    first_number     BIGINT UNSIGNED NOT NULL,
    last_generation  BIGINT UNSIGNED NOT NULL,
    last_number      BIGINT UNSIGNED NOT NULL,
    changes          INT         NOT NULL DEFAULT 0,
    create_time      DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time      DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    UNIQUE KEY one_open (is_open, product_id, partition_id),
    KEY by_product (product_id, id),
    CONSTRAINT shard_drift_state_known CHECK (state IN ('open', 'repaired', 'passed'))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Requests that were sold from the buffer and that the live stock has not been told of. A row goes when it has.
CREATE TABLE buffer_sale (
    id          BIGINT      NOT NULL AUTO_INCREMENT,
    product_id  BIGINT      NOT NULL,
    request_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    quantity    BIGINT      NOT NULL,
    user_id     BIGINT      NOT NULL,
    mode_epoch  BIGINT      NOT NULL,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    UNIQUE KEY once (product_id, request_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
