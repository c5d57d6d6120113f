SELECT GET_LOCK(CONCAT('inventory_migrate:', MD5(DATABASE())), %s)
