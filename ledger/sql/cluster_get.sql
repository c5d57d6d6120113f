SELECT partitions, ledgers, ledger_index FROM cluster WHERE id = 1
