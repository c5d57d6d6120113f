SET SESSION
    innodb_lock_wait_timeout = %s,
    wait_timeout = %s,
    time_zone = '+00:00',
    sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'
