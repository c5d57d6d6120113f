-- Which of how many MySQL servers this one is, from 0 on; one that was alone before is the only one.
ALTER TABLE cluster
    ADD COLUMN ledgers      INT NOT NULL DEFAULT 1 AFTER partitions,
    ADD COLUMN ledger_index INT NOT NULL DEFAULT 0 AFTER ledgers
