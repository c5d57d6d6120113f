SELECT version, name, checksum FROM schema_migration ORDER BY version
